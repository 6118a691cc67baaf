"""The sections on one column and on odd widths of docs/results-h100.md, which tests/bench/pages.py writes."""

import math

from measurements import geomean, read_lines, table

PARTS, ROWS = "cuda.csr.vector_parts", "cuda.csr.vector_rows"  # kernels for one column
VENDOR = "cuda.cusparse."
TYPES = ("f32", "f64", "f16", "bf16")
# What widths are padded to: a multiple of 16 bytes.
PADDED = {"f32": {7: 8, 31: 32, 33: 36, 34: 36, 127: 128, 511: 512},
          "f16": {7: 8, 31: 32, 33: 40, 34: 40, 127: 128, 511: 512}}


def vendor_over(kernels, counts):
    """The vendor's fastest over the fastest of the kernels that count."""
    return min(ms for kernel, ms in kernels.items() if kernel.startswith(VENDOR)) / \
        min(ms for kernel, ms in kernels.items() if counts(kernel))


def one_column(path):
    plain, transposed, nonzeros = {}, {}, {}
    for line in read_lines(path):
        nonzeros[line["matrix"]] = line["nnz"]
        if line["transposed"]:
            # The vendor's product from CSR; ours from the transpose.
            if line["kernel"].startswith(VENDOR) == (line["layout"] == "csr"):
                transposed.setdefault(line["type"], {}).setdefault(line["matrix"], {})[line["kernel"]] = line["ms"]
        else:
            plain.setdefault(line["type"], {}).setdefault(line["matrix"], {})[line["kernel"]] = line["ms"]
    rows = []
    for matrix, kernels in plain["f32"].items():
        wide = min(ms for k, ms in kernels.items() if not k.startswith(VENDOR) and k not in (PARTS, ROWS))
        shown = [kernels[PARTS], kernels[ROWS], kernels[VENDOR + "spmv_alg1"], kernels[VENDOR + "spmv_alg2"], wide]
        rows.append([matrix, f"{nonzeros[matrix] / 1e6:.1f}"] + [f"{1000 * ms:.1f}" for ms in shown])
    everything = {t: [vendor_over(k, lambda name: True) for k in plain[t].values()] for t in TYPES}
    own = {t: [vendor_over(k, lambda name: not name.startswith(VENDOR)) for k in plain[t].values()] for t in TYPES}
    from_transpose = [geomean([vendor_over(k, lambda name: not name.startswith(VENDOR)) for k in transposed[t].values()])
                      for t in TYPES]

    def means(ratios):
        return ", ".join(f"{geomean(ratios[t]):.2f} ({min(ratios[t]):.2f}) in {t}" for t in TYPES)

    return ["## One column", "",
            "SpMV, f32, from plain CSR: microseconds, medians of 51 single calls, caches as they are, by `sparsed_bench spmm --k 1` "
            "([vector.jsonl.gz](results/h100/vector.jsonl.gz) has the other types, the transposed product and every kernel). *Wide*: "
            "the best of our kernels for any K. Made by `tests/bench/width_tables.py`, as the next section.", ""] + \
        table(["matrix", "10^6 nonzeros", "vector_parts", "vector_rows", "cuSPARSE alg1", "alg2", "wide"], rows) + \
        [f"Over the best of cuSPARSE's SpMV, geometric means of the {len(rows)} matrices (least): all candidates {means(everything)}; "
         f"without cuSPARSE {means(own)}. From the transposed layout, S^T * x is {min(from_transpose):.1f} to "
         f"{max(from_transpose):.1f} times as fast as cuSPARSE's transposed SpMV. What is left to cuSPARSE are regular matrices of "
         "millions of nonzeros, which it reads with 32-bit row offsets.", ""]


def odd_widths(path):
    best = {}
    for line in read_lines(path):
        key = line["op"], line["type"], line["k"]
        of = best.setdefault(key, {})
        of[line["matrix"]] = min(of.get(line["matrix"], math.inf), line["ms"])
    rows = []
    for op in ("spmm", "sddmm"):
        for kind, padded in PADDED.items():
            row = [op, kind]
            for k, wide in padded.items():
                ratios = [ms / best[op, kind, wide][matrix] for matrix, ms in best[op, kind, k].items()]
                row.append(f"{geomean(ratios):.2f} ({max(ratios):.2f})")
            rows.append(row)
    matrices = len(best["spmm", "f32", 7])
    return ["## Odd widths", "",
            "Times as it is over those with rows padded to multiples of 16 bytes (8, 32, 36 or 40, 128, 512 columns), the fastest "
            f"kernel from plain CSR of each: geometric means of {matrices} matrices (most), by `sparsed_bench spmm sddmm` "
            "([odd-widths.jsonl.gz](results/h100/odd-widths.jsonl.gz)).", ""] + \
        table(["operation", "type"] + [f"K = {k}" for k in PADDED["f32"]], rows)
