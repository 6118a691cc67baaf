"""The permutation predictor of Mehrabi et al. (section V): which order of the rows is fastest, from 24 features."""

import numpy
import torch
from sklearn.ensemble import ExtraTreesRegressor
from torch import nn

from . import learners
from .cases import ORDER_FEATURES, ORDERS

FOUR = [ORDERS.index(name) for name in ("csr", "dcsr", "lpt_sort", "warp_sort")]  # the paper's classes
ALL = list(range(len(ORDERS)))
EPOCHS = 400


def network(inputs, outputs):
    torch.manual_seed(1)
    return nn.Sequential(nn.Linear(inputs, 64), nn.ReLU(), nn.Linear(64, 32), nn.ReLU(), nn.Linear(32, outputs))


def network_choices(train, test, setting, classes, target, epochs=EPOCHS):
    """Choices of a (64, 32) network with class weights and L2 regularisation.

    target: "time" is the paper's predictor, it estimates the times of all classes (mean absolute percentage error) and the least is
    chosen; "ratio" likewise over the original order's time; "class" is its classifier (softmax).
    """
    x, x_test = learners.standardised(learners.logarithms(train, ORDER_FEATURES), learners.logarithms(test, ORDER_FEATURES))
    table = learners.times(train, setting, classes)
    best = table.argmin(1)
    weights = learners.class_weights(best, len(classes))
    model = network(x.shape[1], len(classes))
    goal = torch.tensor(numpy.log(table / (table[:, :1] if target == "ratio" else 1)), dtype=torch.float32)
    middle, best = goal.mean(0), torch.tensor(best)

    def loss(indices):
        outputs = model(x[indices])
        if target == "class":
            of_each = nn.functional.cross_entropy(outputs, best[indices], reduction="none")
        else:
            of_each = (torch.exp((outputs + middle - goal[indices]).clamp(max=5)) - 1).abs().mean(1)
        return (weights[indices] * of_each).mean()
    learners.descend(model.parameters(), loss, len(train), epochs, 32, 3e-3, decay=1e-2)
    with torch.no_grad():
        outputs = model(x_test)
    chosen = outputs.argmax(1) if target == "class" else (outputs + middle).argmin(1)
    return [classes[c] for c in chosen.tolist()]


def tree_choices(train, test, setting):
    """Extremely randomised trees over the same features that estimate each order's log time over the fastest's."""
    model = ExtraTreesRegressor(300, min_samples_leaf=2, random_state=1)
    model.fit(learners.logarithms(train, ORDER_FEATURES), learners.log_ratios(learners.times(train, setting)))
    return model.predict(learners.logarithms(test, ORDER_FEATURES)).argmin(1).tolist()


def choices(train, test, setting):
    """{model: the chosen order of each case of test}"""
    return {
        "fixed": learners.fixed(learners.times(train, setting), learners.times(test, setting)),
        "network": network_choices(train, test, setting, FOUR, "time"),
        "network_ratio": network_choices(train, test, setting, FOUR, "ratio"),
        "network_all": network_choices(train, test, setting, ALL, "ratio"),
        "classifier": network_choices(train, test, setting, FOUR, "class"),
        "trees": tree_choices(train, test, setting),
    }
