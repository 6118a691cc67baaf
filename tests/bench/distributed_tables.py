#!/usr/bin/env python3
"""Products of buffers in columns over several GPUs beside whole ones: a page from `bench_service distributed` lines.

usage: distributed_tables.py RESULTS.jsonl OUT.md
"""

import json
import math
import pathlib
import sys

OPERATIONS = {"spmm": "SpMM", "chain": "chain of SpMM", "sddmm": "SDDMM"}

INTRO = """# Several GPUs

Two and four H100 of a host (driver 580, NVLink), a server with all of them, a client over a Unix socket. Buffers in
[columns over the GPUs](../../operations.md#several-gpus) in turns with whole ones, f32, operands and results held by the server; each column of a result was computed by
one card and equals that of the whole product. Medians; the first of each four is left out. Raw results: `distributed.jsonl`.

    sparsed --in-memory --devices=cuda:0,cuda:1 --listen=unix:/run/two.sock
    bench_service distributed --server=unix:/run/two.sock --rows=1000000 --row-nnz=16 --k=128
    bench_service distributed --server=unix:/run/two.sock --matrix=cnr-2000.mtx --k=128

How many times as fast several cards are as one: the kernels (of the slower card, and for SDDMM with the sum on one of them), and the whole request as its caller sees it, which has
the way through gRPC to it, some 0.3 ms that no card shortens. A chain is one request of so many products.
"""


def geomean(values):
    return math.exp(sum(map(math.log, values)) / len(values))


def table(headers, rows):
    return ["| " + " | ".join(headers) + " |", "|" + " --- |" * len(headers)] + \
           ["| " + " | ".join(map(str, row)) + " |" for row in rows] + [""]


def page(path):
    with open(path, encoding="utf-8") as file:
        lines = [json.loads(line) for line in file]
    steps = lines[0]["steps"]
    out = [INTRO]
    headers = ["matrix", "rows", "nonzeros"]
    for op, name in OPERATIONS.items():
        name = f"{name} ({steps})" if op == "chain" else name
        headers += [f"{name}: kernels", "request"]
    for gpus, k in sorted({(line["gpus"], line["k"]) for line in lines}):
        rows, gains = [], {}
        for line in (line for line in lines if (line["gpus"], line["k"]) == (gpus, k)):
            row = [line["matrix"], f"{line['rows']:,}", f"{line['nnz']:,}"]
            for op in OPERATIONS:
                for what in ("kernel_gain", "gain"):
                    gain = line[f"{op}_{what}"]
                    gains.setdefault((op, what), []).append(gain)
                    row.append(f"{gain:.2f}")
            rows.append(row)
        rows.append(["geometric mean", "", ""] + [f"**{geomean(of):.2f}**" for of in gains.values()])
        out += [f"## {gpus} cards, K = {k}", "", *table(headers, rows)]
    return "\n".join(out)


if __name__ == "__main__":
    if len(sys.argv) != 3:
        sys.exit(__doc__)
    pathlib.Path(sys.argv[2]).write_text(page(sys.argv[1]), encoding="utf-8")
