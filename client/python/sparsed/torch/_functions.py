"""The functions that people call: matrices and tensors in, tensors out."""

from __future__ import annotations

import math
from collections.abc import Sequence
from typing import Any

import torch
from torch import Tensor

from sparsed import Matrix, _native
from sparsed._errors import InvalidArgument, InvalidType
from sparsed.torch import _attention, _operators
from sparsed.torch._graphs import constant, find, number_of

_is_compiling = torch.compiler.is_compiling
_any_autocast = torch._C._is_any_autocast_enabled


@constant
def _dtype_of(number: int) -> torch.dtype:
    return find(number).dtype


def _prepare(number: int, what: str, x: Tensor) -> Tensor:
    """Inside autocast, `x` in the graph's own type."""
    if not isinstance(x, Tensor):
        raise InvalidType(
            f"{what} is a {type(x).__name__}, expected a torch.Tensor (the methods of "
            "sparsed.Matrix take arrays of other frameworks)"
        )
    if _autocasts(x) and x.is_floating_point():
        return x.to(_dtype_of(number))
    return x


def _given(y: Tensor) -> Tensor:
    """Inside autocast, a product's result `y` in autocast's type, as torch.matmul gives it: f64
    stays."""
    if _autocasts(y) and y.dtype != torch.float64:
        return y.to(torch.get_autocast_dtype(y.device.type))
    return y


def _autocasts(x: Tensor) -> bool:
    # The first question is the cheaper one, and not for programs that are traced.
    if not _is_compiling() and not _any_autocast():
        return False
    on = x.device.type
    return (on == "cpu" or on == "cuda") and torch.is_autocast_enabled(on)


def _flat(what: str, x: Tensor, heads: int | None) -> tuple[Tensor, int | None]:
    """n x H x d as n x (H d), and H."""
    if x.dim() != 3:
        return x, heads
    if heads is not None and heads != x.shape[1]:
        raise InvalidArgument(f"{what} has {x.shape[1]} heads, and heads={heads}")
    return x.flatten(1), x.shape[1]


def _of_form(y: Tensor, shape: Sequence[int]) -> Tensor:
    """A product's result, n x K, of the form of what it was made of."""
    y = _given(y)
    if len(shape) == 1:
        return y.squeeze(1)
    return y if len(shape) == 2 else y.view(y.shape[0], *shape[1:])


def spmm(
    g: Matrix,
    x: Tensor,
    values: Tensor | None = None,
    reduce: str = "sum",
    *,
    transpose: bool = False,
    unscaled: bool = False,
) -> Tensor:
    """S x: what each row's neighbours have, weighted, and summed up or reduced otherwise.

    Gradients: of x and of values; of max and min, through the nonzero that was greatest or least.
    All of them again differentiable.

    Args:
        g: S, M x N. Its rows are targets, its columns sources.
        x: N x K, N, or N x H x d; transposed, M in the place of N. Of g's type.
        values: nnz, in the place of S's, in the order of its canonical CSR; or nnz x H, one column
            for each of the H heads that x's columns are shared out among (reduce="sum" alone).
        reduce: "sum"; "mean", over a row's nonzeros; "max" or "min" of the products s x. Of an
            empty row they are 0.
        transpose: S^T in the place of S.
        unscaled: ones in the place of S's values.

    Returns:
        M x K (N x K if transposed), of x's form.

    Raises:
        sparsed.InvalidArgument: what was wrong with a tensor, and what was expected.
    """
    number = number_of(g)
    x = _prepare(number, "x", x)
    if values is not None:
        values = _prepare(number, "values", values)
        if unscaled:
            raise InvalidArgument("values in the place of S's, and unscaled: only one of them")
    shape = x.shape
    if len(shape) == 1:
        x = x.unsqueeze(1)
    elif len(shape) == 3:
        x = x.flatten(1)
    y: Tensor
    if reduce == "sum":
        y = _operators.spmm(number, x, values, False, transpose, unscaled)
    elif values is not None and values.dim() == 2 and values.shape[1] != 1:
        raise InvalidArgument(f"values of several heads are summed up, reduce is {reduce!r}")
    elif reduce == "mean":
        y = _operators.spmm(number, x, values, True, transpose, unscaled)
    elif reduce in ("max", "min"):
        y = _operators.spmm_best(number, x, values, reduce == "min", transpose, unscaled)[0]
    else:
        raise InvalidArgument(f"reduce is {reduce!r}, expected 'sum', 'mean', 'max' or 'min'")
    return _of_form(y, shape)


def sddmm(
    g: Matrix,
    q: Tensor,
    k: Tensor,
    values: Tensor | None = None,
    *,
    unscaled: bool = False,
    heads: int | None = None,
) -> Tensor:
    """S .* (q k^T): for each nonzero (i, j), s_ij times the product of row i of q and row j of k.

    Gradients: of q, k and values; all of them again differentiable.

    Args:
        g: S, M x N.
        q: M x K, or M x H x d.
        k: N x K, or N x H x d.
        values: nnz, or nnz x heads, in the place of S's.
        unscaled: do not multiply by S's values: q_i . k_j alone.
        heads: which K is shared out among.

    Returns:
        nnz; nnz x heads if these are given, or q has them. In the order of S's canonical CSR.
    """
    number = number_of(g)
    q, heads = _flat("q", _prepare(number, "q", q), heads)
    k, heads = _flat("k", _prepare(number, "k", k), heads)
    if values is not None:
        values = _prepare(number, "values", values)
        if unscaled:
            raise InvalidArgument("values in the place of S's, and unscaled: only one of them")
    s: Tensor = _operators.sddmm(number, q, k, values, unscaled, 1 if heads is None else heads)
    s = _given(s)
    return s.squeeze(1) if heads is None else s


def _by_nonzero(number: int, what: str, s: Tensor) -> tuple[Tensor, bool]:
    s = _prepare(number, what, s)
    return (s.unsqueeze(1), True) if s.dim() == 1 else (s, False)


def edge_softmax(g: Matrix, s: Tensor, *, scale: float = 1.0) -> Tensor:
    """Softmax of scale * s over the nonzeros of each row of g; s is nnz or nnz x H.

    The gradient of s is again differentiable.
    """
    number = number_of(g)
    s, vector = _by_nonzero(number, "s", s)
    p: Tensor = _operators.softmax(number, s, scale)
    return p.squeeze(1) if vector else p


def edge_add(g: Matrix, left: Tensor, right: Tensor) -> Tensor:
    """left_i + right_j for each nonzero (i, j), nnz x H.

    Args:
        left: M, or M x H.
        right: N, or N x H.
    """
    number = number_of(g)
    left, vector = _by_nonzero(number, "left", left)
    right, _ = _by_nonzero(number, "right", right)
    s: Tensor = _operators.edge_add(number, left, right)
    return s.squeeze(1) if vector else s


def scale(
    g: Matrix,
    values: Tensor | None = None,
    *,
    rows: Tensor | None = None,
    cols: Tensor | None = None,
) -> Tensor:
    """rows_i * values_p * cols_j for each nonzero p = (i, j): nnz, or nnz x H if a factor is.

    Args:
        values: nnz, or nnz x H; g's own if there are none.
        rows: M, or M x H; None: ones.
        cols: N, or N x H; None: ones. One of the three has to be there.
    """
    number = number_of(g)
    given = [one for one in (values, rows, cols) if one is not None]
    vector = all(one.dim() == 1 for one in given)
    columns: list[Any] = [
        None if one is None else _by_nonzero(number, what, one)[0]
        for what, one in (("values", values), ("rows", rows), ("cols", cols))
    ]
    y: Tensor = _operators.scale(number, *columns)
    return y.squeeze(1) if vector else y


def total(g: Matrix, values: Tensor, *, transpose: bool = False) -> Tensor:
    """What the values of each row of g add up to, M or M x H; transposed, of each column."""
    number = number_of(g)
    values, vector = _by_nonzero(number, "values", values)
    y: Tensor = _operators.total(number, values, transpose)
    return y.squeeze(1) if vector else y


def attention(
    g: Matrix,
    q: Tensor,
    k: Tensor,
    v: Tensor,
    heads: int | None = None,
    *,
    scale: float | None = None,
    bias: Tensor | None = None,
) -> Tensor:
    """Scaled dot product attention along g's nonzeros, whose values do not count.

    Row i of the result is the sum over its neighbours j of softmax_j(scale q_i . k_j + bias_ij)
    v_j, for each head by itself; 0 if it has none. One pass over the graph, and one for the
    gradient: nothing of nnz x heads is stored but the bias.

    Gradients: of q, k, v and the bias; all of them again differentiable.

    Args:
        q: M x (H d), or M x H x d.
        k: N x (H d), or N x H x d.
        v: N x (H dv), or N x H x dv.
        heads: H; 1, or what q has, if it is not given.
        scale: 1 / sqrt(d) if it is not given.
        bias: added to the scores: nnz for all heads, or nnz x H, in the order of g's canonical CSR.
            Minus infinity masks a nonzero.

    Returns:
        M x (H dv), or M x H x dv, as v is.
    """
    number = number_of(g)
    q, heads = _flat("q", _prepare(number, "q", q), heads)
    k, heads = _flat("k", _prepare(number, "k", k), heads)
    v, v_heads = _flat("v", _prepare(number, "v", v), None)
    count = 1 if heads is None else heads
    if v_heads is not None and v_heads != count:
        raise InvalidArgument(f"v has {v_heads} heads, expected {count}")
    if scale is None:
        if count < 1 or q.shape[-1] < count:
            raise InvalidArgument(f"{q.shape[-1]} columns of q for {count} heads")
        scale = 1.0 / math.sqrt(q.shape[-1] // count)
    b = None if bias is None else _by_nonzero(number, "bias", bias)[0]
    y: Tensor = _attention.attention(number, q, k, v, b, None, _native.DOT, count, scale)[0]
    y = _given(y)
    return y if v_heads is None else y.view(y.shape[0], count, -1)


def gat(
    g: Matrix,
    left: Tensor,
    right: Tensor,
    x: Tensor,
    slope: float = 0.2,
    bias: Tensor | None = None,
) -> Tensor:
    """Graph attention along g's nonzeros, whose values do not count.

    Row i of the result is the sum over its neighbours j of softmax_j(LeakyReLU(left_i + right_j) +
    bias_ij) x_j, for each head by itself; 0 if it has none. One pass over the graph, and one for
    the gradient: nothing of nnz x heads is stored but the bias.

    Gradients: of left, right, x and the bias; all of them again differentiable.

    Args:
        left: M x H, scores of the targets; or M.
        right: N x H, scores of the sources; or N.
        x: N x (H d), or N x H x d.
        slope: LeakyReLU's, of what is below 0.
        bias: as attention's.

    Returns:
        M x (H d), or M x H x d, as x is.
    """
    number = number_of(g)
    left, _ = _by_nonzero(number, "left", left)
    right, _ = _by_nonzero(number, "right", right)
    x, heads = _flat("x", _prepare(number, "x", x), None)
    count = left.shape[-1]
    if heads is not None and heads != count:
        raise InvalidArgument(f"x has {heads} heads, expected {count}, as left has")
    b = None if bias is None else _by_nonzero(number, "bias", bias)[0]
    y: Tensor = _attention.attention(number, left, right, x, b, None, _native.ADD, count, slope)[0]
    y = _given(y)
    return y if heads is None else y.view(y.shape[0], heads, -1)


def gatv2(
    g: Matrix,
    left: Tensor,
    right: Tensor,
    att: Tensor,
    x: Tensor | None = None,
    slope: float = 0.2,
    bias: Tensor | None = None,
) -> Tensor:
    """Graph attention along g's nonzeros with GATv2's scores (Brody et al., ICLR 2022).

    Row i of the result is the sum over its neighbours j of softmax_j(att . LeakyReLU(left_i +
    right_j) + bias_ij) x_j, for each head by itself; 0 if it has none. One pass over the graph, and
    one for the gradient: nothing of nnz x heads is stored but the bias.

    Gradients: of left, right, att, x and the bias; they have none themselves.

    Args:
        left: M x (H d), or M x H x d: the targets.
        right: N x (H d), or N x H x d: the sources.
        att: H x d; or d of one head.
        x: N x (H dv), or N x H x dv; `right` if it is not given, and its rows are read once then.
        slope: LeakyReLU's, of what is below 0.
        bias: as attention's.

    Returns:
        M x (H dv), or M x H x dv, as x is.
    """
    number = number_of(g)
    att = _prepare(number, "att", att)
    if att.dim() not in (1, 2):
        raise InvalidArgument(f"att is {tuple(att.shape)}, expected H x d")
    count = 1 if att.dim() == 1 else att.shape[0]
    left, of_left = _flat("left", _prepare(number, "left", left), None)
    right = _prepare(number, "right", right)
    x, heads = _flat("x", right if x is None else _prepare(number, "x", x), None)
    right, of_right = _flat("right", right, None)
    for what, of in (("left", of_left), ("right", of_right), ("x", heads)):
        if of is not None and of != count:
            raise InvalidArgument(f"{what} has {of} heads, expected {count}, as att has")
    b = None if bias is None else _by_nonzero(number, "bias", bias)[0]
    y: Tensor = _attention.attention(
        number, left, right, x, b, att.reshape(1, -1), _native.GATV2, count, slope
    )[0]
    y = _given(y)
    return y if heads is None else y.view(y.shape[0], heads, -1)


def propagate(
    g: Matrix,
    x: Tensor,
    k: int,
    alpha: float | None = None,
    weights: Sequence[float] | None = None,
    *,
    transpose: bool = False,
) -> Tensor:
    """k products with a square S, one after the other, as one request.

        propagate(g, x, k)                    S^k x
        propagate(g, x, k, alpha=a)           x' = (1 - a) S x' + a x, k times (APPNP)
        propagate(g, x, k, weights=w)         w[0] x + w[1] S x + ... + w[k] S^k x (LightGCN)

    Args:
        x: N x K.
        weights: k + 1 numbers.
        transpose: S^T in the place of S.
    """
    number = number_of(g)
    x = _prepare(number, "x", x)
    if k < 0:
        raise InvalidArgument(f"k is {k}, expected 0 or more")
    if alpha is not None and weights is not None:
        raise InvalidArgument("alpha and weights are given, expected one of them")
    if weights is not None:
        numbers = [float(weight) for weight in weights]
        if len(numbers) != k + 1:
            raise InvalidArgument(f"weights has {len(numbers)} numbers, expected k + 1 = {k + 1}")
        if k == 0:
            return _given(x * numbers[0])
        # Horner's rule: each product adds the next share of x as it is written.
        factors = [numbers[k]] + [1.0] * (k - 1)
        shares = numbers[k - 1 :: -1]
    else:
        share = 0.0 if alpha is None else float(alpha)
        factors, shares = [1.0 - share] * k, [share] * k
    y: Tensor = _operators.propagate(number, x, factors, shares, transpose) if k else x
    return _given(y)
