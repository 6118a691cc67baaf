"""Products of a sparse matrix with dense ones."""

from __future__ import annotations

import struct
from typing import Any

import numpy as np

from sparsed import _attachment, _native, _numbers, _operands, _types
from sparsed._calls import Operation
from sparsed._errors import InvalidArgument, InvalidType
from sparsed._handle import MatrixHandle
from sparsed._native import I64
from sparsed._operands import HELD, Operand
from sparsed._staging import copy_back


# Where each was written, and where it is copied to in the end; None: it stays.
Results = list[tuple[Operand, Operand | None]]


class ProductOperation(Operation[Any]):
    """A product of a matrix's, which gives `results`. Its operands are like `operand`; `keep` is
    what has to live until its end."""

    __slots__ = ("_awaited", "_matrix", "_operand", "_product", "_results")

    def __init__(
        self, matrix: MatrixHandle, product: _native.Product, results: Results, keep: Any,
        operand: Operand, awaited: bool,
    ) -> None:  # fmt: skip
        self._start = product.start
        self._keep = keep
        self._callbacks = None
        self._queued = operand.dense[5] >= 0
        self._matrix = matrix
        self._awaited = awaited
        self._operand = operand
        self._product = product
        self._results = results

    def _finish(self) -> Any:
        self._product.done()
        device = self._operand.dense[5]
        if device < 0:
            self._matrix._staging.learn(self._product, self._operand, self._awaited)
        if not (self._matrix._looked or self._awaited or self._held()):
            _attachment.look(self._matrix, self._product, device)
        return _given(self._results)

    def _held(self) -> bool:
        """Whether operands or results are the server's, so that it has to run there."""
        return any(one.kind == HELD for one in (self._operand, self._results[0][0]))


class Products(MatrixHandle):
    """SpMM, SDDMM, and what SciPy's linear operators want."""

    def spmm(
        self,
        x: Any,
        *,
        transpose: bool = False,
        values: Any = None,
        reduce: str = "sum",
        alpha: float = 1.0,
        beta: float = 0.0,
        accumulate: Any = None,
        out: Any = None,
        unscaled: bool = False,
        return_argument: bool = False,
        allow_tf32: bool = False,
        timeout: float | None = None,
    ) -> Any:
        """alpha * S @ x + beta * accumulate, or another reduction of the products of each row.

        Args:
            x: N x K (of S^T: M x K), or a vector.
            transpose: S^T in the place of S.
            values: in the place of S's: nnz, or nnz x H where K is a multiple of H: column h goes
                with the columns h K/H to (h + 1) K/H of x (sums alone).
            reduce: "sum", "mean", "max" or "min"; of a row without nonzeros 0.
            alpha: a factor, of sums.
            beta: a factor of `accumulate`, of sums.
            accumulate: M x K; what `out` holds if it is not given.
            out: M x K, where the result goes; it shares no memory with operands. A new array
                otherwise.
            unscaled: ones in the place of S's values; of mean, max and min.
            return_argument: of max and min: also which nonzero each one is of, M x K of int64, -1
                of none.
            allow_tf32: a GPU may round factors to TF32.
            timeout: seconds.

        Returns:
            M x K (of S^T: N x K) like x, or `out`; with `return_argument` a pair.

        Raises:
            InvalidArgument: a shape does not fit; InvalidType if an operand has another type.
            NotFound: the matrix was deleted.
            Unavailable: the server is gone.
        """
        return self._now(
            self._spmm, x, transpose, values, reduce, alpha, beta, accumulate, out, unscaled,
            return_argument, allow_tf32, timeout,
        )  # fmt: skip

    def _spmm(
        self, x: Any, transpose: bool, values: Any, reduce: str, alpha: float, beta: float,
        accumulate: Any, out: Any, unscaled: bool, return_argument: bool, allow_tf32: bool,
        timeout: float | None, awaited: bool = False,
    ) -> Operation[Any]:  # fmt: skip
        handle = self._native_handle()
        sizes = self._sizes or self._known_sizes()
        type_ = sizes.type
        b = _operands.operand(x, "x", type_)
        rows, inner = (sizes.cols, sizes.rows) if transpose else (sizes.rows, sizes.cols)
        if b.dense[1] != inner:
            sizes = self._fitting_sizes(b.dense[1], transpose, "x")
            rows = sizes.cols if transpose else sizes.rows
        cols = b.dense[2]
        if out is None:
            destination = None
            if beta != 0 and accumulate is None:
                raise InvalidArgument("beta needs a matrix to add: accumulate=, or out=")
        else:
            destination = _operands.destination(out, "out", (rows, cols), type_, b.ndim == 1)
        kind = _native.REDUCTIONS.get(reduce)
        if kind is None:
            raise InvalidArgument(f"reduce is {reduce!r}, expected sum, mean, max or min")
        if reduce != "sum" and (alpha != 1 or beta != 0 or accumulate is not None):
            raise InvalidArgument(
                f"alpha, beta and accumulate are of sums, and reduce is {reduce!r}"
            )
        operands = [b]
        if values is not None:
            operands.append(values_operand(values, type_, sizes.nnz))
            heads = operands[-1].cols
            if unscaled:
                raise _values_and_unscaled()
            if heads == 0 or cols % heads != 0:
                raise InvalidArgument(
                    f"values are of {heads} heads, and {cols} columns cannot be shared out among "
                    "them"
                )
            if heads > 1 and reduce != "sum":
                raise InvalidArgument(
                    f"values of {heads} heads are summed up, and reduce is {reduce!r}"
                )
        if return_argument and reduce not in ("max", "min"):
            raise InvalidArgument(
                f"return_argument goes with reduce 'max' or 'min', and reduce is {reduce!r}"
            )
        if accumulate is not None:
            operands.append(_operands.operand(accumulate, "accumulate", type_))
            if (operands[-1].rows, operands[-1].cols) != (rows, cols):
                raise InvalidArgument(
                    f"accumulate is {operands[-1].rows} x {operands[-1].cols}, expected "
                    f"{rows} x {cols}"
                )
        elif beta != 0:  # what `out` holds is added to
            assert destination is not None
            operands.append(destination)
        types = (type_, I64) if return_argument else (type_,)
        operands, results = self._placed(
            operands, destination, rows, cols, types, b.ndim, awaited
        )  # fmt: skip
        # Where it is, unless the result comes there afterwards.
        added = accumulate is not None or (beta != 0 and results[0][1] is not None)
        if cols == 0:
            return of_nothing(results)
        b = operands[0]
        try:
            product = _native.spmm(
                handle.pointer, b.dense, results[0][0].dense, transpose, kind, alpha, beta,
                operands[-1].dense if added else None,
                operands[1].dense if values is not None else None, unscaled, allow_tf32,
                results[1][0].dense if return_argument else None,
                0 if timeout is None else _native.nanoseconds(timeout),
                _operands.stream_of(b) if b.dense[5] >= 0 else 0,
            )  # fmt: skip
        except struct.error:
            _numbers.number(alpha, "alpha")
            _numbers.number(beta, "beta")
            raise InvalidType(
                f"transpose is {transpose!r}, unscaled {unscaled!r} and allow_tf32 {allow_tf32!r}: "
                "True or False is expected"
            ) from None
        keep = (handle, operands)
        return ProductOperation(self, product, results, keep, b, awaited)

    def sddmm(
        self,
        a: Any,
        b: Any,
        *,
        values: Any = None,
        unscaled: bool = False,
        heads: int = 1,
        out: Any = None,
        timeout: float | None = None,
    ) -> Any:
        """S .* (a @ b.T): the dot product of a row of `a` and a row of `b` for each nonzero, times
        its value.

        Args:
            a: M x K.
            b: N x K.
            values: in the place of S's: nnz, or nnz x heads.
            unscaled: do not multiply by S's values.
            heads: of which each has K / heads columns of a and b.
            out: nnz, or nnz x heads, where the result goes.
            timeout: seconds.

        Returns:
            nnz numbers, or nnz x heads if there is more than one head, in the order of the
            canonical CSR.
        """
        return self._now(self._sddmm, a, b, values, unscaled, heads, out, timeout)

    def _sddmm(
        self, a: Any, b: Any, values: Any, unscaled: bool, heads: int, out: Any,
        timeout: float | None, awaited: bool = False,
    ) -> Operation[Any]:  # fmt: skip
        handle = self._native_handle()
        sizes = self._sizes or self._known_sizes()
        left = _operands.operand(a, "a", sizes.type)
        right = _operands.operand(b, "b", sizes.type)
        if left.rows != sizes.rows:
            sizes = self._fitting_sizes(left.rows, True, "a")
        if right.rows != sizes.cols:
            sizes = self._fitting_sizes(right.rows, False, "b")
        if left.cols != right.cols:
            raise InvalidArgument(f"a has {left.cols} columns, and b has {right.cols}")
        if not isinstance(heads, int) or heads < 1 or left.cols % heads != 0:
            raise InvalidArgument(f"heads is {heads!r}, and has to divide the {left.cols} columns")
        operands = [left, right]
        if values is not None:
            operands.append(values_operand(values, sizes.type, sizes.nnz))
            if unscaled:
                raise _values_and_unscaled()
            if operands[-1].cols not in (1, heads):
                raise InvalidArgument(
                    f"values are of {operands[-1].cols} heads, expected 1 or {heads}"
                )
        if left.cols == 0:  # sums of nothing
            operands[:2] = (_operands.zeros_like(one, heads, "a") for one in operands[:2])
        ndim = 1 if heads == 1 else 2
        destination = None
        if out is not None:
            shape = (sizes.nnz, heads)
            destination = _operands.destination(out, "out", shape, sizes.type, ndim == 1)
        operands, results = self._placed(
            operands, destination, sizes.nnz, heads, (sizes.type,), ndim, awaited
        )
        left, right = operands[:2]
        product = _native.sddmm(
            handle.pointer, left.dense, right.dense, results[0][0].dense, unscaled,
            operands[2].dense if values is not None else None, heads,
            _native.nanoseconds(timeout), _operands.stream_of(left),
        )  # fmt: skip
        keep = (handle, operands)
        return ProductOperation(self, product, results, keep, left, awaited)

    # ---- For scipy.sparse.linalg.aslinearoperator

    def matvec(self, x: Any) -> Any:
        """S @ x of a vector of N numbers of any real type, or N x 1; they become the matrix's."""
        return self.spmm(self._converted(x))

    def rmatvec(self, x: Any) -> Any:
        """S^T @ x of a vector of M numbers, or M x 1; see `matvec`."""
        return self.spmm(self._converted(x), transpose=True)

    def matmat(self, x: Any) -> Any:
        """S @ x, of N x K numbers; see `matvec`."""
        return self.spmm(self._converted(x))

    def rmatmat(self, x: Any) -> Any:
        """S^T @ x, of M x K numbers; see `matvec`."""
        return self.spmm(self._converted(x), transpose=True)

    def _converted(self, x: Any) -> Any:
        if not isinstance(x, np.ndarray):
            return x
        if x.dtype.kind not in "fiub" and x.dtype.name != "bfloat16":
            raise InvalidType(f"x has elements of type {x.dtype}: real numbers are expected")
        return x.astype(_types.numpy_dtype(self._known_sizes().type), copy=False)

    def _placed(
        self, operands: list[Operand], destination: Operand | None, rows: int, cols: int,
        types: tuple[int, ...], ndim: int, awaited: bool,
    ) -> tuple[list[Operand], Results]:  # fmt: skip
        """Operands where the product reads them, and places for results of rows x cols and these
        types, the first of which goes to `destination`."""
        model = operands[0]
        results: Results = []
        if self._staging.wanted(operands, rows * cols * len(types), awaited):
            for type_ in types:
                results.append(self._staging.place(model, destination, rows, cols, type_, ndim))
                destination = None
            return [self._staging.copied(one) for one in operands], results
        for type_ in types:
            if destination is None:
                destination = _operands.empty_like(model, rows, cols, type_, ndim)
            results.append((destination, None))
            destination = None
        return operands, results


def values_operand(values: Any, type_: int, nnz: int, what: str = "values") -> Operand:
    """Numbers of nonzeros, nnz or nnz x H."""
    given = _operands.operand(values, what, type_)
    if given.rows != nnz:
        raise InvalidArgument(
            f"{what} has {given.rows} rows, expected one for each of the {nnz} nonzeros"
        )
    return given


def _values_and_unscaled() -> InvalidArgument:
    return InvalidArgument("values in the place of S's, and unscaled: only one of them")


def of_nothing(results: Results) -> Operation[Any]:
    """Of no columns: there is nothing to be computed."""
    return Operation(lambda _: None, lambda: _given(results), queued=True)


def _given(results: Results) -> Any:
    """As the caller gets them."""
    if len(results) > 1:
        return tuple(_given([one]) for one in results)
    written, destination = results[0]
    if destination is None:
        return _operands.give(written)
    copy_back(written, destination)
    return _operands.give(destination)
