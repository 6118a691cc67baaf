"""Learns a model: for each group of problems a booster whose outputs are log2(time / default's time) of its candidates."""

import collections
import dataclasses
import itertools

import numpy
import xgboost

from selector.data import DISTANCES, Candidate, log_ratios
from selector.inputs import SAID, VALUE_BYTES, factors, inputs_of

CLIP = 1.5  # a candidate that is slower than this (log2) need not be told from one that is slower still
SEED = 19
THREADS = 2


@dataclasses.dataclass
class Settings:
    rounds: int = 40
    depth: int = 6
    rate: float = 0.15
    near: float = 0.35  # errors count in full where a candidate is this near the best (log2), less beyond
    far: float = 0.15  # what they count far from it
    common: float = 1.0  # what an error that all candidates of a row share counts, beside what tells them apart
    level_rounds: int = 0  # so many rounds before the others learn that shared error alone, by trees that are the same for all outputs
    level_depth: int = 4
    regret: float = 0.0  # weight of the expected regret beside the squared error
    temperature: float = 0.05
    gamma: float = 0.0
    child: float = 0.0  # least weight of a leaf, in rows of average weight
    coverage: float = 0.998  # candidates are taken until the best of them reaches this share of the oracle
    candidates: int = 32
    columns: float = 0.6
    rows: float = 0.8
    lamb: float = 1.0
    bins: int = 128


# Quotients and products, from left to right, which trees cannot make: what is near 1 where something is even, bytes that caches hold or not.
DERIVED = (
    "row_nonzeros_max/row_nonzeros_mean", "warp_load_max/warp_load_mean", "col_nonzeros_max*cols/nnz", "col_nonzeros_max/rows", "row_nonzeros_max/cols",
    "row_blocks_mean/row_nonzeros_mean", "warp_distinct_lines_mean/warp_lines_mean", "adjacent_distance_mean/row_blocks_mean", "rows/cols",
    "nnz/diagonals", "row_nonzeros_max/nnz", "square_products/nnz", "square_products/rows", "square_products_max*rows/square_products",
    "square_products_max/square_products", "square_products/square_compression/rows", "square_products/square_compression/nnz",
    "cols*k*value_bytes", "rows*k*value_bytes", "nnz*k*value_bytes", "nnz*k/rows", "k*value_bytes", "row_nonzeros_max*k*value_bytes")


def input_names(data):
    known = {name for pattern in data.patterns for name in pattern.features} - {"distance_histogram", "density_map"}
    derived = [text for text in DERIVED if all(name in known or name in SAID for _, name in factors(text))]
    return [*sorted(known), *(f"distance_{i}" for i in range(DISTANCES)), *derived, *SAID]


@dataclasses.dataclass
class Group:
    """All that was measured of an operation: a row for each pattern and problem."""
    operation: str
    transposed: bool
    problems: list  # by row
    patterns: list  # by row
    inputs: numpy.ndarray  # rows x inputs
    candidates: list
    ratios: numpy.ndarray  # rows x candidates, log2; NaN: not measured
    weights: numpy.ndarray  # by row, 1 in the mean

    @property
    def name(self):
        return self.operation + ("_transposed" if self.transposed else "")

    def rows(self, chosen):
        """A part of it, by indices."""
        return dataclasses.replace(self, problems=[self.problems[i] for i in chosen], patterns=[self.patterns[i] for i in chosen],
                                   inputs=self.inputs[chosen], ratios=self.ratios[chosen],
                                   weights=weights([self.patterns[i] for i in chosen]))


def weights(patterns):
    """By row: every family counts evenly, and within it every group, and within that every row."""
    groups = collections.defaultdict(collections.Counter)
    for pattern in patterns:
        groups[pattern.family][pattern.group] += 1
    weight = numpy.array([1 / (len(groups[p.family]) * groups[p.family][p.group]) for p in patterns])
    return weight / weight.mean() if patterns else weight


def group_of(data, operation, transposed, names):
    rows = [(pattern, problem) for pattern in data.patterns for problem in sorted(pattern.measured)
            if problem.operation == operation and problem.transposed == transposed and problem.type in VALUE_BYTES]
    ratios = [log_ratios(pattern.measured[problem]) for pattern, problem in rows]
    candidates = sorted({candidate for row in ratios for candidate in row})
    place = {candidate: i for i, candidate in enumerate(candidates)}
    table = numpy.full((len(rows), len(candidates)), numpy.nan)
    for i, row in enumerate(ratios):
        for candidate, ratio in row.items():
            table[i, place[candidate]] = ratio
    inputs = []
    for _, same in itertools.groupby(rows, key=lambda row: id(row[0])):
        same = list(same)
        inputs += inputs_of(same[0][0], names, [(problem.k, VALUE_BYTES[problem.type], problem.allow_tf32) for _, problem in same])
    inputs = numpy.array(inputs, dtype=numpy.float32)
    patterns = [pattern for pattern, _ in rows]
    return Group(operation, transposed, [problem for _, problem in rows], patterns, inputs, candidates, table, weights(patterns))


def best(ratios):
    """The oracle's log2 ratio by row: the default, 0, is a choice, too."""
    return numpy.fmin(numpy.nanmin(ratios, axis=1, initial=0), 0)


def choose_candidates(group, settings):
    """Indices of the candidates that together reach nearly what all do, the most useful first."""
    ratios = numpy.where(numpy.isnan(group.ratios), 0, numpy.minimum(group.ratios, 0))
    oracle, reached, chosen = ratios.min(axis=1, initial=0), numpy.zeros(len(ratios)), []
    for _ in range(min(settings.candidates, len(group.candidates))):
        if 2 ** -numpy.average(reached - oracle, weights=group.weights) >= settings.coverage:
            break
        gains = numpy.average(reached[:, None] - numpy.minimum(reached[:, None], ratios), axis=0, weights=group.weights)
        j = int(numpy.argmax(gains))
        if gains[j] <= 0:
            break
        chosen.append(j)
        reached = numpy.minimum(reached, ratios[:, j])
    return chosen or [0]


def objective(labels, emphasis, own, settings):
    """Squared error where something was measured, and the expected regret of choosing by softmax of the estimates."""
    measured = ~numpy.isnan(labels)
    targets = numpy.where(measured, labels, 0)
    weight = numpy.where(measured, emphasis, 0)

    def gradients(margins, _):
        margins = margins.reshape(targets.shape)
        error = margins - targets
        shared = (weight * error).sum(axis=1, keepdims=True) / total
        gradient = weight * (error - (1 - settings.common) * shared)
        hessian = weight.copy()
        if settings.regret:
            # Choices: the default, which is 0, and what was measured.
            scores = numpy.concatenate([numpy.zeros((len(margins), 1)), numpy.where(measured, margins, numpy.inf)], axis=1)
            scores = -(scores - scores.min(axis=1, keepdims=True)) / settings.temperature
            shares = numpy.exp(scores)
            shares /= shares.sum(axis=1, keepdims=True)
            cost = numpy.concatenate([numpy.zeros((len(margins), 1)), targets], axis=1)
            expected = (shares * cost).sum(axis=1, keepdims=True)
            pull = (-shares * (cost - expected) / settings.temperature)[:, 1:]
            gradient += settings.regret * pull * row
        return gradient.reshape(-1), numpy.maximum(hessian, 1e-6).reshape(-1)

    row = emphasis.max(axis=1, keepdims=True)
    total = weight.sum(axis=1, keepdims=True) + own[:, None] + 1e-12
    return gradients


def level_objective(labels, emphasis, own):
    """The shared error, alike for all outputs."""
    measured = ~numpy.isnan(labels)
    targets = numpy.where(measured, labels, 0)
    weight = numpy.where(measured, emphasis, 0)
    row = weight.max(axis=1, keepdims=True) + 1e-6

    def gradients(margins, _):
        error = margins.reshape(targets.shape) - targets
        shared = (weight * error).sum(axis=1, keepdims=True) / (weight.sum(axis=1, keepdims=True) + own[:, None] + 1e-12)
        return numpy.broadcast_to(row * shared, targets.shape).reshape(-1), numpy.broadcast_to(row, targets.shape).reshape(-1)

    return gradients


def emphasis_of(labels, group, settings):
    """By row and candidate, what an error counts: by the row's weight, and most near the row's best."""
    gap = labels - best(group.ratios)[:, None]
    return nearness(gap, settings) * group.weights[:, None]


def nearness(gap, settings):
    return settings.far + (1 - settings.far) * numpy.exp(-((numpy.nan_to_num(gap) / settings.near) ** 2))


def fit(group, settings, base=None, chosen=None):
    """A booster and the indices of its candidates in the group's (-1: not among them)."""
    if chosen is None:
        chosen = choose_candidates(group, settings)
    labels = numpy.minimum(columns(group.ratios, chosen), CLIP)
    own = nearness(-best(group.ratios), settings) * group.weights  # the default's, whose estimate is always right
    return boost(group.inputs, labels, emphasis_of(labels, group, settings), own, settings, base), chosen


def columns(table, chosen):
    """Some columns of a table; NaN where an index is -1."""
    padded = numpy.concatenate([table, numpy.full((len(table), 1), numpy.nan)], axis=1)
    return padded[:, chosen]


def boost(inputs, labels, emphasis, own, settings, base=None):
    """A booster with an output for each column of the labels."""
    parameters = {"num_class": labels.shape[1], "max_depth": settings.depth, "eta": settings.rate, "tree_method": "hist",
                  "max_bin": settings.bins, "subsample": settings.rows, "colsample_bynode": settings.columns, "lambda": settings.lamb,
                  "min_child_weight": settings.child, "gamma": settings.gamma, "base_score": 0, "seed": SEED,
                  "disable_default_eval_metric": 1, "nthread": THREADS}
    matrix = xgboost.DMatrix(inputs)
    if settings.level_rounds and base is None:
        level = dict(parameters, max_depth=settings.level_depth, subsample=1, colsample_bynode=1)
        base = xgboost.train(level, matrix, settings.level_rounds, obj=level_objective(labels, emphasis, own))
    return xgboost.train(parameters, matrix, settings.rounds, obj=objective(labels, emphasis, own, settings), xgb_model=base)


def predict(booster, inputs):
    """rows x outputs."""
    margins = booster.predict(xgboost.DMatrix(inputs), output_margin=True)
    return margins.reshape(len(inputs), -1)
