"""The examples, against PyTorch Geometric, SciPy and NumPy."""

import os
import subprocess
import sys
from pathlib import Path

import numpy as np
import pytest

torch = pytest.importorskip("torch.autograd") and __import__("torch")
sparse = pytest.importorskip("scipy.sparse", reason="SciPy is not installed")

ROOT = Path(__file__).resolve().parents[3]
EXAMPLES = ROOT / "client/python/examples"
DATA = ROOT.parent / "shared/data"
sys.path.insert(0, str(EXAMPLES))

import common


def path(name):
    """Of a matrix that is not in the repository; None, and a graph is generated, where it is not
    there."""
    found = DATA / name
    return str(found) if found.exists() else None


@pytest.fixture(scope="module")
def citations():
    return common.nodes(path("cora.mtx"), path("cora_X.mtx.gz"))


def edge_index(matrix):
    """Of PyG, which has sources first: row i gathers from column j."""
    rows, cols = matrix.nonzero()
    return torch.from_numpy(np.stack((cols, rows)).astype(np.int64))


@pytest.mark.parametrize("kind", ["gcn.GCN", "gat.GAT", "graph_transformer.GraphTransformer"])
def test_losses_fall_as_pygs_do(client, citations, kind):
    theirs_nn = pytest.importorskip("torch_geometric.nn")
    module, name = kind.split(".")
    make = getattr(__import__(module), name)
    features, classes = citations.x.shape[1], int(citations.y.max()) + 1
    torch.manual_seed(0)
    theirs = make(features, classes, nn=theirs_nn)
    ours = make(features, classes)
    ours.load_state_dict(theirs.state_dict())
    expected = common.train(theirs, citations, edge_index(citations.adjacency), 20)
    with client.temporary(citations.adjacency) as g:
        losses = common.train(ours, citations, g, 20)
        accuracy = common.accuracy(ours, citations, g)
    np.testing.assert_allclose(losses, expected, rtol=1e-3)
    assert losses[-1] < 0.8 * losses[0]
    assert accuracy > 1.5 / classes


def test_lightgcn(client):
    models = pytest.importorskip("torch_geometric.nn")
    import lightgcn

    found = path("gowalla_R.mtx.gz")
    ratings = common.read(found)[:2000] if found else lightgcn.generated()
    graph = lightgcn.adjacency(ratings)
    torch.manual_seed(0)
    theirs = models.LightGCN(graph.shape[0], 16, num_layers=3)
    import sparsed.torch as st

    ours = st.nn.LightGCN(graph.shape[0], 16, num_layers=3)
    ours.load_state_dict(theirs.state_dict())

    def pairs():
        return lightgcn.batches(ratings, 15, 1024)

    expected = lightgcn.train(theirs, edge_index(graph), pairs())
    with client.temporary(graph) as g:
        losses = lightgcn.train(ours, g, pairs())
    np.testing.assert_allclose(losses, expected, rtol=1e-3)
    assert losses[-1] < losses[0]


def test_pagerank(client):
    import pagerank

    found = path("wiki-Vote.mtx.gz")
    graph = common.read(found) if found else common.generated(500, 5)
    dense = graph.astype(np.float64)
    links = np.asarray(dense.sum(axis=1)).ravel()
    with client.temporary(graph, dtype="f64") as g:
        rank = pagerank.pagerank(g, links)
    # What is left of the equation that defines it, with SciPy.
    n = len(links)
    share = np.where(links > 0, rank / np.maximum(links, 1), 0)
    again = 0.85 * (dense.T @ share + rank[links == 0].sum() / n) + 0.15 / n
    np.testing.assert_allclose(rank, again, atol=1e-9)
    assert abs(rank.sum() - 1) < 1e-9


def test_label_propagation(client, citations):
    import label_propagation

    classes = int(citations.y.max()) + 1
    with client.temporary(citations.adjacency) as g:
        found = label_propagation.propagate(g, citations.y, citations.train, classes)
    a = citations.adjacency.astype(np.float64)
    roots = sparse.diags_array(1 / np.sqrt(np.maximum(np.asarray(a.sum(axis=1)).ravel(), 1)))
    normalized = roots @ a @ roots
    x = np.eye(classes)[citations.y.numpy()]
    x[~citations.train.numpy()] = 0
    y = x
    for _ in range(20):
        y = 0.9 * (normalized @ y) + 0.1 * x
    best = y.max(axis=1)
    clear = np.sort(y, axis=1)[:, -2] < best - 1e-4  # where rounding cannot decide
    np.testing.assert_array_equal(found.numpy()[clear], y.argmax(axis=1)[clear])
    assert clear.mean() > 0.9
    known = citations.train
    assert float((found == citations.y)[~known].float().mean()) > 1.5 / classes


def test_spectral_embedding(client):
    import spectral_embedding
    from scipy.sparse.linalg import eigsh

    found = path("facebook_combined.mtx.gz")
    graph = common.read(found) if found else common.generated(500, 3)
    degrees = np.asarray(graph.sum(axis=1)).ravel().astype(np.float64)
    with client.temporary(graph, dtype="f64") as g:
        points, values = spectral_embedding.embedding(g, degrees)
    roots = sparse.diags_array(1 / np.sqrt(degrees))
    normalized = (roots @ graph.astype(np.float64) @ roots).tocsr()
    expected = np.sort(eigsh(normalized, k=3, which="LA")[0])[::-1]
    np.testing.assert_allclose(values, expected, atol=1e-8)
    np.testing.assert_allclose(normalized @ points, points * values[1:], atol=1e-6)


def test_spectral_embedding_of_several_components(client):
    """Hundreds of eigenvalues are 1 then; of the largest component one is."""
    import spectral_embedding

    found = path("ca-CondMat.mtx.gz")
    graph = common.read(found) if found else common.generated(2000, 3)
    alone = sparse.csr_matrix((300, 300), dtype=graph.dtype)
    pairs = sparse.block_diag([np.ones((2, 2), graph.dtype)] * 100)
    graph = sparse.csr_matrix(sparse.block_diag([alone, pairs, graph]))
    connected, nodes = spectral_embedding.largest_component(graph)
    count, _ = sparse.csgraph.connected_components(connected, directed=False)
    assert count == 1
    assert nodes.min() >= 500
    assert (connected != graph[nodes][:, nodes]).nnz == 0
    with client.temporary(connected, dtype="f64") as g:
        degrees = np.asarray(connected.sum(axis=1)).ravel().astype(np.float64)
        points, values = spectral_embedding.embedding(g, degrees)
    assert abs(values[0] - 1) < 1e-8
    assert values[1] < 1 - 1e-4
    assert points.shape == (len(nodes), 2)


def test_conjugate_gradient(client):
    import conjugate_gradient
    from scipy.sparse.linalg import spsolve

    matrix = conjugate_gradient.laplacian(24)
    b = np.random.default_rng(0).random((matrix.shape[0], 3))
    b[:, 1] = 0
    with client.temporary(matrix) as a:
        x, steps = conjugate_gradient.solve(a, b, matrix.diagonal())
    expected = spsolve(sparse.csc_matrix(matrix), b)
    np.testing.assert_allclose(x, expected, rtol=1e-6, atol=1e-6)
    assert not x[:, 1].any()
    assert 10 < steps < 200
    with client.temporary(sparse.eye(5, format="csr")) as a:
        with pytest.raises(RuntimeError, match="does not converge in 1 steps"):
            conjugate_gradient.solve(
                a, np.arange(5.0)[:, None], np.arange(1.0, 6.0), tolerance=1e-12, limit=1
            )


def test_triangles(client):
    import triangles

    found = path("facebook_combined.mtx.gz")
    graph = common.read(found) if found else common.generated(500, 5)
    a = graph.astype(np.int64)
    expected = int((a @ a).multiply(a).sum()) // 6
    assert triangles.triangles(client, graph) == expected
    full = sparse.csr_matrix(np.ones((5, 5), np.float32) - np.eye(5, dtype=np.float32))
    assert triangles.triangles(client, full) == 10


@pytest.mark.parametrize(
    "script", sorted(p.name for p in EXAMPLES.glob("*.py") if p.name != "common.py")
)
def test_scripts_run(server, client, script):
    result = subprocess.run(
        [sys.executable, script, "--server", server.address, "--device", "cpu", "--epochs", "3"],
        cwd=EXAMPLES,
        env=os.environ,
        capture_output=True,
        text=True,
        timeout=120,
        check=False,
    )
    assert result.returncode == 0, result.stderr
    assert result.stdout.strip()
    assert client.matrices("tmp-") == []  # nor anything made of theirs
