#!/usr/bin/env python3
"""Makes what Mehrabi et al. show in their table I and figures 3 and 8 from what `bench_permutations` measured.

usage: permutation_tables.py RESULTS.jsonl[.gz] OUT.md

The box plot is drawn beside OUT.md where python3-matplotlib is installed.
"""

import pathlib
import statistics
import sys

from measurements import geomean, read_lines

KERNEL = "output_stationary.4"  # the faster of the two strips
# The paper's table I, GV100: max, mean, min.
PAPER = {
    "dcsr": (13.4, 0.85, 0.5), "plain_sort": (4.1, 1.02, 0.6), "flipped_sort": (3.9, 1.04, 0.8),
    "lpt_sort": (3.5, 1.10, 0.8), "warp_sort": (2.3, 1.07, 0.3), "cta_sort": (3.9, 1.01, 0.3),
    "hybrid1_sort": (4.2, 1.0, 0.3), "hybrid21_sort": (4.1, 1.10, 0.4), "hybrid22_sort": (4.1, 1.09, 0.3),
    "hybrid23_sort": (2.4, 0.97, 0.25), "oracle": (13.5, 1.4, 1.0),
}


def quartiles(values):
    return statistics.quantiles(values, n=4, method="inclusive")


def read(path):
    """Milliseconds by matrix and (kernel, permutation)."""
    times = {}
    for line in read_lines(path):
        name = line["layout"].split("(")[0]
        times.setdefault(line["matrix"], {})[line["kernel"], name] = line["ms"]
    return times


def draw(speedups, path):
    try:
        import matplotlib
    except ImportError:
        return
    matplotlib.use("svg")
    matplotlib.rcParams["svg.hashsalt"] = "sparsed"
    from matplotlib import pyplot
    figure, axes = pyplot.subplots(figsize=(9, 4))
    axes.boxplot(list(speedups.values()), labels=[name.replace("_sort", "") for name in speedups], whis=(0, 100))
    axes.axhline(1, color="grey", linewidth=0.8)
    axes.set_ylabel("times as fast as in the original order")
    figure.tight_layout()
    figure.savefig(path, metadata={"Date": None})


def speedups_of(times):
    """By permutation, over the original order; the oracle may keep that."""
    speedups = {name: [] for name in PAPER}
    for of_matrix in times.values():
        original = of_matrix[KERNEL, "csr"]
        for name in PAPER:
            if name != "oracle":
                speedups[name].append(original / of_matrix[KERNEL, name])
        speedups["oracle"].append(
            max([1.0] + [original / ms for (kernel, _), ms in of_matrix.items() if kernel == KERNEL]))
    return speedups


def page(path):
    times = read(path)
    speedups = speedups_of(times)
    lines = [
        "# Row permutations with the kernel that they were made for", "",
        f"Made by `tests/bench/permutation_tables.py` from {path.name}: {len(times)} square matrices "
        "of at most 30,000 rows, K (columns of the dense operand) = rows up to 2,048, f32, medians of nine.", "",
        "## The kernel beside cuSPARSE (figure 3)", "",
        "| beside | output-stationary, 1 column a block | 4 columns a block |", "| --- | --- | --- |"]
    for vendor in ("cusparse.column_major", "cusparse.row_major"):
        ratios = [
            geomean([t[vendor, "csr"] / t[f"output_stationary.{strip}", "csr"] for t in times.values()])
            for strip in (1, 4)
        ]
        lines.append(f"| the best of `{vendor}` | {ratios[0]:.2f} times as fast | {ratios[1]:.2f} |")
    lines += [
        "", "## Speedup by permutation over the original order (table I, figure 8)", "",
        "| permutation | max | mean | min | quartiles | GV100 in the paper: max | mean | min |",
        "| --- | --- | --- | --- | --- | --- | --- | --- |"]
    for name, values in speedups.items():
        middle = " / ".join(f"{q:.2f}" for q in quartiles(values))
        lines.append(f"| {name} | {max(values):.2f} | {statistics.mean(values):.2f} | {min(values):.2f} | {middle} | " +
                     " | ".join(f"{value:g}" for value in PAPER[name]) + " |")
    lines += ["", "![Speedups of the permutations](permutations.svg)", ""]
    return "\n".join(lines)


def main():
    if len(sys.argv) != 3:
        sys.exit(__doc__)
    path, out = map(pathlib.Path, sys.argv[1:])
    out.write_text(page(path), encoding="utf-8")
    draw(speedups_of(read(path)), out.with_name("permutations.svg"))


if __name__ == "__main__":
    main()
