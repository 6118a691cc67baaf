"""Operands and results by way of shared memory, where a product does not run in this process and
the server is on this machine: a copy costs less than the way over the connection. So large ones go,
and all of a client that asked for a ring, which takes no others."""

from __future__ import annotations

from typing import TYPE_CHECKING

import numpy as np

from sparsed import _csr, _native, _operands, _types
from sparsed._operands import HELD, NUMPY, OTHER, TORCH, Operand, SharedOperand

if TYPE_CHECKING:
    from sparsed._client import Client

# Of all operands and results of a product together, where it is worth it without a ring.
_LEAST_BYTES = 1 << 18


class Staging:
    """How one matrix's products travel, as far as that is known."""

    __slots__ = ("_attached", "_client", "_least", "_shares")

    def __init__(self, client: Client) -> None:
        self._client = client
        self._least = 0 if client._options["ring"] else _LEAST_BYTES
        # Whether the server shares memory with this process; None: nobody had to know yet.
        self._shares: bool | None = None
        # Whether the last product that blocked ran here.
        self._attached = False

    def wanted(self, operands: list[Operand], result: int, awaited: bool) -> bool:
        """Whether the operands, with a result of so many elements, are to be copied. Products that
        are awaited never run here."""
        if not self._shares or (self._attached and not awaited):
            return False
        elements = result + sum(one.rows * one.cols for one in operands)
        return elements * _native.ELEMENT_BYTES[operands[0].dense[4]] >= self._least and all(
            one.dense[5] == _native.HOST and one.kind != HELD for one in operands
        )

    def learn(self, product: _native.Product, operand: Operand, awaited: bool) -> None:
        """Looks how a product's operands travelled."""
        if operand.rows * operand.cols * 4 < self._least or operand.kind == HELD:
            return
        transport = product.transport
        if not awaited:
            self._attached = transport == _native.TRANSPORT_ATTACHED
        if self._shares is None and transport == _native.TRANSPORT_STREAM:
            self._shares = self._client._shares_memory()

    def place(
        self, model: Operand, destination: Operand | None, rows: int, cols: int, type_: int,
        ndim: int,
    ) -> tuple[Operand, Operand | None]:  # fmt: skip
        """Where in shared memory a product writes its result, and where that is to be copied
        afterwards. Small results are copied to memory of their own: a block of shared memory for
        each that somebody keeps would be too many for the server."""
        if destination is not None and (
            destination.kind == HELD or destination.device >= 0 or self._shared(destination)
        ):
            return destination, None
        if destination is None and rows * cols * _native.ELEMENT_BYTES[type_] < _LEAST_BYTES:
            destination = _operands.empty_like(model, rows, cols, type_, ndim)
        return self._empty(model, rows, cols, type_, ndim), destination

    def copied(self, source: Operand) -> Operand:
        """`source` in shared memory; itself if it is there."""
        if self._shared(source):
            return source
        client = self._client
        data, rows, cols, leading, type_, device, _ = source.dense
        bits = np.dtype(f"u{_native.ELEMENT_BYTES[type_]}")
        copy = client._pool.array(client._native_handle().pointer, (rows, cols), bits)
        np.copyto(copy, _csr.strided_at(data, rows, cols, leading, bits))
        dense = (_operands._data(copy), rows, cols, cols, type_, device, 0)
        shared = SharedOperand(dense, source.array, source.kind, source.ndim, source.source)
        shared.copy = copy
        return shared

    def _shared(self, operand: Operand) -> bool:
        """Whether it is in shared memory."""
        return self._client._pool.contains(operand.dense[0])

    def _empty(self, model: Operand, rows: int, cols: int, type_: int, ndim: int) -> Operand:
        """A new array of the kind of `model`, in shared memory."""
        client = self._client
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


def copy_back(result: Operand, destination: Operand) -> None:
    """From shared memory to where the caller wants it."""
    data, rows, cols, leading, type_, _, _ = destination.dense
    bits = np.dtype(f"u{_native.ELEMENT_BYTES[type_]}")
    source = _csr.strided_at(result.dense[0], rows, cols, cols, bits)
    np.copyto(_csr.strided_at(data, rows, cols, leading, bits), source)
