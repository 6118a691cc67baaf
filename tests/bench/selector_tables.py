#!/usr/bin/env python3
"""How good the selector's models are over families that training did not see: tables from what `tools/train/run train --results` wrote.

usage: selector_tables.py RESULTS.jsonl.gz
"""

import collections
import math
import pathlib
import sys

from measurements import geomean, interval, read_lines, table

GROUPS = {"spmm": "SpMM", "spmm_transposed": "SpMM transposed", "sddmm": "SDDMM", "spgemm": "SpGEMM (squares)"}
DEFAULT, FIXED, FIRST, THREE = range(4)
NEAR = math.log2(1.03)
NOT_NOISE_MS = 0.02  # a default that takes this long is timed well


def share(regrets):
    """Of log2 regrets, the geometric mean of the shares of the fastest candidate's speed."""
    return 2 ** -(sum(regrets) / len(regrets)) if regrets else math.nan


def twentieth(regrets):
    """The share that nineteen of twenty reach."""
    return 2 ** -sorted(regrets)[min(int(0.95 * len(regrets)), len(regrets) - 1)]


def by_family(lines, choice):
    families = collections.defaultdict(list)
    for line in lines:
        families[line["family"]].append(line["regrets"][choice])
    return [share(regrets) for regrets in families.values()]


def row(name, lines):
    """Means over families, which count evenly, and over patterns; intervals by resampling families."""
    firsts = [line["regrets"][FIRST] for line in lines]
    families = {choice: by_family(lines, choice) for choice in range(4)}
    low, high = interval(families[FIRST])
    return [name, len({line["pattern"] for line in lines}), *(f"{geomean(families[choice]):.3f}" for choice in (DEFAULT, FIXED)),
            f"**{geomean(families[FIRST]):.3f}** ({low:.3f} to {high:.3f})", f"{share(firsts):.3f}", f"**{geomean(families[THREE]):.3f}**",
            f"{share([line['regrets'][THREE] for line in lines]):.3f}", f"{twentieth(firsts):.3f}",
            f"{100 * sum(regret < NEAR for regret in firsts) / len(firsts):.0f} %"]


def choices(lines):
    rows = []
    for group, title in GROUPS.items():
        of = [line for line in lines if line["line"] == "choice" and line["group"] == group]
        if not of:
            continue
        rows.append(row(f"**{title}**", of))
        classes = sorted({line["class"] for line in of}, key=lambda name: (name.split(" K=")[0], int((name.split("=") + ["0"])[1])))
        if len(classes) > 1:
            rows += [row(name, [line for line in of if line["class"] == name]) for name in classes]
        slow = [line for line in of if line["default_ms"] >= NOT_NOISE_MS]
        if len(slow) < len(of):
            rows.append(row("default takes 20 µs or more", slow))
    return table(["signature", "patterns", "default", "best fixed", "first choice, families (95 %)", "patterns", "first three, families", "patterns",
                  "worst twentieth", "first within 3 %"], rows)


def ceiling(lines):
    """What measuring twice comes to."""
    twice = [line for line in lines if line["line"] == "noise"]
    if not twice:
        return []
    rows = []
    for name, least, most in (("all", 0, math.inf), ("below 20 µs", 0, 0.02), ("20 to 50 µs", 0.02, 0.05), ("50 µs or more", 0.05, math.inf)):
        of = [line["regrets"] for line in twice if least <= line["default_ms"] < most]
        firsts = [first for first, _ in of]
        rows.append([name, len(of), f"{share(firsts):.3f}", f"{share([three for _, three in of]):.3f}", f"{twentieth(firsts):.3f}",
                     f"{100 * sum(regret < NEAR for regret in firsts) / len(firsts):.0f} %"])
    return ["The oracle is the least of many measurements, each with its noise. What that leaves to anyone: SpMM's kernels that are the same with TF32 allowed were measured twice "
            f"({twice[0]['class'].removeprefix('f32 ')}); the fastest by the first measurement, judged by the second:", "",
            *table(["default takes", "patterns", "first", "first three", "worst twentieth", "within 3 %"], rows)]


def again(path):
    """What was chosen beside what a whole trial would have chosen, both timed by a second run."""
    if not path.exists():
        return []
    lines = read_lines(path)
    rows = []
    for group, title in GROUPS.items():
        of = [line for line in lines if line["line"] == "again" and line["group"] == group]
        if not of:
            continue
        firsts = [line["regrets"][0] for line in of]
        shares = by_family(of, 0)
        low, high = interval(shares)
        rows.append([title, len({line["pattern"] for line in of}), f"**{geomean(shares):.3f}** ({low:.3f} to {high:.3f})", f"{share(firsts):.3f}", f"**{geomean(by_family(of, 1)):.3f}**",
                     f"{share([line['regrets'][1] for line in of]):.3f}", f"{twentieth(firsts):.3f}", f"{100 * sum(regret < NEAR for regret in firsts) / len(firsts):.0f} %"])
    return [f"**Timed again.** That luck goes where the fastest by the measurements above and the model's choice are both timed by another run, on another machine with such a card, of {lines[0]['patterns']} of the patterns, the first "
            f"in the corpus's order ([corpus-again.jsonl.xz](corpus-again.jsonl.xz), f32 and TF32). *First three*: of the three, the fastest by the measurements above, which is what a trial of three would take. Then the choice has this share of the speed of "
            f"what a trial of everything would have chosen; made from [{path.name}]({path.name}), which `tools/train/run evaluate --again` writes:", "",
            *table(["operation", "patterns", "first choice, families (95 %)", "patterns", "first three, families", "patterns", "worst twentieth", "first within 3 %"], rows)]


def families(lines):
    rows = []
    names = sorted({line["family"] for line in lines if line["line"] == "choice"})
    for family in names:
        cells = [family]
        for group in GROUPS:
            regrets = [line["regrets"] for line in lines if line["line"] == "choice" and line["group"] == group and line["family"] == family]
            cells.append(f"{share([r[FIRST] for r in regrets]):.3f} / {share([r[THREE] for r in regrets]):.3f}" if regrets else "-")
        rows.append(cells)
    return table(["family", *GROUPS.values()], rows)


def seconds(value):
    return f"{value:.3g}"


def policies(lines):
    rows = []
    of_kind = collections.defaultdict(list)
    for line in lines:
        if line["line"] == "policy":
            of_kind[line["preparation"], line["type"], line["requests"]].append(line)
    for (preparation, kind, requests), of in sorted(of_kind.items(), key=lambda item: (item[0][0], item[0][1], item[0][2])):
        sums = [sum(line["seconds"][i] for line in of) for i in range(4)]
        spent, everything = sums[0] + sums[1], sums[2] + sums[3]
        rows.append([preparation.replace("classes", "signatures").replace("class", "signature"), kind, f"{requests:,}", len(of), f"{geomean([line['share'] for line in of]):.3f}",
                     f"{sum(line['tried'] for line in of) / len(of):.1f}", seconds(sums[0]), seconds(sums[1]), seconds(everything),
                     f"{100 * (1 - spent / everything):.0f} %", f"{100 * (1 - geomean([max(sum(line['seconds'][:2]), 1e-6) / max(sum(line['seconds'][2:4]), 1e-6) for line in of])):.0f} %"])
    return table(["preparation", "type", "requests expected", "patterns", "share of the oracle", "tried", "building, s", "trials, s", "everything, s",
                  "less time, all together", "geometric mean"], rows)


def page_across(path, lines):
    """Of a device by models of another one."""
    run, learned = lines[0], lines[0]["learned"]
    return "\n".join([
        f"# The selector's model of an {learned['device']['model']} on an {run['device']['model']}", "",
        f"Made by `tests/bench/selector_tables.py` from [selector.jsonl.gz]({path.name}), which `tools/train/run evaluate --learn-from --results` writes. Models learned from "
        f"{learned['measurements']:,} measurements of {learned['patterns']:,} patterns on an {learned['device']['model']}, and were judged by {run['measurements']:,} of {run['patterns']:,} patterns on an "
        f"{run['device']['model']}, of which they had learned nothing: families that they had not seen on either. The columns: [../h100/selector.md](../h100/selector.md).", "",
        *choices(lines),
        *ceiling(lines),
        "## By family", "", "First choice / best of the first three.", "",
        *families(lines),
    ]).rstrip() + "\n"


def page(path):
    lines = read_lines(path)
    run = lines[0]
    if "learned" in run:
        return page_across(path, lines)
    return "\n".join([
        f"# The selector's model: {run['device']['model']}", "",
        f"Made by `tests/bench/selector_tables.py` from [selector.jsonl.gz]({path.name}), which `tools/train/run train --results` writes. Learned from "
        f"{run['measurements']:,} measurements of {run['patterns']:,} patterns by `sparsed_corpus measure --explore`, which are packed beside it. K is the number of columns of the dense operand. What is learned, and how: [../../selector.md](../../selector.md#training).", "",
        "## How near the best", "",
        "Shares of the speed of the fastest candidate that was measured (the oracle; the default is a candidate, too), geometric means. Every family was judged by a model that "
        "had not seen it (of real patterns, it had not seen those that are akin). *Best fixed*: the one candidate that is best for the problem signature in the mean. *First choice*: "
        "untimed, what the model estimates to be fastest. *First three*: the fastest of its first three. *Families*: each family counts alike, with the interval of resampled "
        "families; *patterns*: each pattern does.", "",
        *choices(lines),
        "How trees are grown (rounds, depths, penalties) was chosen by these same shares, so that they are a little too good.", "",
        *ceiling(lines),
        *again(path.with_name("selector-again.jsonl.gz")),
        "## By family", "", "First choice / best of the first three.", "",
        *families(lines),
        "## What trying costs", "",
        "Simulated: candidates are tried one after the other by (expected gain times requests less building and trial) until none is worth it, at most 12 of a signature; a trial is eight turns of default and "
        "candidate. Estimates of times and of building are those of models that had not seen the family. *Everything* is all that was measured. *All signatures*: one preparation for every signature of the type; "
        "*one signature*: SpMM at K = 128.", "",
        *policies(lines),
    ]).rstrip() + "\n"


if __name__ == "__main__":
    print(page(pathlib.Path(sys.argv[1])), end="")
