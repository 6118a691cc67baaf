"""Host memory that a server on this machine maps, too: operands and results in it are not copied
on their way. Freed blocks are used again, since a new one has to be handed to the server."""

from __future__ import annotations

import threading
from collections import deque
from typing import Any

import numpy as np

from sparsed import _loading, _native
from sparsed._csr import array_at

# Of blocks that nobody uses at the moment, of one client.
_KEPT_BYTES = 1 << 30
_SMALLEST = 1 << 16


class _Lease:
    """A block in use: goes back to its pool with the last array over it."""

    __slots__ = ("block", "bytes", "_pool", "_generation")

    def __init__(self, pool: SharedPool, block: _native.Handle, bytes_: int) -> None:
        self.block = block
        self.bytes = bytes_
        self._pool = pool
        self._generation = _loading.generation

    def __del__(self) -> None:
        if self._generation == _loading.generation:
            self._pool.give_back(self.block, self.bytes)


class SharedPool:
    """The shared memory of one connection. Thread-safe."""

    def __init__(self) -> None:
        self._lock = threading.Lock()
        self._free: dict[int, list[_native.Handle]] = {}
        self._kept = 0
        # Beginning and end of every block in use.
        self._used: dict[int, int] = {}
        # Blocks given back, perhaps by the garbage collector while this thread has the lock.
        self._returned: deque[tuple[_native.Handle, int]] = deque()

    def array(self, client: int, shape: tuple[int, ...], dtype: np.dtype[Any]) -> Any:
        """A new array of anything; `client` is a handle's pointer."""
        bytes_ = int(np.prod(shape, dtype=np.int64)) * dtype.itemsize
        if bytes_ == 0:
            return np.empty(shape, dtype)
        size = max(_SMALLEST, 1 << (bytes_ - 1).bit_length())
        if size > 1 << 22:  # large ones: in steps of an eighth, not twice as much
            step = size >> 4
            size = -(-bytes_ // step) * step
        block = self._take(size) or self._allocate(client, size)
        data = _native.library().sparsed_memory_data(block.pointer)
        lease = _Lease(self, block, size)
        with self._lock:
            self._used[data] = data + size
        return array_at(data, shape, dtype, lease)

    def contains(self, address: int) -> bool:
        """Whether it is in memory of this pool's."""
        if not self._used:
            return False
        with self._lock:
            return any(begin <= address < end for begin, end in self._used.items())

    def give_back(self, block: _native.Handle, size: int) -> None:
        self._returned.append((block, size))
        if self._lock.acquire(blocking=False):
            try:
                self._sort_returned()
            finally:
                self._lock.release()

    def _sort_returned(self) -> None:
        """Keeps what came back, up to the limit. With the lock."""
        while self._returned:
            block, size = self._returned.popleft()
            self._used.pop(_native.library().sparsed_memory_data(block.pointer), None)
            if self._kept + size <= _KEPT_BYTES:
                self._free.setdefault(size, []).append(block)
                self._kept += size

    def _take(self, size: int) -> _native.Handle | None:
        with self._lock:
            self._sort_returned()
            blocks = self._free.get(size)
            if not blocks:
                return None
            self._kept -= size
            return blocks.pop()

    def _allocate(self, client: int, size: int) -> _native.Handle:
        lib = _native.library()
        out = _native.Out()
        _native.check(lib.sparsed_memory_allocate(client, size, out.address))
        return _native.Handle(out.value, lib.sparsed_memory_free)
