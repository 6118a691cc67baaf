"""The tables of docs/scale.md: what sparsed_scale --json said, and the rates that it takes from other results.

tests/bench/pages.py writes them into the page.
"""

import json
import lzma
import pathlib

from measurements import geomean, read_lines, table

RESULTS = pathlib.Path(__file__).resolve().parents[2] / "docs/results"
FOLDER = RESULTS / "scale"
LARGE = 1_000_000  # nonzeros
NAMES = {"columns": "K split", "columns_rotating": "K split, S rotates", "rows": "row blocks", "partition": "METIS", "1d": "1D",
         "1.5d": "1.5D", "2d": "2D"}


def reports(name):
    return read_lines(FOLDER / f"{name}.jsonl.gz")


def of(report, cards, distribution):
    """None where it is not possible."""
    return next((d for d in report["distributions"] if (d["cards"], d["distribution"]) == (cards, distribution)), None)


def cards_of(report):
    return sorted({d["cards"] for d in report["distributions"]})


# Rates.

def effective(nnz, rows, k, ms):
    """GB/s in f32: S, the result, and a row of the operand for each nonzero."""
    return (nnz * (8 + 4 * k) + rows * (8 + 4 * k)) / ms / 1e6


def rates_h100():
    found = {}
    for line in read_lines(RESULTS / "h100/plans-f32.jsonl.gz"):
        if line["plan"] and not line["transposed"] and line["nnz"] >= LARGE:
            rate = effective(line["nnz"], line["rows"], line["k"], line["ms"])
            found.setdefault((line["op"], line["k"]), []).append(rate)
    return found


def rates_h200():
    with lzma.open(RESULTS / "h200/corpus.jsonl.xz", "rt") as file:
        header, *patterns = map(json.loads, file)
    place = {name: i for i, name in enumerate(header["features"])}
    found = {}
    for number, (operation, transposed, _, tf32, k) in enumerate(header["problems"]):
        if operation == "spgemm" or transposed or tf32:
            continue
        for pattern in patterns:
            nnz, rows = (pattern["features"][place[name]] for name in ("nnz", "rows"))
            times = [ms for _, ms, _, _, _, censored in pattern["measured"].get(str(number), ()) if not censored]
            if nnz >= LARGE and times:
                found.setdefault((operation, k), []).append(effective(nnz, rows, k, min(times)))
    return found


def rates():
    """What the tool has, beside what the results give now."""
    has = {line["name"]: line for line in reports("machines")}
    rows = []
    for name, found in (("H100", rates_h100()), ("H200", rates_h200())):
        for (operation, k), values in sorted(found.items(), key=lambda item: (item[0][0] != "spmm", item[0][1])):
            known = dict(map(tuple, has[name][f"{operation}_bytes_per_second"]))
            if 4 * k in known:
                rows.append([name, {"spmm": "SpMM", "sddmm": "SDDMM"}[operation], 4 * k, len(values), f"{min(values):,.0f}",
                             f"{geomean(values):,.0f}", f"{max(values):,.0f}", f"{known[4 * k] / 1e9:,.0f}"])
    return table(["card", "product", "bytes a row", "patterns", "least GB/s", "geometric mean", "most", "the tool has"], rows)


# ogbn-papers100M.

def papers():
    """By (generator, type)."""
    return {(report["matrix"], report["type"]): report for report in reports("papers")}


def giga(value, digits=1):
    return f"{value / 1e9:,.{digits}f}"


def memory():
    lines = papers()
    like, communities = (lines[generator, "f32"] for generator in ("power_law", "blocks"))
    rows = [[1, *[giga(lines["power_law", kind]["one_card"]["card_memory_bytes"]) for kind in ("f32", "f16")], "", "", "", "", ""]]
    for cards in cards_of(like):
        cells = [of(lines["power_law", kind], cards, "columns") for kind in ("f32", "f16")]
        cells += [of(report, cards, "rows") for report in (like, lines["power_law", "f16"], communities, lines["blocks", "f16"])]
        cells.append(of(like, cards, "2d"))
        rows.append([cards, *["" if cell is None else giga(cell["card_memory_bytes"]) for cell in cells]])
    return table(["cards", "K split, f32", "f16", "row blocks, no communities, f32", "f16", "communities, f32", "f16", "2D, f32"], rows)


def needed():
    """The fewest cards of those that were asked for."""
    lines = papers()
    rows = []
    for (generator, kind), report in lines.items():
        for distribution in ("columns", "rows"):
            if distribution != "rows" and generator != "power_law":
                continue
            fewest = []
            for room in (80e9, 141e9):
                one = report["one_card"]["card_memory_bytes"] <= room
                enough = [d["cards"] for d in report["distributions"]
                          if d["distribution"] == distribution and d["card_memory_bytes"] <= room]
                fewest.append("1" if one else min(enough, default="none"))
            what = NAMES[distribution] + (f", {'no ' if generator == 'power_law' else ''}communities" if distribution == "rows" else "")
            rows.append([what, kind, *fewest])
    return table(["distribution", "type", "of 80 GB", "of 141 GB"], sorted(rows, key=lambda row: (row[0], row[1] != "f32")))


def times(generator):
    """Milliseconds of an SpMM in f32, the least of those that fit in bold, and the gigabytes that it exchanges."""
    report = papers()[generator, "f32"]
    kinds = [kind for kind in NAMES if kind != "partition"]
    rows = []
    for cards in cards_of(report):
        found = {kind: of(report, cards, kind) for kind in kinds}
        possible = {kind: d for kind, d in found.items() if d is not None}
        best = min((kind for kind, d in possible.items() if d["fits"]), key=lambda kind: possible[kind]["spmm"]["ms"], default=None)
        cells = []
        for kind in kinds:
            if found[kind] is None:
                cells.append("")
                continue
            d = found[kind]
            text = f"{d['spmm']['ms']:.1f}"
            text = f"**{text}**" if kind == best else text
            cells.append(f"{text} ({d['exchanged_bytes'] / 1e9:,.0f})" + ("" if d["fits"] else " !"))
        rows.append([cards, *cells])
    one = report["one_card"]
    rows.insert(0, [1, f"{one['spmm']['ms']:.1f} (0)" + ("" if one["fits"] else " !"), *[""] * (len(kinds) - 1)])
    drift = f"A quarter of the generated rows would have given row blocks {100 * report['drift']:.1f} % more or less to exchange."
    return [*table(["cards", *[NAMES[kind] for kind in kinds]], rows), drift]


# Graphs that are at hand.

def graphs():
    rows = []
    for report in reports("graphs"):
        row_bytes = report["k"] * 4
        cells = [report["matrix"], f"{report['nnz']:,}"]
        for cards in (2, 8):
            for kind in ("rows", "partition"):
                cells.append(f"{of(report, cards, kind)['exchanged_bytes'] / row_bytes / report['rows']:.3f}")
            for kind in ("1d", "1.5d", "2d"):
                d = of(report, cards, kind)
                if cards == 8:
                    cells.append(f"{d['exchanged_bytes'] / row_bytes / report['rows']:.2f}")
        rows.append(cells)
    return table(["matrix", "nonzeros", "2 cards: row blocks", "METIS", "8 cards: row blocks", "METIS", "1D", "1.5D", "2D"], rows)


def beside_one_card():
    """The speed-up of SpMM and SDDMM on two and four cards."""
    rows = []
    for report in reports("graphs"):
        cells = [report["matrix"], f"{report['one_card']['spmm']['ms']:.3f}"]
        for cards in (2, 4):
            for kind in ("columns", "rows", "partition"):
                cells.append(f"{of(report, cards, kind)['spmm']['speed_up']:.2f}")
        cells += [f"{of(report, 2, kind)['sddmm']['speed_up']:.2f}" for kind in ("columns", "partition")]
        rows.append(cells)
    return table(["matrix", "one card ms", "2 cards: K split", "row blocks", "METIS", "4 cards: K split", "row blocks", "METIS",
                  "SDDMM, 2 cards: K split", "METIS"], rows)


def million():
    """Operands where they are, and one caller's on one card."""
    held, spread = sorted(reports("million"), key=lambda report: report["from_one_card"])
    rows = []
    for d in held["distributions"]:
        there = of(spread, d["cards"], d["distribution"])["spmm"]
        rows.append([d["cards"], NAMES[d["distribution"]], f"{d['spmm']['ms']:.2f}", f"{d['spmm']['speed_up']:.2f}",
                     f"{there['spread_ms']:.2f}", f"{there['ms']:.2f}", f"{there['speed_up']:.2f}"])
    return table(["cards", "distribution", "ms", "speed-up", "to spread and collect ms", "with it ms", "speed-up"], rows)


# Validation.

def compared(report):
    for d in report["distributions"]:
        if "measured_ms" in d["spmm"]:
            yield d


def one_card_parts():
    """What a card of a K split does is a product with fewer columns, which one card was measured to take."""
    rows, errors = [], []
    for report in reports("columns"):
        for d in compared(report):
            errors.append(d["spmm"]["error"])
            rows.append([report["matrix"], report["k"], d["cards"], f"{report['one_card']['spmm']['ms']:.4f}", f"{d['spmm']['ms']:.4f}",
                         f"{d['spmm']['measured_ms']:.4f}", f"{100 * d['spmm']['error']:+.0f} %"])
    within = sum(abs(error) <= 0.15 for error in errors)
    return [*table(["matrix", "K", "cards", "one card ms, measured", "predicted", "measured, K / cards columns", "error"], rows),
            f"{within} of {len(errors)} are within 15 %; the mean absolute error is {100 * sum(map(abs, errors)) / len(errors):.0f} %."]


def validation():
    """One card calibrates, two are predicted and measured: lines of `sparsed_scale --measured-one-card-ms= --measured= --json`."""
    rows = []
    lines = reports("validation") if (FOLDER / "validation.jsonl.gz").exists() else []
    for report in lines:
        for d in compared(report):
            rows.append([report["matrix"], report["k"], report["machine"]["name"], f"{report['one_card']['spmm']['ms']:.3f}", d["cards"],
                         NAMES[d["distribution"]], f"{d['spmm']['ms']:.3f}", f"{d['spmm']['measured_ms']:.3f}",
                         f"{100 * d['spmm']['error']:+.1f} %"])
    if not rows:
        rows = [["not measured yet", *[""] * 8]]
    return table(["matrix", "K", "card", "one card ms, measured", "cards", "distribution", "predicted ms", "measured ms", "error"], rows)
