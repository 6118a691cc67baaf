"""Operators of attention, with gradients. See _operators.py."""

from __future__ import annotations

from typing import Any

import torch
from torch import Tensor

from sparsed import _native
from sparsed._errors import InvalidArgument, Unimplemented
from sparsed.torch import _calls, _checks, _gatv2, _operators
from sparsed.torch._graphs import Graph, find
from sparsed.torch._operator import Operator


def _graph(
    graph: int,
    left: Tensor,
    right: Tensor,
    values: Tensor,
    bias: Tensor | None,
    att: Tensor | None,
    scores: int,
    heads: int,
) -> Graph:
    known = find(graph)
    first, second, third = _NAMES[scores]
    _checks.dense(known, first, left, known.rows)
    _checks.dense(known, second, right, known.cols)
    _checks.dense(known, third, values, known.cols)
    _checks.same(first, left, second, right)
    _checks.on_one_device(third, values, first, left)
    _checks.heads(first, left.shape[1], heads)
    _checks.heads(third, values.shape[1], heads)
    for what, one in ((first, left), (third, values)):
        if one.shape[1] == 0:
            raise InvalidArgument(f"{what} has no columns, expected one for each head or more")
    if bias is not None:
        _checks.dense(known, "bias", bias, known.nnz)
        _checks.on_one_device("bias", bias, first, left)
        if bias.shape[1] not in (1, heads):
            raise InvalidArgument(
                f"bias has {bias.shape[1]} columns, expected 1 or one for each of {heads} heads"
            )
    if att is not None:
        _att(att.view(heads, -1) if att.numel() % heads == 0 else att, left)
    return known


def _att(att: Tensor, left: Tensor) -> None:
    """att is H x d of GATv2's scores, left M x (H d)."""
    if att.dim() != 2 or att.numel() != left.shape[1] or att.dtype != left.dtype:
        raise InvalidArgument(
            f"att is {tuple(att.shape)} of {att.dtype}, expected H x d of {left.dtype} with "
            f"H d = {left.shape[1]}"
        )
    _checks.on_one_device("att", att, "left", left)


# What people call the operands, by the kind of scores.
_NAMES = {
    _native.DOT: ("q", "k", "v"),
    _native.ADD: ("left", "right", "x"),
    _native.GATV2: ("left", "right", "x"),
}


def _fake(
    graph: int,
    left: Tensor,
    right: Tensor,
    values: Tensor,
    bias: Tensor | None,
    att: Tensor | None,
    scores: int,
    heads: int,
    factor: float,
) -> tuple[Tensor, Tensor]:
    rows = _graph(graph, left, right, values, bias, att, scores, heads).rows
    log_sums = values.new_empty((rows, heads), dtype=_calls.sum_type(values.dtype))
    return values.new_empty((rows, values.shape[1])), log_sums


def _save(ctx: Any, inputs: tuple[Any, ...], output: tuple[Tensor, Tensor]) -> None:
    ctx.graph, left, right, values, bias, att, *ctx.how = inputs
    ctx.mark_non_differentiable(output[1])
    ctx.set_materialize_grads(False)
    ctx.save_for_backward(left, right, values, bias, att, *output)


def _gradient(ctx: Any, dy: Tensor | None, _: Any) -> tuple[Any, ...]:
    if dy is None:
        return (None,) * 9
    wanted = list(ctx.needs_input_grad[1:6])
    made = attention_gradient(ctx.graph, dy, *ctx.saved_tensors, *ctx.how, wanted)
    gradients = (one if want else None for one, want in zip(made, wanted, strict=True))
    return None, *gradients, None, None, None


# Row i of the result, part h: the sum over row i's nonzeros (i, j) of softmax_j(score) times part h
# of row j of `values`. Scores are factor * left_i . right_j (DOT), or LeakyReLU(left_i + right_j)
# with that slope (ADD), or the sum over part h of att, 1 x (H d), times LeakyReLU(left_i + right_j)
# (GATV2), plus the bias, nnz x 1 or nnz x H. The second result, M x H, is what the
# gradient needs of the forward: nothing of nnz x H is kept.
attention = Operator(
    "attention(int graph, Tensor left, Tensor right, Tensor values, Tensor? bias, Tensor? att,"
    " int scores, int heads, float factor) -> (Tensor, Tensor)",
    lambda graph, *rest: _calls.attention(_graph(graph, *rest[:-1]), *rest),
    _fake,
    _save,
    _gradient,
)


def _gradient_save(ctx: Any, inputs: tuple[Any, ...], output: Any) -> None:
    ctx.graph, dy, left, right, values, bias, _, _, _, *ctx.how, ctx.wanted = inputs
    ctx.set_materialize_grads(False)
    ctx.save_for_backward(dy, left, right, values, bias)


def _unfused_gradient(
    graph: int,
    dy: Tensor,
    left: Tensor,
    right: Tensor,
    values: Tensor,
    bias: Tensor | None,
    scores: int,
    heads: int,
    factor: float,
) -> tuple[Tensor, ...]:
    """The same gradients by operators that are differentiable, weights made anew."""
    if scores == _native.DOT:
        slope: Tensor | float = factor
        raw = _operators.sddmm(graph, left, right, None, True, heads)
    else:
        raw = _operators.edge_add(graph, left, right)
        slope = torch.where(raw.detach() > 0, 1.0, factor).to(raw.dtype)
    s = raw * slope if bias is None else raw * slope + bias
    p = _operators.softmax(graph, s, 1.0)
    d_values = _operators.spmm(graph, dy, p, False, True, False)
    d_p = _operators.sddmm(graph, dy, values, None, True, heads)
    d_s = _operators.softmax_gradient(graph, p, d_p, 1.0)
    d_bias = d_s if bias is None or bias.shape[1] == heads else d_s.sum(1, keepdim=True)
    d_raw = d_s * slope
    if scores == _native.DOT:
        d_left = _operators.spmm(graph, right, d_raw, False, False, False)
        d_right = _operators.spmm(graph, left, d_raw, False, True, False)
    else:
        d_left = _operators.total(graph, d_raw, False)
        d_right = _operators.total(graph, d_raw, True)
    return d_left, d_right, d_values, d_bias


def _gradient_gradient(ctx: Any, *gradients: Tensor | None) -> tuple[Any, ...]:
    if all(one is None for one in gradients):
        return (None,) * 13
    if ctx.how[0] == _native.GATV2:
        raise Unimplemented(_FIRST_ONLY)
    with torch.enable_grad():
        inputs: list[Any] = [
            None if one is None else one.detach().requires_grad_() for one in ctx.saved_tensors
        ]
        made = _unfused_gradient(ctx.graph, *inputs, *ctx.how)
    pairs = [
        (one, of)
        for one, of, want in zip(made, gradients[:4], ctx.wanted[:4], strict=True)
        if want and of is not None
    ]
    given = [one for one in inputs if one is not None]
    found = iter(
        torch.autograd.grad(
            [one for one, _ in pairs], given, [of for _, of in pairs], allow_unused=True
        )
    )
    second = [None if one is None else next(found) for one in inputs]
    if torch.is_grad_enabled():  # somebody means to differentiate these
        second = _last_derivatives(second, [*ctx.saved_tensors, *gradients])
    # Of the forward's results, none: they are functions of the others.
    return None, *second, None, None, None, None, None, None, None


class _Last(torch.autograd.Function):
    """Results that have no gradients, though they depend on tensors that want some."""

    @staticmethod
    def forward(ctx: Any, count: int, *tensors: Tensor) -> tuple[Tensor, ...]:
        """The first `count` of the tensors are the results, the others what they depend on."""
        return tuple(one.clone() for one in tensors[:count])

    @staticmethod
    def backward(ctx: Any, *gradients: Tensor) -> Any:
        raise Unimplemented("attention has a first and a second gradient, and no third one")


def _last_derivatives(
    results: list[Tensor | None], sources: list[Tensor | None]
) -> list[Tensor | None]:
    there = [one for one in results if one is not None]
    of = [one for one in sources if one is not None]
    made = iter(_Last.apply(len(there), *there, *of))  # type: ignore[no-untyped-call]
    return [None if one is None else next(made) for one in results]


def _gradient_fake(graph: int, dy: Tensor, *rest: Any) -> tuple[Tensor, ...]:
    left, right, values, bias, att, *_, wanted = rest
    return tuple(
        dy.new_empty(one.shape if want else (0, 0))
        for one, want in zip((left, right, values, bias, att), wanted, strict=True)
    )


attention_gradient = Operator(
    "attention_gradient(int graph, Tensor dy, Tensor left, Tensor right, Tensor values,"
    " Tensor? bias, Tensor? att, Tensor result, Tensor log_sums, int scores, int heads,"
    " float factor, bool[] wanted) -> (Tensor, Tensor, Tensor, Tensor, Tensor)",
    lambda graph, *rest: _calls.attention_gradient(find(graph), *rest),
    _gradient_fake,
    _gradient_save,
    _gradient_gradient,
)


def _gatv2_graph(graph: int, left: Tensor, right: Tensor, att: Tensor) -> Graph:
    known = _operators.edge_add_graph(graph, left, right)
    _att(att, left)
    return known


def _gatv2_save(ctx: Any, inputs: tuple[Any, ...], output: Tensor) -> None:
    ctx.graph, left, right, att, ctx.slope = inputs
    ctx.save_for_backward(left, right, att)


def _gatv2_gradient(ctx: Any, ds: Tensor) -> tuple[Any, ...]:
    d_left, d_right, d_att = gatv2_scores_gradient(ctx.graph, ds, *ctx.saved_tensors, ctx.slope)
    return None, d_left, d_right, d_att, None


# The scores alone, nnz x H, of which attention is made where its weights are kept: see _gatv2.
gatv2_scores = Operator(
    "gatv2_scores(int graph, Tensor left, Tensor right, Tensor att, float slope) -> Tensor",
    lambda graph, left, right, att, slope: _gatv2.scores(
        _gatv2_graph(graph, left, right, att), left, right, att, slope
    ),
    lambda graph, left, right, att, slope: left.new_empty(
        (_gatv2_graph(graph, left, right, att).nnz, att.shape[0])
    ),
    _gatv2_save,
    _gatv2_gradient,
)


_FIRST_ONLY = "GATv2's scores have a first gradient only"


def _gatv2_gradient_gradient(ctx: Any, *_: Tensor) -> tuple[Any, ...]:
    raise Unimplemented(_FIRST_ONLY)


gatv2_scores_gradient = Operator(
    "gatv2_scores_gradient(int graph, Tensor ds, Tensor left, Tensor right, Tensor att, "
    "float slope) -> (Tensor, Tensor, Tensor)",
    lambda graph, *rest: _gatv2.scores_gradient(find(graph), *rest),
    lambda graph, ds, left, right, att, slope: (
        left.new_empty(left.shape),
        right.new_empty(right.shape),
        att.new_empty(att.shape),
    ),
    lambda ctx, inputs, output: None,
    _gatv2_gradient_gradient,
)
