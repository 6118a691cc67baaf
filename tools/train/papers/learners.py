"""What the models share: features as numbers, networks' training, the choice that suits all."""

import numpy
import torch

from . import DataError

UNMEASURED = 1e30  # ms


def times(cases, setting, contenders=None):
    """Milliseconds, cases x contenders; UNMEASURED where there are none."""
    table = numpy.array([[UNMEASURED if ms is None else ms for ms in c.ms[setting]] for c in cases], float)
    if not (table > 0).all():
        raise DataError("times must be positive")
    return table if contenders is None else table[:, contenders]


def logarithms(cases, names):
    """Features by their logarithm, cases x names: they span six decades."""
    return numpy.array([[numpy.log2(1e-9 + abs(c.features[name])) if name == "density" else numpy.log2(1 + abs(c.features[name]))
                         for name in names] for c in cases], numpy.float32)


def standardised(train, test):
    mean, deviation = train.mean(0), train.std(0) + 1e-6
    return [torch.tensor(numpy.clip((x - mean) / deviation, -5, 5), dtype=torch.float32) for x in (train, test)]


def log_ratios(table):
    """log2 of each contender's time over the fastest's, 3 at most: how bad a bad one is need not be learnt."""
    return numpy.minimum(numpy.log2(table / table.min(1, keepdims=True)), 3)


def fixed(train_table, test_table):
    """The contender with the least geometric mean over the training set, of those that suit each case."""
    ranking = numpy.argsort(log_ratios(train_table).mean(0))
    return [next(c for c in ranking if row[c] < UNMEASURED) for row in test_table]


def class_weights(best, classes):
    """Inverse to each class's population."""
    population = numpy.maximum(numpy.bincount(best, minlength=classes), 1)
    return torch.tensor((len(best) / (classes * population))[best], dtype=torch.float32)


def descend(parameters, loss_of, cases, epochs, batch, rate, decay=0.0, seed=1):
    """Adam over batches in an order of their own, with a cosine schedule; `loss_of(indices)` is a batch's loss."""
    optimiser = torch.optim.AdamW(parameters, lr=rate, weight_decay=decay)
    schedule = torch.optim.lr_scheduler.CosineAnnealingLR(optimiser, epochs)
    order = torch.Generator().manual_seed(seed)
    for _ in range(epochs):
        for indices in torch.randperm(cases, generator=order).split(batch):
            optimiser.zero_grad()
            loss_of(indices).backward()
            optimiser.step()
        schedule.step()
