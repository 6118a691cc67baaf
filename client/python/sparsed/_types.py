"""Element types: what NumPy, PyTorch and others call them, and what the server does."""

from __future__ import annotations

import sys
from typing import Any

import numpy as np

from sparsed._errors import InvalidType, Unimplemented
from sparsed._native import BF16, F16, F32, F64, I64, TYPE_NAMES

# Filled as modules are seen: ml_dtypes.bfloat16 is known once somebody has imported ml_dtypes.
_OF_DTYPE: dict[Any, int] = {
    np.dtype(np.float32): F32,
    np.dtype(np.float64): F64,
    np.dtype(np.float16): F16,
    np.dtype(np.int64): I64,
}
_OF_TORCH: dict[Any, int] = {}
_ALIASES = {
    "f32": F32,
    "f64": F64,
    "f16": F16,
    "bf16": BF16,
    "float32": F32,
    "float64": F64,
    "float16": F16,
    "bfloat16": BF16,
    "float": F32,
    "double": F64,
    "half": F16,
}
_NUMPY_OF = (np.dtype(np.float32), np.dtype(np.float64), np.dtype(np.float16), None,
             np.dtype(np.int64))  # fmt: skip


def bfloat16() -> np.dtype[Any] | None:
    """ml_dtypes' bfloat16, if that package is installed."""
    try:
        from ml_dtypes import bfloat16 as scalar
    except ImportError:
        return None
    dtype: np.dtype[Any] = np.dtype(scalar)
    return dtype


def of_dtype(dtype: Any) -> int | None:
    """The element type of a NumPy dtype, in either byte order; None if there is none."""
    found = _OF_DTYPE.get(dtype)
    if found is None:
        native = dtype.newbyteorder("=")
        found = _OF_DTYPE.get(native)
        if found is None and native.name == "bfloat16":
            found = BF16
            _OF_DTYPE[native] = BF16
    return found


def numpy_dtype(type_: int) -> np.dtype[Any]:
    """The NumPy dtype of an element type. Of bf16 that needs ml_dtypes."""
    dtype = _NUMPY_OF[type_] or bfloat16()
    if dtype is None:
        raise Unimplemented(
            "NumPy has no bf16 of its own: install ml_dtypes, or use PyTorch's tensors"
        )
    return dtype


def torch() -> Any:
    """The module, if the program has imported it; else None."""
    return sys.modules.get("torch")


def of_torch(dtype: Any) -> int | None:
    """The element type of a torch.dtype; None if there is none."""
    if not _OF_TORCH:
        module = torch()
        _OF_TORCH.update({
            module.float32: F32,
            module.float64: F64,
            module.float16: F16,
            module.bfloat16: BF16,
            module.int64: I64,
        })  # fmt: skip
    return _OF_TORCH.get(dtype)


def torch_dtype(type_: int) -> Any:
    module = torch()
    return (module.float32, module.float64, module.float16, module.bfloat16, module.int64)[type_]


def parse(dtype: Any) -> int:
    """The value type that a user named: "f32", np.float32, torch.bfloat16, ..."""
    found: int | None
    if isinstance(dtype, str) and dtype in _ALIASES:
        return _ALIASES[dtype]
    module = torch()
    if module is not None and isinstance(dtype, module.dtype):
        found = of_torch(dtype)
    else:
        try:
            found = of_dtype(np.dtype(dtype))
        except TypeError:
            found = None
    if found is None or found == I64:
        raise InvalidType(f"dtype {dtype!r} is none of f32, f64, f16 and bf16")
    return found


def name(type_: int) -> str:
    return TYPE_NAMES[type_]
