"""Sparse matrices of whatever kind, as canonical CSR: ascending columns in each row, duplicates
summed up. Everything is done here, so that values are in the order of the canonical CSR on the
server, too."""

from __future__ import annotations

import os
import warnings
from typing import Any, NamedTuple, cast

import numpy as np

from sparsed import _files, _types
from sparsed._caller import callers_level
from sparsed._csr import Array, Csr, widened_bf16
from sparsed._errors import InvalidArgument, InvalidType
from sparsed._native import BF16, F16, F32, F64

_LARGEST_INDEX = 2**31 - 1

# ("csr", shape, row offsets, column indices, values) or ("coo", shape, rows, columns, values);
# values None: ones.
Entries = tuple[str, Any, Any, Any, Any]


class Canonical(NamedTuple):
    """Canonical CSR as it is uploaded: offsets of 8 or 4 bytes, indices of 4. Values of bf16 may be
    an array of uint16, the bits."""

    rows: int
    cols: int
    row_offsets: Array
    column_indices: Array
    values: Array | None
    type: int


def canonical(
    m: Any, shape: Any = None, dtype: Any = None, values: Any = None, num_nodes: int | None = None
) -> Canonical:
    """Of anything that Client.upload takes."""
    type_ = None if dtype is None else _types.parse(dtype)
    extent = parse_shape(shape, num_nodes)
    if isinstance(m, (str, os.PathLike)):
        _no_values(values, "a file")
        return _check_shape(_of_file(os.fspath(m), type_, extent), extent)
    edges = _edges(m, extent)
    if edges is not None:
        return _told(_of_edges(*edges, values, type_))
    _no_values(values, f"a {type(m).__name__}")
    return _told(_check_shape(_of_entries(*_entries(m, extent), type_), extent))


def positions(m: Any, shape: Any = None, num_nodes: int | None = None) -> Array:
    """For each entry of `m`, in the order in which `m` has them, its place among the nonzeros of
    the canonical CSR that `upload(name, m)` makes of it: int64.

    It takes values of edges to the order that products, `update_values` and SDDMM speak, and back:

        p = sparsed.positions(edge_index, num_nodes=n)
        values = np.zeros(g.nnz, np.float32); np.add.at(values, p, edge_weight)
        y = g.spmm(x, values=values)
        score_of_edge = g.sddmm(a, b)[p]
    """
    extent = parse_shape(shape, num_nodes)
    edges = _edges(m, extent)
    if edges is not None:
        rows, cols, (row_count, col_count) = edges
    else:
        (row_count, col_count), rows, cols, _ = _as_coo(*_entries(m, extent))
    _check_indices(rows, row_count, "row")
    _check_indices(cols, col_count, "column")
    order, first = _order(rows, cols, col_count)
    result = np.empty(len(order), np.int64)
    result[order] = np.cumsum(first) - 1
    return result


def _told(csr: Canonical) -> Canonical:
    """Warns of values that no product with the matrix gets rid of."""
    if csr.values is None:
        return csr
    bits = csr.type == BF16 and csr.values.dtype == np.uint16
    finite = (csr.values & 0x7F80) != 0x7F80 if bits else np.isfinite(csr.values)
    count = len(finite) - int(np.count_nonzero(finite))
    if count > 0:
        verb = "value of the matrix is" if count == 1 else "values of the matrix are"
        warnings.warn(f"{count} {verb} NaN or infinite", stacklevel=callers_level())
    return csr


def _tell_duplicates(count: int) -> None:
    warnings.warn(
        f"{count} {'duplicate was' if count == 1 else 'duplicates were'} summed: there are entries "
        "at their places already",
        stacklevel=callers_level(),
    )


def _of_file(path: str, type_: int | None, extent: tuple[int, int] | None) -> Canonical:
    found = _files.load(path, type_, extent)
    return Canonical(
        *found.shape, found.row_offsets, found.column_indices, found.values, found.type
    )


# ---- What it is ----------------------------------------------------------------------------------


def parse_shape(shape: Any, num_nodes: int | None = None) -> tuple[int, int] | None:
    if num_nodes is not None:
        if shape is not None:
            raise InvalidArgument("shape and num_nodes say the same: give one of them")
        shape = num_nodes
    if shape is None:
        return None
    try:
        extent = tuple(map(int, [shape, shape] if np.ndim(shape) == 0 else shape))
    except (TypeError, ValueError) as error:
        raise InvalidType(f"shape {shape!r} is neither a number nor (rows, cols)") from error
    if len(extent) != 2 or min(extent) < 0:
        raise InvalidArgument(f"shape {shape!r} is none of a matrix: (rows, cols) is expected")
    return extent[0], extent[1]


def _no_values(values: Any, what: str) -> None:
    if values is not None:
        raise InvalidArgument(
            f"values= is for an edge_index, and {what} brings values of its own: update_values "
            "replaces them"
        )


def _check_shape(csr: Canonical, extent: tuple[int, int] | None) -> Canonical:
    if extent is not None and (csr.rows, csr.cols) != extent:
        raise InvalidArgument(
            f"the matrix is {csr.rows} x {csr.cols}, and shape says {extent[0]} x {extent[1]}"
        )
    return csr


def _host(x: Any) -> Array:
    """An index or value array in host memory. Of bf16: ml_dtypes' or uint16's, see _values."""
    torch = _types.torch()
    if torch is not None and isinstance(x, torch.Tensor):
        x = x.detach().cpu()
        if x.dtype is torch.bfloat16:
            return cast(Array, x.contiguous().view(torch.int16).numpy().view(_Bits))
        return cast(Array, x.resolve_neg().numpy())
    if hasattr(x, "get") and hasattr(x, "__cuda_array_interface__"):
        return cast(Array, x.get())
    return np.asarray(x)


# bf16 without ml_dtypes: its bits, as a type of their own that nothing else has.
_Bits = np.dtype([("bf16", np.uint16)])


def _edges(m: Any, extent: tuple[int, int] | None) -> tuple[Array, Array, tuple[int, int]] | None:
    """Rows, columns and shape of S, of a PyG edge_index or EdgeIndex; None if it is neither."""
    torch = _types.torch()
    if torch is not None and isinstance(m, torch.Tensor):
        if m.layout is not torch.strided or m.dim() != 2 or m.shape[0] != 2:
            return None
        if m.is_floating_point() or m.is_complex() or m.dtype is torch.bool:
            return None
        if extent is None and hasattr(m, "sparse_size"):
            sources, targets = m.sparse_size()
            if sources is not None and targets is not None:
                extent = (int(targets), int(sources))
        plain = m.as_tensor() if hasattr(m, "as_tensor") else m
        array = _host(plain)
    elif isinstance(m, np.ndarray) and m.ndim == 2 and m.shape[0] == 2 and m.dtype.kind in "iu":
        array = m
    else:
        return None
    if extent is None:
        raise InvalidArgument(
            "an edge_index does not say how many nodes there are: shape=(targets, sources), or "
            "num_nodes="
        )
    return array[1], array[0], extent


def _entries(m: Any, extent: tuple[int, int] | None) -> Entries:
    """("csr", shape, row offsets, column indices, values) or ("coo", shape, rows, columns,
    values); values None: ones."""
    if isinstance(m, Csr):
        return "csr", m.shape, np.asarray(m.row_offsets), np.asarray(m.column_indices), m.values
    torch = _types.torch()
    if torch is not None and isinstance(m, torch.Tensor):
        return _torch_entries(m, torch)
    if callable(getattr(m, "csr", None)) and callable(getattr(m, "sparse_sizes", None)):
        offsets, indices, values = m.csr()  # torch_sparse.SparseTensor
        shape = tuple(int(extent) for extent in m.sparse_sizes())
        return "csr", shape, _host(offsets), _host(indices), None if values is None else _host(
            values)  # fmt: skip
    if hasattr(m, "tocsr") and hasattr(m, "shape"):
        return _scipy_entries(m)
    if isinstance(m, tuple):
        return _triple_entries(m, extent)
    if isinstance(m, np.ndarray):
        return _dense_entries(m)
    raise InvalidType(
        f"a {type(m).__name__} is not a sparse matrix that is known here: SciPy's and PyTorch's, "
        "edge_index, EdgeIndex, SparseTensor, (row, col, value), sparsed.Csr, 2-D arrays, and "
        "paths of files are"
    )


def _torch_entries(m: Any, torch: Any) -> Entries:
    if m.dim() != 2:
        raise InvalidArgument(f"the tensor has {m.dim()} dimensions, expected 2")
    m = m.detach()
    shape = tuple(m.shape)
    if m.layout is torch.sparse_coo:
        if m.dense_dim() != 0:
            raise InvalidArgument("the tensor is hybrid: each nonzero has to be one number")
        indices = _host(m._indices())
        return "coo", shape, indices[0], indices[1], _host(m._values())
    if m.layout is torch.sparse_csr:
        return "csr", shape, _host(m.crow_indices()), _host(m.col_indices()), _host(m.values())
    if m.layout is torch.sparse_csc:
        cols = expand(_host(m.ccol_indices()))
        return "coo", shape, _host(m.row_indices()), cols, _host(m.values())
    if m.layout is torch.strided:
        if m.dtype is torch.bfloat16:
            found = m.nonzero(as_tuple=True)
            return "coo", shape, _host(found[0]), _host(found[1]), _host(m[found])
        return _dense_entries(_host(m))
    return _torch_entries(
        m.to_sparse_coo() if hasattr(m, "to_sparse_coo") else m.to_sparse(), torch
    )


def _scipy_entries(m: Any) -> Entries:
    if m.ndim != 2:
        raise InvalidArgument(f"the matrix has {m.ndim} dimensions, expected 2")
    if hasattr(m, "get") and not hasattr(m, "items"):  # CuPy's
        m = m.get()
    if m.format == "coo":
        coo = m
        return "coo", coo.shape, np.asarray(coo.row), np.asarray(coo.col), np.asarray(coo.data)
    csr = m if m.format == "csr" else m.tocsr()
    return "csr", csr.shape, np.asarray(csr.indptr), np.asarray(csr.indices), np.asarray(csr.data)


def _triple_entries(m: tuple[Any, ...], extent: tuple[int, int] | None) -> Entries:
    if len(m) not in (2, 3):
        raise InvalidType(f"a tuple of {len(m)} is not a matrix: (row, col, value) is")
    rows, cols = _host(m[0]), _host(m[1])
    values = _host(m[2]) if len(m) == 3 and m[2] is not None else None
    if (
        rows.ndim != 1
        or rows.shape != cols.shape
        or (values is not None and values.shape != rows.shape)
    ):
        raise InvalidArgument(
            "row, col and value of a matrix have the shapes "
            + ", ".join(str(_host(part).shape) for part in m if part is not None)
            + ": they have to be of one length"
        )
    if extent is None:
        raise InvalidArgument("(row, col, value) does not say how large the matrix is: shape=")
    return "coo", extent, rows, cols, values


def _dense_entries(m: Array) -> Entries:
    if m.ndim != 2:
        raise InvalidArgument(f"the array has {m.ndim} dimensions, expected 2")
    if m.dtype.kind not in "fiub" and m.dtype.name != "bfloat16":
        raise _not_a_number(m.dtype)
    rows, cols = np.nonzero(m)
    return "coo", m.shape, rows, cols, m[rows, cols]


# ---- To canonical CSR ----------------------------------------------------------------------------


def _check_indices(indices: Array, extent: int, what: str) -> None:
    if indices.dtype.kind not in "iu":
        raise InvalidType(f"{what} indices are {indices.dtype}: integers are expected")
    if len(indices) == 0:
        return
    wrong = np.flatnonzero((indices < 0) | (indices >= extent))
    if len(wrong):
        at = int(wrong[0])
        raise InvalidArgument(
            f"{what} index {int(indices[at])} of entry {at} is out of range [0, {extent})"
        )


def expand(offsets: Array) -> Array:
    """The row of each nonzero."""
    counts = np.diff(offsets)
    if len(offsets) == 0 or (counts < 0).any():
        raise InvalidArgument("row offsets of the matrix decrease")
    return np.repeat(np.arange(len(counts), dtype=np.int64), counts)


def _as_coo(
    kind: str, shape: Any, first: Array, cols: Array, values: Any
) -> tuple[tuple[int, int], Array, Array, Any]:
    if kind == "coo":
        return shape, first, cols, values
    _check_offsets(first, shape[0], len(cols))
    return shape, expand(first), cols, values


def _check_offsets(offsets: Array, rows: int, nnz: int) -> None:
    if offsets.dtype.kind not in "iu":
        raise InvalidType(f"row offsets are {offsets.dtype}: integers are expected")
    if offsets.ndim != 1 or len(offsets) != rows + 1:
        raise InvalidArgument(f"there are {offsets.size} row offsets, expected {rows + 1}")
    if offsets[0] != 0 or offsets[-1] != nnz or (np.diff(offsets) < 0).any():
        raise InvalidArgument(f"row offsets do not go from 0 to {nnz}, the count of the nonzeros")


def _of_entries(
    kind: str, shape: Any, first: Array, cols: Array, values: Any, type_: int | None
) -> Canonical:
    rows, columns = int(shape[0]), int(shape[1])
    if values is not None:
        values = _host(values)
        if values.shape != cols.shape:
            raise InvalidArgument(f"there are {values.size} values and {len(cols)} column indices")
    values, type_ = _values(values, type_)
    if kind == "csr":
        _check_offsets(first, rows, len(cols))
        _check_indices(cols, columns, "column")
        if _is_canonical(first, cols):
            return _ready(rows, columns, first, cols, values, type_)
        first = expand(first)
    return _of_coo(rows, columns, first, cols, values, type_)


def _of_edges(
    rows: Array, cols: Array, shape: tuple[int, int], values: Any, type_: int | None
) -> Canonical:
    if values is not None:
        values = _host(values)
        if values.shape == (len(rows), 1):
            values = values[:, 0]
        if values.shape != rows.shape:
            raise InvalidArgument(
                f"values has the shape {values.shape}, and there are {len(rows)} edges"
            )
    values, type_ = _values(values, type_)
    return _of_coo(*shape, rows, cols, values, type_)


def _of_coo(
    rows: int, cols: int, row: Array, col: Array, values: Array | None, type_: int
) -> Canonical:
    _check_indices(row, rows, "row")
    _check_indices(col, cols, "column")
    if max(rows, cols) > _LARGEST_INDEX:
        raise InvalidArgument(f"a matrix of {rows} x {cols} is larger than 2^31 - 1 either way")
    order, first = _order(row, col, cols)
    starts = np.flatnonzero(first)
    kept = order[starts]
    if len(starts) < len(order):
        _tell_duplicates(len(order) - len(starts))
        if values is None:  # ones: so many
            values = np.diff(np.append(starts, len(order))).astype(np.float32)
            if type_ != F32:
                values = _convert(values, type_)
        else:
            wide = _widen(values, type_)
            values = _convert(np.add.reduceat(wide[order], starts).astype(wide.dtype), type_)
    elif values is not None:
        values = values[kept]
    offsets = np.zeros(rows + 1, np.int64)
    np.cumsum(np.bincount(row[kept], minlength=rows), out=offsets[1:])
    return _ready(rows, cols, offsets, col[kept], values, type_)


def _order(row: Array, col: Array, cols: int) -> tuple[Array, Array]:
    """What sorts entries by row and column, and which of the sorted ones are no duplicates."""
    key = row.astype(np.int64) * max(cols, 1) + col.astype(np.int64)
    order = np.argsort(key, kind="stable")
    key = key[order]
    first = np.ones(len(key), bool)
    first[1:] = key[1:] != key[:-1]
    return order, first


def _is_canonical(offsets: Array, cols: Array) -> bool:
    if len(cols) < 2:
        return True
    ascending = cols[1:] > cols[:-1]
    starts = offsets[1:-1]
    starts = starts[(starts > 0) & (starts < len(cols))]
    ascending[starts - 1] = True
    return bool(ascending.all())


def _ready(
    rows: int, cols: int, offsets: Array, indices: Array, values: Array | None, type_: int
) -> Canonical:
    if max(rows, cols) > _LARGEST_INDEX:
        raise InvalidArgument(f"a matrix of {rows} x {cols} is larger than 2^31 - 1 either way")
    if offsets.dtype not in (np.dtype(np.int32), np.dtype(np.int64)):
        offsets = offsets.astype(np.int64)
    if values is not None:
        values = np.ascontiguousarray(values)
    return Canonical(
        rows, cols, np.ascontiguousarray(offsets), np.ascontiguousarray(indices, np.int32), values,
        type_,
    )  # fmt: skip


# ---- Values --------------------------------------------------------------------------------------


def _not_a_number(dtype: Any) -> InvalidType:
    return InvalidType(
        f"values of type {dtype} are not supported: f16, bf16, f32 and f64 are; integers and "
        "booleans become f32"
    )


def _values(values: Array | None, type_: int | None) -> tuple[Array | None, int]:
    """Values of one of the four types, in this machine's byte order, and which that is."""
    if values is None:
        # The library's ones are of any type.
        return None, F32 if type_ is None else type_
    if values.dtype == _Bits:
        found: int | None = BF16
        values = values.view(np.uint16)
    elif values.dtype.kind in "iub":
        found = None
        exact = {F64: 2**53, F16: 2**11, BF16: 2**8}.get(F32 if type_ is None else type_, 2**24)
        if len(values) > 0 and (values.max() > exact or values.min() < -exact):
            wider = "" if type_ == F64 else '; dtype="f64" holds them up to 2^53'
            warnings.warn(
                f"integers beyond {exact} are rounded to the values' type{wider}",
                stacklevel=callers_level(),
            )
        values = values.astype(np.float64 if type_ == F64 else np.float32)
    else:
        found = _types.of_dtype(values.dtype)
        if found not in (F32, F64, F16, BF16):
            raise _not_a_number(values.dtype)
        if not values.dtype.isnative:
            values = values.astype(values.dtype.newbyteorder("="))
    if found is not None and (type_ is None or type_ == found):
        return values, found
    wide = _widen(values, found) if found is not None else values
    type_ = F32 if type_ is None else type_
    return _convert(wide, type_), type_


def _widen(values: Array, type_: int) -> Array:
    """What sums are made in: f64 of f64, f32 of the others."""
    if type_ == BF16 and values.dtype == np.uint16:
        return widened_bf16(values)
    return values if type_ == F64 else values.astype(np.float32)


def _convert(values: Array, type_: int) -> Array:
    """f32 or f64 to the type; to bf16 as its bits, rounded to the nearest, ties to even."""
    if type_ != BF16:
        return values.astype((np.float32, np.float64, np.float16)[type_])
    single = np.ascontiguousarray(values, np.float32)
    bits = single.view(np.uint32)
    rounded = ((bits + (((bits >> 16) & 1) + 0x7FFF)) >> 16).astype(np.uint16)
    return np.where(np.isnan(single), np.uint16(0x7FC0), rounded)
