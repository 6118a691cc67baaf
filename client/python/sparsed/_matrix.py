"""Sparse matrices on a server."""

from __future__ import annotations

import ctypes
import html
import json
from collections.abc import Callable
from typing import Any

import numpy as np

from sparsed import _csr, _native, _numbers, _operands, _progress, _types
from sparsed._calls import Callbacks, Operation
from sparsed._errors import Error, InvalidArgument, NotFound
from sparsed._names import Problem, c_name, host_array, pack_problems
from sparsed._nonzeros import Nonzeros
from sparsed._operands import TORCH
from sparsed._progress import Listener, Progress
from sparsed._report import Report, density_image
from sparsed._spgemm import SparseProducts
from sparsed._transposed import Transposed, is_sparse, row_times


class Matrix(Nonzeros, SparseProducts):
    """A sparse matrix S on a server, M x N with nnz nonzeros; made by `Client.upload` and
    `Client.matrix`.

    Dense operands are NumPy arrays, PyTorch's tensors on the CPU or a GPU, anything with DLPack or
    `__cuda_array_interface__`, or `DenseMatrix`, of the matrix's type. They are used where they are
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
            problem = plan["signature"]
            what = problem["operation"] + ("^T" if problem["transposed"] else "")
            width = f":{problem['k']}" if problem["k"] else ""
            lines.append((what + width, f"{plan['pipeline']} / {plan['kernel']}"))
        rows = "".join(
            f"<tr><th style='text-align:left'>{html.escape(key)}</th>"
            f"<td style='text-align:left'>{html.escape(str(value))}</td></tr>"
            for key, value in lines
        )
        return f"<b>{html.escape(self.name)}</b>{picture}<table>{rows}</table>"

    def __reduce__(self) -> tuple[Any, ...]:
        return (
            Matrix,
            (self.client, self.name, self._sizes, None),
            {"_weighted": self._weighted},
        )

    def __matmul__(self, other: Any) -> Any:
        if is_sparse(other):
            return self.spgemm(other)
        return self.spmm(other)

    def __rmatmul__(self, other: Any) -> Any:
        return row_times(other, self.T)

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
        given = _operands.operand(host_array(values), "values", sizes.type)
        if (given.rows, given.cols) != (sizes.nnz, 1):
            raise InvalidArgument(
                f"values is {given.rows} x {given.cols}, and the matrix has {sizes.nnz} nonzeros"
            )
        if given.dense[3] > 1:  # not one behind the other
            array = given.array
            copy = array.contiguous() if given.kind == TORCH else np.ascontiguousarray(array)
            given = _operands.operand(copy.reshape(-1), "values", sizes.type)
        version_now = 0
        if if_version is not None:
            version_now = _numbers.count(if_version, "if_version", most=2**63 - 1)
        update = _native.UPDATE_OPTIONS.pack(
            _native.UPDATE_OPTIONS.size, bool(durable), version_now
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
            self._weighted = True
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
            return _csr.result(_csr.take_csr(out.value))

        return Operation(start, finish, (handle, options, out))

    # ---- Preparation, and what the server knows

    def prepare(
        self,
        *problems: Problem,
        retune: bool = False,
        pipeline: str | None = None,
        kernel: str | None = None,
        explore: bool = False,
        wait: bool = False,
        progress: Listener = None,
        timeout: float | None = None,
        **former: Any,
    ) -> None:
        """Has the server tune for these problem signatures, in the background;
        products go on meanwhile.

        Args:
            problems: "spmm:128" (K, the columns of the dense operand), "spmm^T:128",
                "spmm:128:tf32", "sddmm:64", "spgemm"; a number is K of an SpMM. None: what it is
                prepared for already, or the server's default.
            retune: discard what was measured and time every candidate anew.
            pipeline: build and time just this transform pipeline, written as in the matrix's info.
            kernel: time this kernel alone.
            explore: build and time every candidate, also what the server's model or rules leave
                out.
            wait: until it is prepared, as `wait_ready`.
            progress: see `wait_ready`; implies `wait`.
            timeout: seconds.
            former: arguments by the names that they once had: `again` is `retune`, `recipe` is
                `pipeline`.
        """
        retune = former.pop("again", retune)
        pipeline = former.pop("recipe", pipeline)
        if former:
            raise TypeError(f"prepare() has no argument {next(iter(former))!r}")
        lib = _native.library()
        handle = self._native_handle()
        packed = pack_problems(problems)
        c_problems = ctypes.create_string_buffer(packed, max(len(packed), 1))
        strings = [
            ctypes.create_string_buffer(c_name(text, what)) if text is not None else None
            for text, what in ((pipeline, "pipeline"), (kernel, "kernel"))
        ]
        prepare = _native.PREPARE_OPTIONS.pack(
            _native.PREPARE_OPTIONS.size, ctypes.addressof(c_problems) if packed else 0,
            len(packed) // _native.PROBLEM.size, retune,
            *(ctypes.addressof(text) if text else 0 for text in strings), explore,
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
        """What limits products of width k (0: that of most of the last ones, 128 where there were
        none) on a device ("cpu", "cuda:0"; None: the one that serves), and what another order of
        rows could gain. Seconds, if the matrix is large. Prints as `sparsectl explain` does."""
        k = _numbers.count(k, "k", least=0)
        name = None if device is None else c_name(device, "device")
        explained = self._json("sparsed_matrix_explain", k, name)
        text = explained.pop("text")
        return Report(explained, f"what limits products with {self.name}", text)

    def measurements(self) -> list[dict[str, Any]]:
        """Everything that was measured on its pattern."""
        lib = _native.library()
        client, handle = self.client._native_handle(), self._native_handle()
        options = _native.call_options()
        text = _native.text(lib.sparsed_measurements, client.pointer, handle.pointer, options)
        return list(json.loads(text))

    def attach(self, gpu: int | None = None) -> None:
        """Attaches to the matrix, on a GPU of this process's or the CPU, so that its products run
        in this process: what the first product does by itself. Raises what is in the way."""
        self._attach(_native.HOST if gpu is None else _numbers.count(gpu, "gpu", least=0))

    def delete(self) -> None:
        """Deletes the matrix on the server; calls under way finish.

        Raises:
            NotFound: it is gone already.
        """
        lib = _native.library()
        handle = self._native_handle()
        _native.check(lib.sparsed_matrix_delete(handle.pointer, _native.call_options()))

    def _delete_if_there(self) -> None:
        try:
            self.delete()
        except NotFound:
            pass
