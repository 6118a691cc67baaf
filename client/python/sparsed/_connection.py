"""The connection of a client, in whichever process this is."""

from __future__ import annotations

import ctypes
import json
import os
import weakref
from typing import TYPE_CHECKING, Any

import numpy as np

from sparsed import _loading, _native, _types
from sparsed._errors import FailedPrecondition, InvalidArgument
from sparsed._names import c_name
from sparsed._shared import SharedPool

if TYPE_CHECKING:
    from typing import Self

    from sparsed._handle import MatrixHandle


class Connection:
    """Connects when it is first used in a process. See Client."""

    def __init__(self, address: str, options: dict[str, Any]) -> None:
        self._address = address
        self._options = options
        self._handle: _native.Handle | None = None
        self._closed = False
        self._pool = SharedPool()
        self._local: bool | None = None
        # Whether a user was told that a matrix is not attached.
        self._warned = False
        self._matrices: weakref.WeakSet[MatrixHandle] = weakref.WeakSet()

    @property
    def address(self) -> str:
        """As `connect` was given it."""
        return self._address

    def close(self) -> None:
        """Ends the connection. Calls under way go on; later ones raise FailedPrecondition."""
        self._closed = True
        self._handle = None
        self._pool = SharedPool()
        for matrix in list(self._matrices):
            matrix._handle = None

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *_: object) -> None:
        self.close()

    def __repr__(self) -> str:
        return f"<sparsed.Client {self._address}{', closed' if self._closed else ''}>"

    def empty(self, shape: int | tuple[int, ...], dtype: Any = "f32") -> np.ndarray[Any, Any]:
        """A NumPy array in memory that a server on this machine maps, too: operands and results in
        it are not copied on their way. Elsewhere it is an array like any other. Its contents are
        anything."""
        extents = (shape,) if isinstance(shape, int) else tuple(shape)
        if any(not isinstance(extent, int) or extent < 0 for extent in extents):
            raise InvalidArgument(f"shape {shape!r} is none of an array")
        handle = self._native_handle()
        array: np.ndarray[Any, Any] = self._pool.array(
            handle.pointer, extents, _types.numpy_dtype(_types.parse(dtype))
        )
        return array

    def _native_handle(self) -> _native.Handle:
        """The connection in this process; connects if there is none yet."""
        handle = self._handle
        if handle is not None and handle.generation == _loading.generation:
            return handle
        return self._connect()

    def _connect(self) -> _native.Handle:
        if self._closed:
            raise FailedPrecondition(f"the client of {self._address} is closed")
        with _native.lock():
            if self._handle is not None and self._handle.generation == _loading.generation:
                return self._handle
            lib = _native.library()
            out = _native.Out()
            address = c_name(self._address, "address")
            options, _texts = _pack_options(self._options)
            _native.check(lib.sparsed_connect(address, options, out.address))
            self._pool = SharedPool()
            self._local = None
            self._handle = _native.Handle(out.value, lib.sparsed_client_free)
            return self._handle

    def _json(self, function: str, *arguments: Any) -> Any:
        lib = _native.library()
        handle = self._native_handle()
        options = _native.call_options()
        return json.loads(_native.text(getattr(lib, function), handle.pointer, *arguments, options))

    def _shares_memory(self) -> bool:
        """Whether the server is on this machine and shares memory; asked once."""
        if self._local is None:
            socket = self._json("sparsed_server_info").get("local_socket") or ""
            self._local = bool(socket) and os.path.exists(socket)
        return self._local


_TEXTS = ("tls", "certificate", "key", "server_name", "token", "token_file", "gateway")


def _pack_options(options: dict[str, Any]) -> tuple[bytes, list[Any]]:
    """The options, and what they point to, which has to stay until they were used."""
    texts = [
        None if options[name] is None else ctypes.create_string_buffer(os.fsencode(options[name]))
        for name in _TEXTS
    ]
    packed = _native.CLIENT_OPTIONS.pack(
        _native.CLIENT_OPTIONS.size,
        max(1, round(options["timeout"] * 1000)),
        options["attempts"],
        0,
        0,
        max(1, round(options["keepalive"] * 1000)),
        options["ring"],
        round(options["ring_spin"] * 1e6),
        options["streams"],
        0 if options["attach"] else 1,
        options["threads"],
        options["priority"],
        *(0 if text is None else ctypes.addressof(text) for text in texts),
    )
    return packed, texts
