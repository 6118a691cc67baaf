"""The same client for asyncio: what takes time is awaited, and the event loop goes on meanwhile.

    import sparsed.aio
    async with await sparsed.aio.connect("127.0.0.1:7470") as c:
        g = await c.upload("cora", A)
        y, z = await asyncio.gather(g.spmm(x), g.T.spmm(x))

Names, parameters, results and exceptions are those of `sparsed.Client` and `sparsed.Matrix`.
Cancelling a task cancels its call, on the server, too; the task ends when its memory is free.
Functions for progress run in the event loop's thread.

Buffers are `sparsed.DenseMatrix`, whose short calls (`renew`, `delete`,
the end of a `with`) block.

Products with operands in host memory run on the server, so that nothing here is busy; those on a
GPU are queued as ever.
"""

from __future__ import annotations

from collections.abc import AsyncIterator, Callable
from contextlib import asynccontextmanager
from typing import Any

import sparsed
from sparsed import _matrix, _progress, _transposed
from sparsed._calls import Operation, in_thread
from sparsed._names import unused_name
from sparsed._errors import Error
from sparsed._held import DenseMatrix
from sparsed._progress import Listener
from sparsed._report import Report
from sparsed._transposed import TransposedView

__all__ = ["Client", "Matrix", "Transposed", "connect"]


async def connect(address: str, **options: Any) -> Client:
    """Connects to a server; see `sparsed.connect`."""
    return Client(await in_thread(sparsed.connect, address, **options))


class Client:
    """A connection to a server, to be used from one event loop; see `sparsed.Client`.

    Attributes:
        sync: the client that blocks, on the same connection.
    """

    def __init__(self, client: sparsed.Client) -> None:
        self.sync = client

    @property
    def address(self) -> str:
        """As `connect` was given it."""
        return self.sync.address

    async def close(self) -> None:
        """Ends the connection."""
        self.sync.close()

    async def __aenter__(self) -> Client:
        return self

    async def __aexit__(self, *_: object) -> None:
        await self.close()

    def __repr__(self) -> str:
        return repr(self.sync).replace("sparsed.Client", "sparsed.aio.Client")

    async def upload(
        self,
        name: str,
        m: Any,
        *,
        shape: Any = None,
        num_nodes: int | None = None,
        dtype: Any = None,
        values: Any = None,
        replace: bool = False,
        prepare: Any = None,
        wait: bool = False,
        shards: int = 1,
        partition: Any = None,
        replicas: int | None = None,
        progress: Listener = None,
        timeout: float | None = None,
    ) -> Matrix:
        """See `sparsed.Client.upload`."""
        call, bar = _progress.listener(progress, str(name))
        try:
            # Bringing it to canonical CSR takes time, too.
            operation = await in_thread(
                self.sync._upload, name, m, shape, num_nodes, dtype, values, replace, prepare, call,
                timeout, shards, partition, replicas,
            )  # fmt: skip
            matrix = await operation.awaited()
            if wait:
                await matrix._wait_ready(call, timeout).awaited()
        finally:
            if bar is not None:
                bar.close()
        return Matrix(self, matrix)

    async def matrix(self, name: str) -> Matrix:
        """See `sparsed.Client.matrix`."""
        return Matrix(self, await in_thread(self.sync.matrix, name))

    async def matrices(self, prefix: str = "", everybody: bool = False) -> list[Report]:
        """See `sparsed.Client.matrices`."""
        return await in_thread(self.sync.matrices, prefix, everybody)

    @asynccontextmanager
    async def temporary(self, m: Any, **options: Any) -> AsyncIterator[Matrix]:
        """See `sparsed.Client.temporary`; for an `async with`."""
        matrix = await self.upload(unused_name(), m, **options)
        try:
            yield matrix
        finally:
            await in_thread(matrix.sync._delete_if_there)

    async def put(
        self,
        name: str | None,
        x: Any,
        *,
        dtype: Any = None,
        durable: bool = False,
        owner: str | None = None,
        time_to_live: float | None = None,
        distribution: str = "whole",
        rows_of: str | None = None,
        timeout: float | None = None,
    ) -> DenseMatrix:
        """See `sparsed.Client.put`."""
        operation = self.sync._put(
            name, x, dtype, durable, owner, time_to_live, distribution, rows_of, timeout
        )
        return await operation.awaited()

    async def zeros(
        self, name: str | None, shape: tuple[int, int], dtype: Any = "f32", **options: Any
    ) -> DenseMatrix:
        """See `sparsed.Client.zeros`."""
        return await in_thread(self.sync.zeros, name, shape, dtype, **options)

    async def held(self, name: str, *, rows_of: str | None = None) -> DenseMatrix:
        """See `sparsed.Client.held`."""
        return await in_thread(self.sync.held, name, rows_of=rows_of)

    async def read(
        self, held: DenseMatrix, out: Any = None, *, timeout: float | None = None
    ) -> Any:
        """See `sparsed.DenseMatrix.read`."""
        return await self.sync._read_held(held, out, timeout).awaited()

    async def buffers(self, prefix: str = "") -> list[Report]:
        """See `sparsed.Client.buffers`."""
        return await in_thread(self.sync.buffers, prefix)

    def empty(self, shape: int | tuple[int, ...], dtype: Any = "f32") -> Any:
        """See `sparsed.Client.empty`; nothing is awaited."""
        return self.sync.empty(shape, dtype)

    async def info(self) -> Report:
        """See `sparsed.Client.info`."""
        return await in_thread(self.sync.info)

    async def stats(self) -> Report:
        """See `sparsed.Client.stats`."""
        return await in_thread(self.sync.stats)

    async def measurements(self, everybody: bool = False) -> list[dict[str, Any]]:
        """See `sparsed.Client.measurements`."""
        return await in_thread(self.sync.measurements, everybody)


class Matrix:
    """A sparse matrix on a server; see `sparsed.Matrix`.

    Attributes:
        client: the connection that it is used by.
        sync: the matrix whose calls block.
    """

    def __init__(self, client: Client, matrix: sparsed.Matrix) -> None:
        self.client = client
        self.sync = matrix

    @property
    def name(self) -> str:
        """What the server calls it."""
        return self.sync.name

    @property
    def shape(self) -> tuple[int, int]:
        """(M, N)."""
        return self.sync.shape

    @property
    def nnz(self) -> int:
        """How many nonzeros it has."""
        return self.sync.nnz

    @property
    def type(self) -> str:
        """Of its values: "f32", "f64", "f16", "bf16"."""
        return self.sync.type

    @property
    def dtype(self) -> Any:
        """The same as a NumPy dtype."""
        return self.sync.dtype

    @property
    def T(self) -> Transposed:
        """A view of S^T, for products; nothing is sent or computed."""
        return Transposed(self)

    def __repr__(self) -> str:
        return repr(self.sync).replace("sparsed.Matrix", "sparsed.aio.Matrix")

    async def _run(self, make: Callable[..., Operation[Any]], *arguments: Any) -> Any:
        try:
            if self.sync._sizes is None:
                await in_thread(self.sync._known_sizes)
            return await make(*arguments).awaited()
        except Error:
            self.sync._sizes = None
            raise

    async def spmm(
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
        """See `sparsed.Matrix.spmm`."""
        return await self._run(
            self.sync._spmm, x, transpose, values, reduce, alpha, beta, accumulate, out, unscaled,
            return_argument, allow_tf32, timeout, True,
        )  # fmt: skip

    async def sddmm(
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
        """See `sparsed.Matrix.sddmm`."""
        return await self._run(self.sync._sddmm, a, b, values, unscaled, heads, out, timeout, True)

    async def softmax(
        self, x: Any, *, scale: float = 1.0, out: Any = None, timeout: float | None = None
    ) -> Any:
        """See `sparsed.Matrix.softmax`."""
        return await self._run(self.sync._softmax, x, scale, out, timeout, True)

    async def softmax_gradient(
        self,
        y: Any,
        dy: Any,
        *,
        scale: float = 1.0,
        out: Any = None,
        timeout: float | None = None,
    ) -> Any:
        """See `sparsed.Matrix.softmax_gradient`."""
        return await self._run(self.sync._softmax_gradient, y, dy, scale, out, timeout, True)

    async def total(
        self,
        values: Any = None,
        *,
        transpose: bool = False,
        out: Any = None,
        timeout: float | None = None,
    ) -> Any:
        """See `sparsed.Matrix.total`."""
        return await self._run(self.sync._total, values, transpose, out, timeout, True)

    async def scale(
        self,
        values: Any = None,
        *,
        rows: Any = None,
        cols: Any = None,
        out: Any = None,
        timeout: float | None = None,
    ) -> Any:
        """See `sparsed.Matrix.scale`."""
        return await self._run(self.sync._scale, values, rows, cols, out, timeout, True)

    async def spgemm(
        self,
        other: Any,
        *,
        transpose: bool = False,
        transpose_other: bool = False,
        semiring: str = "sum-product",
        mask: Any = None,
        keep_as: str | None = None,
        replace: bool = False,
        timeout: float | None = None,
    ) -> Any:
        """See `sparsed.Matrix.spgemm`."""
        if isinstance(other, Transposed):
            other, transpose_other = other.T, not transpose_other
        if not isinstance(other, (Matrix, _matrix.Matrix, _transposed.Transposed)):
            async with self.client.temporary(other, dtype=self.type) as uploaded:
                return await self.spgemm(
                    uploaded, transpose=transpose, transpose_other=transpose_other,
                    semiring=semiring, mask=mask, keep_as=keep_as, replace=replace,
                    timeout=timeout,
                )  # fmt: skip
        right = other.sync if isinstance(other, Matrix) else other
        made = await self._run(
            self.sync._spgemm, right, transpose, transpose_other, semiring,
            mask.sync if isinstance(mask, Matrix) else mask, keep_as, replace, timeout,
        )  # fmt: skip
        return Matrix(self.client, made) if isinstance(made, sparsed.Matrix) else made

    async def update_values(
        self,
        values: Any,
        *,
        durable: bool = False,
        if_version: int | None = None,
        timeout: float | None = None,
    ) -> int:
        """See `sparsed.Matrix.update_values`."""
        version: int = await self._run(
            self.sync._update_values, values, durable, if_version, timeout
        )
        return version

    async def download(self, *, timeout: float | None = None) -> Any:
        """See `sparsed.Matrix.download`."""
        return await self.sync._download(timeout).awaited()

    async def prepare(
        self,
        *problems: Any,
        retune: bool = False,
        pipeline: str | None = None,
        kernel: str | None = None,
        explore: bool = False,
        wait: bool = False,
        progress: Listener = None,
        timeout: float | None = None,
        **former: Any,
    ) -> None:
        """See `sparsed.Matrix.prepare`."""
        await in_thread(
            self.sync.prepare, *problems, retune=retune, pipeline=pipeline, kernel=kernel,
            explore=explore, timeout=timeout, **former,
        )  # fmt: skip
        if wait or progress:
            await self.wait_ready(progress=progress, timeout=timeout)

    async def wait_ready(self, *, progress: Listener = None, timeout: float | None = None) -> str:
        """See `sparsed.Matrix.wait_ready`."""
        call, bar = _progress.listener(progress, self.name)
        try:
            return await self.sync._wait_ready(call, timeout).awaited()
        finally:
            if bar is not None:
                bar.close()

    async def info(self) -> Report:
        """See `sparsed.Matrix.info`."""
        return await in_thread(self.sync.info)

    async def show(self) -> Report:
        """See `sparsed.Matrix.show`."""
        return await in_thread(self.sync.show)

    async def explain(self, k: int = 0, device: str | None = None) -> Report:
        """See `sparsed.Matrix.explain`."""
        return await in_thread(self.sync.explain, k, device)

    async def measurements(self) -> list[dict[str, Any]]:
        """See `sparsed.Matrix.measurements`."""
        return await in_thread(self.sync.measurements)

    async def attach(self, gpu: int | None = None) -> None:
        """See `sparsed.Matrix.attach`; for products of `sync` and those on a GPU: awaited ones of
        host memory run on the server."""
        await in_thread(self.sync.attach, gpu)

    async def delete(self) -> None:
        """See `sparsed.Matrix.delete`."""
        await in_thread(self.sync.delete)


class Transposed(TransposedView):
    """A view of S^T of a matrix on a server, for products: `Matrix.T`."""

    _matrix: Matrix

    def __init__(self, matrix: Matrix) -> None:
        self._matrix = matrix

    @property
    def T(self) -> Matrix:
        """S itself."""
        return self._matrix

    async def spmm(self, x: Any, *, transpose: bool = False, **options: Any) -> Any:
        """S^T @ x: `Matrix.spmm`, transposed."""
        return await self._matrix.spmm(x, transpose=not transpose, **options)

    async def spgemm(self, other: Any, *, transpose: bool = False, **options: Any) -> Any:
        """S^T @ other: `Matrix.spgemm`, transposed."""
        return await self._matrix.spgemm(other, transpose=not transpose, **options)
