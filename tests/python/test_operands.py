"""Dense operands and results: whose arrays, how they lie in memory, and what is wrong with them."""

import numpy as np
import pytest
import scipy.sparse as sp

import sparsed
from sparsed import _dlpack

torch = pytest.importorskip("torch")

M, N = 30, 20


@pytest.fixture(scope="module")
def a():
    return sp.random(M, N, 0.2, format="csr", rng=5, dtype=np.float32)


@pytest.fixture(scope="module", params=["attached", "remote"])
def g(request, a, client, remote):
    where = client if request.param == "attached" else remote
    return where.upload(f"operands-{request.param}", a, replace=True)


def rand(*shape):
    return np.random.default_rng(1).standard_normal(shape).astype(np.float32)


def close(got, expected):
    np.testing.assert_allclose(np.asarray(got), expected, rtol=1e-5, atol=1e-5)


# Views of arrays that are laid out in other ways than a new one is.
LAYOUTS = {
    "leading dimension": lambda x: np.hstack([x, x])[:, : x.shape[1]],
    "every other row": lambda x: np.repeat(x, 2, axis=0)[::2],
    "Fortran order": np.asfortranarray,
    "every other column": lambda x: np.repeat(x, 2, axis=1)[:, ::2],
    "backwards": lambda x: x[::-1].copy()[::-1],
    "a row for all": lambda x: np.broadcast_to(x[:1], x.shape),
    "not aligned": lambda x: _unaligned(x),
    "big endian": lambda x: x.astype(">f4"),
    "read only": lambda x: _read_only(x),
    "matrix": lambda x: np.asmatrix(x),
}


def _unaligned(x):
    memory = np.zeros(x.nbytes + 1, np.uint8)
    view = memory[1:].view(np.float32).reshape(x.shape)
    view[:] = x
    assert not view.flags.aligned
    return view


def _read_only(x):
    x = x.copy()
    x.flags.writeable = False
    return x


@pytest.mark.parametrize("layout", LAYOUTS)
def test_layouts(g, a, layout):
    x = LAYOUTS[layout](rand(N, 5))
    before = x.copy()
    y = g.spmm(x)
    assert isinstance(y, np.ndarray)
    close(y, a @ np.asarray(x, np.float32))
    assert (x == before).all()


def test_layouts_of_vectors(g, a):
    x = rand(N)
    for view in (np.repeat(x, 3)[::3], x[::-1].copy()[::-1], np.broadcast_to(x[:1], N)):
        y = g.spmm(view)
        assert y.shape == (M,)
        close(y, a @ view)


def test_out(g, a):
    x = rand(N, 4)
    wide = np.zeros((M, 9), np.float32)
    view = wide[:, 3:7]
    assert g.spmm(x, out=view) is view
    close(view, a @ x)
    assert not wide[:, :3].any()
    assert not wide[:, 7:].any()
    vector = np.empty(M, np.float32)
    assert g.spmm(x[:, 0].copy(), out=vector) is vector
    close(vector, a @ x[:, 0])
    column = np.empty((M, 1), np.float32)
    close(g.spmm(x[:, 0].copy(), out=column)[:, 0], a @ x[:, 0])


@pytest.mark.parametrize(
    ("out", "match"),
    [
        (np.empty((M, 3), np.float32), "expected 30 x 4"),
        (np.empty((N, 4), np.float32), "expected 30 x 4"),
        (np.empty((M, 4), np.float64), "float64"),
        (np.empty((M, 4), np.float32, order="F"), "row-major"),
        (np.empty((M, 8), np.float32)[:, ::2], "row-major"),
        (np.empty((M, 4), ">f4"), "byte order"),
        (np.broadcast_to(np.float32(0), (M, 4)), "read-only"),
        (np.empty(4 * M, np.float32), "expected 30 x 4"),
        ([[0.0] * 4] * M, "list"),
        (torch.empty(M, 4, dtype=torch.float64), "float64"),
        (torch.empty(4, M).T, "row-major"),
        (torch.empty(1, 4).expand(M, 4), "row-major"),
    ],
)
def test_what_no_result_fits_in(g, out, match):
    with pytest.raises(sparsed.InvalidArgument, match=match):
        g.spmm(rand(N, 4), out=out)


def test_lists(g, a):
    x = rand(N, 2)
    close(g.spmm(x.tolist()), a @ x)
    close(g.spmm([1] * N), np.asarray(a.sum(axis=1)).ravel())


# ---- PyTorch


TORCH_LAYOUTS = {
    "contiguous": lambda x: x,
    "leading dimension": lambda x: torch.cat([x, x], 1)[:, : x.shape[1]],
    "transposed": lambda x: x.T.contiguous().T,
    "every other column": lambda x: x.repeat_interleave(2, 1)[:, ::2],
    "expanded": lambda x: x[:1].expand_as(x),
    "a parameter's data": lambda x: torch.nn.Parameter(x).data,
}


@pytest.mark.parametrize("layout", TORCH_LAYOUTS)
def test_torch(g, a, layout):
    x = TORCH_LAYOUTS[layout](torch.from_numpy(rand(N, 5)))
    y = g.spmm(x)
    assert isinstance(y, torch.Tensor)
    assert y.dtype is torch.float32
    close(y, a @ x.numpy())
    close(g.sddmm(torch.from_numpy(rand(M, 5)), x), g.sddmm(rand(M, 5), x.numpy()))
    assert g.spmm(x[:, 0]).shape == (M,)


def test_torch_out_values_and_argument(g, a):
    x = torch.from_numpy(rand(N, 3))
    out = torch.empty(M, 3)
    values = torch.from_numpy(rand(a.nnz))
    assert g.spmm(x, values=values, out=out) is out
    other = a.copy()
    other.data = values.numpy()
    close(out, other @ x.numpy())
    y, which = g.spmm(x, reduce="max", return_argument=True)
    assert which.dtype is torch.int64


def test_torch_negated_view(g, a):
    x = torch.from_numpy(rand(N, 3))
    lazy = torch._neg_view(x)
    close(g.spmm(lazy), a @ -x.numpy())


@pytest.mark.parametrize("dtype", [torch.bfloat16, torch.float16, torch.float64])
def test_torch_types(client, name, a, dtype):
    g = client.upload(name, a, dtype=dtype)
    x = torch.from_numpy(rand(N, 3)).to(dtype)
    y = g.spmm(x)
    assert y.dtype is dtype
    np.testing.assert_allclose(y.double().numpy(), a @ x.double().numpy(), rtol=0.05, atol=0.05)


@pytest.mark.parametrize(
    ("x", "match"),
    [
        (torch.ones(N, 2, dtype=torch.float64), "float64"),
        (torch.ones(N, 2, dtype=torch.int32), "int32"),
        (torch.ones(N, 2, device="meta"), "device meta"),
        (torch.eye(N).to_sparse_coo(), "sparse"),
        (torch.ones(N, 2, requires_grad=True), "detach"),
        (torch.ones(N, 2, 2), "3 dimensions"),
        (torch.tensor(1.0), "0 dimensions"),
        (torch.ones(N - 1, 2), "expected 20"),
    ],
)
def test_torch_that_does_not_fit(g, x, match):
    with pytest.raises(sparsed.InvalidArgument, match=match):
        g.spmm(x)


def test_torch_without_gradient(g, a):
    x = torch.ones(N, 2, requires_grad=True)
    with torch.no_grad():
        close(g.spmm(x), a @ np.ones((N, 2), np.float32))


# ---- Others


class OnlyDlpack:
    """An array of a framework that is not known here."""

    def __init__(self, array):
        self.array = array

    def __dlpack__(self, *, stream=None):
        return self.array.__dlpack__()

    def __dlpack_device__(self):
        return self.array.__dlpack_device__()


class OfNamespace(OnlyDlpack):
    """... that follows the array API standard."""

    @staticmethod
    def __array_namespace__():
        return OfNamespace

    @staticmethod
    def from_dlpack(array):
        return OfNamespace(np.from_dlpack(array))


def test_dlpack(g, a):
    x = rand(N, 3)
    close(g.spmm(OnlyDlpack(x)), a @ x)
    close(g.spmm(OnlyDlpack(np.asfortranarray(x))), a @ x)
    y = g.spmm(OfNamespace(x))
    assert isinstance(y, OfNamespace)
    close(y.array, a @ x)
    out = OnlyDlpack(np.zeros((M, 3), np.float32))
    assert g.spmm(x, out=out) is out
    close(out.array, a @ x)
    with pytest.raises(sparsed.InvalidType, match="f64"):
        g.spmm(OnlyDlpack(x.astype(np.float64)))
    with pytest.raises(sparsed.InvalidType, match="DLPack"):
        g.spmm(OnlyDlpack(np.ones((N, 2), np.int16)))


def test_dlpack_is_read_as_it_is():
    x = np.arange(12, dtype=np.float64).reshape(3, 4)[:, 1:3]
    view = _dlpack.view(x, None)
    assert view.data == x.__array_interface__["data"][0]
    assert view.shape == (3, 2)
    assert view.strides == (4, 1)
    assert view.device == -1


def test_cuda_array_interface(g):
    """There is no GPU: what is asked of it is refused by the library, with a sentence."""

    class Array:
        __cuda_array_interface__ = {
            "data": (4096, False), "shape": (N, 2), "typestr": "<f4", "version": 3,
            "strides": None,
        }  # fmt: skip

    with pytest.raises(sparsed.Error):
        g.spmm(Array(), out=Array())

    class Doubles:
        __cuda_array_interface__ = {
            "data": (4096, False), "shape": (N, 2), "typestr": "<f8", "version": 3,
        }  # fmt: skip

    with pytest.raises(sparsed.InvalidType):
        g.spmm(Doubles())


@pytest.mark.parametrize(
    ("x", "match"),
    [
        (np.ones((N, 2)), "float64"),
        (np.ones((N, 2), np.int64), "int64"),
        (np.ones((N, 2), bool), "bool"),
        (np.ones((N, 2), complex), "complex128"),
        (np.array([["a"] * 2] * N), "<U1"),
        (np.array([[None] * 2] * N), "object"),
        (np.ones((N + 1, 2), np.float32), "expected 20"),
        (np.ones((N, 2, 2), np.float32), "3 dimensions"),
        (np.float32(3), "x"),
        ("text", "str"),
        (None, "x is a NoneType"),
        ([[1, 2], [3]], "list"),
        (sp.csr_array((N, 2), dtype=np.float32), "spgemm"),
        (np.ma.masked_array(np.ones((N, 2), np.float32)), "masked"),
        (object(), "object"),
    ],
)
def test_what_does_not_fit(g, x, match):
    with pytest.raises(sparsed.InvalidArgument, match=match):
        g.spmm(x)


@pytest.mark.parametrize(
    ("call", "match"),
    [
        (lambda g: g.spmm(rand(N, 2), reduce="product"), "sum, mean, max or min"),
        (lambda g: g.spmm(rand(N, 2), beta=1), "accumulate="),
        (lambda g: g.spmm(rand(N, 2), values=rand(3)), "each of the"),
        (lambda g: g.spmm(rand(N, 2), reduce="max", alpha=2), "alpha"),
        (lambda g: g.spmm(rand(N, 2), return_argument=True), "return_argument goes with"),
        (lambda g: g.spmm(rand(N, 3), values=rand(g.nnz, 2)), "2"),
        (lambda g: g.spmm(rand(N, 2), accumulate=rand(N, 2), beta=1), "accumulate is 20 x 2"),
        (lambda g: g.spmm(rand(N, 2), transpose=True), "expected 30"),
        (lambda g: g.sddmm(rand(M, 2), rand(N, 3)), "2 columns"),
        (lambda g: g.sddmm(rand(N, 2), rand(N, 2)), "expected 30"),
        (lambda g: g.sddmm(rand(M, 2), rand(M, 2)), "expected 20"),
        (lambda g: g.sddmm(rand(M, 3), rand(N, 3), heads=2), "heads"),
        (lambda g: g.sddmm(rand(M, 2), rand(N, 2), heads=0), "heads"),
        (lambda g: g.spgemm(g, semiring="other"), "plus-pair"),
        (lambda g: g.spgemm(g), "20"),
        (lambda g: g.softmax(rand(3)), "nonzeros"),
        (lambda g: g.total(rand(3)), "nonzeros"),
        (lambda g: g.explain(k=-1), "k is -1"),
        (lambda g: g.update_values(rand(3)), "nonzeros"),
    ],
)
def test_wrong_arguments(g, call, match):
    with pytest.raises(sparsed.InvalidArgument, match=match):
        call(g)


def test_many_threads(g, a):
    """All on one matrix, with results of their own."""
    from concurrent.futures import ThreadPoolExecutor

    x = rand(N, 6)
    expected = a @ x
    with ThreadPoolExecutor(8) as threads:
        for y in threads.map(lambda _: g.spmm(x), range(200)):
            close(y, expected)
