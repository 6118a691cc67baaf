"""What the scripts that make tables of measurements share."""

import gzip
import json
import math
import random


def read_lines(path):
    """The JSON lines of a file, plain or .gz."""
    opened = gzip.open(path, "rt") if path.suffix == ".gz" else open(path, encoding="utf-8")
    with opened as file:
        return [json.loads(text) for text in file if text.strip()]


def geomean(values):
    return math.exp(sum(map(math.log, values)) / len(values)) if values else math.nan


def interval(values, statistic=geomean):
    """The 95 % confidence interval of a statistic: the percentile bootstrap with 2,000 resamples, the same ones each time.

    It tells how much the statistic depends on which matrices were at hand, not how exact the times are.
    """
    values, chance = list(values), random.Random(0)
    estimates = sorted(statistic(chance.choices(values, k=len(values))) for _ in range(2000))
    return estimates[50], estimates[1949]


def table(headers, rows):
    """The lines of a Markdown table, an empty one behind them."""
    out = ["| " + " | ".join(headers) + " |", "|" + " --- |" * len(headers)]
    out += ["| " + " | ".join(str(cell) for cell in row) + " |" for row in rows]
    return out + [""]


def place(name, script):
    """The lines between which pages.py writes what a script makes."""
    return [f"<!-- begin {name}: made by tests/bench/{script} -->", f"<!-- end {name} -->", ""]
