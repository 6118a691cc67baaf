"""Operators and layers on a GPU: the CPU's results, streams, CUDA graphs, memory."""

import numpy as np
import pytest

torch = pytest.importorskip("torch.autograd") and __import__("torch")
import sparsed
import sparsed.torch as st

if not torch.cuda.is_available():
    pytest.skip("there is no GPU", allow_module_level=True)

close = torch.testing.assert_close
N, K = 3000, 64


@pytest.fixture(scope="module")
def gpu_client(server):
    class OnGpu(type(server)):
        def start(self):
            self.flags.remove("--devices=cpu")
            super().start()

    started = OnGpu(memory="4GiB")
    with sparsed.connect(started.address) as connected:
        yield connected
    started.close()


@pytest.fixture
def graph(gpu_client, name):
    """A matrix of N x N with 20 nonzeros in each row, and what it is."""
    random = np.random.default_rng(0)
    rows, cols = np.repeat(np.arange(N), 20), random.integers(N, size=20 * N)
    kept = np.unique(rows * N + cols)
    rows, cols = kept // N, kept % N
    values = random.uniform(0.5, 1, len(rows)).astype(np.float32)
    g = gpu_client.upload(name, (rows, cols, values), shape=(N, N))
    index = torch.from_numpy(np.stack((rows, cols)))
    g.dense = torch.sparse_coo_tensor(index, torch.from_numpy(values), (N, N)).cuda()
    yield g
    g.delete()


def operations(g):
    """Name, function, and the shapes of what it takes."""
    wide, nonzeros = (N, K), (g.nnz, 4)
    return {
        "spmm": (lambda x: st.spmm(g, x), [wide]),
        "transposed": (lambda x: st.spmm(g, x, transpose=True), [wide]),
        "values": (lambda x, v: st.spmm(g, x, v), [wide, (g.nnz,)]),
        "heads": (lambda x, v: st.spmm(g, x, v), [wide, nonzeros]),
        "mean": (lambda x: st.spmm(g, x, reduce="mean"), [wide]),
        "max": (lambda x: st.spmm(g, x, reduce="max"), [wide]),
        "min": (lambda x, v: st.spmm(g, x, v, "min"), [wide, (g.nnz,)]),
        "sddmm": (lambda a, b: st.sddmm(g, a, b), [wide, wide]),
        "sddmm of heads": (lambda a, b: st.sddmm(g, a, b, unscaled=True, heads=4), [wide, wide]),
        "softmax": (lambda s: st.edge_softmax(g, s), [nonzeros]),
        "scale": (lambda r, c: st.scale(g, rows=r, cols=c), [(N,), (N,)]),
        "total": (lambda v: st.total(g, v), [nonzeros]),
        "edge_add": (lambda a, b: st.edge_add(g, a, b), [(N, 4), (N, 4)]),
        "attention": (lambda q, k, v: st.attention(g, q, k, v, heads=4), [wide] * 3),
        "biased attention": (
            lambda q, k, v, b: st.attention(g, q, k, v, heads=4, bias=b),
            [wide, wide, wide, nonzeros],
        ),
        "gat": (lambda a, b, x: st.gat(g, a, b, x), [(N, 4), (N, 4), wide]),
        "biased gat": (
            lambda a, b, x, c: st.gat(g, a, b, x, bias=c),
            [(N, 4), (N, 4), wide, (g.nnz,)],
        ),
        "propagate": (lambda x: st.propagate(g, x, 3, alpha=0.1), [wide]),
        "layers' sum": (lambda x: st.propagate(g, x, 2, weights=[0.5, 0.3, 0.2]), [wide]),
    }


OPERATIONS = [
    "spmm", "transposed", "values", "heads", "mean", "max", "min", "sddmm", "sddmm of heads",
    "softmax", "scale", "total", "edge_add", "attention", "biased attention", "gat", "biased gat",
    "propagate", "layers' sum",
]  # fmt: skip


@pytest.mark.parametrize("operation", OPERATIONS)
def test_results_and_gradients_are_the_cpus(graph, operation):
    torch.manual_seed(0)
    function, shapes = operations(graph)[operation]
    here = [torch.randn(shape, requires_grad=True) for shape in shapes]
    there = [one.detach().cuda().requires_grad_() for one in here]
    expected, found = function(*here), function(*there)
    assert found.is_cuda
    close(found.cpu(), expected, rtol=1e-4, atol=1e-4)
    weights = torch.randn_like(expected)
    expected.backward(weights)
    found.backward(weights.cuda())
    for a, b in zip(there, here, strict=True):
        close(a.grad.cpu(), b.grad, rtol=1e-3, atol=1e-3)


def test_products_run_in_this_process(graph):
    st.spmm(graph, torch.randn(N, K, device="cuda"))
    assert sparsed.last_transport() == "attached"


@pytest.mark.parametrize("operation", ["spmm", "heads", "attention", "gat", "propagate"])
def test_nobody_waits_for_the_gpu(graph, operation):
    """Forward and backward, once everything is known."""
    function, shapes = operations(graph)[operation]
    inputs = [torch.randn(shape, device="cuda", requires_grad=True) for shape in shapes]
    for _ in range(2):
        function(*inputs).sum().backward()
    torch.cuda.synchronize()
    side = torch.cuda.Stream()
    done = torch.cuda.Event()
    with torch.cuda.stream(side):
        torch.cuda._sleep(2_000_000_000)  # a second or so
        torch.cuda.set_sync_debug_mode("error")
        try:
            function(*inputs).sum().backward()
        finally:
            torch.cuda.set_sync_debug_mode("default")
        done.record()
    assert not done.query()  # it is queued behind the sleep, and we are here
    side.synchronize()


def test_the_current_stream_orders_products(graph):
    x = torch.randn(N, K, device="cuda")
    expected = torch.sparse.mm(graph.dense, 2 * x)
    st.spmm(graph, x)
    side = torch.cuda.Stream()
    side.wait_stream(torch.cuda.current_stream())
    with torch.cuda.stream(side):
        y = x.clone()
        torch.cuda._sleep(100_000_000)
        y *= 2
        z = st.spmm(graph, y)
        y.zero_()  # after the product
        found = z.clone()
    torch.cuda.current_stream().wait_stream(side)
    close(found, expected, rtol=1e-4, atol=1e-4)


def test_memory_is_used_again_in_order(graph):
    """Temporaries are freed while their product is still queued."""
    x = torch.randn(K, N, device="cuda").t()  # copied for the product
    expected = torch.sparse.mm(graph.dense, x.contiguous())
    for _ in range(50):
        y = st.spmm(graph, x)
        torch.empty(N, K, device="cuda").fill_(float("nan"))
    close(y, expected, rtol=1e-4, atol=1e-4)


def test_an_epoch_as_a_cuda_graph(graph):
    torch.manual_seed(0)
    x = torch.randn(N, K, device="cuda")
    target = torch.randint(4, (N,), device="cuda")

    class Model(torch.nn.Module):
        def __init__(self):
            super().__init__()
            self.first = st.nn.GCNConv(K, 32)
            self.second = st.nn.GATConv(32, 8, 4)
            self.third = st.nn.TransformerConv(32, 4)

        def forward(self, x):
            x = self.first(x, graph).relu()
            return self.third(self.second(x, graph), graph)

    def trained(captured):
        torch.manual_seed(1)
        model = Model().cuda()
        optimizer = torch.optim.Adam(model.parameters(), lr=0.01, capturable=True)

        def epoch():
            optimizer.zero_grad(set_to_none=True)
            loss = torch.nn.functional.cross_entropy(model(x), target)
            loss.backward()
            optimizer.step()
            return loss

        side = torch.cuda.Stream()
        side.wait_stream(torch.cuda.current_stream())
        with torch.cuda.stream(side):
            losses = [float(epoch()) for _ in range(3)]
        torch.cuda.current_stream().wait_stream(side)
        if not captured:
            return losses + [float(epoch()) for _ in range(5)]
        program = torch.cuda.CUDAGraph()
        with torch.cuda.graph(program):
            loss = epoch()
        for _ in range(5):
            program.replay()
            losses.append(float(loss))
        return losses

    np.testing.assert_allclose(trained(True), trained(False), rtol=1e-3)


def test_compiled_by_inductor(graph):
    conv = st.nn.GATConv(K, 8, 4).cuda()
    x = torch.randn(N, K, device="cuda", requires_grad=True)
    compiled = torch.compile(conv, fullgraph=True)
    close(compiled(x, graph), conv(x, graph), rtol=1e-3, atol=1e-3)
    compiled(x, graph).sum().backward()


@pytest.mark.parametrize("kind", ["f32", "f16", "bf16"])
@pytest.mark.parametrize("autocast", [torch.bfloat16, torch.float16])
def test_autocast(gpu_client, graph, autocast, kind):
    """Whose lists of operators are others than the CPU's."""
    w = torch.rand(graph.nnz, device="cuda")
    nn = st.nn
    layers = [
        (nn.GCNConv(K, 8), ()),
        (nn.GCNConv(K, 96), ()),
        (nn.GCNConv(K, 8, add_self_loops=False), (w,)),
        (nn.SAGEConv(K, 8, normalize=True), ()),
        (nn.SAGEConv(K, 8, aggr="max"), ()),
        (nn.GATConv(K, 8, heads=4), ()),
        (nn.GATConv(K, 8, heads=4, edge_dim=1, add_self_loops=False), (w,)),
        (nn.GATv2Conv(K, 8, heads=4), ()),
        (nn.TransformerConv(K, 8, heads=4, beta=True), ()),
        (nn.APPNP(2, 0.1), ()),
        (nn.LGConv(), (w,)),
    ]
    with gpu_client.temporary(graph.download(), dtype=kind) as g:
        for layer, more in layers:
            layer.cuda()
            x = torch.randn(N, K, device="cuda", requires_grad=True)
            expected = layer(x, graph, *more)
            with torch.autocast("cuda", dtype=autocast):
                y = layer(x, g, *more)
            assert y.dtype == autocast
            assert (y.float() - expected).norm() < 0.03 * expected.norm()
            y.float().sum().backward()
            assert x.grad.isfinite().all()
            assert x.grad.dtype == torch.float32
        targets, sources, features = (torch.randn(N, h, device="cuda") for h in (4, 4, K))
        with torch.autocast("cuda", dtype=autocast):
            s = st.edge_add(g, targets.bfloat16(), sources.half())
            p = st.edge_softmax(g, s)
            y = st.spmm(g, features, p)
        types = {"f32": torch.float32, "f16": torch.float16, "bf16": torch.bfloat16}
        assert s.dtype == p.dtype == types[kind]
        assert y.dtype == autocast


def test_half_precision(gpu_client, graph, name):
    with gpu_client.temporary(graph.download(), dtype="f16") as g:
        x = torch.randn(N, K, device="cuda", dtype=torch.float16, requires_grad=True)
        y = st.spmm(g, x)
        y.sum().backward()
        close(y.float(), torch.sparse.mm(graph.dense, x.float()), rtol=2e-2, atol=2e-2)
        assert st.attention(g, x, x, x, heads=4).isfinite().all()


@pytest.mark.parametrize("kind", ["GATConv", "TransformerConv"])
def test_memory_does_not_grow_with_nonzeros_times_width(graph, kind):
    conv = getattr(st.nn, kind)(K, 32, 4).cuda()
    x = torch.randn(N, K, device="cuda")
    conv(x, graph).sum().backward()
    torch.cuda.reset_peak_memory_stats()
    before = torch.cuda.memory_allocated()
    conv(x, graph).sum().backward()
    peak = torch.cuda.max_memory_allocated() - before
    # Some dense matrices of 128 columns, and some arrays of nnz x heads.
    assert peak < 4 * (12 * N * 128 + 10 * (graph.nnz + N) * 4) + (8 << 20)


def test_operands_in_shared_gpu_memory(gpu_client, graph):
    with sparsed.connect(gpu_client.address, attach=False) as other:
        pool = st.pool(other)
        assert st.pool(other) is pool
        with torch.cuda.use_mem_pool(pool):
            x = torch.randn(N, K, device="cuda")
            y = st.spmm(other.matrix(graph.name), x)
        assert sparsed.last_transport() == "shared_device"
        close(y, torch.sparse.mm(graph.dense, x), rtol=1e-4, atol=1e-4)
        del x, y


def test_operands_on_two_devices_are_refused(graph):
    x = torch.randn(N, K, device="cuda")
    with pytest.raises(sparsed.InvalidArgument, match="on cpu and .* on cuda:0"):
        st.spmm(graph, x, torch.rand(graph.nnz))
    if torch.cuda.device_count() > 1:
        with pytest.raises(sparsed.InvalidArgument, match="on cuda:1 and .* on cuda:0"):
            st.sddmm(graph, x, x.to("cuda:1"))


def test_a_gpu_of_another_server_is_no_crash(graph):
    """The server serves from the first GPU: on another one products run all the same, or say why
    not."""
    if torch.cuda.device_count() < 2:
        pytest.skip("there is one GPU")
    x = torch.randn(N, K, device="cuda:1")
    try:
        y = st.spmm(graph, x)
    except sparsed.Error as error:
        assert str(error)
    else:
        assert y.device == x.device
        close(y.cpu(), torch.sparse.mm(graph.dense, x.to("cuda:0")).cpu(), rtol=1e-4, atol=1e-4)
