#!/usr/bin/env python3
"""Both products in one iteration, from one layout and from two: tables from `sparsed_bench iteration` lines.

usage: iteration_tables.py RESULTS.jsonl[.gz]... OUT.md
"""

import gzip
import json
import math
import pathlib
import sys

NOISE = 1.01  # gains that are none
WAYS = {"row_segments": "one layout", "two_layouts": "two layouts"}


def geomean(values):
    return math.exp(sum(map(math.log, values)) / len(values))


def read(paths):
    """{(type, matrix, k): {way: line}}, in the order of the lines."""
    measured = {}
    for path in paths:
        opened = gzip.open(path, "rt") if path.suffix == ".gz" else open(path, encoding="utf-8")
        with opened as file:
            for line in map(json.loads, file):
                if line["op"] == "iteration" and "wrong" not in line:
                    measured.setdefault((line["type"], line["matrix"], line["k"]), {})[line["way"]] = line
    return {key: ways for key, ways in measured.items() if {"csr", *WAYS} <= ways.keys()}


def table(headers, rows):
    return ["| " + " | ".join(headers) + " |", "|" + " --- |" * len(headers)] + \
           ["| " + " | ".join(map(str, row)) + " |" for row in rows] + [""]


def gain(ways, way):
    return ways["csr"]["ms"] / ways[way]["ms"]


def paid_off(ways, way, cost):
    saved = ways["csr"]["ms"] - ways[way]["ms"]
    return f"{math.ceil(ways[way][cost] / saved):,}" if gain(ways, way) > NOISE else "-"


def summary(measured):
    rows = []
    for kind, k in sorted({(kind, k) for kind, _, k in measured}):
        group = {m: ways for (t, m, width), ways in measured.items() if (t, width) == (kind, k)}
        row = [kind, k, len(group)]
        for way in WAYS:
            gains = {m: gain(ways, way) for m, ways in group.items()}
            most = max(gains, key=gains.get)
            row += [f"{geomean(gains.values()):.2f}", f"{min(gains.values()):.2f} to {gains[most]:.2f} ({most})",
                    sum(g > 1 for g in gains.values()),
                    f"{geomean([ways[way]['layout_bytes'] / ways['csr']['layout_bytes'] for ways in group.values()]):.1f}"]
        rows.append(row)
    return table(["type", "K", "matrices"] + [header for name in WAYS.values() for header in
                                              (name, "least to most", "faster on", "memory")], rows)


def by_matrix(measured, kind):
    widths = sorted({k for t, _, k in measured if t == kind})
    rows = []
    for matrix in dict.fromkeys(m for t, m, _ in measured if t == kind):
        row = [matrix]
        for k in widths:
            ways = measured.get((kind, matrix, k))
            if ways is None:
                row += ["", "", ""]
                continue
            one, two = "row_segments", "two_layouts"
            row += [f"{ways['csr']['ms']:.3f}",
                    f"{gain(ways, one):.2f}: {paid_off(ways, one, 'device_build_ms')}, {paid_off(ways, one, 'build_ms')}",
                    f"{gain(ways, two):.2f}: {paid_off(ways, two, 'build_ms')}"]
        rows.append(row)
    return table(["matrix"] + [header for k in widths for header in (f"K = {k}, ms", "one", "two")], rows)


def page(paths):
    measured = read(paths)
    threads = {ways["csr"]["threads"] for ways in measured.values()}
    lines = ["# Both products in one iteration", "",
            "Made by `tests/bench/iteration_tables.py` from `iterations.jsonl.gz`.", "",
            "K is the number of columns of the dense operand. An iteration is C = S * B and then D = S^T * C, four of them one behind the other in each timing. *CSR*: the "
            "fastest of all kernels over plain CSR for either, cuSPARSE's among them; S^T is scattered. *One layout*: "
            "`row_segments(force)`, both products from the same arrays. *Two layouts*: the fastest pair of a plain layout (CSR, "
            "row panels, grouped rows) and a transposed one. Numbers are CSR's time over the layouts'; *memory* is what they "
            "take, with their values, over what CSR takes.", ""] + summary(measured)
    for kind in dict.fromkeys(t for t, _, _ in measured):
        lines += [f"## {kind}", "",
                 "For each K, milliseconds of an iteration from CSR; how many times as fast it is from one layout, and after how "
                 "many iterations the time to build it has been saved, built on the GPU from CSR there, and brought there by "
                 f"way of the host ({' or '.join(map(str, sorted(threads)))} threads); and both for two layouts, which the CPU "
                 "builds. -: never.", ""] + by_matrix(measured, kind)
    return "\n".join(lines)


def main():
    *paths, out = map(pathlib.Path, sys.argv[1:])
    out.write_text(page(paths), encoding="utf-8")


if __name__ == "__main__":
    main()
