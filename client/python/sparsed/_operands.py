"""Dense operands and results, whatever array they come as: NumPy's, PyTorch's, anything with
DLPack or __cuda_array_interface__, held by the server.

An operand is used where it is if it is row-major with a leading dimension (its rows may lie apart,
the elements of a row may not), and copied otherwise.
"""

from __future__ import annotations

import ctypes
import sys
from typing import Any, cast

import numpy as np

from sparsed import _dlpack, _types
from sparsed._errors import FailedPrecondition, InvalidArgument, InvalidType
from sparsed._held import DenseMatrix
from sparsed._native import ELEMENT_BYTES, HOST, I64, Dense

NUMPY, TORCH, OTHER, HELD = range(4)

_modules = sys.modules
_char_at = ctypes.c_char.from_buffer
_address = ctypes.addressof
_OF_DTYPE = _types._OF_DTYPE
_OF_TORCH = _types._OF_TORCH


class Operand:
    """A dense matrix that a call reads or writes.

    Attributes:
        dense: where it is, for the library. A vector is one column.
        array: what keeps its memory, or the copy that was made.
        source: as the caller gave it, or gets it.
        kind: NUMPY, TORCH, OTHER or HELD.
        ndim: 1 or 2.
    """

    __slots__ = ("dense", "array", "kind", "ndim", "source")

    def __init__(self, dense: Any, array: Any, kind: int, ndim: int, source: Any = None) -> None:
        self.dense = dense
        self.array = array
        self.kind = kind
        self.ndim = ndim
        self.source = source

    @property
    def rows(self) -> int:
        rows: int = self.dense[1]
        return rows

    @property
    def cols(self) -> int:
        cols: int = self.dense[2]
        return cols

    @property
    def device(self) -> int:
        device: int = self.dense[5]
        return device


class SharedOperand(Operand):
    """One whose memory is a copy in shared memory."""

    __slots__ = ("copy",)
    copy: Any


def operand(x: Any, what: str, type_: int) -> Operand:
    """`x` for reading. `what` is its name for errors, `type_` the type that it must have."""
    if type(x) is np.ndarray:
        return _numpy(x, what, type_)
    torch = _modules.get("torch")
    if torch is not None and isinstance(x, torch.Tensor):
        return _torch(x, what, type_, torch)
    if isinstance(x, DenseMatrix):
        return _held(x, what, type_)
    if isinstance(x, np.ndarray):
        if isinstance(x, np.ma.MaskedArray):
            raise InvalidType(f"{what} is a masked array: fill it first, with {what}.filled(0)")
        return _numpy(np.asarray(x), what, type_)
    if hasattr(x, "__cuda_array_interface__"):
        return _cuda_array(x, what, type_)
    if _is_sparse(x):
        raise InvalidType(
            f"{what} is sparse, a {type(x).__name__}: a dense matrix is expected "
            "(spgemm multiplies sparse by sparse)"
        )
    if hasattr(x, "__dlpack__") and hasattr(x, "__dlpack_device__"):
        return _other(x, what, type_)
    return _converted(x, what, type_)


def destination(
    out: Any, what: str, shape: tuple[int, int], type_: int, vector: bool = False
) -> Operand:
    """`out` for writing a result of `shape`, which is one column if it is a vector."""
    if isinstance(out, np.ndarray):
        if not out.flags.writeable:
            raise InvalidArgument(f"{what} is read-only: a result cannot be written there")
        found = _numpy(out, what, type_, copy=False)
    elif (torch := _types.torch()) is not None and isinstance(out, torch.Tensor):
        found = _torch(out, what, type_, torch, copy=False)
    elif isinstance(out, DenseMatrix):
        found = _held(out, what, type_)
    elif hasattr(out, "__cuda_array_interface__"):
        found = _cuda_array(out, what, type_, copy=False)
    elif hasattr(out, "__dlpack__") and hasattr(out, "__dlpack_device__"):
        found = _other(out, what, type_, copy=False)
    else:
        raise InvalidType(
            f"{what} is a {type(out).__name__}: an array that a result can be written to is "
            "expected"
        )
    if (found.rows, found.cols) != shape or (found.ndim == 1 and not vector and shape[1] != 1):
        expected = f"{shape[0]}" if vector else f"{shape[0]} x {shape[1]}"
        raise InvalidArgument(f"{what} is {found.rows} x {found.cols}, expected {expected}")
    found.source = out
    return found


def empty_like(model: Operand, rows: int, cols: int, type_: int, ndim: int) -> Operand:
    """A new array of the kind of `model` and where that is, for a result."""
    if model.kind == TORCH:
        shape: tuple[int, ...] = (rows, cols) if ndim == 2 else (rows,)
        if type_ == model.dense[4]:
            tensor = model.array.new_empty(shape)
        else:
            tensor = model.array.new_empty(shape, dtype=_types.torch_dtype(type_))
        dense = (tensor.data_ptr(), rows, cols, cols, type_, model.dense[5], 0)
        return Operand(dense, tensor, TORCH, ndim, tensor)
    if model.kind == OTHER:
        return _empty_of_namespace(model, rows, cols, type_, ndim)
    return empty_numpy(rows, cols, type_, ndim)


def empty_numpy(rows: int, cols: int, type_: int, ndim: int) -> Operand:
    array = np.empty((rows, cols) if ndim == 2 else rows, _types.numpy_dtype(type_))
    dense = (_data(array), rows, cols, cols, type_, HOST, 0)
    return Operand(dense, array, NUMPY, ndim, array)


def zeros_like(model: Operand, cols: int, what: str) -> Operand:
    """Of as many rows as `model`, which has no columns."""
    rows, type_ = model.rows, model.dense[4]
    if model.kind == TORCH:
        return operand(model.array.new_zeros((rows, cols)), what, type_)
    return operand(np.zeros((rows, cols), _types.numpy_dtype(type_)), what, type_)


def stream_of(product: Operand) -> int:
    """The framework's current stream on the GPU that the operand is on, as a cudaStream_t."""
    if product.dense[5] == HOST:
        return 0
    if product.kind == TORCH:
        return int(_types.torch()._C._cuda_getCurrentRawStream(product.dense[5]))
    root = type(product.source).__module__.split(".")[0]
    if root == "cupy":
        import cupy

        with cupy.cuda.Device(product.dense[5]):
            return int(cupy.cuda.get_current_stream().ptr)
    interface = getattr(product.source, "__cuda_array_interface__", None)
    # 1 is the legacy default stream there, 2 that of each thread.
    stream = interface.get("stream") if interface else None
    return int(stream) if stream else 0


# ---- NumPy ---------------------------------------------------------------------------------------


def _data(array: np.ndarray[Any, Any]) -> int:
    try:
        return _address(
            _char_at(cast(Any, array))
        )  # the fastest way; not of read-only or empty arrays
    except (TypeError, ValueError, BufferError):
        return int(array.__array_interface__["data"][0])


def _numpy(x: np.ndarray[Any, Any], what: str, type_: int, copy: bool = True) -> Operand:
    if _OF_DTYPE.get(x.dtype) != type_:
        x = _numpy_of_type(x, what, type_, copy)
    flags = x.flags
    ndim = x.ndim
    if ndim == 2:
        rows, cols = x.shape
        if flags.c_contiguous and flags.aligned:
            return Operand((_data(x), rows, cols, cols, type_, HOST, 0), x, NUMPY, 2, x)
        row_stride, element_stride = x.strides
    elif ndim == 1:
        rows, cols = x.shape[0], 1
        row_stride, element_stride = x.strides[0], ELEMENT_BYTES[type_]
    else:
        raise InvalidArgument(f"{what} has {ndim} dimensions, expected 1 or 2")
    leading = _leading_dimension(rows, cols, row_stride, element_stride, ELEMENT_BYTES[type_])
    if leading < 0 or not flags.aligned:
        if not copy:
            raise _not_row_major(what)
        x = np.array(x, order="C", copy=True)
        leading = cols
    data = int(x.__array_interface__["data"][0])
    return Operand((data, rows, cols, leading, type_, HOST, 0), x, NUMPY, ndim, x)


def _numpy_of_type(
    x: np.ndarray[Any, Any], what: str, type_: int, copy: bool
) -> np.ndarray[Any, Any]:
    found = _types.of_dtype(x.dtype)
    if found != type_:
        raise _wrong_type(what, str(x.dtype), type_)
    if x.dtype.isnative:
        return x
    if not copy:
        raise InvalidType(f"{what} is of another byte order than this machine's")
    return x.astype(x.dtype.newbyteorder("="))


def _leading_dimension(
    rows: int, cols: int, row_stride: int, element_stride: int, element: int
) -> int:
    """Elements between the beginnings of two rows, from strides in bytes; -1 if the matrix is not
    row-major."""
    if cols > 1 and element_stride != element:
        return -1
    if rows <= 1 or cols == 0:
        return cols
    if row_stride % element != 0 or row_stride < cols * element:
        return -1
    return row_stride // element


def _wrong_type(what: str, has: str, type_: int) -> InvalidType:
    expected = _types.name(type_)
    if type_ == I64:
        return InvalidType(f"{what} has elements of type {has}, expected int64")
    return InvalidType(
        f"{what} has elements of type {has}, and the matrix has {expected}: convert it, or upload "
        "the matrix with another dtype="
    )


def _not_row_major(what: str) -> InvalidArgument:
    return InvalidArgument(
        f"{what} is not row-major: the elements of a row have to lie side by side, and rows one "
        "behind the other"
    )


def _converted(x: Any, what: str, type_: int) -> Operand:
    """Of lists and other things that NumPy makes an array of: their numbers become the type."""
    try:
        array = np.asarray(x)
    except Exception as error:
        raise InvalidType(f"{what} is a {type(x).__name__}, not an array: {error}") from error
    if array.dtype.kind not in "fiub" and array.dtype.name != "bfloat16":
        raise InvalidType(f"{what} is a {type(x).__name__}: a dense matrix is expected")
    if isinstance(x, (list, tuple)):
        array = array.astype(_types.numpy_dtype(type_))
    return _numpy(array, what, type_)


def _is_sparse(x: Any) -> bool:
    return hasattr(x, "tocsr") or hasattr(x, "_native_handle")


# ---- PyTorch -------------------------------------------------------------------------------------


def _torch(x: Any, what: str, type_: int, torch: Any, copy: bool = True) -> Operand:
    if x.layout is not torch.strided:
        raise InvalidType(
            f"{what} is sparse, a tensor of layout {x.layout}: a dense matrix is expected (spgemm "
            "multiplies sparse by sparse)"
        )
    if _OF_TORCH.get(x.dtype) != type_ and _types.of_torch(x.dtype) != type_:
        raise _wrong_type(what, str(x.dtype), type_)
    if x.requires_grad and torch.is_grad_enabled():
        raise InvalidArgument(
            f"{what} requires a gradient, and this call has none: use sparsed.torch, or "
            f"{what}.detach()"
        )
    if x.is_cpu:
        number = HOST
    elif x.is_cuda:
        number = x.get_device()
    else:
        raise InvalidType(f"{what} is on the device {x.device}: the CPU or a CUDA GPU is expected")
    ndim = x.dim()
    if ndim == 2:
        rows, cols = x.shape
        if x.is_contiguous() and not x.is_neg():
            return Operand((x.data_ptr(), rows, cols, cols, type_, number, 0), x, TORCH, 2, x)
        row_stride, element_stride = x.stride()
    elif ndim == 1:
        rows, cols = x.shape[0], 1
        row_stride, element_stride = x.stride(0), 1
    else:
        raise InvalidArgument(f"{what} has {ndim} dimensions, expected 1 or 2")
    if x.is_neg():
        if not copy:
            raise _not_row_major(what)
        x = x.resolve_neg()
    leading = _leading_dimension(rows, cols, row_stride, element_stride, 1)
    if leading < 0:
        if not copy:
            raise _not_row_major(what)
        x = x.contiguous()
        leading = cols
    return Operand((x.data_ptr(), rows, cols, leading, type_, number, 0), x, TORCH, ndim, x)


# ---- Others --------------------------------------------------------------------------------------


def _held(x: DenseMatrix, what: str, type_: int) -> Operand:
    if x._type != type_:
        raise _wrong_type(what, x.type, type_)
    dense = Dense(0, *x.shape, 0, type_, HOST, ctypes.addressof(x._c_name))
    return Operand(dense, x, HELD, 2, x)


def _strided(
    array: _dlpack.Array, what: str, type_: int, source: Any, copy: bool, kind: int
) -> Operand:
    if array.type != type_:
        raise _wrong_type(what, _types.name(array.type), type_)
    if len(array.shape) == 2:
        rows, cols = array.shape
        row_stride, element_stride = array.strides
    elif len(array.shape) == 1:
        rows, cols = array.shape[0], 1
        row_stride, element_stride = array.strides[0], 1
    else:
        raise InvalidArgument(f"{what} has {len(array.shape)} dimensions, expected 1 or 2")
    leading = _leading_dimension(rows, cols, row_stride, element_stride, 1)
    if leading < 0:
        contiguous = _contiguous(source) if copy else None
        if contiguous is None:
            raise _not_row_major(what)
        if isinstance(contiguous, np.ndarray):
            copied = _numpy(contiguous, what, type_)
            return Operand(copied.dense, contiguous, kind, copied.ndim, source)
        again = operand(contiguous, what, type_)
        again.source = source
        return again
    dense = (array.data, rows, cols, leading, type_, array.device, 0)
    return Operand(dense, array.owner, kind, len(array.shape), source)


def _contiguous(source: Any) -> Any:
    """A row-major copy; None if its framework gives none."""
    if int(source.__dlpack_device__()[0]) == 1:
        return np.ascontiguousarray(np.from_dlpack(source))
    root = type(source).__module__.split(".")[0]
    if root == "cupy":
        import cupy

        return cupy.ascontiguousarray(source)
    return None


def _other(x: Any, what: str, type_: int, copy: bool = True) -> Operand:
    return _strided(_dlpack.view(x, None), what, type_, x, copy, OTHER)


# By the array interface's typestr: kind and bytes.
_OF_TYPESTR = {"f4": np.float32, "f8": np.float64, "f2": np.float16, "i8": np.int64}


def _cuda_array(x: Any, what: str, type_: int, copy: bool = True) -> Operand:
    interface = x.__cuda_array_interface__
    typestr = interface["typestr"]
    scalar = _OF_TYPESTR.get(typestr[1:]) if typestr[0] != ">" else None
    if scalar is None or interface.get("mask") is not None:
        raise InvalidType(f"{what} has elements of type {typestr}: the matrix's type is expected")
    shape = tuple(interface["shape"])
    item = np.dtype(scalar).itemsize
    strides = interface.get("strides")
    if strides is None:
        steps = _dlpack.contiguous_strides(shape)
    elif any(stride % item for stride in strides):
        raise _not_row_major(what)
    else:
        steps = tuple(stride // item for stride in strides)
    array = _dlpack.Array(
        interface["data"][0] or 0, shape, steps, _types._OF_DTYPE[np.dtype(scalar)],
        _device_of(x, what), x,
    )  # fmt: skip
    return _strided(array, what, type_, x, copy, OTHER)


def _device_of(x: Any, what: str) -> int:
    if hasattr(x, "__dlpack_device__"):
        return int(x.__dlpack_device__()[1])
    device = getattr(x, "device", None)
    number = getattr(device, "id", device)
    if isinstance(number, int):
        return number
    if device is None:
        return 0
    raise FailedPrecondition(f"{what}, a {type(x).__name__}, does not say which GPU it is on")


def _empty_of_namespace(model: Operand, rows: int, cols: int, type_: int, ndim: int) -> Operand:
    """By the array API standard where the framework follows it."""
    source = model.source
    shape: tuple[int, ...] = (rows, cols) if ndim == 2 else (rows,)
    if model.dense[5] == HOST:
        result = empty_numpy(rows, cols, type_, ndim)
        result.kind = OTHER
        result.source = source
        return result
    root = type(source).__module__.split(".")[0]
    if root == "cupy":
        import cupy

        with cupy.cuda.Device(model.dense[5]):
            array = cupy.empty(shape, _types.numpy_dtype(type_))
    elif hasattr(source, "__array_namespace__") and root != "jax" and root != "jaxlib":
        namespace = source.__array_namespace__()
        dtype = namespace.int64 if type_ == I64 else source.dtype
        array = namespace.empty(shape, dtype=dtype, device=source.device)
    else:
        raise InvalidArgument(
            f"results for a {type(source).__name__} on a GPU have to be given a place: out="
        )
    found = destination(array, "the result", (rows, cols), type_, ndim == 1)
    found.source = array
    return found


def give(result: Operand) -> Any:
    """A result as the caller gets it: an array like the operands."""
    if result.kind == OTHER and isinstance(result.array, np.ndarray):
        source = result.source
        if hasattr(source, "__array_namespace__"):
            namespace = source.__array_namespace__()
            if hasattr(namespace, "from_dlpack"):
                return namespace.from_dlpack(result.array)
        return result.array
    return result.source
