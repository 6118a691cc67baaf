"""RS-SpMM's threshold (section 4.2): from how many nonzeros in a column panel on a row segment is heavy.

The paper's first phase chooses the coarsening that is most often best; here the kernel has one coarsening for each K, so that the second
phase, the best threshold of each matrix, is what is left to learn.
"""

import numpy
from sklearn.ensemble import ExtraTreesRegressor
from sklearn.tree import DecisionTreeClassifier

from . import learners
from .cases import ORDER_FEATURES


def paper_inputs(cases):
    """How many distances between neighbours are in each bin, and the number of accumulations."""
    return numpy.array([[*c.histogram, c.features["nnz"]] for c in cases], float)


def all_inputs(cases):
    counts = numpy.array([c.histogram for c in cases], float)
    return numpy.hstack([counts / numpy.maximum(counts.sum(1, keepdims=True), 1), learners.logarithms(cases, ORDER_FEATURES + ["nnz"])])


def tree_choices(train, test, setting):
    """The paper's decision tree: by entropy, at least two cases a leaf, pruned (C4.5's J48 -C 0.25 -M 2)."""
    model = DecisionTreeClassifier(criterion="entropy", min_samples_leaf=2, ccp_alpha=0.005, random_state=1)
    model.fit(paper_inputs(train), learners.times(train, setting).argmin(1))
    return model.predict(paper_inputs(test)).tolist()


def regret_choices(train, test, setting):
    """Trees that estimate each threshold's log time over the best's, from the bins' shares and Mehrabi et al.'s features."""
    model = ExtraTreesRegressor(300, min_samples_leaf=2, random_state=1)
    model.fit(all_inputs(train), learners.log_ratios(learners.times(train, setting)))
    return model.predict(all_inputs(test)).argmin(1).tolist()


def choices(train, test, setting):
    """{model: the chosen threshold's index, for each case of test}"""
    return {
        "fixed": learners.fixed(learners.times(train, setting), learners.times(test, setting)),
        "tree": tree_choices(train, test, setting),
        "trees_regret": regret_choices(train, test, setting),
    }
