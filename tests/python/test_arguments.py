"""What calls are given beside arrays: numbers, options, widths of nothing. Each is refused with a
sentence that speaks of what the caller wrote, or has a result."""

import math

import numpy as np
import pytest
import scipy.sparse as sp

import sparsed

N = 50


@pytest.fixture(scope="module")
def a():
    return sp.random(N, N, 0.1, format="csr", rng=5, dtype=np.float32)


@pytest.fixture(scope="module", params=["attached", "remote"])
def g(request, a, client, remote):
    c = client if request.param == "attached" else remote
    with c.temporary(a) as uploaded:
        yield uploaded


def x(width=4, rows=N):
    return np.ones((rows, width), np.float32)


# ---- Seconds -------------------------------------------------------------------------------------

NO_SECONDS = [-1, 0, -1e-9, math.inf, -math.inf, math.nan, 1e30]


@pytest.mark.parametrize("timeout", NO_SECONDS)
def test_timeouts_that_are_none(g, timeout):
    sentence = rf"timeout is {timeout!r}, expected more than 0 seconds, and 292 years at the most"
    for call in (
        lambda: g.spmm(x(), timeout=timeout),
        lambda: g.sddmm(x(), x(), timeout=timeout),
        lambda: g.total(timeout=timeout),
        lambda: g.spgemm(g, timeout=timeout),
        lambda: g.download(timeout=timeout),
        lambda: g.wait_ready(timeout=timeout),
        lambda: g.prepare(8, timeout=timeout),
        lambda: g.update_values(np.ones(g.nnz, np.float32), timeout=timeout),
        lambda: g.client.put(None, x(), timeout=timeout),
        lambda: g.client.upload("never", np.eye(3), timeout=timeout),
    ):
        with pytest.raises(sparsed.InvalidArgument, match=sentence.replace("+", r"\+")) as raised:
            call()
        assert isinstance(raised.value, ValueError)
        assert "None: no limit" in str(raised.value)


@pytest.mark.parametrize("timeout", ["3", [], True, 1j, b"1"])
def test_timeouts_of_another_type(g, timeout):
    with pytest.raises(sparsed.InvalidType, match="timeout is a .*, expected seconds") as raised:
        g.spmm(x(), timeout=timeout)
    assert isinstance(raised.value, TypeError)


@pytest.mark.parametrize("timeout", [None, 60, 60.0, np.float32(60), np.int64(60), 1e9])
def test_timeouts(g, a, timeout):
    np.testing.assert_allclose(g.spmm(x(), timeout=timeout), a @ x(), rtol=1e-5)


@pytest.mark.parametrize("seconds", NO_SECONDS)
def test_times_to_live_that_are_none(client, seconds):
    for call in (client.put, lambda name, _, **how: client.zeros(name, (2, 2), **how)):
        with pytest.raises(sparsed.InvalidArgument, match="time_to_live is .*as the server dec"):
            call("never", x(), time_to_live=seconds)
    with pytest.raises(sparsed.NotFound):
        client.held("never")


# ---- Connections ---------------------------------------------------------------------------------


@pytest.mark.parametrize(
    "options, sentence",
    [
        ({"streams": 0}, "streams is 0, expected 1 or more"),
        ({"streams": -3}, "streams is -3, expected 1 or more"),
        ({"streams": 99}, "streams is 99, expected 16 at the most"),
        ({"priority": 8}, "priority is 8, expected 7 at the most"),
        ({"attempts": 0}, "attempts is 0, expected 1 or more"),
        ({"attempts": 2**40}, "attempts is 1099511627776, expected 2147483647 at the most"),
        ({"threads": 0}, "threads is 0, expected 1 or more"),
        ({"threads": -1}, "threads is -1, expected 1 or more"),
        ({"timeout": 0}, "timeout is 0, expected more than 0 seconds"),
        ({"timeout": -1}, "timeout is -1, expected more than 0 seconds"),
        ({"timeout": math.inf}, "timeout is inf, expected more than 0 seconds"),
        ({"keepalive": -1}, "keepalive is -1, expected more than 0 seconds"),
        ({"keepalive": math.nan}, "keepalive is nan, expected more than 0 seconds"),
        ({"ring_spin": -1}, "ring_spin is -1, expected 0 or more seconds"),
    ],
)
def test_options_that_make_no_sense(server, options, sentence):
    with pytest.raises(sparsed.InvalidArgument, match=sentence) as raised:
        sparsed.connect(server.address, **options)
    assert not isinstance(raised.value, TypeError)


@pytest.mark.parametrize(
    "name", ["streams", "attempts", "threads", "priority", "timeout", "keepalive", "ring_spin"]
)
@pytest.mark.parametrize("value", ["1", b"1", [1]])
def test_options_of_another_type(server, name, value):
    with pytest.raises(sparsed.InvalidType, match=f"{name} is a {type(value).__name__}, expected"):
        sparsed.connect(server.address, **{name: value})


def test_options_of_numpy(server):
    options = {"streams": np.int64(2), "timeout": np.float32(5), "threads": np.int32(1)}
    with sparsed.connect(server.address, **options) as c:
        assert c.info()["version"]


def test_no_address():
    with pytest.raises(sparsed.InvalidArgument, match="address is empty, expected host:port or"):
        sparsed.connect("")


# ---- Other numbers -------------------------------------------------------------------------------


@pytest.mark.parametrize(
    "call, error, sentence",
    [
        (lambda g: g.spmm(x(), alpha="2"), sparsed.InvalidType, "alpha is a str, expected a num"),
        (lambda g: g.spmm(x(), accumulate=x(), beta=[1]), sparsed.InvalidType, "beta is a list"),
        (lambda g: g.spmm(x(), transpose="no"), sparsed.InvalidType, "transpose is 'no'"),
        (lambda g: g.softmax(np.ones(g.nnz, np.float32), scale="1"), sparsed.InvalidType, "scale"),
        (lambda g: g.update_values(np.ones(g.nnz, np.float32), if_version="1"),
         sparsed.InvalidType, "if_version is a str"),
        (lambda g: g.update_values(np.ones(g.nnz, np.float32), if_version=-1),
         sparsed.InvalidArgument, "if_version is -1, expected 1 or more"),
        (lambda g: g.attach(gpu="0"), sparsed.InvalidType, "gpu is a str"),
        (lambda g: g.attach(gpu=-2), sparsed.InvalidArgument, "gpu is -2, expected 0 or more"),
        (lambda g: g.explain(k=-5), sparsed.InvalidArgument, "k is -5, expected 0 or more"),
        (lambda g: g.prepare(0), sparsed.InvalidArgument, "'spmm:0' is of width 0"),
        (lambda g: g.prepare("spmm:" + "9" * 30), sparsed.InvalidArgument, "is none of spmm:K"),
    ],
)  # fmt: skip
def test_numbers(g, call, error, sentence):
    with pytest.raises(error, match=sentence):
        call(g)


# ---- What does not fit, in the caller's words ----------------------------------------------------


@pytest.mark.parametrize(
    "call, sentence",
    [
        (lambda g, v: g.spmm(x(8), values=v(3)), "values are of 3 heads, and 8 columns cannot be"),
        (lambda g, v: g.spmm(x(8), values=v(0)), "values are of 0 heads"),
        (lambda g, v: g.spmm(x(8), values=v(2), reduce="mean"), "values of 2 heads are summed up"),
        (lambda g, v: g.spmm(x(), values=v(1), reduce="max", unscaled=True), "only one of them"),
        (lambda g, v: g.spmm(x(), return_argument=True), "return_argument goes with reduce 'max'"),
        (lambda g, v: g.spmm(x(), alpha=2, reduce="mean"), "are of sums, and reduce is 'mean'"),
        (lambda g, v: g.sddmm(x(), x(), values=v(3), heads=2), "of 3 heads, expected 1 or 2"),
        (lambda g, v: g.sddmm(x(), x(), values=v(1), unscaled=True), "only one of them"),
        (lambda g, v: g.softmax_gradient(v(2), v(3)), "y has 2 columns, and dy has 3"),
        (lambda g, v: g.scale(rows=x(1, 5)), f"rows has 5 rows, expected {N}: "),
        (lambda g, v: g.scale(cols=x(1, 5)), f"cols has 5 rows, expected {N}: "),
        (lambda g, v: g.scale(v(2), rows=x(3)), "have 2, 3 columns, expected 3 of each, or 1 of"),
        (lambda g, v: g.scale(v(1), rows=x(3)), "have 1, 3 columns, expected 3 of each, or 1 of"),
        (lambda g, v: g.client.put("z", x(0)), "'z' has no columns"),
        (lambda g, v: g.client.zeros("z", (3, 0)), "'z' has no columns"),
        (lambda g, v: g.client.put("z", x(), distribution="row"),
         "'whole', 'columns', 'rows' or 'auto'"),
        (lambda g, v: g.client.put("z", x(), rows_of="m"), "rows_of is for distribution='rows'"),
        (lambda g, v: g.client.put("z", x(), distribution="auto"), "'auto' needs rows_of"),
    ],
)
def test_sentences_of_plain_calls(g, call, sentence):
    def values(heads):
        return np.ones((g.nnz, heads), np.float32)

    with pytest.raises(sparsed.InvalidArgument, match=sentence) as raised:
        call(g, values)
    # Of how the library does it the caller knows nothing.
    assert not any(word in str(raised.value) for word in ("step", "chain", "operand", "Options"))


def test_values_of_one_head_for_several(g, a):
    v = np.arange(g.nnz, dtype=np.float32)
    rows = np.repeat(np.arange(N), np.diff(a.indptr))
    q = np.random.default_rng(0).random((N, 4), np.float32)
    by_head = (q[rows] * q[a.indices]).reshape(-1, 2, 2).sum(2)
    np.testing.assert_allclose(g.sddmm(q, q, values=v, heads=2), v[:, None] * by_head, rtol=1e-5)
    np.testing.assert_allclose(
        g.scale(np.stack((v, v), 1), rows=q[:, 0]), np.stack((v, v), 1) * q[rows, :1], rtol=1e-5
    )


def test_sparse_products_of_two_connections(server, a, name):
    with sparsed.connect(server.address) as one, sparsed.connect(server.address) as other:
        g = one.upload(name, a)
        h = other.matrix(name)
        np.testing.assert_allclose(g.spgemm(h).toarray(), (a @ a).toarray(), rtol=1e-5)


# ---- Widths of 0 ---------------------------------------------------------------------------------


@pytest.mark.parametrize("kind", ["numpy", "torch"])
def test_products_of_no_columns(g, kind):
    if kind == "torch":
        torch = pytest.importorskip("torch")
    made = (lambda *shape: torch.zeros(shape)) if kind == "torch" else (
        lambda *shape: np.zeros(shape, np.float32)
    )  # fmt: skip
    nothing = made(N, 0)
    for y in (
        g.spmm(nothing),
        g @ nothing,
        g.T @ nothing,
        g.spmm(nothing, values=made(g.nnz)),
        g.spmm(nothing, values=made(g.nnz, 2)),
        g.spmm(nothing, reduce="mean"),
        g.spmm(nothing, reduce="max", return_argument=True)[0],
        g.spmm(nothing, reduce="max", return_argument=True)[1],
        g.spmm(nothing, beta=1, accumulate=nothing),
        g.total(made(g.nnz, 0)),
    ):
        assert type(y) is type(nothing)
        assert y.shape == (N, 0)
    out = made(N, 0)
    assert g.spmm(nothing, out=out) is out
    assert g.spmm(nothing, beta=1, out=out) is out
    with pytest.raises(sparsed.InvalidArgument, match=f"out is {N} x 1, expected {N} x 0"):
        g.spmm(nothing, out=made(N, 1))
    for y in (
        g.softmax(made(g.nnz, 0)),
        g.softmax_gradient(made(g.nnz, 0), made(g.nnz, 0)),
        g.scale(made(g.nnz, 0)),
    ):
        assert y.shape == (g.nnz, 0)
    # Sums of nothing.
    o = g.sddmm(nothing, nothing)
    assert o.shape == (g.nnz,)
    assert (o == 0).all()
    assert g.sddmm(nothing, nothing, heads=3).shape == (g.nnz, 3)


def test_awaited_products_of_no_columns(server, a, name):
    import asyncio

    import sparsed.aio

    async def main():
        async with await sparsed.aio.connect(server.address) as c:
            g = await c.upload(name, a)
            return await g.spmm(x(0)), await g.softmax(np.ones((a.nnz, 0), np.float32))

    y, p = asyncio.run(main())
    assert y.shape == (N, 0)
    assert p.shape == (a.nnz, 0)
