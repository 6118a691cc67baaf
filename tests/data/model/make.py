#!/usr/bin/env python3
"""Makes tiny/, a model of four groups for tests: python3 make.py (needs xgboost==1.7.4, xxhash).

What it estimates of a candidate depends on K alone, by GROUPS: log2 of its time over the default's
up to K = 128, and above. So tests know what it will choose.
"""

import json
import pathlib
import re

import numpy
import xgboost
import xxhash

HERE = pathlib.Path(__file__).resolve().parent
VERSION = HERE.parents[2] / "kernels" / "kernels_version.h"
INPUTS = ["rows", "cols", "nnz", "row_nonzeros_mean", "k", "value_bytes", "tf32", "distance_0"]
NARROW, WIDE = 32, 512
TILES = "aspt(panel=64,min_dense=2)"
CLUSTERED = "lsh_cluster(siglen=128,bsize=2,max_cluster=256)"
ROWS, SLAB = "cpu.csr.row_balanced", "cpu.csr.slab"

# File, operation, transposed, and candidates: pipeline, kernel, estimates up to K = 128 and above.
GROUPS = [
    ("spmm", "spmm", False, [(TILES, "cpu.aspt.panel", -2, 0.5),
                             (CLUSTERED, ROWS, 1, 1),
                             ("csr", SLAB, 0.25, -0.5)]),
    ("spmm_transposed", "spmm", True, [("transpose", ROWS, -1, -1),
                                       ("transpose", SLAB, 0.5, -1.5)]),
    ("sddmm", "sddmm", False, [(TILES, "cpu.aspt.panel_dot", -1, 0.5),
                               (CLUSTERED, "cpu.csr.dot", 1, 1),
                               ("csr", "cpu.csr.slab_dot", 0.25, -0.5)]),
    ("spgemm", "spgemm", False, [("csr", "cpu.csr.dense", -1, -1),
                                 ("csr", "cpu.csr.hash", 0.5, 0.5),
                                 ("csr", "cpu.csr.heap", 2, 2)]),
]
BUILD_SECONDS = [(TILES, 0.001), (CLUSTERED, 1000), ("transpose", 0.001)]


def kernels_version():
    """Of the kernels that there are; to be made anew when that is raised."""
    return int(re.search(r"kKernelsVersion = (\d+);", VERSION.read_text()).group(1))


def trees(narrow, wide):
    """Trees with one output for each of `narrow`, which split at K between NARROW and WIDE."""
    outputs = len(narrow)
    rows = numpy.random.default_rng(1).uniform(1, 100, (8, len(INPUTS)))
    rows[:, INPUTS.index("k")] = [NARROW, 226] * 4  # split half way: K = 128 is narrow, 129 wide
    wanted = numpy.array([narrow, wide] * 4, dtype=float)

    def squares(margins, _):
        return (margins.reshape(wanted.shape) - wanted).ravel(), numpy.ones(wanted.size)

    booster = xgboost.train(
        {"num_class": outputs, "base_score": 0, "learning_rate": 1, "max_depth": 1, "lambda": 0,
         "min_child_weight": 0, "tree_method": "exact", "disable_default_eval_metric": 1},
        xgboost.DMatrix(rows, label=numpy.zeros(len(rows))), num_boost_round=1, obj=squares)
    return bytes(booster.save_raw("ubj"))


def main():
    files = {}
    groups = []
    for name, operation, transposed, candidates in GROUPS:
        file = f"{name}.ubj"
        files[file] = trees([c[2] for c in candidates], [c[3] for c in candidates])
        spgemm = operation == "spgemm"
        groups.append({
            "operation": operation, "transposed": transposed, "types": ["f32", "f64"],
            "least_k": 0 if spgemm else 1, "most_k": 0 if spgemm else WIDE, "file": file,
            "candidates": [{"recipe": c[0], "kernel": c[1], "deviation": 0.25}
                           for c in candidates]})
    seconds = [float(numpy.log2(s)) for _, s in BUILD_SECONDS]
    files["building.ubj"] = trees(seconds, seconds)
    manifest = {
        "format": 1, "name": "tiny", "created": "2026-11-26T10:00:00Z",
        "device": {"kind": "cpu", "model": "a CPU of tests"}, "kernels": kernels_version(),
        "inputs": INPUTS,
        "groups": groups,
        "building": {"file": "building.ubj",
                     "recipes": [{"recipe": r, "deviation": 0.5} for r, _ in BUILD_SECONDS]},
        "data": {"digest": "0" * 32, "patterns": 8, "families": 2, "measurements": 96},
        "held_out": {},
        "files": {name: xxhash.xxh3_128_hexdigest(data) for name, data in files.items()}}
    tiny = HERE / "tiny"
    tiny.mkdir(exist_ok=True)
    for name, data in files.items():
        (tiny / name).write_bytes(data)
    (tiny / "manifest.json").write_text(json.dumps(manifest, indent=1) + "\n")


if __name__ == "__main__":
    main()
