"""How operands and results travel: the fastest way that is there, by itself."""

import os
import socket
import threading
import time
import warnings

import numpy as np
import pytest
import scipy.sparse as sp

import sparsed

N, K = 600, 160  # large enough to be copied into shared memory rather than sent


@pytest.fixture(scope="module")
def a():
    return sp.random(N, N, 0.02, format="csr", rng=3, dtype=np.float32)


@pytest.fixture
def fresh(server):
    """A client that does not attach, and has not found anything out yet."""
    with sparsed.connect(server.address, attach=False) as c:
        yield c


@pytest.fixture
def g(fresh, a, name):
    return fresh.upload(name, a)


def wide(dtype=np.float32):
    return np.random.default_rng(1).standard_normal((N, K)).astype(dtype)


def close(got, expected):
    np.testing.assert_allclose(np.asarray(got), expected, rtol=1e-4, atol=1e-4)


def test_before_the_first_product():
    seen = []
    thread = threading.Thread(target=lambda: seen.append(sparsed.last_transport()))
    thread.start()
    thread.join()
    assert seen == [None]


def test_shared_arrays(g, fresh, a):
    x, out = fresh.empty((N, 4)), fresh.empty((N, 4))
    x[:] = wide()[:, :4]
    close(g.spmm(x, out=out), a @ x)
    assert sparsed.last_transport() == "shared_host"
    # A part of one, which begins at a multiple of 64 bytes.
    close(g.spmm(x[:, :2], out=out[:, :2]), a @ x[:, :2])
    assert sparsed.last_transport() == "shared_host"


@pytest.mark.parametrize("dtype", ["f32", "f64", "f16", "bf16", np.float64])
def test_types_of_shared_arrays(fresh, dtype):
    if dtype == "bf16":
        pytest.importorskip("ml_dtypes")
    array = fresh.empty((3, 5), dtype)
    array[:] = 1
    assert array.sum() == 15
    assert fresh.empty(7, dtype).shape == (7,)
    assert fresh.empty((0, 3), dtype).size == 0


def test_shared_memory_is_used_again(fresh):
    first = fresh.empty((1000, 100))
    place = first.__array_interface__["data"][0]
    view = first[10:20]
    del first
    other = fresh.empty((1000, 100))
    assert other.__array_interface__["data"][0] != place  # the view has it still
    del view
    assert fresh.empty((1000, 100)).__array_interface__["data"][0] == place


def test_large_operands_are_copied_into_shared_memory(g, a):
    x = wide()
    close(g.spmm(x), a @ x)
    assert sparsed.last_transport() == "stream"  # the first one finds out
    for _ in range(3):
        y = g.spmm(x)
        close(y, a @ x)
        assert sparsed.last_transport() == "shared_host"
    # What is a result already is an operand where it is.
    close(g.spmm(y), a @ y)
    close(g.spmm(x[:, ::2]), a @ x[:, ::2])
    close(g.spmm(np.asfortranarray(x)), a @ x)
    rows = np.repeat(np.arange(N), np.diff(a.indptr))
    close(g.sddmm(x, y), a.data * (x[rows] * y[a.indices]).sum(1))
    assert sparsed.last_transport() == "shared_host"
    # Results that have a place are copied there.
    wider = np.zeros((N, K + 5), np.float32)
    out = wider[:, 3 : K + 3]
    assert g.spmm(x, out=out) is out
    assert sparsed.last_transport() == "shared_host"
    close(out, a @ x)
    assert not wider[:, :3].any()
    assert not wider[:, K + 3 :].any()
    close(g.spmm(x, alpha=2, beta=1, out=out), 3 * (a @ x))
    close(g.spmm(x, alpha=2, beta=1, accumulate=x, out=out), 2 * (a @ x) + x)
    numbers = np.empty(a.nnz, np.float32)
    assert g.sddmm(x, y, out=numbers) is numbers
    close(numbers, a.data * (x[rows] * y[a.indices]).sum(1))
    with g.client.zeros(None, (N, K)) as held:
        assert g.spmm(x, out=held) is held
        close(held.read(), a @ x)
    # Small ones are sent.
    close(g.spmm(x[:, :3].copy()), a @ x[:, :3])
    assert sparsed.last_transport() == "stream"


def test_results_in_shared_memory_are_apart(g, a):
    x = wide()
    g.spmm(x)
    one = g.spmm(x)
    two = g.spmm(2 * x)
    close(one, a @ x)
    close(two, 2 * (a @ x))
    one[:] = 0
    close(two, 2 * (a @ x))


@pytest.mark.parametrize("type_", ["float32", "float64", "bfloat16", "float16"])
def test_tensors_in_shared_memory(fresh, a, name, type_):
    torch = pytest.importorskip("torch")
    dtype = getattr(torch, type_)
    g = fresh.upload(name, a, dtype=dtype)
    x = torch.from_numpy(wide()).to(dtype)
    g.spmm(x)
    y = g.spmm(x)
    assert sparsed.last_transport() == "shared_host"
    assert isinstance(y, torch.Tensor)
    assert y.dtype is dtype
    np.testing.assert_allclose(y.double().numpy(), a @ x.double().numpy(), rtol=0.05, atol=0.1)
    y += 1  # it is a tensor like any other
    y2, which = g.spmm(x, reduce="max", return_argument=True)
    assert which.dtype is torch.int64
    assert which.max() < g.nnz


def test_where_no_memory_is_shared(own_server, a):
    server = own_server(local=False)
    with sparsed.connect(server.address, attach=False) as c:
        g = c.upload("g", a)
        x = wide()
        for _ in range(3):
            close(g.spmm(x), a @ x)
            assert sparsed.last_transport() == "stream"
        array = c.empty((N, 4))
        array[:] = 1
        close(g.spmm(array), a @ array)
        assert sparsed.last_transport() == "stream"


def test_ring(server, a, name):
    """Operands of whatever memory, once it is known that the server shares some."""
    rows = np.repeat(np.arange(N), np.diff(a.indptr))
    with sparsed.connect(server.address, attach=False, ring=True, ring_spin=20e-6) as c:
        g = c.upload(name, a)
        x = wide()[:, :4].copy()
        close(g.spmm(x), a @ x)
        assert sparsed.last_transport() == "stream"  # the first one finds out

        def ring(got, expected):
            assert sparsed.last_transport() == "ring"
            close(got, expected)

        for operand in (x, x[:, :2], x[:, 0], np.asfortranarray(x), wide()):
            ring(g.spmm(operand), a @ operand)
        ring(g.T @ x, a.T @ x)
        ring(g.sddmm(x, 2 * x), 2 * a.data * (x[rows] * x[a.indices]).sum(1))
        ring(g.spmm(x, values=2 * a.data), 2 * (a @ x))
        ring(g.spmm(x, accumulate=x, beta=0.5), a @ x + 0.5 * x)
        out = np.ones((N, 8), np.float32)
        ring(g.spmm(x, beta=2, out=out[:, 1:5]), a @ x + 2)
        ring(out[:, 1:5], a @ x + 2)
        assert (out[:, [0, 5, 6, 7]] == 1).all()
        y, which = g.spmm(x, reduce="max", return_argument=True)
        ring(y, np.where(which < 0, 0, a.data[which] * x[a.indices[which], np.arange(4)]))
        ring(g.spmm(x[:, :0]), np.zeros((N, 0)))
        ring(g.total(a.data), a @ np.ones(N))
        ring(g.total(), a @ np.ones(N))
        ring(g.scale(a.data, cols=x[:, 0]), a.data * x[a.indices, 0])
        p = g.softmax(np.stack((a.data, a.data), 1))
        ring(g.total(p[:, 1].copy()), np.diff(a.indptr) > 0)
        squares = np.bincount(rows, p[:, 0] ** 2, N)[rows]
        ring(g.softmax_gradient(p, p), p * (p - squares[:, None]))
        # In shared memory already.
        shared, result = c.empty((N, 4)), c.empty((N, 4))
        shared[:], result[:] = x, 1
        assert g.spmm(shared, out=result) is result
        ring(result, a @ x)
        ring(g.spmm(shared, beta=1, out=result), 2 * (a @ x))
        with c.put(None, x) as held, c.zeros(None, (N, 4)) as result:
            g.spmm(held, out=result)
            close(result.read(), a @ x)


def test_tensors_in_a_ring(server, a, name):
    torch = pytest.importorskip("torch")
    with sparsed.connect(server.address, attach=False, ring=True) as c:
        g = c.upload(name, a)
        x = torch.from_numpy(wide()[:, :4].copy())
        g.spmm(x)
        y = g.spmm(x)
        assert sparsed.last_transport() == "ring"
        assert isinstance(y, torch.Tensor)
        close(y, a @ x.numpy())


def test_results_of_a_ring_that_are_kept(server, a, name):
    """More than a connection may have regions of shared memory."""
    with sparsed.connect(server.address, attach=False, ring=True) as c:
        g = c.upload(name, a)
        x = np.ones(N, np.float32)
        kept = [g.spmm(x) for _ in range(1200)]
        assert sparsed.last_transport() == "ring"
        close(np.stack(kept).sum(0), 1200 * (a @ x))


def test_a_ring_that_there_is_not(own_server, a):
    server = own_server(local=False)
    with sparsed.connect(server.address, attach=False, ring=True) as c:
        g = c.upload("g", a)
        for _ in range(2):
            close(g.spmm(np.ones(N, np.float32)), a @ np.ones(N))
            assert sparsed.last_transport() == "stream"


def test_streams(own_server, a):
    """Large operands travel over the further ones, too: the server's log says what these brought
    and took. The first product opens them and does not wait."""
    server = own_server("--log-level=debug", "--log-format=json", local=False)
    log = server.folder / "log"
    with sparsed.connect(server.address, attach=False, streams=3) as c:
        g = c.upload("g", a)
        x = np.ones((N, 4000), np.float32)
        out = np.empty((N, 4000), np.float32)
        deadline = time.monotonic() + 60
        while not all(f"carried_bytes_{way}" in log.read_text() for way in ("in", "out")):
            assert time.monotonic() < deadline
            close(g.spmm(x, out=out), a @ x)
            assert sparsed.last_transport() == "stream"


def test_attached(client, a, name):
    g = client.upload(name, a)
    x = wide()
    for _ in range(2):
        close(g.spmm(x), a @ x)
        assert sparsed.last_transport() == "attached"
    g.attach()
    with pytest.raises(sparsed.Error):
        g.attach(gpu=0)  # this server has none


# ---- Not attached, and why -----------------------------------------------------------------------


@pytest.fixture
def warned(recwarn):
    """A function that gives the warnings that there were since it was called last."""

    def found():
        sentences = [
            str(one.message) for one in recwarn if one.category is sparsed.NotAttachedWarning
        ]
        recwarn.clear()
        return sentences

    warnings.simplefilter("always")
    return found


def test_why_products_are_not_attached(own_server, a, warned):
    server = own_server(local=False)
    with sparsed.connect(server.address) as c:
        g = c.upload("g", a)
        g.spmm(wide())
        [sentence] = warned()
        assert "products with 'g' run on the server at unix:" in sentence
        assert "has no local socket (its --local-listen)" in sentence
        assert "connect(attach=False)" in sentence
        # Once.
        g.spmm(wide())
        c.matrix("g").sddmm(wide(), wide())
        assert warned() == []
    with sparsed.connect(server.address) as c:
        c.matrix("g").total(a.data)
        assert len(warned()) == 1
    with sparsed.connect(server.address, attach=False) as c:
        c.matrix("g").spmm(wide())
        assert warned() == []


def test_the_warning_points_at_the_program(own_server, a):
    server = own_server(local=False)
    with sparsed.connect(server.address) as c:
        g = c.upload("g", a)
        with pytest.warns(sparsed.NotAttachedWarning) as caught:
            g @ wide()
        assert caught[0].filename == __file__


def test_operators_say_it_too(own_server, a, warned):
    torch = pytest.importorskip("torch")
    import sparsed.torch as st

    with sparsed.connect(own_server(local=False).address) as c:
        g = c.upload("g", a)
        st.propagate(g, torch.ones(N, 2), 2)
        assert len(warned()) == 1


def test_no_warning_where_all_is_well(server, own_server, client, a, name, warned):
    g = client.upload(name, a)
    # It runs there for what its operands are.
    with client.put(None, wide()) as held:
        g.spmm(held)
    g.spmm(wide())
    g.sddmm(wide(), wide())
    with sparsed.connect(server.address, attach=False) as c:
        c.matrix(name).spmm(wide())
    # By an address that may be a tunnel to any machine.
    with socket.socket() as free:
        free.bind(("127.0.0.1", 0))
        address = f"127.0.0.1:{free.getsockname()[1]}"
    own_server(f"--listen={address}", local=False)
    with sparsed.connect(address) as c:
        c.upload("g", a).spmm(wide())
        assert sparsed.last_transport() == "stream"
    assert warned() == []


def test_addresses_of_this_machine():
    from sparsed._attachment import _on_this_machine

    here = ("unix:/a/b", "localhost:1", "127.0.0.1:7470", "127.3.2.1:7470", "[::1]:7470")
    assert all(map(_on_this_machine, here))
    there = ("example.org:7470", "10.0.0.1:7470", "[2001:db8::1]:7470", "dns:///a:1", "nothing")
    assert not any(map(_on_this_machine, there))


def test_awaited_and_attached(server, a, name):
    """Those that are awaited run on the server, by way of shared memory; others run here."""
    import asyncio

    import sparsed.aio

    async def main():
        async with await sparsed.aio.connect(server.address) as c:
            g = await c.upload(name, a)
            x = wide()
            transports = []
            for _ in range(3):
                close(await g.spmm(x), a @ x)
                transports.append(sparsed.last_transport())
                close(g.sync.spmm(x), a @ x)
                transports.append(sparsed.last_transport())
            return transports

    assert asyncio.run(main()) == [
        "stream", "attached", "shared_host", "attached", "shared_host", "attached"
    ]  # fmt: skip


def test_threads_of_attached_products(server, a, name):
    with sparsed.connect(server.address, threads=1) as c:
        g = c.upload(name, a)
        close(g.spmm(wide()), a @ wide())
        assert sparsed.last_transport() == "attached"


def test_the_library_without_kernels(server, a, name, tmp_path):
    """By SPARSED_LIBRARY, which names a file."""
    import subprocess
    import sys

    import sparsed._native as native

    maps = open("/proc/self/maps").read()
    [attached] = {
        line.split()[-1] for line in maps.splitlines() if "libsparsed_attached.so" in line
    }
    assert native.library().sparsed_has_kernels() == 1
    thin = os.path.join(os.path.dirname(attached), "libsparsed_client.so.1")
    program = f"""
import warnings
import numpy as np, sparsed
from sparsed import _native
assert _native.library().sparsed_has_kernels() == 0
c = sparsed.connect({server.address!r})
g = c.upload({name!r}, np.eye(5, dtype=np.float32))
x = np.ones((5, 2), np.float32)
with warnings.catch_warnings(record=True) as caught:
    warnings.simplefilter("always")
    assert (g @ x == x).all()
assert "libsparsed_attached.so" in str(caught[0].message), caught
assert sparsed.last_transport() == "stream"
try:
    g.attach()
except sparsed.Unimplemented as error:
    print(error)
"""
    done = subprocess.run(
        [sys.executable, "-c", program], env={**os.environ, "SPARSED_LIBRARY": thin},
        capture_output=True, text=True, timeout=60,
    )  # fmt: skip
    assert done.returncode == 0, done.stderr
    assert "kernels" in done.stdout
