#!/usr/bin/env python3
"""What a call from Python costs the host beyond the call of the C interface.

    tests/bench/python/calls.py [--device cuda] [--seconds 20] [--out calls.jsonl]

A matrix so small that its product takes next to nothing. For each way of calling a line of JSON: the
least and the median of the microseconds that a call takes its thread; on a GPU calls are queued, and
waited for outside of the time. "C" is the function of the C interface with arguments that were
made before, the result's memory among them. Without --server one is started on this machine.
"""

import argparse
import json
import statistics
import time

import numpy as np
import torch
from epochs import server_for, synchronize

import sparsed
import sparsed.torch as st
from sparsed import _native


def parse():
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--device", default="cuda" if torch.cuda.is_available() else "cpu")
    parser.add_argument("--seconds", type=float, default=20, help="of all ways together")
    parser.add_argument("--server")
    parser.add_argument("--out")
    return parser.parse_args()


def c_call(g, x):
    """The function of the C interface, and nothing else."""
    out = torch.empty_like(x)
    n, k = x.shape
    gpu = x.device.index if x.is_cuda else _native.HOST
    stream = torch.cuda.current_stream(x.device).cuda_stream if x.is_cuda else 0
    handle = g._native_handle()
    product = _native.spmm(
        handle.pointer, (x.data_ptr(), n, k, k, _native.F32, gpu, 0),
        (out.data_ptr(), n, k, k, _native.F32, gpu, 0), stream=stream,
    )  # fmt: skip
    return lambda: (product.start(None), out)[1]


def time_of(function, device, seconds):
    """Microseconds of a call, by blocks of 50."""
    for _ in range(100):
        function()
    blocks = []
    end = time.perf_counter() + seconds
    while time.perf_counter() < end or len(blocks) < 5:
        synchronize(device)
        begin = time.perf_counter()
        for _ in range(50):
            function()
        blocks.append((time.perf_counter() - begin) / 50 * 1e6)
    return min(blocks), statistics.median(blocks)


def main():
    arguments = parse()
    device = torch.device(arguments.device)
    server = server_for(arguments)
    out = open(arguments.out, "a") if arguments.out else None
    n, k = 64, 16
    random = np.random.default_rng(0)
    dense = (random.random((n, n)) < 0.1).astype(np.float32)
    try:
        # One thread: the product is smaller than what it takes to wake a second one.
        with sparsed.connect(arguments.server or server.address, threads=1) as client:
            with client.temporary(dense) as g:
                x = torch.randn(n, k, device=device)
                learned = x.clone().requires_grad_()
                ones = torch.ones_like(x)
                values = torch.rand(g.nnz, device=device)
                y = st.spmm(g, learned)
                y_there = torch.empty_like(x)
                ways = {
                    "C": c_call(g, x),
                    "torch.empty, of the result's shape": lambda: torch.empty_like(x),
                    "g.spmm, out=": lambda: g.spmm(x, out=y_there),
                    "g.spmm": lambda: g.spmm(x),
                    "st.spmm": lambda: st.spmm(g, x),
                    "st.spmm, gradient needed": lambda: st.spmm(g, learned),
                    "st.spmm, values": lambda: st.spmm(g, x, values),
                    "st.sddmm": lambda: st.sddmm(g, x, x),
                    "st.edge_softmax": lambda: st.edge_softmax(g, values),
                    "st.attention": lambda: st.attention(g, x, x, x, heads=4),
                    "backward of st.spmm": lambda: torch.autograd.grad(
                        y, learned, ones, retain_graph=True
                    ),
                    "torch.mm": lambda: torch.mm(x.t(), x),
                }
                if device.type == "cpu":
                    array = x.numpy()
                    ways["g.spmm, NumPy"] = lambda: g.spmm(array)
                for name, call in ways.items():
                    least, median = time_of(call, device, arguments.seconds / len(ways))
                    line = json.dumps(
                        {
                            "call": name, "device": arguments.device, "least_us": round(least, 2),
                            "median_us": round(median, 2), "transport": sparsed.last_transport(),
                        }
                    )  # fmt: skip
                    print(line, flush=True)
                    if out is not None:
                        out.write(line + "\n")
    finally:
        if server is not None:
            server.close()


if __name__ == "__main__":
    main()
