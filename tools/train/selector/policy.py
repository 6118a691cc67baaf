"""What trying candidates by estimate comes to, simulated on what was measured.

Candidates are tried one after the other, by what they are expected to gain over `requests` requests of each class less what building their recipe and
trying them takes, until none is worth that. A layout is built once for all its kernels and classes. An estimate is lognormal with the deviations that cross-validation found;
each trial tells of the error that all estimates of its class share. Another layout than plain CSR must gain LEAST_GAIN.
"""

import dataclasses
import math

from selector.learn import VALUE_BYTES

TURNS = 8  # of the default and the candidate, in a trial; one if the candidate is far behind after it
LEAST_GAIN = 0.03
MOST_TRIED = 12  # candidates of a class
REQUESTS = (1_000, 10_000, 100_000, 1_000_000)


@dataclasses.dataclass
class Option:
    """A candidate of a class of a pattern."""
    recipe: str
    estimate: float  # log2 of its time over the default's
    deviation: float
    ratio: float  # as measured
    default_seconds: float
    trial_seconds: float


def normal(z):
    return 0.5 * math.erfc(-z / math.sqrt(2))


@dataclasses.dataclass
class SharedError:
    """What all estimates of a class are off by, log2: normal, with the variance that is expected before anything was tried."""
    variance: float
    mean: float = 0.0

    def learn(self, option):
        """From a trial."""
        own = max(option.deviation, 1e-3) ** 2
        gain = self.variance / (self.variance + own)
        self.mean += gain * (math.log2(option.ratio) - option.estimate - self.mean)
        self.variance *= 1 - gain


def expected_gain(option, best, shared):
    """By how much of the default's time the candidate is expected to be faster than `best`, where it is so by enough."""
    deviation = math.sqrt(max(option.deviation, 1e-3) ** 2 + shared.variance) * math.log(2)
    mean = (option.estimate + shared.mean) * math.log(2)
    threshold = best * (1 if option.recipe == "csr" else 1 - LEAST_GAIN)
    z = (math.log(threshold) - mean) / deviation
    return max(best * normal(z) - math.exp(mean + deviation**2 / 2) * normal(z - deviation), 0)


def simulate(classes, shared, estimated, building, requests, most=MOST_TRIED):
    """What trying comes to: for each class the least ratio reached, seconds of building, of trials, and how many candidates were tried.

    classes: lists of options; shared: the deviation of what a class's estimates have in common; estimated and building: seconds to build a recipe, as estimated and as measured, 0 if it is not there.
    """
    left = [list(options) for options in classes]
    errors = [SharedError(deviation**2) for deviation in shared]
    best = [1.0] * len(classes)
    tried, built, built_seconds, trial_seconds = [0] * len(classes), {"csr"}, 0.0, 0.0
    while True:
        worth = {}  # by recipe: the class's best candidates, as (net gain, class, option)
        for index, options in enumerate(left):
            if tried[index] >= most:
                continue
            of_class = {}
            for option in options:
                net = expected_gain(option, best[index], errors[index]) * requests * option.default_seconds - option.trial_seconds
                if net > 0 and (option.recipe not in of_class or net > of_class[option.recipe][0]):
                    of_class[option.recipe] = (net, index, option)
            for recipe, one in of_class.items():
                worth.setdefault(recipe, []).append(one)
        nets = {recipe: sum(net for net, _, _ in ones) - (0 if recipe in built else estimated.get(recipe, 0)) for recipe, ones in worth.items()}
        recipe = max(nets, key=nets.get, default=None)
        if recipe is None or nets[recipe] <= 0:
            return best, built_seconds, trial_seconds, sum(tried)
        if recipe not in built:
            built.add(recipe)
            built_seconds += building.get(recipe, 0)
        for _, index, option in worth[recipe]:
            left[index].remove(option)
            tried[index] += 1
            errors[index].learn(option)
            trial_seconds += option.trial_seconds
            if option.ratio < best[index] * (1 if option.recipe == "csr" else 1 - LEAST_GAIN):
                best[index] = option.ratio


def trial(m):
    """Seconds."""
    return (m.runs if m.censored else TURNS) * (m.median_ms + m.csr_ms) / 1e3


def everything(measured):
    """(seconds of building, seconds of trials) of trying all that was measured, a list of dicts of measurements by candidate."""
    recipes = {candidate.recipe: m.preparation_ms / 1e3 for of in measured for candidate, m in of.items()}
    trials = sum(trial(m) for of in measured for m in of.values())
    return sum(recipes.values()), trials


def lines(judged, building, seconds):
    """A line for each pattern, number of requests and preparation: of every class of a size of values, and of each by itself.

    judged: each group with its estimates and deviations; building, seconds: the group of recipes and what is estimated of it.
    """
    rows = {}
    for one in judged:
        group, table, spread = one.group, one.estimates, one.deviations
        for i, (pattern, problem) in enumerate(zip(group.patterns, group.problems)):
            measured = pattern.measured[problem]
            options = [Option(candidate.recipe, float(table[i, j]), float(spread[j]), 2 ** float(group.ratios[i, j]), measured[candidate].csr_ms / 1e3,
                              trial(measured[candidate]))
                       for j, candidate in enumerate(group.candidates) if group.ratios[i, j] == group.ratios[i, j] and table[i, j] == table[i, j]]
            oracle = 2 ** min(0.0, *(float(r) for r in group.ratios[i] if r == r), 0.0)
            rows.setdefault((pattern.name, problem.type), []).append((pattern, problem, options, oracle, one.shared))
    known = {}
    for i, pattern in enumerate(building.patterns):
        known[pattern.name, float(building.inputs[i, -2])] = {
            candidate.recipe: 2 ** float(seconds[i, j]) for j, candidate in enumerate(building.candidates) if seconds[i, j] == seconds[i, j]}
    for (name, kind), classes in rows.items():
        estimated = known.get((name, float(VALUE_BYTES[kind])), {})
        one = [[row] for row in classes if row[1].operation == "spmm" and not row[1].transposed and row[1].k == 128 and not row[1].allow_tf32]
        for preparation, chosen in [("all classes", classes), *(("one class", row) for row in one)]:
            measured = [pattern.measured[problem] for pattern, problem, *_ in chosen]
            actual = {candidate.recipe: m.preparation_ms / 1e3 for of in measured for candidate, m in of.items()}
            build, trials = everything(measured)
            for requests in REQUESTS:
                best, built_seconds, trial_seconds, tried = simulate([row[2] for row in chosen], [row[4] for row in chosen], estimated, actual, requests)
                share = math.exp(sum(math.log(oracle / reached) for reached, (_, _, _, oracle, _) in zip(best, chosen)) / len(chosen))
                ideal = sum(oracle * min(m.csr_ms for m in pattern.measured[problem].values()) for pattern, problem, _, oracle, _ in chosen) / 1e3
                yield {"line": "policy", "preparation": preparation, "type": kind, "pattern": name, "family": chosen[0][0].family, "requests": requests,
                       "share": round(share, 4), "tried": tried, "seconds": [float(f"{s:.3g}") for s in (built_seconds, trial_seconds, build, trials, ideal)]}
