"""Several processes: forked, spawned, DataLoader's workers; and servers that die."""

import multiprocessing
import os
import pickle
import signal
import subprocess
import sys
import threading
import time

import numpy as np
import pytest
import scipy.sparse as sp

import sparsed

N = 50


def example():
    return sp.random(N, N, 0.2, format="csr", rng=7, dtype=np.float32)


def x():
    return np.random.default_rng(1).standard_normal((N, 4)).astype(np.float32)


def check(g):
    np.testing.assert_allclose(g.spmm(x()), example() @ x(), rtol=1e-5, atol=1e-5)
    return sparsed.last_transport()


@pytest.fixture
def g(client, name):
    matrix = client.upload(name, example())
    assert check(matrix) == "attached"
    return matrix


def in_fork(work, timeout=30):
    """What `work` gives back, or raises, in a child; the child ends as programs do."""
    reader, writer = os.pipe()
    pid = os.fork()
    if pid == 0:
        status = 1
        try:
            os.close(reader)
            try:
                result = (True, work())
            except BaseException as error:
                result = (False, repr(error))
            with open(writer, "wb") as file:
                pickle.dump(result, file)
            status = 0
        finally:
            os._exit(status)
    os.close(writer)
    watch = threading.Timer(timeout, os.kill, (pid, signal.SIGKILL))
    watch.start()
    with open(reader, "rb") as file:
        content = file.read()
    watch.cancel()
    _, status = os.waitpid(pid, 0)
    assert status == 0, f"the child ended with {status}"
    good, result = pickle.loads(content)
    assert good, result
    return result


def test_fork(g):
    """The child connects anew; the parent's connection is as before."""
    begin = time.monotonic()
    assert in_fork(lambda: check(g)) in ("stream", "shared_host")
    assert time.monotonic() - begin < 10
    assert check(g) == "attached"


def test_fork_of_a_fork(g):
    def work():
        check(g)
        return in_fork(lambda: check(g))

    assert in_fork(work)


def test_fork_while_threads_multiply(g):
    stop = False
    failures = []

    def multiply():
        while not stop:
            try:
                check(g)
            except BaseException as error:
                failures.append(error)

    threads = [threading.Thread(target=multiply) for _ in range(3)]
    for thread in threads:
        thread.start()
    try:
        for _ in range(5):
            in_fork(lambda: check(g))
    finally:
        stop = True
        for thread in threads:
            thread.join()
    assert not failures


def test_a_fork_that_does_nothing(g):
    """What it inherited is dropped without being freed."""

    def work():
        handle = g._handle
        g._handle = None
        del handle
        return True

    assert in_fork(work)
    check(g)


def test_a_fork_makes_everything_anew(g, server, name):
    def work():
        with sparsed.connect(server.address) as c:
            other = c.upload(f"{name}-other", example())
            check(other)
            array = c.empty((N, 4))
            array[:] = x()
            np.testing.assert_allclose(other.spmm(array), example() @ x(), rtol=1e-5, atol=1e-5)
            assert sparsed.last_transport() in ("stream", "shared_host")
            other.delete()
        with pytest.raises(sparsed.NotFound):
            g.client.matrix(f"{name}-other")
        return os.getpid()

    assert in_fork(work) != os.getpid()


def test_closed_in_the_child_is_open_in_the_parent(g):
    def work():
        g.client.close()
        with pytest.raises(sparsed.FailedPrecondition):
            check(g)
        return True

    assert in_fork(work)
    check(g)


def test_a_fork_that_ends_as_programs_do(server, name, client):
    """Not by os._exit: exit handlers and destructors run."""
    client.upload(name, example())
    program = f"""
import os, sys, numpy as np, sparsed
g = sparsed.connect({server.address!r}).matrix({name!r})
g.spmm(np.ones(({N}, 2), np.float32))
pid = os.fork()
y = g.spmm(np.ones(({N}, 2), np.float32))
if pid:
    sys.exit(os.waitpid(pid, 0)[1])
"""
    done = subprocess.run(
        [sys.executable, "-W", "ignore::DeprecationWarning", "-c", program],
        timeout=60,
        capture_output=True,
    )
    assert done.returncode == 0, done.stderr.decode()
    assert done.stderr == b""


@pytest.mark.parametrize("method", ["fork", "spawn", "forkserver"])
def test_multiprocessing(g, method):
    with multiprocessing.get_context(method).Pool(2) as pool:
        assert pool.map(check, [g] * 4)
    check(g)


def test_pickle(g):
    one, two = pickle.loads(pickle.dumps((g, g.client)))
    assert one.client is two
    assert (one.name, one.shape) == (g.name, g.shape)
    check(one)
    again = pickle.loads(pickle.dumps(g))
    assert again.client is two  # what was pickled apart shares connections, too
    assert two._options == g.client._options
    two.close()
    check(g)
    check(pickle.loads(pickle.dumps(g)))


def test_pickled_held_matrices(client):
    with client.put(None, x(), distribution="columns") as held:
        again = pickle.loads(pickle.dumps(held))
        assert (again.read() == x()).all()


def test_held_matrices_in_rows(client):
    with client.put(None, x(), distribution="rows") as held:
        assert (held.read() == x()).all()
    with pytest.raises(sparsed.NotFound):
        client.put(None, x(), distribution="rows", rows_of="no-such-matrix")


def test_a_pickled_matrix_that_is_gone(g):
    pickled = pickle.dumps(g)
    g.delete()
    with pytest.raises(sparsed.NotFound):
        check(pickle.loads(pickled))


# ---- PyTorch's DataLoader


class Products:
    """A data set each of whose items is a product."""

    def __init__(self, g):
        self.g = g

    def __len__(self):
        return 12

    def __getitem__(self, i):
        import torch

        return self.g.spmm(torch.full((N, 2), float(i)))


@pytest.mark.parametrize("method", ["fork", "spawn"])
def test_data_loader(g, method):
    torch = pytest.importorskip("torch")
    loader = torch.utils.data.DataLoader(
        Products(g), batch_size=3, num_workers=2, multiprocessing_context=method, timeout=60
    )
    sums = np.asarray(example().sum(axis=1)).ravel()
    seen = []
    for batch in loader:
        assert batch.shape == (3, N, 2)
        seen.append(batch)
    got = torch.cat(seen)
    for i in range(12):
        np.testing.assert_allclose(got[i, :, 0], i * sums, rtol=1e-4, atol=1e-4)


# ---- Four training processes on one node


def _train(arguments):
    """Some steps of its own on a part of the features of its own."""
    g, rank = arguments
    rng = np.random.default_rng(rank)
    features = rng.standard_normal((N, 8)).astype(np.float32)
    for _ in range(50):
        features = np.tanh(g.spmm(features))
    return sparsed.last_transport(), features


def test_four_processes_use_one_graph(g):
    with multiprocessing.get_context("spawn").Pool(4) as pool:
        results = pool.map(_train, [(g, rank) for rank in range(4)])
    for rank, (transport, features) in enumerate(results):
        assert transport == "attached"
        np.testing.assert_allclose(features, _train((g, rank))[1], rtol=1e-4, atol=1e-5)


# ---- Servers that die


@pytest.mark.parametrize("attach", [False, True])
def test_a_server_that_dies_and_comes_back(own_server, tmp_path, attach):
    server = own_server(f"--data-dir={tmp_path}/data")
    c = sparsed.connect(server.address, attach=attach)
    g = c.upload("graph", example())
    check(g)
    server.kill()
    for call in (c.info, lambda: c.upload("other", example()), lambda: g.sddmm(x(), x())):
        begin = time.monotonic()
        try:
            call()
        except sparsed.Unavailable as error:
            assert isinstance(error, ConnectionError)
            assert str(error)
        else:
            # What this process is attached to serves on without the server.
            assert attach
            assert sparsed.last_transport() == "attached"
        assert time.monotonic() - begin < 1
    server.start()
    deadline = time.monotonic() + 30
    while True:
        try:
            check(g)
            c.info()
            break
        except sparsed.Unavailable:
            assert time.monotonic() < deadline
            time.sleep(0.1)
    check(g)
    assert c.matrix("graph").nnz == g.nnz
    c.upload("other", example())


def test_a_server_that_dies_under_a_product(own_server):
    server = own_server()
    with sparsed.connect(server.address, attach=False) as c:
        a = sp.random(20_000, 20_000, 0.005, format="csr", rng=1, dtype=np.float32)
        g = c.upload("graph", a)
        killer = threading.Timer(0.05, server.kill)
        killer.start()
        wide = np.ones((20_000, 2_000), np.float32)
        with pytest.raises(sparsed.Unavailable):
            g.spmm(wide)
        killer.join()


def test_a_server_that_forgot_everything(own_server):
    server = own_server()
    with sparsed.connect(server.address, attach=False) as c:
        g = c.upload("graph", example())
        server.kill()
        server.start()
        deadline = time.monotonic() + 30
        while True:
            try:
                with pytest.raises(sparsed.NotFound):
                    check(g)
                break
            except sparsed.Unavailable:
                assert time.monotonic() < deadline
        g = c.upload("graph", example())
        check(g)
