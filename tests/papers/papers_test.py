#!/usr/bin/env python3
"""The papers' own models on measurements that are made up: each learner finds an obvious rule; bad input has its sentence and exit code.

    tools/train/papers/run --python tests/papers/papers_test.py
"""

import contextlib
import dataclasses
import gzip
import io
import json
import pathlib
import random
import sys
import tempfile
import unittest

import numpy
import sklearn.tree

from papers import __main__ as program
from papers import cases, learners, maps, network, orders, products, served, thresholds
from selector import data, directory

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
        chosen = thresholds.choices(train, test, "32", [str(t) for t in range(1, 17)])
        for model in ("tree", "trees_regret"):
            self.assertGreater(judged(test, chosen[model], "32"), 0.99, model)

    def test_threshold_in_two_phases(self):
        """The first phase takes coarsening 2, which is best in most rows; the second a threshold with that, though others are faster."""
        contenders = [f"{t}/{c}" for c in (1, 2) for t in (1, 2, 3)]
        table = numpy.array([[9, 9, 9, 1, 2, 3], [9, 9, 9, 3, 2, 1], [9, 1, 9, 4, 3, 2]], float)
        self.assertEqual(thresholds.first_phase(table, contenders).tolist(), [3, 4, 5])
        self.assertEqual(thresholds.first_phase(table, [name[0] for name in contenders]).tolist(), list(range(6)))

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


def served_lines(patterns=48, families=6):
    """Of sparsed_corpus measure: products, row orders and thresholds; which is best tells whether rows are even."""
    common = {"line": "measurement", "device": "cuda:0", "model": "A GPU, driver 1, kernels 2", "transposed": False, "type": "f32",
              "allow_tf32": False, "floor_ms": 0, "runs": 21, "censored": False, "csr_ms": 2.0}
    yield {"line": "run", "device": "cuda:0", "device_model": "A GPU, driver 1, kernels 2"}
    for uneven, of in made(patterns, families):
        of = dataclasses.replace(of, group=of.pattern)
        slow, fast = (4.0, 1.0) if uneven else (1.0, 4.0)
        for operation, k, recipe, kernel, ms in (
                ("spgemm", 0, "csr", "cuda.csr.row_bins", 2.0), ("spgemm", 0, "bcsr(width=2)", "cuda.bcsr.blocks", fast),
                ("spgemm", 0, "bcsr(width=8)", "cuda.bcsr.blocks", slow), ("spmm", 32, "csr", "cuda.csr.rows", 2.0),
                ("spmm", 32, "plain_sort(warps=32,run=1,lanes=1)", "cuda.csr.rows", fast),
                ("spmm", 32, "group_rows(size=8)", "cuda.csr.warp_rows", slow),
                ("spmm", 32, "row_segments(force,panel=64,min_heavy=0,coarsen=0)", "cuda.row_segments.streams", 3.0)):
            yield dict(common, pattern=of.pattern, family=of.family, group=of.group, operation=operation, k=k, recipe=recipe, kernel=kernel,
                       median_ms=ms, preparation_ms=0 if recipe == "csr" else 1e-3 * of.features["rows"])
        yield {"line": "pattern", "pattern": of.pattern, "family": of.family, "group": of.group,
               "features": dict(of.features, distance_histogram=of.histogram)}


class Served(unittest.TestCase):
    """What a server takes: directories, and what cross-validation found of them."""

    def setUp(self):
        folder = tempfile.TemporaryDirectory()
        self.addCleanup(folder.cleanup)
        self.folder = pathlib.Path(folder.name)
        self.raw = self.write("raw.jsonl.gz", served_lines())

    def write(self, name, lines):
        path = self.folder / name
        with gzip.open(path, "wt") as file:
            file.write("".join(json.dumps(line) + "\n" for line in lines))
        return str(path)

    def train(self, *arguments, code=0):
        out, error = io.StringIO(), io.StringIO()
        with contextlib.redirect_stdout(out), contextlib.redirect_stderr(error):
            done = program.main(["train", *map(str, arguments), f"--out={self.folder}/model", "--name=m", f"--results={self.folder}/results.jsonl.gz"])
        self.assertEqual(done, code, out.getvalue() + error.getvalue())
        return json.loads((self.folder / "model/manifest.json").read_text()) if code == 0 else error.getvalue()

    def check(self, manifest, groups):
        self.assertEqual((manifest["format"], manifest["name"], manifest["kernels"], manifest["device"]),
                         (1, "m", 2, {"kind": "cuda", "model": "A GPU"}))
        self.assertEqual([group["file"] for group in manifest["groups"]], groups)
        for group in manifest["groups"] + [manifest["building"]]:
            content = (self.folder / "model" / group["file"]).read_bytes()
            self.assertEqual(directory.digest(content), manifest["files"][group["file"]])
            self.assertEqual(group["kind"], "network")
        built = {recipe["recipe"] for recipe in manifest["building"]["recipes"]}
        for group in manifest["groups"]:
            self.assertTrue({candidate["recipe"] for candidate in group["candidates"]} - {"csr"} <= built)
            self.assertTrue(all(0 < candidate["deviation"] < 20 for candidate in group["candidates"]))
        lines = cases.read_lines(self.folder / "results.jsonl.gz")
        self.assertEqual(len(lines), 48 * len(groups))
        return numpy.mean([2 ** -line["regrets"][0] for line in lines])

    def test_orders(self):
        manifest = self.train("orders", "--data", self.raw)
        self.assertGreater(self.check(manifest, ["spmm_32.network"]), 0.98)
        self.assertEqual(manifest["inputs"], cases.ORDER_FEATURES)
        self.assertEqual({candidate["recipe"].split("(")[0] for candidate in manifest["groups"][0]["candidates"]}, {"csr", "plain_sort", "group_rows"})

    def test_products(self):
        of_maps = self.folder / "maps.npz"
        images = {}
        for uneven, of in made(48):
            images[of.pattern] = numpy.zeros((maps.SIDE, maps.SIDE), numpy.uint8)
            images[of.pattern][:, :8 if uneven else 64] = 255
        maps.save(of_maps, images)
        for model in ("tree", "mlp", "cnn", "matnet"):
            manifest = self.train("products", "--data", self.raw, f"--model={model}", f"--maps={of_maps}")
            self.assertGreater(self.check(manifest, ["spgemm.network"]), 0.95, model)
            self.assertEqual([c["recipe"] for c in manifest["groups"][0]["candidates"]], ["bcsr(width=2)", "bcsr(width=8)", "csr"])

    def test_thresholds(self):
        found = [of for _, of in made(48)]
        for uneven, of in zip((uneven for uneven, _ in made(48)), found):
            of.ms["32"], of.beside["32"] = [1.0 + abs(t - (3 if uneven else 12)) for t in range(1, 17)], {"csr": 2.0}
        packed = self.folder / "packed.gz"
        cases.save(packed, cases.Cases("thresholds", DEVICE, ["32"], [str(t) for t in range(1, 17)], found))
        manifest = self.train("thresholds", "--data", self.raw, f"--thresholds={packed}")
        self.assertGreater(self.check(manifest, ["spmm_32.network"]), 0.98)
        self.assertEqual(manifest["groups"][0]["candidates"][2]["recipe"], "row_segments(panel=64,min_heavy=3,coarsen=0)")
        estimates = served.Threshold(next(served.threshold_classes(data.read([self.raw]), cases.load(packed, "thresholds"))), manifest["inputs"], None)
        self.assertEqual(sorted(set(estimates.leaves[estimates.leaves < served.NOT_CHOSEN])), [-1.0], "a leaf names one, with its time")

    def test_bad_input_is_told(self):
        of_maps = self.folder / "maps.npz"
        maps.save(of_maps, {"p0": numpy.zeros((128, 128), numpy.uint8)})
        for arguments, sentence in (
                (("orders", "--data", self.folder / "none"), "cannot be read"),
                (("thresholds", "--data", self.raw), "--thresholds"),
                (("products", "--data", self.raw), "density maps of the patterns are needed"),
                (("products", "--data", self.raw, f"--maps={self.raw}"), "holds no density maps"),
                (("products", "--data", self.write("one.gz", served_lines(8, 1)), "--model=tree"), "one family alone")):
            self.assertIn(sentence, self.train(*arguments, code=3))
            self.assertFalse((self.folder / "model").exists())

    def test_a_tree_is_cut_where_scikit_learn_cuts(self):
        """Thresholds of 64 bits, rounded to 32, part floats as before."""
        x = numpy.array([[1000.1], [numpy.nextafter(numpy.float32(1000.1), numpy.float32(2000))]], numpy.float32)
        learned = sklearn.tree.DecisionTreeClassifier().fit(x, [0, 1])
        (_, (thresholds_of, leaves)) = network.tree(learned, learned.tree_.value[:, 0])
        self.assertEqual(thresholds_of.dtype, numpy.float32)
        self.assertEqual((x[:, 0] <= thresholds_of[0]).tolist(), [True, False])
        self.assertEqual(leaves.tolist(), [[1, 0], [0, 1]])

    def test_maps_are_made_of_what_the_corpus_program_writes(self):
        """By a program in its place, which writes a pattern of one nonzero for each name."""
        stand_in, out = self.folder / "corpus", self.folder / "maps.npz"
        stand_in.write_text(f"#!{sys.executable}\nimport sys, numpy\n"
                            "command, *names, out, style, files = sys.argv[1:]\n"
                            "assert (command, style, files) == ('write', '--format=npz', '--files=matrices')\n"
                            "for name in names:\n"
                            "    numpy.savez(out.removeprefix('--out=') + f'/{name}.npz', shape=[2, 2], indptr=[0, 0, 1], indices=[1])\n",
                            encoding="utf-8")
        stand_in.chmod(0o700)
        packed = self.folder / "packed.gz"
        found = [dataclasses.replace(of, ms={"f32": [1.0] * len(CONTENDERS)}) for _, of in made(3)]
        cases.save(packed, cases.Cases("products", DEVICE, ["f32"], CONTENDERS, found))
        said = io.StringIO()
        with contextlib.redirect_stdout(said), contextlib.redirect_stderr(said):
            code = program.main(["maps", str(packed), f"--corpus-program={stand_in}", "--files=matrices", f"--out={out}"])
        self.assertEqual(code, 0, said.getvalue())
        of_names = maps.load(out)
        self.assertEqual(sorted(of_names), ["p0", "p1", "p2"])
        self.assertEqual([tuple(tile) for tile in numpy.argwhere(of_names["p1"])], [(64, 64)])

    def test_maps_of_the_corpus_program_are_read(self):
        path = self.write("features.gz", [{"line": "features"}, {"line": "pattern", "pattern": "p", "features": {"density_map": [1, 5, 126, 1, 0, 7]}}])
        counts = numpy.zeros((128, 128), int)
        counts[0, 1], counts[1, 0], counts[1, 1] = 5, 1, 7
        numpy.testing.assert_array_equal(maps.load(path)["p"], maps.scaled(counts))
        with self.assertRaisesRegex(Exception, "the density map of q is none"):
            maps.load(self.write("long.gz", [{"pattern": "q", "features": {"density_map": [99999, 1]}}]))


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
        no_maps = self.folder / "junk.npz"
        no_maps.write_text("no maps", encoding="utf-8")
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
                (("predict", "products", packed, f"--maps={junk}"), "line 1 is no JSON"),
                (("predict", "products", packed, f"--maps={no_maps}"), "holds no density maps"),
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
