"""Attention along nonzeros, of dot products and of sums, against dense PyTorch."""

import numpy as np
import pytest

torch = pytest.importorskip("torch.autograd") and __import__("torch")
import sparsed
import sparsed.torch as st
from sparsed import _native
from sparsed.torch import _attention
from sparsed.torch._graphs import number_of

close = torch.testing.assert_close
KINDS = ["dot", "sum"]


def check_gradients(function, inputs):
    """First and second ones."""
    assert torch.autograd.gradcheck(function, inputs)
    assert torch.autograd.gradgradcheck(function, inputs)


def softmax_of(small, scores):
    rows = torch.from_numpy(small.rows)
    numerators = scores.exp()
    sums = torch.zeros(small.shape[0], scores.shape[1], dtype=scores.dtype)
    return numerators / sums.index_add(0, rows, numerators)[rows]


def weighted(small, scores, v):
    heads = scores.shape[1]
    messages = softmax_of(small, scores).unsqueeze(2) * v[small.cols].view(
        small.nnz, heads, -1
    )
    out = torch.zeros(small.shape[0], v.shape[1], dtype=v.dtype)
    return out.index_add(0, torch.from_numpy(small.rows), messages.flatten(1))


def scores_of(small, kind, left, right, heads, factor):
    if kind == "dot":
        both = left[small.rows] * right[small.cols]
        return both.view(small.nnz, heads, -1).sum(2) * factor
    sums = left[small.rows] + right[small.cols]
    return torch.nn.functional.leaky_relu(sums, factor)


def operands_of(small, kind, heads, like=torch.float64):
    """left, right, and what is summed up."""
    m, n = small.shape
    width = 2 * heads if kind == "dot" else heads
    return tuple(
        small.random(*shape).detach().to(like).requires_grad_()
        for shape in ((m, width), (n, width), (n, 3 * heads))
    )


def call(g, kind, left, right, v, heads, factor, bias=None):
    if kind == "dot":
        return st.attention(g, left, right, v, heads, scale=factor, bias=bias)
    return st.gat(g, left, right, v, factor, bias)


@pytest.mark.parametrize("bias", [None, "shared", "heads"])
@pytest.mark.parametrize("heads", [1, 2])
@pytest.mark.parametrize("kind", KINDS)
def test_attention(small, kind, heads, bias):
    inputs = operands_of(small, kind, heads)
    b = None
    if bias is not None:
        b = (
            small.random(small.nnz)
            if bias == "shared"
            else small.random(small.nnz, heads)
        )
        inputs = (*inputs, b)
    scores = scores_of(small, kind, *inputs[:2], heads, 0.3)
    if b is not None:
        scores = scores + (b.unsqueeze(1) if b.dim() == 1 else b)
    close(
        call(small.g, kind, *inputs[:3], heads, 0.3, b),
        weighted(small, scores, inputs[2]),
    )
    check_gradients(
        lambda left, right, v, bias=None: call(
            small.g, kind, left, right, v, heads, 0.3, bias
        ),
        inputs,
    )


def test_scale_is_that_of_a_heads_width(small):
    q, k, v = operands_of(small, "dot", 2)
    expected = weighted(small, scores_of(small, "dot", q, k, 2, 2**-0.5), v)
    close(st.attention(small.g, q, k, v, heads=2), expected)


def test_slope_is_a_fifth(small):
    left, right, x = operands_of(small, "sum", 2)
    expected = weighted(small, scores_of(small, "sum", left, right, 2, 0.2), x)
    close(st.gat(small.g, left, right, x), expected)


def test_heads_apart(small):
    m, n = small.shape
    q, k, v = (small.random(count, 2, 3) for count in (m, n, n))
    scores = scores_of(small, "dot", q.flatten(1), k.flatten(1), 2, 0.25)
    expected = weighted(small, scores, v.flatten(1))
    close(st.attention(small.g, q, k, v, scale=0.25), expected.view(m, 2, 3))
    left, right = small.random(m, 2), small.random(n, 2)
    expected = weighted(
        small, scores_of(small, "sum", left, right, 2, 0.2), v.flatten(1)
    )
    close(st.gat(small.g, left, right, v), expected.view(m, 2, 3))
    one = st.gat(small.g, left[:, 0], right[:, 0], v[:, 0])
    close(one, st.gat(small.g, left, right, v)[:, 0])


@pytest.mark.parametrize("wanted", range(4))
@pytest.mark.parametrize("kind", KINDS)
def test_gradients_of_one_operand_alone(small, kind, wanted):
    inputs = [one.detach() for one in operands_of(small, kind, 2)]
    inputs.append(small.random(small.nnz, 2, grad=False))
    inputs[wanted].requires_grad_()
    scores = scores_of(small, kind, *inputs[:2], 2, 0.3) + inputs[3]
    expected = weighted(small, scores, inputs[2])
    dy = small.random(*expected.shape, grad=False)
    out = call(small.g, kind, *inputs[:3], 2, 0.3, inputs[3])
    found = torch.autograd.grad(out, inputs[wanted], dy)
    close(found, torch.autograd.grad(expected, inputs[wanted], dy))


@pytest.mark.parametrize("kind", KINDS)
def test_strides_do_not_matter(small, kind):
    left, right, v = (one.detach() for one in operands_of(small, kind, 2))
    expected = call(small.g, kind, left, right, v, 2, 0.3)
    wide = torch.cat((left, left), 1)[:, : left.shape[1]]
    inputs = [wide, right.t().contiguous().t(), v[:, :1].expand(v.shape)]
    close(
        call(small.g, kind, inputs[0], inputs[1], v, 2, 0.3),
        expected,
    )
    inputs[2] = inputs[2].detach().requires_grad_()
    call(small.g, kind, *inputs, 2, 0.3).sum().backward()  # one number, expanded
    close(
        inputs[2].grad.sum(0),
        torch.full((6,), float(len(set(small.rows))), dtype=torch.float64),
    )


@pytest.mark.parametrize("kind", KINDS)
def test_masks(small, kind):
    """Minus infinity takes a nonzero out, and a row that has no other is zeros."""
    left, right, v = operands_of(small, kind, 2)
    keep = torch.rand(small.nnz) < 0.6
    first = torch.from_numpy(small.rows) == small.rows[0]
    keep[first] = False
    bias = torch.where(keep, 0.0, -torch.inf).double()
    y = call(small.g, kind, left, right, v, 2, 0.3, bias)
    assert (y[small.rows[0]] == 0).all()
    scores = scores_of(small, kind, left, right, 2, 0.3) + bias.unsqueeze(1)
    expected = weighted(small, scores, v)
    rows = [
        row
        for row in range(7)
        if row != small.rows[0] and keep[small.rows == row].any()
    ]
    close(y[rows], expected[rows])
    gradients = torch.autograd.grad(y.sum(), (left, right, v))
    assert all(one.isfinite().all() for one in gradients)


@pytest.mark.parametrize("kind", KINDS)
@pytest.mark.parametrize("type_", ["f32", "f16", "bf16"])
def test_types(client, name, kind, type_):
    """Results and gradients in each type, as exact as the type is."""
    dtype = {"f32": torch.float32, "f16": torch.float16, "bf16": torch.bfloat16}[type_]
    tolerance = {"f32": 1e-5, "f16": 1e-2, "bf16": 8e-2}[type_]
    torch.manual_seed(0)
    from conftest import Small

    both = [
        Small(client, f"{name}-{one}", 30, 20, one, seed=2) for one in ("f64", type_)
    ]
    try:
        inputs = operands_of(both[1], kind, 2, dtype)
        wide = [one.detach().double().requires_grad_() for one in inputs]
        y = call(both[1].g, kind, *inputs, 2, 0.3)
        expected = call(both[0].g, kind, *wide, 2, 0.3)
        assert y.dtype == dtype
        close(y.double(), expected, rtol=tolerance, atol=tolerance)
        found = torch.autograd.grad(y.sum(), inputs)
        for one, other in zip(found, torch.autograd.grad(expected.sum(), wide)):
            assert one.dtype == dtype
            close(one.double(), other, rtol=4 * tolerance, atol=4 * tolerance)
    finally:
        for one in both:
            one.g.delete()


def test_forward_and_backward_are_one_call_each(square, monkeypatch):
    calls = []
    for function in (
        "attention",
        "attention_gradient",
        "spmm",
        "sddmm",
        "softmax",
        "total",
    ):
        original = getattr(_native, function)

        def count(*arguments, function=function, original=original):
            calls.append(function)
            return original(*arguments)

        monkeypatch.setattr(_native, function, count)
    for kind in KINDS:
        y = call(square.g, kind, *operands_of(square, kind, 2), 2, 0.3)
        y.sum().backward()
        assert calls == ["attention", "attention_gradient"]
        calls.clear()
    st.gatv2(square.g, *gatv2_operands(square, 2)).sum().backward()
    conv = st.nn.GATv2Conv(4, 3, heads=2, dropout=0.5).double()
    with torch.no_grad():
        conv.eval()(square.random(6, 4), square.g)
    assert calls == ["attention", "attention_gradient", "attention"]


def test_opcheck(square):
    n, nnz, graph = 6, square.nnz, number_of(square.g)
    x, s, bias = square.random(n, 4), square.random(n, 2), square.random(nnz, 2)
    plain, sums = x.detach(), torch.zeros(n, 2, dtype=torch.float64)
    ops = torch.ops.sparsed
    dot, add = (_native.DOT, 2, 0.5), (_native.ADD, 2, 0.2)
    gatv2, att = (_native.GATV2, 2, 0.2), square.random(1, 4)
    forward = _attention.attention(graph, plain, plain, plain, None, None, *dot)
    cases = [
        (ops.attention, (x, x, x, None, None, *dot)),
        (ops.attention, (x, x, x, bias, None, *dot)),
        (ops.attention, (s, s, x, None, None, *add)),
        (ops.attention, (s, s, x, square.random(nnz, 1), None, *add)),
        (ops.attention, (x, x, square.random(n, 6), bias, att, *gatv2)),
        (
            ops.attention_gradient,
            (
                plain, plain, plain, plain, None, None, *forward, *dot,
                [True, True, True, False, False],
            ),
        ),
        (
            ops.attention_gradient,
            (
                plain, s.detach(), s.detach(), plain, bias.detach(), None, plain, sums, *add,
                [False, True, False, True, False],
            ),
        ),
        (
            ops.attention_gradient,
            (
                plain, plain, plain, plain, None, att.detach(), plain, sums, *gatv2,
                [True, False, True, False, True],
            ),
        ),
    ]  # fmt: skip
    for operator, arguments in cases:
        torch.library.opcheck(operator.default, (graph, *arguments))


@pytest.mark.parametrize("kind", KINDS)
def test_compiled(square, kind):
    def program(g, left, right, v, bias):
        return call(g, kind, left.tanh(), right, v, 2, 0.3, bias).relu()

    compiled = torch.compile(program, fullgraph=True, backend="aot_eager")
    inputs = (*operands_of(square, kind, 2), square.random(square.nnz, 2))
    expected = program(square.g, *inputs)
    found = compiled(square.g, *inputs)
    close(found, expected)
    close(
        torch.autograd.grad(found.sum(), inputs),
        torch.autograd.grad(expected.sum(), inputs),
    )


@pytest.mark.parametrize("kind", KINDS)
def test_a_third_gradient_is_refused(small, kind):
    """It would be wrong: the second one is made of gradients that are not differentiated."""
    inputs = operands_of(small, kind, 2)
    left, _, v = inputs
    y = call(small.g, kind, *inputs, 2, 0.5)
    (first,) = torch.autograd.grad(y.square().sum(), left, create_graph=True)
    (second,) = torch.autograd.grad(first.square().sum(), v, retain_graph=True)
    (again,) = torch.autograd.grad(first.square().sum(), v, create_graph=True)
    close(again, second)
    with pytest.raises(sparsed.Unimplemented, match="and no third one"):
        again.square().sum().backward()


def test_without_gradients_and_in_autocast(small):
    inputs = operands_of(small, "sum", 2)
    with torch.no_grad():
        assert not st.gat(small.g, *inputs).requires_grad
    single = [one.detach().float() for one in inputs]
    with torch.autocast("cpu", dtype=torch.bfloat16):
        close(
            st.gat(small.g, *single), st.gat(small.g, *(one.double() for one in single))
        )


def test_of_no_nonzeros(client, name):
    with client.temporary(np.zeros((4, 3)), dtype="f64") as g:
        left, right, x = (torch.randn(n, 2, dtype=torch.float64) for n in (4, 3, 3))
        x.requires_grad_()
        y = st.gat(g, left, right, x)
        y.sum().backward()
        assert (y == 0).all() and (x.grad == 0).all()


@pytest.mark.parametrize(
    "call, sentence",
    [
        (lambda g, s, x: st.attention(g, x, x, x), "q is 5 x 3, expected 7 x K"),
        (
            lambda g, s, x: st.attention(g, s(7, 3), s(7, 3), x),
            "k is 7 x 3, expected 5 x K",
        ),
        (
            lambda g, s, x: st.attention(g, s(7, 3), x, s(7, 3)),
            "v is 7 x 3, expected 5 x K",
        ),
        (lambda g, s, x: st.attention(g, s(7, 4), x, x), "q has 4 columns and k 3"),
        (
            lambda g, s, x: st.attention(g, s(7, 3), x, x, heads=2),
            "cannot be shared out",
        ),
        (
            lambda g, s, x: st.attention(g, s(7, 2), s(5, 2), x, heads=2),
            "v has 3 columns",
        ),
        (lambda g, s, x: st.attention(g, s(7, 3), x, x.float()), "v is torch.float32"),
        (
            lambda g, s, x: st.attention(g, s(7, 3), x, x, bias=s(3)),
            "bias is 3 x 1, expected",
        ),
        (lambda g, s, x: st.gat(g, s(5, 3), x, x), "left is 5 x 3, expected 7 x K"),
        (
            lambda g, s, x: st.gat(g, s(7, 3), s(7, 3), x),
            "right is 7 x 3, expected 5 x K",
        ),
        (
            lambda g, s, x: st.gat(g, s(7, 3), s(5, 2), x),
            "left has 3 columns and right 2",
        ),
        (
            lambda g, s, x: st.gat(g, s(7, 2), s(5, 2), x),
            "x has 3 columns, which cannot",
        ),
        (
            lambda g, s, x: st.gat(g, s(7, 2), s(5, 2), s(5, 3, 2)),
            "x has 3 heads, expected 2",
        ),
        (lambda g, s, x: st.gat(g, s(7, 3), x, x.numpy()), "x is a ndarray"),
        (
            lambda g, s, x: st.gat("g", x, x, x),
            "a graph is a sparsed.Matrix, not a str",
        ),
    ],
)
def test_bad_input_is_an_exception_with_a_sentence(small, call, sentence):
    def random(*shape):
        return small.random(*shape, grad=False)

    with pytest.raises(sparsed.InvalidArgument, match=sentence):
        call(small.g, random, random(5, 3))


def gatv2_operands(small, heads, like=torch.float64):
    """left, right, att, and what is summed up."""
    m, n = small.shape
    shapes = ((m, 2 * heads), (n, 2 * heads), (heads, 2), (n, 3 * heads))
    return tuple(small.random(*shape).detach().to(like).requires_grad_() for shape in shapes)


def gatv2_by_hand(small, left, right, att, x=None, slope=0.2, bias=None):
    z = torch.nn.functional.leaky_relu(left[small.rows] + right[small.cols], slope)
    scores = (z.view(small.nnz, *att.shape) * att).sum(2)
    if bias is not None:
        scores = scores + (bias.unsqueeze(1) if bias.dim() == 1 else bias)
    return weighted(small, scores, right if x is None else x)


@pytest.mark.parametrize("bias", [None, "shared", "heads"])
@pytest.mark.parametrize("heads", [1, 2])
@pytest.mark.parametrize("of_right", [False, True])
def test_gatv2(small, of_right, heads, bias):
    *inputs, x = gatv2_operands(small, heads)
    if not of_right:
        inputs.append(x)
    b = ()
    if bias is not None:
        b = (small.random(small.nnz) if bias == "shared" else small.random(small.nnz, heads),)

    def with_bias(function, *all_of_them):
        mine = all_of_them[: len(inputs)]
        options = {"bias": all_of_them[-1]} if b else {}
        return function(*mine, slope=0.3, **options)

    close(
        with_bias(lambda *a, **o: st.gatv2(small.g, *a, **o), *inputs, *b),
        with_bias(lambda *a, **o: gatv2_by_hand(small, *a, **o), *inputs, *b),
    )
    assert torch.autograd.gradcheck(
        lambda *all_of_them: with_bias(
            lambda *a, **o: st.gatv2(small.g, *a, **o), *all_of_them
        ),
        (*inputs, *b),
    )


@pytest.mark.parametrize("wanted", range(4))
def test_gatv2_gradient_of_one_operand_alone(small, wanted):
    inputs = [one.detach() for one in gatv2_operands(small, 2)]
    inputs[wanted].requires_grad_()
    expected = gatv2_by_hand(small, *inputs)
    dy = small.random(*expected.shape, grad=False)
    found = torch.autograd.grad(st.gatv2(small.g, *inputs), inputs[wanted], dy)
    close(found, torch.autograd.grad(expected, inputs[wanted], dy))


def test_gatv2_heads_apart(small):
    m, n = small.shape
    left, right, att = small.random(m, 2, 3), small.random(n, 2, 3), small.random(2, 3)
    expected = gatv2_by_hand(small, left.flatten(1), right.flatten(1), att)
    close(st.gatv2(small.g, left, right, att), expected.view(m, 2, 3))
    one = st.gatv2(small.g, left[:, 0], right[:, 0], att[0])
    close(one, st.gatv2(small.g, left, right, att)[:, 0])


@pytest.mark.parametrize("type_", ["f32", "f16", "bf16"])
def test_gatv2_types(client, name, type_):
    dtype = {"f32": torch.float32, "f16": torch.float16, "bf16": torch.bfloat16}[type_]
    tolerance = {"f32": 1e-5, "f16": 1e-2, "bf16": 8e-2}[type_]
    torch.manual_seed(0)
    from conftest import Small

    small = Small(client, name, 30, 20, type_, seed=2)
    try:
        inputs = gatv2_operands(small, 2, dtype)
        wide = [one.detach().double().requires_grad_() for one in inputs]
        y, expected = st.gatv2(small.g, *inputs), gatv2_by_hand(small, *wide)
        rows = sorted(set(small.rows))
        assert y.dtype == dtype
        close(y.double()[rows], expected[rows], rtol=tolerance, atol=tolerance)
        found = torch.autograd.grad(y[rows].sum(), inputs)
        for one, other in zip(found, torch.autograd.grad(expected[rows].sum(), wide)):
            assert one.dtype == dtype
            close(one.double(), other, rtol=8 * tolerance, atol=8 * tolerance)
    finally:
        small.g.delete()


def test_gatv2_compiled(square):
    def program(g, left, right, att):
        return st.gatv2(g, left.tanh(), right, att).relu()

    compiled = torch.compile(program, fullgraph=True, backend="aot_eager")
    inputs = gatv2_operands(square, 2)[:3]
    expected, found = program(square.g, *inputs), compiled(square.g, *inputs)
    close(found, expected)
    close(
        torch.autograd.grad(found.sum(), inputs),
        torch.autograd.grad(expected.sum(), inputs),
    )


def test_gatv2_has_a_first_gradient_only(small):
    left, right, att, x = gatv2_operands(small, 2)
    y = st.gatv2(small.g, left, right, att, x)
    (first,) = torch.autograd.grad(y.square().sum(), left, create_graph=True)
    with pytest.raises(sparsed.Unimplemented, match="first gradient only"):
        first.square().sum().backward()


def test_gatv2_of_no_nonzeros(client, name):
    with client.temporary(np.zeros((4, 3)), dtype="f64") as g:
        left, right = (torch.randn(n, 2, dtype=torch.float64) for n in (4, 3))
        att = torch.randn(1, 2, dtype=torch.float64, requires_grad=True)
        y = st.gatv2(g, left, right, att)
        y.sum().backward()
        assert (y == 0).all() and (att.grad == 0).all()


@pytest.mark.parametrize(
    "call, sentence",
    [
        (lambda g, s: st.gatv2(g, s(5, 4), s(5, 4), s(2, 2)), "left is 5 x 4, expected 7 x K"),
        (lambda g, s: st.gatv2(g, s(7, 4), s(7, 4), s(2, 2)), "right is 7 x 4, expected 5 x K"),
        (lambda g, s: st.gatv2(g, s(7, 4), s(5, 6), s(2, 2)), "left has 4 columns and right 6"),
        (
            lambda g, s: st.gatv2(g, s(7, 4), s(5, 4), s(2, 3)),
            r"att is \(2, 3\) of torch.float64, expected H x d of torch.float64 with H d = 4",
        ),
        (lambda g, s: st.gatv2(g, s(7, 4), s(5, 4), s(3, 2)), "cannot be shared out among 3"),
        (lambda g, s: st.gatv2(g, s(7, 4), s(5, 4), s(2, 2).float()), "of torch.float32"),
        (lambda g, s: st.gatv2(g, s(7, 4), s(5, 4), s(1, 2, 2)), "expected H x d"),
        (lambda g, s: st.gatv2(g, s(7, 4), s(5, 4), None), "att is a NoneType"),
        (
            lambda g, s: st.gatv2(g, s(7, 4), s(5, 4), s(2, 2), s(5, 4, 3)),
            "x has 4 heads, expected 2, as att has",
        ),
        (
            lambda g, s: st.gatv2(g, s(7, 4, 2), s(5, 8), s(2, 4)),
            "left has 4 heads, expected 2, as att has",
        ),
        (
            lambda g, s: st.gatv2(g, s(7, 8), s(5, 4, 2), s(2, 4), s(5, 6)),
            "right has 4 heads, expected 2, as att has",
        ),
        (
            lambda g, s: st.gatv2(g, s(7, 4), s(5, 4), s(2, 2), bias=s(3)),
            "bias is 3 x 1, expected",
        ),
    ],
)
def test_bad_input_of_gatv2(small, call, sentence):
    def random(*shape):
        return small.random(*shape, grad=False)

    with pytest.raises(sparsed.InvalidArgument, match=sentence):
        call(small.g, random)


def test_a_bias_of_other_heads(small):
    left, right, x = operands_of(small, "sum", 3)
    with pytest.raises(
        sparsed.InvalidArgument, match="bias has 2 columns, expected 1 or one for"
    ):
        st.gat(small.g, left, right, x, bias=small.random(small.nnz, 2))
