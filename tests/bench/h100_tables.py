#!/usr/bin/env python3
"""Makes a page of tables, and pictures beside the raw results, from what `sparsed_bench` or `bench_service plans`
measured.

usage: h100_tables.py RESULTS.jsonl[.gz]... OUT.md

docs/results-h100.md is made by tests/bench/pages.py, which also fills in its summary. Lines of several files are taken together; of several for the
same thing the last one counts. Pictures
are made where python3-matplotlib is installed; otherwise the page refers to those that are there.
"""

import os
import pathlib
import re
import sys

from measurements import geomean, place, read_lines, table

VENDOR = "cuda.cusparse."
NOISE = 0.98
# What the goals are stated for.
SHARING = ("band16", "bperm", "dense400", "bcsstk29_graph", "vibrobox")
STENCILS = ("p2d5", "p2d9", "p3d7")
OPERATIONS = ("spmm", "spmm^T", "sddmm")
TITLES = {"spmm": "SpMM", "spmm^T": "Transposed SpMM", "sddmm": "SDDMM"}


def read(paths):
    """The measurements, each with its operation's full name; wrong results are left out."""
    measured = {}
    for path in paths:
        for line in read_lines(path):
            line["op"] += "^T" if line.get("transposed") else ""
            key = (line["matrix"], line["op"], line["type"], line["k"], line["layout"], line["kernel"])
            if not line.get("wrong"):
                measured[key] = line
    # A service tries one layout after another; what the machine did meanwhile is seen by plain CSR, timed turn by turn
    # with each.
    plain = {key[:4]: line["ms"] for key, line in measured.items() if line["ms"] == line.get("baseline_ms")}
    for key, line in measured.items():
        if line.get("baseline_ms") and key[:4] in plain:
            slowed = line["baseline_ms"] / plain[key[:4]]
            line["ms"] /= slowed
            line["floor_share"] = line.get("floor_share", 0) * slowed
    return list(measured.values())


def ms(value):
    return f"{value:.3f}" if value < 1 else f"{value:.2f}"


class Class:
    """All that was measured of one operation, type and K: best lines by matrix."""

    def __init__(self, lines):
        self.vendor, self.own, self.best, self.plan = {}, {}, {}, {}
        transposed_csr = {}
        for line in lines:
            matrix = line["matrix"]
            vendor = line["kernel"].startswith(VENDOR)
            # cuSPARSE counts on plain CSR alone: another layout is our doing. Where it was not measured on that, for
            # transposed products, it counts on the transpose's.
            if vendor and line["layout"] == "csr":
                keep_least(self.vendor, matrix, line)
            if vendor and line["layout"] == "transpose" and line["transposed"]:
                keep_least(transposed_csr, matrix, line)
            if not vendor:
                keep_least(self.own, matrix, line)
            keep_least(self.best, matrix, line)
            if line.get("plan"):
                self.plan[matrix] = line
        self.vendor = {**transposed_csr, **self.vendor}
        # Where no service chose: what it would have chosen.
        self.served = {**self.best, **self.plan}

    def ratios(self, ours):
        """How many times as fast as the best cuSPARSE, by matrix."""
        return {m: self.vendor[m]["ms"] / line["ms"] for m, line in ours.items() if m in self.vendor}


def keep_least(best, matrix, line):
    if matrix not in best or line["ms"] < best[matrix]["ms"]:
        best[matrix] = line


def classes_of(lines):
    groups = {}
    for line in lines:
        groups.setdefault((line["op"], line["type"], line["k"]), []).append(line)
    return {key: Class(groups[key])
            for key in sorted(groups, key=lambda key: (OPERATIONS.index(key[0]), key[1], key[2]))}


def least(ratios):
    matrix = min(ratios, key=ratios.get)
    return f"{ratios[matrix]:.2f} ({matrix})"


def shares(ours, only=None):
    return [line["floor_share"] for m, line in ours.items() if only is None or m in only]


def summary(classes):
    rows = []
    for (op, kind, k), c in classes.items():
        own, served = c.ratios(c.own), c.ratios(c.served)
        if not own:
            continue
        rows.append([op, kind, k, len(own), f"{geomean(list(served.values())):.2f}", least(served),
                     sum(r < NOISE for r in served.values()), f"{geomean(list(own.values())):.2f}", least(own),
                     sum(r < NOISE for r in own.values()), f"{100 * geomean(shares(c.served)):.0f} %"])
    return table(["operation", "type", "K", "matrices", "served", "least", "slower on", "own kernels", "least",
                  "slower on", "share of the roofline"], rows)


def chosen(classes, matrices, title, explanation):
    """A table of the matrices that a goal is about, or nothing."""
    rows = []
    for matrix in matrices:
        for (op, kind, k), c in classes.items():
            if matrix not in c.own or op == "sddmm":
                continue
            ratio = c.ratios(c.own).get(matrix)
            line = c.own[matrix]
            rows.append([matrix, op, kind, k, ms(line["ms"]), f"{ratio:.2f}" if ratio else "-",
                         f"{100 * line['floor_share']:.0f} %", how(line)])
    if not rows:
        return []
    return [f"## {title}", "", explanation, ""] + table(
        ["matrix", "operation", "type", "K", "own ms", "over cuSPARSE", "share of the roofline", "by"], rows)


def how(line):
    name = line["kernel"].removeprefix("cuda.")
    # The parameters are in the raw results.
    layout = re.sub(r"\([^)]*\)", "", line["layout"])
    return f"`{name}`" if layout == "csr" else f"`{name}` on `{layout}`"


def transposed(classes):
    rows = []
    for (op, kind, k), c in classes.items():
        plain = classes.get(("spmm", kind, k))
        if op != "spmm^T" or plain is None:
            continue
        both = {m: line["ms"] / plain.own[m]["ms"] for m, line in c.own.items() if m in plain.own}
        over = c.ratios(c.own)
        if both:
            worst = max(both, key=both.get)
            rows.append([kind, k, len(both), f"{geomean(list(over.values())):.2f}" if over else "-",
                         least(over) if over else "-", f"{geomean(list(both.values())):.2f}",
                         f"{both[worst]:.2f} ({worst})"])
    if not rows:
        return []
    return ["## Transposed beside plain", "",
            "Own kernels: how many times as fast as cuSPARSE's transposed product, and their time over that of "
            "our own plain SpMM.", ""] + table(
                ["type", "K", "matrices", "over cuSPARSE", "least", "time over plain", "most"], rows)


def widths(classes):
    """Where a narrower product is slower than a wider one."""
    rows = []
    for (op, kind, k), c in classes.items():
        wider = [key for key in classes if key[:2] == (op, kind) and key[2] > k]
        if not wider:
            continue
        after = classes[min(wider, key=lambda key: key[2])]
        for matrix, line in sorted(c.served.items()):
            if matrix in after.served and NOISE * line["ms"] > after.served[matrix]["ms"]:
                rows.append([matrix, op, kind, k, ms(line["ms"]), after.served[matrix]["k"],
                             ms(after.served[matrix]["ms"])])
    if not rows:
        return ["As served, no product was slower than the next wider one.", ""]
    return ["As served, slower than the next wider product:", ""] + table(
        ["matrix", "operation", "type", "K", "ms", "next K", "ms"], rows)


def by_matrix(classes, op, kind):
    of = {k: c for (o, t, k), c in classes.items() if (o, t) == (op, kind)}
    headers = ["matrix"]
    for k in of:
        headers += [f"K={k}: cuSPARSE", "own", "ratio", "roofline"]
    rows = []
    for matrix in sorted({m for c in of.values() for m in c.best}):
        row = [matrix]
        for c in of.values():
            vendor, own = c.vendor.get(matrix), c.own.get(matrix)
            ratio = c.ratios(c.own).get(matrix)
            row += [ms(vendor["ms"]) if vendor else "-", f"{ms(own['ms'])} {how(own)}" if own else "-",
                    f"{ratio:.2f}" if ratio else "-",
                    f"{100 * c.served[matrix]['floor_share']:.0f} %" if matrix in c.served else "-"]
        rows.append(row)
    return [f"### {TITLES[op]}, {kind}", ""] + table(headers, rows)


def preparation(lines):
    spent = {}
    for line in lines:
        if line.get("preparation_ms") is not None and line["layout"] != "csr":
            spent.setdefault(line["layout"], {})[line["matrix"]] = line
    if not spent:
        return []
    rows = []
    for layout, by in sorted(spent.items()):
        per_nonzero = [1e6 * line["preparation_ms"] / line["nnz"] for line in by.values()]
        worst = max(by.values(), key=lambda line: line["preparation_ms"])
        rows.append([f"`{layout}`", len(by), f"{geomean(per_nonzero):.1f}",
                     f"{worst['preparation_ms']:.0f} ({worst['matrix']})"])
    return ["## Preparation of the layouts, on the CPU", ""] + table(
        ["layout", "matrices", "ns a nonzero, geometric mean", "most ms"], rows)


def pictures(classes):
    """The operations and types that have one."""
    return [(op, kind) for op in OPERATIONS
            for kind in sorted({t for (o, t, _), c in classes.items() if o == op and c.ratios(c.own)})]


def picture_path(folder, op, kind):
    return folder / f"speedup-{op.replace('^T', '-transposed')}-{kind}.svg"


def draw(classes, op, kind, path):
    """Bars of own over cuSPARSE by matrix."""
    try:
        import matplotlib
    except ImportError:
        return
    matplotlib.use("svg")
    from matplotlib import pyplot
    with matplotlib.rc_context({"svg.hashsalt": "sparsed", "svg.fonttype": "none", "font.size": 8}):
        of = {k: c.ratios(c.own) for (o, t, k), c in classes.items() if (o, t) == (op, kind)}
        of = {k: ratios for k, ratios in of.items() if ratios}
        matrices = sorted({m for ratios in of.values() for m in ratios})
        figure, axes = pyplot.subplots(figsize=(max(4, 0.4 * len(matrices)), 3))
        width = 0.8 / len(of)
        for i, (k, ratios) in enumerate(of.items()):
            places = [m for m in range(len(matrices)) if matrices[m] in ratios]
            axes.bar([m + (i + 0.5) * width - 0.4 for m in places], [ratios[matrices[m]] for m in places], width,
                     label=f"K = {k}")
        axes.axhline(1, color="black", linewidth=0.8)
        axes.set_xticks(range(len(matrices)), matrices, rotation=60, ha="right")
        axes.set_ylabel("times as fast as cuSPARSE's best")
        axes.set_title(f"{TITLES[op]}, {kind}: own kernels")
        axes.margins(x=0.01, y=0.2)
        axes.legend(ncol=len(of), loc="upper left")
        figure.savefig(path, bbox_inches="tight", metadata={"Date": None})
        pyplot.close(figure)


def page(sources, out):
    """The text of the page, which will lie at `out`."""
    lines = read(sources)
    if not lines:
        sys.exit(f"{sys.argv[0]}: nothing was measured in {', '.join(map(str, sources))}")
    classes = classes_of(lines)
    devices = sorted({line["device"].split(",")[0] for line in lines})
    folder = sources[0].parent
    text = ["# Results on the GPU", "", "## Summary", "", *place("summary-gpu", "summary_tables.py"), "## How it was measured", "",
            f"Made by `tests/bench/h100_tables.py` from {', '.join(relative(s, out) for s in sources)}; "
            f"device: {', '.join(devices)}. Times are medians of single calls in milliseconds, caches as they are, "
            "every kernel side by side in one run on one matrix.", "",
            "Ratios are how many times as fast as the best of cuSPARSE's algorithms on plain CSR, preprocessed. "
            "*Served*: by the plan that the service chose itself, cuSPARSE being among its candidates (in results of "
            "the bench: the fastest of all kernels). *Own kernels*: the fastest without cuSPARSE. Two per cent count "
            "as noise. The roofline is the memory-bound minimum: the time to move S, the operands and the result once at the "
            "rate of a copy within the device; its share is that minimum over the time served. K is the number of columns of the "
            "dense operand.", "", "## By operation, type and K", ""] + summary(classes)
    for op, kind in pictures(classes):
        path = picture_path(folder, op, kind)
        if path.exists():
            text += [f"![{TITLES[op]}, {kind}: own kernels over cuSPARSE]({relative(path, out)})", ""]
    text += chosen(classes, SHARING, "Where rows share columns", "Own kernels.")
    text += chosen(classes, STENCILS, "Stencils", "Own kernels.")
    text += transposed(classes)
    text += ["## Widths", ""] + widths(classes)
    text += ["## Every matrix", "",
             "Milliseconds: cuSPARSE's best, our best kernel (on plain CSR where no layout is named), their ratio, and "
             "the share of the roofline as served.", ""]
    for op in OPERATIONS:
        for kind in sorted({t for (o, t, _) in classes if o == op}):
            text += by_matrix(classes, op, kind)
    text += preparation(lines)
    return "\n".join(text).rstrip() + "\n"


def relative(path, out):
    return pathlib.PurePath(os.path.relpath(path, out.parent)).as_posix()


def main():
    if len(sys.argv) < 3:
        sys.exit(__doc__)
    sources, out = [pathlib.Path(a) for a in sys.argv[1:-1]], pathlib.Path(sys.argv[-1])
    classes = classes_of(read(sources))
    for op, kind in pictures(classes):
        draw(classes, op, kind, picture_path(sources[0].parent, op, kind))
    out.write_text(page(sources, out))


if __name__ == "__main__":
    main()
