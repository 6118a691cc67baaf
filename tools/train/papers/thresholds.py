"""RS-SpMM's threshold (section 4.2): from how many nonzeros in a column panel on a row segment is heavy.

In two phases, as there: the first finds the coarsening that is most often best, with whatever threshold; the second, with that, the best
threshold of each matrix, which a decision tree learns. Where one coarsening was measured alone, the second is all that there is.
"""

import collections

import numpy
from sklearn.ensemble import ExtraTreesRegressor
from sklearn.tree import DecisionTreeClassifier

from . import learners
from .cases import ORDER_FEATURES, threshold_and_coarsening


def first_phase(table, contenders):
    """The contenders, by index, of the coarsening that is best in most rows."""
    of = [threshold_and_coarsening(name)[1] for name in contenders]
    best = collections.Counter(of[c] for c in table.argmin(1)).most_common(1)[0][0]
    return numpy.array([c for c, coarsening in enumerate(of) if coarsening == best])


def paper_inputs(cases):
    """How many distances between neighbours are in each bin, and the number of accumulations."""
    return numpy.array([[*c.histogram, c.features["nnz"]] for c in cases], float)


def all_inputs(cases):
    counts = numpy.array([c.histogram for c in cases], float)
    return numpy.hstack([counts / numpy.maximum(counts.sum(1, keepdims=True), 1), learners.logarithms(cases, ORDER_FEATURES + ["nnz"])])


def tree():
    """The paper's decision tree: by entropy, at least two cases a leaf, pruned (C4.5's J48 -C 0.25 -M 2)."""
    return DecisionTreeClassifier(criterion="entropy", min_samples_leaf=2, ccp_alpha=0.005, random_state=1)


def tree_choices(train, test, setting, contenders):
    table = learners.times(train, setting)
    kept = first_phase(table, contenders)
    model = tree().fit(paper_inputs(train), kept[table[:, kept].argmin(1)])
    return model.predict(paper_inputs(test)).tolist()


def regret_choices(train, test, setting):
    """Trees that estimate each threshold's log time over the best's, from the bins' shares and Mehrabi et al.'s features."""
    model = ExtraTreesRegressor(300, min_samples_leaf=2, random_state=1)
    model.fit(all_inputs(train), learners.log_ratios(learners.times(train, setting)))
    return model.predict(all_inputs(test)).argmin(1).tolist()


def choices(train, test, setting, contenders):
    """{model: the chosen threshold's index, for each case of test}"""
    return {
        "fixed": learners.fixed(learners.times(train, setting), learners.times(test, setting)),
        "tree": tree_choices(train, test, setting, contenders),
        "trees_regret": regret_choices(train, test, setting),
    }
