"""Operators with gradients: products, values of nonzeros, propagation.

Gradients are made of the same operators, so they have gradients themselves.

In signatures `graph` is a graph's number; values of nonzeros are nnz or nnz x H.
"""

from __future__ import annotations

from typing import Any

import torch
from torch import Tensor

from sparsed import _native
from sparsed._errors import InvalidArgument
from sparsed.torch import _calls, _checks
from sparsed.torch._graphs import Graph, constant, find
from sparsed.torch._operator import Operator


@constant
def sizes(graph: int) -> tuple[int, int, int]:
    """Rows, columns, nonzeros."""
    known = find(graph)
    return known.rows, known.cols, known.nnz


def _columns(values: Tensor | None) -> Tensor | None:
    return values.unsqueeze(1) if values is not None and values.dim() == 1 else values


def own_values(graph: int, like: Tensor) -> Tensor:
    """S's values, nnz x 1."""
    rows = like.new_ones((sizes(graph)[0], 1))
    own: Tensor = scale(graph, None, rows, None)
    return own


# ---- SpMM ----------------------------------------------------------------------------------------


def _spmm_graph(graph: int, x: Tensor, values: Tensor | None, transpose: bool) -> Graph:
    known = find(graph)
    _checks.dense(known, "x", x, known.rows if transpose else known.cols)
    _checks.values(known, "values", values, x, x.shape[1])
    return known


# Whose sums have room for what their means have.
_WIDE = frozenset((torch.float32, torch.float64))


def _spmm_run(
    graph: int, x: Tensor, values: Tensor | None, mean: bool, transpose: bool, unscaled: bool
) -> Tensor:
    known = _spmm_graph(graph, x, values, transpose)
    if mean and not (x.is_cuda and x.dtype in _WIDE):
        return _calls.spmm(known, x, _columns(values), _native.MEAN, transpose, unscaled)
    values = known.ones(x) if unscaled else _columns(values)
    y = _calls.spmm(known, x, values, transpose=transpose)
    # On a GPU a sum by the matrix's plan and one pass over it are faster than a mean, which has no
    # plan.
    return y.mul_(known.inverse_counts(x, transpose)) if mean else y


def _spmm_fake(
    graph: int, x: Tensor, values: Tensor | None, mean: bool, transpose: bool, unscaled: bool
) -> Tensor:
    known = _spmm_graph(graph, x, values, transpose)
    return x.new_empty((known.cols if transpose else known.rows, x.shape[1]))


def _spmm_save(ctx: Any, inputs: tuple[Any, ...], output: Tensor) -> None:
    ctx.graph, x, values, ctx.mean, ctx.transpose, ctx.unscaled = inputs
    ctx.save_for_backward(x if ctx.needs_input_grad[2] else None, values)


def _spmm_gradient(ctx: Any, dy: Tensor) -> tuple[Any, ...]:
    x, values = ctx.saved_tensors
    graph, transpose = ctx.graph, ctx.transpose
    if ctx.mean:
        dy = dy * inverse_counts(graph, dy.detach(), transpose)
    dx = d_values = None
    if ctx.needs_input_grad[1]:
        dx = spmm(graph, dy, values, False, not transpose, ctx.unscaled)
    if ctx.needs_input_grad[2]:
        heads = 1 if values.dim() == 1 else values.shape[1]
        a, b = (x, dy) if transpose else (dy, x)
        d_values = sddmm(graph, a, b, None, True, heads).view(values.shape)
    return None, dx, d_values, None, None, None


spmm = Operator(
    "spmm(int graph, Tensor x, Tensor? values, bool mean, bool transpose, bool unscaled) -> Tensor",
    _spmm_run,
    _spmm_fake,
    _spmm_save,
    _spmm_gradient,
)


def _best_run(
    graph: int, x: Tensor, values: Tensor | None, least: bool, transpose: bool, unscaled: bool
) -> tuple[Tensor, Tensor]:
    known = _spmm_graph(graph, x, values, transpose)
    shape = (known.cols if transpose else known.rows, x.shape[1])
    which = torch.empty(shape, dtype=torch.int64, device=x.device)
    reduce = _native.MIN if least else _native.MAX
    y = _calls.spmm(known, x, _columns(values), reduce, transpose, unscaled, which=which)
    return y, which


def _best_fake(
    graph: int, x: Tensor, values: Tensor | None, least: bool, transpose: bool, unscaled: bool
) -> tuple[Tensor, Tensor]:
    y = _spmm_fake(graph, x, values, False, transpose, unscaled)
    return y, y.new_empty(y.shape, dtype=torch.int64)


def _best_save(ctx: Any, inputs: tuple[Any, ...], output: tuple[Tensor, Tensor]) -> None:
    ctx.graph, x, values, _, ctx.transpose, ctx.unscaled = inputs
    ctx.sources = x.shape[0]
    ctx.mark_non_differentiable(output[1])
    ctx.save_for_backward(x if ctx.needs_input_grad[2] else None, values, output[1])


def _best_gradient(ctx: Any, dy: Tensor, _: Any) -> tuple[Any, ...]:
    """A greatest or least passes its gradient on to the nonzero that it is of."""
    x, values, which = ctx.saved_tensors
    if sizes(ctx.graph)[2] == 0:  # no nonzero has a part in it
        nothing = None if values is None else torch.zeros_like(values)
        return None, dy.new_zeros((ctx.sources, dy.shape[1])), nothing, None, None, None
    found = which >= 0
    position = which.clamp(min=0)
    dy = torch.where(found, dy, 0)
    source = end_of(ctx.graph, position, not ctx.transpose)
    dx = d_values = None
    if ctx.needs_input_grad[1]:
        if ctx.unscaled:
            scaled = dy
        else:
            factors = own_values(ctx.graph, dy) if values is None else values
            scaled = dy * factors.reshape(-1)[position]
        dx = dy.new_zeros((ctx.sources, dy.shape[1])).scatter_add(0, source, scaled)
    if ctx.needs_input_grad[2]:
        share = (dy * x.gather(0, source)).reshape(-1)
        d_values = values.new_zeros(values.numel()).scatter_add(0, position.reshape(-1), share)
        d_values = d_values.view(values.shape)
    return None, dx, d_values, None, None, None


spmm_best = Operator(
    "spmm_best(int graph, Tensor x, Tensor? values, bool least, bool transpose, bool unscaled)"
    " -> (Tensor, Tensor)",
    _best_run,
    _best_fake,
    _best_save,
    _best_gradient,
)


def _end_of_run(graph: int, position: Tensor, column: bool) -> Tensor:
    return find(graph).ends(position.device)[1 if column else 0][position].long()


end_of = Operator(
    "end_of(int graph, Tensor position, bool column) -> Tensor",
    _end_of_run,
    lambda graph, position, column: torch.empty_like(position),
)
inverse_counts = Operator(
    "inverse_counts(int graph, Tensor like, bool transpose) -> Tensor",
    # Not what is kept: PyTorch wants an operator's results to be its caller's own.
    lambda graph, like, transpose: find(graph).inverse_counts(like, transpose).clone(),
    lambda graph, like, transpose: like.new_empty(
        (find(graph).cols if transpose else find(graph).rows, 1)
    ),
)


edge_index = Operator(
    "edge_index(int graph, Tensor like) -> Tensor",
    lambda graph, like: torch.stack(find(graph).ends(like.device)[::-1]).long(),
    lambda graph, like: like.new_empty((2, find(graph).nnz), dtype=torch.int64),
)


# ---- SDDMM ---------------------------------------------------------------------------------------


def _sddmm_graph(graph: int, a: Tensor, b: Tensor, values: Tensor | None, heads: int) -> Graph:
    known = find(graph)
    _checks.dense(known, "a", a, known.rows)
    _checks.dense(known, "b", b, known.cols)
    _checks.same("a", a, "b", b)
    _checks.heads("a", a.shape[1], heads)
    _checks.values(known, "values", values, a, heads)
    return known


def _sddmm_run(
    graph: int, a: Tensor, b: Tensor, values: Tensor | None, unscaled: bool, heads: int
) -> Tensor:
    known = _sddmm_graph(graph, a, b, values, heads)
    return _calls.sddmm(known, a, b, _columns(values), unscaled, heads)


def _sddmm_fake(
    graph: int, a: Tensor, b: Tensor, values: Tensor | None, unscaled: bool, heads: int
) -> Tensor:
    return a.new_empty((_sddmm_graph(graph, a, b, values, heads).nnz, heads))


def _sddmm_save(ctx: Any, inputs: tuple[Any, ...], output: Tensor) -> None:
    ctx.graph, a, b, values, ctx.unscaled, ctx.heads = inputs
    ctx.save_for_backward(a, b, values)


def _sddmm_gradient(ctx: Any, ds: Tensor) -> tuple[Any, ...]:
    a, b, values = ctx.saved_tensors
    graph = ctx.graph
    da = db = d_values = None
    if ctx.needs_input_grad[1] or ctx.needs_input_grad[2]:
        weights = ds
        if not ctx.unscaled:
            factors = own_values(graph, ds) if values is None else values
            weights = ds * (factors.unsqueeze(1) if factors.dim() == 1 else factors)
        if ctx.needs_input_grad[1]:
            da = spmm(graph, b, weights, False, False, False)
        if ctx.needs_input_grad[2]:
            db = spmm(graph, a, weights, False, True, False)
    if ctx.needs_input_grad[3]:
        d_values = ds * sddmm(graph, a, b, None, True, ctx.heads)
        if values.dim() == 1 or values.shape[1] == 1:
            d_values = d_values.sum(1)
        d_values = d_values.view(values.shape)
    return None, da, db, d_values, None, None


sddmm = Operator(
    "sddmm(int graph, Tensor a, Tensor b, Tensor? values, bool unscaled, int heads) -> Tensor",
    _sddmm_run,
    _sddmm_fake,
    _sddmm_save,
    _sddmm_gradient,
)


def edge_add_graph(graph: int, left: Tensor, right: Tensor) -> Graph:
    """Checks tensors of M x H and N x H."""
    known = find(graph)
    _checks.dense(known, "left", left, known.rows)
    _checks.dense(known, "right", right, known.cols)
    _checks.same("left", left, "right", right)
    return known


def _edge_add_run(graph: int, left: Tensor, right: Tensor) -> Tensor:
    known = edge_add_graph(graph, left, right)
    # [l, 1] [1, r]^T is l + r: an SDDMM two columns wide for each head.
    heads = left.shape[1]
    a = torch.stack((left, torch.ones_like(left)), 2).flatten(1)
    b = torch.stack((torch.ones_like(right), right), 2).flatten(1)
    return _calls.sddmm(known, a, b, heads=heads)


def _edge_add_save(ctx: Any, inputs: tuple[Any, ...], output: Tensor) -> None:
    ctx.graph = inputs[0]


def _edge_add_gradient(ctx: Any, ds: Tensor) -> tuple[Any, ...]:
    left = total(ctx.graph, ds, False) if ctx.needs_input_grad[1] else None
    right = total(ctx.graph, ds, True) if ctx.needs_input_grad[2] else None
    return None, left, right


edge_add = Operator(
    "edge_add(int graph, Tensor left, Tensor right) -> Tensor",
    _edge_add_run,
    lambda graph, left, right: left.new_empty(
        (edge_add_graph(graph, left, right).nnz, left.shape[1])
    ),
    _edge_add_save,
    _edge_add_gradient,
)

# ---- Values of nonzeros: nnz x H -----------------------------------------------------------------


def _values_graph(graph: int, **tensors: Tensor) -> Graph:
    """Checks tensors of nnz x H."""
    known = find(graph)
    (first_name, first), *others = tensors.items()
    _checks.dense(known, first_name, first, known.nnz)
    for name, tensor in others:
        _checks.dense(known, name, tensor, known.nnz)
        _checks.same(name, tensor, first_name, first)
    return known


def _softmax_save(ctx: Any, inputs: tuple[Any, ...], output: Tensor) -> None:
    ctx.graph, _, ctx.scale = inputs
    ctx.save_for_backward(output)


def _softmax_gradient(ctx: Any, dy: Tensor) -> tuple[Any, ...]:
    (y,) = ctx.saved_tensors
    return None, softmax_gradient(ctx.graph, y, dy, ctx.scale), None


softmax = Operator(
    "softmax(int graph, Tensor x, float scale) -> Tensor",
    lambda graph, x, scale: _calls.softmax(_values_graph(graph, x=x), x, scale),
    lambda graph, x, scale: x.new_empty((_values_graph(graph, x=x).nnz, x.shape[1])),
    _softmax_save,
    _softmax_gradient,
)


def _softmax_gradient_save(ctx: Any, inputs: tuple[Any, ...], output: Tensor) -> None:
    ctx.graph, y, dy, ctx.scale = inputs
    ctx.save_for_backward(y, dy)


def _softmax_gradient_gradient(ctx: Any, g: Tensor) -> tuple[Any, ...]:
    """dx = scale y (dy - t), t the sum over the row of y dy."""
    y, dy = ctx.saved_tensors
    graph = ctx.graph
    d_y = d_dy = None
    if ctx.needs_input_grad[1]:
        t = total(graph, y * dy, False)
        u = total(graph, y * g, False)
        d_y = ctx.scale * (g * dy - scale(graph, g, t, None) - scale(graph, dy, u, None))
    if ctx.needs_input_grad[2]:
        d_dy = softmax_gradient(graph, y, g, ctx.scale)
    return None, d_y, d_dy, None


softmax_gradient = Operator(
    "softmax_gradient(int graph, Tensor y, Tensor dy, float scale) -> Tensor",
    lambda graph, y, dy, scale: _calls.softmax_gradient(
        _values_graph(graph, y=y, dy=dy), y, dy, scale
    ),
    lambda graph, y, dy, scale: y.new_empty(y.shape),
    _softmax_gradient_save,
    _softmax_gradient_gradient,
)


def _scale_graph(
    graph: int, values: Tensor | None, rows: Tensor | None, cols: Tensor | None
) -> Graph:
    known = find(graph)
    sizes = (("values", values, known.nnz), ("rows", rows, known.rows), ("cols", cols, known.cols))
    given = [(name, tensor, size) for name, tensor, size in sizes if tensor is not None]
    if not given:
        raise InvalidArgument("scale needs values, rows or cols")
    heads = max(tensor.shape[-1] for _, tensor, _ in given)
    for name, tensor, size in given:
        _checks.dense(known, name, tensor, size)
        _checks.on_one_device(name, tensor, given[0][0], given[0][1])
        if tensor.shape[1] not in (1, heads) or (name == "values" and tensor.shape[1] != heads):
            raise InvalidArgument(f"{name} has {tensor.shape[1]} columns, expected {heads}")
    return known


def _scale_run(
    graph: int, values: Tensor | None, rows: Tensor | None, cols: Tensor | None
) -> Tensor:
    return _calls.scale(_scale_graph(graph, values, rows, cols), values, rows, cols)


def _scale_fake(
    graph: int, values: Tensor | None, rows: Tensor | None, cols: Tensor | None
) -> Tensor:
    known = _scale_graph(graph, values, rows, cols)
    given = [one for one in (values, rows, cols) if one is not None]
    return given[0].new_empty((known.nnz, max(one.shape[1] for one in given)))


def _scale_save(ctx: Any, inputs: tuple[Any, ...], output: Tensor) -> None:
    ctx.graph = inputs[0]
    ctx.save_for_backward(*inputs[1:])


def _scale_gradient(ctx: Any, dy: Tensor) -> tuple[Any, ...]:
    values, rows, cols = ctx.saved_tensors
    graph = ctx.graph

    def narrow(gradient: Tensor, like: Tensor) -> Tensor:
        return gradient.sum(1, keepdim=True) if like.shape[1] < gradient.shape[1] else gradient

    d_values = d_rows = d_cols = None
    if ctx.needs_input_grad[1]:
        both = dy if rows is None and cols is None else scale(graph, dy, rows, cols)
        d_values = narrow(both, values)
    if ctx.needs_input_grad[2] or ctx.needs_input_grad[3]:
        product = dy * (own_values(graph, dy) if values is None else values)
        if ctx.needs_input_grad[2]:
            by_rows = product if cols is None else scale(graph, product, None, cols)
            d_rows = narrow(total(graph, by_rows, False), rows)
        if ctx.needs_input_grad[3]:
            by_cols = product if rows is None else scale(graph, product, rows, None)
            d_cols = narrow(total(graph, by_cols, True), cols)
    return None, d_values, d_rows, d_cols


scale = Operator(
    "scale(int graph, Tensor? values, Tensor? rows, Tensor? cols) -> Tensor",
    _scale_run,
    _scale_fake,
    _scale_save,
    _scale_gradient,
)


def _total_save(ctx: Any, inputs: tuple[Any, ...], output: Tensor) -> None:
    ctx.graph, _, ctx.transpose = inputs


def _total_gradient(ctx: Any, dy: Tensor) -> tuple[Any, ...]:
    rows, cols = (None, dy) if ctx.transpose else (dy, None)
    ones = dy.new_ones((sizes(ctx.graph)[2], dy.shape[1]))
    return None, scale(ctx.graph, ones, rows, cols), None


def _total_fake(graph: int, values: Tensor, transpose: bool) -> Tensor:
    known = _values_graph(graph, values=values)
    return values.new_empty((known.cols if transpose else known.rows, values.shape[1]))


total = Operator(
    "total(int graph, Tensor values, bool transpose) -> Tensor",
    lambda graph, values, transpose: _calls.total(
        _values_graph(graph, values=values), values, transpose
    ),
    _total_fake,
    _total_save,
    _total_gradient,
)

# ---- Propagation ---------------------------------------------------------------------------------


def _propagate_save(ctx: Any, inputs: tuple[Any, ...], output: Tensor) -> None:
    ctx.graph, _, ctx.factors, ctx.shares, ctx.transpose = inputs


def _propagate_gradient(ctx: Any, dy: Tensor) -> tuple[Any, ...]:
    # The result is a polynomial of S times x, and the same polynomial of S^T is its transpose.
    dx = propagate(ctx.graph, dy, ctx.factors, ctx.shares, not ctx.transpose)
    return None, dx, None, None, None


def _propagate_graph(graph: int, x: Tensor) -> Graph:
    known = find(graph)
    if known.rows != known.cols:
        raise InvalidArgument(
            f"a {known.rows} x {known.cols} matrix cannot be multiplied by its own result"
        )
    _checks.dense(known, "x", x, known.cols)
    return known


propagate = Operator(
    "propagate(int graph, Tensor x, float[] factors, float[] shares, bool transpose) -> Tensor",
    lambda graph, x, factors, shares, transpose: _calls.propagate(
        _propagate_graph(graph, x), x, factors, shares, transpose
    ),
    lambda graph, x, factors, shares, transpose: x.new_empty(
        (_propagate_graph(graph, x).rows, x.shape[1])
    ),
    _propagate_save,
    _propagate_gradient,
)
