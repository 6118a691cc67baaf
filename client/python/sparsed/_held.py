"""Buffers of a server's, as operands."""

from __future__ import annotations

import ctypes
from typing import TYPE_CHECKING, Any

from sparsed import _types

if TYPE_CHECKING:
    from sparsed._client import Client


class DenseMatrix:
    """A buffer, a dense matrix that the server keeps under a name: an operand or a result of
    products that does not travel. Made by `Client.put`, `Client.zeros` and `Client.held`.

    As a context manager it is deleted at the end.

    Attributes:
        name: its name on the server.
        shape: (rows, cols).
        type: "f32", "f64", "f16" or "bf16".
        rows_of: the matrix that it was put for (`rows_of` of `Client.put`), or None. If that is in
            shards, their nodes have its rows.
    """

    def __init__(
        self, client: Client, name: str, rows: int, cols: int, type_: int,
        rows_of: str | None = None,
    ) -> None:  # fmt: skip
        self._client = client
        self._type = type_
        self.name = name
        self.shape = (rows, cols)
        self.type = _types.name(type_)
        self.rows_of = rows_of
        self._c_name = ctypes.create_string_buffer(name.encode())

    def read(self, out: Any = None, *, timeout: float | None = None) -> Any:
        """A copy of it: a NumPy array, or `out`, a CPU array of its shape and type."""
        return self._client._read_held(self, out, timeout).wait()

    def renew(self) -> None:
        """Its time to live begins anew."""
        self._client._renew_held(self)

    def delete(self) -> None:
        """Deletes it on the server; calls under way keep it. NotFound if it is gone already."""
        self._client._delete_held(self)

    def __enter__(self) -> DenseMatrix:
        return self

    def __exit__(self, *_: object) -> None:
        self._client._release_held(self)

    def __reduce__(self) -> tuple[Any, ...]:
        return DenseMatrix, (self._client, self.name, *self.shape, self._type, self.rows_of)

    def __repr__(self) -> str:
        rows, cols = self.shape
        return f"<sparsed.DenseMatrix {self.name!r}: {rows} x {cols}, {self.type}>"
