"""The tables that sum up docs/results, in README.md and at the top of docs/results-h100.md and docs/results-cpu.md, into
which tests/bench/pages.py writes them."""

import pathlib

import h100_tables
import tables
from measurements import geomean, read_lines, table

ROOT = pathlib.Path(__file__).resolve().parents[2]
RESULTS = ROOT / "docs/results"
TYPES = ("f32", "f64", "f16", "tf32")
OPERATIONS = {"spmm": "SpMM", "spmm^T": "transposed SpMM", "sddmm": "SDDMM"}
PEERS = ("edge_index", "csr", "EdgeIndex")
MODELS = {"gcn": "GCN", "gat": "GAT, 4 heads", "transformer": "TransformerConv, 4 heads"}
LARGE = 500_000  # nonzeros


def worst(ratios):
    matrix = min(ratios, key=ratios.get)
    return f"{ratios[matrix]:.2f} ({matrix})"


def row(what, baseline, ratios):
    return [what, baseline, f"**{geomean(list(ratios.values())):.2f}**", worst(ratios), len(ratios)]


def gpu_classes():
    sources = [RESULTS / f"h100/plans-{kind}.jsonl.gz" for kind in TYPES]
    return h100_tables.classes_of(h100_tables.read(sources))


def spgemm_ratios():
    """cuSPARSE's time over that of the kernel that the service chose, S * S in f32."""
    plans = {line["matrix"]: line["kernel"] for line in read_lines(RESULTS / "h100/spgemm-plans.jsonl.gz") if line["plan"]}
    return {line["matrix"]: line["ratio"] for line in read_lines(RESULTS / "h100/spgemm.jsonl.gz")
            if plans.get(line["matrix"]) == line["kernel"] and line["operation"] == "spgemm" and line["type"] == "f32"
            and "right_matrix" not in line and "ratio" in line}


def torch_ratios(operation, way="torch"):
    """The time of PyTorch's call, in one of its ways, over that of ours from Python."""
    return {line["matrix"]: line["ms"][way] / line["ms"]["sparsed"] for line in read_lines(RESULTS / "h100/operations.jsonl")
            if line["operation"] == operation and way in line["ms"] and "sparsed" in line["ms"]}


def epoch_ratios(model, ours, least=LARGE):
    """The time of an epoch with PyG's fastest form of the graph over ours, for graphs of so many nonzeros."""
    epochs = {}
    for line in read_lines(RESULTS / "h100/epochs.jsonl"):
        if line["model"] == model and "epoch_ms" in line and line["nnz"] >= least:
            epochs.setdefault(line["matrix"], {})[line["way"]] = line["epoch_ms"]
    return {matrix: min(ways[peer] for peer in PEERS if peer in ways) / ways[ours]
            for matrix, ways in epochs.items() if ours in ways}


def training_note():
    """What the rows of training leave out."""
    small = {(model, matrix): ratio for model in MODELS for matrix, ratio in epoch_ratios(model, "sparsed", 0).items()}
    model, matrix = min(small, key=small.get)
    return (f"Training: graphs of {LARGE:,} nonzeros and more, all of the graph at once; on small graphs the Python between the products "
            f"takes most of the time, and the least of all is {small[model, matrix]:.2f} ({MODELS[model].split(',')[0]} on {matrix}), unless the epoch "
            "is captured as a CUDA graph.")


def python_note():
    """What a small product from Python is made of."""
    return ("From Python, graphs of 100,000 nonzeros to three million, as tensors on the card: where a product takes less than about 50 "
            "microseconds, the Python around it is what is compared.")


def gpu_rows(classes):
    rows = [row(f"{name}, K = 128", "cuSPARSE", classes[op, "f32", 128].ratios(classes[op, "f32", 128].served))
            for op, name in OPERATIONS.items()]
    rows.append(row("SpGEMM, S * S", "cuSPARSE", spgemm_ratios()))
    rows.append(row("SpMM, K = 128, from Python", "PyTorch, `S @ x`", torch_ratios("spmm")))
    rows.append(row("transposed SpMM, likewise", "PyTorch, `S.t() @ y`", torch_ratios("spmm^T", "torch, S.t()")))
    rows.append(row("transposed SpMM, likewise", "PyTorch, transposed copy", torch_ratios("spmm^T")))
    rows.append(row("SDDMM, likewise", "PyTorch, `sampled_addmm`", torch_ratios("sddmm")))
    for model, name in MODELS.items():
        rows.append(row(f"training epoch, {name}", "PyTorch with PyG", epoch_ratios(model, "sparsed")))
    return rows


def cpu_lines():
    plans = [line for line in tables.lines(RESULTS / "cpu/plans.jsonl") if "ratio" in line]
    products = [line for line in tables.lines(RESULTS / "cpu/spgemm.jsonl") if "graphblas" in line.get("min_ms", {}) and line["plan"]]
    return plans, products


def cpu_rows():
    plans, products = cpu_lines()
    rows = []
    for op, name in OPERATIONS.items():
        baseline = "plain loops" if op == "sddmm" else "Eigen"
        ratios = {p["matrix"]: p["ratio"] for p in plans
                  if tables.operation(p) == op and p["threads"] == 2 and p["k"] == 128}
        rows.append(row(f"{name}, K = 128", baseline, ratios))
    ratios = {p["matrix"]: p["min_ms"]["graphblas"] / p["min_ms"][p["plan"]] for p in products if p["threads"] == 2}
    rows.append(row("SpGEMM, S * S", "SuiteSparse:GraphBLAS", ratios))
    return rows


HEADERS = ["operation", "baseline", "speed-up, geometric mean", "least", "matrices"]


def readme():
    """One table: the GPU against cuSPARSE and PyTorch, the CPU in a sentence."""
    cpu = {what: mean.strip("*") for what, _, mean, _, _ in cpu_rows()}
    spmm, product = cpu["SpMM, K = 128"], cpu["SpGEMM, S * S"]
    return table(HEADERS, gpu_rows(gpu_classes())) + [
        "f32 on an NVIDIA H100; a speed-up is the baseline's time over that of the plan that the server chose by itself. "
        "\"Least\" is the matrix with the least speed-up. " + python_note() + " " + training_note() + " "
        f"On two CPU cores SpMM is {spmm} times as fast as Eigen, SpGEMM {product} times as fast as SuiteSparse:GraphBLAS.",
        "[All results](docs/results-h100.md), [on the CPU](docs/results-cpu.md), [training](docs/results/h100/epochs.md)."]


def gpu():
    classes = gpu_classes()
    rows = gpu_rows(classes)
    for model, name in MODELS.items():
        rows.append(row(f"the same as a CUDA graph, {name}", "PyTorch with PyG", epoch_ratios(model, "sparsed, CUDA graph")))
    served = {key: c.ratios(c.served) for key, c in classes.items() if c.ratios(c.served)}
    slower = [(key, m, r) for key, ratios in served.items() for m, r in ratios.items() if r < h100_tables.NOISE]
    shares = {op: 100 * geomean(h100_tables.shares(classes[op, "f32", 128].served)) for op in OPERATIONS}
    by_type = []
    for kind in TYPES:
        cells = [kind]
        for op in OPERATIONS:
            means = [geomean(list(ratios.values())) for (o, t, _), ratios in served.items() if (o, t) == (op, kind)]
            cells.append(f"{min(means):.2f} to {max(means):.2f}" if means else "no baseline")
        by_type.append(cells)
    return table(HEADERS, rows) + ["K is the number of columns of the dense operand. " + training_note(), "",
        "Speed-ups of other types: geometric means, from the least to the greatest over all widths that were measured. In f16 the "
        "baseline of transposed SpMM is cuSPARSE on a transposed copy, as it has no such product, nor SDDMM:", ""] + table(["type", *OPERATIONS.values()], by_type) + [
        f"Of {sum(map(len, served.values())):,} pairs of a matrix and a problem signature, {len(slower)} are served more than 2 % slower "
        "than by cuSPARSE: " + "; ".join(f"{op} {kind} K = {k} on {m}, {r:.2f}" for (op, kind, k), m, r in slower) + ".",
        "",
        "How far from the roofline the plans are (f32, K = 128, geometric mean of the share of the memory-bound minimum): "
        + ", ".join(f"{name} {shares[op]:.0f} %" for op, name in OPERATIONS.items()) + ". The rest is mostly scattered reads of the "
        "dense operand, which come from the L2 cache at a rate of its own ([what limits](results/h100/README.md)).",
        "",
        "Where to look next: [matrices whose rows share columns](#where-rows-share-columns), where reordering and tiles gain most; "
        "[stencils](#stencils); [the transposed product](#transposed-beside-plain); [every matrix](#every-matrix); [what a layout costs to "
        "build](#preparation-of-the-layouts-on-the-cpu); [SpGEMM](results/h100/spgemm.md); [training epochs](results/h100/epochs.md); "
        "[attention](results/h100/attention.md); [latency of a request](results/h100/service.md)."]


def cpu():
    plans, products = cpu_lines()
    slower = sum(p["ratio"] < 1 for p in plans)
    lost = sum(p["min_ms"]["graphblas"] < p["min_ms"][p["plan"]] for p in products)
    service = tables.lines(RESULTS / "cpu/service.jsonl")
    matrices = len({p["matrix"] for p in plans})
    lines = table(HEADERS, cpu_rows()) + [
        f"f32, two threads; K is the number of columns of the dense operand. {matrices} matrices for the dense products, real ones and generated ones; {slower} of {len(plans)} plans and "
        f"{lost} of {len(products)} sparse products were slower than the baseline.", ""]
    if service:
        lines += ["What the service adds to a kernel, latency and many clients: [over the wire](#over-the-wire). "
                  "What a preparation costs: [below](#preparation)."]
    return lines
