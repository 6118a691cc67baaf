#!/usr/bin/env python3
"""Requests to an engine with several GPUs, beside those on one: a page from `bench_cards` lines.

usage: cards_tables.py RESULTS.jsonl OUT.md
"""

import json
import math
import pathlib
import sys

from distributed_tables import OPERATIONS, table

INTRO = """# Several GPUs, the engine alone

Two and four H100 of a host (driver 580, NVLink), K = 128 columns of the dense operand, f32, operands and results held by the
engine, no wire: a request from its beginning to its end, and its kernels (of the slower card, and
with the copies that steps wait for). Operands whole, in columns and in rows, in turns
([what that means](../../operations.md#several-gpus)); the results are equal. Medians; the first of
each four is left out. Raw results: `cards.jsonl`. [Requests over gRPC](distributed.md) take some
0.3 ms more, however many cards there are.

    bench_cards --gpus=2 --matrix stencil-3d7 stencil-2d9 grid-2d4 random

Times as fast as on one card. SDDMM over columns takes 0.1 to 0.2 ms of kernels more than its share,
for the sum of its values and for narrower dot products. A library for collectives would move as
many bytes in another order, and save 0.1 ms at the most of requests of 0.7 ms and more; by rows
there is no sum. What a request takes beyond its kernels, 0.1 to 0.7 ms, is the host's: lookups,
lanes, and the call that brings SDDMM's values together (for columns it waited for each copy when
this was measured, and does no more).
"""


def geomean(values):
    return math.exp(sum(map(math.log, values)) / len(values))


def page(path):
    with open(path, encoding="utf-8") as file:
        lines = [json.loads(line) for line in file]
    out = [INTRO]
    for gpus in sorted({line["gpus"] for line in lines}):
        for over in ("columns", "rows"):
            of = [line for line in lines if line["gpus"] == gpus]
            headers = ["matrix", "rows", "nonzeros"]
            for op in OPERATIONS:
                steps = f" ({of[0]['steps']})" if op == "chain" else ""
                name = OPERATIONS[op] + steps
                headers += [f"{name}: ms on one", "kernels", "request"]
            rows = []
            gains = {}
            for line in of:
                row = [line["matrix"], f"{line['rows']:,}", f"{line['nnz']:,}"]
                for op in OPERATIONS:
                    row.append(f"{line[f'{op}_whole_ms']:.2f}")
                    for what in ("kernel_gain", "gain"):
                        gain = line.get(f"{op}_{over}_{what}")
                        row.append("" if gain is None else f"{gain:.2f}")
                        if gain is not None:
                            gains.setdefault((op, what), []).append(gain)
                rows.append(row)
            mean = ["geometric mean", "", ""]
            for op in OPERATIONS:
                mean.append("")
                mean += [f"**{geomean(gains[op, what]):.2f}**"
                         for what in ("kernel_gain", "gain")]
            out += [f"## {gpus} cards, {over}", "", *table(headers, [*rows, mean])]
    return "\n".join(out)


if __name__ == "__main__":
    if len(sys.argv) != 3:
        sys.exit(__doc__)
    pathlib.Path(sys.argv[2]).write_text(page(sys.argv[1]), encoding="utf-8")
