"""Arrays of any framework by DLPack, without copying: where their memory is, and its shape."""

from __future__ import annotations

import ctypes
from typing import Any, NamedTuple

from sparsed._errors import InvalidType
from sparsed._native import BF16, F16, F32, F64, HOST, I64

# DLDeviceType: kDLCPU, kDLCUDA, kDLCUDAHost, kDLCUDAManaged.
_ON_HOST = (1, 3)
_ON_CUDA = (2, 13)
# (DLDataTypeCode, bits): kDLInt 0, kDLFloat 2, kDLBfloat 4.
_TYPES = {(2, 32): F32, (2, 64): F64, (2, 16): F16, (4, 16): BF16, (0, 64): I64}


class _Tensor(ctypes.Structure):
    _fields_ = [
        ("data", ctypes.c_void_p),
        ("device_type", ctypes.c_int32),
        ("device_id", ctypes.c_int32),
        ("ndim", ctypes.c_int32),
        ("code", ctypes.c_uint8),
        ("bits", ctypes.c_uint8),
        ("lanes", ctypes.c_uint16),
        ("shape", ctypes.POINTER(ctypes.c_int64)),
        ("strides", ctypes.POINTER(ctypes.c_int64)),
        ("byte_offset", ctypes.c_uint64),
    ]


_get_pointer = ctypes.pythonapi.PyCapsule_GetPointer
_get_pointer.restype = ctypes.c_void_p
_get_pointer.argtypes = (ctypes.py_object, ctypes.c_char_p)


class Array(NamedTuple):
    """Strides in elements. `owner` keeps the memory."""

    data: int
    shape: tuple[int, ...]
    strides: tuple[int, ...]
    type: int
    device: int
    owner: Any


def view(array: Any, stream: int | None) -> Array:
    """Where `array`, which has __dlpack__, keeps its elements. On a GPU they may be used in
    `stream`'s order from then on."""
    device_type = int(array.__dlpack_device__()[0])
    # The capsule is not consumed: it gives the tensor back when it goes, and so with the owner.
    if device_type in _ON_CUDA:
        # The protocol's numbers: 1 is CUDA's default stream.
        capsule = array.__dlpack__(stream=stream or 1)
    elif device_type in _ON_HOST:
        capsule = array.__dlpack__()
    else:
        raise InvalidType(
            f"a {type(array).__name__} is on a device of DLPack's kind {device_type}: memory of "
            "the host or of a CUDA GPU is expected"
        )
    tensor = _Tensor.from_address(_get_pointer(capsule, b"dltensor"))
    shape = tuple(tensor.shape[i] for i in range(tensor.ndim))
    if tensor.strides:
        strides = tuple(tensor.strides[i] for i in range(tensor.ndim))
    else:
        strides = contiguous_strides(shape)
    found = _TYPES.get((tensor.code, tensor.bits)) if tensor.lanes == 1 else None
    if found is None:
        raise InvalidType(
            f"a {type(array).__name__} has elements of DLPack's type ({tensor.code}, "
            f"{tensor.bits} bits, {tensor.lanes} lanes): f32, f64, f16 or bf16 is expected"
        )
    return Array(
        (tensor.data or 0) + tensor.byte_offset,
        shape,
        strides,
        found,
        HOST if device_type in _ON_HOST else tensor.device_id,
        (capsule, array),
    )


def contiguous_strides(shape: tuple[int, ...]) -> tuple[int, ...]:
    strides = []
    step = 1
    for extent in reversed(shape):
        strides.append(step)
        step *= max(extent, 1)
    return tuple(reversed(strides))
