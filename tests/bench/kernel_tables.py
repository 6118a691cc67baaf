"""The tables of docs/kernels-cuda.md that come from docs/results/h100, which tests/bench/pages.py writes into the page."""

import collections
import math
import pathlib

from measurements import read_lines, table

H100 = pathlib.Path(__file__).resolve().parents[2] / "docs/results/h100"
VENDOR = "cuda.cusparse."
STAGED = "cuda.row_panels.staged_dots"


def staged_dots():
    times = collections.defaultdict(lambda: collections.defaultdict(lambda: math.inf))
    for line in read_lines(H100 / "sddmm-panels.jsonl.gz"):
        kind = "vendor" if line["kernel"].startswith(VENDOR) else "staged" if line["kernel"] == STAGED else "others"
        of = times[line["type"], line["matrix"], line["k"]]
        of[kind] = min(of[kind], line["ms"])
    rows = []
    for kind in ("f32", "f64"):
        for matrix in ("band16", "band200k", "bcsstk16", "bcsstk29_graph", "vibrobox", "BOYD1_A", "fit2d_A"):
            row = [matrix, kind]
            for k in (32, 128, 512):
                of = times[kind, matrix, k]
                row += [f"{of['others'] / of['staged']:.2f}", f"{of['vendor'] / min(of['staged'], of['others']):.2f}"]
            rows.append(row)
    return table(["matrix", "type", "K = 32", "over cuSPARSE", "128", "over cuSPARSE", "512", "over cuSPARSE"], rows)


def row_segments():
    """Over the fastest on plain CSR, cuSPARSE's kernels among them."""
    of = collections.defaultdict(dict)
    for line in read_lines(H100 / "iterations.jsonl.gz"):
        if "wrong" not in line:
            of[line["type"], line["matrix"], line["k"]][line["way"]] = line
    rows = []
    for kind, matrix in [("f32", m) for m in ("runs32", "dense4k", "band16", "Groebner_id2003_aug", "BlogCatalog", "cnr-2000", "w8a",
                                              "bcsstk29_graph")] + [("f64", "runs32")]:
        row = [matrix, kind]
        for part in ("plain_ms", "transposed_ms"):
            for k in (8, 32, 128, 512):
                ways = of.get((kind, matrix, k), {})
                row.append(f"{ways['csr'][part] / ways['row_segments'][part]:.2f}" if "csr" in ways else "")
        rows.append(row)
    widths = ["32", "128", "512"]
    return table(["matrix", "type", "K = 8", *widths, "transposed, K = 8", *widths], rows)


def squares():
    """Lines of S * S by (matrix, type) and kernel."""
    found = collections.defaultdict(dict)
    for line in read_lines(H100 / "spgemm.jsonl.gz"):
        if line["operation"] == "spgemm" and "right_matrix" not in line:
            found[line["matrix"], line["type"]][line["kernel"]] = line
    return found


def bitmaps():
    kernels = ("cuda.csr.row_bins", "cuda.csr.row_bitmaps", "cuda.csr.row_words")
    of, rows = squares(), []
    for matrix in ("cnr-2000", "email-Enron", "soc-Slashdot0902", "BlogCatalog", "rmat16", "uni100k", "finan512", "bcsstk29_graph", "vibrobox",
                   "band200k", "bperm64k", "facebook_combined", "musae_facebook", "ca-CondMat"):
        lines = of[matrix, "f32"]
        rows.append([matrix] + [f"{lines[k]['ms']:.3f}" if k in lines else "-" for k in kernels])
    return table(["matrix"] + [k.split(".")[-1] for k in kernels], rows)


def blocks():
    of, rows = squares(), []
    for matrix in ("bw111", "bw63", "bw47", "bw15", "band200k", "bcsstk29_graph", "p2d5", "cnr-2000"):
        row = [matrix]
        for kind in ("f32", "f64"):
            lines = of.get((matrix, kind), {})
            both = [lines.get(f"cuda.{k}") for k in ("csr.row_bins", "bcsr.blocks")]
            row.append(f"{both[0]['ms'] / both[1]['ms']:.2f}" if all(both) else "-")
        line = of[matrix, "f32"]["cuda.bcsr.blocks"]
        # The phases end with the numeric one.
        row += [f"{sum(line['phases_ms'][:-1]):.2f} of {line['ms']:.2f} ms", f"{line['layout_bytes'] / 1e6:.0f} MB"]
        rows.append(row)
    return table(["matrix", "f32", "f64", "before the numeric phase (f32)", "layout"], rows)
