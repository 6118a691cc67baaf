"""Operators of attention, with gradients. See _operators.py."""

from __future__ import annotations

from typing import Any

import torch
from torch import Tensor

from sparsed._errors import InvalidArgument, Unimplemented
from sparsed.torch import _calls, _checks, _gatv2, _operators
from sparsed.torch._graphs import Graph, find
from sparsed.torch._operator import Operator


def _attention_graph(graph: int, q: Tensor, k: Tensor, v: Tensor, heads: int) -> Graph:
    known = find(graph)
    _checks.dense(known, "q", q, known.rows)
    _checks.dense(known, "k", k, known.cols)
    _checks.dense(known, "v", v, known.cols)
    _checks.same("q", q, "k", k)
    _checks.on_one_device("v", v, "q", q)
    _checks.heads("q", q.shape[1], heads)
    _checks.heads("v", v.shape[1], heads)
    return known


def _attention_run(
    graph: int, q: Tensor, k: Tensor, v: Tensor, heads: int, scale: float
) -> tuple[Tensor, Tensor]:
    return _calls.attention(_attention_graph(graph, q, k, v, heads), q, k, v, heads, scale)


def _attention_fake(
    graph: int, q: Tensor, k: Tensor, v: Tensor, heads: int, scale: float
) -> tuple[Tensor, Tensor]:
    known = _attention_graph(graph, q, k, v, heads)
    return v.new_empty((known.rows, v.shape[1])), q.new_empty((known.nnz, heads))


def _attention_save(ctx: Any, inputs: tuple[Any, ...], output: tuple[Tensor, Tensor]) -> None:
    ctx.graph, q, k, v, _, ctx.scale = inputs
    ctx.mark_non_differentiable(output[1])
    ctx.save_for_backward(q, k, v, output[1])


def _attention_gradient(ctx: Any, dy: Tensor, _: Any) -> tuple[Any, ...]:
    dq, dk, dv = attention_gradient(ctx.graph, dy, *ctx.saved_tensors, ctx.scale)
    return None, dq, dk, dv, None, None


attention = Operator(
    "attention(int graph, Tensor q, Tensor k, Tensor v, int heads, float scale)"
    " -> (Tensor, Tensor)",
    _attention_run,
    _attention_fake,
    _attention_save,
    _attention_gradient,
)


def _attention_gradient_save(ctx: Any, inputs: tuple[Any, ...], output: Any) -> None:
    ctx.graph, dy, q, k, v, weights, ctx.scale = inputs
    ctx.save_for_backward(dy, q, k, v, weights)


def _attention_gradient_gradient(ctx: Any, *gradients: Tensor) -> tuple[Any, ...]:
    """Of the same products one by one, weights made anew from q and k."""
    dy, q, k, v, weights = ctx.saved_tensors
    graph, heads = ctx.graph, weights.shape[1]
    with torch.enable_grad():
        inputs = [one.detach().requires_grad_() for one in (dy, q, k, v)]
        dy, q, k, v = inputs
        p = _operators.softmax(graph, _operators.sddmm(graph, q, k, None, True, heads), ctx.scale)
        dv = _operators.spmm(graph, dy, p, False, True, False)
        dp = _operators.sddmm(graph, dy, v, None, True, heads)
        ds = _operators.softmax_gradient(graph, p, dp, ctx.scale)
        dq = _operators.spmm(graph, k, ds, False, False, False)
        dk = _operators.spmm(graph, q, ds, False, True, False)
    found = torch.autograd.grad((dq, dk, dv), inputs, gradients, allow_unused=True)
    return None, *found, None, None


attention_gradient = Operator(
    "attention_gradient(int graph, Tensor dy, Tensor q, Tensor k, Tensor v, Tensor weights,"
    " float scale) -> (Tensor, Tensor, Tensor)",
    lambda graph, dy, q, k, v, weights, scale: _calls.attention_gradient(
        find(graph), dy, q, k, v, weights, scale
    ),
    lambda graph, dy, q, k, v, weights, scale: (
        q.new_empty(q.shape),
        k.new_empty(k.shape),
        v.new_empty(v.shape),
    ),
    _attention_gradient_save,
    _attention_gradient_gradient,
)


def _gatv2_graph(graph: int, left: Tensor, right: Tensor, att: Tensor) -> Graph:
    known = _operators.edge_add_graph(graph, left, right)
    if att.dim() != 2 or att.numel() != left.shape[1] or att.dtype != left.dtype:
        raise InvalidArgument(
            f"att is {tuple(att.shape)} of {att.dtype}, expected H x d of {left.dtype} with "
            f"H d = {left.shape[1]}"
        )
    _checks.on_one_device("att", att, "left", left)
    return known


def _gatv2_save(ctx: Any, inputs: tuple[Any, ...], output: Tensor) -> None:
    ctx.graph, left, right, att, ctx.slope = inputs
    ctx.save_for_backward(left, right, att)


def _gatv2_gradient(ctx: Any, ds: Tensor) -> tuple[Any, ...]:
    d_left, d_right, d_att = gatv2_gradient(ctx.graph, ds, *ctx.saved_tensors, ctx.slope)
    return None, d_left, d_right, d_att, None


gatv2 = Operator(
    "gatv2(int graph, Tensor left, Tensor right, Tensor att, float slope) -> Tensor",
    lambda graph, left, right, att, slope: _gatv2.scores(
        _gatv2_graph(graph, left, right, att), left, right, att, slope
    ),
    lambda graph, left, right, att, slope: left.new_empty(
        (_gatv2_graph(graph, left, right, att).nnz, att.shape[0])
    ),
    _gatv2_save,
    _gatv2_gradient,
)


def _gatv2_gradient_gradient(ctx: Any, *_: Tensor) -> tuple[Any, ...]:
    raise Unimplemented("GATv2's scores have a first gradient only")


gatv2_gradient = Operator(
    "gatv2_gradient(int graph, Tensor ds, Tensor left, Tensor right, Tensor att, float slope)"
    " -> (Tensor, Tensor, Tensor)",
    lambda graph, *rest: _gatv2.scores_gradient(find(graph), *rest),
    lambda graph, ds, left, right, att, slope: (
        left.new_empty(left.shape),
        right.new_empty(right.shape),
        att.new_empty(att.shape),
    ),
    lambda ctx, inputs, output: None,
    _gatv2_gradient_gradient,
)
