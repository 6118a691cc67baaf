"""Handles: what they say, values, preparation, the end of clients and matrices."""

import base64
import pickle
import re
import struct
import subprocess
import sys
import time
import zlib

import numpy as np
import pytest
import scipy.sparse as sp
import scipy.sparse.linalg as spl

import sparsed


def example(n=30, dtype=np.float32):
    return sp.random(n, n, 0.2, format="csr", rng=7, dtype=np.float64).astype(dtype)


@pytest.fixture
def g(client, name):
    return client.upload(name, example())


def test_what_it_says(g, client, name):
    assert g.shape == (30, 30)
    assert g.nnz == example().nnz
    assert g.type == "f32"
    assert g.dtype == np.float32
    assert g.ndim == 2
    assert g.name == name
    assert repr(g) == (
        f"<sparsed.Matrix {name!r} at {client.address}: 30 x 30, {g.nnz} nonzeros, f32>"
    )
    assert repr(g.T).endswith(".T")
    info = g.info()
    assert (info["rows"], info["nnz"]) == (30, g.nnz)
    assert "nnz: 180" in str(info)
    assert name in [one["name"] for one in client.matrices(name)]
    everybodys = client.matrices(f"default~{name}", everybody=True)
    assert [one["name"] for one in everybodys] == [f"default~{name}"]
    assert client.matrices("nobody-has-this-prefix") == []
    assert client.info()["version"]
    assert client.stats()["matrices"] >= 1
    assert repr(client) == f"<sparsed.Client {client.address}>"


def test_show_and_explain(g):
    g.wait_ready()
    shown = g.show()
    assert np.sum(shown["density_map"]) == g.nnz
    assert "density_map: 128 rows" in repr(shown)
    assert "<img" in shown._repr_html_()
    explained = g.explain(k=64)
    assert {one["k"] for one in explained["operations"]} >= {64}
    text = str(explained)
    assert f"{g.name} on cpu: memory " in text
    assert "KiB MOVED" in text and "SpMM K=64: " in text and "{" not in text
    assert "text" not in explained
    assert "<pre>" in explained._repr_html_() and "KiB MOVED" in explained._repr_html_()
    assert str(pickle.loads(pickle.dumps(explained))) == text
    assert g.measurements()[0]["pattern_hash"] == g.info()["pattern_hash"]
    assert isinstance(g.client.measurements(), list)
    of_all = g.client.measurements(everybody=True)
    maps = [of["density_map"] for of in of_all if of["pattern_hash"] == g.info()["pattern_hash"]]
    assert len(maps[0]) == 128


def test_html(g):
    g.wait_ready()
    text = g._repr_html_()
    assert "30 x 30" in text
    png = base64.b64decode(re.search(r"base64,([^\"]+)", text)[1])
    assert png.startswith(b"\x89PNG\r\n\x1a\n")
    assert struct.unpack(">II", png[16:24]) == (128, 128)
    length = struct.unpack(">I", png[33:37])[0]
    rows = np.frombuffer(zlib.decompress(png[41 : 41 + length]), np.uint8).reshape(128, 129)
    dark = rows[:, 1:] < 255
    assert (dark == (np.array(g.show()["density_map"]) > 0)).all()


def test_html_escapes(client):
    assert "<script>" not in sparsed.Report({"<script>": "<script>"}, "<script>")._repr_html_()


def test_html_of_a_matrix_that_is_gone(g):
    g.delete()
    assert "sparsed.Matrix" in g._repr_html_()


def test_update_values(g):
    a = example()
    before = g.info()["version"]
    new = np.arange(g.nnz, dtype=np.float32)
    version = g.update_values(new)
    assert version > before
    a.data = new
    x = np.ones((30, 2), np.float32)
    np.testing.assert_allclose(g @ x, a @ x, rtol=1e-5)
    assert sparsed.last_result().version == version
    with pytest.raises(sparsed.Aborted):
        g.update_values(new, if_version=before)
    g.update_values(np.repeat(new, 2)[::2], if_version=version)  # not one behind the other
    g.update_values(new[:, None])
    g.update_values(new.tolist())
    assert (g.download().data == new).all()
    torch = pytest.importorskip("torch")
    g.update_values(torch.from_numpy(2 * new))
    assert (g.download().data == 2 * new).all()
    with pytest.raises(sparsed.InvalidType, match="float64"):
        g.update_values(new.astype(np.float64))
    with pytest.raises(sparsed.InvalidArgument, match="nonzeros"):
        g.update_values(new[1:])


def test_prepare(g):
    g.prepare("spmm:16", "sddmm:8", wait=True)
    classes = {(p["signature"]["operation"], p["signature"]["k"]) for p in g.info()["plans"]}
    assert {("spmm", 16), ("sddmm", 8)} <= classes
    steps = []
    g.prepare(32, retune=True, progress=steps.append)
    assert steps[-1].state == "ready"
    assert g.wait_ready() == "ready"
    g.prepare("spmm:16", pipeline="dcsr", wait=True)
    with pytest.raises(sparsed.InvalidArgument, match="transform pipeline"):
        g.prepare("spmm:16", pipeline="no such step")
    with pytest.raises(sparsed.InvalidArgument):
        g.prepare("product:3")
    # By the names that its arguments once had.
    g.prepare("spmm:16", again=True, recipe="dcsr", wait=True)
    with pytest.raises(sparsed.InvalidArgument, match="transform pipeline"):
        g.prepare("spmm:16", recipe="no such step")
    with pytest.raises(TypeError, match="no argument 'agian'"):
        g.prepare("spmm:16", agian=True)


# ---- The end of matrices and clients


def test_deleted(client, g, name):
    x = np.ones((30, 1), np.float32)
    g.spmm(x)
    g.delete()
    for call in (
        lambda: g.spmm(x),
        lambda: g.sddmm(x, x),
        lambda: g.info(),
        lambda: g.download(),
        lambda: g.delete(),
        lambda: client.matrix(name),
        lambda: g.spgemm(g),
    ):
        with pytest.raises(sparsed.NotFound) as caught:
            call()
        assert name in str(caught.value)
        assert caught.value.code == "NOT_FOUND"
    with pytest.raises(sparsed.NotFound):
        client.held("nobody")


def test_replaced_by_one_of_another_size(client, g, name):
    x = np.ones((30, 2), np.float32)
    g.spmm(x)
    other = sp.eye_array(7, 5, dtype=np.float32, format="csr")
    client.upload(name, other, replace=True)
    y = g.spmm(np.ones((5, 2), np.float32))
    assert y.shape == (7, 2)
    with pytest.raises(sparsed.InvalidArgument, match="7 x 5"):
        g.spmm(x)
    assert g.shape == (7, 5)


def test_values_of_one_that_was_replaced(client, g, name):
    """After one refusal by the sizes that it had."""
    g.softmax(np.ones(g.nnz, np.float32))
    client.upload(name, sp.eye_array(7, 5, dtype=np.float32, format="csr"), replace=True)
    five = np.ones(5, np.float32)
    for call in (lambda: g.softmax(five), lambda: g.total(five)):
        g._sizes = g._known_sizes()._replace(nnz=6)
        with pytest.raises(sparsed.InvalidArgument):
            call()
        assert call().shape[0] in (5, 7)


def test_closed(server):
    with sparsed.connect(server.address) as c:
        g = c.upload("closed", example(), replace=True)
        held = c.put("closed", [[1.0]])
        x = np.ones((30, 1), np.float32)
        y = c.empty((30, 1))
        y[:] = 1
    for call in (
        lambda: g.spmm(x),
        lambda: g.sddmm(x, x),
        lambda: g.info(),
        lambda: g.show(),
        lambda: c.matrix("closed"),
        lambda: c.info(),
        lambda: c.upload("closed", example()),
        lambda: c.empty((3, 3)),
        lambda: held.read(),
        lambda: c.put(None, x),
    ):
        with pytest.raises(sparsed.FailedPrecondition, match="closed"):
            call()
    c.close()
    assert y.sum() == 30  # memory that is still in use stays
    assert "closed" in repr(c)


def test_addresses(tmp_path):
    begin = time.monotonic()
    for address in (f"unix:{tmp_path}/nothing", "127.0.0.1:1"):
        with pytest.raises(sparsed.Unavailable, match="no sparsed at") as caught:
            sparsed.connect(address)
        assert isinstance(caught.value, ConnectionError)
    assert time.monotonic() - begin < 10
    with pytest.raises(sparsed.Error):
        sparsed.connect("no address at all", timeout=1)
    with pytest.raises(sparsed.InvalidType):
        sparsed.connect(7470)
    with pytest.raises(sparsed.InvalidArgument):
        sparsed.connect("unix:/x\0y")


@pytest.mark.parametrize(
    "options",
    [{"timeout": "soon"}, {"streams": 1000}, {"streams": "x"}, {"attempts": -1}, {"threads": -2}],
)
def test_options_that_make_no_sense(server, options):
    with pytest.raises(sparsed.InvalidArgument):
        sparsed.connect(server.address, **options)


def test_tokens_are_shown_and_kept_secret(server, tmp_path):
    with pytest.raises(sparsed.Unauthenticated, match="knows no token") as caught:
        sparsed.connect(server.address, token="secret")  # the server has no access file
    assert "secret" not in str(caught.value)
    with pytest.raises(sparsed.InvalidArgument, match="plain text") as caught:
        sparsed.connect("192.0.2.1:7470", token="secret")
    assert "secret" not in str(caught.value)
    file = tmp_path / "token"
    file.write_text("secret\n")
    file.chmod(0o644)
    with pytest.raises(sparsed.PermissionDenied, match="others can read"):
        sparsed.connect(server.address, token_file=file)
    file.chmod(0o600)
    with pytest.raises(sparsed.Unauthenticated):
        sparsed.connect(server.address, token_file=file)
    with pytest.raises(TypeError, match="certificate"):
        sparsed.connect(server.address, certificate=1)
    with pytest.raises(sparsed.FailedPrecondition, match="No such file"):
        sparsed.connect("127.0.0.1:1", tls=tmp_path / "ca.pem")


def test_deadlines(server, name):
    with sparsed.connect(server.address, attach=False) as c:
        g = c.upload(name, sp.random(3000, 3000, 0.05, format="csr", rng=1, dtype=np.float32))
        with pytest.raises(sparsed.DeadlineExceeded) as caught:
            g.spmm(np.ones((3000, 500), np.float32), timeout=1e-6)
        assert isinstance(caught.value, TimeoutError)
        with pytest.raises(sparsed.DeadlineExceeded):
            g.spgemm(g, timeout=1e-6)
        with pytest.raises(sparsed.DeadlineExceeded):
            g.download(timeout=1e-6)


def test_what_the_server_has_no_room_for(own_server):
    small = own_server(memory="64MiB")
    with sparsed.connect(small.address) as c:
        big = sp.random(100_000, 100_000, 2e-4, format="csr", rng=1, dtype=np.float64)
        with pytest.raises(sparsed.ResourceExhausted) as caught:
            c.upload("big", sp.vstack([big] * 4))
        assert caught.value.code == "RESOURCE_EXHAUSTED"
        with pytest.raises(sparsed.ResourceExhausted):
            c.zeros("big", (1 << 20, 1 << 10))


@pytest.mark.parametrize("shape", [(1 << 40, 1 << 30), (-1, 3), "large", (1, 2, 3)])
def test_shapes_of_held_matrices(client, shape):
    with pytest.raises(sparsed.Error):
        client.zeros("shapes", shape)


@pytest.mark.parametrize("shape", [(1 << 60,), (-1,), (1.5, 2), "x"])
def test_shapes_of_shared_arrays(client, shape):
    with pytest.raises(sparsed.Error):
        client.empty(shape)


def test_exceptions():
    for kind in sparsed.Error.__subclasses__():
        error = pickle.loads(pickle.dumps(kind("what was wrong", 1.5)))
        assert type(error) is kind
        assert str(error) == "what was wrong"
        assert error.retry_after == 1.5 and error.request_id is None
        error = pickle.loads(pickle.dumps(kind("what was wrong", None, "0123/7")))
        assert str(error) == "what was wrong (request 0123/7)" and error.request_id == "0123/7"
        assert error.code == re.sub(r"(?<!^)([A-Z])", r"_\1", kind.__name__).upper()
    assert issubclass(sparsed.InvalidArgument, ValueError)
    assert issubclass(sparsed.InvalidType, TypeError)
    assert issubclass(sparsed.NotFound, LookupError)


def test_interrupts(server, name):
    """Long calls end when Python is interrupted."""
    program = """
import signal, sys, threading, time, os
import scipy.sparse as sp, sparsed
c = sparsed.connect(sys.argv[1], attach=False)
g = c.upload(sys.argv[2], sp.random(20_000, 20_000, 0.01, format="csr", rng=1, dtype="f4"))
signal.signal(signal.SIGINT, signal.default_int_handler)  # in the background it is ignored
threading.Timer(0.2, os.kill, (os.getpid(), signal.SIGINT)).start()
begin = time.monotonic()
try:
    g.spgemm(g)
except KeyboardInterrupt:
    print("interrupted", time.monotonic() - begin < 20)
print(c.matrix(sys.argv[2]).shape)
"""
    done = subprocess.run(
        [sys.executable, "-c", program, server.address, name], capture_output=True, text=True,
        timeout=120,
    )  # fmt: skip
    assert done.stdout == "interrupted True\n(20000, 20000)\n", done.stderr


# ---- SciPy's linear operators


def test_linear_operator(client, name):
    a = example(dtype=np.float64)
    symmetric = sp.csr_array(a + a.T + 20 * sp.eye_array(30))
    g = client.upload(name, symmetric)
    operator = spl.aslinearoperator(g)
    assert operator.shape == (30, 30)
    assert operator.dtype == np.float64
    x = np.random.default_rng(1).standard_normal(30)
    np.testing.assert_allclose(operator @ x, symmetric @ x)
    np.testing.assert_allclose(operator.H @ x, symmetric.T @ x)
    block = np.random.default_rng(1).standard_normal((30, 4))
    np.testing.assert_allclose(operator @ block, symmetric @ block)
    np.testing.assert_allclose(operator.H @ block, symmetric.T @ block)
    values = spl.eigsh(operator, k=3, return_eigenvectors=False)
    np.testing.assert_allclose(
        np.sort(values), np.sort(np.linalg.eigvalsh(symmetric.toarray()))[-3:]
    )
    solution, status = spl.cg(operator, x, rtol=1e-10)
    assert status == 0
    np.testing.assert_allclose(symmetric @ solution, x, atol=1e-6)
    singular = spl.svds(spl.aslinearoperator(g), k=2, return_singular_vectors=False)
    np.testing.assert_allclose(
        np.sort(singular), np.sort(np.linalg.svd(symmetric.toarray())[1])[-2:]
    )


def test_linear_operator_of_f32_takes_other_numbers(g):
    a = example()
    x = np.arange(30)
    np.testing.assert_allclose(spl.aslinearoperator(g) @ x, a @ x, rtol=1e-5)
    np.testing.assert_allclose(g.T.matvec(x), a.T @ x, rtol=1e-5)
    np.testing.assert_allclose(g.T.rmatvec(x), a @ x, rtol=1e-5)
    np.testing.assert_allclose(g.T.matmat(x[:, None]), (a.T @ x)[:, None], rtol=1e-5)
    np.testing.assert_allclose(g.T.rmatmat(x[:, None]), (a @ x)[:, None], rtol=1e-5)
    with pytest.raises(sparsed.InvalidType):
        g.matvec(x * 1j)
