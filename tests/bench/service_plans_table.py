#!/usr/bin/env python3
"""Markdown tables from what `bench_service plans` printed.

  tests/bench/service_plans_table.py plans.jsonl... > plans.md

For each type, operation and width: the plans that the service chose, beside the best of cuSPARSE's
algorithms on plain CSR in the same trials, as geometric means, and each matrix. Lines of the same
matrix and type in several files add up.
"""
import json
import math
import sys
from collections import defaultdict

NOISE = 1.02


def class_of(entry):
    c = entry["class"]
    return (c["operation"] + ("^T" if c.get("transposed") else ""), c["k"])


def mean(values):
    return math.exp(sum(map(math.log, values)) / len(values))


class Row:
    """One matrix in one class."""

    def __init__(self, matrix, plan, measurements):
        self.matrix, self.plan, self.ms = matrix, plan, plan["plan_ms"]
        vendor = [m["median_ms"] for m in measurements
                  if "cusparse" in m["kernel"] and m["recipe"] == "csr"]
        own = [m["median_ms"] for m in measurements if "cusparse" not in m["kernel"]]
        self.vendor = min(vendor) if vendor else None
        self.own = min(own) if own else None
        shares = [m["floor_share"] for m in measurements
                  if m["recipe"] == plan["recipe"] and m["kernel"] == plan["kernel"]]
        self.floor_share = max(shares) if shares else 0

    def ratio(self):
        return self.vendor / self.ms


def read(files):
    """{(type, operation): {k: {matrix: Row}}}"""
    classes = defaultdict(lambda: defaultdict(dict))
    for file in files:
        with open(file, encoding="utf-8") as lines:
            for line in filter(str.strip, lines):
                matrix = json.loads(line)
                tried = defaultdict(list)
                for measurement in matrix["measurements"]:
                    tried[class_of(measurement)].append(measurement)
                for plan in matrix["plans"]:
                    operation, k = class_of(plan)
                    row = Row(matrix["name"], plan, tried[(operation, k)])
                    if row.vendor and row.own:
                        classes[(matrix["type"], operation)][k][matrix["name"]] = row
    return classes


def print_means(classes):
    print("| type | operation | K | matrices | plan over cuSPARSE | least | slower on | own kernels alone "
          "| least | share of the floor |")
    print("| --- | --- | --- | --- | --- | --- | --- | --- | --- | --- |")
    for (kind, operation), widths in sorted(classes.items()):
        for k, rows in sorted(widths.items()):
            rows = list(rows.values())
            least = min(rows, key=Row.ratio)
            own = [row.vendor / row.own for row in rows]
            least_own = min(rows, key=lambda row: row.vendor / row.own)
            slower = sum(row.ms > NOISE * row.vendor for row in rows)
            print(f"| {kind} | {operation} | {k} | {len(rows)} | {mean([row.ratio() for row in rows]):.2f} "
                  f"| {least.ratio():.2f} ({least.matrix}) | {slower} | {mean(own):.2f} "
                  f"| {min(own):.2f} ({least_own.matrix}) "
                  f"| {100 * mean([max(row.floor_share, 1e-9) for row in rows]):.0f} % |")


def print_widths(classes):
    print("\n## Widths\n\nPlans that are slower than the plan of the next larger width:\n")
    found = False
    for (kind, operation), widths in sorted(classes.items()):
        ks = sorted(widths)
        for narrow, wide in zip(ks, ks[1:]):
            for name, row in sorted(widths[narrow].items()):
                other = widths[wide].get(name)
                if other and row.ms > NOISE * other.ms:
                    found = True
                    print(f"- {name}, {kind} {operation}: K = {narrow} takes {row.ms:.4f} ms, "
                          f"K = {wide} {other.ms:.4f}")
    if not found:
        print("None.")


def print_transposed(classes):
    print("\n## Transposed products beside plain ones\n")
    print("| type | K | matrices | over cuSPARSE's transposed product | least | time over the plain plan's | most |")
    print("| --- | --- | --- | --- | --- | --- | --- |")
    for (kind, operation), widths in sorted(classes.items()):
        if operation != "spmm^T":
            continue
        for k, rows in sorted(widths.items()):
            plain = classes[(kind, "spmm")].get(k, {})
            pairs = [(row.ms / plain[name].ms, name) for name, row in rows.items() if name in plain]
            least = min(rows.values(), key=Row.ratio)
            beside = f"| {mean([p for p, _ in pairs]):.2f} | {max(pairs)[0]:.2f} ({max(pairs)[1]}) |" \
                if pairs else "| | |"
            print(f"| {kind} | {k} | {len(rows)} | {mean([row.ratio() for row in rows.values()]):.2f} "
                  f"| {least.ratio():.2f} ({least.matrix}) {beside}")


def print_matrices(classes):
    for (kind, operation), widths in sorted(classes.items()):
        for k, rows in sorted(widths.items()):
            print(f"\n### {operation}, {kind}, K = {k}\n")
            print("| matrix | plan | ms | cuSPARSE ms | ratio | share of the floor |")
            print("| --- | --- | --- | --- | --- | --- |")
            for name, row in sorted(rows.items()):
                print(f"| {name} | `{row.plan['recipe']} / {row.plan['kernel']}` | {row.ms:.4f} "
                      f"| {row.vendor:.4f} | {row.ratio():.2f} | {100 * row.floor_share:.0f} % |")


def main():
    if len(sys.argv) < 2:
        sys.exit(__doc__)
    classes = read(sys.argv[1:])
    print_means(classes)
    print_widths(classes)
    print_transposed(classes)
    print_matrices(classes)


main()
