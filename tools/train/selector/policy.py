"""What trying candidates by estimate comes to, simulated on what was measured.

Candidates are tried one after the other, by what they are expected to gain over `requests` requests of each problem signature less what building their pipeline and
trying them takes, until none is worth that. A layout is built once for all its kernels and signatures. An estimate is lognormal with the deviations that cross-validation found;
each trial tells of the error that all estimates of its signature share. Another layout than plain CSR must gain LEAST_GAIN.
"""

import dataclasses
import math

from selector.learn import VALUE_BYTES

TURNS = 8  # of the default and the candidate, in a trial; one if the candidate is far behind after it
LEAST_GAIN = 0.03
MOST_TRIED = 12  # candidates of a signature
REQUESTS = (1_000, 10_000, 100_000, 1_000_000)


@dataclasses.dataclass
class Option:
    """A candidate of a signature of a pattern."""
    pipeline: str
    estimate: float  # log2 of its time over the default's
    deviation: float
    ratio: float  # as measured
    default_seconds: float
    trial_seconds: float


def normal(z):
    return 0.5 * math.erfc(-z / math.sqrt(2))


@dataclasses.dataclass
class SharedError:
    """What all estimates of a signature are off by, log2: normal, with the variance that is expected before anything was tried."""
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
    threshold = best * (1 if option.pipeline == "csr" else 1 - LEAST_GAIN)
    z = (math.log(threshold) - mean) / deviation
    return max(best * normal(z) - math.exp(mean + deviation**2 / 2) * normal(z - deviation), 0)


def simulate(signatures, shared, estimated, building, requests, most=MOST_TRIED):
    """What trying comes to: for each signature the least ratio reached, seconds of building, of trials, and how many candidates were tried.

    signatures: lists of options; shared: the deviation of what a signature's estimates have in common; estimated and building: seconds to build a pipeline, as estimated and as measured, 0 if it is not there.
    """
    left = [list(options) for options in signatures]
    errors = [SharedError(deviation**2) for deviation in shared]
    best = [1.0] * len(signatures)
    tried, built, built_seconds, trial_seconds = [0] * len(signatures), {"csr"}, 0.0, 0.0
    while True:
        worth = {}  # by pipeline: the signature's best candidates, as (net gain, signature, option)
        for index, options in enumerate(left):
            if tried[index] >= most:
                continue
            of_signature = {}
            for option in options:
                net = expected_gain(option, best[index], errors[index]) * requests * option.default_seconds - option.trial_seconds
                if net > 0 and (option.pipeline not in of_signature or net > of_signature[option.pipeline][0]):
                    of_signature[option.pipeline] = (net, index, option)
            for pipeline, one in of_signature.items():
                worth.setdefault(pipeline, []).append(one)
        nets = {pipeline: sum(net for net, _, _ in ones) - (0 if pipeline in built else estimated.get(pipeline, 0)) for pipeline, ones in worth.items()}
        pipeline = max(nets, key=nets.get, default=None)
        if pipeline is None or nets[pipeline] <= 0:
            return best, built_seconds, trial_seconds, sum(tried)
        if pipeline not in built:
            built.add(pipeline)
            built_seconds += building.get(pipeline, 0)
        for _, index, option in worth[pipeline]:
            left[index].remove(option)
            tried[index] += 1
            errors[index].learn(option)
            trial_seconds += option.trial_seconds
            if option.ratio < best[index] * (1 if option.pipeline == "csr" else 1 - LEAST_GAIN):
                best[index] = option.ratio


def trial(m):
    """Seconds."""
    return (m.runs if m.censored else TURNS) * (m.median_ms + m.csr_ms) / 1e3


def everything(measured):
    """(seconds of building, seconds of trials) of trying all that was measured, a list of dicts of measurements by candidate."""
    pipelines = {candidate.pipeline: m.preparation_ms / 1e3 for of in measured for candidate, m in of.items()}
    trials = sum(trial(m) for of in measured for m in of.values())
    return sum(pipelines.values()), trials


def lines(judged, building, seconds):
    """A line for each pattern, number of requests and preparation: of every signature of a size of values, and of each by itself.

    judged: each group with its estimates and deviations; building, seconds: the group of pipelines and what is estimated of it.
    """
    rows = {}
    for one in judged:
        group, table, spread = one.group, one.estimates, one.deviations
        for i, (pattern, problem) in enumerate(zip(group.patterns, group.problems)):
            measured = pattern.measured[problem]
            options = [Option(candidate.pipeline, float(table[i, j]), float(spread[j]), 2 ** float(group.ratios[i, j]), measured[candidate].csr_ms / 1e3,
                              trial(measured[candidate]))
                       for j, candidate in enumerate(group.candidates) if group.ratios[i, j] == group.ratios[i, j] and table[i, j] == table[i, j]]
            oracle = 2 ** min(0.0, *(float(r) for r in group.ratios[i] if r == r), 0.0)
            rows.setdefault((pattern.name, problem.type), []).append((pattern, problem, options, oracle, one.shared))
    known = {}
    for i, pattern in enumerate(building.patterns):
        known[pattern.name, float(building.inputs[i, -2])] = {
            candidate.pipeline: 2 ** float(seconds[i, j]) for j, candidate in enumerate(building.candidates) if seconds[i, j] == seconds[i, j]}
    for (name, kind), signatures in rows.items():
        estimated = known.get((name, float(VALUE_BYTES[kind])), {})
        one = [[row] for row in signatures if row[1].operation == "spmm" and not row[1].transposed and row[1].k == 128 and not row[1].allow_tf32]
        for preparation, chosen in [("all classes", signatures), *(("one class", row) for row in one)]:
            measured = [pattern.measured[problem] for pattern, problem, *_ in chosen]
            actual = {candidate.pipeline: m.preparation_ms / 1e3 for of in measured for candidate, m in of.items()}
            build, trials = everything(measured)
            for requests in REQUESTS:
                best, built_seconds, trial_seconds, tried = simulate([row[2] for row in chosen], [row[4] for row in chosen], estimated, actual, requests)
                share = math.exp(sum(math.log(oracle / reached) for reached, (_, _, _, oracle, _) in zip(best, chosen)) / len(chosen))
                ideal = sum(oracle * min(m.csr_ms for m in pattern.measured[problem].values()) for pattern, problem, _, oracle, _ in chosen) / 1e3
                yield {"line": "policy", "preparation": preparation, "type": kind, "pattern": name, "family": chosen[0][0].family, "requests": requests,
                       "share": round(share, 4), "tried": tried, "seconds": [float(f"{s:.3g}") for s in (built_seconds, trial_seconds, build, trials, ideal)]}
