#!/usr/bin/env python3
"""Makes network/, a model of untrained networks for tests, and network.json, what PyTorch and
scikit-learn compute with them.

    tools/train/papers/run --python tests/data/model/make_network.py
"""

import json
import pathlib
import re

import numpy
import torch
from sklearn.tree import DecisionTreeClassifier
from torch import nn

from papers import maps, network, products
from selector import directory

HERE = pathlib.Path(__file__).resolve().parent
INPUTS = ["rows", "cols", "nnz", "row_nonzeros_mean", "k", "value_bytes", "tf32", "distance_0"]
SPMM = [
    ("aspt(panel=64,min_dense=2)", "cpu.aspt.panel"),
    # A pipeline that no rule has.
    ("plain_sort(warps=16,run=1,lanes=1)", "cpu.csr.row_balanced"),
    ("csr", "cpu.csr.slab"),
]
SDDMM = [("aspt(panel=64,min_dense=2)", "cpu.aspt.panel_dot"), ("transpose", "cpu.csr.dot")]
SPGEMM = [
    ("csr", "cpu.csr.row_groups"),
    ("csr", "cpu.csr.hash"),
    ("column_parts(parts=2)", "cpu.coo.column_parts"),
    ("column_parts(parts=4)", "cpu.coo.column_parts"),
]
ALGORITHMS, PARAMETERS = [0, 1, 2, 2], [0, 0, 2, 4]
MEAN, DEVIATION = [8] * 4 + [2] * 4, [3] * 8


def kernels_version():
    text = (HERE.parents[2] / "kernels/kernels_version.h").read_text(encoding="utf-8")
    return int(re.search(r"kKernelsVersion = (\d+)", text)[1])


def standardised(rows):
    x = (torch.log2(1 + abs(rows)) - torch.tensor(MEAN)) / torch.tensor(DEVIATION)
    return x.clamp(-5, 5)


def main():
    torch.manual_seed(3)
    chance = numpy.random.default_rng(3)
    scale = network.standardise(numpy.ones(8), MEAN, DEVIATION)
    rows = chance.integers(1, 100_000, (6, 8)).astype(numpy.float32)
    x = torch.tensor(rows)

    spmm = nn.Sequential(nn.Linear(8, 16), nn.ReLU(), nn.Linear(16, 8), nn.ReLU(), nn.Linear(8, 3))
    mlp = nn.Sequential(nn.Linear(8, 6), nn.ReLU())
    cnn = nn.Sequential(
        nn.Conv2d(1, 2, 5, stride=4, padding=2),
        nn.ReLU(),
        nn.MaxPool2d(2),
        nn.Conv2d(2, 3, 3, padding=1),
        nn.ReLU(),
        nn.MaxPool2d(3),
        nn.Flatten(),
        nn.Linear(3 * 5 * 5, 6),
        nn.ReLU(),
    )
    heads = nn.Linear(12, 4)  # three algorithms and a parameter
    building = nn.Linear(8, 5)  # a number for each pipeline

    counts = chance.integers(0, 2000, (maps.SIDE, maps.SIDE))
    counts[chance.random((maps.SIDE, maps.SIDE)) < 0.9] = 0
    image = torch.tensor(maps.scaled(counts), dtype=torch.float32)[None, None] / 255

    # Of whole numbers and halves: thresholds are midpoints.
    learned = DecisionTreeClassifier(random_state=1)
    of_tree = chance.integers(0, 9, (200, 8)).astype(numpy.float32)
    learned.fit(of_tree, (of_tree[:, 0] > of_tree[:, 1]) + 2 * (of_tree[:, 2] % 2))
    shares = learned.tree_.value[:, 0, :2]

    with torch.no_grad():
        logits = heads(torch.cat([mlp(standardised(x)), cnn(image).expand(len(x), -1)], 1)).numpy()
        spmm_says = spmm(standardised(x)).tolist()
        building_says = building(standardised(x)).tolist()
    spgemm_says = []
    for row in logits.astype(float):
        ratios = [(row[0] - row[a]) / numpy.log(2) for a in ALGORITHMS]
        ratios[2 if abs(row[3] - 4) < abs(row[3] - 2) else 3] = 10
        spgemm_says.append(ratios)
    files = {
        "spmm.network": network.file([("features", [scale, *network.of_torch(spmm)])], []),
        "sddmm.network": network.file([("features", [network.tree(learned, shares)])], []),
        "spgemm.network": network.file(
            [("features", [scale, *network.of_torch(mlp)]), ("density_map", network.of_torch(cnn))],
            [*network.of_torch([heads]), network.soft_labels(0, ALGORITHMS, PARAMETERS)],
        ),
        "building.network": network.file(
            [("features", [scale, *network.of_torch([building])])], []
        ),
    }
    groups = [
        {
            "operation": operation,
            "transposed": False,
            "types": ["f32", "f64"],
            "least_k": 1,
            "most_k": 512,
            "kind": "network",
            "file": f"{operation}.network",
            "shared_deviation": 0.1,
            "measured": ["csr", *sorted({r for r, _ in candidates})],
            "candidates": [
                {"recipe": pipeline, "kernel": kernel, "deviation": 0.25}
                for pipeline, kernel in candidates
            ],
        }
        for operation, candidates in (("spmm", SPMM), ("sddmm", SDDMM), ("spgemm", SPGEMM))
    ]
    pipelines = sorted({pipeline for group in groups for pipeline in group["measured"]} - {"csr"})
    manifest = {
        "name": "network",
        "device": {"kind": "cpu", "model": "a CPU of tests"},
        "kernels": kernels_version(),
        "inputs": INPUTS,
        "groups": groups,
        "building": {
            "kind": "network",
            "file": "building.network",
            "recipes": [{"recipe": pipeline} for pipeline in pipelines],
        },
        "data": {"patterns": 6, "digest": "none"},
        "held_out": {"spmm": {"all": {"first": 0.5}}},
    }
    directory.write(HERE / "network", manifest, files)
    tiles = numpy.flatnonzero(counts)
    said = {
        "rows": rows.tolist(),
        "spmm": spmm_says,
        "sddmm_rows": of_tree[:40].tolist(),
        "sddmm": shares[learned.apply(of_tree[:40])].tolist(),
        "spgemm": spgemm_says,
        "building": building_says,
        "tiles": tiles.tolist(),
        "counts": counts.reshape(-1)[tiles].tolist(),
    }
    (HERE / "network.json").write_text(
        json.dumps(said, separators=(",", ":")) + "\n", encoding="utf-8"
    )


if __name__ == "__main__":
    main()
