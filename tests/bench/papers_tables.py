#!/usr/bin/env python3
"""Holds the claims of five papers against docs/results: docs/papers.md, which tests/bench/pages.py writes.

usage: papers_tables.py OUT.md
"""

import collections
import functools
import itertools
import math
import pathlib
import re
import statistics
import sys

import anchors
import data_movement_tables
import layout_tables
import permutation_tables
import predictor_tables
import measurements
import tables as cpu_tables
from measurements import geomean, interval, table

RESULTS = pathlib.Path(__file__).resolve().parents[2] / "docs/results"
H100 = RESULTS / "h100"
VENDOR = "cuda.cusparse."
HEADERS = ["claim", "theirs", "ours", "matrices", "same experiment", "verdict"]
WIDTHS = (8, 32, 128, 512)
NOISE = 1.01  # gains that are none
# Matrices that are made: their rows are bands, runs or random.
GENERATED = ("runs32", "dense4k", "band16", "cl16", "uni16", "rmat18")


read_lines = functools.cache(measurements.read_lines)
METHOD = "method"
PROGRAM = "program"


def least(lines):
    return min(lines, key=lambda line: line["ms"])


def figure(values, statistic=geomean):
    """A mean with its confidence interval."""
    values = list(values)
    low, high = interval(values, statistic)
    return f"{statistic(values):.2f} [{low:.2f}, {high:.2f}]"


def by_width(figures):
    """{K: figure} in one cell."""
    return "; ".join(f"K = {k}: {text}" for k, text in figures.items())


def counts(values):
    """How many matrices a cell is of: one number if it is the same for all widths."""
    numbers = list(dict.fromkeys(len(v) for v in values))
    return " / ".join(map(str, numbers))


def rank_correlation(pairs):
    """Spearman's; ties share their mean rank."""
    def ranks(values):
        order = sorted(values)
        return [order.index(v) + (order.count(v) - 1) / 2 for v in values]
    first, second = (ranks(list(column)) for column in zip(*pairs))
    return statistics.correlation(first, second)


# Mehrabi et al.


def portfolio(times, base, sizes):
    """The best portfolio of each size, `base` included: (names, arithmetic mean of the speed-ups over base, geometric mean)."""
    names = sorted({name for of in times.values() for name in of} - {base})

    def speedups(chosen):
        return [of[base] / min(of[name] for name in (base, *chosen) if name in of) for of in times.values()]
    found = {}
    for size in sizes:
        best = max(itertools.combinations(names, size - 1), key=lambda chosen: statistics.mean(speedups(chosen)))
        found[size] = best, statistics.mean(speedups(best)), geomean(speedups(best))
    return found


def shares_of_best(times):
    """How often each choice is the fastest, most often first, and how many of them make 90 %."""
    wins = collections.Counter(min(of, key=of.get) for of in times.values()).most_common()
    covered = itertools.accumulate(count for _, count in wins)
    needed = 1 + sum(total < 0.9 * len(times) for total in covered)
    return wins, needed


def order_shares():
    """The permutation predictor's: of the paper's kernel, four columns a block."""
    _, cases = predictor_tables.read("orders")
    judged = {split: predictor_tables.Judgement(cases, permutation_tables.KERNEL, split, "network") for split in predictor_tables.SPLITS}
    gain, oracle = judged["random"].over(0)
    unseen = judged["families"]
    never = predictor_tables.Judgement(cases, permutation_tables.KERNEL, "families", "never")
    one_column = predictor_tables.Judgement(cases, "output_stationary.1", "families", "network")
    return (f"split at random, as theirs: {judged['random'].share()} ({statistics.mean(gain):.3f} of {statistics.mean(oracle):.3f}); families unseen {unseen.share()} "
            f"(with one column a block {one_column.share()}); the best order for {predictor_tables.percent(judged['random'].right)} and "
            f"{predictor_tables.percent(unseen.right)}; never permuting {never.share()} ([every model](results/h100/predictors.md))")


def served_orders():
    """The same network with the service's kernels: of the best order, and of all that was measured."""
    def of(which):
        return by_width({k: predictor_tables.served_share("orders", f"spmm f32 K={k}", which)[0] for k in (8, 32, 128, 512)})
    return f"of the best order and kernel {of(1)}; of everything that was measured {of(0)} ([beside the selector's trees](results/h100/predictors.md#served-beside-the-selectors-trees-and-the-rules))"


def permutations():
    times = permutation_tables.read(H100 / "permutations.jsonl.gz")
    kernel = permutation_tables.KERNEL
    original = {m: {name: ms for (k, name), ms in of.items() if k == kernel} for m, of in times.items()}
    speedups = permutation_tables.speedups_of(times)
    over = {mode: [of[f"cusparse.{mode}", "csr"] / of[kernel, "csr"] for of in times.values()]
            for mode in ("row_major", "column_major")}
    best_mode = [min(of["cusparse.row_major", "csr"], of["cusparse.column_major", "csr"]) / of[kernel, "csr"]
                 for of in times.values()]
    modes = [of["cusparse.column_major", "csr"] / of["cusparse.row_major", "csr"] for of in times.values()]
    wins, needed = shares_of_best(original)
    sizes = portfolio(original, "csr", range(1, 7))
    four = [min(of.values()) / min(of[n] for n in ("csr", "dcsr", "lpt_sort", "warp_sort")) for of in original.values()]
    n = len(times)
    yes = "method, K up to 2,048"
    mean = statistics.mean

    def of(name):
        return f"{figure(speedups[name], mean)}, most {max(speedups[name]):.2f}"

    names = ", ".join(f"{'original' if name == 'csr' else name} {count}" for name, count in wins)
    rows = [
        ["the output-stationary kernel beside cuSPARSE's faster mode (figure 3)", "1.67 to 1.89",
         f"{figure(best_mode)}; beside its column-major mode {figure(over['column_major'])}", n, yes, "refuted"],
        ["LPT sort (table I, mean)", "1.10, most 3.5", of("lpt_sort"), n, yes, "refuted"],
        ["warp-aware sort (table I, figure 6)", "1.07, most 2.3", of("warp_sort"), n, yes, "refuted"],
        ["the best order of each matrix (table I)", "1.40, most 13.5 by DCSR",
         f"{of('oracle')} by DCSR", n, yes, "held in kind, a tenth of the gain"],
        ["which order is best (figure 9)", "warp-aware for 37 %; six orders for 90 % of the matrices",
         f"{names}; {needed} for 90 %", n, yes, "held in kind; the original order is best most often"],
        ["gain by the size of the portfolio (figure 10, original included)", "two 1.33 of 1.40; little after three",
         "; ".join(f"{size}: {gain:.3f}" for size, (_, gain, _) in sizes.items()), n, yes, "held in kind"],
        ["the predictor's choice reaches 96 % of the oracle (figure 13: the best order for 82 %)", "1.37 of 1.41 on 338 test matrices",
         order_shares(), len(predictor_tables.read("orders")[1]), "their network, features and kernel (four columns a block); patterns that are made, K = 1,024",
         "held; on families unseen in the mean, not at the interval's lower end, and hardly better than never permuting: there is little to gain; the best order is found half as often"],
        ["the same, served", "", served_orders(), predictor_tables.served_share("orders", "spmm f32 K=128", 1)[1],
         "their network and features, for our row-major kernels and five orders; K = 8 / 32 / 128 / 512; families unseen",
         "in kind: of the orders it finds nearly the best, which panels and tiles are ahead of"],
        ["four classes are enough for it", "original, DCSR, LPT, warp-aware", f"{figure(four)} of the oracle", n, yes, "held"],
    ]
    lines = ["## Row permutations", "",
             "Mehrabi, Lee, Chatterjee, Sorin, Lee, O'Connor, *Learning Sparse Matrix Row Permutations for Efficient SpMM on GPU "
             "Architectures*. K is the number of rows (ours: up to 2,048); means are arithmetic where theirs are (table I, figure 10). [Every order](results/h100/permutations.md).", ""]
    lines += table(HEADERS, rows)
    lines += [
        f"cuSPARSE's row-major mode is {geomean(modes):.1f} times as fast as its column-major one at these widths: it gathers rows of B, 128 "
        "bytes at once, where that kernel gathers single elements of columns. A block's warps no longer wait for each other long, and a "
        "column of B is in L1 whatever the order. DCSR gains where few rows are left, which these matrices have not.", "",
        "With our row-major kernels, over the fastest on plain CSR: the same portfolios from "
        f"[all layouts](results/h100/layouts.md) of {len(layout_times(128))} matrices, geometric means, plain CSR always included.", ""]
    rows = []
    for k in (32, 128, 512):
        of_k = layout_times(k)
        wins, needed = shares_of_best(of_k)
        sizes = portfolio(of_k, "csr", range(1, 6))
        oracle = [of["csr"] / min(of.values()) for of in of_k.values()]
        rows.append([k, len(of_k)] + [f"{gain:.3f}" for _, _, gain in sizes.values()] +
                    [figure(oracle), f"{len(wins)}, {needed}", ", ".join(f"`{name}`" for name in sizes[3][0])])
    lines += table(["K", "matrices"] + ["plain CSR alone"] + [f"{size} layouts" for size in range(2, 6)] +
                   ["all", "fastest somewhere, needed for 90 %", "the best two besides CSR"], rows)
    return lines + learned_selection()


def learned_selection():
    """Shares of the fastest that was tried, by what chooses."""
    of = collections.defaultdict(lambda: collections.defaultdict(list))
    for line in read_lines(H100 / "learned-selection.jsonl.gz"):
        of["S^T B" if line["transposed"] else {"spmm": "S B", "sddmm": "SDDMM"}[line["op"]]][line["matrix"]].append(line)
    rows = []
    for problem in ("S B", "S^T B", "SDDMM"):
        row = [problem, len(of[problem])]
        for choice in ("fixed", "first", "first_three", "plan"):
            shares = ([line["fastest_ms"] / line[f"{choice}_ms"] for line in lines if line[f"{choice}_ms"]] for lines in of[problem].values())
            row.append(figure([geomean(share) for share in shares if share]))
        rows.append(row)
    widths = ", ".join(str(k) for k in sorted({line["k"] for line in read_lines(H100 / "learned-selection.jsonl.gz")}))
    return ["Not their predictor and not their kernel, but the same question for ours: extremely randomised trees over twelve features, trained on what the service's trials "
            f"measured of the other matrices (K = {widths}; relatives left out together, `tests/bench/learned_selection.py`). Shares of the fastest contender that was "
            "tried; what rules kept from being tried counts for nobody.", ""] + \
        table(["operation", "matrices", "the best fixed choice for each K", "the trees' first choice", "the best of their first three, tried", "all tried (the service)"], rows)


def layout_times(k):
    """Milliseconds by matrix and layout, each by its fastest kernel."""
    best, _ = layout_tables.read([H100 / "layouts.jsonl.gz"])
    return {key[0]: {name: line["ms"] for name, line in of.items()} for key, of in best.items() if key[1:] == ("spmm", k)}


# Jiang et al.


CLUSTER = "lsh_cluster(siglen=128,bsize=2,max_cluster=256)"
SECOND = "lsh_cluster(remainder,siglen=128,bsize=2,max_cluster=256)"


def tiles(panel):
    return f"aspt(panel={panel},min_dense=2)"


def both_rounds(op, k):
    """Of the matrices that need a round by the paper's rules: the lines without and with reordering, and all
    by layout."""
    of = collections.defaultdict(dict)
    for line in read_lines(H100 / "second-round.jsonl.gz"):
        if (line["op"], line["k"]) == (op, k):
            of[line["matrix"]][line["layout"]] = line
    found = {}
    for matrix, layouts in of.items():
        reordered = layouts[f"{CLUSTER} > {tiles(64)} > {SECOND}"]
        if " round needed" in reordered["notes"]:
            # Panels of 64 rows; where tiles of those are none at all, they left the matrix to 256.
            panel = 64 if tiles(64) in layouts else 256
            found[matrix] = layouts[tiles(panel)], reordered, layouts
    return found


def tiles_beside_cusparse(op, k):
    """cuSPARSE's best over tiles without reordering, of one run, by matrix and rows of a panel."""
    vendor, without = {}, {}
    for name in ("layouts", "tiles"):
        for line in read_lines(H100 / f"{name}.jsonl.gz"):
            if (line["op"], line["k"]) != (op, k):
                continue
            if line["kernel"].startswith(VENDOR) and line["layout"] == "csr":
                vendor[line["matrix"]] = min(vendor.get(line["matrix"], math.inf), line["ms"])
            for panel in (64, 256):
                if line["layout"] == tiles(panel):
                    key = line["matrix"], panel
                    without[key] = min(without.get(key, math.inf), line["ms"])
    return {key: vendor[key[0]] / ms for key, ms in without.items() if key[0] in vendor}


def fastest_panels(ratios):
    """Of both panels, the greater ratio of each matrix."""
    found = {}
    for (matrix, _), ratio in ratios.items():
        found[matrix] = max(ratio, found.get(matrix, 0))
    return found


def first_round(op, k):
    """Of the matrices whose rows the first round clusters: tiles without it and cuSPARSE over tiles with it, and the lines."""
    best, vendor = layout_tables.read([H100 / f"{name}.jsonl.gz" for name in ("layouts", "tiles")])
    found = {}
    for key, layouts in best.items():
        if key[1:] != (op, k):
            continue
        done = [line for name, line in layouts.items()
                if name.startswith("lsh_cluster > aspt") and "first round needed" in line["notes"]]
        without = [line for name, line in layouts.items() if name.startswith("aspt")]
        if done and without and key in vendor:
            found[key[0]] = least(without)["ms"], least(done), vendor[key]
    return found


def dense_share(line):
    found = re.search(r"nonzeros \(([0-9.]+)\) in dense tiles", line["notes"])
    return float(found.group(1)) if found else 0.0


def shares_moved():
    """(change of the share in dense tiles, speed-up of the tiles) at K = 512 by operation, panels of one size: first by
    clustering, then by METIS."""
    layouts = collections.defaultdict(dict)
    for name in ("layouts", "tiles", "metis", "second-round"):
        for line in read_lines(H100 / f"{name}.jsonl.gz"):
            if line["k"] == 512:
                layouts[line["op"], line["matrix"]].setdefault(line["layout"], line)
    clustered, metis = collections.defaultdict(list), []
    for (op, matrix), of in layouts.items():
        for panel in (64, 256):
            before, after = of.get(tiles(panel)), of.get(f"{CLUSTER} > {tiles(panel)}")
            if before and after and "first round needed" in after["notes"]:
                clustered[op].append((dense_share(after) - dense_share(before), before["ms"] / after["ms"]))
            if matrix.endswith("+metis"):
                original = layouts[op, matrix.removesuffix("+metis")].get(tiles(panel))
                if before and original and panel == 64:
                    metis.append((dense_share(before) - dense_share(original), original["ms"] / before["ms"]))
    return clustered, metis


def by_growth(pairs):
    """Speed-ups where the share grew much and where it grew little."""
    much, little = [s for grown, s in pairs if grown > 0.5], [s for grown, s in pairs if grown <= 0.5]
    most_little = max(grown for grown, _ in pairs if grown <= 0.5)
    return (f"{min(much):.2f} to {max(much):.2f} where it grew by more than 0.5, {min(little):.2f} to {max(little):.2f} by "
            f"{most_little:.2f} at most")


def row_reordering():
    beside = {k: tiles_beside_cusparse("spmm", k) for k in (512, 1024)}
    alone = {k: list(fastest_panels(of).values()) for k, of in beside.items()}
    theirs = {}
    for k in (32, 128, 512):
        of = [times for (_, width), times in anchors.dense("spmm").items() if width == k]
        theirs[k] = [min(ms for name, ms in t.items() if name.startswith("cusparse")) /
                     min(ms for name, ms in t.items() if name.startswith("aspt")) for t in of]
    ours_over_theirs = []
    for (matrix, k), times in anchors.dense("spmm").items():
        ours = fastest_panels(beside[512])
        if k == 512 and matrix in ours:
            vendor = min(ms for name, ms in times.items() if name.startswith("cusparse"))
            ours_over_theirs.append(ours[matrix] / (vendor / times["aspt_64n"]))
    rounds = {op: both_rounds(op, 512) for op in ("spmm", "sddmm")}
    over_tiles = {op: [w["ms"] / r["ms"] for w, r, _ in found.values()] for op, found in rounds.items()}
    of_both, of_vendor = {}, {}
    for m, (w, r, layouts) in rounds["spmm"].items():
        # cuSPARSE was not in this run: by its ratio to the same tiles in another one.
        vendor = [beside[512][m, p] * layouts[tiles(p)]["ms"] for p in (64, 256) if (m, p) in beside[512] and tiles(p) in layouts]
        of_vendor[m] = vendor[0]
        of_both[m] = min(w["ms"], vendor[0]) / r["ms"]
    over_both = list(of_both.values())
    best_of_both = max(of_both, key=of_both.get)
    first = {(op, k): first_round(op, k) for op in ("spmm", "sddmm") for k in (512, 1024)}
    first_over_both = {k: [min(w, v) / r["ms"] for w, r, v in first["spmm", k].values()] for k in (512, 1024)}
    first_over_tiles = {(op, k): [w / r["ms"] for w, r, _ in found.values()] for (op, k), found in first.items()}
    costs = {op: [r["preparation_ms"] / r["ms"] for _, r, _ in found.values()] for op, found in rounds.items()}
    clustered, by_metis = shares_moved()
    metis = {k: metis_gains(k) for k in (512, 1024)}
    slower = {k: sum(g < 1 for g in gains) for k, gains in metis.items()}
    second = {(op, k): second_round_alone(op, k) for op in ("spmm", "sddmm") for k in (128, 512)}
    below_ten = {op: 100 * sum(c < 10 for c in of) / len(of) for op, of in costs.items()}
    saved = [1 - line["gpu_ms"] / line["cpu_ms"] for line in read_lines(H100 / "builds.jsonl.gz")
             if line["op"] == "build" and line["layout"].startswith("lsh_cluster") and line["threads"] == 2]
    whose = METHOD
    rows = [
        ["tiles without reordering over cuSPARSE, SpMM", "1.35 (from the ASpT paper)",
         by_width({k: figure(v) for k, v in alone.items()}), counts(alone.values()), whose, "refuted"],
        ["the same by their authors' program", "1.35", by_width({k: figure(v) for k, v in theirs.items()}), counts(theirs.values()),
         PROGRAM, "refuted"],
        ["reordered tiles over the *faster* of tiles without and cuSPARSE, SpMM, K = 512, matrices that need a round (table 1)",
         "1.17, most 2.73", f"{figure(over_both)}, most {of_both[best_of_both]:.2f} ({best_of_both})", len(over_both),
         whose + "; cuSPARSE of another run", "refuted"],
        ["the same of those that need the first round; K = 512, 1,024", "1.17 and 1.19 (of either round), most 2.91",
         "; ".join(figure(v) for v in first_over_both.values()) + f", most {max(first_over_both[1024]):.2f}",
         counts(first_over_both.values()), whose + ", one run", "refuted, on few matrices"],
        ["... over tiles without alone, K = 512 (figure 8, 10)", "\"consistent speedup\"",
         f"{figure(over_tiles['spmm'])}, most {max(over_tiles['spmm']):.2f}, slower on {sum(g < 1 for g in over_tiles['spmm'])}",
         len(over_tiles["spmm"]), whose, "refuted: slower as often as not"],
        ["SDDMM, reordered over not, K = 512 (table 2, figure 11)", "1.48, most 3.19",
         f"{figure(over_tiles['sddmm'])}, most {max(over_tiles['sddmm']):.2f}", len(over_tiles["sddmm"]), whose, "refuted"],
        ["SDDMM, K = 1,024", "1.49", f"first round alone {figure(first_over_tiles['sddmm', 1024])}", len(first["sddmm", 1024]), whose,
         "not measured with the second round"],
        ["a higher share of nonzeros in dense tiles speeds SpMM up (figure 9)", "yes, with a higher similarity of the rest",
         "; ".join(f"{name} {by_growth(clustered[op])}" for name, op in (("SpMM", "spmm"), ("SDDMM", "sddmm"))),
         len(clustered["spmm"]), "the share alone: similarity afterwards not recorded", "held in kind for large growth; few matrices"],
        ["the same where METIS changed the share", "", f"rank correlation {rank_correlation(by_metis):.2f}", len(by_metis),
         "columns move too", "held in kind"],
        ["vertices ordered by METIS slow every matrix down, K = 512, 1,024", "all of 1,084",
         "; ".join(f"{figure(metis[k])}, slower on {slower[k]}" for k in metis), counts(metis.values()), whose, "refuted"],
        ["preparation takes less than 10 products, K = 512 (tables 3 and 4)", "SpMM for 86 %, SDDMM for 95 %",
         f"for {below_ten['spmm']:.0f} % and {below_ten['sddmm']:.0f} %; {geomean(costs['spmm']):.0f} and {geomean(costs['sddmm']):.0f} products",
         f"{len(costs['spmm'])}", whose + ", 16 cores", "refuted; see below"],
        ["LSH on a GPU would make it cheaper (section 5.4)", "a hope",
         f"{100 * min(saved):.0f} to {100 * max(saved):.0f} % less time on two threads, in the middle "
         f"{100 * statistics.median(saved):.0f} %", len(saved), "keys and sorts on the GPU", "held in part"],
        ["the second round alone, over the same tiles", "part of the above",
         "SpMM " + by_width({k: figure(second["spmm", k]) for k in (128, 512)}) + "; SDDMM " +
         by_width({k: figure(second["sddmm", k]) for k in (128, 512)}), counts(second.values()), whose, "held for SDDMM, too little to matter"],
    ]
    lines = ["## Row reordering for tiles", "",
             "Jiang, Hong, Agrawal, *A Novel Data Transformation and Execution Strategy for Accelerating Sparse Matrix Multiplication on GPUs* "
             "(ASpT-RR). A matrix needs the first round if at most 0.1 of its nonzeros are in dense tiles, and the second if the rest's rows are alike by "
             "0.1 at most; the paper counts those that need either, 416 of 1,084. [Every matrix of the first round](results/h100/layouts.md#adaptive-sparse-tiles-with-and-without-row-reordering).", ""]
    lines += table(HEADERS, rows)
    lines += ["Tables 1 to 4 at K = 512, share of the matrices:", ""]
    lines += share_tables(over_both, over_tiles["sddmm"], costs)
    common = geomean(ours_over_theirs)
    preparations = [r["preparation_ms"] for _, r, _ in rounds["spmm"].values()]
    products = [r["ms"] for _, r, _ in rounds["spmm"].values()]
    sizes = [r["nnz"] for _, r, _ in rounds["spmm"].values()]
    lines += [
        f"Our tiles are at {common:.2f} of the authors' own on the {len(ours_over_theirs)} matrices at hand of both (each beside cuSPARSE of its run, K = 512), "
        "so that part of what our figures lack is our kernel; theirs does not beat today's cuSPARSE either.", "",
        f"What preparation costs: the median is {statistics.median(preparations):.0f} ms here and 59,580 ms there, the median product "
        f"{statistics.median(products):.2f} ms. So preparation did not become slower; products are short, of matrices of {min(sizes) / 1e6:.1f} to {max(sizes) / 1e6:.1f} million "
        "nonzeros on a card with four times the bandwidth. The paper's ratio can hardly be of single products, either: more than a third of its matrices would need both 59 s of preparation and "
        "a tenth of that for a product, which at 200 GFLOP/s takes 10^9 nonzeros.", "",
        "Figure 10, GFLOP/s over those matrices at K = 512 (theirs are curves without numbers):", "",
        *throughputs(rounds["spmm"], of_vendor),
        "With the second round at K = 1,024: not measured; `sparsed_bench spmm sddmm --k 1024 --kernel aspt --kernel cusparse` with these layouts in one "
        "run would, cuSPARSE beside them.", ""]
    return lines + shuffled_clusters()


def share_tables(over_both, sddmm, costs):
    def cells(values, bounds):
        return layout_tables.shares(values, bounds)
    gains, ratios = [0, 1, 1.1, 1.5, 2], [0, 5, 10, 100]
    lines = table(["", "slower", "0 to 10 % faster", "10 to 50 %", "50 to 100 %", "more"], [
        ["SpMM over the faster (table 1), theirs", "1 %", "40 %", "53.1 %", "4.8 %", "1.1 %"], ["ours", *cells(over_both, gains)],
        ["SDDMM over tiles without (table 2), theirs", "0 %", "11.3 %", "44.4 %", "33.8 %", "10.5 %"], ["ours", *cells(sddmm, gains)]])
    return lines + table(["preparation over products", "0 to 5", "5 to 10", "10 to 100", "more"], [
        ["SpMM (table 3), theirs", "24.8 %", "61.1 %", "12.7 %", "1.4 %"], ["ours", *cells(costs["spmm"], ratios)],
        ["SDDMM (table 4), theirs", "33.2 %", "61.3 %", "4.5 %", "1.0 %"], ["ours", *cells(costs["sddmm"], ratios)]])


def throughputs(found, vendor):
    rates = [("cuSPARSE (another run)", [2e-6 * w["nnz"] * 512 / vendor[m] for m, (w, _, _) in found.items()]),
             ("tiles without reordering", [w["gflops"] for w, _, _ in found.values()]),
             ("reordered tiles", [r["gflops"] for _, r, _ in found.values()])]
    return table(["", "least", "first quartile", "median", "third quartile", "most"], [
        [name, *(f"{v:,.0f}" for v in (min(of), *statistics.quantiles(of, n=4, method="inclusive"), max(of)))] for name, of in rates])


def metis_gains(k):
    """Tiles ordered by METIS over tiles in the given order, the better panels of each."""
    best, _ = layout_tables.read([H100 / f"{name}.jsonl.gz" for name in ("layouts", "tiles", "metis")])

    def fastest(matrix):
        return min((line["ms"] for name, line in best.get((matrix, "spmm", k), {}).items() if name.startswith("aspt")), default=None)
    ordered = [key[0] for key in best if key[1:] == ("spmm", k) and key[0].endswith("+metis")]
    return [fastest(m.removesuffix("+metis")) / fastest(m) for m in ordered if fastest(m.removesuffix("+metis"))]


def second_round_alone(op, k):
    """Tiles whose remainder is ordered over the same tiles, the better panels of each matrix where any row was merged."""
    of = collections.defaultdict(dict)
    for line in read_lines(H100 / "second-round.jsonl.gz"):
        if (line["op"], line["k"]) == (op, k):
            of[line["matrix"]][line["layout"]] = line
    gains = []
    for layouts in of.values():
        pairs = [(layouts[tiles(p)], layouts[f"{tiles(p)} > {SECOND}"]) for p in (64, 256)
                 if tiles(p) in layouts and "merged" in layouts.get(f"{tiles(p)} > {SECOND}", {}).get("notes", "")]
        if pairs:
            before, after = min(pairs, key=lambda pair: pair[1]["ms"])
            gains.append(before["ms"] / after["ms"])
    return gains


def shuffled_clusters():
    """bperm: what row reordering is for."""
    fastest = {}
    for name in ("plans-f32", "layouts", "sddmm-panels"):
        times = collections.defaultdict(lambda: math.inf)
        for line in read_lines(H100 / f"{name}.jsonl.gz"):
            if not line["matrix"].startswith("bperm") or line.get("transposed"):
                continue
            vendor = line["kernel"].startswith(VENDOR)
            if vendor and line["layout"] != "csr":
                continue
            key = line["matrix"], line["op"], line["k"], vendor
            times[key] = min(times[key], line["ms"])
        for matrix, op, k, vendor in list(times):
            if vendor and (matrix, op, k, False) in times:
                ratio = times[matrix, op, k, True] / times[matrix, op, k, False]
                fastest[matrix, op, k] = max(ratio, fastest.get((matrix, op, k), 0))
    rows = []
    for matrix, size in (("bperm64k", "65,536"), ("bperm", "262,144"), ("bperm1m", "1,000,000")):
        ratios = [fastest.get((matrix, op, k)) for op in ("spmm", "sddmm") for k in (128, 512)]
        rows.append([size] + [f"{r:.2f}" if r else "not measured" for r in ratios])
    first = {line["layout"]: line["ms"] for line in read_lines(H100 / "second-round.jsonl.gz")
             if (line["matrix"], line["op"], line["k"]) == ("bperm64k", "spmm", 512)}
    gain = first[tiles(64)] / first[f"{CLUSTER} > {tiles(64)}"]
    over = min(1, tiles_beside_cusparse("spmm", 512)["bperm64k", 256] * first[tiles(256)] / first[tiles(64)]) * gain
    return ["Shuffled clusters (`bperm`: groups of 16 rows that share 32 columns, a tenth replaced) are what row reordering is for. Ours, by "
            "layouts that the service tries, over the best of cuSPARSE in the same run, f32:", ""] + \
        table(["rows", "SpMM, K = 128", "K = 512", "SDDMM, K = 128", "K = 512"], rows) + \
        [f"There the claim about tiles holds: with 65,536 rows and K = 512 the first round makes tiles {gain:.2f} times as fast as without it, {over:.2f} times the faster of those and "
         "cuSPARSE (another run). The layouts above are faster still, on clustered rows without tiles: `row_panels` for SpMM, `row_panels.staged_dots` for SDDMM "
         "([kernels](kernels-cuda.md)).", ""]


# Hong et al.


def iterations():
    """{K: {matrix: {way: line}}} in f32."""
    found = {k: collections.defaultdict(dict) for k in WIDTHS}
    for line in read_lines(H100 / "iterations.jsonl.gz"):
        if line["type"] == "f32" and "wrong" not in line:
            found[line["k"]][line["matrix"]][line["way"]] = line
    return found


def cusparse_of_plans():
    """The best of cuSPARSE on plain CSR by (transposed, matrix, K)."""
    found = {}
    for line in read_lines(H100 / "plans-f32.jsonl.gz"):
        if line["op"] == "spmm" and line["layout"] == "csr" and line["kernel"].startswith(VENDOR):
            key = line["transposed"], line["matrix"], line["k"]
            found[key] = min(found.get(key, math.inf), line["ms"])
    return found


def phase_shares():
    """What the tree and the best fixed pair of threshold and coarsening reach, of all pairs."""
    _, cases = predictor_tables.read("coarsenings")

    def share(model):
        return by_width({k: predictor_tables.Judgement(cases, str(k), "families", model).share() for k in (32, 128)})
    return f"their tree {share('tree')}; always the best fixed pair {share('fixed')}; families unseen ([every model](results/h100/predictors.md#both-phases))"


def threshold_shares():
    """RS-SpMM's decision tree and what is beside it: families unseen."""
    header, cases = predictor_tables.read("thresholds")

    def of(model, split="families"):
        return by_width({k: predictor_tables.Judgement(cases, k, split, model).share() for k in header["settings"]})
    return (f"their tree {of('tree')}; always the best fixed threshold {of('fixed')}; extra trees {of('trees_regret')}; families unseen; split at random the tree "
            f"{of('tree', 'random')} ([every model](results/h100/predictors.md#rs-spmms-threshold))")


def row_segments():
    of, vendor = iterations(), cusparse_of_plans()
    segments = {k: {m: ways["row_segments"] for m, ways in of[k].items()} for k in WIDTHS}
    over_vendor, transposed_vendor, over_csr, transposed_csr, one, two, transposed_two = ({} for _ in range(7))
    for k in WIDTHS:
        over_vendor[k] = [vendor[False, m, k] / line["plain_ms"] for m, line in segments[k].items() if (False, m, k) in vendor]
        transposed_vendor[k] = [vendor[True, m, k] / line["transposed_ms"] for m, line in segments[k].items() if (True, m, k) in vendor]
        over_csr[k] = {m: ways["csr"]["plain_ms"] / ways["row_segments"]["plain_ms"] for m, ways in of[k].items()}
        transposed_csr[k] = [ways["csr"]["transposed_ms"] / ways["row_segments"]["transposed_ms"] for ways in of[k].values()]
        one[k] = [ways["csr"]["ms"] / ways["row_segments"]["ms"] for ways in of[k].values()]
        two[k] = [ways["csr"]["ms"] / ways["two_layouts"]["ms"] for ways in of[k].values()]
        transposed_two[k] = [ways["row_segments"]["transposed_ms"] / ways["two_layouts"]["transposed_ms"] for ways in of[k].values()]
    real = [ratio for k in WIDTHS for m, ratio in over_csr[k].items() if m not in GENERATED]
    runs = " / ".join(f"{over_csr[k]['runs32']:.2f}" for k in WIDTHS)
    sixteen = sum(r > 16 for r in transposed_vendor[128])
    paid = {k: sorted(math.ceil(w["row_segments"]["device_build_ms"] / (w["csr"]["ms"] - w["row_segments"]["ms"]))
                      for w in of[k].values() if w["csr"]["ms"] / w["row_segments"]["ms"] > NOISE) for k in WIDTHS}
    memory = {way: geomean([w[way]["layout_bytes"] / w["csr"]["layout_bytes"] for w in of[512].values()])
              for way in ("row_segments", "two_layouts")}
    builds, copies, heavy = {}, {}, []
    for line in read_lines(H100 / "builds.jsonl.gz"):
        if line["op"] == "build" and line["layout"].startswith("row_segments"):
            builds.setdefault(line["matrix"], line["device_ms"])
            copies.setdefault(line["matrix"], line["gpu_ms"])
    costs = {}
    for line in read_lines(H100 / "builds.jsonl.gz"):
        if line["op"] == "spmm":
            costs.setdefault(line["k"], []).append(builds[line["matrix"]] / line["ms"] if line["matrix"] in builds else None)
            found = re.search(r"\(([0-9.]+)\) in [0-9]+ heavy", line["notes"])
            if found and line["k"] == 512:
                heavy.append((float(found.group(1)), line["gflops"]))
    costs = {k: [c for c in of_k if c] for k, of_k in costs.items()}
    copied = [copies[line["matrix"]] / line["ms"] for line in read_lines(H100 / "builds.jsonl.gz")
              if line["op"] == "spmm" and line["k"] == 512 and line["matrix"] in copies]
    at_128 = [segments[128][m]["device_build_ms"] / segments[128][m]["plain_ms"] for m in segments[128]]
    rows = [
        ["row segments over cuSPARSE(T), which has row-major operands (figure 8)", "1 to 2, more for larger K",
         by_width({k: figure(v) for k, v in over_vendor.items()}), counts(over_vendor.values()),
         METHOD + "; cuSPARSE of another run", "refuted up to K = 128; held in kind at 512"],
        ["over cuSPARSE(NT), column-major operands", "around 4", "", "", "", "not measured at these widths; see the row-major factor above for wider ones"],
        ["over our fastest kernel on plain CSR", "no such kernel then", by_width({k: figure(v.values()) for k, v in over_csr.items()}),
         counts(over_csr.values()), "one run",
         f"refuted but for runs of columns ({runs}); {min(real):.2f} to {max(real):.2f} on real matrices"],
        ["S^T D over cuSPARSE's (section 6, figure 14)", "\"significantly higher\"; 16 times for more than 20 % at K = 128",
         by_width({k: figure(v) for k, v in transposed_vendor.items()}) + f"; {sixteen} of {len(transposed_vendor[128])} by 16 times at 128",
         counts(transposed_vendor.values()), "as above", "refuted: cuSPARSE's transposed product is no longer slow"],
        ["S^T D over the faster of scattering from CSR and cuSPARSE", "", by_width({k: figure(v) for k, v in transposed_csr.items()}),
         counts(transposed_csr.values()), "one run", "about level at K = 512"],
        ["it saves building S^T", "where both are needed",
         "a transposed layout is " + by_width({k: figure(v) for k, v in transposed_two.items()}) + " times as fast",
         counts(transposed_two.values()), "one run", "refuted where there is memory for S^T"],
        ["S D and S^T D in one iteration (section 6)", "\"considerably\" faster than cuSPARSE",
         "over the fastest on CSR " + by_width({k: figure(v) for k, v in one.items()}), counts(one.values()), "cuSPARSE is one of those on CSR",
         f"held for runs of columns alone; with two layouts {figure(two[512])} at K = 512, in {memory['two_layouts']:.1f} times CSR's memory "
         f"(segments: {memory['row_segments']:.1f})"],
        ["after how many iterations that pays", "many are usual", "; ".join(
            f"K = {k}: {f'{v[0]} to {v[-1]} on {len(v)}' if v else 'never'}" for k, v in paid.items()), counts(one.values()),
         "built on the GPU", "held where it gains"],
        ["preparation on the GPU, in products (figure 13)", "few, at K = 128 (drawn)",
         f"K = 128: {figure(at_128)}; " + by_width({k: figure(v) for k, v in costs.items()}), f"{len(at_128)} / {counts(costs.values())}",
         "CSR on the GPU to the layout on the GPU", f"held; {geomean(copied):.1f} products at K = 512 with copies to and from the host ([every matrix](results/h100/builds.md))"],
        ["matrices with more in heavy segments run faster (figure 16)", "a clear trend",
         f"rank correlation of share and GFLOP/s at K = 512: {rank_correlation(heavy):.2f}", len(heavy), "one width", "held" if rank_correlation(heavy) > 0.5 else "held weakly"],
        ["the model's threshold reaches the best one's speed (figure 7, K = 128)", "\"matches or closely follows\"", threshold_shares(), len(predictor_tables.read("thresholds")[1]),
         "their tree and inputs; patterns that are made, our kernel; its cost model's coarsening", "refuted for their tree: always 16 is better; that and trees that learn times come within 4 to 6 %"],
        ["the same in both phases, the coarsening that is best most often first", "", phase_shares(), len(predictor_tables.read("coarsenings")[1]),
         "as above; nine thresholds, three coarsenings, another run", "refuted likewise; the first phase alone costs 1 to 3 %"],
    ]
    return ["## Row segments", "",
            "Hong, Sukumaran-Rajam, Bandyopadhyay, Kim, Kurt, Nisa, Sabhlok, Çatalyürek, Parthasarathy, Sadayappan, *Efficient Sparse-Matrix "
            "Multi-Vector Product on GPUs* (RS-SpMM). [Both products, every matrix](results/h100/iterations.md); [the kernels](kernels-cuda.md).", ""] + \
        table(HEADERS, rows) + [
            "To measure in one run: `sparsed_bench spmm --k 8,32,128,512 --pipeline \"row_segments(force)\" --kernel cusparse --kernel csr`, with cuSPARSE's "
            "column-major modes beside. L1 hands rows out as fast as shared memory does, without a copy before and atomic sums behind; what is "
            "left to segments are runs of columns that neighbouring rows do not share.", ""]


# Kurt et al.


def spgemm_lines():
    return [line for line in read_lines(H100 / "spgemm.jsonl.gz") if line["type"] == "f32"]


def squares():
    """Lines of S * S by matrix and kernel."""
    found = collections.defaultdict(dict)
    for line in spgemm_lines():
        if line["operation"] == "spgemm" and "right_matrix" not in line:
            found[line["matrix"]][line["kernel"]] = line
    return found


def plans():
    return {line["matrix"]: line["kernel"] for line in read_lines(H100 / "spgemm-plans.jsonl.gz") if line["plan"]}


def own(kernels):
    return least([line for name, line in kernels.items() if not name.startswith(VENDOR)])


def pairs_over_cusparse():
    best = {}
    for line in spgemm_lines():
        if "right_matrix" in line and not line["kernel"].startswith(VENDOR):
            pair = line["matrix"], line["right_matrix"]
            best[pair] = max(best.get(pair, 0), line["cusparse_ms"] / line["ms"])
    return best


def data_movement():
    counted = [p for p in data_movement_tables.counted_products() if p.product == "S * S"]
    spmv = [p for p in data_movement_tables.counted_products() if p.product == "SpMV"]
    moved = [(p.read + p.written) / p.least for p in counted]
    with_result = [p.with_result / p.least for p in counted]
    spmv_moved = [p.with_result / p.least for p in spmv]
    small = data_movement_tables.reports("spgemm")
    bounds = [r["partition"]["upper_bound_ratio"] for r in small.values() if r["partition"]["fits"]]
    samples = sum(r["partition"]["estimate"] for r in small.values())
    sampled = sorted(100 * r["partition"]["products"] / r["partition"]["all_products"] for r in small.values() if r["partition"]["estimate"])
    bytes_saved = [r["before"]["spgemm"]["moved_bytes"] / r["after"]["spgemm"]["moved_bytes"] for r in small.values()]
    time_saved = [r["times"]["before_seconds"] / r["times"]["after_seconds"] for r in small.values()]
    spmm_saved = [r["times"]["before_seconds"] / r["times"]["after_seconds"] for r in data_movement_tables.reports("spmm").values()]
    whole = whole_bounds()
    of, halves = squares(), range(15, 112, 16)
    fastest = [own(of[f"bw{h}r"])["ms"] / own(of[f"bw{h}"])["ms"] for h in halves]
    same = {name: [of[f"bw{h}r"][kernel]["ms"] / of[f"bw{h}"][kernel]["ms"] for h in halves]
            for name, kernel in (("bins", "cuda.csr.row_bins"), ("bitmaps", "cuda.csr.row_bitmaps"))}
    vendor = [of[f"bw{h}r"]["cuda.csr.row_bins"]["cusparse_ms"] / of[f"bw{h}"]["cuda.csr.row_bins"]["cusparse_ms"] for h in halves]
    rates = {order: [own(of[f"bw{h}{order}"]) for h in (halves[0], halves[-1])] for order in ("", "r")}
    bins = {order: [of[f"bw{h}{order}"]["cuda.csr.row_bins"] for h in (halves[0], halves[-1])] for order in ("", "r")}
    pairs = pairs_over_cusparse()
    vector = {}
    for line in read_lines(H100 / "vector.jsonl.gz"):
        if not line["transposed"] and line["type"] == "f32":
            vector[line["matrix"]] = max(vector.get(line["matrix"], 0), line["gflops"])
    chosen = plans()
    faster = {m: vector[m] / of[m][chosen[m]]["gflops"] for m in chosen if m in vector}

    def shares(lines):
        return " to ".join(f"{100 * line['floor_share']:.1f}" for line in lines)

    def gflops(lines):
        return " to ".join(f"{line['gflops']:,.0f}" for line in lines)

    rows = [
        ["SpGEMM moves far more than the lower bound (figure 5; the central claim)", "\"very high for most\" of 25",
         f"{figure(moved)} by the counters; {figure(with_result)} had all of the result been written", len(counted),
         "our kernel; 50 MiB of L2, not 1.5", "refuted for these; three of them fit the cache"],
        ["SpMV moves about the lower bound (figure 5)", "close to 1 for most", figure(spmv_moved), len(spmv), "our kernel", "held"],
        ["the upper bound by hypergraph parts is close to the lower one, S * S, 1.5 MB (figure 5)", "close to 1 for most of 25",
         ", ".join(f"{m} {r:.2f}" for m, r in whole.items()) + f"; with 256 KiB {figure(bounds)}, but {samples} of {len(small)} from samples of the products "
         f"({sampled[0]:.1f} to {sampled[-1]:.0f} % of them) and of {len(small) - len(bounds)} the parts do not fit",
         f"{len(whole)} / {len(bounds)}", "another partitioner (Zoltan); smaller matrices", "held for three; samples flatter"],
        ["that order gives slight gains for most, large ones for a few (figure 6: volume, GFLOP/s)", "25 matrices, S * S and SpMV",
         f"S * S: bytes by the model / {figure(bytes_saved)}, time / {figure(time_saved)}, most {max(time_saved):.2f}; SpMM time / {figure(spmm_saved)}, "
         f"most {max(spmm_saved):.2f}", len(small), "on one CPU core, 256 KiB; order from a sample", "held in kind; on a GPU not measured"],
        ["bands in random order are much slower (figure 7)", "\"significantly lower performance\"",
         f"fastest kernel of each {min(fastest):.1f} to {max(fastest):.1f} times as long; one kernel: bins {min(same['bins']):.1f} to {max(same['bins']):.1f}, "
         f"bitmaps {min(same['bitmaps']):.2f} to {max(same['bitmaps']):.2f}; cuSPARSE {min(vendor):.1f} to {max(vendor):.1f}", len(fastest),
         "the same bands; other kernels", "held, mostly by blocks, which only a band in order has"],
        ["the wider the band, the closer to the roofline (figure 7)", "yes",
         f"bins: {gflops(bins[''])} GFLOP/s in order, {gflops(bins['r'])} in random order; {shares(bins[''])} % and {shares(bins['r'])} % of the memory-bound minimum",
         len(fastest), "roofline of the least bytes, theirs of bytes counted", "held for the rate; refuted for the share, which falls"],
        ["adaptive virtual warps beat or equal a block for each row (section VII)", "better for all of one group, half of the other", "", "",
         "", "not measured: our bins share products evenly; no figures beside a block for each row were kept"],
        ["it beats others for any pair of matrices (table II)", "1.8 to 13.9 times bhSPARSE, 77 pairs",
         f"{figure(pairs.values())} of cuSPARSE, {min(pairs.values()):.2f} to {max(pairs.values()):.2f}", len(pairs), "other matrices; cuSPARSE for bhSPARSE",
         "held in kind; bhSPARSE not measured"],
        ["SpMV has more GFLOP/s than SpGEMM on every matrix (figure 3)", "often ten times",
         f"SpMV {figure(faster.values())} times, more on {sum(r > 1 for r in faster.values())}", len(faster), "our kernels", "refuted: level"],
    ]
    return ["## Data movement", "",
            "Kurt, Thumma, Hong, Sukumaran-Rajam, Sadayappan, *Characterization of data movement requirements for sparse matrix computations "
            "on GPUs*. [Models, orders, counters](data-movement.md); [bands and pairs](results/h100/spgemm.md).", ""] + table(HEADERS, rows) + [
                "Counters fall below the lower bound where some of the result is still in the cache; its kernels began with empty caches, and read the operands anew. "
                "The pairs are of eight matrices, so that their interval is too narrow. C of wide bands grows with the band and the products with its square, so that the least bytes are a smaller part of the time. On a GPU, "
                "`ncu` around `sparsed_bench spgemm` before and after `sparsed_reorder` on the twelve matrices would show figure 6.", ""]


def whole_bounds():
    """Algorithm 3's bound of all products over the least, where the parts fit, by matrix."""
    return {m: r["partition"]["upper_bound_ratio"] for m, r in data_movement_tables.reports("spgemm-whole").items()
            if r["partition"]["fits"] and not r["partition"]["estimate"]}


# Xie et al.


GPU_METHODS = (  # theirs: name, share best, speed-up over cuSPARSE where best; our kernels
    ("cuSPARSE", "19.6 %", "1", (VENDOR + "spgemm_alg1", VENDOR + "spgemm_alg2")),
    ("CUSP, ESC", "2.8 %", "6.27", ("cuda.csr.expand_sort",)),
    ("NSPARSE and bhSPARSE, rows by size", "65.5 %", "3.71 and 3.24", ("cuda.csr.row_bins", "cuda.csr.row_bitmaps", "cuda.csr.row_words", "cuda.csr.merged_rows")),
    ("FastSpMM, ELLPACK-R", "4.1 %", "4.56", ("cuda.ell.even_rows",)),
    ("bmSPARSE, BCSR", "5.2 %", "2.85", ("cuda.bcsr.blocks",)),
    ("DIA (on CPUs only)", "", "", ("cuda.dia.diagonals",)),
)
CPU_METHODS = (  # theirs: name, share best, speed-up over MKL where best; our kernel
    ("MKL, ours GraphBLAS", "16.2 %", "1", "graphblas"),
    ("DIA", "5.8 %", "72.04", "cpu.dia.diagonals"),
    ("COO", "3.1 %", "7.63", "cpu.coo.column_parts"),
    ("ELL", "17.6 %", "9.92", "cpu.ell.even_rows"),
    ("SPA", "2.6 %", "1.31", "cpu.csr.dense"),
    ("hash", "16.9 %", "6.37", "cpu.csr.hash"),
    ("heap", "5.8 %", "6.21", "cpu.csr.heap"),
    ("bhSPARSE, row groups", "22.9 %", "3.73", "cpu.csr.row_groups"),
    ("InCSR", "9.1 %", "9.75", "cpu.incsr.sections"),
)
DEFAULT = "cpu.csr.row_groups"


def most(ratios):
    """The greatest few, with their matrices."""
    return ", ".join(f"{m} {r:.2f}" for m, r in sorted(ratios.items(), key=lambda item: -item[1])[:3])


def prediction_takes():
    times = predictor_tables.served()[2]
    return f"{predictor_tables.statistics.median(times['products-matnet']):.0f} µs in a server's code"


def matnet():
    """What MatNet chooses for squares: families unseen, and the paper's split."""
    header, cases = predictor_tables.read("products")
    n = len(cases)
    splits = {"families": "families unseen", "random": "split at random"}
    judged = {(split, model): predictor_tables.Judgement(cases, "f32", split, model) for split in splits for model in predictor_tables.PRODUCT_MODELS}

    def of(model, text):
        return "; ".join(f"{name} {text(judged[split, model])}" for split, name in splits.items())
    gains = {split: predictor_tables.vendor_gains(header, cases, split, "matnet") for split in splits}
    measured, _, _, ideal = gains["families"]
    own = f"MatNet ([every model](results/h100/predictors.md#spgemms-algorithm)); squares of patterns that are made, our kernels; 800 pairs to train on, not 4,900"
    return [
        ["MatNet finds the best algorithm", "91 % (validation on a CPU; test set on the GPU: 87 %)",
         of("matnet", lambda j: f"{predictor_tables.percent(j.right)}, within 3 % of the best {predictor_tables.percent(j.near)}"), n, own, "refuted"],
        ["MatNet over cuSPARSE (2.57, above)", "2.57, all overhead counted",
         "; ".join(f"{name} {predictor_tables.by_groups(gains[split][0], gains[split][1])}, the layout's building counted in one product "
                   f"{predictor_tables.by_groups(gains[split][0], gains[split][2])}" for split, name in splits.items()) +
         f"; a perfect choice {predictor_tables.by_groups(measured, ideal)}", len(measured), "as above; features not timed, a prediction " + prediction_takes(),
         "held, by the kernels: the best fixed one has " + predictor_tables.by_groups(measured, predictor_tables.vendor_gains(header, cases, "families", "fixed")[1])],
        ["share of the perfect choice's gain", "94 % without overhead, 37 % with", "of its speed: " + of("matnet", lambda j: j.share()) + "; the best fixed algorithm " +
         judged["families", "fixed"].share(), n, "as above", "held in kind without; with: features not timed"],
        ["features and map together are better than either (table 6: precision of tree 74 %, MLP and CNN 86 %, MatNet 92 %)", "", "families unseen: " + ", ".join(
            f"{name} {judged['families', model].share()}" for model, name in (("tree", "tree"), ("mlp", "MLP"), ("cnn", "CNN"), ("matnet", "MatNet"))), n, "as above",
         "refuted: the map adds nothing to the features"],
        ["the same, served", "", "families unseen: " + ", ".join(
            f"{name} {predictor_tables.served_share('products-' + model, 'spgemm f32', 0)[0]}"
            for model, name in (("tree", "tree"), ("mlp", "MLP"), ("cnn", "CNN"), ("matnet", "MatNet"))),
         predictor_tables.served_share("products-matnet", "spgemm f32", 0)[1],
         "a smaller CNN, for 0.2 ms a choice; without cuSPARSE's kernels ([beside the selector's trees](results/h100/predictors.md#served-beside-the-selectors-trees-and-the-rules))",
         "as above"],
    ]


def patterns_gpu():
    of, chosen = squares(), plans()
    of = {m: of[m] for m in chosen}
    oracle = {m: least(list(kernels.values())) for m, kernels in of.items()}
    share = [oracle[m]["ms"] / of[m][chosen[m]]["ms"] for m in chosen]
    hits = sum(oracle[m]["kernel"] == chosen[m] for m in chosen)
    near = sum(s >= 0.97 for s in share)
    served = [of[m][chosen[m]]["ratio"] for m in chosen if "ratio" in of[m][chosen[m]]]
    bins = [of[m]["cuda.csr.row_bins"]["ratio"] for m in chosen if "ratio" in of[m]["cuda.csr.row_bins"]]
    ideal = [line["ratio"] for line in oracle.values() if "ratio" in line]
    peers, wide_peers = anchors.spgemm(), anchors.spgemm(("fp32", "fp64"))
    over_peers = [min(peers[m].values()) / of[m][chosen[m]]["ms"] for m in chosen]
    over_all = [min(wide_peers[m].values()) / of[m][chosen[m]]["ms"] for m in chosen]
    esc = {m: kernels["cuda.csr.expand_sort"] for m, kernels in of.items() if "cuda.csr.expand_sort" in kernels}
    meshes = [line["ratio"] for m, line in esc.items() if m != "uni100k"]
    behind = [line["ms"] / oracle[m]["ms"] for m, line in esc.items()]
    wins = collections.Counter(line["kernel"] for line in oracle.values())
    n = len(chosen)
    block_count, blocks = block_shapes()
    rows = [
        ["over cuSPARSE, features, prediction and conversion counted (figure 9)", "2.57 (P100, 8,000 pairs)",
         f"default kernel alone, nothing to select or convert: {figure(bins)}; the chosen kernel {figure(served)}, trials and layouts made before not counted",
         len(bins), "squares only; trials instead of a model; today's cuSPARSE", "held by the default; what selection costs: not measured"],
        ["over cuSPARSE by a perfect choice (table 2)", "3.11", figure(ideal), len(ideal), "as above", "held"],
        *matnet(),
        ["the same, by trials", "", f"the best for {hits} of {n}, {near} within 3 %; {geomean(share):.3f} of a perfect choice's speed, least {min(share):.2f}", n,
         "trials in place of a model, their time not counted", "better than MatNet"],
        ["no algorithm wins everywhere", "five of six win somewhere by 3 % or more", ", ".join(f"{k.split('.')[-1]} {c}" for k, c in wins.most_common()), n,
         "our kernels", "held"],
        ["over the best of eight programs of others", "", f"{figure(over_peers)}, least {min(over_peers):.2f}; {figure(over_all)}, least {min(over_all):.2f} "
         "with those that are right only in f64", n, "another run; they start from CSR, our layouts are there", "see [the table](results/h100/spgemm.md)"],
        ["ESC where rows are short", "6.27 times cuSPARSE where it wins, 2.8 %", f"{min(meshes):.2f} to {max(meshes):.2f} of cuSPARSE on meshes, stencils and roads, "
         f"{esc['uni100k']['ratio']:.2f} on uniform rows; takes {min(behind):.1f} to {max(behind):.1f} times as long as the best", len(esc), "our kernel, in shared memory", "refuted: never the best"],
        ["the best shape of blocks differs: 3 x 1, 2 x 2, 7 x 7, 2 x 1, 1 x 2 (table 3, BCSR, five pairs)", "five shapes", ", ".join(f"{m} {shape} ({gain:.2f} of CSR)" for m, (shape, gain) in blocks.items()), block_count,
         "another operation: SpMM, K = 128, on one CPU core; SpGEMM on the GPU reads squares of 2 x 2 to 8 x 8", f"held in kind: {len({shape for shape, _ in blocks.values()})} shapes on {len(blocks)} matrices ([all](results-cpu.md#spmm-from-dense-blocks))" + ("" if {shape for shape, _ in blocks.values()} & {"2 x 1", "1 x 2"} else ", none of 2 x 1 or 1 x 2")],
        ["Galerkin products and AMG set-up on the GPU (table 8)", "2.41 to 3.75 and 1.21 to 1.28 over cuSPARSE", "", "", "",
         "not measured: `galerkin` ([examples](spgemm.md#examples)) is checked, not timed; timing P^T A P of the three problems beside cuSPARSE would"],
        ["breadth-first search from many sources (table 9)", "1.41 to 3.82 over cuSPARSE", "", "", "",
         "not measured: `breadth_first` is checked, not timed; timing A^T F of tall frontiers beside cuSPARSE and GraphBLAS would"],
    ]
    lines = table(HEADERS, rows)
    methods = []
    for name, best, over, kernels in GPU_METHODS:
        won = [m for m, line in oracle.items() if line["kernel"] in kernels]
        ratios = [oracle[m]["ratio"] for m in won if "ratio" in oracle[m]]
        methods.append([name, best, over, f"{len(won)} of {n}", f"{geomean(ratios):.2f}" if ratios else ""])
    lines += ["Their table 2 on the GPU, by our kernels of the same kind, in the run of all kernels (f32):", ""]
    return lines + table(["method", "theirs: best on", "over cuSPARSE where best", "ours: best on", "over cuSPARSE where best"], methods)


def sections_swept():
    """The verdict on InCSR's S and b."""
    measured = [line for line in cpu_tables.lines(RESULTS / "cpu/sections.jsonl") if "matrix" in line]
    useful, near, (loss, matrix) = cpu_tables.sections_judged(measured)
    return (f"S and b swept, 4 to 32 and 4 to 16, on {len(measured)} matrices ([each](results-cpu.md#incsr-sections-of-s-columns-in-blocks-of-b)): S = b = 16, a vector of 64 bytes, is the best or within 3 % of it "
            f"on {near} of the {useful} where InCSR pays, another shape at the most {loss:.2f} times as fast ({matrix}); theirs differ by matrix (table 3), 29 % between S = 8 and 3 on one: refuted, "
            "by vectors that take any entries of 16 columns.")


def block_shapes():
    """(real matrices, those of them with a shape of blocks 1.1 times as fast as CSR at K = 128: best shape and gain)."""
    lines = [line for line in cpu_tables.lines(RESULTS / "cpu/blocks.jsonl") if line["k"] == 128 and not line["matrix"].startswith("blocks-")]
    best = {}
    for line in lines:
        shape, ms = min(((name, ms) for name, ms in line["ms"].items() if " x " in name), key=lambda item: item[1])
        if cpu_tables.csr_ms(line) / ms > 1.1:
            best[line["matrix"]] = (shape, cpu_tables.csr_ms(line) / ms)
    return len(lines), best


def patterns_cpu():
    lines = [line for line in read_lines(RESULTS / "cpu/spgemm.jsonl.gz") if line["plan"] and "graphblas" in line["ms"]]
    of = {t: {line["matrix"]: line["ms"] for line in lines if line["threads"] == t} for t in (1, 2)}
    served = [line["ms"]["graphblas"] / line["ms"][line["plan"]] for line in lines if line["threads"] == 2]
    ideal = [times["graphblas"] / min(times.values()) for times in of[2].values()]
    def both(matrix, kernel, key="ms"):
        """Over our default, with two threads and one."""
        found = {line["threads"]: line[key][DEFAULT] / line[key][kernel] for line in lines if line["matrix"] == matrix}
        return f"{found[2]:.2f} / {found[1]:.2f}"

    sections, even = "cpu.incsr.sections", "cpu.ell.even_rows"
    rows = []
    for name, best, over, kernel in CPU_METHODS:
        won = {t: [m for m, times in of[t].items() if min(times, key=times.get) == kernel] for t in of}
        over_library = [of[2][m]["graphblas"] / of[2][m][kernel] for m in won[2]]
        gains = {t: {m: times[DEFAULT] / times[kernel] for m, times in of[t].items() if kernel in times} for t in of}
        shown = "" if kernel in (DEFAULT, "graphblas") else f"{most(gains[2])}; one thread {most(gains[1])}"
        middle = "" if kernel == DEFAULT else f"{statistics.median(gains[2].values()):.2f} / {statistics.median(gains[1].values()):.2f} of {len(gains[2])}"
        rows.append([name, best, over, f"{len(won[2])} / {len(won[1])}", f"{geomean(over_library):.2f}" if over_library else "", middle, shown])
    return [f"On a CPU ([every matrix](results-cpu.md#spgemm-beside-suitesparsegraphblas), [the kernels](spgemm-cpu.md)), S * S of {len(of[2])} matrices on two cores "
            "of a Xeon with AVX-512 and 2 MB of L2 each, beside other work: medians of three to five runs, of one where a method is far behind. MKL was not run; GraphBLAS stands for it. "
            f"The service's choice is {figure(served)} times as fast as GraphBLAS, the best kernel of each matrix {figure(ideal)} (theirs over MKL: 3.89 with all overhead, 10.52 by "
            "a perfect choice). Over our default is the default's time over the method's: the median, with two threads and one, and the greatest.", ""] + \
        table(["method", "theirs: best on", "over MKL where best", "ours: best on, two threads / one", "over GraphBLAS where best", "over our default, median of those it suits", "most"], rows) + [
            f"*No algorithm wins everywhere*: held. *DIA*: held in kind ({both('band-200k-15', 'cpu.dia.diagonals')} on a band, two threads / one): it saves looking at columns, and a good default looks at few; "
            "on bcsstk16, whose diagonals are mostly padding, it loses. *ELL*: not held; level with the default, also where rows of one length are scattered over 100,000 columns "
            f"({both('uniform-100k-16', even)}; by the least of the runs {both('uniform-100k-16', even, 'min_ms')}). *COO*: {both('wide-1500k', 'cpu.coo.column_parts')} where rows of C span 1,500,000 columns, nothing on "
            "narrower ones: a window of 500,000 sums fits an L2 cache of today, that of the paper's processor had an eighth of it. *InCSR*: held in kind on a triangular factor "
            f"(ani4_amd_chol {both('ani4_amd_chol', sections)}), finite elements of several unknowns a vertex (bcsstk29_graph {both('bcsstk29_graph', sections)}) and linear programs with dense rows "
            f"(fit2d_A {both('fit2d_A', sections)}); on bcsstk16 {both('bcsstk16', sections)}, of which the least of the runs would make {both('bcsstk16', sections, 'min_ms')}. {sections_swept()} "
            "*Hash* and *heap*: refuted but for heap on a road network, since row groups take the best method of four for each row.", "",
            "Galerkin products (3.62 to 3.93 over MKL), AMG (1.29 to 1.36) and breadth-first search (1.67 to 6.28) on the CPU: not measured, as on the GPU.", ""]


def patterns():
    return ["## SpGEMM by pattern", "",
            "Xie, Tan, Liu, Sun, *A Pattern-Based SpGEMM Library for Multi-Core and Many-Core Architectures* (MatNet).", ""] + patterns_gpu() + patterns_cpu()


def page():
    return "\n".join([
        "# What the papers say, and what we measured", "",
        "Made by `tests/bench/papers_tables.py` from the raw results in `docs/results`, which a test repeats (`docs_tables_test`). H100 (80 GB HBM3, "
        "CUDA 13.0, cuSPARSE 12), f32; K is the number of columns of the dense operand. Their GPUs had 1.5 to 6 MB of L2 cache and 0.3 to 0.9 TB/s; the H100 has 50 MB and "
        "3.3 TB/s, L1 caches of 256 KB a multiprocessor, and a cuSPARSE that has learnt since. Where a claim fell, that is mostly why: what the papers bring into "
        "shared memory or close to each other is in a cache already.", "",
        "*Ours* is the geometric mean over matrices unless it says otherwise, with its 95 % interval in brackets (bootstrap over the matrices: how much the figure depends on "
        "which were at hand, not how exact times are; of the predictors over groups of alike patterns); a number above 1 is faster. *Held*: our figure is the same or more. *In kind*: the same direction, less of it. "
        "*Not measured*: no raw result says it.", "",
        "*Same experiment*: none is on their cards and matrices. *Program*: their program and their measure; *method*: their method in our kernel, their measure; otherwise what "
        "differs besides.", "",
        *permutations(), *row_reordering(), *row_segments(), *data_movement(), *patterns()]).rstrip() + "\n"


def main():
    if len(sys.argv) != 2:
        sys.exit(__doc__)
    pathlib.Path(sys.argv[1]).write_text(page(), encoding="utf-8")


if __name__ == "__main__":
    main()
