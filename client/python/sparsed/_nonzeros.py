"""Operations on values of a sparse matrix's nonzeros."""

from __future__ import annotations

from typing import Any

import numpy as np

from sparsed import _native, _numbers, _operands, _types
from sparsed._calls import Operation
from sparsed._errors import InvalidArgument
from sparsed._operands import Operand
from sparsed._products import (
    ProductOperation,
    Products,
    Results,
    of_nothing,
    values_operand,
)


class Nonzeros(Products):
    """Softmax, totals, scaling."""

    def softmax(
        self, x: Any, *, scale: float = 1.0, out: Any = None, timeout: float | None = None
    ) -> Any:
        """The softmax of scale * x over the nonzeros of each row of S.

        Args:
            x: nnz numbers, or nnz x H, each column for itself.
            scale: a factor.
            out: where the result goes.
            timeout: seconds.

        Returns:
            An array like x.
        """
        return self._now(self._softmax, x, scale, out, timeout)

    def _softmax(
        self, x: Any, scale: float, out: Any, timeout: float | None, awaited: bool = False
    ) -> Operation[Any]:
        handle = self._native_handle()
        sizes = self._known_sizes()
        scale = _numbers.number(scale, "scale")
        given = [values_operand(x, sizes.type, sizes.nnz, "x")]
        given, y = self._with_result(given, out, sizes.nnz, given[0].cols, given[0].ndim, awaited)
        if y[0][0].cols == 0:
            return of_nothing(y)
        product = _native.softmax(
            handle.pointer, given[0].dense, y[0][0].dense, scale, _native.nanoseconds(timeout),
            _operands.stream_of(given[0]),
        )  # fmt: skip
        return ProductOperation(self, product, y, (handle, given), given[0], awaited)

    def softmax_gradient(
        self,
        y: Any,
        dy: Any,
        *,
        scale: float = 1.0,
        out: Any = None,
        timeout: float | None = None,
    ) -> Any:
        """The backward of `softmax`: the gradient of x, from the softmax y and the gradient dy of
        that; all nnz or nnz x H."""
        return self._now(self._softmax_gradient, y, dy, scale, out, timeout)

    def _softmax_gradient(
        self, y: Any, dy: Any, scale: float, out: Any, timeout: float | None, awaited: bool = False
    ) -> Operation[Any]:
        handle = self._native_handle()
        sizes = self._known_sizes()
        scale = _numbers.number(scale, "scale")
        given = [
            values_operand(one, sizes.type, sizes.nnz, what) for one, what in ((y, "y"), (dy, "dy"))
        ]
        if given[0].cols != given[1].cols:
            raise InvalidArgument(f"y has {given[0].cols} columns, and dy has {given[1].cols}")
        given, dx = self._with_result(given, out, sizes.nnz, given[0].cols, given[0].ndim, awaited)
        if dx[0][0].cols == 0:
            return of_nothing(dx)
        product = _native.softmax_gradient(
            handle.pointer, given[0].dense, given[1].dense, dx[0][0].dense, scale,
            _native.nanoseconds(timeout), _operands.stream_of(given[0]),
        )  # fmt: skip
        return ProductOperation(self, product, dx, (handle, given), given[0], awaited)

    def total(
        self,
        values: Any = None,
        *,
        transpose: bool = False,
        out: Any = None,
        timeout: float | None = None,
    ) -> Any:
        """What the values of each row of S add up to: degrees, where they are ones.

        Args:
            values: nnz, or nnz x H; None: S's own.
            transpose: of each column.
            out: M or M x H (of S^T: N), where the result goes.
            timeout: seconds.

        Returns:
            M or M x H numbers (of S^T: N).
        """
        return self._now(self._total, values, transpose, out, timeout)

    def _total(
        self, values: Any, transpose: bool, out: Any, timeout: float | None, awaited: bool = False
    ) -> Operation[Any]:
        handle = self._native_handle()
        sizes = self._known_sizes()
        rows, inner = (sizes.cols, sizes.rows) if transpose else (sizes.rows, sizes.cols)
        if values is None:  # a chain has at least one operand
            ones = np.ones(inner, _types.numpy_dtype(sizes.type))
            return self._spmm(
                ones, transpose, None, "sum", 1.0, 0.0, None, out, False, False, False, timeout,
                awaited,
            )  # fmt: skip
        given = [values_operand(values, sizes.type, sizes.nnz)]
        given, y = self._with_result(given, out, rows, given[0].cols, given[0].ndim, awaited)
        if y[0][0].cols == 0:
            return of_nothing(y)
        product = _native.total(
            handle.pointer, given[0].dense, transpose, y[0][0].dense, _native.nanoseconds(timeout),
            _operands.stream_of(given[0]),
        )  # fmt: skip
        return ProductOperation(self, product, y, (handle, given), given[0], awaited)

    def scale(
        self,
        values: Any = None,
        *,
        rows: Any = None,
        cols: Any = None,
        out: Any = None,
        timeout: float | None = None,
    ) -> Any:
        """rows[i] * values[p] * cols[j] for each nonzero p = (i, j): the values of a graph that is
        normalised by its degrees, say, for `spmm(x, values=...)`.

        Args:
            values: nnz, or nnz x H; None: S's own.
            rows: M factors, or M x H; None: ones.
            cols: N factors, or N x H; None: ones.
            out: where the result goes.
            timeout: seconds.

        Returns:
            nnz numbers, or nnz x H.
        """
        return self._now(self._scale, values, rows, cols, out, timeout)

    def _scale(
        self, values: Any, rows: Any, cols: Any, out: Any, timeout: float | None,
        awaited: bool = False,
    ) -> Operation[Any]:  # fmt: skip
        handle = self._native_handle()
        sizes = self._known_sizes()
        if values is None and rows is None and cols is None:  # a chain has at least one operand
            rows = np.ones(sizes.rows, _types.numpy_dtype(sizes.type))
        given = []
        if values is not None:
            given.append(values_operand(values, sizes.type, sizes.nnz))
        for what, factors, count in (("rows", rows, sizes.rows), ("cols", cols, sizes.cols)):
            if factors is not None:
                given.append(_operands.operand(factors, what, sizes.type))
                if given[-1].rows != count:
                    raise InvalidArgument(
                        f"{what} has {given[-1].rows} rows, expected {count}: {self.name!r} is "
                        f"{sizes.rows} x {sizes.cols}"
                    )
        heads = max(one.cols for one in given)
        for one in given:
            if one.cols != heads and (one.cols != 1 or (values is not None and one is given[0])):
                raise InvalidArgument(
                    f"values, rows and cols have {', '.join(str(one.cols) for one in given)} "
                    f"columns, expected {heads} of each, or 1 of rows or cols"
                )
        ndim = 2 if any(one.ndim == 2 for one in given) else 1
        given, y = self._with_result(given, out, sizes.nnz, heads, ndim, awaited)
        if y[0][0].cols == 0:
            return of_nothing(y)
        places = iter(given)
        at = [None if one is None else next(places).dense for one in (values, rows, cols)]
        product = _native.scale(
            handle.pointer, at[0], at[1], at[2], y[0][0].dense, _native.nanoseconds(timeout),
            _operands.stream_of(given[0]),
        )  # fmt: skip
        return ProductOperation(self, product, y, (handle, given), given[0], awaited)

    def _with_result(
        self, given: list[Operand], out: Any, rows: int, cols: int, ndim: int, awaited: bool
    ) -> tuple[list[Operand], Results]:
        """The operands where they are read, and the place of a result of rows x cols."""
        type_ = self._known_sizes().type
        destination = None
        if out is not None:
            destination = _operands.destination(out, "out", (rows, cols), type_, ndim == 1)
        return self._placed(given, destination, rows, cols, (type_,), ndim, awaited)
