"""From measurements to a model."""

import dataclasses

import numpy

from selector import building, judge, learn, model, policy
from selector.data import BadData, Candidate

OPERATIONS = (("spmm", False), ("spmm", True), ("sddmm", False), ("spgemm", False))
LEAST_PATTERNS = 8

SETTINGS = {  # by kind of device, then by group: as good as cross-validation found, in files that are small enough for packages
    "cuda": {
        "spmm": learn.Settings(rounds=40, depth=6, rate=0.15, coverage=0.995, common=0.05, near=0.4, gamma=0.35, level_rounds=10,
                               level_depth=3),
        "spmm_transposed": learn.Settings(rounds=40, depth=6, rate=0.15, coverage=0.9995, common=0.05, near=0.25, gamma=0.3, level_rounds=12,
                                          level_depth=3),
        "sddmm": learn.Settings(rounds=40, depth=6, rate=0.15, coverage=0.998, common=0.05, near=0.25, gamma=0.13),
        "spgemm": learn.Settings(rounds=50, depth=4, rate=0.12, coverage=0.998, common=0.1, near=0.35, gamma=0.06, level_rounds=8,
                                 level_depth=3),
    },
    "cpu": {
        "spmm": learn.Settings(rounds=50, depth=6, rate=0.12, coverage=0.998, near=0.35, gamma=0.1),
        "spmm_transposed": learn.Settings(rounds=20, depth=4, rate=0.2, near=0.35, gamma=0.2),
        "sddmm": learn.Settings(rounds=40, depth=5, rate=0.12, coverage=0.998, near=0.35, gamma=0.05),
        "spgemm": learn.Settings(rounds=40, depth=4, rate=0.12, coverage=0.998, common=0.3, near=0.35, gamma=0.03),
    },
}
WARM = {"rounds": 16, "rate": 0.12}  # beyond the rounds of the model that is gone on with


@dataclasses.dataclass
class Judged:
    """A group, its estimates (out of fold unless a model was given), and their deviations."""
    group: learn.Group
    estimates: numpy.ndarray
    deviations: numpy.ndarray  # by candidate, log2
    shared: float = 0  # of what all candidates of a row have in common


def groups_of(data, names):
    for operation, transposed in OPERATIONS:
        group = learn.group_of(data, operation, transposed, names)
        if group.problems and group.candidates:
            yield group


def settings_of(data, group, warm):
    settings = SETTINGS[data.device.kind][group.name]
    return dataclasses.replace(settings, **WARM) if warm else settings


def check_enough(data):
    if len(data.patterns) < LEAST_PATTERNS:
        raise BadData(f"{len(data.patterns)} patterns with features and measurements: at least {LEAST_PATTERNS} are needed to learn and to judge")
    if len({judge.household(pattern) for pattern in data.patterns}) < 2:
        raise BadData("all patterns are of one family: nothing would be left to judge by")


def check_same_kernels(data, learned):
    here, there = data.device, learned.device
    if (here.kind, here.kernels) != (there.kind, there.kernels):
        raise BadData(f"measured on a {here.kind} device with version {here.kernels} of the kernels, and learned on a {there.kind} device "
                      f"with version {there.kernels}")


def check_fits(data, base):
    device = base.manifest["device"]
    if device["kind"] != data.device.kind:
        raise BadData(f"the model to go on with is of a {device['kind']} device, the measurements are of a {data.device.kind} device")
    if base.manifest["kernels"] != data.device.kernels:
        raise BadData(f"the model to go on with is of version {base.manifest['kernels']} of the kernels, the measurements are of {data.device.kernels}")
    # Whoever goes on with a model has the same inputs.
    known = set(learn.input_names(data))
    unknown = [name for name in base.manifest["inputs"] if name not in known]
    if unknown:
        raise BadData(f"the model to go on with has inputs that the measurements have not: {', '.join(unknown)}")


def cross_validate(data, base=None):
    """Estimates out of fold: of each group, and of building; base: a model to go on with."""
    names = base.manifest["inputs"] if base else learn.input_names(data)
    split = judge.folds(data.patterns)
    judged = []
    for group in groups_of(data, names):
        entry = base and base.group(group.operation, group.transposed)
        booster, chosen = start(base, entry, group)
        estimates = judge.out_of_fold(group, settings_of(data, group, entry), split, booster, chosen)
        judged.append(Judged(group, estimates, *judge.deviations(group, estimates)))
    pipelines = building.group_of(data, names)
    if not judged or not pipelines.candidates:
        raise BadData("nothing was measured but plain CSR: there is nothing to choose between")
    seconds = building.out_of_fold(pipelines, list(range(len(pipelines.candidates))), judge.parts(pipelines.patterns, split))
    return judged, Judged(pipelines, seconds, numpy.sqrt(numpy.nan_to_num(numpy.nanmean((seconds - pipelines.ratios) ** 2, axis=0), nan=1.0)))


def start(base, entry, group):
    """The booster to go on with and which of the group's candidates its outputs are; (None, None) to begin anew."""
    if not entry:
        return None, None
    place = {candidate: index for index, candidate in enumerate(group.candidates)}
    return base.boosters[entry["file"]], [place.get(candidate, -1) for candidate in model.candidates_of(entry)]


def judge_model(data, given):
    """Estimates of a model that is there."""
    names = given.manifest["inputs"]
    judged = []
    for group in groups_of(data, names):
        estimates = model.estimates(given, group)
        judged.append(Judged(group, estimates, *judge.deviations(group, estimates)))
    return judged


def judge_across(data, learned):
    """Estimates for one device by models of another's measurements that had not seen the family."""
    names = [name for name in learn.input_names(learned) if name in set(learn.input_names(data))]
    split = judge.folds(learned.patterns + [pattern for pattern in data.patterns if pattern.name not in {p.name for p in learned.patterns}])
    of = {(group.operation, group.transposed): group for group in groups_of(learned, names)}
    judged = []
    for group in groups_of(data, names):
        if (group.operation, group.transposed) in of:
            base = of[group.operation, group.transposed]
            estimates = judge.across(group, base, settings_of(learned, base, None), split)
            judged.append(Judged(group, estimates, *judge.deviations(group, estimates)))
    return judged


def train(data, name, base=None):
    """(manifest, boosters by file, what cross-validation found: groups, building) of a model of all data."""
    check_enough(data)
    if base:
        check_fits(data, base)
    names = base.manifest["inputs"] if base else learn.input_names(data)
    judged, pipelines = cross_validate(data, base)
    entries, boosters = [], {}
    for one in judged:
        group = one.group
        old = base and base.group(group.operation, group.transposed)
        booster, chosen = learn.fit(group, settings_of(data, group, old), *start(base, old, group))
        entry = model.group_entry(group, chosen, one.deviations, one.shared, old)
        entries.append(entry)
        boosters[entry["file"]] = booster
    if base:  # what was not measured here stays as it was
        for entry in base.manifest["groups"]:
            if entry["file"] not in boosters:
                entries.append(entry)
                boosters[entry["file"]] = base.boosters[entry["file"]]
    built, booster = train_building(pipelines, entries, base)
    boosters["building.ubj"] = booster
    manifest = {
        "name": name, "device": {"kind": data.device.kind, "model": data.device.model}, "kernels": data.device.kernels, "inputs": names,
        "groups": entries, "building": {"file": "building.ubj", "recipes": built},
        "data": {"digest": model.data_digest(data), "patterns": len(data.patterns),
                 "families": len({pattern.family for pattern in data.patterns}), "measurements": data.measurements(),
                 "most_nonzeros": max(pattern.features.get("nnz", 0) for pattern in data.patterns)},
        "held_out": {one.group.name: judge.summary(one.group, one.estimates) for one in judged},
    }
    return manifest, boosters, judged, pipelines


def train_building(pipelines, entries, base):
    """The manifest's list of pipelines and their booster: of those that candidates need."""
    place = {candidate.pipeline: index for index, candidate in enumerate(pipelines.group.candidates)}
    if base:
        old = base.manifest["building"]
        wanted, booster = [pipeline["recipe"] for pipeline in old["recipes"]], base.boosters[old["file"]]
        spread = {pipeline["recipe"]: pipeline["deviation"] for pipeline in old["recipes"]}
    else:
        used = {candidate["recipe"] for entry in entries for candidate in entry["candidates"]}
        wanted, booster, spread = sorted(used & set(place)), None, {}
    spread |= {pipeline: round(float(pipelines.deviations[index]), 3) for pipeline, index in place.items() if pipeline not in spread}
    if any(pipeline in place for pipeline in wanted):
        booster = building.fit(pipelines.group, [place.get(pipeline, -1) for pipeline in wanted], booster)
    return [{"recipe": pipeline, "deviation": spread[pipeline]} for pipeline in wanted], booster


def result_lines(data, judged, pipelines, learned=None):
    """Raw results: what the pages' tables are made from; learned: what models of another device learned from."""
    other = {"learned": {"device": vars(learned.device), "patterns": len(learned.patterns), "measurements": learned.measurements()}} if learned else {}
    yield {"line": "results", "format": 1, "device": vars(data.device), **other, "patterns": len(data.patterns), "measurements": data.measurements(),
           "regrets": ["default", "fixed", *(f"first {tried}" for tried in judge.TRIED)],
           "seconds": ["built", "tried", "all built", "all tried", "request at best"]}
    for one in judged:
        yield from judge.lines(one.group, one.estimates)
    yield from judge.noise(data)
    if pipelines:
        yield from policy.lines(judged, pipelines.group, pipelines.estimates)


def again_lines(data, judged, second):
    """The raw results of what was chosen and measured again."""
    yield {"line": "results", "format": 1, "device": vars(data.device), "patterns": len(second.patterns), "measurements": second.measurements(),
           "regrets": [f"first {tried}" for tried in judge.TRIED]}
    for one in judged:
        yield from judge.again(one.group, one.estimates, second)
