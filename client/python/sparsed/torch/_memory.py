"""Tensors in memory that the server shares."""

from __future__ import annotations

import math
import weakref
from typing import Any

import torch
from torch import Tensor

from sparsed import Client, _native, _types
from sparsed._errors import InvalidArgument, Unimplemented

# What PyTorch's allocator calls; pools keep using it for as long as they live.
_allocator: Any = None
_pools: weakref.WeakKeyDictionary[Client, Any] = weakref.WeakKeyDictionary()


def pool(client: Client) -> Any:
    """A torch.cuda.MemPool of GPU memory that the server allocated and shares, so that products
    that run on the server (see docs/transports.md) use tensors where they are:

        with torch.cuda.use_mem_pool(st.pool(client)):
            x = torch.empty(n, 128, device="cuda")

    Attached products need none of it: they run in this process, on any tensor. Memory comes from
    the client that `pool` was called with last; what was allocated stays what it is.

    Raises:
        sparsed.Unimplemented: there is no GPU, or this library has no kernels.
    """
    global _allocator
    library = _native.library()
    if not torch.cuda.is_available():
        raise Unimplemented("torch.cuda is not available: there is no GPU memory to be shared")
    handle = client._native_handle()
    _native.check(library.sparsed_gpu_pool_set(handle.pointer))
    found = _pools.get(client)
    if found is None:
        if _allocator is None:
            _allocator = torch.cuda.memory.CUDAPluggableAllocator(
                _path(library), "sparsed_gpu_pool_malloc", "sparsed_gpu_pool_free"
            )
        found = _pools[client] = torch.cuda.MemPool(_allocator.allocator())
    return found


def _path(library: Any) -> str:
    return str(library._name)


def empty(
    client: Client, shape: int | tuple[int, ...], dtype: torch.dtype = torch.float32
) -> Tensor:
    """A CPU tensor in host memory that a server on this machine maps, too: operands and results in
    it are not copied on their way. Elsewhere it is a tensor like any other. Its contents are
    anything.

    Args:
        shape: as torch.empty's.
        dtype: float32, float64, float16 or bfloat16.
    """
    extents = (shape,) if isinstance(shape, int) else tuple(shape)
    kind = _types.of_torch(dtype)
    if kind is None or kind == _native.I64:
        raise InvalidArgument(f"dtype is {dtype}, expected float32, float64, float16 or bfloat16")
    bytes_ = math.prod(extents) * _native.ELEMENT_BYTES[kind]
    # As bytes: NumPy has no bfloat16.
    array = client.empty((-(-bytes_ // 4),), "f32")
    return torch.from_numpy(array.view("u1")[:bytes_]).view(dtype).view(extents)
