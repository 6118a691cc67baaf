#!/usr/bin/env python3
"""Makes docs/results-cpu.md from the raw results of tests/bench/run_cpu.

usage: tables.py RESULTS_DIR OUT.md

docs/results-cpu.md is made by tests/bench/pages.py, which also fills in its summary.
"""

import gzip
import json
import math
import pathlib
import sys

from measurements import place


def lines(path):
    """Of a file, or of its compressed form beside it."""
    packed = path.with_name(path.name + ".gz")
    if packed.exists():
        text = gzip.decompress(packed.read_bytes()).decode()
    elif path.exists():
        text = path.read_text()
    else:
        return []
    return [json.loads(line) for line in text.splitlines() if line.strip()]


def geomean(values):
    return math.exp(sum(math.log(v) for v in values) / len(values)) if values else float("nan")


def table(headers, rows):
    out = ["| " + " | ".join(headers) + " |", "| " + " | ".join("---" for _ in headers) + " |"]
    out += ["| " + " | ".join(str(cell) for cell in row) + " |" for row in rows]
    return "\n".join(out) + "\n"


def ms(value):
    return f"{value:.3g}"


def operation(line):
    return line["op"] + ("^T" if line["transposed"] else "")


DEFAULT_KERNELS = ("cpu.csr.row_balanced", "cpu.csr.scatter", "cpu.csr.dot")


def layout(line):
    """The plan's pipeline, and its kernel if that is another one than plain CSR's."""
    pipeline, kernel = line["plan"].split(" / ")
    return f"`{pipeline}`" if kernel in DEFAULT_KERNELS else f"`{pipeline}` by `{kernel}`"


def summary(plans):
    rows = []
    for op, rival in (("spmm", "Eigen"), ("spmm^T", "Eigen on a transposed copy"), ("sddmm", "plain loops")):
        for threads in sorted({p["threads"] for p in plans}):
            for k in sorted({p["k"] for p in plans}):
                chosen = [p for p in plans if operation(p) == op and p["threads"] == threads and p["k"] == k]
                if not chosen:
                    continue
                worst = min(chosen, key=lambda p: p["ratio"])
                slower = sum(p["ratio"] < 1 for p in chosen)
                rows.append([op, rival, threads, k, len(chosen), f"{geomean([p['ratio'] for p in chosen]):.2f}",
                             f"{worst['ratio']:.2f} ({worst['matrix']})", slower])
    return table(["operation", "beside", "threads", "K", "matrices", "geometric mean", "least", "slower"], rows)


def main_job(plans, threads, k):
    by_matrix = {}
    for p in plans:
        if p["threads"] == threads and p["k"] == k:
            by_matrix.setdefault(p["matrix"], {})[operation(p)] = p
    rows = []
    for matrix in sorted(by_matrix):
        ops = by_matrix[matrix]
        any_op = next(iter(ops.values()))
        row = [matrix, any_op["nnz"]]
        for op in ("spmm", "spmm^T", "sddmm"):
            p = ops.get(op)
            if p is None:
                row += ["", ""]
                continue
            row += [layout(p), f"{ms(p['baseline_ms'])} / {ms(p['plan_ms'])}" if p["baseline_ms"] else
                    f"- / {ms(p['plan_ms'])}"]
        row.append(f"{any_op['preparation_s']:.2f}")
        rows.append(row)
    return table(["matrix", "nonzeros", "SpMM layout", "ms before / after", "SpMM^T layout", "ms before / after",
                  "SDDMM layout", "ms before / after", "preparation s"], rows)


def gains(plans):
    rows = []
    for op in ("spmm", "spmm^T", "sddmm"):
        chosen = [p for p in plans if operation(p) == op and p["threads"] == max(q["threads"] for q in plans)]
        changed = [p for p in chosen if layout(p) != "`csr`" and p["baseline_ms"]]
        if chosen:
            rows.append([op, len(chosen), len(changed),
                         f"{geomean([p['baseline_ms'] / p['plan_ms'] for p in changed]):.2f}" if changed else "-"])
    return table(["operation", "plans", "not plain CSR", "their speed-up over plain CSR, geometric mean"], rows)


DEFAULT_SPGEMM = "cpu.csr.row_groups"


def csr_ms(line):
    """Of the fastest kernel over plain CSR."""
    return min(ms for name, ms in line["ms"].items() if name.startswith("cpu.csr."))


def blocks(measured):
    """SpMM from blocks: for each matrix and K the fastest shape and the one that the estimate takes, over the fastest kernel from CSR."""
    widths = sorted({line["k"] for line in measured})
    by_matrix = {}
    for line in measured:
        by_matrix.setdefault(line["matrix"], {})[line["k"]] = line
    rows, taken, reached, missed = [], [], [], []
    for matrix, of in by_matrix.items():
        chosen = next(iter(of.values()))["chosen"]
        cells, best_gain = [], {}
        for k in widths:
            times = {name: ms for name, ms in of[k]["ms"].items() if " x " in name}
            best = min(times, key=times.get)
            best_gain[k] = csr_ms(of[k]) / times[best]
            gain = csr_ms(of[k]) / times[chosen] if chosen in times else None
            cells.append(f"{best_gain[k]:.2f} ({best})" + (f", {gain:.2f}" if gain else ""))
            if chosen and not matrix.startswith("blocks-"):
                taken.append(max(gain or 0, 1))
                reached.append(max(gain or 0, 1) / max(best_gain[k], 1))
            elif not chosen and not matrix.startswith("blocks-"):
                missed.append((best_gain[k], f"{matrix} at K = {k}, {best}"))
        if chosen or any(gain > 1.1 for gain in best_gain.values()) or matrix.startswith("blocks-"):
            fill = next(iter(of.values()))["fill"].get(chosen)
            rows.append([matrix, f"{chosen}, {100 * fill:.0f} %" if chosen else "none", *cells])
    real = [matrix for matrix in by_matrix if not matrix.startswith("blocks-")]
    count = len({matrix for matrix in real if next(iter(by_matrix[matrix].values()))["chosen"]})
    most = max(missed)
    return (table(["matrix", "shape by the estimate, its fill", *(f"K = {k}" for k in widths)], rows)
            + f"\nOf {len(real)} real matrices the estimate takes blocks for {count}; there they reach {geomean(reached):.2f} of the best shape's speed or CSR's, {geomean(taken):.2f} times CSR's "
            f"(a trial keeps CSR where it is faster). The most that it leaves elsewhere is {most[0]:.2f} ({most[1]}). Looking for a shape took {min(l['choosing_ms'] for l in measured):.1f} to "
            f"{sorted(l['choosing_ms'] for l in measured)[int(0.95 * len(measured))]:.0f} ms (95 %).\n")


def blocks_again(first, again):
    """How far a second run of the smallest matrices was off."""
    before = {(line["matrix"], line["k"]): line for line in first}
    ratios = {}
    for line in again:
        other = before[line["matrix"], line["k"]]
        for shape in sorted(line["ms"].keys() & other["ms"].keys()):
            if " x " in shape:
                ratios[line["matrix"], line["k"], shape] = (csr_ms(line) / line["ms"][shape], csr_ms(other) / other["ms"][shape])
    off = sorted(max(a / b, b / a) for a, b in ratios.values())
    matrix, k, shape = max(ratios, key=lambda key: ratios[key][0] / ratios[key][1])
    return (f"The first run read processor time to 1 us, which is coarse where K is 8 or 32 and the matrix small. A second run of {len({line['matrix'] for line in again})} small ones, to 1 ns but beside much more work, "
            f"gave speed-ups that differ by {off[len(off) // 2]:.2f} times in the middle and {off[int(0.9 * len(off))]:.2f} in the worst tenth; the most is {matrix} by {shape} at K = {k}, {ratios[matrix, k, shape][0]:.2f} in the place of "
            f"{ratios[matrix, k, shape][1]:.2f}. Single figures of small matrices are good to that.\n")


SECTIONS = "cpu.incsr.sections S="


def sections_of(line):
    """Of InCSR, the default's processor time over that of each (S, b) that was run to the end."""
    times = line["cpu_ms"]
    return {tuple(map(int, name.removeprefix(SECTIONS).split(" b="))): times[DEFAULT_SPGEMM] / ms for name, ms in times.items() if name.startswith(SECTIONS)}


def sections_judged(measured):
    """(products that some (S, b) multiplies faster than the default by 3 %, those of them for which S = b = 16 is within 3 % of the best, the largest loss of 16 and 16 against the best: factor and matrix)."""
    found = {line["matrix"]: sections_of(line) for line in measured}
    useful = {matrix: of for matrix, of in found.items() if max(of.values()) > 1.03}
    near = [matrix for matrix, of in useful.items() if of[16, 16] * 1.03 >= max(of.values())]
    return len(useful), len(near), max((max(of.values()) / of[16, 16], matrix) for matrix, of in useful.items())


def sections(measured):
    shapes = sorted({shape for line in measured for shape in sections_of(line)})
    rows = []
    for line in measured:
        of = sections_of(line)
        best = max(of, key=of.get)
        rows.append([line["matrix"], line["runs"][DEFAULT_SPGEMM], f"{line['cpu_ms'][DEFAULT_SPGEMM]:.3g}",
                     *((f"**{of[shape]:.2f}**" if shape == best else f"{of[shape]:.2f}") if shape in of else "" for shape in shapes)])
    useful, near, (loss, matrix) = sections_judged(measured)
    return (table(["matrix", "runs", "default ms", *(f"{s}, {b}" for s, b in shapes)], rows)
            + f"\nOf {len(measured)} matrices InCSR is faster than the default on {useful}; on {near} of these S = b = 16, which the service takes, is the best or within 3 % of it. "
            f"At the most another shape is {loss:.2f} times as fast ({matrix}).\n")


def spgemm_summary(measured):
    """How often each kernel was chosen, and GraphBLAS's time over that of the choice and of the default kernel."""
    rows = []
    for threads in sorted({r["threads"] for r in measured}):
        chosen = [r for r in measured if r["threads"] == threads]
        for what, kernel in (("the service's choice", lambda r: r["plan"]), ("the default alone", lambda r: DEFAULT_SPGEMM)):
            ratios = {r["matrix"]: r["min_ms"]["graphblas"] / r["min_ms"][kernel(r)] for r in chosen}
            worst = min(ratios, key=ratios.get)
            rows.append([threads, what, len(ratios), f"{geomean(list(ratios.values())):.2f}", f"{ratios[worst]:.2f} ({worst})",
                         sum(v < 1 for v in ratios.values())])
    return table(["threads", "kernel", "matrices", "geometric mean", "least", "slower"], rows)


def spgemm_kernels(measured, threads):
    """Every kernel on every matrix: the default's time over the kernel's."""
    chosen = [r for r in measured if r["threads"] == threads]
    kernels = sorted({k for r in chosen for k in r["min_ms"]} - {DEFAULT_SPGEMM, "graphblas"})
    rows = []
    for r in chosen:
        times = r["min_ms"]
        row = [r["matrix"], f"{r['products']:,}", f"{r['nnz_c']:,}", ms(times[DEFAULT_SPGEMM])]
        best = min((k for k in times if k != "graphblas"), key=times.get)
        for kernel in kernels:
            cell = f"{times[DEFAULT_SPGEMM] / times[kernel]:.2f}" if kernel in times else ""
            row.append(f"**{cell}**" if kernel == best else cell)
        row += [f"`{r['plan'].removeprefix('cpu.')}`", f"{times['graphblas'] / times[r['plan']]:.2f}"]
        rows.append(row)
    names = [kernel.removeprefix("cpu.") for kernel in kernels]
    return table(["matrix", "products", "nonzeros of C", "default ms", *names, "chosen", "GraphBLAS over chosen"], rows)


def spgemm_wins(measured, threads):
    """Where each kernel is the fastest of ours."""
    wins = {}
    for r in measured:
        if r["threads"] != threads:
            continue
        times = {k: v for k, v in r["min_ms"].items() if k != "graphblas"}
        best = min(times, key=times.get)
        wins.setdefault(best, []).append(f"{r['matrix']} {times[DEFAULT_SPGEMM] / times[best]:.2f}")
    return table(["kernel", "fastest on", "matrices, with how much faster than the default"],
                 [[f"`{k}`", len(v), "" if k == DEFAULT_SPGEMM else ", ".join(v)] for k, v in sorted(wins.items())])


def spgemm_medians(measured):
    """How far the least of few runs flatters: each kernel by the least and by the median."""
    rows = []
    for kernel in sorted({k for r in measured for k in r["ms"]} - {DEFAULT_SPGEMM, "graphblas"}):
        for threads in sorted({r["threads"] for r in measured}, reverse=True):
            row = [f"`{kernel}`", threads]
            for times in ("min_ms", "ms"):
                chosen = [r for r in measured if r["threads"] == threads and kernel in r[times]]
                gains = {r["matrix"]: r[times][DEFAULT_SPGEMM] / r[times][kernel] for r in chosen}
                wins = sum(min((k for k in r[times] if k != "graphblas"), key=r[times].get) == kernel for r in chosen)
                greatest = max(gains, key=gains.get)
                row += [wins, f"{geomean(list(gains.values())):.2f}", f"{gains[greatest]:.2f} ({greatest})"]
            rows.append(row)
    return table(["kernel", "threads", "by the least: fastest on", "over the default, geometric mean", "most",
                  "by the median: fastest on", "geometric mean", "most"], rows)


def spgemm(results):
    measured = [r for r in results if "graphblas" in r.get("min_ms", {}) and r["plan"]]
    if not measured:
        return "GraphBLAS was not there.\n"
    text = ("GraphBLAS's time over ours:\n\n" + spgemm_summary(measured) +
            "\nOne run of three may be lucky, and the least is its: the default's time over each kernel's, by the least of its runs as in the tables below, and by their median:\n\n" +
            spgemm_medians(measured))
    for threads in sorted({r["threads"] for r in measured}, reverse=True):
        text += (f"\nThe fastest of our kernels with {threads} thread{'s' if threads > 1 else ''}:\n\n" + spgemm_wins(measured, threads) +
                 f"\nEvery kernel with {threads} thread{'s' if threads > 1 else ''}: the default's time over the kernel's (empty: the matrix does not "
                 "suit its format; in bold the fastest, if it is not the default), the service's choice, and GraphBLAS's time over that:\n\n" +
                 spgemm_kernels(measured, threads))
    return text


def service(results):
    out = []
    for r in results:
        if r["bench"] == "streaming":
            out.append(f"- {r['megabytes_each_way']} MB in and {r['megabytes_each_way']} MB out over loopback: "
                       f"{r['ratio']:.2f} times a bare gRPC stream of the same bytes (median of {r['runs']}; "
                       f"kernel {r['kernel_ms']:.1f} ms of {r['ours_ms']:.1f} ms)")
        elif r["bench"] == "latency":
            where = "a Unix socket" if r["server"].startswith("unix:") else "loopback TCP"
            out.append(f"- 1,000 rows, K = 16, operand in the request, over {where}: {r['p50_ms']:.3f} ms at the median, "
                       f"{r['p99_ms']:.3f} ms at the 99th percentile")
        elif r["bench"] == "soak":
            out.append(f"- {r['clients']} clients for {r['seconds']:.0f} s: {r['requests']:,} requests, {r['errors']} errors, "
                       f"{r['least_by_a_client']} to {r['most_by_a_client']} a client, memory "
                       f"{r['memory_before']:,} bytes before and {r['memory_after']:,} after")
    return "\n".join(out) + "\n"


def preparation(results):
    rows = []
    for r in results:
        if "recipe" not in r or "peak_over_csr" not in r:
            continue
        rows.append([r["matrix"], f"{r['nnz']:,}", f"`{r['recipe']}`", f"{r['seconds']:.2f}", f"{r['peak_over_csr']:.2f}"])
    return table(["matrix", "nonzeros", "transform pipeline", "seconds", "peak memory over CSR"], rows)


def page(results):
    plans = lines(results / "plans.jsonl")
    text = ["# Results on the CPU", "", "## Summary", "", *place("summary-cpu", "summary_tables.py"), "## How it was measured", "",
            "Made by `tests/bench/run_cpu` from the raw results in `docs/results/cpu`; medians, and ratios within one run, rivals "
            "taking turns. Times depend on the machine, ratios less so. f32, row-major. The present figures were taken on two cores of a shared virtual machine while compilers ran at the lowest priority: single ratios may be off by a fifth.", ""]
    if plans:
        text += ["## Plans that the service chose by itself, beside others", "", summary(plans),
                 "The speed-up that layouts and kernels other than plain CSR's give (two threads, all widths):", "", gains(plans),
                 "## The main job on every matrix", "",
                 "Two threads, K = 128. Before: plain CSR (for SpMM^T by the scatter kernel), as the trial measured it. "
                 "After: the plan in use. Preparation covers all nine problem signatures that the bench asked for.", "",
                 main_job(plans, max(p["threads"] for p in plans), 128)]
    dense = lines(results / "blocks.jsonl")
    if dense:
        text += ["## SpMM from dense blocks", "",
                 "`bench_block_shapes` on the matrices of the other tables: all shapes of 1 x 1 to 8 x 8 (rows x columns) of whose places half are nonzeros, f32, one thread of an AMD EPYC (Zen 5) with 1 MiB of L2, "
                 "processor time, medians of runs in turns. For each K the fastest shape's speed-up over the fastest kernel from CSR (in the order of rows that there is, not transposed), then that of the shape that the estimate takes. `blocks-RxC` are "
                 "random places, a dense block in each; the estimate was fitted to them and to six of the others. Left out are matrices of which no shape is 1.1 times as fast.", "", blocks(dense),
                 blocks_again(dense, lines(results / "blocks-again.jsonl"))]
    sparse = lines(results / "spgemm.jsonl")
    if sparse:
        text += ["## SpGEMM beside SuiteSparse:GraphBLAS", "",
                 "C = S S (S S^T if S is not square), rows sorted; allocation, analysis and the making of formats included. The least of at "
                 "least three runs, kernels and GraphBLAS taking turns. The present figures were taken beside other work on both cores: a second "
                 "thread hardly shows, and single ratios between 0.9 and 1.1 say nothing. wide-1500k is a product of two random matrices, "
                 "1,000 rows of 64 and 20,000 rows of 400 in 1,500,000 columns.", "", spgemm(sparse)]
    swept = [line for line in lines(results / "sections.jsonl") if "matrix" in line]
    if swept:
        text += ["## InCSR: sections of S columns in blocks of b", "",
                 "The default kernel's time over that of `cpu.incsr.sections` with S and b columns, S * S as above, processor time of one thread of an AMD EPYC (Zen 5), medians beside other work. A block's values "
                 "are a vector of 4 b bytes; where S exceeds b, one number and a mask stand for several blocks. Empty: more than 10 times CSR's memory, or three times the default's time. Made by", "",
                 "<!-- not run: it measures for minutes, beside GraphBLAS; tests/bench/spgemm.cmake runs it -->", "```sh",
                 "OMP_WAIT_POLICY=passive bench_spgemm --sections --generated none --threads 1 --repeats=5 --seconds=0.3 --min-nnz=10000 MATRIX.mtx.gz... > sections.jsonl", "```", "",
                 sections(swept)]
    if (results / "preparation.jsonl").exists():
        text += ["## Preparation", "", preparation(lines(results / "preparation.jsonl"))]
    if (results / "service.jsonl").exists():
        text += ["## Over the wire", "", service(lines(results / "service.jsonl"))]
    return "\n".join(text)


def main():
    results, out = map(pathlib.Path, sys.argv[1:])
    out.write_text(page(results))


if __name__ == "__main__":
    main()
