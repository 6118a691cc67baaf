#!/usr/bin/env python3
"""What layouts cost to build, in products: tables from `sparsed_bench` lines.

usage: build_tables.py RESULTS.jsonl[.gz]... OUT.md

Takes the lines of `sparsed_bench build`, by matrix, pipeline and threads, and those of `sparsed_bench spmm` on row segments,
of which a build's cost is told in multiples: of the fastest kernel.
"""

import gzip
import json
import math
import pathlib
import sys

WIDTHS = 32, 512


def geomean(values):
    return math.exp(sum(map(math.log, values)) / len(values))


def read(paths):
    builds, products = {}, {}
    for path in paths:
        opened = gzip.open(path, "rt") if path.suffix == ".gz" else open(path, encoding="utf-8")
        with opened as file:
            for line in map(json.loads, file):
                step = line["layout"].partition("(")[0]
                if line["op"] == "build":
                    builds[step, line["matrix"], line["threads"]] = line
                elif line["op"] == "spmm" and step == "row_segments":
                    key = line["matrix"], line["k"]
                    products[key] = min(products.get(key, math.inf), line["ms"])
    return builds, products


def table(headers, rows):
    return ["| " + " | ".join(headers) + " |", "|" + " --- |" * len(headers)] + \
           ["| " + " | ".join(map(str, row)) + " |" for row in rows] + [""]


def row_segments(builds, products):
    threads = sorted({t for step, _, t in builds if step == "row_segments"})
    matrices = [m for step, m, t in builds if step == "row_segments" and t == threads[0]]
    ways = [(f"CPU, {t}", t, "cpu_ms") for t in threads] + [(f"GPU and copies, {t}", t, "gpu_ms") for t in threads] + \
           [("GPU alone", threads[0], "device_ms")]
    rows, all_costs = [], {(w[0], k): [] for w in ways for k in WIDTHS}
    for matrix in matrices:
        row = [matrix, builds["row_segments", matrix, threads[0]]["nnz"]]
        for name, t, key in ways:
            ms = builds["row_segments", matrix, t][key]
            costs = [ms / products[matrix, k] for k in WIDTHS]
            for k, cost in zip(WIDTHS, costs):
                all_costs[name, k].append(cost)
            row.append(f"{ms:.2f}: {costs[0]:.1f}, {costs[1]:.1f}")
        rows.append(row)
    rows.append(["geometric mean", ""] + [", ".join(f"{geomean(all_costs[w[0], k]):.1f}" for k in WIDTHS) for w in ways])
    rows.append(["least to most, K = 512", ""] +
                [f"{min(all_costs[w[0], 512]):.1f} to {max(all_costs[w[0], 512]):.1f}" for w in ways])
    return ["# What layouts cost to build", "",
            "Made by `tests/bench/build_tables.py` from `builds.jsonl.gz`.", "", "## Row segments", "",
            "`row_segments(force)`: milliseconds, and in multiples of one SpMM from them with K = 32 and 512 columns of the dense operand, in f32. By the CPU "
            "with so many threads; by the GPU from CSR on the host to the layout there, and from CSR on the device to the "
            "layout there.", ""] + table(["matrix", "nonzeros"] + [w[0] for w in ways], rows)


def clustering(builds):
    rows = []
    for (step, matrix, threads), line in builds.items():
        if step != "lsh_cluster":
            continue
        pairs = [line[way].get("lsh_pairs", 0) for way in ("cpu_stages", "gpu_stages")]
        rows.append([matrix, line["rows"], line["nnz"], threads, f"{line['cpu_ms']:.0f}", f"{line['gpu_ms']:.0f}",
                     f"{100 * (1 - line['gpu_ms'] / line['cpu_ms']):.0f} %", f"{pairs[0]:.0f}", f"{pairs[1]:.0f}"])
    return ["## Rows clustered by LSH", "",
            "`lsh_cluster(force)` in milliseconds, the MinHash keys and the sorts by them on the CPU or on the GPU; of it, from the "
            "keys to the candidate pairs. What remains on the CPU are the pairs' exact similarities and the clustering.", ""] + \
        table(["matrix", "rows", "nonzeros", "threads", "CPU", "with the GPU", "saved", "pairs", "pairs with the GPU"], rows)


def page(paths):
    builds, products = read(paths)
    return "\n".join(row_segments(builds, products) + clustering(builds))


def main():
    *paths, out = map(pathlib.Path, sys.argv[1:])
    out.write_text(page(paths), encoding="utf-8")


if __name__ == "__main__":
    main()
