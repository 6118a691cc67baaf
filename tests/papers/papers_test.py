#!/usr/bin/env python3
"""The papers' own models on measurements that are made up: each learner finds an obvious rule; bad input has its sentence and exit code.

    tools/train/papers/run --python tests/papers/papers_test.py
"""

import contextlib
import gzip
import io
import json
import pathlib
import random
import sys
import tempfile
import unittest

import numpy

from papers import __main__ as program
from papers import cases, learners, maps, orders, products, thresholds

DEVICE = "A GPU, driver 1, kernels 1"
CONTENDERS = ["row_bins", "blocks.2", "blocks.8"]


def features(cv, rows=1000):
    values = dict.fromkeys(cases.FEATURES, 1.0)
    return dict(values, rows=rows, cols=rows, nnz=8 * rows, density=8 / rows, row_nonzeros_cv=cv, warp_load_max=8 * (1 + cv), distance_histogram=None)


def made(count=60, families=6):
    """Cases whose rows are even or not, in turns of chance: `uneven` tells the best choice."""
    chance = random.Random(1)
    for i in range(count):
        uneven = chance.random() < 0.5
        of = features(4.0 if uneven else 0.1, 1000 + 10 * i)
        histogram = [900, 100] + [0] * 15 if uneven else [0] * 10 + [500] + [0] * 6
        yield uneven, cases.Case(f"p{i}", f"family{i % families}", f"g{i}", {name: of[name] for name in cases.FEATURES}, histogram, {}, {}, {})


def judged(found, chosen, setting):
    ms = [case.ms[setting] for case in found]
    return numpy.mean([min(v for v in of if v is not None) / of[c] for of, c in zip(ms, chosen)])


class Rules(unittest.TestCase):
    def halves(self, ms_of, setting):
        found = []
        for uneven, case in made():
            case.ms[setting] = ms_of(uneven)
            found.append(case)
        return found[:40], found[40:]

    def test_row_orders(self):
        def ms_of(uneven):
            best = cases.ORDERS.index("lpt_sort" if uneven else "csr")
            return [1.0 if i == best else 2.0 for i in range(len(cases.ORDERS))]
        train, test = self.halves(ms_of, "kernel")
        chosen = orders.choices(train, test, "kernel")
        for model in set(chosen) - {"fixed"}:
            self.assertGreater(judged(test, chosen[model], "kernel"), 0.99, model)
        self.assertLess(judged(test, chosen["fixed"], "kernel"), 0.9)

    def test_threshold(self):
        train, test = self.halves(lambda uneven: [1 + abs(t - (3 if uneven else 12)) for t in range(16)], "32")
        chosen = thresholds.choices(train, test, "32")
        for model in ("tree", "trees_regret"):
            self.assertGreater(judged(test, chosen[model], "32"), 0.99, model)

    def test_algorithm_and_parameter_by_features_and_by_map(self):
        """Blocks of 8 where rows are even, of 2 elsewhere; row_bins is in the middle, and blocks do not suit some cases that are judged."""
        found, of_patterns = [], {}
        for i, (uneven, case) in enumerate(made()):
            case.ms["f32"] = [2.0, None, None] if i % 4 == 3 and i >= 40 else [2.0, 1.0, 4.0] if uneven else [2.0, 4.0, 1.0]
            pattern = numpy.zeros((maps.SIDE, maps.SIDE), numpy.uint8)
            pattern[:, :8] = 255 if uneven else 0
            pattern[numpy.diag_indices(maps.SIDE)] = 255
            of_patterns[case.pattern] = pattern
            found.append(case)
        chosen = products.choices(found[:40], found[40:], "f32", CONTENDERS, of_patterns, epochs=(60, 20, 60))
        for model in ("tree", "mlp", "cnn", "matnet"):
            self.assertGreater(judged(found[40:], chosen[model], "f32"), 0.95, model)
        self.assertTrue(all(case.ms["f32"][c] is not None for of in chosen.values() for case, c in zip(found[40:], of)))


class Parts(unittest.TestCase):
    def test_soft_labels_are_inverse_to_times(self):
        _, case = next(made())
        case.ms["f32"] = [2.0, 1.0, None]
        labels = products.Labels([case], "f32", CONTENDERS)
        self.assertEqual(labels.algorithms, ["blocks", "row_bins"])
        numpy.testing.assert_allclose(labels.probabilities, [[2 / 3, 1 / 3]])
        self.assertEqual(labels.parameters.tolist(), [2])

    def test_fixed_choice_suits(self):
        train = numpy.array([[1.0, 2.0], [1.0, 2.0]])
        self.assertEqual(learners.fixed(train, numpy.array([[3.0, 1.0], [learners.UNMEASURED, 1.0]])), [0, 1])

    def test_folds_never_share_a_family(self):
        found = [case for _, case in made(families=7)]
        folds = cases.family_folds(found, 4)
        of_family = {}
        for case, fold in zip(found, folds):
            of_family.setdefault(case.family, set()).add(fold)
        self.assertTrue(all(len(of) == 1 for of in of_family.values()))
        self.assertEqual(set(folds), set(range(4)))

    def test_tiles_are_counted_as_the_engine_does(self):
        counts = maps.counted(256, 200, numpy.array([0, 2] + [3] * 254 + [4]), numpy.array([0, 1, 199, 100]))
        self.assertEqual(counts[0, 0], 2)  # floor(128 * 1 / 200) = 0
        self.assertEqual(counts[0, 127], 1)  # row 1: floor(128 / 256) = 0
        self.assertEqual(counts[127, 64], 1)
        self.assertEqual(counts.sum(), 4)
        self.assertEqual(maps.scaled(counts).max(), 255)


def measured(pattern, **line):
    return dict({"line": "measurement", "pattern": pattern, "operation": "spmm", "type": "f32", "csr_ms": 1.0, "preparation_ms": 0.0, "k": 32}, **line)


def corpus_lines(device=DEVICE):
    yield {"line": "run", "device_model": device}
    for i, (uneven, case) in enumerate(made(12)):
        for t in range(1, 17):
            yield measured(case.pattern, recipe=f"row_segments(force,panel=64,min_heavy={t},coarsen=0)", kernel="streams", median_ms=1.23456 + abs(t - (4 if uneven else 12)))
        for recipe, kernel in (("csr", "cuda.csr.row_bins"), ("bcsr(width=2)", "cuda.bcsr.blocks")):
            yield measured(case.pattern, recipe=recipe, kernel=kernel, operation="spgemm", median_ms=1.0 + i % 2)
        yield {"line": "pattern", "pattern": case.pattern, "family": case.family, "group": case.group,
               "features": dict(case.features, distance_histogram=case.histogram)}


class Program(unittest.TestCase):
    def setUp(self):
        folder = tempfile.TemporaryDirectory()
        self.addCleanup(folder.cleanup)
        self.folder = pathlib.Path(folder.name)

    def write(self, name, lines):
        path = self.folder / name
        with gzip.open(path, "wt") as file:
            file.write("".join(json.dumps(line) + "\n" for line in lines))
        return str(path)

    def run_program(self, *arguments):
        out, error = io.StringIO(), io.StringIO()
        with contextlib.redirect_stdout(out), contextlib.redirect_stderr(error):
            code = program.main([str(a) for a in arguments])
        return code, out.getvalue() + error.getvalue()

    def test_packs_and_predicts_each_pattern_once(self):
        raw, packed, out = self.write("raw.gz", corpus_lines()), self.folder / "packed.gz", self.folder / "out.gz"
        self.assertEqual(self.run_program("pack", "thresholds", raw, f"--out={packed}")[0], 0)
        of = cases.load(packed, "thresholds")
        self.assertEqual((of.device, of.settings, len(of.cases)), (DEVICE, ["32"], 12))
        self.assertEqual(of.cases[0].beside, {"32": {"csr": 1.0}})
        self.assertEqual(min(of.cases[0].ms["32"]), 1.235)
        code, said = self.run_program("predict", "thresholds", packed, "--folds=3", f"--out={out}")
        self.assertEqual(code, 0, said)
        lines = cases.read_lines(out)
        for split in cases.SPLITS:
            self.assertEqual(sorted(line["pattern"] for line in lines if line["split"] == split), sorted(c.pattern for c in of.cases))
        code, said = self.run_program("pack", "products", raw, f"--out={packed}")
        self.assertEqual(cases.load(packed, "products").contenders, ["blocks.2", "row_bins"], said)

    def test_packs_orders_with_the_corpus_features(self):
        raw = self.write("raw.gz", corpus_lines())
        lines = [{"matrix": "p1", "kernel": "output_stationary.4", "layout": order + "(lanes=32)", "ms": 1.0, "device": DEVICE} for order in cases.ORDERS]
        measured_orders, packed = self.write("orders.gz", lines), self.folder / "packed.gz"
        self.assertEqual(self.run_program("pack", "orders", measured_orders, f"--corpus={raw}", f"--out={packed}")[0], 0)
        self.assertEqual(cases.load(packed, "orders").cases[0].ms, {"output_stationary.4": [1.0] * 11})
        stranger = self.write("stranger.gz", [dict(lines[0], matrix="stranger")])
        self.assertEqual(self.run_program("pack", "orders", stranger, f"--corpus={raw}", f"--out={packed}"),
                         (3, f"pattern stranger of {stranger} is not in the corpus's files: it has no features\n"))

    def test_bad_input_is_told(self):
        raw, out = self.write("raw.gz", corpus_lines()), self.folder / "out.gz"
        other = self.write("other.gz", corpus_lines("another GPU"))
        junk, cut = self.folder / "junk.jsonl", self.folder / "cut.gz"
        junk.write_text("no json\n{}\n", encoding="utf-8")
        cut.write_bytes(pathlib.Path(raw).read_bytes()[:200])
        packed = self.folder / "packed.gz"
        self.run_program("pack", "products", raw, f"--out={packed}")
        damaged = self.write("damaged.gz", [*cases.read_lines(packed)[:1], {"pattern": "p0"}])
        one_family = self.write("one.gz", [dict(line, family="f") if i else line for i, line in enumerate(cases.read_lines(packed))])
        of_maps = self.folder / "maps.npz"
        maps.save(of_maps, {f"p{i}": numpy.zeros((128, 128), numpy.uint8) for i in range(12)})
        for arguments, sentence in (
                (("pack", "products", raw, other), "measurements of one device are wanted"),
                (("pack", "products", self.folder / "none.gz"), "cannot be read: "),
                (("pack", "products", cut), "cannot be read: "),
                (("pack", "products", junk), "line 1 is no JSON"),
                (("pack", "orders", raw, f"--corpus={raw}"), "is no file of bench_permutations"),
                (("pack", "products", self.write("empty.gz", [{"line": "run", "device_model": DEVICE}])), "there is nothing of products"),
                (("predict", "orders", packed), "is no packed file of orders"),
                (("predict", "products", damaged, f"--maps={of_maps}"), "is damaged"),
                (("predict", "products", packed), "density maps of all patterns are needed"),
                (("predict", "products", packed, f"--maps={junk}"), "holds no density maps"),
                (("predict", "products", one_family, f"--maps={of_maps}"), "patterns of one family alone"),
                (("maps", packed, "--corpus-program=/no/such"), "/no/such cannot be run")):
            code, said = self.run_program(*arguments, f"--out={out}")
            self.assertIn(sentence, said)
            self.assertEqual(code, 3, said)
        for arguments in ((), ("predict", "weather", packed), ("predict", "products", packed, "--folds=1", f"--out={out}")):
            with self.assertRaises(SystemExit) as exited:
                self.run_program(*arguments)
            self.assertEqual(exited.exception.code, 2)


if __name__ == "__main__":
    unittest.main(argv=sys.argv)
