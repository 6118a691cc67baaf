#!/usr/bin/env python3
"""Sparse times sparse on a GPU: tables from `sparsed_bench` and `bench_service` lines.

usage: spgemm_tables.py RESULTS.jsonl[.gz] PLANS.jsonl[.gz] OUT.md

RESULTS has the lines of `sparsed_bench spgemm` and `spgemm^T`, PLANS those of `bench_service plans --squares`. What other
programs took is read from docs/results/anchors.
"""

import math
import pathlib
import sys

import anchors
from measurements import geomean, read_lines, table

def short(kernel):
    return kernel.split(".")[-1] if "cusparse" not in kernel else kernel.removeprefix("cuda.")


def ratio(line):
    return f"{line['ratio']:.2f}" if "ratio" in line else "-"


def peak(line):
    """Peak memory over operands and result."""
    entry = 8 if line["type"] == "f32" else 12
    result = line["nnz_c"] * entry + (line["rows"] + 1) * 8
    return (line["operand_bytes"] + line["layout_bytes"] + line["peak_bytes"]) / (line["operand_bytes"] + result)


def squares(results, plans):
    """By the kernel that the service chose."""
    chosen = {line["matrix"]: line["kernel"] for line in plans if line["plan"]}
    peers = {"f32": anchors.spgemm(), "f64": anchors.spgemm(("fp64",))}
    rows, over_cusparse, over_peers, over_wide_peers = [], [], [], []
    for matrix in sorted(chosen, key=str.lower):
        of = {(line["kernel"], line["type"]): line for line in results
              if line["matrix"] == matrix and line["operation"] == "spgemm" and "right_matrix" not in line}
        line, wide = of[chosen[matrix], "f32"], of[chosen[matrix], "f64"]
        over_peers.append(min(peers["f32"][matrix].values()) / line["ms"])
        over_wide_peers.append(min(peers["f64"][matrix].values()) / wide["ms"])
        if "ratio" in line:
            over_cusparse.append(line["ratio"])
        others = [f"{short(k)} {other['ms']:.3f}" for (k, t), other in of.items()
                  if t == "f32" and k != chosen[matrix] and "cusparse" not in k]
        rows.append([matrix, f"{line['products'] / 1e6:.1f}", f"{line['nnz_c'] / 1e6:.2f}", short(chosen[matrix]),
                     f"{line['ms']:.3f}", ratio(line), f"{over_peers[-1]:.2f}", f"{line['gflops']:.0f}",
                     f"{100 * line['floor_share']:.1f}", f"{peak(line):.2f}", f"{wide['ms']:.3f}", f"{over_wide_peers[-1]:.2f}",
                     ", ".join(others)])
    rows.append(["geometric mean", "", "", "", "", f"{geomean(over_cusparse):.2f}", f"{geomean(over_peers):.2f}"] + [""] * 4 +
                [f"{geomean(over_wide_peers):.2f}", ""])
    return table(["matrix", "products (M)", "nnz C (M)", "plan", "ms", "over cuSPARSE", "over the best peer", "GFLOP/s",
                  "% of the roofline", "peak memory", "f64 ms", "f64 over the best peer", "our other kernels, ms"], rows)


def fastest(results, operation, matrices):
    found = {}
    for line in results:
        if (line["operation"] == operation and line["matrix"] in matrices and line["type"] == "f32" and
                "right_matrix" not in line):
            best = found.get(line["matrix"])
            if best is None or line["ms"] < best["ms"]:
                found[line["matrix"]] = line
    return found


def transposed(results):
    found = fastest(results, "spgemm^T", {line["matrix"] for line in results if line["operation"] == "spgemm^T"})
    rows = [[m, f"{line['products'] / 1e6:.1f}", f"{line['nnz_c'] / 1e6:.2f}", short(line["kernel"]), f"{line['ms']:.3f}",
             ratio(line), f"{line['gflops']:.0f}", f"{peak(line):.2f}"]
            for m, line in sorted(found.items(), key=lambda item: item[0].lower())]
    ratios = [line["ratio"] for line in found.values() if "ratio" in line]
    rows.append(["geometric mean", "", "", "", "", f"{geomean(ratios):.2f}", "", ""])
    return table(["matrix", "products (M)", "nnz C (M)", "fastest", "ms", "over cuSPARSE", "GFLOP/s", "peak memory"], rows)


def bands(results):
    """By the fastest kernel of each order; the last three columns by one kernel for both."""
    halves = range(15, 112, 16)
    found = fastest(results, "spgemm", {f"bw{h}{order}" for h in halves for order in ("", "r")})
    times = {(line["matrix"], line["kernel"]): line for line in results
             if line["operation"] == "spgemm" and line["type"] == "f32" and "right_matrix" not in line}
    rows = []
    for half in halves:
        row = [half]
        for name in f"bw{half}", f"bw{half}r":
            line = found[name]
            row += [f"{line['ms']:.3f} {short(line['kernel'])}", f"{line['gflops']:.0f}", f"{100 * line['floor_share']:.1f}", ratio(line)]
        row.append(f"{found[f'bw{half}r']['ms'] / found[f'bw{half}']['ms']:.2f}")
        for kernel in ("cuda.csr.row_bins", "cuda.csr.row_bitmaps"):
            row.append(f"{times[f'bw{half}r', kernel]['ms'] / times[f'bw{half}', kernel]['ms']:.2f}")
        vendor = [times[f"bw{half}{order}", "cuda.csr.row_bins"]["cusparse_ms"] for order in ("r", "")]
        rows.append(row + [f"{vendor[0] / vendor[1]:.2f}"])
    columns = ["ms", "GFLOP/s", "% of the roofline", "over cuSPARSE"]
    return table(["half bandwidth"] + columns + [c + ", random order" for c in columns] +
                 ["random / in order", "by row_bins", "by row_bitmaps", "by cuSPARSE"], rows)


def pairs(results):
    """Rows: the left matrix; columns: the right one; our fastest kernel over cuSPARSE's default."""
    ours, theirs = {}, {}
    for line in results:
        if "right_matrix" not in line:
            continue
        pair = line["matrix"], line["right_matrix"]
        if "cusparse.spgemm" not in line["kernel"]:
            ours[pair] = min(line["ms"], ours.get(pair, math.inf))
        theirs[pair] = line.get("cusparse_ms", math.nan)
    names = list(dict.fromkeys(left for left, _ in ours))
    rows = [[left] + [f"{theirs[left, right] / ours[left, right]:.2f}" for right in names] for left in names]
    ratios = [theirs[pair] / ms for pair, ms in ours.items() if not math.isnan(theirs[pair])]
    summary = [f"Geometric mean of {len(ratios)}: {geomean(ratios):.2f}, least {min(ratios):.2f}, most {max(ratios):.2f}.", ""]
    return table(["S \\ T"] + names, rows) + summary


def page(results_path, plans_path):
    results = read_lines(results_path)
    wrong = [line["matrix"] for line in results if not line["right"]]
    if wrong:
        sys.exit(f"wrong results: {wrong}")
    plans = read_lines(plans_path)
    blog = anchors.spgemm(("fp64",))["BlogCatalog"]["speck99_f64"]
    text = ["# Sparse times sparse on an H100", "",
            "Made by `tests/bench/spgemm_tables.py`. Milliseconds in f32 from CSR to sorted CSR, both on the card: medians of 7 to 9,",
            "with what is prepared for a product and all memory taken and given back within the time; the layouts that kernels read",
            "besides CSR (diagonals, even_rows, blocks, row_words) are there, as in the service, which builds them once. 201 rows of",
            "each result compared with sums in float64. cuSPARSE: its default algorithm, in the same run (where it found memory). Peak",
            "memory: operands, layouts, result and all else that is held, over operands and result. The roofline is the bytes of operands",
            "and result at the rate of a copy.", "",
            "## S * S, by the kernel that the service chose", "",
            "The plan is what trials on the card found for the pair (`bench_service plans --squares`): of samples of rows, and the bins of",
            "rows stay unless another kernel is 3 % faster there. cuSPARSE's kernels took part, and were chosen for none: were they left out,",
            "the plans would be the same. Best peer: the fastest of four cuSPARSE algorithms,",
            "spECK, NSPARSE, OpSparse and MH-SpGEMM with sorted rows and right results in f32, measured in another run on such a card",
            "([raw](../anchors/README.md)); they start from CSR each time, our layouts are there, and generated matrices have other random",
            "numbers. In f64: cuSPARSE's ALG1, spECK, NSPARSE, HSMU-SpGEMM and TileSpGEMM. Some programs fail or answer wrongly in one of the types: spECK",
            f"takes {blog:.1f} ms for BlogCatalog in f64 and fails in f32, so that the best peer there is a slower one.", ""]
    text += squares(results, plans)
    text += ["## S * S^T", "", "By the fastest of our kernels. S^T is made beforehand.", ""] + transposed(results)
    text += ["## Bands in order and in random order", "",
             "20,000 rows, |i - j| up to the half bandwidth, and the same with rows and columns in a random order (the experiment",
             "of Kurt et al., \"Characterization of data movement requirements for sparse matrix computations on GPUs\", figure 7). The fastest",
             "kernel of each order: most of the difference is that a band in order is made of dense blocks; how much slower one kernel becomes is in the last columns.", ""]
    text += bands(results)
    text += ["## Pairs of different matrices", "",
             "The first 65,536 rows and columns of eight matrices, each times each (as in table II of the same paper): how many times",
             "as fast as cuSPARSE's default the fastest of our kernels is.", ""]
    text += pairs(results)
    return "\n".join(text)


def main():
    if len(sys.argv) != 4:
        sys.exit(__doc__)
    *inputs, out = map(pathlib.Path, sys.argv[1:])
    out.write_text(page(*inputs), encoding="utf-8")


if __name__ == "__main__":
    main()
