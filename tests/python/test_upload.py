"""Sparse matrices of every kind, as the server has them afterwards."""

import gzip

import numpy as np
import pytest
import scipy.sparse as sp

import sparsed

torch = pytest.importorskip("torch")


def example(dtype=np.float32):
    rng = np.random.default_rng(3)
    return sp.random(12, 9, 0.3, format="csr", rng=rng, dtype=np.float64).astype(dtype)


def check(g, expected):
    """It is `expected`, and canonical."""
    got = g.download()
    expected = sp.csr_array(expected)
    assert g.shape == got.shape == expected.shape
    assert (np.diff(got.indices)[np.diff(_rows(got)) == 0] > 0).all()
    np.testing.assert_allclose(got.toarray(), expected.toarray(), rtol=1e-6)


def _rows(csr):
    return np.repeat(np.arange(csr.shape[0]), np.diff(csr.indptr))


@pytest.mark.parametrize("format_", ["csr", "csc", "coo", "bsr", "dia", "dok", "lil"])
@pytest.mark.parametrize("kind", [sp.csr_array, sp.csr_matrix])
def test_scipy(client, name, format_, kind):
    a = example()
    check(client.upload(name, kind(a).asformat(format_)), a)


def test_scipy_with_duplicates_and_without_order(client, name):
    row, col = np.array([2, 0, 2, 2, 0, 1]), np.array([1, 3, 0, 1, 3, 2])
    data = np.array([1, 2, 3, 4, 5, 6], np.float32)
    coo = sp.coo_array((data, (row, col)), shape=(3, 4))
    g = client.upload(name, coo)
    assert g.nnz == 4
    check(g, coo.toarray())
    np.testing.assert_array_equal(g.download().data, [7, 6, 3, 5])
    # CSR whose rows are not sorted, and have duplicates.
    csr = sp.csr_array((data, np.array([3, 1, 1, 0, 2, 2]), np.array([0, 3, 5, 6])), shape=(3, 4))
    check(client.upload(name, csr, replace=True), csr.toarray())
    assert list(csr.indices) == [3, 1, 1, 0, 2, 2]  # what was given is as it was


def test_triples(client, name):
    row, col = np.array([2, 0, 2]), np.array([1, 3, 1], np.uint8)
    g = client.upload(name, (row, col, np.array([1.0, 2.0, 4.0])), shape=(3, 4))
    assert g.type == "f64"
    check(g, [[0, 0, 0, 2], [0, 0, 0, 0], [0, 5, 0, 0]])
    g = client.upload(name, (row, col), shape=(3, 4), replace=True)
    check(g, [[0, 0, 0, 1], [0, 0, 0, 0], [0, 2, 0, 0]])
    g = client.upload(name, ([0, 1], [1, 0], [2, 3]), shape=2, replace=True)
    assert g.type == "f32"
    check(g, [[0, 2], [3, 0]])


def test_csr_of_ours(client, name):
    a = example()
    csr = sparsed.Csr(a.shape, a.indptr, a.indices, a.data)
    check(client.upload(name, csr), a)
    ones = client.upload(name, csr._replace(values=None), replace=True)
    assert (ones.download().data == 1).all()


def test_dense(client, name):
    check(client.upload(name, example().toarray()), example())
    check(client.upload(name, torch.tensor(example().toarray()), replace=True), example())


@pytest.mark.parametrize("dtype", [np.int8, np.int64, np.uint16, np.bool_])
def test_integers_become_f32(client, name, dtype):
    a = np.array([[0, 1], [3, 0]]).astype(dtype)
    g = client.upload(name, sp.csr_array(a))
    assert g.type == "f32"
    check(g, a)
    g = client.upload(name, sp.csr_array(a), dtype=np.float64, replace=True)
    assert g.type == "f64"


def test_duplicates_of_booleans_are_counted(client, name):
    g = client.upload(name, (np.zeros(3, int), np.ones(3, int), np.ones(3, bool)), shape=2)
    assert g.download().data.tolist() == [3]


@pytest.mark.parametrize(
    ("dtype", "type_"),
    [("f16", "f16"), ("bf16", "bf16"), ("f32", "f32"), ("f64", "f64"), (np.float16, "f16"),
     (torch.bfloat16, "bf16"), ("float64", "f64")],
)  # fmt: skip
def test_dtype(client, name, dtype, type_):
    g = client.upload(name, example(), dtype=dtype)
    assert g.type == type_
    np.testing.assert_allclose(g.download().toarray(), example().toarray(), rtol=1e-2)


def test_big_endian(client, name):
    a = example()
    swapped = sparsed.Csr(
        a.shape, a.indptr.astype(">i8"), a.indices.astype(">i4"), a.data.astype(">f4")
    )
    check(client.upload(name, swapped), a)


# ---- PyTorch


@pytest.mark.parametrize("layout", ["coo", "csr", "csc", "bsr", "bsc"])
@pytest.mark.parametrize("dtype", [torch.float32, torch.float64, torch.bfloat16, torch.float16])
def test_torch(client, name, layout, dtype):
    dense = torch.tensor(example().toarray(), dtype=dtype)
    if layout == "coo":
        tensor = dense.to_sparse_coo()
    elif layout[0] == "b":
        tensor = getattr(dense, f"to_sparse_{layout}")((3, 3))
    else:
        tensor = getattr(dense, f"to_sparse_{layout}")()
    g = client.upload(name, tensor)
    assert (
        g.type
        == {2: "bf16" if dtype is torch.bfloat16 else "f16", 4: "f32", 8: "f64"}[dtype.itemsize]
    )
    check(g, dense.double().numpy())


def test_torch_coo_is_summed_up(client, name):
    tensor = torch.sparse_coo_tensor([[1, 0, 1], [0, 1, 0]], [1.0, 2.0, 3.0], (2, 3))
    check(client.upload(name, tensor), tensor.to_dense().numpy())
    half = torch.sparse_coo_tensor([[1, 1], [0, 0]], torch.tensor([1.0, 3.0]).bfloat16(), (2, 3))
    g = client.upload(name, half, replace=True)
    assert g.type == "bf16"
    assert g.download().data.tolist() == [4]


def test_torch_that_requires_a_gradient(client, name):
    tensor = torch.eye(3).to_sparse_coo().requires_grad_()
    check(client.upload(name, tensor), np.eye(3))


# ---- PyG


def edges():
    return np.array([[0, 1, 2, 2, 0], [1, 2, 0, 1, 1]])  # source, target; one twice


def expected_of_edges(weights):
    dense = np.zeros((4, 4))
    source, target = edges()
    np.add.at(dense, (target, source), weights)
    return dense


@pytest.mark.parametrize("kind", [np.asarray, torch.as_tensor])
def test_edge_index(client, name, kind):
    index = kind(edges())
    g = client.upload(name, index, shape=(4, 4))
    check(g, expected_of_edges(np.ones(5)))
    weights = np.array([1, 2, 3, 4, 5], np.float32)
    g = client.upload(name, index, num_nodes=4, values=kind(weights), replace=True)
    check(g, expected_of_edges(weights))
    # What PyG's propagate sums up.
    x = np.random.default_rng(1).standard_normal((4, 3)).astype(np.float32)
    out = np.zeros((4, 3), np.float32)
    np.add.at(out, edges()[1], weights[:, None] * x[edges()[0]])
    np.testing.assert_allclose(g.spmm(x), out, rtol=1e-5)


def test_edge_index_between_two_kinds(client, name):
    g = client.upload(name, np.array([[5, 0], [1, 2]]), shape=(3, 6))
    assert g.shape == (3, 6)
    assert g.download().toarray()[1, 5] == 1


def test_positions(client, name):
    index, weights = edges(), np.array([1, 2, 3, 4, 5], np.float32)
    g = client.upload(name, index, num_nodes=4)
    p = sparsed.positions(index, num_nodes=4)
    values = np.zeros(g.nnz, np.float32)
    np.add.at(values, p, weights)
    g.update_values(values)
    check(g, expected_of_edges(weights))
    a = example()
    assert (sparsed.positions(a) == np.arange(a.nnz)).all()
    assert (sparsed.positions(torch.as_tensor(index), num_nodes=4) == p).all()


def test_edge_index_of_pyg(client, name):
    pyg = pytest.importorskip("torch_geometric")
    index = pyg.EdgeIndex(torch.as_tensor(edges()), sparse_size=(4, 4))
    check(client.upload(name, index), expected_of_edges(np.ones(5)))


def test_sparse_tensor_by_its_methods(client, name):
    a = example()

    class SparseTensor:
        def csr(self):
            return torch.as_tensor(a.indptr), torch.as_tensor(a.indices), torch.as_tensor(a.data)

        def sparse_sizes(self):
            return a.shape

    check(client.upload(name, SparseTensor()), a)


# ---- Files


@pytest.mark.parametrize("format_", ["csr", "csc", "coo", "bsr", "dia"])
def test_npz(client, name, tmp_path, format_):
    path = tmp_path / "a.npz"
    sp.save_npz(path, sp.csr_array(example()).asformat(format_))
    check(client.upload(name, path), example())
    check(client.upload(name, str(path), replace=True, dtype="f64"), example())


def test_matrix_market(client, name, tmp_path):
    text = "%%MatrixMarket matrix coordinate real symmetric\n3 3 3\n1 1 2.5\n2 1 -1\n3 2 4\n"
    (tmp_path / "a.mtx").write_text(text)
    expected = [[2.5, -1, 0], [-1, 0, 4], [0, 4, 0]]
    check(client.upload(name, tmp_path / "a.mtx"), expected)
    with gzip.open(tmp_path / "b.mtx.gz", "wt") as file:
        file.write(text)
    g = client.upload(name, tmp_path / "b.mtx.gz", replace=True, dtype="f64")
    assert g.type == "f64"
    check(g, expected)


def test_bad_files(client, name, tmp_path):
    bad = tmp_path / "a.mtx"
    bad.write_text("%%MatrixMarket matrix coordinate real general\n2 2 1\n3 1 1\n")
    with pytest.raises(sparsed.InvalidArgument, match="3"):
        client.upload(name, bad)
    for missing in ("none.mtx", "none.npz"):
        with pytest.raises(FileNotFoundError, match=missing):
            client.upload(name, tmp_path / missing)
    (tmp_path / "c.npz").write_bytes(b"no archive")
    with pytest.raises(sparsed.InvalidArgument, match="c.npz: there are no edges in it"):
        client.upload(name, tmp_path / "c.npz")
    np.savez(tmp_path / "d.npz", x=np.ones(3))
    with pytest.raises(sparsed.InvalidArgument, match="save_npz"):
        client.upload(name, tmp_path / "d.npz")


# ---- What is wrong


@pytest.mark.parametrize(
    ("m", "options", "kind", "match"),
    [
        (np.array([[0, 1], [1, 5]]), {"num_nodes": 2}, ValueError, "row index 5 .* range"),
        (np.array([[0, -1], [1, 1]]), {"num_nodes": 2}, ValueError, "column index -1"),
        (np.array([[0, 1], [1, 1]]), {}, ValueError, "num_nodes"),
        (np.array([[0, 1], [1, 1]]), {"num_nodes": 2, "values": np.ones(3)}, ValueError, "2 edges"),
        (np.array([[0, 1], [1, 1]]), {"num_nodes": 2, "shape": 2}, ValueError, "one of them"),
        (([0], [1], [1.0]), {}, ValueError, "shape="),
        (([0, 1], [1], [1.0]), {"shape": 2}, ValueError, "one length"),
        (([0.5], [1], [1.0]), {"shape": 2}, TypeError, "integers"),
        (([0], [1], ["x"]), {"shape": 2}, TypeError, "f32"),
        (np.ones(3, np.float32), {}, ValueError, "1 dimensions"),
        (np.ones((2, 2), complex), {}, TypeError, "complex128"),
        (sp.csr_array(np.ones((2, 2), complex)), {}, TypeError, "complex128"),
        (sp.csr_array(np.eye(2)), {"shape": (3, 3)}, ValueError, "2 x 2"),
        (sp.csr_array(np.eye(2)), {"values": [1, 2]}, ValueError, "update_values"),
        (sp.csr_array(np.eye(2)), {"dtype": np.int32}, TypeError, "dtype"),
        (sp.csr_array(np.eye(2)), {"shape": "large"}, TypeError, "shape"),
        (sparsed.Csr((2, 2), np.array([0, 2, 1]), np.array([0]), None), {}, ValueError, "offsets"),
        (sparsed.Csr((2, 2), np.array([0, 1]), np.array([0]), None), {}, ValueError, "offsets"),
        (sparsed.Csr((1, 2), np.array([0, 1]), np.array([2]), None), {}, ValueError, "range"),
        (([0], [1], [1.0]), {"shape": (2**40, 2**40)}, ValueError, "larger"),
        (object(), {}, TypeError, "object"),
        (None, {}, TypeError, "NoneType"),
        (torch.ones(2, 2, 2).to_sparse_coo(), {}, ValueError, "3 dimensions"),
    ],
)
def test_what_is_no_matrix(client, name, m, options, kind, match):
    with pytest.raises(sparsed.InvalidArgument, match=match) as caught:
        client.upload(name, m, **options)
    assert isinstance(caught.value, kind)
    with pytest.raises(sparsed.NotFound):
        client.matrix(name)


def test_names(client, name):
    a = example()
    client.upload(name, a)
    with pytest.raises(sparsed.AlreadyExists, match=name):
        client.upload(name, a)
    client.upload(name, 2 * a, replace=True)
    check(client.matrix(name), 2 * a)
    for wrong in ("", "a\0b", "x" * 10_000):
        with pytest.raises(sparsed.InvalidArgument):
            client.upload(wrong, a)
    with pytest.raises(sparsed.InvalidType):
        client.upload(7, a)


def test_shards(client, name):
    """Of a server by itself: what is wrong is said here, and the rest there."""
    a = example()
    for shards in (0, 1025):
        with pytest.raises(sparsed.InvalidArgument, match="1 to 1024"):
            client.upload(name, a, shards=shards)
    with pytest.raises(sparsed.InvalidArgument, match="shape"):
        client.upload(name, a, shards=2, partition=[0, 1])
    with pytest.raises(sparsed.InvalidArgument, match="integers"):
        client.upload(name, a, shards=2, partition=np.arange(12) / 6)
    for wrong in (-1, 2, 2**32):
        with pytest.raises(sparsed.InvalidArgument, match=rf"partition\[0\] = {wrong}"):
            client.upload(name, a, shards=2, partition=[wrong] + 11 * [0])
    with pytest.raises(sparsed.InvalidArgument, match="needs one"):
        client.upload(name, a, shards=13)
    with pytest.raises(sparsed.FailedPrecondition, match="--etcd"):
        client.upload(name, a, shards=2, partition=np.arange(12) % 2)


def test_progress(client, name, capfd):
    steps = []
    a = sp.random(1000, 1000, 0.05, format="csr", rng=1, dtype=np.float32)
    g = client.upload(name, a, progress=steps.append, wait=True, prepare=[8, "spmm^T:8"])
    assert steps[0].stage == "upload"
    upload = [step for step in steps if step.stage == "upload"]
    assert upload[-1].done == upload[-1].total > 4 * a.nnz
    assert steps[-1].state == "ready"
    classes = {(p["signature"]["transposed"], p["signature"]["k"]) for p in g.info()["plans"]}
    assert {(False, 8), (True, 8)} <= classes
    client.upload(name, a, progress=True, replace=True)
    assert "100%" in capfd.readouterr().err


def test_a_function_for_progress_that_raises(client, name):
    def fail(_):
        raise RuntimeError("enough")

    with pytest.raises(RuntimeError, match="enough"):
        client.upload(name, example(), progress=fail)


@pytest.mark.parametrize(
    "problem", ["spmm", "spmm:x", "spgemm:3", "sddmm^T:3", "sddmm:3:tf32", 0, -3]
)
def test_wrong_problems(client, name, problem):
    with pytest.raises(sparsed.InvalidArgument):
        client.upload(name, example(), prepare=[problem])


def test_temporary(client):
    with client.temporary(example()) as g:
        check(client.matrix(g.name), example())
    with pytest.raises(sparsed.NotFound):
        client.matrix(g.name)


@pytest.mark.parametrize(
    "values, dtype, told",
    [
        ([1.0, np.nan, np.inf], "f32", "2 values of the matrix are NaN or infinite"),
        ([1.0, 2.0, -np.inf], "bf16", "1 value of the matrix is NaN or infinite"),
        ([1.0, 2.0, 1e6], "f16", "1 value of the matrix is NaN or infinite"),
        ([1, 2, 2**24 + 1], None, "integers beyond 16777216 are rounded.*f64"),
        ([1, 2, 257], "bf16", "integers beyond 256 are rounded.*f64"),
        ([1, 2, 2049], "f16", "integers beyond 2048 are rounded.*f64"),
        ([1, 2, -(2**53) - 1], "f64", "integers beyond 9007199254740992 are rounded"),
    ],
)
@pytest.mark.filterwarnings("ignore:overflow encountered in cast")
def test_what_no_product_gets_rid_of_is_told(client, name, values, dtype, told):
    entries = (np.array([0, 1, 2]), np.array([2, 0, 1]), np.array(values))
    with pytest.warns(UserWarning, match=told) as caught:
        client.upload(name, entries, shape=3, dtype=dtype)
    assert caught[-1].filename == __file__, "the caller's line, not one of the package"


@pytest.mark.parametrize(
    "columns, told",
    [
        ([1, 2, 1], "1 duplicate was summed: there are entries at their places already"),
        ([1, 1, 1], "2 duplicates were summed"),
    ],
)
@pytest.mark.parametrize("kind", ["triple", "coo", "csr", "tensor", "edges"])
def test_duplicates_that_were_summed_are_told(client, name, kind, columns, told):
    rows, columns, values = np.zeros(3, int), np.array(columns), np.array([1.0, 2.0, 4.0])
    matrix = {
        "triple": lambda: (rows, columns, values),
        "coo": lambda: sp.coo_array((values, (rows, columns)), shape=(3, 3)),
        "csr": lambda: sp.csr_array((values, columns, np.array([0, 3, 3, 3])), shape=(3, 3)),
        "tensor": lambda: torch.sparse_coo_tensor(np.stack([rows, columns]), values, (3, 3)),
        "edges": lambda: np.stack([columns, rows]),
    }[kind]()
    shape = 3 if kind in ("triple", "edges") else None
    with pytest.warns(UserWarning, match=told) as caught:
        g = client.upload(name, matrix, shape=shape)
    assert caught[-1].filename == __file__, "the caller's line, not one of the package"
    assert g.nnz == len(set(columns.tolist()))


@pytest.mark.filterwarnings("error")
def test_nothing_is_told_of_entries_in_another_order(client, name):
    entries = (np.array([2, 0, 2]), np.array([1, 0, 0]), np.array([1.0, 2.0, 4.0]))
    client.upload(name, entries, shape=3)
    csr = sp.csr_array((np.ones(2), np.array([2, 1]), np.array([0, 2, 2, 2])), shape=(3, 3))
    client.upload(name, csr, replace=True)


@pytest.mark.filterwarnings("error")
@pytest.mark.parametrize("values", [[1.0, -2.0, 1e30], [1, 2, 2**24], [True, False, True], None])
def test_nothing_is_told_of_values_that_stay_what_they_are(client, name, values):
    values = None if values is None else np.array(values)
    entries = (np.array([0, 1, 2]), np.array([2, 0, 1]), values)
    client.upload(name, entries, shape=3)
