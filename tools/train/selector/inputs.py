"""What a model reads of a pattern and a problem: engine/planning/model_input.h has the same."""

import re

import numpy

SAID = ("k", "value_bytes", "tf32")  # by the problem, and not by the pattern
VALUE_BYTES = {"f64": 8, "f32": 4, "f16": 2, "bf16": 2}


def factors(text):
    """Of an input, (divides, name) from left to right."""
    return [(operator == "/", name) for operator, name in re.findall(r"(^|[*/])([^*/]+)", text)]


def inputs_of(pattern, names, problems):
    """For each of the problems, (k, value_bytes, tf32), its inputs; NaN where a feature is not
    known."""
    histogram = pattern.features["distance_histogram"]
    shares = {f"distance_{i}": count / max(sum(histogram), 1) for i, count in enumerate(histogram)}
    values = dict(pattern.features, **shares)
    parsed = [factors(name) for name in names]
    rows = []
    for said in problems:
        values.update(zip(SAID, said))
        rows.append([value_of(each, values) for each in parsed])
    return rows


def value_of(parsed, values):
    """0 where something is divided by 0."""
    value = 1.0
    for divides, name in parsed:
        number = float(values.get(name, numpy.nan))
        if divides and number == 0:
            return 0.0
        value = value / number if divides else value * number
    return value
