"""Products of tensors: the C interface, without gradients.

Shapes are the caller's business here, and what does not fit is refused by the library. Values of
nonzeros are nnz x H. The library knows no matrices without columns: of those results are made here.

Streams. A product on a GPU is ordered by PyTorch's current stream of that GPU, as PyTorch's own
kernels are: the library queues it there, and nothing here waits. Results are allocated, and copies
of operands freed, in that same stream, so the caching allocator's rule (memory freed in a stream is
used again by later work of that stream) is all that keeps memory alive while it is in use. Tensors
that come from another stream need `record_stream`, as with any other operator.
"""

from __future__ import annotations

import ctypes
from collections.abc import Callable, Sequence
from typing import Any

import torch
from torch import Tensor

from sparsed import _attachment, _native
from sparsed._errors import InvalidArgument, InvalidType, NotFound
from sparsed.torch._graphs import Graph

_TYPES = {
    torch.float32: _native.F32,
    torch.float64: _native.F64,
    torch.float16: _native.F16,
    torch.bfloat16: _native.BF16,
    torch.int64: _native.I64,
}
_raw_stream: Callable[[int], int] = getattr(torch._C, "_cuda_getCurrentRawStream", lambda _: 0)
_NONE = -1  # SPARSED_NO_VALUE

_Dense = tuple[int, int, int, int, int, int, int]


def _operand(tensor: Tensor) -> tuple[Tensor, _Dense]:
    """The tensor, or a contiguous copy of it that has to outlive the call, and where it lies."""
    rows, cols = tensor.shape
    leading = cols
    if not tensor.is_contiguous():
        leading, step = tensor.stride()
        if rows <= 1 or leading < cols or (step != 1 and cols > 1):
            tensor = tensor.contiguous()
            leading = cols
    if tensor.is_neg():
        tensor, leading = tensor.resolve_neg().contiguous(), cols
    return tensor, _place(tensor, rows, cols, leading)


def _optional(tensor: Tensor | None) -> tuple[Tensor | None, _Dense | None]:
    return (None, None) if tensor is None else _operand(tensor)


def _place(tensor: Tensor, rows: int, cols: int, leading: int) -> _Dense:
    if tensor.is_cpu:
        device = _native.HOST
    elif tensor.is_cuda:
        device = tensor.get_device()
    else:
        raise InvalidArgument(f"tensors are on the CPU or on a CUDA device, not on {tensor.device}")
    try:
        return (tensor.data_ptr(), rows, cols, leading, _TYPES[tensor.dtype], device, 0)
    except KeyError:
        raise InvalidType(f"tensors are f32, f64, f16 or bf16, not {tensor.dtype}") from None


def _result(tensor: Tensor) -> _Dense:
    rows, cols = tensor.shape
    return _place(tensor, rows, cols, cols)


def _made(tensor: Tensor, rows: int, cols: int, like: _Dense) -> _Dense:
    """Where a new tensor is, of the type of what is there and on its device."""
    return (tensor.data_ptr(), rows, cols, cols, like[4], like[5], 0)


def _stream(place: _Dense) -> int:
    """The current one where that is."""
    device = place[5]
    return 0 if device == _native.HOST else _raw_stream(device)


def _run(graph: Graph, start: Callable[..., _native.Product], *arguments: Any) -> None:
    """Runs a product of the graph's matrix, `start(matrix, *arguments)`. A matrix that was made
    here of another one, and that somebody deleted, is made again."""
    if graph.stale:
        graph.refresh()
    matrix = graph.matrix()
    handle = matrix._native_handle()
    try:
        product = start(handle.pointer, *arguments)
        product.run()
    except NotFound:
        if graph.restore is None:
            raise
        graph.restore()
        matrix = graph.matrix()
        handle = matrix._native_handle()
        product = start(handle.pointer, *arguments)
        product.run()
    if not matrix._looked:
        dense = (one for one in arguments if type(one) is tuple and len(one) == 7)
        _attachment.look(matrix, product, next((one[5] for one in dense), _native.HOST))


def spmm(
    graph: Graph,
    x: Tensor,
    values: Tensor | None = None,
    reduce: int = _native.SUM,
    transpose: bool = False,
    unscaled: bool = False,
    alpha: float = 1.0,
    beta: float = 0.0,
    accumulate: Tensor | None = None,
    which: Tensor | None = None,
    out: Tensor | None = None,
) -> Tensor:
    """alpha op(S) x + beta accumulate, or another reduction. values: nnz x H."""
    if graph.stale:
        graph.refresh()
    # S^T is S then, and needs no layouts and plans of its own.
    if graph.symmetric and values is None:
        transpose = False
    rows, width = graph.cols if transpose else graph.rows, x.shape[1]
    if out is None:
        out = x.new_empty((rows, width))
    if width == 0:
        return out
    x, at_x = _operand(x)
    values, at_values = _optional(values)
    accumulate, at_accumulate = _optional(accumulate)
    at_which = None if which is None else _result(which)
    at_out = _made(out, rows, width, at_x)
    _run(
        graph, _native.spmm, at_x, at_out, transpose, reduce, alpha, beta, at_accumulate,
        at_values, unscaled, False, at_which, 0, _stream(at_x),
    )  # fmt: skip
    return out


def sddmm(
    graph: Graph,
    a: Tensor,
    b: Tensor,
    values: Tensor | None = None,
    unscaled: bool = True,
    heads: int = 1,
) -> Tensor:
    """S .* (a b^T), nnz x heads."""
    if a.shape[1] == 0:
        return a.new_zeros((graph.nnz, heads))
    out = a.new_empty((graph.nnz, heads))
    a, at_a = _operand(a)
    b, at_b = _operand(b)
    values, at_values = _optional(values)
    _run(
        graph, _native.sddmm, at_a, at_b, _made(out, graph.nnz, heads, at_a), unscaled, at_values,
        heads, 0, _stream(at_a),
    )  # fmt: skip
    return out


def softmax(graph: Graph, x: Tensor, scale: float) -> Tensor:
    """Over the nonzeros of each row, of scale x."""
    y = x.new_empty(x.shape)
    if x.shape[1] == 0:
        return y
    x, at_x = _operand(x)
    _run(graph, _native.softmax, at_x, _result(y), scale, 0, _stream(at_x))
    return y


def softmax_gradient(graph: Graph, y: Tensor, dy: Tensor, scale: float) -> Tensor:
    dx = y.new_empty(y.shape)
    if y.shape[1] == 0:
        return dx
    y, at_y = _operand(y)
    dy, at_dy = _operand(dy)
    _run(graph, _native.softmax_gradient, at_y, at_dy, _result(dx), scale, 0, _stream(at_y))
    return dx


def scale(graph: Graph, values: Tensor | None, rows: Tensor | None, cols: Tensor | None) -> Tensor:
    """rows[i] values[p] cols[j] for each nonzero p = (i, j); S's own values if there are none."""
    given = [one for one in (values, rows, cols) if one is not None]
    heads = max(one.shape[1] for one in given)
    if values is None and heads > 1:  # S's own are of one head
        values = scale(graph, None, given[0].new_ones((graph.rows, 1)), None).expand(-1, heads)
    y = given[0].new_empty((graph.nnz, heads))
    if heads == 0:
        return y
    values, at_values = _optional(values)
    rows, at_rows = _optional(rows)
    cols, at_cols = _optional(cols)
    at_y = _result(y)
    _run(graph, _native.scale, at_values, at_rows, at_cols, at_y, 0, _stream(at_y))
    return y


def total(graph: Graph, values: Tensor, transpose: bool) -> Tensor:
    """What the values of each row (transpose: column) add up to."""
    y = values.new_empty((graph.cols if transpose else graph.rows, values.shape[1]))
    if values.shape[1] == 0:
        return y
    values, at_values = _operand(values)
    _run(graph, _native.total, at_values, transpose, _result(y), 0, _stream(at_values))
    return y


_NO_GRADIENT = (0, 0)  # the shape of one that is not wanted


def sum_type(dtype: torch.dtype) -> torch.dtype:
    """Of attention's log_sums."""
    return torch.float64 if dtype == torch.float64 else torch.float32


def attention(
    graph: Graph,
    left: Tensor,
    right: Tensor,
    values: Tensor,
    bias: Tensor | None,
    att: Tensor | None,
    scores: int,
    heads: int,
    factor: float,
) -> tuple[Tensor, Tensor]:
    """The result, and its log_sums, M x heads. factor: the scale of DOT, others' slope."""
    out = values.new_empty((graph.rows, values.shape[1]))
    log_sums = values.new_empty((graph.rows, heads), dtype=sum_type(values.dtype))
    left, at_left = _operand(left)
    right, at_right = _operand(right)
    values, at_values = _operand(values)
    bias, at_bias = _optional(bias)
    att, at_att = _optional(att)
    _run(
        graph, _native.attention, at_left, at_right, at_values, at_bias, at_att, _result(out),
        _result(log_sums), scores, heads, factor, 0, _stream(at_values),
    )  # fmt: skip
    return out, log_sums


def attention_gradient(
    graph: Graph,
    dy: Tensor,
    left: Tensor,
    right: Tensor,
    values: Tensor,
    bias: Tensor | None,
    att: Tensor | None,
    out: Tensor,
    log_sums: Tensor,
    scores: int,
    heads: int,
    factor: float,
    wanted: Sequence[bool],
) -> tuple[Tensor, ...]:
    """Of left, right, values, bias and att; empty ones of what is not wanted."""
    made, places = [], []
    for one, want in zip((left, right, values, bias, att), wanted, strict=True):
        made.append(dy.new_empty(one.shape if want and one is not None else _NO_GRADIENT))
        places.append(_result(made[-1]) if want else None)
    dy, at_dy = _operand(dy)
    left, at_left = _operand(left)
    right, at_right = _operand(right)
    values, at_values = _operand(values)
    bias, at_bias = _optional(bias)
    att, at_att = _optional(att)
    out, at_out = _operand(out)
    log_sums, at_sums = _operand(log_sums)
    _run(
        graph, _native.attention_gradient, at_left, at_right, at_values, at_bias, at_att, at_out,
        at_sums, at_dy, tuple(places), scores, heads, factor, 0, _stream(at_dy),
    )  # fmt: skip
    return tuple(made)


# ---- Several steps -------------------------------------------------------------------------------
#
# In host memory they are one chain: one request, whose intermediate values stay with the server. On
# a GPU each is queued by itself, which costs nobody a wait and needs no chain to be put together.


def _as_chain(tensor: Tensor) -> bool:
    return tensor.is_cpu


class _Chain:
    """A chain of one matrix's steps. Keeps operands until it has run."""

    def __init__(self, graph: Graph, matrix: int) -> None:
        self._library = _native.library()
        out = _native.Out()
        self._client = graph.matrix().client._native_handle()
        _native.check(self._library.sparsed_chain_new(self._client.pointer, out.address))
        self._chain = _native.Handle(out.value, self._library.sparsed_chain_free)
        self._matrix = matrix
        self._value = ctypes.c_int32()
        self._at = ctypes.addressof(self._value)
        self._kept: list[object] = []

    def _step(self, function: Callable[..., int | None], *arguments: object) -> int:
        _native.check(function(self._chain.pointer, *arguments, self._at))
        return self._value.value

    def _pack(self, dense: _Dense) -> bytes:
        packed = _native.DENSE.pack(*dense)
        self._kept.append(packed)
        return packed

    def input(self, tensor: Tensor) -> int:
        kept, dense = _operand(tensor)
        self._kept.append(kept)
        return self._step(self._library.sparsed_chain_input, self._pack(dense))

    def spmm(
        self,
        b: int,
        values: int = _NONE,
        transpose: bool = False,
        alpha: float = 1.0,
        beta: float = 0.0,
        accumulate: int = _NONE,
    ) -> int:
        _native.check(
            self._library.sparsed_chain_spmm(
                self._chain.pointer, self._matrix, b, transpose, _native.SUM, alpha, beta,
                accumulate, values, False, False, self._at, None,
            )
        )  # fmt: skip
        return self._value.value

    def output(self, value: int, tensor: Tensor) -> None:
        _native.check(
            self._library.sparsed_chain_output(
                self._chain.pointer, value, self._pack(_result(tensor))
            )
        )

    def product(self, stream: int) -> _native.Product:
        return _native.run_chain(self._chain.pointer, 0, stream)


def _run_chain(graph: Graph, tensor: Tensor, put_together: Callable[[_Chain], None]) -> None:
    chains = []  # until the end of the run

    def start(matrix: int) -> _native.Product:
        chain = _Chain(graph, matrix)
        chains.append(chain)
        put_together(chain)
        return chain.product(_stream(_result(tensor)))

    _run(graph, start)


def propagate(
    graph: Graph, x: Tensor, factors: Sequence[float], shares: Sequence[float], transpose: bool
) -> Tensor:
    """z = x, then z = factor op(S) z + share x for each pair of them."""
    graph.refresh()
    transpose = transpose and not graph.symmetric
    if not _as_chain(x) or x.shape[1] == 0:
        x = x.contiguous()
        z, before = x, None
        for factor, share in zip(factors, shares, strict=True):
            accumulate = x if share else None
            made = spmm(
                graph, z, transpose=transpose, alpha=factor, beta=share, accumulate=accumulate,
                out=before,
            )  # fmt: skip
            before, z = (None if z is x else z), made
        return z
    out = x.new_empty(x.shape)

    def steps(chain: _Chain) -> None:
        z = at_x = chain.input(x)
        for factor, share in zip(factors, shares, strict=True):
            z = chain.spmm(z, _NONE, transpose, factor, share, at_x if share else _NONE)
        chain.output(z, out)

    _run_chain(graph, x, steps)
    return out
