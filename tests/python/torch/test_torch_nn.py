"""Layers against PyTorch Geometric's, on the same weights: outputs, gradients, state dicts."""

import gc
import pickle
from concurrent.futures import ThreadPoolExecutor

import numpy as np
import pytest

torch = pytest.importorskip("torch.autograd") and __import__("torch")
pyg = pytest.importorskip("torch_geometric.nn", reason="PyTorch Geometric is not installed")
import sparsed
import sparsed.torch as st
from sparsed.torch._graphs import number_of

close = torch.testing.assert_close


class Edges:
    """A graph with some self-loops and an isolated node: as PyG has it, and on the server."""

    def __init__(self, client, name, targets=9, sources=9, weighted=True, symmetric=False):
        torch.manual_seed(0)
        generator = np.random.default_rng(3)
        mask = generator.random((targets, sources)) < 0.4
        mask[4], mask[:, 4] = False, False
        if symmetric:
            mask |= mask.T
        rows, cols = np.nonzero(mask)
        values = generator.uniform(0.5, 2, len(rows)) if weighted else np.ones(len(rows))
        self.edge_index = torch.from_numpy(np.stack((cols, rows)))
        self.weights = torch.from_numpy(values)
        self.rows, self.cols = rows, cols
        self.nnz = len(rows)
        self.sources, self.targets = sources, targets
        self.g = client.upload(
            name, self.edge_index, shape=(targets, sources), values=self.weights, dtype="f64"
        )

    def x(self, width, grad=True):
        return torch.randn(self.sources, width, dtype=torch.float64, requires_grad=grad)


@pytest.fixture
def edges(client, name):
    made = Edges(client, name)
    yield made
    made.g.delete()


@pytest.fixture
def bipartite(client, name):
    made = Edges(client, name + "-bipartite", 7, 9)
    yield made
    made.g.delete()


def same(ours, theirs, x, y, x_theirs, y_theirs):
    """Outputs, and gradients of inputs and of all parameters."""
    close(y, y_theirs)
    weights = torch.randn_like(y)
    (y * weights).sum().backward()
    (y_theirs * weights).sum().backward()
    for a, b in zip(x, x_theirs):
        close(a.grad, b.grad)
    found = dict(ours.named_parameters())
    for name, parameter in theirs.named_parameters():
        if parameter.grad is None:
            assert found[name].grad is None, name
        else:
            close(found[name].grad, parameter.grad, msg=lambda text, name=name: f"{name}: {text}")


def compare(ours, theirs, inputs, call_ours, call_theirs):
    ours, theirs = ours.double(), theirs.double()
    assert set(ours.state_dict()) == set(theirs.state_dict())
    ours.load_state_dict(theirs.state_dict())
    theirs.load_state_dict(ours.state_dict())
    copies = [one.detach().clone().requires_grad_(one.requires_grad) for one in inputs]
    same(ours, theirs, inputs, call_ours(ours, *inputs), copies, call_theirs(theirs, *copies))


@pytest.mark.parametrize("sizes", [(5, 3), (3, 8)])
@pytest.mark.parametrize(
    "options",
    [
        {},
        {"improved": True},
        {"bias": False, "cached": True},
        {"add_self_loops": False},
        {"normalize": False},
    ],
)
def test_gcn(edges, sizes, options):
    compare(
        st.nn.GCNConv(*sizes, **options),
        pyg.GCNConv(*sizes, **options),
        [edges.x(sizes[0])],
        lambda conv, x: conv(x, edges.g),
        lambda conv, x: conv(x, edges.edge_index, edges.weights),
    )


@pytest.mark.parametrize("weights", ["none", "ones", "others"])
def test_improved_gcn_of_graphs_with_and_without_weights(client, name, weights):
    """PyG's 2 I is lost where it gets no weights."""
    edges = Edges(client, name, weighted=weights == "others")
    given = None if weights == "none" else edges.weights
    g = client.upload(name, edges.edge_index, num_nodes=9, values=given, dtype="f64", replace=True)
    conv, theirs = (
        nn.GCNConv(5, 3, improved=True).double() for nn in (st.nn, pyg)
    )  # fmt: skip
    conv.load_state_dict(theirs.state_dict())
    x = edges.x(5)
    expected = theirs(x, edges.edge_index, given)
    close(conv(x, g), expected)
    close(conv(x, pickle.loads(pickle.dumps(g))), expected)
    if weights != "ones":  # by its name it cannot be told from one without
        close(conv(x, client.matrix(name)), expected)
    # New values are weights.
    g.update_values(np.ones(g.nnz))
    close(conv(x, g), theirs(x, edges.edge_index, torch.ones(g.nnz).double()))
    g.delete()


def test_improved_gcn_of_a_file_without_weights(client, name, tmp_path):
    edges = Edges(client, name)
    lines = [f"{row + 1} {col + 1}" for row, col in zip(edges.rows, edges.cols)]
    head = ["%%MatrixMarket matrix coordinate pattern general", f"9 9 {len(lines)}"]
    path = tmp_path / "pattern.mtx"
    path.write_text("\n".join(head + lines) + "\n")
    conv, theirs = (nn.GCNConv(5, 3, improved=True).double() for nn in (st.nn, pyg))
    conv.load_state_dict(theirs.state_dict())
    x = edges.x(5)
    g = client.upload(name, path, dtype="f64", replace=True)
    close(conv(x, g), theirs(x, edges.edge_index))
    g.delete()


@pytest.mark.parametrize("normalize", [False, True])
def test_gcn_with_weights_that_are_learned(edges, normalize):
    options = {"normalize": normalize, "add_self_loops": False}
    compare(
        st.nn.GCNConv(5, 3, **options),
        pyg.GCNConv(5, 3, **options),
        [edges.x(5), edges.weights.clone().requires_grad_()],
        lambda conv, x, w: conv(x, edges.g, w),
        lambda conv, x, w: conv(x, edges.edge_index, w),
    )


@pytest.mark.parametrize("sizes", [(6, 2), (3, 8)])
@pytest.mark.parametrize("aggr", ["mean", "sum", "add", "max", "min"])
@pytest.mark.parametrize(
    "options",
    [{}, {"normalize": True, "project": True}, {"root_weight": False, "bias": False}],
)
def test_sage(edges, sizes, aggr, options):
    compare(
        st.nn.SAGEConv(*sizes, aggr=aggr, **options),
        pyg.SAGEConv(*sizes, aggr=aggr, **options),
        [edges.x(sizes[0])],
        lambda conv, x: conv(x, edges.g),
        lambda conv, x: conv(x, edges.edge_index),
    )


@pytest.mark.parametrize("aggr", ["mean", "max"])
def test_sage_of_two_kinds_of_nodes(bipartite, aggr):
    x, t = bipartite.x(5), torch.randn(7, 3, dtype=torch.float64, requires_grad=True)
    compare(
        st.nn.SAGEConv((5, 3), 4, aggr=aggr),
        pyg.SAGEConv((5, 3), 4, aggr=aggr),
        [x, t],
        lambda conv, x, t: conv((x, t), bipartite.g),
        lambda conv, x, t: conv((x, t), bipartite.edge_index),
    )
    conv, theirs = st.nn.SAGEConv((5, 3), 4).double(), pyg.SAGEConv((5, 3), 4).double()
    conv.load_state_dict(theirs.state_dict())
    close(
        conv((x, None), bipartite.g),
        theirs((x, None), bipartite.edge_index, size=(9, 7)),
    )


@pytest.mark.parametrize("kind", ["GATConv", "GATv2Conv"])
@pytest.mark.parametrize(
    "options",
    [
        {},
        {"heads": 3},
        {"heads": 3, "concat": False, "negative_slope": 0.1},
        {"heads": 2, "add_self_loops": False, "bias": False},
        {"heads": 2, "residual": True, "dropout": 0.6},
        {"fill_value": 1.0},
    ],
)
def test_gat(edges, kind, options):
    compare(
        getattr(st.nn, kind)(5, 4, **options).eval(),
        getattr(pyg, kind)(5, 4, **options).eval(),
        [edges.x(5)],
        lambda conv, x: conv(x, edges.g),
        lambda conv, x: conv(x, edges.edge_index),
    )


def test_gatv2_with_shared_weights(edges):
    options = {"heads": 2, "share_weights": True}
    compare(
        st.nn.GATv2Conv(5, 4, **options),
        pyg.GATv2Conv(5, 4, **options),
        [edges.x(5)],
        lambda conv, x: conv(x, edges.g),
        lambda conv, x: conv(x, edges.edge_index),
    )


@pytest.mark.parametrize("loops", [False, True])
@pytest.mark.parametrize("kind", ["GATConv", "GATv2Conv", "TransformerConv"])
def test_attention_between_two_kinds_of_nodes(bipartite, kind, loops):
    options = {"heads": 2}
    if kind != "TransformerConv":
        options |= {"add_self_loops": loops, "residual": True}
    compare(
        getattr(st.nn, kind)((5, 3), 4, **options),
        getattr(pyg, kind)((5, 3), 4, **options),
        [bipartite.x(5), torch.randn(7, 3, dtype=torch.float64, requires_grad=True)],
        lambda conv, x, t: conv((x, t), bipartite.g),
        lambda conv, x, t: conv((x, t), bipartite.edge_index),
    )


def test_gat_without_features_of_targets(bipartite):
    ours, theirs = st.nn.GATConv((5, 3), 4, 2).double(), pyg.GATConv((5, 3), 4, 2).double()
    ours.load_state_dict(theirs.state_dict())
    x = bipartite.x(5)
    theirs.add_self_loops = ours.add_self_loops = False
    close(
        ours((x, None), bipartite.g),
        theirs((x, None), bipartite.edge_index, size=(9, 7)),
    )


def test_gat_with_edge_features(edges):
    options = {"heads": 2, "edge_dim": 3, "add_self_loops": False}
    features = torch.randn(edges.nnz, 3, dtype=torch.float64, requires_grad=True)
    compare(
        st.nn.GATConv(5, 4, **options),
        pyg.GATConv(5, 4, **options),
        [edges.x(5), features],
        lambda conv, x, e: conv(x, edges.g, e),
        lambda conv, x, e: conv(x, edges.edge_index, e),
    )


@pytest.mark.parametrize("kind", ["GATConv", "GATv2Conv", "TransformerConv"])
def test_attention_weights(edges, kind):
    ours, theirs = getattr(st.nn, kind)(5, 4, 2).double(), getattr(pyg, kind)(5, 4, 2).double()
    ours.load_state_dict(theirs.state_dict())
    x = edges.x(5)
    out, (index, weights) = ours(x, edges.g, return_attention_weights=True)
    expected, (index_theirs, weights_theirs) = theirs(
        x, edges.edge_index, return_attention_weights=True
    )
    close(out, expected)
    order = np.lexsort((index_theirs[0], index_theirs[1]))
    close(index, index_theirs[:, order])
    close(weights, weights_theirs[order])


@pytest.mark.parametrize(
    "options",
    [
        {},
        {"heads": 3},
        {"heads": 3, "concat": False, "bias": False},
        {"heads": 2, "beta": True},
        {"heads": 2, "beta": True, "concat": False},
        {"root_weight": False},
    ],
)
def test_transformer(edges, options, way):
    compare(
        st.nn.TransformerConv(5, 4, **options),
        pyg.TransformerConv(5, 4, **options),
        [edges.x(5)],
        lambda conv, x: conv(x, edges.g),
        lambda conv, x: conv(x, edges.edge_index),
    )


@pytest.mark.parametrize(
    "options",
    [
        {"K": 4, "alpha": 0.1},
        {"K": 2, "alpha": 0.5, "add_self_loops": False},
        {"K": 3, "alpha": 0.2, "normalize": False},
        {"K": 0, "alpha": 0.2},
    ],
)
def test_appnp(edges, options):
    compare(
        st.nn.APPNP(**options),
        pyg.APPNP(**options),
        [edges.x(3)],
        lambda conv, x: conv(x, edges.g),
        lambda conv, x: conv(x, edges.edge_index, edges.weights),
    )


def test_dropout_of_edges(edges):
    """All or nothing: what is left of either is known."""
    conv = st.nn.APPNP(3, 0.1, dropout=1.0)
    x = edges.x(3)
    close(conv(x, edges.g), 0.1 * x)
    conv.eval()
    close(conv(x, edges.g), st.nn.APPNP(3, 0.1)(x, edges.g))
    gat = st.nn.TransformerConv(3, 4, dropout=1.0, root_weight=False).double()
    close(gat(x, edges.g), torch.zeros(9, 4, dtype=torch.float64))


@pytest.mark.parametrize("normalize", [False, True])
def test_lgconv(edges, normalize):
    compare(
        st.nn.LGConv(normalize),
        pyg.LGConv(normalize),
        [edges.x(3)],
        lambda conv, x: conv(x, edges.g),
        lambda conv, x: conv(x, edges.edge_index, edges.weights),
    )


@pytest.mark.parametrize("alpha", [None, 0.5, torch.tensor([0.1, 0.2, 0.3, 0.4]).double()])
def test_lightgcn(edges, alpha):
    pairs = torch.tensor([[0, 1, 2], [3, 5, 7]])
    compare(
        st.nn.LightGCN(9, 4, 3, alpha),
        pyg.LightGCN(9, 4, 3, alpha),
        [],
        lambda model: model(edges.g, pairs),
        lambda model: model(edges.edge_index, pairs, edges.weights),
    )
    ours, theirs = st.nn.LightGCN(9, 4, 3, alpha).double(), pyg.LightGCN(9, 4, 3, alpha).double()
    ours.load_state_dict(theirs.state_dict())
    args, args_theirs = (edges.g,), (edges.edge_index, edges.weights)
    close(ours(edges.g), theirs(edges.edge_index, None, edges.weights))
    close(
        ours.predict_link(*args, pairs, prob=True),
        theirs.predict_link(edges.edge_index, pairs, edges.weights, prob=True),
    )
    items = torch.tensor([5, 6, 7, 8])
    close(
        ours.recommend(*args, src_index=torch.tensor([0, 1]), dst_index=items, k=2),
        theirs.recommend(*args_theirs, src_index=torch.tensor([0, 1]), dst_index=items, k=2),
    )
    good, bad = torch.randn(3).double(), torch.randn(3).double()
    close(
        ours.recommendation_loss(good, bad, torch.tensor([1, 2])),
        theirs.recommendation_loss(good, bad, torch.tensor([1, 2])),
    )
    labels = torch.tensor([0, 1, 1])
    close(ours.link_pred_loss(good, labels), theirs.link_pred_loss(good, labels))
    ours.alpha.fill_(0.25)  # seen
    theirs.alpha.fill_(0.25)
    close(ours.get_embedding(edges.g), theirs.get_embedding(*args_theirs))


def test_lightgcn_made_in_inference_mode(edges):
    """Where tensors count no versions."""
    with torch.inference_mode():
        model = st.nn.LightGCN(9, 4, 2).double()
        y = model.get_embedding(edges.g)
        model.alpha.fill_(0.5)
        close(model.get_embedding(edges.g), 1.5 * y)  # 0.5, where it was a third
    usual = st.nn.LightGCN(9, 4, 2).double()
    with torch.inference_mode():
        usual(edges.g)


def test_symmetric_graphs_need_no_transpose(client, name):
    edges = Edges(client, name, weighted=False, symmetric=True)
    compare(
        st.nn.GCNConv(5, 3),
        pyg.GCNConv(5, 3),
        [edges.x(5)],
        lambda conv, x: conv(x, edges.g),
        lambda conv, x: conv(x, edges.edge_index, edges.weights),
    )
    (derived,) = edges.g._torch.derived.values()
    assert derived._torch.symmetric
    assert not any(plan["signature"]["transposed"] for plan in derived.info()["plans"])
    edges.g.delete()


def test_initial_weights_are_as_pygs(client, name):
    torch.manual_seed(0)
    for layer in (
        st.nn.GCNConv(400, 300),
        st.nn.GATConv(400, 300),
        st.nn.SAGEConv(400, 300),
    ):
        theirs = getattr(pyg, type(layer).__name__)(400, 300)
        for key, weight in layer.state_dict().items():
            close(weight.std(), theirs.state_dict()[key].std(), rtol=0.1, atol=1e-4)
            close(weight.max(), theirs.state_dict()[key].max(), rtol=0.1, atol=1e-4)


# ---- Derived graphs ------------------------------------------------------------------------------


def names(client, prefix):
    return [one["name"] for one in client.matrices(prefix)]


def test_derived_graphs_are_shared_and_deleted(server, client, name):
    edges = Edges(client, name)
    conv = st.nn.GCNConv(3, 2).double()
    x = edges.x(3)
    y = conv(x, edges.g)
    assert len(names(client, name)) == 2
    with sparsed.connect(server.address) as other_client:
        other = other_client.matrix(name)
        close(conv(x, other), y)
        assert len(names(client, name)) == 2  # not another one
        # It deletes nothing that it has not uploaded.
        del other
        gc.collect()
        assert len(names(client, name)) == 2
        other = other_client.matrix(name)
        close(conv(x, other), y)
        edges.g._torch.derived.clear()
        gc.collect()
        assert len(names(client, name)) == 1
        close(conv(x, other), y)  # made again
        assert len(names(client, name)) == 2
        del other
        gc.collect()
        assert len(names(client, name)) == 1
    edges.g.delete()


def test_a_derived_graph_that_somebody_deletes_comes_back(client, name):
    edges = Edges(client, name)
    conv = st.nn.GCNConv(3, 2).double()
    x = edges.x(3)
    y = conv(x, edges.g)
    for _ in range(2):
        (derived,) = [one for one in names(client, name) if one != name]
        client.matrix(derived).delete()
        close(conv(x, edges.g), y)
        gc.collect()
        close(conv(x, edges.g), y)
    edges.g._torch.derived.clear()
    gc.collect()
    assert names(client, name) == [name]
    edges.g.delete()


def test_threads_share_derived_graphs(client, name):
    edges = Edges(client, name)
    conv = st.nn.GCNConv(3, 2).double()
    x = edges.x(3)
    with ThreadPoolExecutor(4) as threads:
        for round in range(4):
            edges.g.update_values(np.full(edges.g.nnz, 1.0 + round))
            results = list(threads.map(lambda _: conv(x, edges.g), range(8)))
            for y in results:
                close(y, results[0])
    assert len(names(client, name)) == 2
    edges.g.delete()


def test_new_values_that_are_not_symmetric_change_the_gradient(client, name):
    rows, columns = np.array([0, 0, 1, 2]), np.array([1, 2, 0, 0])
    g = client.upload(name, (rows, columns, np.ones(4)), shape=(3, 3), dtype="f64")
    conv = st.nn.LGConv()

    def gradient():
        x = torch.ones(3, 2, dtype=torch.float64, requires_grad=True)
        y = conv(x, g)
        (dx,) = torch.autograd.grad(y[0].sum(), x)
        return dx

    gradient()
    x = torch.ones(3, 2, dtype=torch.float64, requires_grad=True)
    y = conv(x, g)
    g.update_values(np.array([1.0, 2.0, 3.0, 4.0]))
    (stale,) = torch.autograd.grad(y[0].sum(), x)
    close(stale, gradient())
    g.delete()


def test_gat_scores_in_blocks(monkeypatch):
    """Of many nodes they are made another way."""
    conv = st.nn.GATConv(4, 3, heads=2).double()
    h = torch.randn(1100, 6, dtype=torch.float64, requires_grad=True)
    results = []
    for few in (2000, 10):
        monkeypatch.setattr("sparsed.torch.nn._gat._FEW_NODES", few)
        left, right = conv._scores(h)
        total = (left.sin() + right.cos()).sum()
        gradients = torch.autograd.grad(total, (h, conv.att_src, conv.att_dst))
        results.append((left, right, *gradients))
    for one, other in zip(*results, strict=True):
        close(one, other)


def test_derived_graphs_go_after_their_client(server, client, name):
    with sparsed.connect(server.address) as other:
        edges = Edges(other, name)
        st.nn.GCNConv(3, 2).double()(edges.x(3), edges.g)
        edges.g.delete()
    assert len(names(client, name)) == 1
    del edges
    gc.collect()
    assert names(client, name) == []


def layer_of_process(name, seed, graph):
    """What one of several processes that begin at once does."""
    torch.manual_seed(seed)
    torch.set_num_threads(1)
    x = torch.ones(9, 3, dtype=torch.float64, requires_grad=True)
    y = st.nn.GATConv(3, 2).double()(st.nn.GCNConv(3, 3).double()(x, graph), graph)
    y.sum().backward()
    return y.detach().tolist(), names(graph.client, name)


def test_several_processes_share_a_graph(client, name):
    edges = Edges(client, name)
    context = torch.multiprocessing.get_context("spawn")
    with context.Pool(3) as pool:
        calls = [pool.apply_async(layer_of_process, (name, seed, edges.g)) for seed in (0, 0, 1)]
        results = [call.get(120) for call in calls]
    assert results[0][0] == results[1][0] != results[2][0]
    expected, _ = layer_of_process(name, 0, edges.g)
    assert results[0][0] == expected
    # The graph, the normalised one, and the one with loops; no matter how many made them.
    assert all(len(listed) <= 3 for _, listed in results)
    edges.g.delete()


def test_derived_graphs_follow_new_values(edges):
    conv = st.nn.GCNConv(3, 2).double()
    theirs = pyg.GCNConv(3, 2).double()
    theirs.load_state_dict(conv.state_dict())
    compiled = torch.compile(conv, fullgraph=True, backend="aot_eager")
    x = edges.x(3)
    for factor in (1.0, 3.0):
        weights = edges.weights**factor
        edges.g.update_values(weights.numpy())
        expected = theirs(x, edges.edge_index, weights)
        close(conv(x, edges.g), expected)
        close(compiled(x, edges.g), expected)


def test_models_compile_without_breaks(edges):
    class Model(torch.nn.Module):
        def __init__(self):
            super().__init__()
            nn = st.nn
            self.layers = torch.nn.ModuleList(
                [
                    nn.GCNConv(4, 4),
                    nn.SAGEConv(4, 4),
                    nn.SAGEConv(4, 4, aggr="max"),
                    nn.GATConv(4, 2, heads=2),
                    nn.GATv2Conv(4, 2, heads=2),
                    nn.TransformerConv(4, 2, heads=2),
                    nn.APPNP(3, 0.1),
                    nn.LGConv(),
                ]
            )

        def forward(self, x, g):
            for layer in self.layers:
                x = x + layer(x, g).tanh()
            return x

    model = Model().double()
    compiled = torch.compile(model, fullgraph=True, backend="aot_eager")
    x = edges.x(4)
    expected = model(x, edges.g)
    (gradient,) = torch.autograd.grad(expected.sum(), x)
    found = compiled(x, edges.g)
    close(found, expected)
    close(torch.autograd.grad(found.sum(), x)[0], gradient)
    lightgcn = st.nn.LightGCN(9, 4, 2).double()
    close(
        torch.compile(lightgcn, fullgraph=True, backend="aot_eager")(
            edges.g, torch.tensor([[0], [1]])
        ),
        lightgcn(edges.g, torch.tensor([[0], [1]])),
    )


@pytest.mark.parametrize(
    "make",
    [
        lambda: st.nn.GCNConv(4, 2),
        lambda: st.nn.SAGEConv(4, 2),
        lambda: st.nn.GATConv(4, 2),
        lambda: st.nn.APPNP(2, 0.1),
    ],
)
def test_compiled_layers_take_several_graphs(client, name, make):
    """Each is compiled for."""
    layer = make().double()
    compiled = torch.compile(layer, fullgraph=True, backend="aot_eager")
    several = [Edges(client, f"{name}-{n}", 9 - n % 2, 9 - n % 2) for n in range(3)]
    several[2].g.update_values(np.arange(1.0, several[2].nnz + 1))
    for _ in range(2):
        for edges in several:
            x = edges.x(4)
            close(compiled(x, edges.g), layer(x, edges.g))
    for edges in several:
        edges.g.delete()


@pytest.mark.parametrize(
    "make, sentence",
    [
        (lambda: st.nn.GCNConv(-1, 3), "GCNConv with -1 channels"),
        (lambda: st.nn.GCNConv(3, 3, aggr="mean"), "GCNConv does not know aggr='mean'"),
        (lambda: st.nn.GCNConv(3, 3, flow="target_to_source"), "does not know flow="),
        (lambda: st.nn.GCNConv(3, 3, normalize=False, add_self_loops=True), "only where it norm"),
        (lambda: st.nn.SAGEConv(3, 3, aggr="lstm"), "aggr is 'lstm'"),
        (lambda: st.nn.GATConv(3, 3, edge_dim=2), "edge_dim and add_self_loops"),
        (lambda: st.nn.GATv2Conv(3, 3, edge_dim=2, add_self_loops=False), "no edge features"),
        (lambda: st.nn.TransformerConv(3, 3, edge_dim=2), "knows no edge features"),
        (lambda: st.nn.LightGCN(3, 3, 2, alpha=torch.ones(2)), "expected 3 numbers for 2 layers"),
    ],
)
def test_what_is_not_known_is_refused(make, sentence):
    with pytest.raises(sparsed.InvalidArgument, match=sentence):
        make()


def test_wrong_calls(edges, bipartite):
    x = edges.x(3)
    conv = st.nn.GCNConv(3, 2).double()
    with pytest.raises(sparsed.InvalidType, match="not a Tensor"):
        conv(x, edges.edge_index)
    with pytest.raises(sparsed.InvalidArgument, match="only a square one"):
        conv(x, bipartite.g)
    with pytest.raises(sparsed.InvalidArgument, match="edge_weight and self-loops"):
        conv(x, edges.g, edges.weights)
    with pytest.raises(sparsed.InvalidType, match="float32 and the matrix"):
        conv.float()(x.float(), edges.g)
    with pytest.raises(sparsed.InvalidArgument, match="features of sources and of targets"):
        st.nn.GATv2Conv(3, 2).double()((x, None), bipartite.g)
    assert number_of(edges.g) > 0
