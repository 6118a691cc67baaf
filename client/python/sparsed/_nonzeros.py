"""Operations on values of a sparse matrix's nonzeros."""

from __future__ import annotations

from typing import Any

import numpy as np

from sparsed import _native, _operands, _types
from sparsed._calls import Operation
from sparsed._operands import Operand
from sparsed._products import ProductOperation, Products, values_operand


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

    def _softmax(self, x: Any, scale: float, out: Any, timeout: float | None) -> Operation[Any]:
        handle = self._native_handle()
        sizes = self._known_sizes()
        given = values_operand(x, sizes.type, sizes.nnz, "x")
        y = self._result(given, out, given.rows, given.cols, sizes.type, given.ndim)
        product = _native.softmax(
            handle.pointer, given.dense, y.dense, scale, _native.nanoseconds(timeout),
            _operands.stream_of(given),
        )  # fmt: skip
        return ProductOperation(self._staging, product, y, None, (handle, given, y), given, True)

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
        self, y: Any, dy: Any, scale: float, out: Any, timeout: float | None
    ) -> Operation[Any]:
        handle = self._native_handle()
        sizes = self._known_sizes()
        made = values_operand(y, sizes.type, sizes.nnz, "y")
        given = values_operand(dy, sizes.type, sizes.nnz, "dy")
        dx = self._result(made, out, made.rows, made.cols, sizes.type, made.ndim)
        product = _native.softmax_gradient(
            handle.pointer, made.dense, given.dense, dx.dense, scale, _native.nanoseconds(timeout),
            _operands.stream_of(made),
        )  # fmt: skip
        return ProductOperation(
            self._staging, product, dx, None, (handle, made, given, dx), made, True
        )

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
        self, values: Any, transpose: bool, out: Any, timeout: float | None
    ) -> Operation[Any]:
        handle = self._native_handle()
        sizes = self._known_sizes()
        rows, inner = (sizes.cols, sizes.rows) if transpose else (sizes.rows, sizes.cols)
        if values is None:  # a chain has at least one operand
            ones = np.ones(inner, _types.numpy_dtype(sizes.type))
            return self._spmm(
                ones, transpose, None, "sum", 1.0, 0.0, None, out, False, False, False, timeout
            )
        given = values_operand(values, sizes.type, sizes.nnz)
        y = self._result(given, out, rows, given.cols, sizes.type, given.ndim)
        product = _native.total(
            handle.pointer, given.dense, transpose, y.dense, _native.nanoseconds(timeout),
            _operands.stream_of(given),
        )  # fmt: skip
        return ProductOperation(self._staging, product, y, None, (handle, given, y), given, True)

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
        self, values: Any, rows: Any, cols: Any, out: Any, timeout: float | None
    ) -> Operation[Any]:
        handle = self._native_handle()
        sizes = self._known_sizes()
        given = []
        if values is None and rows is None and cols is None:  # a chain has at least one operand
            rows = np.ones(sizes.rows, _types.numpy_dtype(sizes.type))
        if values is not None:
            given.append(values_operand(values, sizes.type, sizes.nnz))
        at_values = given[-1].dense if given else None
        at: list[Any] = []
        for what, factors in (("rows", rows), ("cols", cols)):
            if factors is not None:
                given.append(_operands.operand(factors, what, sizes.type))
            at.append(given[-1].dense if factors is not None else None)
        heads = max((one.cols for one in given), default=1)
        ndim = 2 if any(one.ndim == 2 for one in given) else 1
        model = given[0]
        y = self._result(model, out, sizes.nnz, heads, sizes.type, ndim)
        product = _native.scale(
            handle.pointer, at_values, at[0], at[1], y.dense, _native.nanoseconds(timeout),
            _operands.stream_of(model),
        )  # fmt: skip
        return ProductOperation(self._staging, product, y, None, (handle, given, y), model, True)

    def _result(
        self, model: Operand, out: Any, rows: int, cols: int, type_: int, ndim: int
    ) -> Operand:
        if out is not None:
            return _operands.destination(out, "out", (rows, cols), type_, ndim == 1)
        return _operands.empty_like(model, rows, cols, type_, ndim)
