"""The client for asyncio."""

import asyncio
import time

import numpy as np
import pytest
import scipy.sparse as sp

import sparsed
import sparsed.aio


def example(n=40):
    return sp.random(n, n, 0.2, format="csr", rng=7, dtype=np.float32)


def large():
    return sp.random(20_000, 20_000, 0.005, format="csr", rng=1, dtype=np.float32)


def run(server, work, **options):
    async def main():
        async with await sparsed.aio.connect(server.address, **options) as c:
            return await work(c)

    return asyncio.run(main())


def test_everything(server, name):
    a = example()
    x = np.random.default_rng(1).standard_normal((40, 4)).astype(np.float32)

    async def work(c):
        g = await c.upload(name, a, prepare=[4])
        assert (g.shape, g.nnz, g.type, g.dtype, g.name) == ((40, 40), a.nnz, "f32", "f4", name)
        assert "aio.Matrix" in repr(g)
        assert "aio.Client" in repr(c)
        one, two = await asyncio.gather(g.spmm(x), g.spmm(x, transpose=True))
        np.testing.assert_allclose(one, a @ x, rtol=1e-5, atol=1e-5)
        np.testing.assert_allclose(two, a.T @ x, rtol=1e-5, atol=1e-5)
        assert sparsed.last_transport() == "stream"
        one, two = await asyncio.gather(g.T.spmm(x, alpha=2), g.T.spmm(x, transpose=True))
        np.testing.assert_allclose(one, 2 * (a.T @ x), rtol=1e-5, atol=1e-5)
        np.testing.assert_allclose(two, a @ x, rtol=1e-5, atol=1e-5)
        assert (g.T.T is g, g.T.shape, g.T.nnz, g.T.dtype) == (True, (40, 40), a.nnz, "f4")
        assert g.T.name == name
        assert repr(g.T) == repr(g) + ".T"
        for t, exact in (
            (await g.T.spgemm(g), a.T @ a),
            (await g.spgemm(g.T), a @ a.T),
            (await g.spgemm(g.T, transpose_other=True), a @ a),
            (await g.T.spgemm(g.T), a.T @ a.T),
        ):
            np.testing.assert_allclose(t.toarray(), exact.toarray(), rtol=1e-4, atol=1e-5)
        await g.attach()
        g.sync.spmm(x)
        assert sparsed.last_transport() == "attached"
        with pytest.raises(sparsed.Error):
            await g.attach(gpu=0)  # this server has none
        o = await g.sddmm(x, x)
        assert o.shape == (a.nnz,)
        p = await g.softmax(o)
        np.testing.assert_allclose(await g.total(p), (np.diff(a.indptr) > 0) * 1.0, rtol=1e-5)
        await g.softmax_gradient(p, o)
        np.testing.assert_allclose(await g.scale(rows=np.ones(40, "f4")), a.data, rtol=1e-6)
        t = await g.spgemm(g)
        np.testing.assert_allclose(t.toarray(), (a @ a).toarray(), rtol=1e-4, atol=1e-5)
        t = await g.spgemm(a)
        np.testing.assert_allclose(t.toarray(), (a @ a).toarray(), rtol=1e-4, atol=1e-5)
        kept = await g.spgemm(g, keep_as=name + "-kept")
        assert isinstance(kept, sparsed.aio.Matrix)
        await kept.delete()
        await g.prepare("spmm:8", again=True, wait=True)
        assert await g.wait_ready() == "ready"
        version = await g.update_values(np.ones(a.nnz, np.float32))
        assert (await g.info())["version"] == version
        assert (await g.download()).data.sum() == a.nnz
        assert (await g.show())["density_map"]
        assert await g.explain(k=8)
        assert await g.measurements()
        held = await c.put("aio", x)
        assert (await c.read(held) == x).all()
        assert (await c.held("aio")).shape == (40, 4)
        assert await c.buffers("aio")
        held.delete()
        (await c.zeros("aio", (2, 2))).delete()
        assert [one["name"] for one in await c.matrices(name)] == [name]
        assert c.empty((3, 3)).shape == (3, 3)
        assert (await c.info())["version"]
        assert (await c.stats())["matrices"]
        assert isinstance(await c.measurements(), list)
        async with c.temporary(a) as other:
            assert (await c.matrix(other.name)).nnz == a.nnz
        with pytest.raises(sparsed.NotFound):
            await c.matrix(other.name)
        await g.delete()
        with pytest.raises(sparsed.NotFound):
            await g.spmm(x)

    run(server, work)


def test_the_loop_goes_on_meanwhile(server, name):
    a = large()

    async def work(c):
        g = await c.upload(name, a)
        beats = 0

        async def beat():
            nonlocal beats
            while True:
                beats += 1
                await asyncio.sleep(0.001)

        task = asyncio.create_task(beat())
        before = beats
        await g.spgemm(g, semiring="plus-pair", mask=name)
        task.cancel()
        assert beats - before > 5

    run(server, work)


def test_cancellation_cancels_the_call(server, name, remote):
    a = large()

    async def work(c):
        g = await c.upload(name, a)
        await g.wait_ready()
        out = np.zeros((20_000, 2_000), np.float32)
        x = np.ones((20_000, 2_000), np.float32)
        task = asyncio.create_task(g.spmm(x, out=out))
        await asyncio.sleep(0.02)
        begin = time.monotonic()
        task.cancel()
        with pytest.raises(asyncio.CancelledError):
            await task
        assert time.monotonic() - begin < 30
        after = out.copy()
        # The memory is free: nobody writes there any more.
        await asyncio.sleep(0.2)
        assert (out == after).all()
        # The connection is of use as before.
        np.testing.assert_allclose(
            await g.spmm(x[:, :2].copy()), a @ x[:, :2], rtol=1e-3, atol=1e-4
        )

    run(server, work, attach=False)
    counts = {(r["operation"], r["code"]) for r in remote.stats()["requests"]}
    assert ("spmm", "CANCELLED") in counts


def test_a_timeout_of_asyncio(server, name):
    async def work(c):
        g = await c.upload(name, large())
        with pytest.raises(TimeoutError):
            await asyncio.wait_for(g.spgemm(g), 0.05)
        assert (await g.info())["nnz"] == g.nnz

    run(server, work)


def test_progress_runs_in_the_loop(server, name):
    import threading

    async def work(c):
        threads, steps = set(), []

        def hear(progress):
            threads.add(threading.get_ident())
            steps.append(progress)

        await c.upload(name, example(), progress=hear, wait=True)
        await asyncio.sleep(0)
        assert threads == {threading.get_ident()}
        assert steps[-1].state == "ready"

    run(server, work)


def test_errors(server, name):
    async def work(c):
        g = await c.upload(name, example())
        with pytest.raises(sparsed.InvalidArgument):
            await g.spmm(np.ones((3, 3), np.float32))
        with pytest.raises(sparsed.DeadlineExceeded):
            await g.spmm(np.ones((40, 3), np.float32), timeout=1e-9)
        with pytest.raises(sparsed.AlreadyExists):
            await c.upload(name, example())
        await c.close()
        with pytest.raises(sparsed.FailedPrecondition):
            await g.spmm(np.ones((40, 3), np.float32))

    run(server, work)


def test_many_at_once(server, name):
    a = example()

    async def work(c):
        g = await c.upload(name, a)
        xs = [np.full((40, 2), i, np.float32) for i in range(300)]
        for x, y in zip(xs, await asyncio.gather(*(g.spmm(x) for x in xs)), strict=True):
            np.testing.assert_allclose(y, a @ x, rtol=1e-4, atol=1e-4)

    run(server, work)
