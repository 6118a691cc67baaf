"""What the scripts that make tables of measurements share."""

import gzip
import json
import math


def read_lines(path):
    """The JSON lines of a file, plain or .gz."""
    opened = gzip.open(path, "rt") if path.suffix == ".gz" else open(path, encoding="utf-8")
    with opened as file:
        return [json.loads(text) for text in file if text.strip()]


def geomean(values):
    return math.exp(sum(map(math.log, values)) / len(values)) if values else math.nan


def table(headers, rows):
    """The lines of a Markdown table, an empty one behind them."""
    out = ["| " + " | ".join(headers) + " |", "|" + " --- |" * len(headers)]
    out += ["| " + " | ".join(str(cell) for cell in row) + " |" for row in rows]
    return out + [""]


def summary_place(name):
    """The lines between which summary_tables.py writes."""
    return [f"<!-- begin {name}: made by tests/bench/summary_tables.py -->", f"<!-- end {name} -->", ""]
