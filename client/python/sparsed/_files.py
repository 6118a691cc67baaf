"""Files of sparse matrices, read by the library as `sparsectl upload` reads them."""

from __future__ import annotations

import ctypes
import errno
import json
import os
import warnings
from typing import Any

from sparsed import _native, _types
from sparsed._caller import callers_level
from sparsed._csr import Csr, Taken, take_csr


def read(
    path: str | os.PathLike[str],
    *,
    dtype: Any = None,
    shape: Any = None,
    format: str | None = None,
    one_based: bool = False,
    undirected: bool = False,
    weight_column: int | None = None,
) -> Csr:
    """Reads a file of a sparse matrix, which `Client.upload` takes then: a Matrix Market file, an
    archive of SciPy's (.npz), an edge list, a NumPy array of entries (.npy) or a METIS graph, plain
    or compressed by gzip, xz or Zstandard. What it is its content says.

    What was guessed, duplicates that were summed up, NaN and infinite values are told by
    `warnings.warn`.

    Args:
        path: of the file.
        dtype: of the values, as in `Client.upload`; by default the file's own, f32 where it has
            none.
        shape: (rows, cols), or a number for both, of an edge list or an array of entries; by
            default they are square, up to the greatest index.
        format: "mtx", "npz", "npy", "edges" or "metis", whatever the content looks like.
        one_based: indices of an edge list or an array of entries count from 1.
        undirected: each entry of an edge list or an array of entries is one of the transpose, too.
        weight_column: which column of an edge list has the values, counted from 1; 0: they are
            ones. By default the third, if there are three.

    Returns:
        The matrix in canonical CSR.

    Raises:
        FileNotFoundError: there is no such file.
        InvalidArgument: with the place where the file is wrong, or with the name of a format that
            is not read, and a command that converts it.
    """
    from sparsed._sparse import parse_shape

    type_ = None if dtype is None else _types.parse(dtype)
    options = (format, one_based, undirected, -1 if weight_column is None else weight_column)
    return load(os.fspath(path), type_, parse_shape(shape), *options).csr()


def load(
    path: str,
    type_: int | None,
    shape: tuple[int, int] | None,
    format: str | None = None,
    one_based: bool = False,
    undirected: bool = False,
    weight_column: int = -1,
) -> Taken:
    if not os.path.exists(path):
        raise FileNotFoundError(errno.ENOENT, os.strerror(errno.ENOENT), path)
    name = ctypes.create_string_buffer(format.encode()) if format is not None else None
    rows, cols = shape or (-1, -1)
    options = _native.READ_OPTIONS.pack(
        _native.READ_OPTIONS.size, 0 if name is None else ctypes.addressof(name),
        -1 if type_ is None else type_, one_based, undirected, weight_column, rows, cols,
    )  # fmt: skip
    c_options = ctypes.create_string_buffer(options, len(options))
    lib = _native.library()
    out, told = _native.Out(), _native.Out()
    _native.check(
        lib.sparsed_csr_read(
            os.fsencode(path), ctypes.addressof(c_options), out.address, told.address
        )
    )
    taken = take_csr(out.value)
    for note in json.loads(_native.take_text(told.value))["notes"]:
        warnings.warn(f"{path}: {note}", stacklevel=callers_level())
    return taken
