"""Operators against dense PyTorch, and their gradients against differences."""

import gc

import numpy as np
import pytest

torch = pytest.importorskip("torch.autograd") and __import__("torch")
import sparsed
import sparsed.torch as st
from sparsed.torch import _attention, _operators
from sparsed.torch._graphs import number_of

close = torch.testing.assert_close


def check_gradients(function, inputs):
    """First and second ones."""
    assert torch.autograd.gradcheck(function, inputs)
    assert torch.autograd.gradgradcheck(function, inputs)


def heads_of(small, values):
    return [small.dense(values[:, h]) for h in range(values.shape[1])]


@pytest.mark.parametrize("transpose", [False, True])
def test_spmm_is_a_product(small, transpose):
    s = small.dense()
    s = s.t() if transpose else s
    x = small.random(s.shape[1], 3)
    close(st.spmm(small.g, x, transpose=transpose), s @ x)
    check_gradients(lambda x: st.spmm(small.g, x, transpose=transpose), (x,))


@pytest.mark.parametrize("transpose", [False, True])
@pytest.mark.parametrize("heads", [None, 1, 3])
def test_spmm_with_values(small, transpose, heads):
    values = small.random(small.nnz) if heads is None else small.random(small.nnz, heads)
    x = small.random(small.shape[0 if transpose else 1], 6)
    parts = x.split(6 // (heads or 1), 1)
    dense = [small.dense(values)] if heads is None else heads_of(small, values)
    expected = torch.cat([(s.t() if transpose else s) @ part for s, part in zip(dense, parts)], 1)
    close(st.spmm(small.g, x, values, transpose=transpose), expected)
    check_gradients(lambda x, v: st.spmm(small.g, x, v, transpose=transpose), (x, values))


@pytest.mark.parametrize("transpose", [False, True])
@pytest.mark.parametrize("what", ["own", "values", "unscaled"])
@pytest.mark.parametrize("reduce", ["sum", "mean", "max", "min"])
def test_reductions(small, reduce, what, transpose):
    values = small.random(small.nnz)
    factors = {
        "own": torch.from_numpy(small.values),
        "values": values,
        "unscaled": torch.ones(small.nnz, dtype=torch.float64),
    }[what]
    x = small.random(small.shape[0 if transpose else 1], 2)
    rows, cols = torch.from_numpy(small.rows), torch.from_numpy(small.cols)
    if transpose:
        rows, cols = cols, rows
    products = factors.unsqueeze(1) * x[cols]
    shape = (small.shape[1 if transpose else 0], 2)
    name = {"max": "amax", "min": "amin"}.get(reduce, reduce)
    expected = torch.zeros(shape, dtype=torch.float64).scatter_reduce(
        0, rows.unsqueeze(1).expand(-1, 2), products, name, include_self=False
    )

    def product(x, v):
        given = v if what == "values" else None
        return st.spmm(small.g, x, given, reduce, transpose=transpose, unscaled=what == "unscaled")

    close(product(x, values), expected)
    if what == "values":
        check_gradients(product, (x, values))
    else:
        check_gradients(lambda x: product(x, None), (x,))


@pytest.mark.parametrize("what", ["own", "values", "unscaled"])
@pytest.mark.parametrize("heads", [None, 1, 2])
def test_sddmm(small, what, heads):
    q, k = small.random(small.shape[0], 4), small.random(small.shape[1], 4)
    values = small.random(small.nnz) if heads is None else small.random(small.nnz, heads)
    count = heads or 1
    factors = {"own": torch.from_numpy(small.values), "values": values, "unscaled": 1.0}[what]
    if what == "own":
        factors = factors.unsqueeze(1)
    if what == "values" and heads is None:
        factors = values.unsqueeze(1)
    by_head = q[small.rows] * k[small.cols]
    expected = by_head.view(small.nnz, count, -1).sum(2) * factors
    expected = expected.squeeze(1) if heads is None else expected

    def product(q, k, v):
        given = v if what == "values" else None
        return st.sddmm(small.g, q, k, given, unscaled=what == "unscaled", heads=heads)

    close(product(q, k, values), expected)
    if what == "values":
        check_gradients(product, (q, k, values))
    else:
        check_gradients(lambda q, k: product(q, k, None), (q, k))


def softmax_of(small, s):
    dense = torch.full((*small.shape, s.shape[1]), float("-inf"), dtype=s.dtype)
    dense = dense.index_put((torch.from_numpy(small.rows), torch.from_numpy(small.cols)), s)
    return torch.softmax(dense, 1)[small.rows, small.cols]


@pytest.mark.parametrize("heads", [None, 3])
def test_edge_softmax(small, heads):
    s = small.random(small.nnz) if heads is None else small.random(small.nnz, heads)
    expected = softmax_of(small, s.view(small.nnz, -1) * 0.7).view(s.shape)
    close(st.edge_softmax(small.g, s, scale=0.7), expected)
    check_gradients(lambda s: st.edge_softmax(small.g, s, scale=0.7), (s,))


def test_edge_add(small):
    left, right = small.random(small.shape[0], 3), small.random(small.shape[1], 3)
    close(st.edge_add(small.g, left, right), left[small.rows] + right[small.cols])
    check_gradients(lambda a, b: st.edge_add(small.g, a, b), (left, right))
    close(
        st.edge_add(small.g, left[:, 0], right[:, 0]),
        (left[small.rows] + right[small.cols])[:, 0],
    )


@pytest.mark.parametrize("given", ["v", "r", "c", "vr", "rc", "vrc"])
@pytest.mark.parametrize("heads", [None, 2])
def test_scale(small, given, heads):
    def one(n):
        return small.random(n) if heads is None else small.random(n, heads)

    v, r, c = one(small.nnz), one(small.shape[0]), one(small.shape[1])
    expected = v if "v" in given else torch.from_numpy(small.values).view(-1, 1)[:, : heads or 1]
    if heads is None:
        expected = expected.view(-1)
    if "r" in given:
        expected = expected * r[small.rows]
    if "c" in given:
        expected = expected * c[small.cols]

    def product(*inputs):
        named = dict(zip(given, inputs))
        return st.scale(small.g, named.get("v"), rows=named.get("r"), cols=named.get("c"))

    inputs = tuple({"v": v, "r": r, "c": c}[name] for name in given)
    close(product(*inputs), expected)
    check_gradients(product, inputs)


@pytest.mark.parametrize("transpose", [False, True])
def test_total(small, transpose):
    values = small.random(small.nnz, 2)
    ends = torch.from_numpy(small.cols if transpose else small.rows)
    expected = torch.zeros(small.shape[1 if transpose else 0], 2, dtype=torch.float64)
    close(st.total(small.g, values, transpose=transpose), expected.index_add(0, ends, values))
    check_gradients(lambda v: st.total(small.g, v, transpose=transpose), (values,))


@pytest.mark.parametrize("transpose", [False, True])
@pytest.mark.parametrize(
    "options", [{"k": 3}, {"k": 4, "alpha": 0.2}, {"k": 2, "weights": [0.5, 0.25, 2.0]}]
)
def test_propagate(square, options, transpose, way):
    s = square.dense()
    s = s.t() if transpose else s
    x = square.random(6, 3)
    k, alpha = options["k"], options.get("alpha", 0.0)
    layers = [x]
    for _ in range(k):
        layers.append((1 - alpha) * (s @ layers[-1]) + alpha * x)
    weights = options.get("weights", [0.0] * k + [1.0])
    expected = sum(weight * layer for weight, layer in zip(weights, layers))
    close(st.propagate(square.g, x, transpose=transpose, **options), expected)
    check_gradients(lambda x: st.propagate(square.g, x, transpose=transpose, **options), (x,))


def test_propagate_not_at_all(square):
    x = square.random(6, 3)
    close(st.propagate(square.g, x, 0), x)
    close(st.propagate(square.g, x, 0, weights=[3.0]), 3 * x)


def test_vectors_and_heads_apart(small):
    s = small.dense()
    x = small.random(5)
    close(st.spmm(small.g, x), s @ x)
    x = small.random(5, 2, 3)
    values = small.random(small.nnz, 2)
    flat = st.spmm(small.g, x.flatten(1), values)
    close(st.spmm(small.g, x, values), flat.view(7, 2, 3))


def test_strides_do_not_matter(small):
    s = small.dense()
    wide = small.random(5, 8, grad=False)
    for x in (
        wide[:, 2:5],
        wide[:, ::2],
        small.random(3, 5, grad=False).t(),
        wide[:, :1].expand(5, 4),
    ):
        close(st.spmm(small.g, x), s @ x)
    x = small.random(5, 3)
    st.spmm(small.g, x).sum().backward()  # a gradient that is one number, expanded
    close(x.grad, s.t() @ torch.ones(7, 3, dtype=torch.float64))


@pytest.mark.parametrize("type_", ["f32", "f16", "bf16"])
def test_types(client, name, type_):
    """Products and gradients in each type, as exact as the type is."""
    generator = np.random.default_rng(0)
    rows, cols = np.nonzero(generator.random((40, 30)) < 0.3)
    values = generator.uniform(0.5, 1, len(rows))
    dtype = {"f32": torch.float32, "f16": torch.float16, "bf16": torch.bfloat16}[type_]
    exact = torch.zeros(40, 30)
    exact[rows, cols] = torch.from_numpy(values).to(dtype).float()
    with client.temporary((rows, cols, values), shape=(40, 30), dtype=type_) as g:
        x = torch.randn(30, 8).to(dtype).requires_grad_()
        y = st.spmm(g, x)
        y.backward(torch.ones_like(y))
        tolerance = {"f32": 1e-5, "f16": 1e-2, "bf16": 6e-2}[type_]
        close(y.float(), exact @ x.float(), rtol=tolerance, atol=tolerance)
        close(x.grad.float(), exact.t() @ torch.ones(40, 8), rtol=tolerance, atol=tolerance)
        q, v = torch.randn(40, 8).to(dtype), torch.randn(30, 8).to(dtype)
        out = st.attention(g, q, x.detach(), v, heads=2)
        assert out.dtype == dtype and out.isfinite().all()
        best = st.spmm(g, x, reduce="max")
        best.sum().backward()


def test_autocast_converts_to_the_graphs_type(small):
    x = small.random(5, 3).float().detach().requires_grad_()
    with torch.autocast("cpu", dtype=torch.bfloat16):
        y = st.spmm(small.g, x @ torch.eye(3))
    assert y.dtype == torch.float64
    y.sum().backward()
    assert x.grad.dtype == torch.float32


def test_nan_and_infinity_pass(small):
    x = small.random(5, 2, grad=False)
    x[0, 0], x[1, 1] = float("nan"), float("inf")
    s = small.dense()
    expected = torch.zeros(7, 2, dtype=torch.float64).index_add(
        0, torch.from_numpy(small.rows), torch.from_numpy(small.values)[:, None] * x[small.cols]
    )
    close(st.spmm(small.g, x), expected, equal_nan=True)
    assert s.shape == (7, 5)


@pytest.mark.parametrize("attach", [True, False])
def test_no_columns(server, small, attach):
    with sparsed.connect(server.address, attach=attach) as c:
        g = c.matrix(small.g.name)
        x, q, v = small.random(5, 0), small.random(7, 0), small.random(g.nnz)
        for reduce in ("sum", "mean", "max", "min"):
            y = st.spmm(g, x, reduce=reduce)
            assert y.shape == (7, 0)
            assert torch.autograd.grad(y.sum(), x)[0].shape == (5, 0)
        y = st.spmm(g, x, v)
        assert (torch.autograd.grad(y.sum(), v)[0] == 0).all()
        assert st.spmm(g, q, transpose=True).shape == (5, 0)
        assert st.spmm(g, small.random(5, 2, 0)).shape == (7, 2, 0)
        s = st.sddmm(g, q, x, heads=2)
        assert s.shape == (g.nnz, 2) and (s == 0).all()
        assert torch.autograd.grad(s.sum(), q)[0].shape == (7, 0)
        none = small.random(g.nnz, 0)
        for made in (st.edge_softmax(g, none), st.edge_add(g, q, x), st.scale(g, none)):
            assert made.shape == (g.nnz, 0)
            made.sum().backward()
        assert st.total(g, none).shape == (7, 0)
        with pytest.raises(sparsed.InvalidArgument, match="v has no columns"):
            st.attention(g, small.random(7, 2), small.random(5, 2), x)
        with pytest.raises(sparsed.InvalidArgument, match="left is of 0 heads"):
            st.gat(g, q, x, x)


def test_propagation_of_no_columns(square, way):
    for k in (0, 2):
        assert st.propagate(square.g, square.random(6, 0), k, alpha=0.1).shape == (6, 0)


def test_nothing_at_all(client, name):
    empty = (np.zeros(0, int), np.zeros(0, int), np.zeros(0))
    with client.temporary(empty, shape=(3, 4), dtype="f64") as g:
        x = torch.randn(4, 2, dtype=torch.float64, requires_grad=True)
        for reduce in ("sum", "mean", "max", "min"):
            y = st.spmm(g, x, reduce=reduce)
            close(y, torch.zeros(3, 2, dtype=torch.float64))
        st.spmm(g, x).sum().backward()
        close(x.grad, torch.zeros_like(x))
        assert st.sddmm(g, torch.randn(3, 2).double(), x).shape == (0,)
        assert st.edge_softmax(g, torch.zeros(0, 2).double()).shape == (0, 2)
    none = torch.zeros(5, 0, dtype=torch.float64)
    with client.temporary(np.eye(5), dtype="f64") as g:
        assert st.spmm(g, none).shape == (5, 0)
        assert st.sddmm(g, none, none).tolist() == [0.0] * 5


# ---- As PyTorch's operators ----------------------------------------------------------------------


def tangents_of(function, x, t):
    """By torch.func and by torch.autograd, and of several at once."""
    forward_ad = torch.autograd.forward_ad
    yield lambda: torch.func.jvp(function, (x,), (t,))
    yield lambda: torch.func.jacfwd(function)(x)
    yield lambda: torch.func.linearize(function, x)
    yield lambda: torch.func.jvp(torch.func.vmap(function), (x[None],), (t[None],))
    for requires_grad in (False, True):

        def dual(requires_grad=requires_grad):
            with forward_ad.dual_level():
                return function(forward_ad.make_dual(x.clone().requires_grad_(requires_grad), t))

        yield dual
    compiled = torch.compile(function, backend="aot_eager")

    def dual_compiled():
        with forward_ad.dual_level():
            return compiled(forward_ad.make_dual(x, t))

    yield dual_compiled


def test_forward_mode_is_refused(square):
    """PyTorch would make zeros of tangents."""
    g, x, t = square.g, square.random(6, 2, grad=False), square.random(6, 2, grad=False)
    v = square.random(square.nnz, grad=False)
    for function in (
        lambda x: st.spmm(g, x),
        lambda x: st.sddmm(g, x, x),
        lambda x: st.attention(g, x, x, x),
        lambda x: st.propagate(g, x, 2),
    ):
        for call in tangents_of(function, x, t):
            with pytest.raises(NotImplementedError, match="in forward mode"):
                call()
    for function in (lambda v: st.edge_softmax(g, v), lambda v: st.spmm(g, x, v)):
        with pytest.raises(sparsed.Unimplemented, match="in forward mode"):
            torch.func.jvp(function, (v,), (v,))
    conv = st.nn.GCNConv(2, 2).double()
    with pytest.raises(sparsed.Unimplemented, match="in forward mode"):
        torch.func.jvp(lambda x: conv(x, g), (x,), (t,))
    # What depends on no tangent is a constant.
    y, dy = torch.func.jvp(lambda x: x * st.spmm(g, t), (x,), (t,))
    close(dy, t * (square.dense() @ t))
    # As the sentence says.
    _, dy = torch.autograd.functional.jvp(lambda x: st.spmm(g, x), x, t)
    close(dy, square.dense() @ t)


def test_opcheck(square):
    n, nnz, graph = 6, square.nnz, number_of(square.g)
    x, values, heads = square.random(n, 4), square.random(nnz), square.random(nnz, 2)
    ops = torch.ops.sparsed
    att = square.random(2, 2)
    cases = [
        (ops.spmm, (x, None, False, False, False)),
        (ops.spmm, (x, None, True, True, True)),
        (ops.spmm, (x, values, False, True, False)),
        (ops.spmm, (x, heads, False, False, False)),
        (ops.spmm_best, (x, None, False, False, False)),
        (ops.spmm_best, (x, values, True, False, False)),
        (ops.sddmm, (x, x, None, False, 1)),
        (ops.sddmm, (x, x, heads, False, 2)),
        (ops.softmax, (heads, 0.5)),
        (ops.softmax_gradient, (heads, heads, 0.5)),
        (ops.scale, (heads, x[:, :2].contiguous(), None)),
        (ops.total, (heads, True)),
        (ops.edge_add, (x, x)),
        (ops.propagate, (x, [0.9, 0.9], [0.1, 0.1], False)),
        (ops.gatv2_scores, (x, x, att, 0.2)),
        (ops.end_of, (torch.zeros(3, dtype=torch.int64), True)),
        (ops.inverse_counts, (x.detach(), False)),
        (ops.edge_index, (x.detach(),)),
    ]
    for operator, arguments in cases:
        torch.library.opcheck(operator.default, (graph, *arguments))


def test_compiled_programs_have_no_breaks(square, small):
    def program(x, q, g, h):
        y = st.spmm(g, x).relu()
        y = y + st.spmm(g, x, reduce="max")
        s = st.sddmm(g, q, y, unscaled=True, heads=2)
        p = st.edge_softmax(g, s)
        y = st.spmm(g, y, p) + st.attention(g, q, y, y, heads=2) + st.propagate(g, y, 3, 0.1)
        return st.spmm(h, y[:5])

    compiled = torch.compile(program, fullgraph=True, backend="aot_eager")
    for _ in range(2):
        x, q = square.random(6, 4), square.random(6, 4)
        expected = program(x, q, square.g, small.g)
        expected_gradients = torch.autograd.grad(expected.sum(), (x, q))
        found = compiled(x, q, square.g, small.g)
        close(found, expected)
        close(torch.autograd.grad(found.sum(), (x, q)), expected_gradients)


def test_compiled_with_another_graph(square, client, name):
    compiled = torch.compile(lambda g, x: st.spmm(g, x), fullgraph=True, backend="aot_eager")
    x = square.random(6, 2, grad=False)
    close(compiled(square.g, x), square.dense() @ x)
    with client.temporary(2 * np.eye(6), dtype="f64") as other:
        close(compiled(other, x), 2 * x)
        close(compiled(square.g, x), square.dense() @ x)


def test_inside_autocast_and_compiled(square):
    def program(g, x):
        with torch.autocast("cpu", dtype=torch.bfloat16):
            return st.spmm(g, x @ x.t())

    compiled = torch.compile(program, fullgraph=True, backend="aot_eager")
    x = torch.randn(6, 6)
    close(compiled(square.g, x), program(square.g, x))


def test_fake_tensors_take_the_operators(square):
    from torch._subclasses.fake_tensor import FakeTensorMode

    with FakeTensorMode():
        y = st.spmm(square.g, torch.empty(6, 3, dtype=torch.float64))
    assert y.shape == (6, 3)


# ---- What is wrong -------------------------------------------------------------------------------


@pytest.mark.parametrize(
    "call, sentence",
    [
        (lambda s, x: st.spmm(s.g, x[:4]), "x is 4 x 3, expected 5 x K for .*7 x 5"),
        (lambda s, x: st.spmm(s.g, x.float()), "x is torch.float32 and the matrix"),
        (lambda s, x: st.spmm(s.g, x.int()), "x is torch.int32"),
        (lambda s, x: st.spmm(s.g, x.to_sparse()), "x is sparse"),
        (lambda s, x: st.spmm(s.g, x.numpy()), "x is a ndarray, expected a torch.Tensor"),
        (lambda s, x: st.spmm(s.g, x.to("meta"), s.random(s.nnz)), "on cpu and .* on meta"),
        (lambda s, x: st.spmm("g", x), "a graph is a sparsed.Matrix, not a str"),
        (lambda s, x: st.spmm(s.g, x, reduce="median"), "reduce is 'median'"),
        (lambda s, x: st.spmm(s.g, x, s.random(3)), "values are 3, expected"),
        (lambda s, x: st.spmm(s.g, x, s.random(s.nnz, 2)), "3 columns cannot be shared out"),
        (lambda s, x: st.spmm(s.g, x, s.random(s.nnz, 3), "max"), "summed up"),
        (lambda s, x: st.spmm(s.g, x, s.random(s.nnz), unscaled=True), "only one of them"),
        (lambda s, x: st.sddmm(s.g, x, x), "a is 5 x 3, expected 7 x K"),
        (lambda s, x: st.sddmm(s.g, s.random(7, 2), x), "a has 2 columns and b 3"),
        (lambda s, x: st.sddmm(s.g, s.random(7, 3), x, heads=2), "3 columns, which cannot"),
        (lambda s, x: st.edge_softmax(s.g, x), "x is 5 x 3, expected"),
        (lambda s, x: st.propagate(s.g, x, 2), "7 x 5 matrix cannot be multiplied by its own"),
        (lambda s, x: st.propagate(s.g, x, 2, weights=[1.0]), "expected k . 1 = 3"),
    ],
)
def test_bad_input_is_an_exception_with_a_sentence(small, call, sentence):
    with pytest.raises(sparsed.InvalidArgument, match=sentence):
        call(small, small.random(5, 3, grad=False))


def test_a_released_graph(client, name):
    g = client.upload(name, np.eye(3), dtype="f64")
    number = number_of(g)
    x = torch.randn(3, 2, dtype=torch.float64, requires_grad=True)
    y = st.spmm(g, x)
    g.delete()
    with pytest.raises(sparsed.NotFound):
        st.spmm(g, x)
    del g
    gc.collect()
    with pytest.raises(sparsed.FailedPrecondition, match="keep the sparsed.Matrix"):
        _operators.spmm(number, x, None, False, False, False)
    with pytest.raises(sparsed.FailedPrecondition, match="keep the sparsed.Matrix"):
        y.sum().backward()


def test_a_closed_client(server, name):
    with sparsed.connect(server.address) as client:
        g = client.upload(name, np.eye(3), dtype="f64")
        g.delete()
        g = client.upload(name, np.eye(3), dtype="f64")
        number_of(g)
    with pytest.raises(sparsed.FailedPrecondition, match="closed"):
        st.spmm(g, torch.randn(3, 2, dtype=torch.float64))


def test_first_gradients_only_are_said_to_be_that(square):
    x, att = square.random(6, 4), square.random(2, 2)
    s = _attention.gatv2_scores(number_of(square.g), x, x, att, 0.2)
    (dx,) = torch.autograd.grad(s.sum(), x, create_graph=True)
    with pytest.raises(sparsed.Unimplemented, match="first gradient only"):
        dx.sum().backward()


def test_gatv2_scores(square, monkeypatch):
    from sparsed.torch import _gatv2

    monkeypatch.setattr(_gatv2, "BLOCK_BYTES", 100)  # several blocks
    left, right, att = square.random(6, 4), square.random(6, 4), square.random(2, 2)
    z = torch.nn.functional.leaky_relu(left[square.rows] + right[square.cols], 0.2)
    expected = (z.view(-1, 2, 2) * att).sum(2)
    number = number_of(square.g)
    close(_attention.gatv2_scores(number, left, right, att, 0.2), expected)
    assert torch.autograd.gradcheck(
        lambda a, b, c: _attention.gatv2_scores(number, a, b, c, 0.2), (left, right, att)
    )


def test_tensors_in_shared_memory(client, small):
    x = st.empty(client, (5, 3), torch.float64)
    x.copy_(small.random(5, 3, grad=False))
    close(st.spmm(small.g, x), small.dense() @ x)
    assert st.empty(client, 7, torch.bfloat16).shape == (7,)
    with pytest.raises(sparsed.InvalidArgument, match="dtype is torch.int64"):
        st.empty(client, 7, torch.int64)
