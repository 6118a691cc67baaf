"""Buffers of a matrix whose rows are on two nodes, with a real etcd."""

import os
import pickle
import shutil
import signal
import sys
import threading
import time

import numpy as np
import pytest
import scipy.sparse
from conftest import ROOT

import sparsed

sys.path.insert(0, str(ROOT / "tests/e2e"))
from cluster_test import Cluster, Etcd  # noqa: E402

ROWS, K = 300, 5


@pytest.fixture
def cluster(tmp_path):
    if shutil.which("etcd") is None:
        pytest.skip("etcd is not installed (deploy/install-packages test)")
    etcd = Etcd(tmp_path)
    etcd.start()
    try:
        program = os.environ.get("SPARSED_SERVER", ROOT / "build/cuda/server/sparsed")
        nodes = Cluster(program, None, tmp_path, etcd, ["a", "b"], replicas=1)
        with nodes.running():
            yield nodes
    finally:
        etcd.kill()


@pytest.mark.parametrize("partition", [None, np.arange(ROWS) % 2])
def test_buffers_of_a_matrix_in_shards(cluster, partition):
    a = scipy.sparse.random(ROWS, ROWS, 0.05, "csr", np.float32, rng=7)
    x = np.random.default_rng(1).random((ROWS, K), np.float32)
    # Of another row stride than their width.
    wide = np.zeros((ROWS, K + 2), np.float32)
    with sparsed.connect(cluster.nodes["a"].address) as one:
        g = one.upload("g", a, shards=2, partition=partition)
        b = one.put("x", x, distribution="rows", rows_of="g")
        c = one.zeros("y", (ROWS, K), distribution="rows", rows_of="g")
        assert (b.read() == x).all()
        assert not c.read().any()
        assert g.spmm(b, out=c) is c
        b.read(out=wide[:, :K])
        assert (wide[:, :K] == x).all()
        assert not wide[:, K:].any()
        c.renew()
        with pytest.raises(sparsed.InvalidArgument, match="300 x 5"):
            one.held("y", rows_of="g").read(out=np.zeros((ROWS, K + 1), np.float32))
        # They are nobody's but the matrix's.
        with pytest.raises(sparsed.NotFound):
            one.held("y")
        with pytest.raises(sparsed.NotFound):
            one.held("z", rows_of="g")
        with pytest.raises(sparsed.NotFound):
            one.held("y", rows_of="h")
        with sparsed.connect(cluster.nodes["b"].address) as other:
            found = other.held("y", rows_of="g")
            assert found.shape == (ROWS, K)
            assert found.type == "f32"
            np.testing.assert_allclose(found.read(), a @ x, rtol=1e-4, atol=1e-5)
        again = pickle.loads(pickle.dumps(c))
        assert again.rows_of == "g"
        again.delete()
        with pytest.raises(sparsed.NotFound):
            c.read()
        with b:
            pass
        with pytest.raises(sparsed.NotFound):
            b.renew()


def test_others_do_not_wait_for_a_product_that_waits_for_a_node(cluster):
    a = scipy.sparse.random(ROWS, ROWS, 0.05, "csr", np.float32, rng=7)
    x = np.random.default_rng(1).random((ROWS, K), np.float32)
    address = cluster.nodes["a"].address
    # All requests to a node go by one stream.
    with sparsed.connect(address, attach=False, streams=1) as one:
        g = one.upload("g", a, shards=2)
        b = one.put("x", x, distribution="rows", rows_of="g")
        np.testing.assert_allclose(g.spmm(b), a @ x, rtol=1e-4, atol=1e-5)
        b = one.put("x", x, distribution="rows", rows_of="g")
        # One that is on the node that goes on.
        for seed in range(100):
            small = scipy.sparse.random(ROWS, ROWS, 0.02, "csr", np.float32, rng=seed)
            whole = one.upload(f"w{seed}", small)
            if whole.info()["nodes"] == ["a"]:
                break
        else:
            raise AssertionError("a hundred matrices, and none is on a")
        expected, sampled = whole.spmm(x), whole.sddmm(x, x)
        assert sparsed.last_result().transport == "stream"
        ended = []

        def in_flight():
            """Of SDDMM, at a."""
            lines = cluster.nodes["a"].all_metrics().splitlines()
            return sum(
                float(line.rsplit(" ", 1)[1])
                for line in lines
                if line.startswith("sparsed_requests_in_flight{") and 'op="sddmm"' in line
            )

        def wait_for_rows():
            try:
                g.sddmm(x, b, timeout=60)  # with chunks of its own behind it
            except sparsed.Error as error:
                ended.append(error)

        stopped = cluster.nodes["b"].process
        stopped.send_signal(signal.SIGSTOP)
        try:
            waiting = threading.Thread(target=wait_for_rows)
            waiting.start()
            deadline = time.monotonic() + 60
            while in_flight() < 1:
                assert time.monotonic() < deadline, "nothing waits at a"
                time.sleep(0.05)
            for _ in range(10):
                assert (whole.spmm(x, timeout=30) == expected).all()
                assert (whole.sddmm(x, x, timeout=30) == sampled).all()
                time.sleep(0.05)
            assert waiting.is_alive(), f"it did not wait: {ended}"
        finally:
            stopped.send_signal(signal.SIGCONT)
        waiting.join()
        assert not ended
        # What was put for a matrix that is whole lasts longer than that.
        lasting = one.put("lasting", x, distribution="rows", rows_of=whole.name)
        whole.delete()
        assert (lasting.read() == x).all()
        lasting.delete()
        with pytest.raises(sparsed.NotFound, match="lasting"):
            lasting.read()
