#!/usr/bin/env python3
"""Times attention forward as PyTorch's message passing on the CPU, in f32: gathers, softmax by scatters, a scattered sum, as
PyG's TransformerConv and GATv2Conv have it. Beside what bench_attention_cpu measures; medians of three.

    tests/bench/python/message_passing.py THREADS FILE.mtx... >> attention-cpu.jsonl
"""

import json
import pathlib
import sys
import time

import numpy as np
import torch


def read(path):
    """Rows, columns, and both indices of each nonzero."""
    with open(path) as lines:
        head = lines.readline()
        line = lines.readline()
        while line.startswith("%"):
            line = lines.readline()
        rows, cols = map(int, line.split()[:2])
        ij = np.loadtxt(lines, dtype=np.int64, usecols=(0, 1), ndmin=2) - 1
    if "symmetric" in head:
        ij = np.concatenate([ij, ij[ij[:, 0] != ij[:, 1]][:, ::-1]])
    keys = np.unique(ij[:, 0] * cols + ij[:, 1])
    return rows, cols, torch.from_numpy(keys // cols), torch.from_numpy(keys % cols)


def softmax(scores, i, rows):
    index = i.view(-1, 1).expand_as(scores)
    greatest = torch.full((rows, scores.shape[1]), -torch.inf).scatter_reduce_(0, index, scores, "amax")
    numerators = (scores - greatest.index_select(0, i)).exp()
    return numerators / torch.zeros(rows, scores.shape[1]).scatter_add_(0, index, numerators).index_select(0, i)


def forward(what, i, j, q, k, v, att):
    heads, width = att.shape
    of_k = k.index_select(0, j)
    if what == "attention":
        scores = (q.index_select(0, i) * of_k).view(-1, heads, width).sum(-1) / width**0.5
        values = v.index_select(0, j)
    else:
        z = torch.nn.functional.leaky_relu(q.index_select(0, i) + of_k, 0.2)
        scores = (z.view(-1, heads, width) * att).sum(-1)
        values = of_k
    weighted = values.view(-1, heads, width) * softmax(scores, i, len(q)).unsqueeze(-1)
    return torch.zeros(len(q), heads * width).index_add_(0, i, weighted.flatten(1))


def main():
    if len(sys.argv) < 3:
        sys.exit(__doc__)
    threads = int(sys.argv[1])
    torch.set_num_threads(threads)
    torch.manual_seed(0)
    for path in map(pathlib.Path, sys.argv[2:]):
        rows, cols, i, j = read(path)
        for heads, width in ((1, 64), (1, 128), (4, 32)):
            q, k, v = (torch.randn(n, heads * width) for n in (rows, cols, cols))
            att = torch.randn(heads, width)
            for what in ("attention", "gatv2"):
                times = []
                for _ in range(3):
                    begin = time.perf_counter()
                    forward(what, i, j, q, k, v, att)
                    times.append(1e3 * (time.perf_counter() - begin))
                line = {"matrix": path.name.split(".")[0], "rows": rows, "nnz": len(i), "heads": heads, "width": width}
                line |= {"what": f"{what} forward", "how": f"torch {torch.__version__}", "threads": threads, "ms": sorted(times)[1]}
                print(json.dumps(line), flush=True)


if __name__ == "__main__":
    with torch.no_grad():
        main()
