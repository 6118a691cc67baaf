"""Products, against SciPy or NumPy in f64."""

import numpy as np
import pytest
import scipy.sparse as sp

import sparsed

M, N = 60, 40


def random_matrix(rows=M, cols=N, density=0.1, dtype=np.float32, seed=1):
    rng = np.random.default_rng(seed)
    return sp.random(rows, cols, density, format="csr", rng=rng, dtype=np.float64).astype(dtype)


def rand(*shape, dtype=np.float32, seed=2):
    return np.random.default_rng(seed).standard_normal(shape).astype(dtype)


def close(got, expected, tolerance=1e-5):
    np.testing.assert_allclose(
        np.asarray(got, np.float64),
        np.asarray(expected, np.float64),
        rtol=tolerance,
        atol=tolerance,
    )


@pytest.fixture(scope="module")
def a():
    return random_matrix()


@pytest.fixture(scope="module", params=["attached", "remote"])
def g(request, a, client, remote):
    where = client if request.param == "attached" else remote
    return where.upload(f"products-{request.param}", a, replace=True)


@pytest.mark.parametrize("k", [1, 2, 7, 32, 100])
@pytest.mark.parametrize("transpose", [False, True])
def test_spmm(g, a, k, transpose):
    x = rand(M if transpose else N, k)
    close(g.spmm(x, transpose=transpose), (a.T if transpose else a) @ x)


def test_transports(g, a):
    g.spmm(rand(N, 4))
    expected = "attached" if g.name.endswith("attached") else "stream"
    assert sparsed.last_transport() == expected
    result = sparsed.last_result()
    assert result.version == g.info()["version"]
    assert "/" in result.plan
    assert result.batch == 1
    # Of a product in this process there is no request.
    assert bool(result.request_id) == (expected == "stream")


def test_the_request_id_of_an_error(client):
    with pytest.raises(sparsed.NotFound) as caught:
        client.matrix("nobody-has-this").info()
    assert caught.value.request_id and f"(request {caught.value.request_id})" in str(caught.value)


def test_vector(g, a):
    x = rand(N)
    y = g.spmm(x)
    assert y.shape == (M,)
    close(y, a @ x)
    assert g.spmm(rand(M), transpose=True).shape == (N,)


def test_no_columns(g):
    assert g.spmm(np.empty((N, 0), np.float32)).shape == (M, 0)
    y, which = g.spmm(np.empty((N, 0), np.float32), reduce="max", return_argument=True)
    assert y.shape == which.shape == (M, 0)
    none = np.empty((M, 0), np.float32), np.empty((N, 0), np.float32)
    assert not g.sddmm(*none).any()
    assert g.sddmm(*none, heads=3).shape == (g.nnz, 3)


def test_alpha_beta(g, a):
    x, y = rand(N, 5), rand(M, 5, seed=3)
    out = y.copy()
    assert g.spmm(x, alpha=2, beta=-0.5, out=out) is out
    close(out, 2 * (a @ x) - 0.5 * y)
    close(g.spmm(x, alpha=0.5, beta=3, accumulate=y), 0.5 * (a @ x) + 3 * y)


def test_values(g, a):
    x, v = rand(N, 6), rand(a.nnz)
    other = a.copy()
    other.data = v
    close(g.spmm(x, values=v), other @ x)
    close(g.spmm(rand(M, 6), values=v, transpose=True), other.T @ rand(M, 6))


def test_values_of_heads(g, a):
    x, v = rand(N, 6), rand(a.nnz, 3)
    expected = np.empty((M, 6))
    for h in range(3):
        other = sp.csr_array((v[:, h], a.indices, a.indptr), shape=a.shape)
        expected[:, 2 * h : 2 * h + 2] = other @ x[:, 2 * h : 2 * h + 2]
    close(g.spmm(x, values=v), expected)


@pytest.mark.parametrize("reduce", ["mean", "max", "min"])
@pytest.mark.parametrize("unscaled", [False, True])
def test_reductions(g, a, reduce, unscaled):
    x = rand(N, 3)
    expected = np.zeros((M, 3))
    function = {"mean": np.mean, "max": np.max, "min": np.min}[reduce]
    for i in range(M):
        row = slice(a.indptr[i], a.indptr[i + 1])
        products = x[a.indices[row]] * (1 if unscaled else a.data[row][:, None])
        if len(products):
            expected[i] = function(products, axis=0)
    close(g.spmm(x, reduce=reduce, unscaled=unscaled), expected)


@pytest.mark.parametrize("reduce", ["max", "min"])
def test_return_argument(g, a, reduce):
    x = rand(N, 3)
    y, which = g.spmm(x, reduce=reduce, return_argument=True)
    assert which.dtype == np.int64
    assert which.shape == y.shape
    empty = np.diff(a.indptr) == 0
    assert (which[empty] == -1).all()
    rows = np.repeat(np.arange(M), np.diff(a.indptr))
    for i, j in np.argwhere(which >= 0):
        p = which[i, j]
        assert rows[p] == i
        assert y[i, j] == pytest.approx(a.data[p] * x[a.indices[p], j], rel=1e-5)


def test_sddmm(g, a):
    left, right = rand(M, 8), rand(N, 8, seed=5)
    rows = np.repeat(np.arange(M), np.diff(a.indptr))
    dots = (left[rows] * right[a.indices]).sum(1)
    close(g.sddmm(left, right), a.data * dots)
    close(g.sddmm(left, right, unscaled=True), dots)
    v = rand(a.nnz)
    close(g.sddmm(left, right, values=v), v * dots)
    out = np.empty(a.nnz, np.float32)
    assert g.sddmm(left, right, out=out) is out
    close(out, a.data * dots)


def test_sddmm_heads(g, a):
    left, right = rand(M, 8), rand(N, 8, seed=5)
    rows = np.repeat(np.arange(M), np.diff(a.indptr))
    parts = (left[rows] * right[a.indices]).reshape(-1, 4, 2).sum(2)
    got = g.sddmm(left, right, unscaled=True, heads=4)
    assert got.shape == (a.nnz, 4)
    close(got, parts)


def test_softmax(g, a):
    x = rand(a.nnz, 2)
    expected = np.empty((a.nnz, 2))
    for i in range(M):
        row = slice(a.indptr[i], a.indptr[i + 1])
        e = np.exp(0.5 * x[row].astype(np.float64))
        expected[row] = e / e.sum(0)
    y = g.softmax(x, scale=0.5)
    close(y, expected)
    assert g.softmax(x[:, 0].copy()).shape == (a.nnz,)
    dy = rand(a.nnz, 2, seed=9)
    gradient = np.empty((a.nnz, 2))
    for i in range(M):
        row = slice(a.indptr[i], a.indptr[i + 1])
        p, d = expected[row], dy[row]
        gradient[row] = 0.5 * p * (d - (p * d).sum(0))
    close(g.softmax_gradient(y, dy, scale=0.5), gradient)


def test_total_and_scale(g, a):
    close(g.total(), np.asarray(a.sum(1)).ravel())
    close(g.total(transpose=True), np.asarray(a.sum(0)).ravel())
    v = rand(a.nnz, 2)
    expected = np.stack([
        sp.csr_array((v[:, h], a.indices, a.indptr), shape=a.shape).sum(1)
        for h in range(2)
    ], 1)  # fmt: skip
    close(g.total(v), expected)
    r, c = rand(M), rand(N)
    rows = np.repeat(np.arange(M), np.diff(a.indptr))
    close(g.scale(rows=r, cols=c), r[rows] * a.data * c[a.indices])
    close(g.scale(v[:, 0].copy(), rows=r), r[rows] * v[:, 0])
    close(g.scale(), a.data)


def test_spgemm(g, a):
    close(g.spgemm(g, transpose_other=True).toarray(), (a @ a.T).toarray())
    close(g.spgemm(g.T).toarray(), (a @ a.T).toarray())
    close(g.T.spgemm(g).toarray(), (a.T @ a).toarray())
    close((g @ g.T).toarray(), (a @ a.T).toarray())
    result = g.spgemm(g, transpose_other=True)
    assert isinstance(result, sp.csr_array)
    assert result.has_sorted_indices
    pairs = g.spgemm(g, transpose_other=True, semiring="plus-pair")
    ones = (a != 0).astype(np.float64)
    close(pairs.toarray(), (ones @ ones.T).toarray())


def test_spgemm_with_what_is_not_on_the_server(g, a, client):
    h = random_matrix(N, 30, seed=8)
    before = len(client.matrices())
    close(g.spgemm(h).toarray(), (a @ h).toarray())
    close((g @ h.tocoo()).toarray(), (a @ h).toarray())
    assert len(client.matrices()) == before


def test_spgemm_mask_and_keep(g, a):
    full = (a @ a.T).tocsr()
    mask = sp.random(M, M, 0.3, format="csr", rng=np.random.default_rng(4)).astype(np.float32)
    with g.client.temporary(mask) as m:
        masked = g.spgemm(g, transpose_other=True, mask=m)
    close(masked.toarray(), full.multiply(mask != 0).toarray())
    kept = g.spgemm(g, transpose_other=True, keep_as=f"{g.name}-kept", replace=True)
    assert isinstance(kept, sparsed.Matrix)
    assert kept.shape == (M, M)
    close(kept.download().toarray(), full.toarray())
    kept.delete()


def test_operators(g, a):
    x = rand(N, 3)
    close(g @ x, a @ x)
    close(g.T @ rand(M, 3), a.T @ rand(M, 3))
    row = rand(5, M)
    close(row @ g, row @ a)
    close(rand(4, N) @ g.T, rand(4, N) @ a.T)
    assert g.T.T is g
    assert g.T.shape == (N, M)


@pytest.mark.parametrize("dtype", [np.float64, np.float16])
def test_other_types(client, name, dtype):
    a = random_matrix(dtype=np.float64)
    g = client.upload(name, a, dtype=dtype)
    assert g.dtype == dtype
    x = rand(N, 9, dtype=dtype)
    y = g.spmm(x)
    assert y.dtype == dtype
    rounded = a.copy()
    rounded.data = a.data.astype(dtype).astype(np.float64)
    close(y, rounded @ x.astype(np.float64), 1e-12 if dtype == np.float64 else 3e-3)


def test_bfloat16(client, name):
    ml_dtypes = pytest.importorskip("ml_dtypes")
    a = random_matrix()
    g = client.upload(name, a, dtype="bf16")
    assert g.type == "bf16"
    assert g.dtype == ml_dtypes.bfloat16
    x = rand(N, 4).astype(ml_dtypes.bfloat16)
    y = g @ x
    assert y.dtype == ml_dtypes.bfloat16
    rounded = a.copy()
    rounded.data = a.data.astype(ml_dtypes.bfloat16).astype(np.float32)
    close(y.astype(np.float32), rounded @ x.astype(np.float32), 2e-2)


@pytest.mark.parametrize("shape", [(0, 5), (5, 0), (0, 0), (1, 1), (7, 3)])
def test_empty_matrices(client, name, shape):
    g = client.upload(name, sp.csr_array(shape, dtype=np.float32))
    assert g.shape == shape
    assert g.nnz == 0
    assert not g.spmm(np.ones((shape[1], 3), np.float32)).any()
    assert g.spmm(np.ones((shape[0], 3), np.float32), transpose=True).shape == (shape[1], 3)
    assert g.sddmm(np.ones((shape[0], 2), "f4"), np.ones((shape[1], 2), "f4")).shape == (0,)
    assert g.download().nnz == 0
    assert not g.total().any()


def test_nan_is_a_value(client, name):
    a = sp.csr_array(np.array([[1, np.nan], [0, 2]], np.float32))
    g = client.upload(name, a)
    y = g @ np.array([[1], [1]], np.float32)
    assert np.isnan(y[0, 0])
    assert y[1, 0] == 2
    assert np.isnan(g @ np.array([1, np.nan], np.float32)).all()


def test_held_operands(g, a):
    x = rand(N, 4)
    with g.client.put(None, x) as b, g.client.zeros(None, (M, 4)) as c:
        close(g.spmm(b), a @ x)
        assert g.spmm(b, out=c) is c
        assert sparsed.last_transport() == "held"
        close(c.read(), a @ x)
        names = [one["name"] for one in g.client.buffers()]
        assert b.name in names
        assert g.client.held(b.name).shape == (N, 4)
        b.renew()
    assert not {b.name, c.name} & {one["name"] for one in g.client.buffers()}
    with pytest.raises(sparsed.NotFound):
        b.read()
