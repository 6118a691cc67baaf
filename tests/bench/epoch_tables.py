#!/usr/bin/env python3
"""Makes docs/results/h100/epochs.md from what tests/bench/python/epochs.py, calls.py and jobs.py measured.

    tests/bench/epoch_tables.py epochs.jsonl calls.jsonl jobs.jsonl epochs-cpu.jsonl epochs.md
"""

import json
import math
import pathlib
import sys

PEERS = ("edge_index", "csr", "EdgeIndex")
MODELS = {"gcn": "GCN", "gat": "GAT, 4 heads of 32", "transformer": "TransformerConv, 4 heads of 32"}
LARGE = 500_000  # nonzeros


def read(path):
    with open(path) as lines:
        return [json.loads(line) for line in lines]


def mean(ratios):
    return math.exp(sum(map(math.log, ratios)) / len(ratios)) if ratios else float("nan")


def table_of(write, model, results):
    ratios, graph_ratios = [], []
    write(f"\n## {MODELS[model]}\n")
    write("| graph | nonzeros | sparsed | as a CUDA graph | edge_index | CSR | EdgeIndex | fastest of PyG's / sparsed "
          "| / as a CUDA graph | memory / PyG's fastest |")
    write("| --- | --- | --- | --- | --- | --- | --- | --- | --- | --- |")
    for (matrix, nnz), ways in results.items():
        times = {way: line["epoch_ms"] for way, line in ways.items() if "epoch_ms" in line}
        peers = {way: times[way] for way in PEERS if way in times}
        if not peers or "sparsed" not in times:
            continue
        fastest = min(peers, key=peers.get)
        ratio = peers[fastest] / times["sparsed"]
        captured = times.get("sparsed, CUDA graph")
        if nnz >= LARGE:
            ratios.append(ratio)
            if captured:
                graph_ratios.append(peers[fastest] / captured)
        memory = ways["sparsed"]["peak_mb"] / ways[fastest]["peak_mb"]

        def cell(way):
            return f"{times[way]:.2f}" if way in times else ""

        write(f"| {matrix} | {nnz:,} | {cell('sparsed')} | {cell('sparsed, CUDA graph')} | "
              + " | ".join(cell(way) for way in PEERS)
              + f" | {ratio:.2f} | {f'{peers[fastest] / captured:.2f}' if captured else ''} | {memory:.2f} |")
    write(f"\nGeometric mean over graphs of {LARGE:,} nonzeros or more: {mean(ratios):.2f}, as a CUDA graph "
          f"{mean(graph_ratios):.2f}.")


def page(epochs, calls, jobs, epochs_on_cpu):
    text = []
    write = text.append
    lines = read(epochs)
    write("# Epochs in PyTorch, and what a call costs\n")
    first = lines[0]
    write(f"{first['device']}, PyTorch {first['torch']}, PyG 2.8. Two layers, hidden 128, Adam, all of the graph at once; "
          "milliseconds, medians of blocks of epochs that took turns in one run. Made by `tests/bench/epoch_tables.py` from "
          "`epochs.jsonl` and `calls.jsonl`, which `tests/bench/python/epochs.py *.mtx.gz --graph` and "
          "`tests/bench/python/calls.py` wrote. Products ran attached. Small graphs are the host's time, which differs between "
          "machines: see what `torch.mm` takes of it, in the last table; as a CUDA graph an epoch takes none.")
    for model in MODELS:
        results = {}
        for line in lines:
            if line["model"] == model and line["way"] != "ratio":
                results.setdefault((line["matrix"], line["nnz"]), {})[line["way"]] = line
        if results:
            table_of(write, model, results)
    write("\n## What a call costs\n\nHost time of a call whose kernel takes next to nothing, microseconds; "
          "\"C\" is the function of the C interface, into memory that is there.\n")
    write("| call | least | median |\n| --- | --- | --- |")
    for line in read(calls):
        write(f"| {line['call']} | {line['least_us']:.1f} | {line['median_us']:.1f} |")
    jobs_table(write, read(jobs))
    cpu_table(write, read(epochs_on_cpu))
    return "\n".join(text) + "\n"


def jobs_table(write, lines):
    write("\n## Two jobs on one card\n\nTwo processes train at the same time, with sparsed on one matrix of one server, with PyG each on its own; "
          "the two ways in turns (`jobs.jsonl`, `tests/bench/python/jobs.py`). Without MPS. Memory is what the card has less with "
          "them, the server's with sparsed; a process takes about 500 MB of it for its context alone.\n")
    write("| graph | model | PyG's way | epochs a second, sparsed | PyG | ratio | one job alone, sparsed, PyG | memory, MB, sparsed, PyG |")
    write("| --- | --- | --- | --- | --- | --- | --- | --- |")
    for line in lines:
        way = line["way"]
        rates, alone, memory = line["epochs_per_second"], line["one_job"], line["memory_mb"]
        write(f"| {line['matrix']} | {line['model'].upper()} | {way} | {rates['sparsed']:.0f} | {rates[way]:.0f} | **{line['ratio']:.2f}** | "
              f"{alone['sparsed']:.0f}, {alone[way]:.0f} | {memory['sparsed']:.0f}, {memory[way]:.0f} |")


def cpu_table(write, lines):
    write("\n## On the CPU\n\nGCN with CPU tensors and a server of the CPU device, on the "
          f"{lines[0]['threads']} cores of such a machine (`epochs-cpu.jsonl`, `epochs.py --device cpu --models gcn --ways sparsed,edge_index,csr`), "
          "milliseconds.\n")
    write("| graph | nonzeros | sparsed | edge_index | CSR | fastest of PyG's / sparsed |\n| --- | --- | --- | --- | --- | --- |")
    results = {}
    for line in lines:
        if line["way"] != "ratio":
            results.setdefault((line["matrix"], line["nnz"]), {})[line["way"]] = line["epoch_ms"]
    for (name, nnz), ways in results.items():
        best = min(ways[way] for way in PEERS if way in ways)
        write(f"| {name} | {nnz:,} | {ways['sparsed']:.1f} | {ways['edge_index']:.1f} | {ways['csr']:.1f} | **{best / ways['sparsed']:.2f}** |")


def main():
    if len(sys.argv) != 6:
        sys.exit(__doc__)
    *inputs, out = map(pathlib.Path, sys.argv[1:])
    out.write_text(page(*inputs), encoding="utf-8")


if __name__ == "__main__":
    main()
