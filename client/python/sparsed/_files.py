"""Files of sparse matrices."""

from __future__ import annotations

import os
from typing import Any

import numpy as np

from sparsed import _native
from sparsed._csr import Array, Taken, take_csr
from sparsed._errors import InvalidArgument
from sparsed._native import F32

# ("csr", shape, row offsets, column indices, values) or ("coo", shape, rows, columns, values);
# values None: ones.
Entries = tuple[str, Any, Any, Any, Any]


def read(path: str, type_: int | None) -> Entries | Taken:
    if path.endswith(".npz"):
        return _read_npz(path)
    if path.endswith((".mtx", ".mtx.gz")):
        return _read_matrix_market(path, F32 if type_ is None else type_)
    raise InvalidArgument(f"{path} is none of .mtx, .mtx.gz and .npz")


def _read_matrix_market(path: str, type_: int) -> Taken:
    lib = _native.library()
    out = _native.Out()
    _native.check(lib.sparsed_csr_read_matrix_market(os.fsencode(path), type_, out.address))
    return take_csr(out.value)


def _read_npz(path: str) -> Entries:
    """As scipy.sparse.save_npz writes them."""
    try:
        with np.load(path, allow_pickle=False) as file:
            part = {name: file[name] for name in file.files}
    except FileNotFoundError:
        raise
    except Exception as error:
        raise InvalidArgument(f"{path} is no .npz file of a sparse matrix: {error}") from error
    try:
        kind = part["format"].item()
        kind = kind.decode() if isinstance(kind, bytes) else str(kind)
        shape = tuple(int(extent) for extent in part["shape"])
        return _npz_entries(kind, shape, part)
    except KeyError as error:
        raise InvalidArgument(
            f"{path} has no array {error}, which scipy.sparse.save_npz writes"
        ) from None


def _npz_entries(kind: str, shape: tuple[int, ...], part: dict[str, Array]) -> Entries:
    if kind == "csr":
        return "csr", shape, part["indptr"], part["indices"], part["data"]
    if kind == "csc":
        return "coo", shape, part["indices"], expand(part["indptr"]), part["data"]
    if kind == "coo":
        if "coords" in part:
            return "coo", shape, part["coords"][0], part["coords"][1], part["data"]
        return "coo", shape, part["row"], part["col"], part["data"]
    if kind == "bsr":
        data = part["data"]
        blocks, height, width = data.shape
        row = np.repeat(expand(part["indptr"]) * height, height * width)
        row += np.tile(np.repeat(np.arange(height), width), blocks)
        col = np.repeat(part["indices"].astype(np.int64) * width, height * width)
        col += np.tile(np.arange(width), height * blocks)
        return "coo", shape, row, col, data.reshape(-1)
    if kind == "dia":
        data, offsets = part["data"], part["offsets"]
        col = np.tile(np.arange(data.shape[1], dtype=np.int64), len(offsets))
        row = col - np.repeat(offsets.astype(np.int64), data.shape[1])
        flat = data.reshape(-1)
        inside = (row >= 0) & (row < shape[0]) & (col < shape[1]) & (flat != 0)
        return "coo", shape, row[inside], col[inside], flat[inside]
    raise InvalidArgument(f"a sparse matrix of format {kind!r} in an .npz file is not known here")


def expand(offsets: Array) -> Array:
    """The row of each nonzero."""
    counts = np.diff(offsets)
    if len(offsets) == 0 or (counts < 0).any():
        raise InvalidArgument("row offsets of the matrix decrease")
    return np.repeat(np.arange(len(counts), dtype=np.int64), counts)
