"""The seconds that building each pipeline's layout takes, learned in the same way: a row for each pattern and size of values, an output for each pipeline."""

import dataclasses

import numpy

from selector import learn
from selector.data import Candidate

LEAST = 3e-6  # seconds: what building takes at the least, for the logarithm
SETTINGS = learn.Settings(rounds=16, depth=3, rate=0.35, gamma=2.0)


def group_of(data, names):
    """A group whose candidates are pipelines, and whose ratios are log2(seconds)."""
    rows = {}
    for pattern in data.patterns:
        for problem, measured in sorted(pattern.measured.items()):
            if problem.type not in learn.VALUE_BYTES:
                continue
            for candidate, m in measured.items():
                if m.preparation_ms > 0:
                    size = learn.VALUE_BYTES[problem.type]
                    rows.setdefault((id(pattern), size), (pattern, size, {}))[2].setdefault(candidate.pipeline, []).append(m.preparation_ms / 1e3)
    rows = list(rows.values())
    pipelines = sorted({pipeline for _, _, seconds in rows for pipeline in seconds})
    table = numpy.full((len(rows), len(pipelines)), numpy.nan)
    for i, (_, _, seconds) in enumerate(rows):
        for pipeline, values in seconds.items():
            table[i, pipelines.index(pipeline)] = numpy.log2(max(float(numpy.median(values)), LEAST))
    # K and tf32 say nothing of it: they are the same in all rows, so that no tree asks for them.
    inputs = numpy.array([learn.inputs_of(pattern, names, [(0, size, 0)])[0] for pattern, size, _ in rows], dtype=numpy.float32)
    patterns = [pattern for pattern, _, _ in rows]
    return learn.Group("building", False, [None] * len(rows), patterns, inputs, [Candidate(pipeline, "") for pipeline in pipelines], table,
                       learn.weights(patterns))


def fit(group, chosen, base=None):
    """A booster with an output for each of the pipelines `chosen` (indices; -1: what was not built here)."""
    return learn.boost(group.inputs, learn.columns(group.ratios, chosen), numpy.broadcast_to(group.weights[:, None], (len(group.inputs), len(chosen))),
                       group.weights, SETTINGS, base=base)


def out_of_fold(group, chosen, parts):
    """rows x pipelines: what a model that saw no relative estimates."""
    estimates = numpy.full(group.ratios.shape, numpy.nan)
    for held, seen in parts:
        if not held or not seen:
            continue
        booster = fit(group.rows(seen), chosen)
        estimates[numpy.ix_(held, chosen)] = learn.predict(booster, group.inputs[held])
    return estimates
