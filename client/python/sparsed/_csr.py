"""Sparse matrices as they come from the library: arrays over its memory, without copying."""

from __future__ import annotations

import ctypes
from collections.abc import Sequence
from typing import Any, NamedTuple

import numpy as np

from sparsed import _native, _types
from sparsed._native import BF16

Array = np.ndarray[Any, Any]


class Csr(NamedTuple):
    """A sparse matrix compressed by rows, as NumPy arrays.

    Attributes:
        shape: (rows, cols).
        row_offsets: rows + 1 integers, from 0 to nnz.
        column_indices: nnz integers.
        values: nnz numbers; None: ones.
    """

    shape: tuple[int, int]
    row_offsets: Array
    column_indices: Array
    values: Array | None

    @property
    def nnz(self) -> int:
        return len(self.column_indices)

    def to_scipy(self) -> Any:
        """A `scipy.sparse.csr_array` of the same arrays; 16-bit values become f32, which SciPy
        can compute with."""
        from scipy.sparse import csr_array

        values = np.ones(self.nnz, np.float32) if self.values is None else self.values
        if values.dtype.itemsize == 2:
            values = values.astype(np.float32)
        result = csr_array((values, self.column_indices, self.row_offsets), shape=self.shape)
        result.has_canonical_format = True
        return result


class _Memory:
    """Memory of the library's as an array: NumPy keeps this object as long as the array."""

    def __init__(self, data: int, shape: tuple[int, ...], typestr: str, owner: Any) -> None:
        self.owner = owner
        self.__array_interface__ = {
            "data": (data, False),
            "shape": shape,
            "typestr": typestr,
            "version": 3,
        }


def array_at(data: int, shape: Sequence[int], dtype: np.dtype[Any], owner: Any) -> Array:
    """An array over memory that `owner` keeps."""
    count = int(np.prod(shape, dtype=np.int64)) * dtype.itemsize
    if count == 0:
        return np.empty(tuple(shape), dtype)
    flat = np.asarray(_Memory(data, (count,), "|u1", owner))
    return flat.view(dtype).reshape(tuple(shape))


class Taken(NamedTuple):
    shape: tuple[int, int]
    row_offsets: Array
    column_indices: Array
    values: Array
    type: int

    def csr(self) -> Csr:
        values = self.values
        if self.type == BF16:
            dtype = _types.bfloat16()
            values = widened_bf16(values) if dtype is None else values.view(dtype)
        return Csr(self.shape, self.row_offsets, self.column_indices, values)


def take_csr(pointer: int) -> Taken:
    """Arrays over a sparsed_csr, which is freed with the last of them. Values of bf16: uint16."""
    lib = _native.library()
    owner = _native.Handle(pointer, lib.sparsed_csr_free)
    return view_csr(pointer, owner)


def view_csr(pointer: int, owner: Any) -> Taken:
    view = bytearray(_native.CSR_VIEW.size)
    at = (ctypes.c_char * len(view)).from_buffer(view)
    _native.library().sparsed_csr_get(pointer, ctypes.addressof(at))
    return unpack_csr_view(bytes(view), owner)


def unpack_csr_view(view: bytes, owner: Any) -> Taken:
    rows, cols, nnz, offsets, offset_bytes, type_, indices, values = _native.CSR_VIEW.unpack(view)
    dtype = np.dtype(np.uint16) if type_ == BF16 else _types.numpy_dtype(type_)
    offset_type = np.dtype(np.int64 if offset_bytes == 8 else np.int32)
    return Taken(
        (rows, cols),
        array_at(offsets, (rows + 1,), offset_type, owner),
        array_at(indices, (nnz,), np.dtype(np.int32), owner),
        array_at(values, (nnz,), dtype, owner),
        type_,
    )


def result(taken: Taken) -> Any:
    """SciPy's CSR, or ours where SciPy is not installed."""
    try:
        import scipy.sparse  # noqa: F401
    except ImportError:
        return taken.csr()
    return taken.csr().to_scipy()


def strided_at(data: int, rows: int, cols: int, leading: int, dtype: np.dtype[Any]) -> Array:
    """A row-major matrix of somebody else's, for a moment."""
    if rows == 0 or cols == 0:
        return np.empty((rows, cols), dtype)
    flat = array_at(data, ((rows - 1) * leading + cols,), dtype, None)
    step = dtype.itemsize
    return np.lib.stride_tricks.as_strided(flat, (rows, cols), (leading * step, step))


def widened_bf16(bits: Array) -> Array:
    """bf16, given as uint16, as f32."""
    wide: Array = (bits.astype(np.uint32) << 16).view(np.float32)
    return wide
