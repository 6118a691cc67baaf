"""MatNet (Xie et al., section 4): which algorithm multiplies a pair of patterns fastest, and its parameter, from features and density maps.

The pairs here are a matrix times itself, so that one map and one set of features tell all. The one kernel with a parameter is `blocks`,
with the blocks' width. Which contenders suit a case is known beforehand: of a model's probabilities only theirs count.
"""

import numpy
import torch
from sklearn.tree import DecisionTreeClassifier, DecisionTreeRegressor
from torch import nn

from . import learners
from .cases import PRODUCT_FEATURES

CNN_EPOCHS = 20
MLP_EPOCHS = 150
HEAD_EPOCHS = 100


class Labels:
    """Cases x algorithms: probabilities as 1 / time (section 4.3); and the best width where `blocks` is the best algorithm, otherwise 0."""

    def __init__(self, cases, setting, contenders):
        self.algorithms = sorted({name.split(".")[0] for name in contenders})
        self.algorithm_of = numpy.array([self.algorithms.index(name.split(".")[0]) for name in contenders])
        self.widths = numpy.array([int(name.split(".")[1]) if "." in name else 0 for name in contenders])
        self.table = learners.times(cases, setting)
        by_algorithm = numpy.stack([self.table[:, self.algorithm_of == a].min(1) for a in range(len(self.algorithms))], 1)
        rates = numpy.where(by_algorithm < learners.UNMEASURED, 1 / by_algorithm, 0)
        self.probabilities = rates / rates.sum(1, keepdims=True)
        self.parameters = self.widths[self.table.argmin(1)]

    def choices(self, probabilities, parameters):
        """The contender for each case, of those that were measured: the likeliest algorithm, with the width that is nearest."""
        chosen = []
        for row, of_algorithm, parameter in zip(self.table, probabilities, parameters):
            there = row < learners.UNMEASURED
            algorithm = max(set(self.algorithm_of[there]), key=lambda a: of_algorithm[a])
            suited = numpy.flatnonzero(there & (self.algorithm_of == algorithm))
            chosen.append(int(min(suited, key=lambda c: abs(self.widths[c] - parameter))))
        return chosen


class Heads(nn.Module):
    """The probabilities of algorithms (as logits), and the parameter over 8."""

    def __init__(self, inputs, algorithms):
        super().__init__()
        self.algorithm = nn.Linear(inputs, algorithms)
        self.parameter = nn.Linear(inputs, 1)

    def forward(self, x):
        return self.algorithm(x), self.parameter(x)[:, 0]


def mlp(inputs):
    return nn.Sequential(nn.Linear(inputs, 64), nn.ReLU(), nn.Linear(64, 64), nn.ReLU())


def cnn(stride=2):
    """Of maps 1 x 128 x 128; the first convolution goes in steps of two, for one core's sake, of a server's model of four, so that it takes
    less than 0.2 ms."""
    side = 16 // stride
    return nn.Sequential(
        nn.Conv2d(1, 8, 5, stride=stride, padding=2), nn.ReLU(), nn.MaxPool2d(2),
        nn.Conv2d(8, 16, 3, padding=1), nn.ReLU(), nn.MaxPool2d(2),
        nn.Conv2d(16, 32, 3, padding=1), nn.ReLU(), nn.MaxPool2d(2),
        nn.Flatten(), nn.Linear(32 * side * side, 64), nn.ReLU())


def train(modules, forward, labels, epochs, rate, batch=32):
    """Categorical cross-entropy to the soft labels, and the parameter's squared error."""
    goal = torch.tensor(labels.probabilities, dtype=torch.float32)
    parameter = torch.tensor(labels.parameters / 8, dtype=torch.float32)

    def loss(indices):
        logits, estimated = forward(indices)
        return nn.functional.cross_entropy(logits, goal[indices]) + nn.functional.mse_loss(estimated, parameter[indices])
    learners.descend([p for module in modules for p in module.parameters()], loss, len(goal), epochs, batch, rate, decay=1e-3)


def estimates(heads, x):
    with torch.no_grad():
        logits, parameter = heads(x)
    return logits.softmax(1).numpy(), 8 * parameter.numpy()


def outputs(trunk, x):
    with torch.no_grad():
        return torch.cat([trunk(part) for part in x.split(64)])


def networks(labels, features, maps, epochs=(MLP_EPOCHS, CNN_EPOCHS, HEAD_EPOCHS), only="matnet", stride=2):
    """{"mlp", "cnn", "matnet": (trunks, heads)}, a trunk for each of what it reads: the first phase trains the first two, each with heads
    of its own; the second keeps their layers and trains new heads on both outputs together. `only`: "mlp" or "cnn", nothing else."""
    torch.manual_seed(1)
    reads = {"mlp": (mlp(features.shape[1]), features, epochs[0], 3e-3), "cnn": (cnn(stride), maps, epochs[1], 1e-3)}
    trained, shared = {}, []
    for name, (trunk, x, trunk_epochs, rate) in reads.items():
        if only not in (name, "matnet"):
            continue
        heads = Heads(64, len(labels.algorithms))
        train([trunk, heads], lambda indices: heads(trunk(x[indices])), labels, trunk_epochs, rate)
        shared.append(outputs(trunk, x))
        trained[name] = {name: trunk}, heads
    if only != "matnet":
        return trained
    shared, heads = torch.cat(shared, 1), Heads(128, len(labels.algorithms))
    train([heads], lambda indices: heads(shared[indices]), labels, epochs[2], 3e-3)
    trained["matnet"] = {name: trunk for name, (trunk, _, _, _) in reads.items()}, heads
    return trained


def estimated(network, features, maps):
    """Probabilities and parameters of cases."""
    trunks, heads = network
    reads = {"mlp": features, "cnn": maps}
    return estimates(heads, torch.cat([outputs(trunk, reads[name]) for name, trunk in trunks.items()], 1))


def network_choices(train_labels, test_labels, features, test_features, maps, test_maps, **options):
    """MLP, CNN and MatNet."""
    trained = networks(train_labels, features, maps, **options)
    return {name: test_labels.choices(*estimated(network, test_features, test_maps)) for name, network in trained.items()}


def tree_choices(train_labels, test_labels, features, test_features):
    """CART on the features: the best algorithm, and the parameter by a tree of its own."""
    classifier = DecisionTreeClassifier(min_samples_leaf=2, random_state=1).fit(features, train_labels.probabilities.argmax(1))
    regressor = DecisionTreeRegressor(min_samples_leaf=2, random_state=1).fit(features, train_labels.parameters)
    probabilities = numpy.zeros((len(test_features), len(train_labels.algorithms)))
    probabilities[:, classifier.classes_] = classifier.predict_proba(test_features)
    return test_labels.choices(probabilities, regressor.predict(test_features))


def map_inputs(cases, maps):
    return torch.tensor(numpy.stack([maps[c.pattern] for c in cases]), dtype=torch.float32)[:, None] / 255


def choices(train_cases, test_cases, setting, contenders, maps, **options):
    """{model: the chosen contender's index, for each case of test}. `maps`: of all patterns (maps.load)."""
    labels, test_labels = (Labels(cases, setting, contenders) for cases in (train_cases, test_cases))
    raw, raw_test = (learners.logarithms(cases, PRODUCT_FEATURES) for cases in (train_cases, test_cases))
    features, test_features = learners.standardised(raw, raw_test)
    return {
        "fixed": learners.fixed(labels.table, test_labels.table),
        "tree": tree_choices(labels, test_labels, raw, raw_test),
        **network_choices(labels, test_labels, features, test_features, map_inputs(train_cases, maps), map_inputs(test_cases, maps), **options),
    }
