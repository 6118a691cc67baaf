#!/usr/bin/env python3
"""Markdown tables from what tests/bench/service_plans printed.

  tests/bench/service_plans_table.py plans.jsonl > plans.md

For each matrix and class: the plan, its milliseconds, the best of cuSPARSE's algorithms in the same
trials, and the ratio.
"""
import json
import math
import sys
from collections import defaultdict


def class_of(entry):
    c = entry["class"]
    return (c["operation"] + ("^T" if c.get("transposed") else ""), c["k"])


def best(measurements, vendor):
    times = [m["median_ms"] for m in measurements if ("cusparse" in m["kernel"]) == vendor]
    return min(times) if times else None


def main():
    if len(sys.argv) != 2:
        sys.exit(__doc__)
    rows = defaultdict(list)
    with open(sys.argv[1], encoding="utf-8") as lines:
        for line in filter(str.strip, lines):
            matrix = json.loads(line)
            tried = defaultdict(list)
            for measurement in matrix["measurements"]:
                tried[class_of(measurement)].append(measurement)
            name = matrix["name"].removeprefix("plans-").split(".mtx")[0]
            for plan in matrix["plans"]:
                key = class_of(plan)
                vendor, own = best(tried[key], True), best(tried[key], False)
                if vendor and own:
                    rows[key].append((name, plan, vendor, own))
    print("| class | matrices | plan over cuSPARSE | least | own kernels alone | least |")
    print("| --- | --- | --- | --- | --- | --- |")
    for key, entries in sorted(rows.items()):
        plans = [vendor / plan["plan_ms"] for _, plan, vendor, _ in entries]
        owns = [vendor / own for _, _, vendor, own in entries]
        mean = lambda values: math.exp(sum(map(math.log, values)) / len(values))
        print(f"| {key[0]} K={key[1]} | {len(entries)} | {mean(plans):.2f} | {min(plans):.2f} "
              f"| {mean(owns):.2f} | {min(owns):.2f} |")
    for key, entries in sorted(rows.items()):
        print(f"\n### {key[0]}, K = {key[1]}\n")
        print("| matrix | plan | ms | cuSPARSE ms | ratio |")
        print("| --- | --- | --- | --- | --- |")
        for name, plan, vendor, _ in sorted(entries, key=lambda entry: entry[0]):
            print(f"| {name} | `{plan['recipe']} / {plan['kernel']}` | {plan['plan_ms']:.4f} "
                  f"| {vendor:.4f} | {vendor / plan['plan_ms']:.2f} |")


main()
