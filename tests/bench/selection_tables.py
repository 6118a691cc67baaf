#!/usr/bin/env python3
"""What a preparation takes and reaches with rules, with a model and with everything tried: a table.

usage: selection_tables.py pack RULES RULES2 MODEL MODEL20 MODEL40 EXPLORED OUT.jsonl.gz    from what `sparsed_corpus measure` wrote
       selection_tables.py                                                                   the page, to standard output
"""

import collections
import gzip
import json
import pathlib
import sys

from measurements import geomean, interval, read_lines, table

RAW = pathlib.Path(__file__).resolve().parents[2] / "docs/results/h100/selection.jsonl.gz"
WAYS = ("rules", "rules again", "model, 10,000 requests", "model, 20,000 requests", "model, 40,000 requests", "everything")
EQUAL = 1.02
SERVER = "model, 20,000 requests"  # as a server has it


def pack(paths, out):
    """A line for each way and pattern: seconds, and for each signature the default's time and the fastest's as a share of it."""
    with gzip.open(out, "wt", encoding="utf-8") as file:
        for way, path in zip(WAYS, paths):
            best, default = collections.defaultdict(dict), collections.defaultdict(dict)
            for line in read_lines(pathlib.Path(path)):
                if line["line"] == "measurement" and line["csr_ms"] > 0:
                    name = line["operation"] + ("^T" if line["transposed"] else "") + (f" K={line['k']}" if line["k"] else "")
                    ratio = line["median_ms"] / line["csr_ms"]
                    best[line["pattern"]][name] = min(best[line["pattern"]].get(name, 1), ratio)
                    default[line["pattern"]][name] = line["csr_ms"]
                elif line["line"] == "pattern":
                    signatures = {name: [float(f"{default[line['pattern']][name]:.4g}"), float(f"{ratio:.4g}")]
                                  for name, ratio in sorted(best[line["pattern"]].items())}
                    print(json.dumps({"way": way, "pattern": line["pattern"].removeprefix("real-"), "nnz": line["nnz"],
                                      "seconds": float(f"{line['seconds']:.4g}"), "signatures": signatures}), file=file)


def largest(found, patterns, reached):
    rows = []
    for name in sorted(patterns, key=lambda name: -found[name]["rules"]["nnz"]):
        if (nonzeros := found[name]["rules"]["nnz"]) < 500_000:
            break
        shares = [ways["rules"] / ways[SERVER] for (pattern, _), ways in reached.items() if pattern == name]
        rows.append([name.removeprefix("real-"), f"{nonzeros:,}", *(f"{found[name][way]['seconds']:.2f}" for way in ("rules", SERVER)),
                     f"{geomean(shares):.3f}"])
    return rows


def page():
    found = collections.defaultdict(dict)
    for line in read_lines(RAW):
        found[line["pattern"]][line["way"]] = line
    patterns = sorted(name for name, ways in found.items() if len(ways) == len(WAYS))
    reached = {}  # by pattern and signature: the least ratio of each way
    for name in patterns:
        common = set.intersection(*(set(found[name][way]["signatures"]) for way in WAYS))
        for signature in sorted(common):
            reached[name, signature] = {way: found[name][way]["signatures"][signature][1] for way in WAYS}
    rows = []
    for way in WAYS:
        seconds = [found[name][way]["seconds"] for name in patterns]
        rules = [found[name]["rules"]["seconds"] for name in patterns]
        shares = [ways["rules"] / ways[way] for ways in reached.values()]
        low, high = interval(shares)
        rows.append([way, f"{sum(seconds):.1f}", f"{1 - sum(seconds) / sum(rules):.0%}", f"{1 - geomean([a / b for a, b in zip(seconds, rules)]):.0%}",
                     f"{geomean(shares):.3f} ({low:.3f} to {high:.3f})",
                     f"{sum(ways[way] <= EQUAL * ways['rules'] for ways in reached.values()) / len(reached):.0%}"])
    signatures = sorted({signature for _, signature in reached}, key=lambda s: (s.split(" ")[0], int(s.split("=")[1]) if "=" in s else 0))
    by_signature = []
    for signature in signatures:
        ways = [ways for (_, other), ways in reached.items() if other == signature]
        shares = {way: sorted(min(one.values()) / one[way] for one in ways) for way in WAYS}
        by_signature.append([signature, str(len(ways)), *(f"{geomean(shares[way]):.3f} / {shares[way][len(ways) // 20]:.2f}" for way in WAYS)])
    return "\n".join([
        "# Preparations with rules, with a model, and with everything tried", "",
        f"Made by `tests/bench/selection_tables.py` from [selection.jsonl.gz]({RAW.name}). {len(patterns)} real matrices on an H100 (14 threads, f32), "
        f"{len(signatures)} problem signatures a preparation (K: columns of the dense operand); trials of 2 s a signature, as in a server (everything: 0.3 s). The model was trained without real matrices; *requests*: `--expected-requests`, 20,000 unless a server is told otherwise. Other cards of the machine were busy; *everything* was measured on another one an hour before, so that its seconds are too few beside the others'.", "",
        "*Speed*: of the fastest that was measured, over that with rules, geometric mean over signatures (95 % interval). *Rules again*: the same once more, so what noise makes of it.", "",
        *table(["way", "preparations, s", "less than with rules, in all", "geometric mean", "speed over rules", "at most 2 % slower than with rules"], rows), "",
        "Share of the best of all ways, geometric mean / the worst twentieth:", "",
        *table(["signature", "matrices", *WAYS], by_signature), "",
        f"Whole preparations, all {len(signatures)} signatures of it, of those with half a million nonzeros and more; *reached*: of the speed with rules, geometric mean over signatures.", "",
        *table(["matrix", "nonzeros", "rules, s", f"{SERVER}, s", "reached"], largest(found, patterns, reached)), ""])


def main():
    if len(sys.argv) == len(WAYS) + 3 and sys.argv[1] == "pack":
        pack(sys.argv[2:-1], sys.argv[-1])
    elif len(sys.argv) == 1:
        print(page())
    else:
        sys.exit(__doc__)


if __name__ == "__main__":
    main()
