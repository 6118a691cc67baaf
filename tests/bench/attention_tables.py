#!/usr/bin/env python3
"""Makes docs/results/h100/attention.md from what bench_attention measured.

    bench_attention *.mtx.gz > attention.jsonl
    tests/bench/attention_tables.py attention.jsonl attention-gatv2.jsonl attention-peers.csv attention.md

The second file is of the same form, from a later run, whose GATv2 is compared within it.
"""

import csv
import json
import math
import pathlib
import sys

WIDTHS = ((1, 64), (1, 128), (4, 32))
GRAPHS = ("ca-CondMat", "soc-Slashdot0902", "gowalla_norm_adj", "BlogCatalog", "cnr-2000")  # rows of their own; the others are in the means
BANDWIDTH = 2.6e12  # bytes a second, of copies on an H100 with HBM3
GATHERS = 7.7e12  # bytes a second, of rows of an operand from the L2 cache
EXPONENTIALS = 132 * 16 * 1.7e9  # a second, of its special function units
BYTES = {"f32": 4, "f16": 2}


def read(path):
    """Milliseconds by (matrix, type, heads, width, what, how), and the matrices' sizes."""
    times, sizes = {}, {}
    with open(path) as lines:
        for line in map(json.loads, lines):
            key = tuple(line[k] for k in ("matrix", "type", "heads", "width", "what", "how"))
            times[key] = line["ms"]
            sizes[line["matrix"]] = line["rows"], line["nnz"], line["device"]
    return times, sizes


def peers_of(path):
    """Milliseconds by (matrix, peer, what, heads, width)."""
    with open(path) as lines:
        rows = csv.DictReader(line for line in lines if not line.startswith("#"))
        return {(r["matrix"], r["peer"], r["what"], int(r["heads"]), int(r["width"])): float(r["ms"]) for r in rows}


def mean(ratios):
    return math.exp(sum(map(math.log, ratios)) / len(ratios)) if ratios else None


def cell(value, digits=2):
    return "" if value is None else f"{value:.{digits}f}"


def ratio(a, b):
    return a / b if a and b else None


def means(cells, ratios, after=0):
    """Rows of a table: the geometric means over GRAPHS and over all, and the least. `ratios`: by matrix, None where there is none."""
    of = {matrix: value for matrix, value in ratios.items() if value}
    named = [value for matrix, value in of.items() if matrix in GRAPHS]
    if not of:
        return
    tail = " |" * after
    if len(of) > len(named) and named:
        yield f"{cells} | geometric mean of these | | | {mean(named):.2f} |{tail}"
    yield f"{cells} | geometric mean of all {len(of)} | | | {mean(of.values()):.2f} |{tail}"
    least = min(of, key=of.get)
    yield f"{cells} | the least: {least} | | | {of[least]:.2f} |{tail}"


def floor_ms(rows, nnz, kind, heads, width, direction):
    """Each operand and result crosses the memory once, indices too; two rows of operands are gathered for each nonzero, and two more backward."""
    dense, gathers = (4, 2) if direction == "forward" else (8, 4)
    row = heads * width * BYTES[kind]
    moved = dense * rows * row + gathers / 2 * (4 * nnz + 8 * rows)
    return 1e3 * max(moved / BANDWIDTH, gathers * nnz * row / GATHERS, gathers / 2 * nnz * heads / EXPONENTIALS)


def gatv2_floor_ms(rows, nnz, kind, heads, width):
    """As attention's forward, with one row gathered, and read once."""
    row = heads * width * BYTES[kind]
    moved = 3 * rows * row + 4 * nnz + 8 * rows
    return 1e3 * max(moved / BANDWIDTH, nnz * row / GATHERS, nnz * heads / EXPONENTIALS)


def attention(write, times, sizes, peers, direction):
    peer = {"forward": (("DF-GNN", "f32"), ("Fused3S", "f16")), "backward": (), "both": (("DF-GNN", "f32"),)}[direction]
    names = "".join(f" {name} / fused |" for name, _ in peer)
    share = " share of the roofline |" if direction != "both" else ""
    write(f"\n## Attention, {'forward and backward' if direction == 'both' else direction}\n")
    write(f"| type | heads x width | graph | chain | fused | chain / fused |{names}{share}")
    write("|" + " --- |" * (6 + len(peer) + bool(share)))
    for kind in ("f32", "f16"):
        for heads, width in WIDTHS:
            ratios, of_peers = {}, {name: {} for name, of in peer if of == kind}
            for matrix, (rows, nnz, _) in sizes.items():
                both = [
                    [times.get((matrix, kind, heads, width, f"attention {d}", how)) for d in (("forward", "backward") if direction == "both" else (direction,))]
                    for how in ("chain", "fused")
                ]
                if None in both[0] + both[1]:
                    continue
                chain, fused = map(sum, both)
                ratios[matrix] = chain / fused
                others = ""
                for name, of in peer:
                    beside = ratio(peers.get((matrix, name, "attention " + direction, heads, width)), fused) if of == kind else None
                    others += f" {cell(beside)} |"
                    if beside:
                        of_peers[name][matrix] = beside
                if matrix in GRAPHS:
                    floor = f" {floor_ms(rows, nnz, kind, heads, width, direction) / fused:.2f} |" if share else ""
                    write(f"| {kind} | {heads} x {width} | {matrix} | {chain:.3f} | {fused:.3f} | {chain / fused:.2f} |{others}{floor}")
            for line in means(f"| {kind} | {heads} x {width}", ratios, len(peer) + bool(share)):
                write(line)
            for name, of in of_peers.items():
                if of:
                    beside = "".join(f" {cell(mean(of.values()) if name == n else None)} |" for n, _ in peer)
                    write(f"| {kind} | {heads} x {width} | geometric mean, {name} | | | |{beside}{' |' if share else ''}")


def candidates(write, times, sizes):
    """Fused passes beside chains that are given what they are given: a backward chain has the rows' sums, no weights."""
    write("\n## Chains as candidates\n")
    write("| pass | type | heads x width | chain / fused | least | chains faster |")
    write("| --- | --- | --- | --- | --- | --- |")
    for direction, chain in (("forward", "chain"), ("backward", "chain of scores")):
        for kind in ("f32", "f16"):
            for heads, width in WIDTHS:
                key = kind, heads, width, f"attention {direction}"
                ratios = {matrix: ratio(times.get((matrix, *key, chain)), times.get((matrix, *key, "fused"))) for matrix in sizes}
                of = {matrix: value for matrix, value in ratios.items() if value}
                if not of:
                    continue
                least = min(of, key=of.get)
                faster = sum(value < 1 for value in of.values())
                write(f"| {direction} | {kind} | {heads} x {width} | {mean(of.values()):.2f} | {of[least]:.2f} ({least}) | {faster} of {len(of)} |")


def gat(write, times, sizes, peers):
    write("\n## GAT, f32\n")
    write("| heads x width | graph | forward | backward | dgNN forward and backward / ours |")
    write("| --- | --- | --- | --- | --- |")
    for heads, width in WIDTHS:
        ratios = []
        for matrix in sizes:
            both = [times.get((matrix, "f32", heads, width, f"gat {d}", "fused")) for d in ("forward", "backward")]
            if None in both:
                continue
            of_peer = ratio(peers.get((matrix, "dgNN", "gat both", heads, width)), sum(both))
            if of_peer:
                ratios.append(of_peer)
            write(f"| {heads} x {width} | {matrix} | {both[0]:.3f} | {both[1]:.3f} | {cell(of_peer)} |")
        if ratios:
            write(f"| {heads} x {width} | geometric mean | | | {cell(mean(ratios))} |")


def gatv2(write, times, sizes):
    write("\n## GATv2\n")
    write(
        "What is summed up is `right`, which is gathered once. Beside it GAT, and the chain of dot products: no kernels but the fused ones make GATv2's "
        "scores, and an SDDMM gathers the same rows for them. Backward that chain is given the rows' sums, no weights. The roofline is that of attention forward with "
        "one row gathered for each nonzero.\n"
    )
    write("| type | heads x width | graph | forward | chain / fused | fused / GAT | share of the roofline | both | chain / fused | fused / GAT |")
    write("|" + " --- |" * 10)
    for kind in ("f32", "f16"):
        for heads, width in WIDTHS:
            ratios = [{}, {}, {}, {}]
            for matrix, (rows, nnz, _) in sizes.items():
                key = matrix, kind, heads, width
                of = {
                    name: [times.get((*key, f"{what} {direction}", how.get(direction, "fused"))) for direction in ("forward", "backward")]
                    for name, what, how in (
                        ("gatv2", "gatv2", {}),
                        ("gat", "gat", {}),
                        ("chain", "attention", {"forward": "chain", "backward": "chain of scores"}),
                    )
                }
                if None in sum(of.values(), []):
                    continue
                forward, both = {name: ms[0] for name, ms in of.items()}, {name: sum(ms) for name, ms in of.items()}
                row = [forward["chain"] / forward["gatv2"], forward["gatv2"] / forward["gat"], both["chain"] / both["gatv2"], both["gatv2"] / both["gat"]]
                for to, value in zip(ratios, row):
                    to[matrix] = value
                if matrix in GRAPHS:
                    share = gatv2_floor_ms(rows, nnz, kind, heads, width) / forward["gatv2"]
                    write(
                        f"| {kind} | {heads} x {width} | {matrix} | {forward['gatv2']:.3f} | {row[0]:.2f} | {row[1]:.2f} | {share:.2f} "
                        f"| {both['gatv2']:.3f} | {row[2]:.2f} | {row[3]:.2f} |"
                    )
            if ratios[0]:
                a, b, c, d = (cell(mean(of.values())) for of in ratios)
                write(f"| {kind} | {heads} x {width} | geometric mean of all {len(ratios[0])} | | {a} | {b} | | | {c} | {d} |")
                least = [min(ratios[i], key=ratios[i].get) for i in (0, 2)]
                a, c = (f"{ratios[i][matrix]:.2f} ({matrix})" for i, matrix in zip((0, 2), least))
                write(f"| {kind} | {heads} x {width} | the least | | {a} | | | | {c} | |")


def reductions(write, times, sizes):
    write("\n## Reductions, beside the plain sum\n")
    write("Means and greatest ones by the kernel that was the fastest for the sum; with arguments by one that has no plan.\n")
    write("| type | width | graph | sum | mean / sum | max / sum | mean of ones / sum | max with arguments / sum |")
    write("| --- | --- | --- | --- | --- | --- | --- | --- |")
    for kind in ("f32", "f16"):
        for width in (64, 128):
            ratios = {"mean": [], "max": [], "mean of ones": [], "max and which": []}
            for matrix in sizes:
                plain = times.get((matrix, kind, 1, width, "sum", "kernel"))
                how = {"max and which": "row products"}
                of = {what: ratio(times.get((matrix, kind, 1, width, what, how.get(what, "kernel"))), plain) for what in ratios}
                if None in of.values():
                    continue
                for what, value in of.items():
                    ratios[what].append(value)
                if matrix in GRAPHS:
                    write(f"| {kind} | {width} | {matrix} | {plain:.3f} |" + "".join(f" {cell(value)} |" for value in of.values()))
            if ratios["mean"]:
                all_of = len(ratios["mean"])
                write(f"| {kind} | {width} | geometric mean of all {all_of} | |" + "".join(f" {cell(mean(values))} |" for values in ratios.values()))


def page(results, gatv2_results, peer_results):
    times, sizes = read(results)
    peers = peers_of(peer_results)
    lines = []
    write = lines.append
    device = next(iter(sizes.values()))[2]
    write("# Attention along edges\n")
    write(
        f"{device}; milliseconds, medians. Made by `tests/bench/attention_tables.py` from `attention.jsonl`, which `bench_attention` wrote, "
        "`attention-gatv2.jsonl`, of a later run, and `attention-peers.csv`. A chain is SDDMM, softmax and SpMM (backward: two SpMM with the transpose, an SDDMM, the softmax's gradient and "
        "an SpMM), each by our fastest kernel for plain CSR. The roofline is the longest of three: operands, results and indices cross the memory once, at "
        f"{BANDWIDTH / 1e12:g} TB/s; a row of K and of V for each nonzero comes from the L2 cache at {GATHERS / 1e12:g} TB/s (backward also of Q and of the "
        f"result's gradient); an exponential for each nonzero and head (backward two) at {EXPONENTIALS / 1e12:.1f} T/s."
    )
    attention(write, times, sizes, peers, "forward")
    attention(write, times, sizes, peers, "backward")
    attention(write, times, sizes, peers, "both")
    candidates(write, times, sizes)
    gat(write, times, sizes, peers)
    gatv2(write, *read(gatv2_results)[:2])
    reductions(write, times, sizes)
    return "\n".join(lines) + "\n"


def main():
    if len(sys.argv) != 5:
        sys.exit(__doc__)
    *inputs, out = map(pathlib.Path, sys.argv[1:])
    out.write_text(page(*inputs), encoding="utf-8")


if __name__ == "__main__":
    main()
