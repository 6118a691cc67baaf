"""Cross-validation by family, and what came of it."""

import numpy

from selector import learn
from selector.data import log_ratios

FOLDS = 8
# Real patterns that are akin: names that begin alike.
RELATIVES = ("4elt", "add32", "bcsstk", "BOYD", "ca-", "cnr", "CONT", "cora", "CVXQP", "delaunay", "dnn-n1024", "email", "gowalla", "musae", "pubmed", "QSHIP", "rajat", "soc",
             "sparse-images", "STCQP", "wiki", "yelp")
TRIED = (1, 3)
SAME_WITH_TF32 = ("cuda.csr.", "cuda.dcsr.", "cuda.row_panels.fma")
NEAR = numpy.log2(1.03)
LEAST_DEVIATION = 0.02


def household(pattern):
    """What is never split: a family; of real patterns those that are akin."""
    if pattern.family != "real":
        return pattern.family
    name = pattern.group.removeprefix("real-").removeprefix("real-")
    return "real-" + next((relative for relative in RELATIVES if name.startswith(relative)), name)


def folds(patterns, count=FOLDS):
    """A list of sets of households, about equally many patterns in each."""
    sizes = {}
    for pattern in patterns:
        sizes[household(pattern)] = sizes.get(household(pattern), 0) + 1
    split = [set() for _ in range(min(count, len(sizes)))]
    filled = [0] * len(split)
    for name in sorted(sizes, key=lambda name: (-sizes[name], name)):
        least = filled.index(min(filled))
        split[least].add(name)
        filled[least] += sizes[name]
    return split


def parts(patterns, split):
    """Of rows with these patterns, (held out, seen) indices for each of folds(): no household in both."""
    names = [household(pattern) for pattern in patterns]
    return [([i for i, name in enumerate(names) if name in part], [i for i, name in enumerate(names) if name not in part]) for part in split]


def out_of_fold(group, settings, split, base=None, chosen=None):
    """rows x candidates of the group: what a model that saw no relative estimates; NaN: not one of its candidates."""
    estimates = numpy.full(group.ratios.shape, numpy.nan)
    for held, seen in parts(group.patterns, split):
        if not held or not seen:
            continue
        booster, outputs = learn.fit(group.rows(seen), settings, base, chosen)
        margins = learn.predict(booster, group.inputs[held])
        for output, candidate in enumerate(outputs):
            if candidate >= 0:
                estimates[held, candidate] = margins[:, output]
    return estimates


def across(group, learned, settings, split):
    """rows x candidates of the group: what a model estimates that learned from another group's rows, of another device, and saw no relative."""
    estimates = numpy.full(group.ratios.shape, numpy.nan)
    place = {candidate: index for index, candidate in enumerate(group.candidates)}
    for part in split:
        held = [i for i, pattern in enumerate(group.patterns) if household(pattern) in part]
        seen = [i for i, pattern in enumerate(learned.patterns) if household(pattern) not in part]
        if not held or not seen:
            continue
        booster, outputs = learn.fit(learned.rows(seen), settings)
        margins = learn.predict(booster, group.inputs[held])
        for output, candidate in enumerate(outputs):
            if learned.candidates[candidate] in place:
                estimates[held, place[learned.candidates[candidate]]] = margins[:, output]
    return estimates


def order(group, estimates):
    """By row, the candidates that were measured and are estimated, most promising first; the default, number -1, where its estimate, 0, puts it."""
    known = numpy.where(numpy.isnan(group.ratios) | numpy.isnan(estimates), numpy.inf, estimates)
    known = numpy.concatenate([known, numpy.zeros((len(known), 1))], axis=1)
    places = numpy.argsort(known, axis=1, kind="stable")
    return [[int(j) if j < group.ratios.shape[1] else -1 for j in row if numpy.isfinite(known[i, j])] for i, row in enumerate(places)]


def first(group, estimates, tried=1):
    """By row, the log2 regret of the fastest of the first `tried` by estimate."""
    ratios = numpy.concatenate([group.ratios, numpy.zeros((len(group.ratios), 1))], axis=1)
    return numpy.array([ratios[i, row[:tried]].min() for i, row in enumerate(order(group, estimates))]) - learn.best(group.ratios)


def class_name(problem):
    kind = "tf32" if problem.allow_tf32 else problem.type
    return kind if problem.operation == "spgemm" else f"{kind} K={problem.k}"


def fixed(group):
    """By row, the log2 regret of the one choice that is best over its kind of problem, the default where it was not measured."""
    regret = numpy.zeros(len(group.ratios))
    classes = [class_name(problem) for problem in group.problems]
    for name in set(classes):
        rows = [i for i, other in enumerate(classes) if other == name]
        ratios = numpy.nan_to_num(group.ratios[rows])
        weights = group.weights[rows] / group.weights[rows].sum()
        means = weights @ ratios
        j = int(numpy.argmin(means))
        regret[rows] = numpy.where(means[j] < 0, ratios[:, j], 0)
    return regret - learn.best(group.ratios)


def deviations(group, estimates):
    """(by candidate, shared): the standard deviations of the errors, of what is a candidate's own, and of what all of a row have in common (the default's error, above all).

    Only what is, or is thought to be, anywhere near the default or better counts.
    """
    errors = numpy.minimum(estimates, learn.CLIP) - numpy.minimum(group.ratios, learn.CLIP)
    errors[~(numpy.minimum(estimates, group.ratios) < 0.5)] = numpy.nan
    known = ~numpy.isnan(errors)
    errors = numpy.where(known, errors, 0)
    squares = errors**2
    # The mean over rows of the products of all pairs of a row's errors.
    pairs = known.sum(axis=1) * (known.sum(axis=1) - 1.0)
    products = errors.sum(axis=1) ** 2 - squares.sum(axis=1)
    weighed = group.weights * pairs
    shared = max(float((group.weights * products).sum() / weighed.sum()), 0.0) if weighed.sum() else 0.0
    own = numpy.full(group.ratios.shape[1], 0.3)
    for j in range(group.ratios.shape[1]):
        if known[:, j].sum() >= 8:
            variance = numpy.average(squares[known[:, j], j], weights=group.weights[known[:, j]])
            own[j] = numpy.sqrt(max(variance - shared, LEAST_DEVIATION**2))
    return own, shared**0.5


def lines(group, estimates):
    """What came of it, a line for each row: log2 regrets of the default, of the best fixed choice, of the first choice and of the best of the first three."""
    regrets = [-learn.best(group.ratios), fixed(group), *(first(group, estimates, tried) for tried in TRIED)]
    for i, (pattern, problem) in enumerate(zip(group.patterns, group.problems)):
        baseline = min(m.csr_ms for m in pattern.measured[problem].values())
        yield {"line": "choice", "group": group.name, "class": class_name(problem), "pattern": pattern.name, "family": pattern.family,
               "default_ms": float(f"{baseline:.3g}"), "regrets": [round(float(regret[i]), 3) + 0.0 for regret in regrets]}


def again(group, estimates, second):
    """What the model chooses beside what a whole trial would have chosen, both timed once more. A line for each row that `second`, measurements of the same
    candidates by another run, has, too: log2 of the first choice's time, and of that of the fastest, by the first measurement, of the first three, over the time of the
    fastest of all by the first measurement; all three times are those of the second."""
    measured = {pattern.name: pattern.measured for pattern in second.patterns}
    for i, (pattern, problem) in enumerate(zip(group.patterns, group.problems)):
        if problem not in measured.get(pattern.name, {}):
            continue
        then = log_ratios(measured[pattern.name][problem])
        once = {-1: 0.0} | {j: ratio for j, ratio in enumerate(group.ratios[i]) if not numpy.isnan(ratio) and group.candidates[j] in then}
        twice = {j: then[group.candidates[j]] if j >= 0 else 0.0 for j in once}
        # A candidate that is not estimated comes last.
        places = sorted(once, key=lambda j: 0.0 if j < 0 else numpy.nan_to_num(estimates[i, j], nan=numpy.inf))
        fastest = min(once, key=once.get)
        regrets = [twice[min(places[:tried], key=once.get)] - twice[fastest] for tried in TRIED]
        yield {"line": "again", "group": group.name, "class": class_name(problem), "pattern": pattern.name, "family": pattern.family,
               "default_ms": float(f"{min(m.csr_ms for m in pattern.measured[problem].values()):.3g}"), "candidates": len(once),
               "regrets": [round(float(regret), 3) + 0.0 for regret in regrets]}


def noise(data):
    """What choosing by measurements themselves comes to: SpMM's kernels that are the same with TF32 allowed were measured twice at a K. A line for each pattern:
    log2 regrets, by the second measurement, of the fastest, and of the best of the fastest three, by the first."""
    for pattern in data.patterns:
        for problem, measured in pattern.measured.items():
            again = pattern.measured.get(problem._replace(allow_tf32=True))
            if problem.operation != "spmm" or problem.allow_tf32 or again is None:
                continue
            same = [candidate for candidate in measured if candidate in again and candidate.kernel.startswith(SAME_WITH_TF32)]
            ones = {candidate: m.median_ms / m.csr_ms for candidate, m in measured.items() if candidate in same}
            others = {candidate: again[candidate].median_ms / again[candidate].csr_ms for candidate in same}
            if len(same) < 2:
                continue
            least = min(others.values())
            places = sorted(ones, key=ones.get)
            regrets = [numpy.log2(min(others[candidate] for candidate in places[:tried]) / least) for tried in TRIED]
            yield {"line": "noise", "class": class_name(problem), "pattern": pattern.name, "family": pattern.family,
                   "default_ms": float(f"{min(m.csr_ms for m in measured.values()):.3g}"), "candidates": len(same),
                   "regrets": [round(float(regret), 3) + 0.0 for regret in regrets]}


def summary(group, estimates):
    """Shares of the oracle for people, by kind of problem and over all: the manifest's held_out."""
    classes = [class_name(problem) for problem in group.problems]
    regrets = {"default": -learn.best(group.ratios), "fixed": fixed(group), "first": first(group, estimates, 1), "first_three": first(group, estimates, 3)}
    result = {}
    for name in ["all", *sorted(set(classes))]:
        rows = [i for i, other in enumerate(classes) if name in ("all", other)]
        entry = {"patterns": len({id(group.patterns[i]) for i in rows})}
        weights = group.weights[rows]
        for choice, regret in regrets.items():
            entry[choice] = round(float(2 ** -numpy.average(regret[rows], weights=weights)), 4)
        entry["first_worst_twentieth"] = round(float(numpy.quantile(2 ** -regrets["first"][rows], 0.05)), 4)
        entry["first_within_3_percent"] = round(float((regrets["first"][rows] < NEAR).mean()), 4)
        result[name] = entry
    return result
