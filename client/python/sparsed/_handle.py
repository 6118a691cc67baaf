"""What a matrix's interface stands on: its name, its sizes, its handle in this process."""

from __future__ import annotations

import itertools
import json
import weakref
from collections.abc import Callable
from typing import TYPE_CHECKING, Any, NamedTuple

from sparsed import _loading, _native, _types
from sparsed._calls import Operation
from sparsed._errors import Error, InvalidArgument
from sparsed._names import c_name
from sparsed._staging import Staging

if TYPE_CHECKING:
    from sparsed._client import Client


_numbers = itertools.count(1)
# All matrices of this process.
by_number: weakref.WeakValueDictionary[int, MatrixHandle] = weakref.WeakValueDictionary()


class Sizes(NamedTuple):
    """What does not change as long as a matrix is not replaced by another one."""

    rows: int
    cols: int
    nnz: int
    type: int


class MatrixHandle:
    """A matrix by its name, in whichever process this is. See Matrix."""

    def __init__(
        self, client: Client, name: str, sizes: Sizes | None, handle: _native.Handle | None
    ) -> None:
        self.client = client
        self.name = name
        self._sizes = sizes
        self._handle = handle
        self._staging = Staging(client)
        # Whether a product has told whether it is attached.
        self._looked = False
        # Whether its values are weights: not if it was uploaded without. None: nobody here knows.
        self._weighted: bool | None = None
        # What sparsed.torch keeps with it, and the number that its operators know it by.
        self._torch: Any = None
        self._number = next(_numbers)
        self._number_text = str(self._number)
        by_number[self._number] = self
        client._matrices.add(self)

    def _native_handle(self) -> _native.Handle:
        """The matrix in this process's library. Keep it while its pointer is in use."""
        handle = self._handle
        if handle is not None and handle.generation == _loading.generation:
            return handle
        client = self.client._native_handle()
        out = _native.Out()
        lib = _native.library()
        _native.check(lib.sparsed_matrix_named(client.pointer, c_name(self.name), out.address))
        self._handle = _native.Handle(out.value, lib.sparsed_matrix_free)
        return self._handle

    def _attach(self, device: int) -> None:
        """Raises what is in the way."""
        handle = self._native_handle()
        _native.check(_native.library().sparsed_attach(handle.pointer, device))

    def _json(self, function: str, *arguments: Any) -> Any:
        lib = _native.library()
        handle = self._native_handle()
        options = _native.call_options()
        return json.loads(_native.text(getattr(lib, function), handle.pointer, *arguments, options))

    def _known_sizes(self) -> Sizes:
        """Asked for once, and anew after an error: somebody may have replaced the matrix."""
        if self._sizes is None:
            info = self._json("sparsed_matrix_info")
            self._sizes = Sizes(info["rows"], info["cols"], info["nnz"], _types.parse(info["type"]))
        return self._sizes

    def _now(self, make: Callable[..., Operation[Any]], *arguments: Any) -> Any:
        """Runs what `make` makes. After an error sizes are asked for anew."""
        try:
            return make(*arguments).run()
        except Error:
            self._sizes = None
            raise

    def _fitting_sizes(self, rows: int, transpose: bool, what: str) -> Sizes:
        """Looks whether the matrix was replaced by one that an operand of so many rows fits."""
        self._sizes = None
        sizes = self._known_sizes()
        expected = sizes.rows if transpose else sizes.cols
        if rows != expected:
            raise InvalidArgument(
                f"{what} has {rows} rows, expected {expected}: {self.name!r} is "
                f"{sizes.rows} x {sizes.cols}"
            )
        return sizes
