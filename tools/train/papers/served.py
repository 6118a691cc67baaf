"""The papers' own models for a server: a model directory like that of the selector's trees, and how
good the model is on families that it has not seen.

A class is what a model chooses for: a problem (SpMM at one K, or squares by SpGEMM), what may be
chosen, and what was measured of it. What a learner estimates is log2(time / default's time) of each
candidate; what it does not choose at all is NOT_CHOSEN.
"""

import dataclasses
import gzip
import json
import re

import numpy
import torch
from sklearn.tree import DecisionTreeClassifier, DecisionTreeRegressor

from selector import data as measurements
from selector import directory, inputs

from . import DataError, cases, learners, maps, network, orders, products, thresholds

NOT_CHOSEN = 10  # as soft_labels of engine/planning/network.h has it
LEAST_DEVIATION = 0.02
MAP_STRIDE = 4  # of the first convolution
FOLDS = 6
ORDERS = ("csr", "dcsr", "plain_sort", "hybrid1_sort", "group_rows")
KERNELS = ("cuda.csr.rows", "cuda.csr.warp_rows", "cuda.csr.merge", "cuda.dcsr.rows")
SEGMENTS = "row_segments(panel=64,min_heavy={},coarsen={})"
INPUTS = {
    "orders": cases.ORDER_FEATURES,
    "thresholds": [f"distance_{i}*nnz" for i in range(measurements.DISTANCES)] + ["nnz"],
    "products": cases.PRODUCT_FEATURES,
}


@dataclasses.dataclass
class Class:
    name: str
    operation: str
    k: int
    candidates: list  # (pipeline, kernel)
    patterns: list  # measurements.Pattern
    ratios: (
        numpy.ndarray
    )  # patterns x candidates, log2 of times over the default's; NaN: not measured
    best: numpy.ndarray  # by pattern, of all that was measured, the default included
    default: int = -1  # the candidate that is the default; -1: none

    def rows(self, chosen):
        return dataclasses.replace(
            self,
            patterns=[self.patterns[i] for i in chosen],
            ratios=self.ratios[chosen],
            best=self.best[chosen],
        )

    def known(self):
        return numpy.where(numpy.isnan(self.ratios), numpy.inf, self.ratios)


def classes_of(data, problem, name, wanted):
    """The class of a problem; wanted(candidate): it may be chosen."""
    rows = [
        (pattern, pattern.measured[problem])
        for pattern in data.patterns
        if problem in pattern.measured
    ]
    candidates = sorted(
        {candidate for _, measured in rows for candidate in measured if wanted(candidate)}
    )
    # Where none of them was measured there is nothing to learn, and nothing to judge by.
    rows = [row for row in rows if not row[1].keys().isdisjoint(candidates)]
    if not rows:
        raise DataError(f"nothing of {problem} is in these files")
    defaults = [measurements.default(measured) for _, measured in rows]
    table = numpy.full((len(rows), len(candidates)), numpy.nan)
    best = numpy.zeros(len(rows))
    for i, (_, measured) in enumerate(rows):
        for candidate, m in measured.items():
            ratio = numpy.log2(m.median_ms / m.csr_ms)
            best[i] = min(best[i], ratio)
            if candidate in candidates:
                table[i, candidates.index(candidate)] = ratio
    common = max(set(defaults), key=defaults.count)
    default = candidates.index(common) if common in candidates else -1
    return Class(
        name,
        problem.operation,
        problem.k,
        candidates,
        [pattern for pattern, _ in rows],
        table,
        best,
        default,
    )


def problem(operation, k):
    return measurements.Problem(operation, False, "f32", False, k)


def order_classes(data, _):
    """The row orders that were measured with the served kernels, at every K."""

    def wanted(candidate):
        return (
            candidate.pipeline.split("(")[0] in ORDERS
            and ">" not in candidate.pipeline
            and candidate.kernel in KERNELS
        )

    found = sorted(
        {p.k for pattern in data.patterns for p in pattern.measured if p == problem("spmm", p.k)}
    )
    return [classes_of(data, problem("spmm", k), f"spmm f32 K={k}", wanted) for k in found]


def product_classes(data, _):
    """All kernels but the vendor's: a machine may not have its library, and they are slower."""

    def wanted(candidate):
        return not candidate.kernel.startswith("cuda.cusparse.")

    return [classes_of(data, problem("spgemm", 0), "spgemm f32", wanted)]


def threshold_classes(data, packed):
    """Of a packed file of thresholds; the features are those of `data`."""
    if packed is None:
        raise DataError(
            "of thresholds their packed file is needed: --thresholds "
            "(tools/train/papers/run pack thresholds makes one)"
        )
    known = {pattern.name: pattern for pattern in data.patterns}
    found = [case for case in packed.cases if case.pattern in known]
    if not found:
        raise DataError("none of the patterns of --thresholds is in --data")
    chosen = [
        (SEGMENTS.format(*cases.threshold_and_coarsening(name)), "cuda.row_segments.streams")
        for name in packed.contenders
    ]
    for k in packed.settings:
        table = numpy.log2(
            numpy.array([[ms / case.beside[k]["csr"] for ms in case.ms[k]] for case in found])
        )
        of_spmm = problem("spmm", int(k))
        others = [
            min((m.median_ms / m.csr_ms for m in known[case.pattern].measured[of_spmm].values()))
            if of_spmm in known[case.pattern].measured
            else 1
            for case in found
        ]
        best = numpy.minimum(numpy.minimum(table.min(1), numpy.log2(others)), 0)
        yield Class(
            f"spmm f32 K={k}",
            "spmm",
            int(k),
            chosen,
            [known[case.pattern] for case in found],
            table,
            best,
        )


def numbers(patterns, names, k):
    return numpy.array(
        [inputs.inputs_of(pattern, names, [(k, 4, 0)])[0] for pattern in patterns], numpy.float32
    )


class Scale:
    """Logarithms of inputs, less the mean, over the deviation, of those that were learned from."""

    def __init__(self, x, names):
        self.offset = numpy.array(
            [1e-9 if name == "density" else 1.0 for name in names], numpy.float32
        )
        logarithms = numpy.log2(self.offset + abs(x))
        self.mean, self.deviation = logarithms.mean(0), logarithms.std(0) + 1e-6

    def __call__(self, x):
        return numpy.clip(
            (numpy.log2(self.offset + abs(x)) - self.mean) / self.deviation, -5, 5
        ).astype(numpy.float32)

    def layer(self):
        return network.standardise(self.offset, self.mean, self.deviation)


class Perceptron:
    """Mehrabi et al.: (64, 32), classes weighed; the times of all orders over the default's, mean
    absolute percentage error."""

    def __init__(self, of, names, _, epochs=150):
        x = numbers(of.patterns, names, of.k)
        self.scale, self.names, self.k = Scale(x, names), names, of.k
        x = torch.tensor(self.scale(x))
        table = numpy.where(numpy.isnan(of.ratios), NOT_CHOSEN, of.ratios)
        weights = learners.class_weights(table.argmin(1), table.shape[1])
        goal = torch.tensor(numpy.log(2) * numpy.clip(table, -4, 3), dtype=torch.float32)
        measured = torch.tensor(~numpy.isnan(of.ratios), dtype=torch.float32)
        self.middle = goal.mean(0)
        self.model = orders.network(x.shape[1], table.shape[1])

        def loss(rows):
            error = (
                torch.exp((self.model(x[rows]) + self.middle - goal[rows]).clamp(max=5)) - 1
            ).abs()
            return (weights[rows] * (error * measured[rows]).mean(1)).mean()

        learners.descend(self.model.parameters(), loss, len(x), epochs, 32, 3e-3, decay=1e-2)

    def estimate(self, of):
        with torch.no_grad():
            return (
                (
                    self.model(torch.tensor(self.scale(numbers(of.patterns, self.names, self.k))))
                    + self.middle
                )
                / numpy.log(2)
            ).numpy()

    def file(self):
        *hidden, (_, (weights, bias)) = network.of_torch(self.model)
        last = network.dense(weights / numpy.log(2), (bias + self.middle.numpy()) / numpy.log(2))
        return network.file([("features", [self.scale.layer(), *hidden, last])], [])


class Threshold:
    """RS-SpMM: the first phase takes the coarsening that is best most often, the second learns the
    best threshold with that."""

    def __init__(self, of, names, _):
        self.names, self.k = names, of.k
        names_of = [cases.contender(pipeline) for pipeline, _ in of.candidates]
        kept = thresholds.first_phase(of.known(), names_of)
        best = kept[of.known()[:, kept].argmin(1)]
        x = numbers(of.patterns, names, of.k)
        self.model = thresholds.tree().fit(x, best)
        # A leaf names one threshold, and says how long it takes there.
        leaf = self.model.apply(x)
        self.leaves = numpy.full(
            (self.model.tree_.node_count, len(of.candidates)), float(NOT_CHOSEN)
        )
        for node in set(leaf):
            chosen = self.model.classes_[self.model.tree_.value[node][0].argmax()]
            self.leaves[node, chosen] = of.ratios[leaf == node, chosen].mean()

    def estimate(self, of):
        return self.leaves[self.model.apply(numbers(of.patterns, self.names, self.k))]

    def file(self):
        return network.file([("features", [network.tree(self.model, self.leaves)])], [])


class Product:
    """MatNet, or a part of it alone: `tree`, `mlp`, `cnn`."""

    def __init__(
        self,
        of,
        names,
        of_patterns,
        model="matnet",
        epochs=(products.MLP_EPOCHS, products.CNN_EPOCHS, products.HEAD_EPOCHS),
    ):
        self.names, self.which, self.of_patterns = names, model, of_patterns
        self.labels = self.labels_of(of)
        if of.default < 0:
            raise DataError(
                "times of the default, which others are compared with, are not in these files"
            )
        self.default = self.labels.algorithm_of[of.default]
        x = numbers(of.patterns, names, 0)
        self.scale = Scale(x, names)
        if model == "tree":
            self.trees(x)
        else:
            self.network = products.networks(
                self.labels,
                torch.tensor(self.scale(x)),
                self.map_inputs(of),
                epochs,
                only=model,
                stride=MAP_STRIDE,
            )[model]

    @staticmethod
    def contenders(of):
        """Names of kernels, with the parameter of those that have one."""
        names = []
        for pipeline, kernel in of.candidates:
            parameter = re.fullmatch(r"\w+\(\w+=(\d+)\)", pipeline)
            names.append(kernel.split(".")[-1] + (f".{parameter[1]}" if parameter else ""))
        return names

    def labels_of(self, of):
        found = [
            cases.Case(
                p.name,
                p.family,
                p.group,
                {},
                [],
                {"f32": [None if numpy.isnan(r) else 2.0**r for r in row]},
                {},
                {},
            )
            for p, row in zip(of.patterns, of.ratios)
        ]
        return products.Labels(found, "f32", self.contenders(of))

    def map_inputs(self, of):
        if self.which == "mlp":
            return torch.zeros((len(of.patterns), 1, 1, 1))
        return (
            torch.tensor(
                numpy.stack([self.of_patterns[p.name] for p in of.patterns]), dtype=torch.float32
            )[:, None]
            / 255
        )

    def trees(self, x):
        """CART for the best algorithm, whose leaves have the mean probabilities of their cases, and
        one for the parameter."""
        self.classifier = DecisionTreeClassifier(min_samples_leaf=2, random_state=1).fit(
            x, self.labels.probabilities.argmax(1)
        )
        self.regressor = DecisionTreeRegressor(min_samples_leaf=2, random_state=1).fit(
            x, self.labels.parameters
        )
        leaf = self.classifier.apply(x)
        self.logits = numpy.zeros((self.classifier.tree_.node_count, len(self.labels.algorithms)))
        for node in set(leaf):
            self.logits[node] = numpy.log(
                numpy.maximum(self.labels.probabilities[leaf == node].mean(0), 1e-3)
            )

    def outputs(self, of):
        """Logits and parameters of cases."""
        x = numbers(of.patterns, self.names, 0)
        if self.which == "tree":
            return self.logits[self.classifier.apply(x)], self.regressor.predict(x)
        probabilities, parameters = products.estimated(
            self.network, torch.tensor(self.scale(x)), self.map_inputs(of)
        )
        return numpy.log(numpy.maximum(probabilities, 1e-30)), parameters

    def estimate(self, of):
        logits, parameters = self.outputs(of)
        ratios = (logits[:, [self.default]] - logits)[:, self.labels.algorithm_of] / numpy.log(2)
        off = abs(self.labels.widths[None, :] - parameters[:, None])
        for algorithm in range(len(self.labels.algorithms)):
            same = numpy.flatnonzero(self.labels.algorithm_of == algorithm)
            rest = numpy.arange(len(same))[None, :] != off[:, same].argmin(1)[:, None]
            ratios[:, same] = numpy.where(rest, NOT_CHOSEN, ratios[:, same])
        return ratios

    def file(self):
        last = network.soft_labels(
            int(self.default), self.labels.algorithm_of.tolist(), self.labels.widths.tolist()
        )
        if self.which == "tree":
            parameters = self.regressor.tree_.value[:, :, 0]
            return network.file(
                [
                    ("features", [network.tree(self.classifier, self.logits)]),
                    ("features", [network.tree(self.regressor, parameters)]),
                ],
                [last],
            )
        trunks, heads = self.network
        branches = {"mlp": ("features", [self.scale.layer()]), "cnn": ("density_map", [])}
        weights = [
            network.numbers(heads.algorithm.weight),
            8 * network.numbers(heads.parameter.weight),
        ]
        bias = [network.numbers(heads.algorithm.bias), 8 * network.numbers(heads.parameter.bias)]
        return network.file(
            [
                (branches[name][0], branches[name][1] + network.of_torch(trunk))
                for name, trunk in trunks.items()
            ],
            [network.dense(numpy.concatenate(weights), numpy.concatenate(bias)), last],
        )


TASKS = {
    "orders": (order_classes, Perceptron),
    "thresholds": (threshold_classes, Threshold),
    "products": (product_classes, Product),
}


class Building:
    """log2 of the seconds that each pipeline's layout takes to build: linear in the logarithms of the
    inputs."""

    def __init__(self, data, names, pipelines):
        self.pipelines = pipelines
        seconds = {pipeline: {} for pipeline in pipelines}
        patterns = {}
        for pattern in data.patterns:
            for of_problem in pattern.measured.values():
                for candidate, m in of_problem.items():
                    for pipeline in pipelines:
                        if m.preparation_ms > 0 and kind_of(candidate.pipeline) == kind_of(pipeline):
                            patterns[pattern.name] = pattern
                            seconds[pipeline].setdefault(pattern.name, []).append(
                                m.preparation_ms / 1e3
                            )
        if not patterns:
            raise DataError("how long layouts take to build is not in these files")
        place = {name: i for i, name in enumerate(patterns)}
        x = numbers(patterns.values(), names, 0)
        self.scale = Scale(x, names)
        x = numpy.hstack([self.scale(x), numpy.ones((len(x), 1))]).astype(float)
        solved = []
        for pipeline in pipelines:
            rows = [place[name] for name in seconds[pipeline]]
            y = numpy.log2([numpy.median(of) for of in seconds[pipeline].values()])
            if len(rows) < 30:  # too few for more than their mean
                solved.append(
                    numpy.append(numpy.zeros(x.shape[1] - 1), y.mean() if len(rows) else 0.0)
                )
                continue
            least = numpy.diag([1.0] * (x.shape[1] - 1) + [0.0])
            solved.append(numpy.linalg.solve(x[rows].T @ x[rows] + least, x[rows].T @ y))
        self.weights = numpy.array(solved)

    def file(self):
        return network.file(
            [
                (
                    "features",
                    [self.scale.layer(), network.dense(self.weights[:, :-1], self.weights[:, -1])],
                )
            ],
            [],
        )


def kind_of(pipeline):
    """Layouts of row segments take as long whatever the threshold is."""
    return "row_segments" if pipeline.startswith("row_segments(") else pipeline


def out_of_fold(of, learner, folds=FOLDS):
    """patterns x candidates: what a model that has not seen the family estimates."""
    fold_of = numpy.array(cases.family_folds(of.patterns, folds))
    estimates = numpy.full(of.ratios.shape, numpy.nan)
    for fold in sorted(set(fold_of)):
        held, seen = numpy.flatnonzero(fold_of == fold), numpy.flatnonzero(fold_of != fold)
        estimates[held] = learner(of.rows(seen)).estimate(of.rows(held))
    return estimates


def deviations(of, estimates):
    """(by candidate, shared) in log2: of the errors of what may be chosen, a candidate's own, and
    that which all of a pattern share."""
    errors = numpy.clip(estimates, None, 3) - numpy.clip(of.ratios, None, 3)
    errors[numpy.isnan(errors) | (estimates > 1)] = numpy.nan
    known = ~numpy.isnan(errors)
    filled = numpy.where(known, errors, 0)
    pairs = known.sum(1) * (known.sum(1) - 1)
    products_of_pairs = filled.sum(1) ** 2 - (filled**2).sum(1)
    shared = max(float(products_of_pairs.sum() / pairs.sum()), 0.0) if pairs.sum() else 0.0
    own = [
        float((filled[:, j] ** 2).sum() / known[:, j].sum()) if known[:, j].sum() >= 8 else 0.25
        for j in range(len(of.candidates))
    ]
    return [
        round(max(variance - shared, LEAST_DEVIATION**2) ** 0.5, 3) for variance in own
    ], round(shared**0.5, 3)


def judged(of, estimates):
    """By pattern, the chosen candidate (-1: the default), and log2 regrets: over all that is known;
    over what could be chosen and the default; and of the choice without the default, over the best
    without it."""
    known = numpy.where(numpy.isnan(of.ratios), numpy.inf, estimates)
    for i, row in enumerate(of.ratios):
        first, least = int(known[i].argmin()), numpy.nanmin(row)
        chosen = first if known[i, first] < 0 else -1
        took = row[chosen] if chosen >= 0 else 0.0
        yield chosen, [took - of.best[i], took - min(least, 0), row[first] - least]


def train(task, data, name, model, of_patterns, packed, **options):
    """(manifest, contents, lines of results)."""
    classes_in, kind = TASKS[task]
    names = INPUTS[task]
    if task == "products":
        options["model"] = model
    groups, contents, lines, pipelines, held_out = [], {}, [], set(), {}
    for of in classes_in(data, packed):
        if of_patterns is not None:
            of = of.rows(
                [i for i, pattern in enumerate(of.patterns) if pattern.name in of_patterns]
            )
        learned = kind(of, names, of_patterns, **options)
        estimates = out_of_fold(of, lambda rows: kind(rows, names, of_patterns, **options))
        own, shared = deviations(of, estimates)
        file = f"{of.operation}_{of.k}.network" if of.k else f"{of.operation}.network"
        contents[file] = learned.file()
        # The default is no candidate beside itself.
        groups.append(
            {
                "operation": of.operation,
                "transposed": False,
                "types": ["f32"],
                "least_k": of.k,
                "most_k": of.k,
                "kind": "network",
                "file": file,
                "shared_deviation": shared,
                "measured": sorted({pipeline for pipeline, _ in of.candidates} | {"csr"}),
                "candidates": [
                    {"recipe": pipeline, "kernel": kernel, "deviation": deviation}
                    for (pipeline, kernel), deviation in zip(of.candidates, own)
                ],
            }
        )
        pipelines |= {pipeline for pipeline, _ in of.candidates if pipeline != "csr"}
        results = list(judged(of, estimates))
        for pattern, (chosen, regrets) in zip(of.patterns, results):
            lines.append(
                {
                    "line": "choice",
                    "model": name,
                    "class": of.name,
                    "pattern": pattern.name,
                    "family": pattern.family,
                    "group": pattern.group,
                    "chosen": list(of.candidates[chosen]) if chosen >= 0 else "default",
                    "regrets": [round(float(regret), 3) + 0.0 for regret in regrets],
                }
            )
        shares = {
            "first": [regrets[0] for _, regrets in results],
            "of_what_it_chooses_from": [regrets[1] for _, regrets in results],
            "default": -of.best,
        }
        held_out[of.name] = dict(
            patterns=len(results),
            **{key: round(float(2 ** -numpy.mean(regrets)), 4) for key, regrets in shares.items()},
        )
        said = held_out[of.name]
        print(
            f"{name}, {of.name}: {len(results)} patterns, {said['first']:.3f} of the oracle, "
            f"{said['of_what_it_chooses_from']:.3f} of what it chooses from, "
            f"default {said['default']:.3f}",
            flush=True,
        )
    pipelines = sorted(pipelines)
    contents["building.network"] = Building(data, names, pipelines).file()
    mean = float(numpy.exp(numpy.mean([numpy.log(of["first"]) for of in held_out.values()])))
    manifest = {
        "name": name,
        "device": {"kind": data.device.kind, "model": data.device.model},
        "kernels": data.device.kernels,
        "inputs": names,
        "groups": groups,
        "building": {
            "kind": "network",
            "file": "building.network",
            "recipes": [{"recipe": pipeline} for pipeline in pipelines],
        },
        "data": {
            "digest": directory.data_digest(data),
            "patterns": len({line["pattern"] for line in lines}),
            "families": len({line["family"] for line in lines}),
            "measurements": data.measurements(),
            "most_nonzeros": max(pattern.features["nnz"] for pattern in data.patterns),
        },
        "held_out": {groups[0]["operation"]: {"all": {"first": round(mean, 4)}, **held_out}},
    }
    return manifest, contents, lines


def write_results(path, lines):
    with gzip.GzipFile(path, "wb", 9, mtime=0) as file:
        for line in lines:
            file.write((json.dumps(line, separators=(",", ":")) + "\n").encode())
