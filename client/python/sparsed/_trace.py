"""The trace that calls belong to."""

from __future__ import annotations

import ctypes
from collections.abc import Iterator
from contextlib import contextmanager
from contextvars import ContextVar
from typing import Any, NamedTuple

from sparsed._errors import InvalidArgument, InvalidType


class Trace(NamedTuple):
    """As the library takes it."""

    addresses: tuple[int, int]  # of `traceparent` and `tracestate`, 0 without
    texts: Any = None  # that are there


_current: ContextVar[Trace] = ContextVar("sparsed_trace", default=Trace((0, 0)))
current = _current.get


def _buffer(text: Any, what: str) -> Any:
    if not isinstance(text, str):
        raise InvalidType(f"{what} is a {type(text).__name__}, expected a string")
    if "\0" in text:
        raise InvalidArgument(f"{what} has a zero byte in it")
    return ctypes.create_string_buffer(text.encode("utf-8", "surrogateescape"))


@contextmanager
def trace(traceparent: str, tracestate: str | None = None) -> Iterator[None]:
    """Calls that begin inside of the `with` belong to this trace: the server's log, its slow
    requests and its spans name it. OpenTelemetry's `inject` writes both into a dict:

        headers = {}
        opentelemetry.propagate.inject(headers)
        with sparsed.trace(**headers):
            y = g.spmm(x)

    It holds for the thread or the task of asyncio that is in the `with`, not for threads that are
    started there. Of several, one in another, the innermost counts. Without any, that of the
    environment's TRACEPARENT and TRACESTATE does. Products that run in this process reach no
    server and are in no trace.

    Args:
        traceparent: as W3C's Trace Context has it:
            "00-4bf92f3577b34da6a3ce929d0e0e4736-00f067aa0ba902b7-01". What is malformed is not
            sent, as the standard has it.
        tracestate: what goes along with it, "vendor=value".

    Raises:
        InvalidType: one of them is no string.
        InvalidArgument: one has a zero byte in it.
    """
    parent = _buffer(traceparent, "traceparent")
    state = None if tracestate is None else _buffer(tracestate, "tracestate")
    address = 0 if state is None else ctypes.addressof(state)
    token = _current.set(Trace((ctypes.addressof(parent), address), (parent, state)))
    try:
        yield
    finally:
        _current.reset(token)
