#!/usr/bin/env python3
"""What each layout brings over plain CSR, and what the best of all would: tables from `sparsed_bench` lines.

usage: layout_tables.py RESULTS.jsonl[.gz]... OUT.md

The baseline of each matrix, operation and K is the fastest of our kernels on plain CSR; a layout's time is that of the
fastest of its kernels. Layouts of adaptive sparse tiles also get the tables of Jiang, Hong, Agrawal (PPoPP'20): with
row reordering against without, and how many products the preparation takes.
"""

import collections
import math
import pathlib
import re
import sys

from measurements import geomean, read_lines, table

VENDOR = "cuda.cusparse."


def short(pipeline):
    """A pipeline without the parameters that it has by default."""
    pipeline = pipeline.replace("(siglen=128,bsize=2,max_cluster=256)", "").replace("row_panels(rows=8)", "row_panels")
    pipeline = pipeline.replace("coo_panels(rows=16)", "coo_panels").replace("group_rows(size=8)", "group_rows")
    return re.sub(r"(_sort)\([^)]*\)", r"\1", pipeline).replace(",min_dense=2", "")


def read(paths):
    """Lines by (matrix, operation, K), then by layout: of the fastest kernel; and the vendor's best."""
    best = collections.defaultdict(dict)
    vendor = {}
    for path in paths:
        for line in read_lines(path):
            if line.get("wrong"):
                continue
            key = line["matrix"], line["op"] + ("^T" if line["transposed"] else ""), line["k"]
            if line["kernel"].startswith(VENDOR):
                vendor[key] = min(vendor.get(key, math.inf), line["ms"])
                continue
            layout = short(line["layout"])
            if line["ms"] < best[key].get(layout, {"ms": math.inf})["ms"]:
                best[key][layout] = line
    return best, vendor


def layouts_of(best, op):
    """What each layout brings, for each K."""
    lines = []
    for k in sorted({key[2] for key in best if key[1] == op}):
        cases = {key[0]: layouts for key, layouts in best.items() if key[1:] == (op, k) and "csr" in layouts}
        if not cases:
            continue
        ratios, wins, oracle = collections.defaultdict(list), collections.Counter(), []
        for layouts in cases.values():
            base = layouts["csr"]["ms"]
            for layout, line in layouts.items():
                ratios[layout].append(base / line["ms"])
            winner = min(layouts, key=lambda layout: layouts[layout]["ms"])
            wins[winner] += 1
            oracle.append(base / layouts[winner]["ms"])
        rows = [(f"`{layout}`", len(r), f"{geomean(r):.2f}", f"{min(r):.2f}", f"{max(r):.2f}", wins[layout])
                for layout, r in sorted(ratios.items(), key=lambda item: -geomean(item[1]))]
        lines += [f"### {op}, K = {k}", "",
                  f"The best layout for each of {len(cases)} matrices: {geomean(oracle):.2f} times as fast as the best "
                  f"kernel on plain CSR, at most {max(oracle):.2f}.", ""]
        lines += table(["layout", "matrices", "geometric mean", "least", "most", "fastest on"], rows)
    return lines


def winners(best, op):
    """The fastest layout for each matrix."""
    compared = {key for key, layouts in best.items() if key[1] == op and "csr" in layouts}
    widths = sorted({key[2] for key in compared})
    rows = []
    for matrix in sorted({key[0] for key in compared}):
        row = [matrix]
        for k in widths:
            layouts = best.get((matrix, op, k), {})
            if "csr" not in layouts:
                row.append("")
                continue
            winner = min(layouts, key=lambda layout: layouts[layout]["ms"])
            row.append(f"`{winner}` {layouts['csr']['ms'] / layouts[winner]['ms']:.2f}")
        rows.append(row)
    return table(["matrix"] + [f"K = {k}" for k in widths], rows)


def shares(values, bounds):
    """How many per cent of the values are in each interval that begins at a bound."""
    ends = bounds[1:] + [math.inf]
    return [f"{100 * sum(low <= v < high for v in values) / max(len(values), 1):.0f} %"
            for low, high in zip(bounds, ends)]


def reordering(best, vendor, op):
    """Tables 1 to 4 of the paper and its comparison with METIS."""
    plain, reordered = ("aspt(panel=64)", "aspt(panel=256)"), ("lsh_cluster > aspt(panel=64)",
                                                               "lsh_cluster > aspt(panel=256)")

    def least(layouts, names, of=lambda line: line["ms"]):
        return min((of(layouts[name]) for name in names if name in layouts), default=None)

    def dense_share(line):
        found = re.search(r"nonzeros \(([0-9.]+)\) in dense tiles", line["notes"])
        return float(found.group(1)) if found else math.nan

    lines = []
    for k in sorted({key[2] for key in best if key[1] == op and key[2] >= 512}):
        over_both, over_tiles, products, alone, metis, changes = [], [], [], [], [], []
        for key, layouts in best.items():
            if key[1:] != (op, k):
                continue
            without = least(layouts, plain)
            if key[0].endswith("+metis"):
                original = least(best.get((key[0].removesuffix("+metis"), op, k), {}), plain)
                if without and original:
                    metis.append(original / without)
                continue
            if without and key in vendor:
                alone.append(vendor[key] / without)
            # The first skip rule leaves rows that are clustered already as they are.
            done = [layouts[name] for name in reordered if name in layouts and "merged" in layouts[name]["notes"]]
            if not done:
                continue
            fastest = min(done, key=lambda line: line["ms"])
            rr = fastest["ms"]
            if without:
                over_tiles.append(without / rr)
                same = layouts.get(short(fastest["layout"]).removeprefix("lsh_cluster > "))
                changes.append((key[0], f"{dense_share(same):.2f}" if same else "below 0.01",
                                f"{dense_share(fastest):.2f}", f"{without / rr:.2f}"))
            rivals = [ms for ms in (without, vendor.get(key)) if ms]
            if rivals:
                over_both.append(min(rivals) / rr)
            products.append(fastest["preparation_ms"] / fastest["ms"])
        if not alone:
            continue
        lines += [f"### {op}, K = {k}", "",
                  f"Tiles without reordering: {geomean(alone):.2f} times as fast as the best of cuSPARSE "
                  f"({len(alone)} matrices). On {len(products)} the rows were clustered; the others are clustered as they are, or "
                  f"have nothing to cluster.", ""]
        rows = [("over tiles without reordering", f"{geomean(over_tiles):.2f}", f"{max(over_tiles, default=0):.2f}",
                 *shares(over_tiles, [0, 1, 1.1, 1.5, 2])),
                ("over the faster one of these and cuSPARSE", f"{geomean(over_both):.2f}",
                 f"{max(over_both, default=0):.2f}", *shares(over_both, [0, 1, 1.1, 1.5, 2]))]
        lines += table(["reordered", "geometric mean", "most", "slower", "0 to 10 %", "10 to 50 %", "50 to 100 %",
                        "more"], rows)
        lines += table(["preparation over one product", "0 to 5", "5 to 10", "10 to 100", "more"],
                       [("share of the matrices", *shares(products, [0, 5, 10, 100]))])
        lines += table(["matrix", "share in dense tiles before", "after", "speedup of the tiles"], sorted(changes))
        if metis:
            lines += [f"Ordered by METIS first, tiles are {geomean(metis):.2f} times as fast as in the given order "
                      f"(slower on {sum(r < 1 for r in metis)} of {len(metis)}).", ""]
    return lines


def page(paths):
    best, vendor = read(paths)
    given = {key: layouts for key, layouts in best.items() if not key[0].endswith("+metis")}
    lines = ["# What layouts bring", "",
             f"Made by `tests/bench/layout_tables.py` from {', '.join(path.name for path in paths)}. Times over the fastest "
             "of our kernels on plain CSR, f32, medians of single calls side by side in one run. A layout that skipped "
             "itself on a matrix is not counted there. K is the number of columns of the dense operand.", ""]
    for op in sorted({key[1] for key in given}, reverse=True):
        of_layouts = layouts_of(given, op)
        if of_layouts:
            lines += [f"## {op}", "", *of_layouts, f"### {op}, the fastest layout for each matrix", "", *winners(given, op)]
    lines += ["## Adaptive sparse tiles, with and without row reordering", ""]
    for op in sorted({key[1] for key in best}, reverse=True):
        lines += reordering(best, vendor, op)
    return "\n".join(lines)


def main():
    if len(sys.argv) < 3:
        sys.exit(__doc__)
    *paths, out = map(pathlib.Path, sys.argv[1:])
    out.write_text(page(paths), encoding="utf-8")


if __name__ == "__main__":
    main()
