#!/usr/bin/env python3
"""Products of buffers in columns, or in rows, over several GPUs beside whole ones: a page from `bench_service distributed` lines.

usage: distributed_tables.py RESULTS.jsonl OUT.md
"""

import json
import math
import pathlib
import re
import sys

OPERATIONS = {"spmm": "SpMM", "chain": "chain of SpMM", "sddmm": "SDDMM"}

INTRO = """# Several GPUs

Two and four H100 of a host (driver 580, NVLink), a server with all of them, a client over a Unix socket. Buffers in
[columns, or in rows, over the GPUs](../../operations.md#several-gpus) in turns with whole ones, f32, operands and results held by the server; each column, or row, of a result was computed by
one card and equals that of the whole product. K is the number of columns of the dense operand. Medians; the first of each four is left out. Raw results: `distributed.jsonl`.

    sparsed --in-memory --devices=cuda:0,cuda:1 --listen=unix:/run/two.sock
    bench_service distributed --server=unix:/run/two.sock --rows=1000000 --row-nnz=16 --k=128
    bench_service distributed --server=unix:/run/two.sock --matrix=cnr-2000.mtx --k=128
    sparsed_corpus write stencil-3d7periodic-5m --out=. --format=mtx
    bench_service distributed --server=unix:/run/two.sock --matrix=stencil-3d7periodic-5m.mtx --k=128 --over=rows

How many times as fast several cards are as one: the kernels (of the slower card, and for SDDMM with the sum on one of them), and the whole request as its caller sees it, which has
the way through gRPC to it, some 0.3 ms that no card shortens. A chain is one request of so many products. Rows were measured later than columns, on other cards. What rows exchange is a part of the operand's rows, once for each card that fetches them.
"""


def geomean(values):
    return math.exp(sum(map(math.log, values)) / len(values))


def table(headers, rows):
    return ["| " + " | ".join(headers) + " |", "|" + " --- |" * len(headers)] + \
           ["| " + " | ".join(map(str, row)) + " |" for row in rows] + [""]


def exchanged(line):
    """Rows of the operand that went from one card to another in a product."""
    return int(re.search(r"(\d+) bytes exchanged", line["spmm_rows_plan"])[1]) / (4 * line["k"])


def page(path):
    with open(path, encoding="utf-8") as file:
        lines = [json.loads(line) for line in file]
    steps = lines[0]["steps"]
    out = [INTRO]
    groups = sorted({(line["gpus"], line["k"], line.get("over", "columns")) for line in lines})
    for gpus, k, over in groups:
        of = [line for line in lines if (line["gpus"], line["k"], line.get("over", "columns")) == (gpus, k, over)]
        operations = [op for op in OPERATIONS if f"{op}_gain" in of[0]]
        headers = ["matrix", "rows", "nonzeros"] + (["rows exchanged"] if over == "rows" else [])
        for op in operations:
            name = f"{OPERATIONS[op]} ({steps})" if op == "chain" else OPERATIONS[op]
            headers += [f"{name}: kernels", "request"]
        rows, gains = [], {}
        for line in of:
            row = [line["matrix"], f"{line['rows']:,}", f"{line['nnz']:,}"]
            if over == "rows":
                row.append(f"{exchanged(line) / line['rows']:.1%}")
            for op in operations:
                for what in ("kernel_gain", "gain"):
                    gain = line[f"{op}_{what}"]
                    gains.setdefault((op, what), []).append(gain)
                    row.append(f"{gain:.2f}")
            rows.append(row)
        means = [f"**{geomean(gain):.2f}**" for gain in gains.values()]
        rows.append(["geometric mean"] + [""] * (len(headers) - len(means) - 1) + means)
        out += [f"## {gpus} cards, K = {k}, {over}", "", *table(headers, rows)]
    return "\n".join(out)


if __name__ == "__main__":
    if len(sys.argv) != 3:
        sys.exit(__doc__)
    pathlib.Path(sys.argv[2]).write_text(page(sys.argv[1]), encoding="utf-8")
