"""Calls under way: waited for by a thread that can be interrupted, or awaited."""

from __future__ import annotations

import asyncio
import contextvars
from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor
from typing import Any, Generic, TypeVar

from sparsed import _loading, _native

T = TypeVar("T")

# How long a thread waits before it looks whether it was interrupted, or a callback failed.
_SLICE_NS = 100_000_000
# Threads that wait for awaited calls; further calls run, and are heard of later.
_WAITERS = 64

_executor: ThreadPoolExecutor | None = None
_executor_generation = -1


def _waiters() -> ThreadPoolExecutor:
    global _executor, _executor_generation
    if _executor is None or _executor_generation != _loading.generation:
        _executor = ThreadPoolExecutor(_WAITERS, thread_name_prefix="sparsed")
        _executor_generation = _loading.generation
    return _executor


class Operation(Generic[T]):
    """A call of the library's that is ready to be started, once.

    Arguments:
        start: takes where to put the call under way (None: block), gives back an error or None.
        finish: makes the result, after the call has ended well.
        keep: what has to live until then.
        deliver: runs the caller's callbacks, if there are any: see Callbacks.
        queued: it cannot be under way (it is on a GPU): it blocks, at most until it is queued.
    """

    __slots__ = ("_start", "_make", "_keep", "_callbacks", "_queued")

    def __init__(
        self,
        start: Callable[[int | None], int | None],
        finish: Callable[[], T],
        keep: Any = None,
        callbacks: Callbacks | None = None,
        queued: bool = False,
    ) -> None:
        self._start = start
        self._make = finish
        self._keep = keep
        self._callbacks = callbacks
        self._queued = queued

    def _finish(self) -> T:
        return self._make()

    def run(self) -> T:
        """Blocks in the library: the fastest way, and where attached products run."""
        error = self._start(None)
        if error:
            raise _native.take_error(error)
        return self._finish()

    def wait(self) -> T:
        """Blocks, and can be interrupted by signals and by callbacks that raise."""
        lib = _native.library()
        out = _native.Out()
        try:
            _native.check(self._start(out.address))
            while not lib.sparsed_call_wait(out.value, _SLICE_NS):
                self._look()
            self._look()
        except BaseException:  # also an interrupt as it starts
            if out.value:
                lib.sparsed_call_free(out.value)
            raise
        _native.check(lib.sparsed_call_finish(out.value))
        return self._finish()

    def _look(self) -> None:
        if self._callbacks is not None:
            self._callbacks.raise_failure()

    async def awaited(self) -> T:
        """Lets the event loop go on meanwhile. Cancelling the task cancels the call, and waits
        until its memory is free."""
        loop = asyncio.get_running_loop()
        if self._queued:
            return await loop.run_in_executor(_waiters(), self.run)
        lib = _native.library()
        out = _native.Out()
        if self._callbacks is not None:
            self._callbacks.loop = loop
        _native.check(self._start(out.address))
        call = out.value
        waiting = loop.run_in_executor(_waiters(), lib.sparsed_call_wait, call, -1)
        cancelled = False
        while not waiting.done():
            try:
                await asyncio.shield(waiting)
            except asyncio.CancelledError:
                cancelled = True
                lib.sparsed_call_cancel(call)
        if cancelled:
            lib.sparsed_call_free(call)
            raise asyncio.CancelledError
        _native.check(lib.sparsed_call_finish(call))
        self._look()
        return self._finish()


class Callbacks:
    """Calls a user's function from one of the library's, and keeps what it raises."""

    def __init__(self, function: Callable[[Any], object]) -> None:
        self._function = function
        self._failure: BaseException | None = None
        # Where the function runs if the call is awaited.
        self.loop: asyncio.AbstractEventLoop | None = None

    def __call__(self, argument: Any) -> None:
        if self._failure is not None:
            return
        if self.loop is not None:
            self.loop.call_soon_threadsafe(self._call, argument)
        else:
            self._call(argument)

    def _call(self, argument: Any) -> None:
        try:
            self._function(argument)
        except BaseException as error:  # raised where the call is waited for
            self._failure = error

    def raise_failure(self) -> None:
        if self._failure is not None:
            raise self._failure


async def in_thread(function: Callable[..., T], *arguments: Any, **keywords: Any) -> T:
    """Awaits a short call that has no handle. It is in the trace of the task that awaits it."""
    context = contextvars.copy_context()
    return await asyncio.get_running_loop().run_in_executor(
        _waiters(), lambda: context.run(function, *arguments, **keywords)
    )
