#!/usr/bin/env python3
"""Judges what the papers' own models chose for patterns that they were not trained on: docs/results/h100/predictors.md, which tests/bench/pages.py writes.

usage: predictor_tables.py OUT.md

`tools/train/papers/run` makes what this reads: the packed measurements, and predictors.jsonl.gz with the choices of its three tasks.
"""

import collections
import functools
import json
import lzma
import math
import pathlib
import statistics
import sys

from measurements import geomean, interval, read_lines, table

H100 = pathlib.Path(__file__).resolve().parents[2] / "docs/results/h100"
FILES = {"orders": "row-orders.jsonl.gz", "thresholds": "heavy-rows.jsonl.gz", "coarsenings": "heavy-rows-coarsened.jsonl.gz", "products": "squares.jsonl.gz"}
SPLITS = {"families": "families that the model has not seen", "random": "patterns at random"}
ORDER_MODELS = {
    "never": "the original order, always", "fixed": "the best fixed order", "network": "the paper's network: times of four orders",
    "classifier": "the paper's classifier of four orders", "network_ratio": "network, times over the original order's",
    "network_all": "the same, all eleven", "trees": "extra trees, all eleven"}
COARSENING_MODELS = {"fixed": "the best fixed pair", "tree": "the paper's two phases", "trees_regret": "extra trees on more features, of all pairs"}
THRESHOLD_MODELS = {"fixed": "the best fixed threshold", "tree": "the paper's decision tree", "trees_regret": "extra trees on more features, by log time"}
PRODUCT_MODELS = {"fixed": "the best fixed algorithm that suits", "tree": "decision tree (CART)", "mlp": "MLP, features alone", "cnn": "CNN, map alone", "matnet": "MatNet"}
LARGE = 100_000  # nonzeros: RS-SpMM's section 4 trains on such matrices


@functools.cache
def read(task):
    """The header, and by pattern its line with `of`: {(setting, split): {model: the chosen contender}}."""
    header, *lines = read_lines(H100 / FILES[task])
    cases = {line["pattern"]: dict(line, of={}) for line in lines}
    phases = task == "coarsenings"  # the thresholds' task, of another file
    for line in read_lines(H100 / ("predictors-coarsened.jsonl.gz" if phases else "predictors.jsonl.gz")):
        if line["task"] == ("thresholds" if phases else task):
            chosen = dict(line["chosen"], never=0) if task == "orders" else line["chosen"]
            cases[line["pattern"]]["of"][line["setting"], line["split"]] = chosen
    return header, list(cases.values())


def nonzeros(header, case):
    return case["features"][header["features"].index("nnz")]


class Judgement:
    """What a model's choices are worth, over patterns."""

    def __init__(self, cases, setting, split, model):
        self.cases = cases
        self.chosen = [case["of"][setting, split][model] for case in cases]
        self.ms = [[math.inf if ms is None else ms for ms in case["ms"][setting]] for case in cases]
        self.shares = [min(ms) / ms[chosen] for ms, chosen in zip(self.ms, self.chosen)]
        self.right = statistics.mean(share == 1 for share in self.shares)
        self.near = statistics.mean(share >= 1 / 1.03 for share in self.shares)
        self.twentieth = sorted(self.shares)[len(self.shares) // 20]
        self.least = min(self.shares)

    def over(self, base):
        """Speed-ups over contender `base`: of the choice, of the oracle."""
        return [ms[base] / ms[chosen] for ms, chosen in zip(self.ms, self.chosen)], [ms[base] / min(ms) for ms in self.ms]

    def share(self):
        return by_groups(self.cases, self.shares)


def by_groups(cases, values):
    """A geometric mean with its interval: groups of alike patterns are drawn, not patterns."""
    sums = collections.defaultdict(lambda: [0.0, 0])
    for case, value in zip(cases, values):
        sums[case["group"]][0] += math.log(value)
        sums[case["group"]][1] += 1

    def mean(groups):
        return math.exp(sum(g[0] for g in groups) / sum(g[1] for g in groups))
    low, high = interval(list(sums.values()), mean)
    return f"{geomean(values):.3f} [{low:.3f}, {high:.3f}]"


def percent(share):
    return f"{100 * share:.0f} %"


HEADERS = ["model", "share of the oracle", "worst twentieth", "within 3 % of the best", "the best"]


def judgement_row(name, judged):
    return [name, judged.share(), f"{judged.twentieth:.2f}", percent(judged.near), percent(judged.right)]


def about(cases):
    return f"{len(cases)} patterns of {len({c['family'] for c in cases})} families, {len({c['group'] for c in cases})} groups of alike ones"


def never_measured(cases):
    return statistics.mean(any(ms is None for of in case["ms"].values() for ms in of) for case in cases)


def orders():
    header, cases = read("orders")
    lines = ["## Row orders", "",
             f"Mehrabi et al., section V: {about(cases)}; the paper's output-stationary kernel with one and four columns a block, K (columns of the dense operand) = rows up to 1,024; the original "
             "order, DCSR and nine permutations. The network has hidden layers of 64 and 32 over the 24 features of its table II, classes weighed inversely to "
             "their population, L2 regularisation and the mean absolute percentage error as loss, as there; 1,688 matrices in the paper. Speed-ups "
             "are arithmetic means over the original order, the paper's measure.", ""]
    for setting in header["settings"]:
        for split, named in SPLITS.items():
            rows = []
            for model, name in ORDER_MODELS.items():
                judged = Judgement(cases, setting, split, model)
                chosen, oracle = judged.over(0)
                rows.append(judgement_row(name, judged) + [f"{statistics.mean(chosen):.3f} of {statistics.mean(oracle):.3f}"])
            lines += [f"`{setting}`, {named}:", "", *table(HEADERS + ["speed-up, of the oracle's"], rows)]
    wins = collections.Counter(header["contenders"][ms.index(min(ms))] for ms in (case["ms"]["output_stationary.4"] for case in cases))
    lines += ["Which order is fastest, four columns a block: " + ", ".join(f"{name} {count}" for name, count in wins.most_common()) + ".", ""]
    return lines


def thresholds():
    header, cases = read("thresholds")
    large = [case for case in cases if nonzeros(header, case) >= LARGE]
    lines = ["## RS-SpMM's threshold", "",
             f"Section 4.2: {about(cases)}; `row_segments` with min_heavy = 1 to 16, panels of 64 columns, all measured. The decision tree's inputs are the paper's, how many "
             "distances between neighbours are in each bin and the number of accumulations (taken as the nonzeros), its parameters those of J48 as near as scikit-learn has "
             "them (entropy, two cases a leaf, cost-complexity pruning of 0.005). The paper's first phase chooses the coarsening that is best most often; these are "
             f"of its second phase, with the coarsening that the kernel's cost model says ([both phases](#both-phases)). The paper leaves out matrices of fewer than 100,000 nonzeros: {len(large)} patterns remain in the last column.", ""]
    for k in header["settings"]:
        for split, named in SPLITS.items():
            rows = [judgement_row(name, Judgement(cases, k, split, model)) + [Judgement(large, k, split, model).share()]
                    for model, name in THRESHOLD_MODELS.items()]
            lines += [f"K = {k}, {named}:", "", *table(HEADERS + ["share, from 100,000 nonzeros on"], rows)]
    noise = {k: [abs(math.log2(case["ms"][k][14] / case["ms"][k][15])) for case in cases] for k in header["settings"]}
    wins = {k: collections.Counter(case["ms"][k].index(min(case["ms"][k])) + 1 for case in cases) for k in header["settings"]}
    over = {k: [case["beside"][k]["csr"] / min(case["ms"][k]) for case in cases] for k in header["settings"]}
    lines += [
        "The greatest threshold is best most often (" + "; ".join(f"K = {k}: 16 on {wins[k][16]}, 9 to 15 on {sum(wins[k][t] for t in range(9, 16))}, below on "
                                                                 f"{sum(wins[k][t] for t in range(1, 9))}" for k in wins) +
        "). Times of thresholds 15 and 16, which mostly make the same layout or nearly so, differ by " +
        " and ".join(f"{100 * (2 ** statistics.median(noise[k]) - 1):.1f} %" for k in noise) + " in the median and by " +
        " and ".join(f"{100 * (2 ** sorted(noise[k])[len(noise[k]) * 9 // 10] - 1):.0f} %" for k in noise) +
        " for a tenth: a part of what every choice falls short by is the oracle's luck among sixteen. "
        "With the best threshold, `row_segments` has " + " and ".join(f"{by_groups(cases, over[k])}" for k in over) + " of the speed of plain CSR's default kernel.", ""]
    return lines


def coarsenings():
    header, cases = read("coarsenings")
    names = [tuple(map(int, name.split("/"))) for name in header["contenders"]]
    tried = sorted({coarsening for _, coarsening in names})
    lines = ["### Both phases", "",
             f"{about(cases)[0].upper()}{about(cases)[1:]}, another run on another card: `row_segments` with panels of 64 columns, min_heavy = {', '.join(str(t) for t in sorted({t for t, _ in names}))} and coarsen = "
             f"{', '.join(map(str, tried))}, all measured. The first phase takes the coarsening that is best on most patterns, with whatever threshold; the second has the decision tree choose among its thresholds.", ""]
    rows = []
    for k in header["settings"]:
        best = collections.Counter(names[case["ms"][k].index(min(case["ms"][k]))][1] for case in cases)
        for coarsening in tried:
            shares = [min(case["ms"][k]) / min(ms for ms, name in zip(case["ms"][k], names) if name[1] == coarsening) for case in cases]
            rows.append([k, coarsening, f"{best[coarsening]} of {len(cases)}", by_groups(cases, shares)])
    lines += table(["K", "coarsening", "is the best on", "with the best threshold for it, share of the best of all"], rows)
    for k in header["settings"]:
        for split, named in SPLITS.items():
            lines += [f"K = {k}, {named}:", "", *table(HEADERS, [judgement_row(name, Judgement(cases, k, split, model)) for model, name in COARSENING_MODELS.items()])]
    return lines


def vendor_gains(header, cases, split, model):
    """Over cuSPARSE's faster algorithm where it was measured: (cases, of the choice, with its layout's building counted once, of the oracle)."""
    vendor = [i for i, name in enumerate(header["contenders"]) if name.startswith("spgemm_alg")]
    found = [], [], [], []
    for case in cases:
        ms = case["ms"]["f32"]
        beside = [ms[i] for i in vendor if ms[i] is not None]
        if beside:
            chosen = case["of"]["f32", split][model]
            values = case, min(beside) / ms[chosen], min(beside) / (ms[chosen] + case["preparation_ms"]["f32"][chosen]), min(beside) / min(v for v in ms if v is not None)
            for column, value in zip(found, values):
                column.append(value)
    return found


def products():
    header, cases = read("products")
    lines = ["## SpGEMM's algorithm", "",
             f"MatNet (Xie et al., section 4): squares of {about(cases)}; f32, kernel times, {len({n.split('.')[0] for n in header['contenders']})} algorithms, of which `blocks` has a parameter. Which suit a matrix is known "
             "beforehand and no matter of choice. Features: those of its table 4 but InCSR's padding; 128 x 128 density maps, scaled to 0 to 255 by their logarithm; both factors "
             "are the same matrix, so that one of each serves. Probabilities inverse to times as soft labels, a head for the algorithm and one for the parameter; the first phase "
             "trains CNN and MLP apart, the second keeps their layers and trains new heads on both. The networks are smaller than may have been the paper's (three convolutions of 8, 16 and 32 filters; it gives no "
             "sizes) and trained on some 800 pairs (theirs: 4,900). The paper does not say how it scales maps within 0 to 255. The paper's accuracy is how often the best algorithm is found; its speed-up is over cuSPARSE.", ""]
    for split, named in SPLITS.items():
        rows = []
        for model, name in PRODUCT_MODELS.items():
            of, gain, with_building, _ = vendor_gains(header, cases, split, model)
            rows.append(judgement_row(name, Judgement(cases, "f32", split, model)) + [by_groups(of, gain), by_groups(of, with_building)])
        lines += [f"{named[0].upper()}{named[1:]}:", "", *table(HEADERS + ["over cuSPARSE", "the layout's building counted, one product"], rows)]
    of, _, _, ideal = vendor_gains(header, cases, "families", "matnet")
    lines += [f"A perfect choice is {by_groups(of, ideal)} times as fast as cuSPARSE's faster algorithm, on the {len(of)} patterns that it was measured on. Features and map are not counted, nor is the network's run: "
              f"{statistics.median(served()[2]['products-matnet']):.0f} µs in the median (below).", ""]
    return lines


SERVED = ["default", "rules", "orders", "thresholds", "products-tree", "products-mlp", "products-cnn", "products-matnet", "trees", "trees, three"]
SERVED_NAMES = {
    "default": "the default, always", "rules": "the rules: all that they let through is tried", "orders": "Mehrabi et al.'s network (64, 32), of row orders alone",
    "products-tree": "decision tree (CART)", "products-mlp": "MLP, features alone", "products-cnn": "CNN, map alone", "products-matnet": "MatNet",
    "trees": "the selector's trees", "trees, three": "the best of its first three"}


@functools.cache
def corpus_ratios():
    """{(operation, K): {pattern: {(pipeline, kernel): log2 ratio}}} of f32, plain."""
    with lzma.open(H100 / "corpus-f32.jsonl.xz", "rt") as file:
        header, *lines = map(json.loads, file)
    found = collections.defaultdict(dict)
    for line in lines:
        for number, measured in line["measured"].items():
            operation, transposed, kind, tf32, k = header["problems"][int(number)]
            if operation in ("spmm", "spgemm") and kind == "f32" and not transposed and not tf32:
                found[operation, k][line["pattern"]] = {tuple(header["candidates"][m[0]]): math.log2(m[1] / m[2]) for m in measured}
    return found


@functools.cache
def served():
    """({model or way: {class: {pattern: log2 regret}}}, the choices' lines, {model: [microseconds]}, {operation: [how much rules let through]})."""
    regrets, lines, times = collections.defaultdict(lambda: collections.defaultdict(dict)), [], collections.defaultdict(list)
    let_through = collections.defaultdict(list)
    for line in read_lines(H100 / "served-predictors.jsonl.gz"):
        if line.get("line") == "choice":
            lines.append(line)
            regrets[line["model"]][line["class"]][line["pattern"]] = line["regrets"][0]
            continue
        for said in line["estimates"]:
            for model, of in said["models"].items():
                times[model].append(of["microseconds"])
            kind = said["class"].split(" ")
            if kind[-1] != "cuda":
                continue  # the selector's trees for a CPU: how long they take
            k = int(kind[2].removeprefix("k<=")) if kind[0] == "spmm" else 0
            operation, ratios = kind[0], corpus_ratios()[kind[0], k].get(line["pattern"])
            if ratios is None:
                continue
            let_through[operation].append(len(said["rules"]))
            least = min(0.0, *ratios.values())
            passed = [ratio for (pipeline, kernel), ratio in ratios.items()
                      if (kernel if operation == "spgemm" else pipeline) in said["rules"] or (operation == "spmm" and pipeline == "csr")]
            name = f"spmm f32 K={k}" if operation == "spmm" else "spgemm f32"
            regrets["rules"][name][line["pattern"]] = min([0.0, *passed]) - least
    for line in read_lines(H100 / "selector.jsonl.gz"):
        if line["line"] == "choice" and line["group"] in ("spmm", "spgemm"):
            name = f"{line['group']} {line['class']}"
            for way, regret in zip(("default", "fixed", "trees", "trees, three"), line["regrets"]):
                regrets[way][name][line["pattern"]] = regret
    return regrets, lines, times, let_through


def served_share(model, name, which):
    """Of a served model's choices, over families unseen: 0 of all that was measured, 1 of what it chooses from and the default, 2 of that without
    the default; and of how many patterns."""
    of = [line for line in served()[1] if line["model"] == model and line["class"] == name]
    return by_groups(of, [2 ** -line["regrets"][which] for line in of]), len(of)


def served_section():
    regrets, lines, times, passed = served()
    groups = {line["pattern"]: line["group"] for line in lines}
    out = ["## Served, beside the selector's trees and the rules", "",
           "What `tools/train/papers/run train` makes is served as the selector's trees are; these are models of the same measurements of an H100, `corpus-f32.jsonl.xz`, judged on families that they have not seen. "
           "*Share of the oracle*: of all that was measured of the pattern, row panels, tiles and the vendor's kernels included, which a model of row orders cannot choose. "
           "Raw: `served-predictors.jsonl.gz`, and `selector.jsonl.gz` of the trees. A model's and the trees' is the first choice, untimed; rules choose none first: theirs is the fastest of all that they have built and tried, "
           f"{statistics.mean(passed['spmm']):.1f} transform pipelines beside plain CSR in the mean, and {statistics.mean(passed['spgemm']):.1f} kernels for a square.", ""]
    out += ["Of real matrices what rules let through was not asked: the tables that follow are of the others. Networks were judged with six folds of families, the selector's trees with eight.", ""]
    for name in ("spmm f32 K=8", "spmm f32 K=32", "spmm f32 K=128", "spmm f32 K=512", "spgemm f32"):
        model = "products-matnet" if name == "spgemm f32" else "orders"
        ways = [way for way in SERVED if way in regrets and regrets[way].get(name) and way != "thresholds"]
        common = sorted(set.intersection(*(set(regrets[way][name]) for way in ways)) & set(groups))
        rows = []
        for way in ways:
            shares = [2 ** -regrets[way][name][pattern] for pattern in common]
            near = statistics.mean(share >= 1 / 1.03 for share in shares)
            rows.append([SERVED_NAMES[way], by_groups([{"group": groups[p]} for p in common], shares), f"{sorted(shares)[len(shares) // 20]:.2f}", percent(near)])
        own = {line["pattern"]: line["regrets"][1] for line in lines if line["model"] == model and line["class"] == name}
        out += [f"{name}, {len(common)} patterns:", "", *table(HEADERS[:4], rows)]
        if model == "orders":
            share = by_groups([{"group": groups[p]} for p in common], [2 ** -own[p] for p in common])
            out += [f"Of the best row order with the kernels that it chooses from, the network reaches {share}.", ""]
    rows = []
    for name in ("spmm f32 K=32", "spmm f32 K=128"):
        of = [line for line in lines if line["model"] == "thresholds" and line["class"] == name]
        rows.append([name, len(of), by_groups(of, [2 ** -line["regrets"][2] for line in of]), by_groups(of, [2 ** -line["regrets"][1] for line in of]),
                     percent(statistics.mean(line["chosen"] == "default" for line in of))])
    out += ["RS-SpMM's decision tree, whose leaves have the times of their cases besides: its threshold's share of the best threshold's speed, and, where it may say that plain CSR is faster, the share of the faster of the two:", "",
            *table(["signature", "patterns", "of the best threshold", "of the best threshold or plain CSR", "plain CSR chosen"], rows)]
    of = {line["pattern"]: line for line in lines if line["model"] == "matnet-cpu"}
    beside = {line["pattern"]: line["regrets"] for line in read_lines(H100.parent / "cpu/selector.jsonl.gz") if line.get("group") == "spgemm" and line["pattern"] in of}
    known = [of[pattern] for pattern in sorted(beside)]
    shares = [[2 ** -beside[line["pattern"]][0] for line in known], [2 ** -line["regrets"][0] for line in known], [2 ** -beside[line["pattern"]][2] for line in known]]
    rows = [[name, by_groups(known, of_way)] for name, of_way in zip(("the default, always", "MatNet", "the selector's trees"), shares)]
    out += [f"On a CPU with AVX-512 (`../cpu/corpus.jsonl.xz`), its kernels, squares of {len(known)} patterns:", "", *table(HEADERS[:2], rows)]
    rows = [[f"`{model}`", len(of), f"{statistics.median(of):.1f}", f"{sorted(of)[len(of) * 95 // 100]:.1f}"] for model, of in sorted(times.items())]
    out += ["One estimate in the server's code on one thread of an AMD EPYC that others were using, the density map's scaling included: microseconds, of each problem signature on a pattern the median of nine:", "",
            *table(["model", "estimates", "median over patterns", "a twentieth is above"], rows)]
    return out


def page():
    return "\n".join([
        "# The papers' own models", "",
        "Made by `tests/bench/predictor_tables.py` from " + ", ".join(f"`{name}`" for name in FILES.values()) + " (H100s), `predictors.jsonl.gz` and `predictors-coarsened.jsonl.gz`, the choices of models "
        "that `tools/train/papers/run` trained on the other folds ([how](../../selector.md#the-papers-own-models)). Each model is judged on all patterns, a sixth at a time. *Split by "
        "families*: a fold's families are in no other. *At random*, as the papers split: then relatives of a pattern, its shuffle or another size of the same shape, are among what was trained on.", "",
        "*Share of the oracle*: the fastest contender's time over the chosen one's, geometric mean; in brackets the 95 % interval (bootstrap over groups of alike patterns). *Worst twentieth*: the share that "
        "a twentieth of the patterns is below. *The best*: how often the choice is the fastest. A model sees times of the same run as it is judged by: an oracle over noisy times is too good by the noise.", "",
        *orders(), *thresholds(), *coarsenings(), *products(), *served_section()]).rstrip() + "\n"


def main():
    if len(sys.argv) != 2:
        sys.exit(__doc__)
    pathlib.Path(sys.argv[1]).write_text(page(), encoding="utf-8")


if __name__ == "__main__":
    main()
