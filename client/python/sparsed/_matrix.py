"""Sparse matrices on a server, and products with them."""

from __future__ import annotations

import ctypes
import html
import json
from collections.abc import Callable
from typing import TYPE_CHECKING, Any, NamedTuple

import numpy as np

from sparsed import _native, _operands, _progress, _sparse, _types
from sparsed._calls import Callbacks, Operation
from sparsed._client import _c_name, _host_array, pack_problems
from sparsed._errors import Error, InvalidArgument, InvalidType, NotFound
from sparsed._native import I64
from sparsed._operands import HELD, NUMPY, OTHER, TORCH, Operand, SharedOperand
from sparsed._progress import Listener, Progress
from sparsed._report import Report, density_image

if TYPE_CHECKING:
    from sparsed._client import Client, Problem

# Of operands in host memory, where copying them into shared memory is faster than sending them.
_STAGED_BYTES = 1 << 18


class Sizes(NamedTuple):
    """What does not change as long as a matrix is not replaced by another one."""

    rows: int
    cols: int
    nnz: int
    type: int


class ProductOperation(Operation[Any]):
    """A product of a matrix's, which gives `result`, and `which` if there is one. Its operands are
    like `operand`; `keep` is what has to live until its end."""

    __slots__ = ("_matrix", "_operand", "_product", "_result", "_which")

    def __init__(
        self, matrix: Matrix, product: _native.Product, result: Operand, which: Operand | None,
        keep: Any, operand: Operand,
    ) -> None:  # fmt: skip
        self._start = product.start
        self._keep = keep
        self._callbacks = None
        self._queued = operand.dense[5] >= 0
        self._matrix = matrix
        self._operand = operand
        self._product = product
        self._result = result
        self._which = which

    def _finish(self) -> Any:
        product, matrix = self._product, self._matrix
        product.done()
        if matrix._stages is not False:
            matrix._look_how_it_travelled(product, self._operand)
        made = _operands.give(self._result)
        return made if self._which is None else (made, _operands.give(self._which))


class Matrix:
    """A sparse matrix S on a server, M x N with nnz nonzeros; made by `Client.upload` and
    `Client.matrix`.

    Dense operands are NumPy arrays, PyTorch's tensors on the CPU or a GPU, anything with DLPack or
    `__cuda_array_interface__`, or `HeldDense`, of the matrix's type. They are used where they are
    if they are row-major (rows may lie apart: a leading dimension); others are copied. Results are
    arrays of the same kind, where the operands are. A vector is one column, and so is its result.
    Operands and results of one product are all in host memory (or held), or all on one GPU. On a
    GPU a product runs in the order of the framework's current stream, and nobody waits for it.

    Products run in this process where that is possible, and on the server otherwise; operands
    travel the fastest way that there is: see `sparsed.last_transport`. Values of nonzeros, in and
    out, are in the order of the canonical CSR.

    Can be used from many threads, and pickled: in another process it connects anew when it is
    first used there.

    Attributes:
        name: what the server calls it.
        client: the connection that it is used by.
    """

    # NumPy's @ leaves the product to us.
    __array_ufunc__ = None
    __array_priority__ = 1000

    def __init__(
        self, client: Client, name: str, sizes: Sizes | None, handle: _native.Handle | None
    ) -> None:
        self.client = client
        self.name = name
        self._sizes = sizes
        self._handle = handle
        # Whether operands are copied into shared memory on their way: None: not found out yet.
        self._stages: bool | None = None
        # What sparsed.torch knows of it.
        self._torch: Any = None
        client._matrices.add(self)

    # ---- What it is

    @property
    def shape(self) -> tuple[int, int]:
        """(M, N)."""
        sizes = self._known_sizes()
        return sizes.rows, sizes.cols

    @property
    def nnz(self) -> int:
        """How many nonzeros it has; zeros that are stored count."""
        return self._known_sizes().nnz

    @property
    def type(self) -> str:
        """Of its values, and of the dense matrices that it meets: "f32", "f64", "f16", "bf16"."""
        return _types.name(self._known_sizes().type)

    @property
    def dtype(self) -> np.dtype[Any]:
        """The same as a NumPy dtype; of bf16 that of ml_dtypes, which has to be installed."""
        return _types.numpy_dtype(self._known_sizes().type)

    @property
    def ndim(self) -> int:
        """2."""
        return 2

    @property
    def T(self) -> Transposed:
        """A view of S^T, for products; nothing is sent or computed."""
        return Transposed(self)

    def __repr__(self) -> str:
        text = f"<sparsed.Matrix {self.name!r} at {self.client.address}"
        if self._sizes is not None:
            rows, cols, nnz, type_ = self._sizes
            text += f": {rows:,} x {cols:,}, {nnz:,} nonzeros, {_types.name(type_)}"
        return text + ">"

    def _repr_html_(self) -> str:
        try:
            return self._html()
        except Error as error:
            return f"<pre>{html.escape(repr(self))}\n{html.escape(str(error))}</pre>"

    def _html(self) -> str:
        info = self.info()
        picture = density_image(self._json("sparsed_matrix_features").get("density_map"))
        lines = [
            ("size", f"{info['rows']:,} x {info['cols']:,}"),
            ("nonzeros", f"{info['nnz']:,}"),
            ("type", info["type"]),
            ("values", f"version {info['version']}"),
            ("state", info["state"]),
        ]
        for plan in info["plans"]:
            problem = plan["class"]
            what = problem["operation"] + ("^T" if problem["transposed"] else "")
            width = f":{problem['k']}" if problem["k"] else ""
            lines.append((what + width, f"{plan['recipe']} / {plan['kernel']}"))
        rows = "".join(
            f"<tr><th style='text-align:left'>{html.escape(key)}</th>"
            f"<td style='text-align:left'>{html.escape(str(value))}</td></tr>"
            for key, value in lines
        )
        return f"<b>{html.escape(self.name)}</b>{picture}<table>{rows}</table>"

    def __reduce__(self) -> tuple[Any, ...]:
        return Matrix, (self.client, self.name, self._sizes, None)

    # ---- Products

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
        try:
            return self._spmm(
                x, transpose, values, reduce, alpha, beta, accumulate, out, unscaled,
                return_argument, allow_tf32, timeout,
            ).run()  # fmt: skip
        except Error:
            self._sizes = None
            raise

    def _spmm(
        self, x: Any, transpose: bool, values: Any, reduce: str, alpha: float, beta: float,
        accumulate: Any, out: Any, unscaled: bool, return_argument: bool, allow_tf32: bool,
        timeout: float | None,
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
        staged = self._staged((b,), rows * cols) if out is None else False
        if staged:
            b = self._in_shared_memory(b)
        if out is None:
            if beta != 0 and accumulate is None:
                raise InvalidArgument("beta needs a matrix to add: accumulate=, or out=")
            c = self._new_result(b, rows, cols, type_, b.ndim, staged)
        else:
            c = _operands.destination(out, "out", (rows, cols), type_, b.ndim == 1)
        kind = _native.REDUCTIONS.get(reduce)
        if kind is None:
            raise InvalidArgument(f"reduce is {reduce!r}, expected sum, mean, max or min")
        more: list[Operand] = []
        at_values = at_accumulate = at_which = None
        if values is not None:
            more.append(self._values_operand(values, type_, sizes.nnz))
            at_values = more[-1].dense
        if accumulate is not None:
            more.append(_operands.operand(accumulate, "accumulate", type_))
            at_accumulate = more[-1].dense
            if (more[-1].rows, more[-1].cols) != (rows, cols):
                raise InvalidArgument(
                    f"accumulate is {more[-1].rows} x {more[-1].cols}, expected {rows} x {cols}"
                )
        which = None
        if return_argument:
            which = self._new_result(b, rows, cols, I64, b.ndim, staged)
            at_which = which.dense
        if cols == 0:  # nothing to be computed
            return _of_nothing(c, which)
        product = _native.spmm(
            handle.pointer, b.dense, c.dense, transpose, kind, alpha, beta, at_accumulate,
            at_values, unscaled, allow_tf32, at_which,
            _native.nanoseconds(timeout) if timeout else 0,
            _operands.stream_of(b) if b.dense[5] >= 0 else 0,
        )  # fmt: skip
        return self._product(product, c, which, (handle, b, c, more), b)

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
        try:
            return self._sddmm(a, b, values, unscaled, heads, out, timeout).run()
        except Error:
            self._sizes = None
            raise

    def _sddmm(
        self, a: Any, b: Any, values: Any, unscaled: bool, heads: int, out: Any,
        timeout: float | None,
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
        if left.cols == 0:  # sums of nothing
            left = _operands.zeros_like(left, heads, "a")
            right = _operands.zeros_like(right, heads, "b")
        staged = self._staged((left, right), sizes.nnz * heads) if out is None else False
        if staged:
            left, right = self._in_shared_memory(left), self._in_shared_memory(right)
        ndim = 1 if heads == 1 else 2
        if out is None:
            o = self._new_result(left, sizes.nnz, heads, sizes.type, ndim, staged)
        else:
            o = _operands.destination(out, "out", (sizes.nnz, heads), sizes.type, ndim == 1)
        more = []
        if values is not None:
            more.append(self._values_operand(values, sizes.type, sizes.nnz))
        product = _native.sddmm(
            handle.pointer, left.dense, right.dense, o.dense, unscaled,
            more[0].dense if more else None, heads, _native.nanoseconds(timeout),
            _operands.stream_of(left),
        )  # fmt: skip
        return self._product(product, o, None, (handle, left, right, o, more), left)

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
        return self._softmax(x, scale, out, timeout).run()

    def _softmax(self, x: Any, scale: float, out: Any, timeout: float | None) -> Operation[Any]:
        handle = self._native_handle()
        sizes = self._known_sizes()
        given = self._values_operand(x, sizes.type, sizes.nnz, "x")
        y = self._result(given, out, given.rows, given.cols, sizes.type, given.ndim)
        product = _native.softmax(
            handle.pointer, given.dense, y.dense, scale, _native.nanoseconds(timeout),
            _operands.stream_of(given),
        )  # fmt: skip
        return self._product(product, y, None, (handle, given, y), given)

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
        return self._softmax_gradient(y, dy, scale, out, timeout).run()

    def _softmax_gradient(
        self, y: Any, dy: Any, scale: float, out: Any, timeout: float | None
    ) -> Operation[Any]:
        handle = self._native_handle()
        sizes = self._known_sizes()
        made = self._values_operand(y, sizes.type, sizes.nnz, "y")
        given = self._values_operand(dy, sizes.type, sizes.nnz, "dy")
        dx = self._result(made, out, made.rows, made.cols, sizes.type, made.ndim)
        product = _native.softmax_gradient(
            handle.pointer, made.dense, given.dense, dx.dense, scale, _native.nanoseconds(timeout),
            _operands.stream_of(made),
        )  # fmt: skip
        return self._product(product, dx, None, (handle, made, given, dx), made)

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
        return self._total(values, transpose, out, timeout).run()

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
        given = self._values_operand(values, sizes.type, sizes.nnz)
        y = self._result(given, out, rows, given.cols, sizes.type, given.ndim)
        product = _native.total(
            handle.pointer, given.dense, transpose, y.dense, _native.nanoseconds(timeout),
            _operands.stream_of(given),
        )  # fmt: skip
        return self._product(product, y, None, (handle, given, y), given)

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
        return self._scale(values, rows, cols, out, timeout).run()

    def _scale(
        self, values: Any, rows: Any, cols: Any, out: Any, timeout: float | None
    ) -> Operation[Any]:
        handle = self._native_handle()
        sizes = self._known_sizes()
        given = []
        if values is None and rows is None and cols is None:  # a chain has at least one operand
            rows = np.ones(sizes.rows, _types.numpy_dtype(sizes.type))
        if values is not None:
            given.append(self._values_operand(values, sizes.type, sizes.nnz))
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
        return self._product(product, y, None, (handle, given, y), model)

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
        if not isinstance(other, (Matrix, Transposed)):
            with self.client.temporary(other, dtype=self.type) as uploaded:
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
        if isinstance(other, Transposed):
            other, transpose_other = other.T, not transpose_other
        if other.client is not self.client and other.client.address != self.client.address:
            raise InvalidArgument(
                f"{self.name!r} is at {self.client.address}, and {other.name!r} at "
                f"{other.client.address}: both have to be on one server"
            )
        left, right = self._native_handle(), other._native_handle()
        chosen = _native.SEMIRINGS.get(semiring.replace("_", "-"))
        if chosen is None:
            names = ", ".join(_native.SEMIRINGS)
            raise InvalidArgument(f"semiring is {semiring!r}, expected one of {names}")
        strings = [
            ctypes.create_string_buffer(_c_name(text, what)) if text is not None else None
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
            return _sparse.result(_sparse.take_csr(out.value))

        return Operation(start, finish, (left, right, options, call_options, out, frame, strings))

    def __matmul__(self, other: Any) -> Any:
        if _is_sparse(other):
            return self.spgemm(other)
        return self.spmm(other)

    def __rmatmul__(self, other: Any) -> Any:
        return _row_times(other, self.T)

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
        return x.astype(self.dtype, copy=False)

    # ---- Values

    def update_values(
        self,
        values: Any,
        *,
        durable: bool = False,
        if_version: int | None = None,
        timeout: float | None = None,
    ) -> int:
        """Replaces the values; the pattern stays. Products that begin after this see them.

        Args:
            values: nnz numbers of the matrix's type, in the order of the canonical CSR.
            durable: on disk before this returns.
            if_version: only replace this version.
            timeout: seconds.

        Returns:
            The version of the new values.

        Raises:
            Aborted: the values have another version than `if_version`.
        """
        return self._update_values(values, durable, if_version, timeout).wait()

    def _update_values(
        self, values: Any, durable: bool, if_version: int | None, timeout: float | None
    ) -> Operation[int]:
        handle = self._native_handle()
        sizes = self._known_sizes()
        given = _operands.operand(_host_array(values), "values", sizes.type)
        if (given.rows, given.cols) != (sizes.nnz, 1):
            raise InvalidArgument(
                f"values is {given.rows} x {given.cols}, and the matrix has {sizes.nnz} nonzeros"
            )
        if given.dense[3] > 1:  # not one behind the other
            array = given.array
            copy = array.contiguous() if given.kind == TORCH else np.ascontiguousarray(array)
            given = _operands.operand(copy.reshape(-1), "values", sizes.type)
        update = _native.UPDATE_OPTIONS.pack(
            _native.UPDATE_OPTIONS.size, durable, if_version or 0
        )
        options = _native.call_options(timeout)
        version = ctypes.c_uint64()
        lib = _native.library()

        def start(call: int | None) -> int | None:
            error: int | None = lib.sparsed_update_values(
                handle.pointer, given.dense[0], sizes.nnz, sizes.type, update, options,
                ctypes.addressof(version), call,
            )  # fmt: skip
            return error

        def finish() -> int:
            if self._torch is not None:
                self._torch.values_changed()
            return int(version.value)

        return Operation(start, finish, (handle, given, update, options))

    def download(self, *, timeout: float | None = None) -> Any:
        """The matrix as a `scipy.sparse.csr_array` (16-bit values as f32), or a `sparsed.Csr` where
        SciPy is not installed."""
        return self._download(timeout).wait()

    def _download(self, timeout: float | None) -> Operation[Any]:
        handle = self._native_handle()
        options = _native.call_options(timeout)
        out = _native.Out()
        lib = _native.library()

        def start(call: int | None) -> int | None:
            error: int | None = lib.sparsed_download(handle.pointer, options, out.address, call)
            return error

        def finish() -> Any:
            return _sparse.result(_sparse.take_csr(out.value))

        return Operation(start, finish, (handle, options, out))

    # ---- Preparation, and what the server knows

    def prepare(
        self,
        *problems: Problem,
        again: bool = False,
        recipe: str | None = None,
        kernel: str | None = None,
        wait: bool = False,
        progress: Listener = None,
        timeout: float | None = None,
    ) -> None:
        """Has the server find out how products of these classes are fastest, in the background;
        products go on meanwhile.

        Args:
            problems: "spmm:128" (the width), "spmm^T:128", "spmm:128:tf32", "sddmm:64", "spgemm"; a
                number is the width of an SpMM. None: what it is prepared for already, or the
                server's default.
            again: time every candidate anew.
            recipe: build and time just this one.
            kernel: time this one alone.
            wait: until it is prepared, as `wait_ready`.
            progress: see `wait_ready`; implies `wait`.
            timeout: seconds.
        """
        lib = _native.library()
        handle = self._native_handle()
        packed = pack_problems(problems)
        c_problems = ctypes.create_string_buffer(packed, max(len(packed), 1))
        strings = [
            ctypes.create_string_buffer(_c_name(text, what)) if text is not None else None
            for text, what in ((recipe, "recipe"), (kernel, "kernel"))
        ]
        prepare = _native.PREPARE_OPTIONS.pack(
            _native.PREPARE_OPTIONS.size, ctypes.addressof(c_problems) if packed else 0,
            len(packed) // _native.PROBLEM.size, again,
            *(ctypes.addressof(text) if text else 0 for text in strings),
        )  # fmt: skip
        _native.check(lib.sparsed_prepare(handle.pointer, prepare, _native.call_options(timeout)))
        if wait or progress:
            self.wait_ready(progress=progress, timeout=timeout)

    def wait_ready(self, *, progress: Listener = None, timeout: float | None = None) -> str:
        """Waits until the matrix is prepared.

        Args:
            progress: True for a bar on stderr, or a function of a `sparsed.Progress`.
            timeout: seconds.

        Returns:
            "ready", or "failed" if the preparation failed; the matrix can be used all the same,
            and `info()["detail"]` says why.
        """
        call, bar = _progress.listener(progress, self.name)
        try:
            return self._wait_ready(call, timeout).wait()
        finally:
            if bar is not None:
                bar.close()

    def _wait_ready(
        self, progress: Callable[[Progress], object] | None, timeout: float | None
    ) -> Operation[str]:
        handle = self._native_handle()
        options = _native.call_options(timeout)
        callbacks = Callbacks(progress) if progress is not None else None
        last = ["ready"]

        def hear(_: Any, state: bytes, stage: bytes, done: int, total: int, message: bytes) -> None:
            last[0] = state.decode()
            if callbacks is not None:
                callbacks(
                    Progress(
                        stage.decode("utf-8", "replace"), done, total, last[0],
                        message.decode("utf-8", "replace"),
                    )
                )  # fmt: skip

        c_progress = _native.PreparationProgress(hear)
        lib = _native.library()

        def start(call: int | None) -> int | None:
            error: int | None = lib.sparsed_wait_ready(
                handle.pointer, c_progress, None, options, call
            )
            return error

        return Operation(start, lambda: last[0], (handle, options, c_progress), callbacks)

    def info(self) -> Report:
        """Sizes, type, version, state, layouts, plans, measurements and decisions."""
        return Report(self._json("sparsed_matrix_info"), f"matrix {self.name}")

    def show(self) -> Report:
        """Features of the pattern, distances of neighbouring nonzeros, and a density map of
        128 x 128 counts; empty until the server has computed them. Prints as text, and in notebooks
        as a picture and a table."""
        return Report(self._json("sparsed_matrix_features"), f"pattern of {self.name}")

    def explain(self, k: int = 0, device: str | None = None) -> Report:
        """What limits products of width k (0: 128) on a device ("cpu", "cuda:0"; None: the one that
        serves), and what another order of rows could gain. Seconds, if the matrix is large."""
        if not isinstance(k, int) or k < 0:
            raise InvalidArgument(f"k is {k!r}, expected a width")
        name = None if device is None else _c_name(device, "device")
        return Report(
            self._json("sparsed_matrix_explain", k, name), f"what limits products with {self.name}"
        )

    def measurements(self) -> list[dict[str, Any]]:
        """Everything that was measured on its pattern."""
        lib = _native.library()
        client, handle = self.client._native_handle(), self._native_handle()
        text = _native.text(lib.sparsed_measurements, client.pointer, handle.pointer, None)
        return list(json.loads(text))

    def attach(self, gpu: int | None = None) -> None:
        """Attaches to the matrix, on a GPU of this process's or the CPU, so that its products run
        in this process: what the first product does by itself. Raises what is in the way."""
        lib = _native.library()
        handle = self._native_handle()
        _native.check(
            lib.sparsed_attach(handle.pointer, _native.HOST if gpu is None else int(gpu))
        )

    def delete(self) -> None:
        """The server forgets the matrix; calls under way finish.

        Raises:
            NotFound: it is gone already.
        """
        lib = _native.library()
        handle = self._native_handle()
        _native.check(lib.sparsed_matrix_delete(handle.pointer, None))

    def _delete_if_there(self) -> None:
        try:
            self.delete()
        except NotFound:
            pass

    # ---- Inside

    def _native_handle(self) -> _native.Handle:
        """The matrix in this process's library. Keep it while its pointer is in use."""
        handle = self._handle
        if handle is not None and handle.generation == _native.generation:
            return handle
        client = self.client._native_handle()
        out = _native.Out()
        lib = _native.library()
        _native.check(lib.sparsed_matrix_named(client.pointer, _c_name(self.name), out.address))
        self._handle = _native.Handle(out.value, lib.sparsed_matrix_free)
        return self._handle

    def _json(self, function: str, *arguments: Any) -> Any:
        lib = _native.library()
        handle = self._native_handle()
        text = _native.text(getattr(lib, function), handle.pointer, *arguments, None)
        return json.loads(text)

    def _known_sizes(self) -> Sizes:
        """Asked for once, and anew after an error: somebody may have replaced the matrix."""
        if self._sizes is None:
            info = self._json("sparsed_matrix_info")
            self._sizes = Sizes(info["rows"], info["cols"], info["nnz"], _types.parse(info["type"]))
        return self._sizes

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

    def _values_operand(self, values: Any, type_: int, nnz: int, what: str = "values") -> Operand:
        given = _operands.operand(values, what, type_)
        if given.rows != nnz:
            raise InvalidArgument(
                f"{what} has {given.rows} rows, expected one for each of the {nnz} nonzeros"
            )
        return given

    def _result(
        self, model: Operand | None, out: Any, rows: int, cols: int, type_: int, ndim: int
    ) -> Operand:
        if out is not None:
            return _operands.destination(out, "out", (rows, cols), type_, ndim == 1)
        if model is None:
            return _operands.empty_numpy(rows, cols, type_, ndim)
        return self._new_result(model, rows, cols, type_, ndim, False)

    def _new_result(
        self, model: Operand, rows: int, cols: int, type_: int, ndim: int, staged: bool
    ) -> Operand:
        if not staged:
            return _operands.empty_like(model, rows, cols, type_, ndim)
        return self._empty_in_shared_memory(model, rows, cols, type_, ndim)

    def _product(
        self, product: _native.Product, result: Operand, which: Operand | None, keep: Any,
        operand: Operand,
    ) -> Operation[Any]:  # fmt: skip
        return ProductOperation(self, product, result, which, keep, operand)

    # ---- Shared memory, where operands would have to be sent

    def _staged(self, operands: tuple[Operand, ...], result: int) -> bool:
        """Whether operands are to be copied into shared memory on their way."""
        if not self._stages:
            return False
        elements = result + sum(one.rows * one.cols for one in operands)
        return elements * 4 >= _STAGED_BYTES and all(
            one.dense[5] == _native.HOST and one.kind != HELD for one in operands
        )

    def _look_how_it_travelled(self, product: _native.Product, operand: Operand) -> None:
        """Large operands that were sent though the server is on this machine are copied into shared
        memory from the next product on."""
        if operand.rows * operand.cols * 4 < _STAGED_BYTES or operand.kind == HELD:
            return
        if product.transport == _native.TRANSPORT_ATTACHED:
            self._stages = None if self._stages is None else False
        elif self._stages is None and product.transport == _native.TRANSPORT_STREAM:
            self._stages = self.client._shares_memory()

    def _in_shared_memory(self, source: Operand) -> Operand:
        client = self.client
        if client._pool.contains(source.dense[0]):
            return source
        data, rows, cols, leading, type_, device, _ = source.dense
        element = _native.ELEMENT_BYTES[type_]
        bits = np.dtype(f"u{element}")
        copy = client._pool.array(client._native_handle().pointer, (rows, cols), bits)
        np.copyto(copy, _sparse.strided_at(data, rows, cols, leading, bits))
        dense = (_operands._data(copy), rows, cols, cols, type_, device, 0)
        shared = SharedOperand(dense, source.array, source.kind, source.ndim, source.source)
        shared.copy = copy
        return shared

    def _empty_in_shared_memory(
        self, model: Operand, rows: int, cols: int, type_: int, ndim: int
    ) -> Operand:
        client = self.client
        shape = (rows, cols) if ndim == 2 else (rows,)
        bits = np.dtype(f"u{_native.ELEMENT_BYTES[type_]}")
        array = client._pool.array(client._native_handle().pointer, shape, bits)
        dense = (_operands._data(array), rows, cols, cols, type_, _native.HOST, 0)
        if model.kind == TORCH:
            torch = _types.torch()
            signed = array.view(f"i{bits.itemsize}")
            tensor = torch.from_numpy(signed).view(_types.torch_dtype(type_))
            return Operand(dense, tensor, TORCH, ndim, tensor)
        array = array.view(_types.numpy_dtype(type_))
        kind = OTHER if model.kind == OTHER else NUMPY
        return Operand(dense, array, kind, ndim, model.source if kind == OTHER else array)


class Transposed:
    """A view of S^T of a matrix on a server, for products: `Matrix.T`."""

    __array_ufunc__ = None
    __array_priority__ = 1000

    def __init__(self, matrix: Matrix) -> None:
        self._matrix = matrix

    @property
    def T(self) -> Matrix:
        """S itself."""
        return self._matrix

    @property
    def shape(self) -> tuple[int, int]:
        """(N, M)."""
        rows, cols = self._matrix.shape
        return cols, rows

    @property
    def nnz(self) -> int:
        """As of S."""
        return self._matrix.nnz

    @property
    def dtype(self) -> np.dtype[Any]:
        """As of S."""
        return self._matrix.dtype

    @property
    def name(self) -> str:
        """As of S."""
        return self._matrix.name

    def spmm(self, x: Any, *, transpose: bool = False, **options: Any) -> Any:
        """S^T @ x: `Matrix.spmm`, transposed."""
        return self._matrix.spmm(x, transpose=not transpose, **options)

    def spgemm(self, other: Any, *, transpose: bool = False, **options: Any) -> Any:
        """S^T @ other: `Matrix.spgemm`, transposed."""
        return self._matrix.spgemm(other, transpose=not transpose, **options)

    def matvec(self, x: Any) -> Any:
        """S^T @ x."""
        return self._matrix.rmatvec(x)

    def rmatvec(self, x: Any) -> Any:
        """S @ x."""
        return self._matrix.matvec(x)

    def matmat(self, x: Any) -> Any:
        """S^T @ x."""
        return self._matrix.rmatmat(x)

    def rmatmat(self, x: Any) -> Any:
        """S @ x."""
        return self._matrix.matmat(x)

    def __matmul__(self, other: Any) -> Any:
        return self.spgemm(other) if _is_sparse(other) else self.spmm(other)

    def __rmatmul__(self, other: Any) -> Any:
        return _row_times(other, self._matrix)

    def __repr__(self) -> str:
        return f"{self._matrix!r}.T"


def _of_nothing(result: Operand, which: Operand | None) -> Operation[Any]:
    made = _operands.give(result)
    return Operation(
        lambda _: None, lambda: made if which is None else (made, _operands.give(which)), None,
        None, True,
    )  # fmt: skip


def _is_sparse(x: Any) -> bool:
    if isinstance(x, (Matrix, Transposed)) or hasattr(x, "tocsr"):
        return True
    torch = _types.torch()
    return (
        torch is not None and isinstance(x, torch.Tensor) and x.layout is not torch.strided
    )


def _row_times(x: Any, transposed: Matrix | Transposed) -> Any:
    """x @ S as (S^T @ x^T)^T."""
    if hasattr(x, "tocsr"):
        raise InvalidType("sparse @ Matrix: upload the left one, too, and use spgemm")
    if not hasattr(x, "T"):
        x = np.asarray(x)
    return (transposed @ x.T).T
