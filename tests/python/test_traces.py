"""Calls belong to the trace that their thread or task says."""

import asyncio
import json
import threading
import time

import numpy as np
import pytest
import scipy.sparse

import sparsed
import sparsed.aio

PARENT = "00f067aa0ba902b7"


def traceparent(number):
    return f"00-{number:032x}-{PARENT}-01"


@pytest.fixture
def traces(own_server):
    """A server, and a function that gives the traces (by number, 0 of none of ours) that requests
    of an operation were in, once there are `count` of them."""
    server = own_server(
        "--log-level=debug", "--log-format=json", "--preparation-workers=0", local=False
    )

    def found(operation, count):
        deadline = time.monotonic() + 60
        while True:
            lines = [json.loads(line) for line in (server.folder / "log").read_text().splitlines()]
            ids = [
                int(line.get("trace_id", "0"), 16) for line in lines
                if line.get("event") == "request" and line.get("op") == operation
            ]  # fmt: skip
            if len(ids) >= count:
                return sorted(one if one < 1000 else 0 for one in ids)
            assert time.monotonic() < deadline, lines
            time.sleep(0.02)

    return server, found


@pytest.fixture
def a():
    return scipy.sparse.random(60, 60, 0.1, "csr", dtype=np.float32, random_state=1)


def test_every_call(traces, a):
    server, found = traces
    x = np.ones((60, 4), np.float32)
    with sparsed.connect(server.address, attach=False) as c:
        with sparsed.trace(traceparent(1), "vendor=1"):
            g = c.upload("g", a)
            g.spmm(x)
            g.sddmm(x, x)
            g.spgemm(g)
            c.put("b", x)
            c.matrices()
            g.softmax(np.ones(g.nnz, np.float32))
            g.delete()
    for operation in ("upload", "spmm", "sddmm", "spgemm", "put_buffer", "list", "chain", "delete"):
        assert found(operation, 1) == [1], operation


def test_the_innermost_counts_in_its_thread_alone(traces, a):
    server, found = traces
    x = np.ones((60, 4), np.float32)
    with sparsed.connect(server.address, attach=False) as c:
        g = c.upload("g", a)
        g.spmm(x)
        with sparsed.trace(traceparent(1)):
            with sparsed.trace(traceparent(2)):
                g.spmm(x)
            g.spmm(x)
            other = threading.Thread(target=g.spmm, args=(x,))
            other.start()
            other.join()
            with pytest.raises(ZeroDivisionError), sparsed.trace(traceparent(3)):
                raise ZeroDivisionError
            g.spmm(x)
    assert found("spmm", 5) == [0, 0, 1, 1, 2]


def test_tasks_have_their_own(traces, a):
    server, found = traces
    x = np.ones((60, 4), np.float32)

    async def one(g, number):
        with sparsed.trace(traceparent(number)):
            for _ in range(3):
                await g.spmm(x)
            await g.info()

    async def main():
        async with await sparsed.aio.connect(server.address, attach=False) as c:
            g = await c.upload("g", a)
            await asyncio.gather(*(one(g, number) for number in range(1, 5)))

    asyncio.run(main())
    assert found("spmm", 12) == sorted([1, 2, 3, 4] * 3)
    assert set(found("get", 4)) >= {1, 2, 3, 4}


def test_what_is_malformed_is_not_sent(traces, a):
    server, found = traces
    with sparsed.connect(server.address, attach=False) as c:
        zero = "00-" + "0" * 32 + f"-{PARENT}-01"
        for text in ("", "00-1-2-01", zero, traceparent(1) + "\n", "\u00e4" * 60):
            with sparsed.trace(text):
                c.matrices()
    assert found("list", 5) == [0] * 5


@pytest.mark.parametrize("arguments", [(1,), (None,), (traceparent(1), 2)])
def test_what_is_no_text(arguments):
    with pytest.raises(sparsed.InvalidType, match="expected a string"), sparsed.trace(*arguments):
        pass


def test_a_zero_byte():
    with pytest.raises(sparsed.InvalidArgument, match="traceparent has a zero byte"):
        with sparsed.trace("00\0"):
            pass
