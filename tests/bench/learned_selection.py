#!/usr/bin/env python3
"""An experiment: what a learned selection of layout and kernel would have reached on matrices that it was not trained on.

usage: learned_selection.py MATRIX.mtx[.gz]... OUT.jsonl

Reads docs/results/h100/plans-f32.jsonl.gz, what the service's trials measured of the matrices, and extracts twelve features of each. For each
matrix, extremely randomised trees learn from the others the logarithm of each contender's time over the fastest one's; relatives (FAMILIES) are left out
with it. Only what was tried can be judged: contenders that rules left out count for nobody. Needs NumPy and scikit-learn; papers_tables.py reads the lines.
A time is null where a choice was not tried.
"""

import collections
import gzip
import json
import pathlib
import sys

import numpy
from sklearn.ensemble import ExtraTreesRegressor

from measurements import geomean, read_lines

PLANS = pathlib.Path(__file__).resolve().parents[2] / "docs/results/h100/plans-f32.jsonl.gz"
FAMILIES = ("musae", "gowalla", "bcsstk", "sparse-images", "CONT", "QSHIP", "wiki", "soc", "email", "ca-")


def read_pattern(path):
    """(rows, columns, row of each nonzero, column of each nonzero), by rows, both halves of a symmetric one."""
    opened = gzip.open(path, "rt") if path.suffix == ".gz" else open(path, encoding="utf-8")
    with opened as file:
        symmetric = "general" not in next(file)
        for text in file:
            if not text.startswith("%"):
                rows, cols, _ = map(int, text.split())
                break
        entries = numpy.array([text.split()[:2] for text in file if text.strip()], dtype=numpy.int64) - 1
    if symmetric:
        mirrored = entries[entries[:, 0] != entries[:, 1]][:, ::-1]
        entries = numpy.concatenate([entries, mirrored])
    entries = numpy.unique(entries, axis=0)
    return rows, cols, entries[:, 0], entries[:, 1]


def variation(counts):
    return counts.std() / max(counts.mean(), 1e-9)


def features(path):
    rows, cols, row, col = read_pattern(path)
    lengths, heights = numpy.bincount(row, minlength=rows), numpy.bincount(col, minlength=cols)
    nonzeros = len(row)
    neighbours = (numpy.diff(col) == 1) & (numpy.diff(row) == 0)
    # Nonzeros under one of the row before, and those in columns that 64 rows share.
    places = row * cols + col
    shared = numpy.isin(places - cols, places).mean()
    _, inverse, count = numpy.unique(row // 64 * cols + col, return_inverse=True, return_counts=True)
    dense = (count[inverse] > 1).mean()
    first = numpy.searchsorted(row, numpy.arange(rows)[lengths > 0])
    last = first + lengths[lengths > 0] - 1
    spread = (col[last] - col[first] + 1).mean() / cols
    return [numpy.log(rows), numpy.log(cols), numpy.log(nonzeros), numpy.log(lengths.mean()), variation(lengths),
            numpy.log(lengths.max()), (lengths == 0).mean(), variation(heights), neighbours.mean() if nonzeros > 1 else 0,
            shared, dense, spread]


def family(matrix):
    return next((name for name in FAMILIES if matrix.startswith(name)), matrix)


def train(measured, described, problems, left_out):
    """Trees, and the contenders' numbers."""
    names = {name: i for i, name in enumerate(sorted({n for of in measured.values() for contenders in of.values() for n in contenders}))}
    inputs, outputs = [], []
    for problem in problems:
        for matrix, contenders in measured[problem].items():
            if family(matrix) != left_out:
                fastest = min(contenders.values())
                for name, ms in contenders.items():
                    inputs.append(row_of(described[matrix], problem, name, names))
                    outputs.append(numpy.log(ms / fastest))
    trees = ExtraTreesRegressor(n_estimators=200, min_samples_leaf=2, random_state=0, n_jobs=1)
    return trees.fit(numpy.array(inputs), numpy.array(outputs)), names


def row_of(of_matrix, problem, name, names):
    one = numpy.zeros(len(names))
    one[names[name]] = 1
    return [*of_matrix, numpy.log(problem[2]), *one]


def fixed(measured, problem, left_out):
    """The contender that does best on the others, of those that were tried on all of these."""
    others = [c for matrix, c in measured[problem].items() if family(matrix) != left_out]
    everywhere = set.intersection(*map(set, others))
    return max(everywhere, key=lambda name: geomean([min(c.values()) / c[name] for c in others]))


def main():
    if len(sys.argv) < 3:
        sys.exit(__doc__)
    *paths, out = map(pathlib.Path, sys.argv[1:])
    described = {path.name.removesuffix(".gz").removesuffix(".mtx"): features(path) for path in paths}
    measured, plans = collections.defaultdict(lambda: collections.defaultdict(dict)), {}
    for line in read_lines(PLANS):
        if line["matrix"] in described:
            problem = line["op"], line["transposed"], line["k"]
            measured[problem][line["matrix"]][line["layout"] + " / " + line["kernel"]] = line["ms"]
            if line["plan"]:
                plans[problem, line["matrix"]] = line["ms"]
    lines = []
    for op, transposed in sorted({problem[:2] for problem in measured}):
        problems = [problem for problem in measured if problem[:2] == (op, transposed)]
        for left_out in sorted({family(matrix) for matrix in described}):
            trees, names = train(measured, described, problems, left_out)
            for problem in problems:
                always = fixed(measured, problem, left_out)
                for matrix, contenders in measured[problem].items():
                    if family(matrix) != left_out:
                        continue
                    tried = list(contenders)
                    estimates = trees.predict(numpy.array([row_of(described[matrix], problem, n, names) for n in tried]))
                    order = [tried[i] for i in numpy.argsort(estimates, kind="stable")]
                    lines.append({"op": op, "transposed": transposed, "k": problem[2], "matrix": matrix, "contenders": len(tried),
                                  "fastest_ms": min(contenders.values()), "fixed_ms": contenders.get(always),
                                  "first_ms": contenders[order[0]], "first_three_ms": min(contenders[n] for n in order[:3]),
                                  "plan_ms": plans.get((problem, matrix))})
    out.write_text("".join(json.dumps(line) + "\n" for line in lines), encoding="utf-8")


if __name__ == "__main__":
    main()
