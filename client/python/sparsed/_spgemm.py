"""Products of two sparse matrices."""

from __future__ import annotations

import ctypes
from typing import TYPE_CHECKING, Any

from sparsed import _csr, _native, _types
from sparsed._calls import Operation
from sparsed._errors import InvalidArgument
from sparsed._handle import MatrixHandle
from sparsed._names import c_name

if TYPE_CHECKING:
    from sparsed._matrix import Matrix
    from sparsed._transposed import Transposed


class SparseProducts(MatrixHandle):
    """SpGEMM."""

    def spgemm(
        self,
        other: Any,
        *,
        transpose: bool = False,
        transpose_other: bool = False,
        semiring: str = "sum-product",
        mask: Matrix | str | None = None,
        keep_as: str | None = None,
        replace: bool = False,
        timeout: float | None = None,
    ) -> Any:
        """S @ other, both sparse, of f32 or f64.

        Args:
            other: a matrix on the same server, or a view of its transpose; or a sparse matrix of
                any kind that `Client.upload` takes, which the server has for the time of the
                product.
            transpose: S^T in the place of S.
            transpose_other: likewise.
            semiring: "sum-product", "boolean" (every entry is true), "min-plus" or "plus-pair"
                (how many pairs there are).
            mask: a matrix of the result's shape, or its name: only its positions are computed.
            keep_as: the server keeps the result as a matrix of this name.
            replace: the matrix of that name, if there is one.
            timeout: seconds.

        Returns:
            A `scipy.sparse.csr_array`, or a `sparsed.Csr` where SciPy is not installed; with
            `keep_as` a `Matrix`.
        """
        from sparsed._matrix import Matrix
        from sparsed._transposed import Transposed

        if not isinstance(other, (Matrix, Transposed)):
            with self.client.temporary(
                other, dtype=_types.name(self._known_sizes().type)
            ) as uploaded:
                return self.spgemm(
                    uploaded, transpose=transpose, transpose_other=transpose_other,
                    semiring=semiring, mask=mask, keep_as=keep_as, replace=replace,
                    timeout=timeout,
                )  # fmt: skip
        return self._spgemm(
            other, transpose, transpose_other, semiring, mask, keep_as, replace, timeout
        ).wait()

    def _spgemm(
        self, other: Matrix | Transposed, transpose: bool, transpose_other: bool, semiring: str,
        mask: Matrix | str | None, keep_as: str | None, replace: bool, timeout: float | None,
    ) -> Operation[Any]:  # fmt: skip
        from sparsed._matrix import Matrix
        from sparsed._transposed import Transposed

        if isinstance(other, Transposed):
            other, transpose_other = other.T, not transpose_other
        if other.client is not self.client and other.client.address != self.client.address:
            raise InvalidArgument(
                f"{self.name!r} is at {self.client.address}, and {other.name!r} at "
                f"{other.client.address}: both have to be on one server"
            )
        if other.client is not self.client:  # the library wants both of one connection
            other = Matrix(self.client, other.name, None, None)
        left, right = self._native_handle(), other._native_handle()
        chosen = _native.SEMIRINGS.get(semiring.replace("_", "-"))
        if chosen is None:
            names = ", ".join(_native.SEMIRINGS)
            raise InvalidArgument(f"semiring is {semiring!r}, expected one of {names}")
        strings = [
            ctypes.create_string_buffer(c_name(text, what)) if text is not None else None
            for text, what in (
                (mask.name if isinstance(mask, Matrix) else mask, "mask"),
                (keep_as, "keep_as"),
            )
        ]
        options = _native.SPGEMM_OPTIONS.pack(
            _native.SPGEMM_OPTIONS.size, transpose, transpose_other, chosen,
            *(ctypes.addressof(text) if text else 0 for text in strings), replace,
        )  # fmt: skip
        call_options = _native.call_options(timeout)
        out = _native.Out()
        frame = ctypes.create_string_buffer(_native.RESULT.size)
        lib = _native.library()

        def start(call: int | None) -> int | None:
            error: int | None = lib.sparsed_spgemm(
                left.pointer, right.pointer, options, call_options, ctypes.addressof(frame),
                out.address, call,
            )  # fmt: skip
            return error

        def finish() -> Any:
            _native.set_last_result(frame, 0)
            if keep_as is not None:
                return Matrix(self.client, keep_as, None, None)
            return _csr.result(_csr.take_csr(out.value))

        return Operation(start, finish, (left, right, options, call_options, out, frame, strings))
