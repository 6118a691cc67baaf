#!/usr/bin/env python3
"""Trains models on measurements that are made up, and gives the trainer what it must refuse.

    tools/train/run --python tests/train/train_test.py
"""

import gzip
import json
import lzma
import math
import pathlib
import random
import subprocess
import sys
import tempfile
import unittest

import numpy
import xgboost
import xxhash

from selector import data, judge, learn, model, pack, policy, training

BAD_INPUT = 3
H100 = "NVIDIA H100 80GB HBM3, driver 13.0, kernels 2"
XEON = "Intel(R) Xeon(R) Processor, 2 threads, kernels 2"
PANELS = ("row_panels(force,rows=8)", "cuda.row_panels.mma")
GROUPED = ("group_rows(size=8)", "cuda.csr.split_rows")
DEFAULT = ("csr", "cuda.csr.split_rows")


def pattern_lines(name, family, cv, mean, device="cuda:0", model_name=H100, classes=(32, 128), swap=False):
    """Panels win where rows are even (cv < 1), grouped rows where they are not; never both; `swap`: the other way round."""
    rows = 1000 + 10 * len(name)
    common = {"line": "measurement", "pattern": name, "family": family, "group": f"{family}-{name}", "device": device, "model": model_name,
              "operation": "spmm", "transposed": False, "type": "f32", "allow_tf32": False, "floor_ms": 0.01, "runs": 21, "censored": False}
    yield {"line": "begin", "pattern": name}
    for k in classes:
        default_ms = 1e-5 * rows * mean * k / 32
        even = (cv < 1) != swap
        ratios = {DEFAULT: 1.0, PANELS: 0.4 if even else 2.5, GROUPED: 1.6 if even else 0.6}
        for (recipe, kernel), ratio in ratios.items():
            yield dict(common, **{"class": k, "k": k, "recipe": recipe, "kernel": kernel, "median_ms": default_ms * ratio, "csr_ms": default_ms,
                                  "preparation_ms": 0 if recipe == "csr" else 2e-4 * rows * mean})
    yield {"line": "pattern", "pattern": name, "family": family, "group": f"{family}-{name}", "parent": "", "rows": rows, "cols": rows,
           "nnz": rows * mean, "features": {"rows": rows, "nnz": rows * mean, "row_nonzeros_mean": mean, "row_nonzeros_cv": cv,
                                            "distance_histogram": [10, 20] + [0] * 15}}


def corpus(families=6, each=8, **options):
    """The lines of a file of sparsed_corpus measure."""
    chance = random.Random(1)
    yield {"line": "run", "format": 1, "device": options.get("device", "cuda:0"), "device_model": options.get("model_name", H100)}
    for f in range(families):
        for i in range(each):
            yield from pattern_lines(f"p{f}x{i}", f"family{f}", chance.uniform(0, 2), chance.choice([4, 8, 16]), **options)


def exported(patterns=12, hash_begin="h", swap=True):
    """The lines of sparsectl measurements --all --out."""
    chance = random.Random(2)
    for i in range(patterns):
        lines = list(pattern_lines(f"{hash_begin}{i}", "", chance.uniform(0, 2), 8, swap=swap))
        features = lines[-1]["features"]
        histogram = [{"least": 1, "most": 1, "count": 10}, {"least": 2, "most": 3, "count": 20}, {"least": 4, "most": 15, "count": 0},
                     {"least": 16, "most": 63, "count": 0}]
        measurements = [{"class": {"operation": m["operation"], "transposed": False, "k": m["class"], "allow_tf32": False}, "type": "f32",
                         "right_pattern_hash": "", "transpose_left": False, "transpose_right": False,
                         **{key: m[key] for key in ("recipe", "kernel", "device", "k", "runs", "model", "censored", *data.MEASURED[:3])}}
                        for m in lines if m["line"] == "measurement"]
        yield {"pattern_hash": f"{hash_begin}{i}", "past": False, "features": {k: v for k, v in features.items() if k != "distance_histogram"},
               "distance_histogram": histogram, "density_map": [], "measurements": measurements}


def write(path, lines):
    opened = {".gz": gzip.open, ".xz": lzma.open}.get(path.suffix, open)
    with opened(path, "wt", encoding="utf-8") as file:
        file.writelines(json.dumps(line) + "\n" for line in lines)
    return path


class TrainTest(unittest.TestCase):
    @classmethod
    def setUpClass(cls):
        cls.folder = tempfile.TemporaryDirectory()
        cls.at = pathlib.Path(cls.folder.name)
        cls.raw = write(cls.at / "corpus.jsonl.gz", corpus())
        cls.trained = cls.at / "model"
        done = cls.run_trainer("train", "--data", cls.raw, f"--out={cls.trained}", "--name=tiny", f"--results={cls.at}/results.jsonl.gz")
        if done.returncode:
            raise AssertionError(done.stdout + done.stderr)
        cls.printed = done.stdout
        cls.manifest = json.loads((cls.trained / "manifest.json").read_text())

    @classmethod
    def tearDownClass(cls):
        cls.folder.cleanup()

    @staticmethod
    def run_trainer(*arguments):
        return subprocess.run([sys.executable, "-m", "selector", *map(str, arguments)], capture_output=True, text=True, check=False)

    def refused(self, *arguments, saying, code=BAD_INPUT):
        done = self.run_trainer(*arguments)
        self.assertEqual(done.returncode, code, done.stdout + done.stderr)
        self.assertIn(saying, done.stderr)
        self.assertNotIn("Traceback", done.stderr)

    def test_one_device_is_judged_by_models_of_another(self):
        other = write(self.at / "h200.jsonl", corpus(model_name="NVIDIA H200, driver 13.0, kernels 2"))
        results = self.at / "across.jsonl.gz"
        done = self.run_trainer("evaluate", "--data", other, "--learn-from", self.raw, f"--results={results}")
        self.assertEqual(done.returncode, 0, done.stdout + done.stderr)
        lines = [json.loads(line) for line in gzip.open(results, "rt")]
        self.assertEqual(lines[0]["device"]["model"], "NVIDIA H200")
        self.assertEqual(lines[0]["learned"]["device"]["model"], "NVIDIA H100 80GB HBM3")
        regrets = [line["regrets"][2] for line in lines if line["line"] == "choice"]
        self.assertEqual(len(regrets), len({line["pattern"] for line in lines if line["line"] == "choice"}) * len({line["class"] for line in lines if line["line"] == "choice"}))
        self.assertLess(sum(regrets) / len(regrets), 0.1)
        # On a device where the opposite is true, they choose badly: they have learned nothing of it.
        swapped = write(self.at / "swapped.jsonl", corpus(model_name="NVIDIA H200, driver 13.0, kernels 2", swap=True))
        done = self.run_trainer("evaluate", "--data", swapped, "--learn-from", self.raw, f"--results={results}")
        lines = [json.loads(line) for line in gzip.open(results, "rt")]
        regrets = [line["regrets"][2] for line in lines if line["line"] == "choice"]
        self.assertGreater(sum(regrets) / len(regrets), 0.5)
        newer = write(self.at / "newer.jsonl", corpus(model_name="NVIDIA H200, driver 13.0, kernels 3"))
        self.refused("evaluate", "--data", newer, "--learn-from", self.raw, saying="version 3 of the kernels")

    def test_choices_are_timed_again(self):
        results = self.at / "again.jsonl.gz"
        def again(file):
            done = self.run_trainer("evaluate", "--data", self.raw, "--again", file, f"--results={results}")
            self.assertEqual(done.returncode, 0, done.stdout + done.stderr)
            self.assertIn("Measured again", done.stdout)
            lines = [json.loads(line) for line in gzip.open(results, "rt")]
            self.assertEqual({line["line"] for line in lines[1:]}, {"again"})
            return [line["regrets"] for line in lines[1:]]
        # By the same measurements the fastest of all is the fastest.
        same = again(self.raw)
        self.assertTrue(all(first >= three >= 0 for first, three in same))
        self.assertLess(sum(first for first, _ in same) / len(same), 0.1)
        # By others what was the fastest may be slower than what was chosen: where the opposite is true, all are.
        swapped = again(write(self.at / "again.jsonl", corpus(swap=True)))
        self.assertEqual(len(swapped), len(same))
        self.assertTrue(all(first <= 0 for first, _ in swapped))
        other = write(self.at / "other.jsonl", corpus(model_name="NVIDIA H200, driver 13.0, kernels 2"))
        self.refused("evaluate", "--data", self.raw, "--again", other, saying="measured again on NVIDIA H200")

    def test_features_that_come_later_hold(self):
        later = write(self.at / "later.jsonl", [
            {"line": "features", "format": 1},
            {"line": "pattern", "pattern": "p0x0", "family": "family0", "group": "family0-p0x0",
             "features": {"rows": 7, "anything": 3, "distance_histogram": [1] + [0] * 16}},
            {"line": "pattern", "pattern": "p0x1", "family": "family0", "group": "family0-p0x1", "failed": "no memory"}])
        read = {pattern.name: pattern for pattern in data.read([self.raw, later]).patterns}
        self.assertEqual(read["p0x0"].features, {"rows": 7, "anything": 3, "distance_histogram": [1] + [0] * 16})
        self.assertNotIn("anything", read["p0x1"].features)
        self.assertTrue(read["p0x0"].measured)

    def refused_data(self, *files, saying):
        out = self.at / "refused"
        self.refused("train", "--data", *files, f"--out={out}", "--name=refused", saying=saying)
        self.assertFalse(out.exists())

    # What is read and packed.

    def test_packed_says_what_the_raw_files_say(self):
        packed = self.at / "packed.jsonl.xz"
        done = self.run_trainer("pack", self.raw, f"--out={packed}")
        self.assertEqual(done.returncode, 0, done.stderr)
        raw, again = data.read([self.raw]), data.read([packed])
        self.assertEqual(again.device, raw.device)
        self.assertEqual([p.name for p in again.patterns], [p.name for p in raw.patterns])
        for one, other in zip(raw.patterns, again.patterns):
            self.assertEqual((one.family, one.group), (other.family, other.group))
            self.assertEqual(one.features["distance_histogram"], other.features["distance_histogram"])
            self.assertAlmostEqual(one.features["row_nonzeros_cv"], other.features["row_nonzeros_cv"], places=4)
            self.assertEqual(one.measured.keys(), other.measured.keys())
            for problem, measured in one.measured.items():
                self.assertEqual(measured.keys(), other.measured[problem].keys())
                self.assertEqual(data.default(other.measured[problem]), data.Candidate(*DEFAULT))
                for candidate, m in measured.items():
                    n = other.measured[problem][candidate]
                    self.assertLess(abs(math.log(n.median_ms / m.median_ms)), 1e-3)
                    self.assertEqual((n.runs, n.censored), (m.runs, m.censored))
        # Packing once more changes nothing.
        pack.pack(again, self.at / "twice.jsonl.xz")
        self.assertEqual(lzma.open(packed).read(), lzma.open(self.at / "twice.jsonl.xz").read())

    def test_rounding_makes_no_default(self):
        self.assertNotEqual(*pack.times(data.Measurement(1.00001, 1.00002, 0, 21, False)))
        self.assertEqual(*pack.times(data.Measurement(1.00001, 1.00001, 0, 21, False)))

    def test_the_last_line_of_a_candidate_holds(self):
        lines = list(corpus(1, 1))
        again = dict(next(line for line in lines if line.get("recipe") == GROUPED[0]), median_ms=77.0)
        read = data.read([write(self.at / "again.jsonl", [*lines, again])])
        problem = data.Problem("spmm", False, "f32", False, 32)
        self.assertEqual(read.patterns[0].measured[problem][data.Candidate(*GROUPED)].median_ms, 77.0)

    def test_recipes_are_canonical(self):
        self.assertEqual(data.canonical("lsh_cluster(force,siglen=128,bsize=2) > row_panels(force,rows=8)", "spmm"),
                         "lsh_cluster(siglen=128,bsize=2) > row_panels(rows=8)")
        self.assertEqual(data.canonical("aspt(panel=64) > lsh_cluster(remainder,force,siglen=128)", "sddmm"),
                         "aspt(panel=64) > lsh_cluster(remainder,siglen=128)")
        self.assertEqual(data.canonical("csr * dia", "spgemm"), "dia")

    def test_a_servers_own_measurements_are_read(self):
        lines = list(exported(2))
        square = dict(lines[0]["measurements"][0], recipe="csr * csr", kernel="cuda.csr.row_bins", k=0, right_pattern_hash="h0",
                      **{"class": {"operation": "spgemm", "transposed": False, "k": 0, "allow_tf32": False}})
        lines[0]["measurements"] += [square, dict(square, right_pattern_hash="other", kernel="cuda.csr.row_words"),
                                     dict(square, transpose_left=True, kernel="cuda.csr.row_bitmaps")]
        read = data.read([write(self.at / "own.jsonl.xz", lines)])
        self.assertEqual(read.patterns[0].features["distance_histogram"][:3], [10, 20, 0])
        products = read.patterns[0].measured[data.Problem("spgemm", False, "f32", False, 0)]
        self.assertEqual(list(products), [data.Candidate("csr", "cuda.csr.row_bins")])
        self.assertEqual(len(read.patterns[1].measured), 2)

    def test_of_several_devices_and_kernels_those_that_fit_are_taken(self):
        lines = list(exported(3))
        cpu = dict(lines[0]["measurements"][0], device="cpu", model="Some CPU, kernels 2")
        lines[0]["measurements"].insert(0, cpu)
        older = [dict(m, model=m["model"].replace("kernels 2", "kernels 1")) for m in lines[1]["measurements"]]
        lines[1] = dict(lines[1], measurements=older)
        path = write(self.at / "mixed.jsonl", lines)
        with self.assertRaisesRegex(data.BadData, "a model is of one kind"):
            data.read([path])
        read = data.read([path], "cuda")
        self.assertEqual((read.device.kind, read.device.kernels), ("cuda", 2))
        self.assertEqual([pattern.name for pattern in read.patterns], ["h0", "h2"])
        # Newer ones take the place of what was read before.
        self.assertEqual([pattern.name for pattern in data.read([write(self.at / "older.jsonl", [lines[1], lines[2]])], "cuda").patterns], ["h2"])

    # What is learned.

    def test_it_reaches_the_oracle(self):
        whole = self.manifest["held_out"]["spmm"]["all"]
        self.assertGreater(whole["first"], 0.97)
        self.assertGreater(whole["first_three"], 0.999)
        self.assertLess(whole["default"], 0.7)
        self.assertLess(whole["fixed"], 0.9)
        self.assertIn("spmm", self.printed)

    def test_the_manifest_is_complete(self):
        manifest = self.manifest
        self.assertEqual((manifest["format"], manifest["name"], manifest["kernels"]), (1, "tiny", 2))
        self.assertEqual(manifest["device"], {"kind": "cuda", "model": "NVIDIA H100 80GB HBM3"})
        self.assertRegex(manifest["created"], r"^\d{4}-\d\d-\d\dT\d\d:\d\d:\d\dZ$")
        self.assertEqual(manifest["inputs"][-3:], ["k", "value_bytes", "tf32"])
        self.assertEqual(len(set(manifest["inputs"])), len(manifest["inputs"]))
        self.assertIn("distance_16", manifest["inputs"])
        (group,) = manifest["groups"]
        self.assertEqual((group["operation"], group["transposed"], group["types"], group["least_k"], group["most_k"]),
                         ("spmm", False, ["f32"], 32, 128))
        self.assertEqual({(c["recipe"], c["kernel"]) for c in group["candidates"]},
                         {("row_panels(rows=8)", PANELS[1]), GROUPED})  # canonical, and without the default
        self.assertTrue(all(0 < c["deviation"] < 1 for c in group["candidates"]))
        self.assertTrue(0 <= group["shared_deviation"] < 1)
        self.assertEqual({r["recipe"] for r in manifest["building"]["recipes"]}, {"row_panels(rows=8)", GROUPED[0]})
        self.assertEqual((manifest["data"]["patterns"], manifest["data"]["families"], manifest["data"]["measurements"]), (48, 6, 288))
        self.assertGreater(manifest["data"]["most_nonzeros"], 1000)
        files = {path.name: path.read_bytes() for path in self.trained.iterdir() if path.name != "manifest.json"}
        self.assertEqual({name: xxhash.xxh3_128_hexdigest(content) for name, content in files.items()}, manifest["files"])
        self.assertEqual(set(files), {group["file"], manifest["building"]["file"]})
        for name, outputs in ((group["file"], len(group["candidates"])), (manifest["building"]["file"], 2)):
            booster = xgboost.Booster(model_file=bytearray(files[name]))
            self.assertEqual(booster.num_features(), len(manifest["inputs"]))
            self.assertEqual(learn.predict(booster, [[0.0] * len(manifest["inputs"])]).shape, (1, outputs))

    def test_estimates_are_log2_ratios_and_seconds(self):
        read = data.read([self.raw])
        trained = model.load(self.trained)
        group = next(training.groups_of(read, self.manifest["inputs"]))
        estimates = model.estimates(trained, group)
        panels = group.candidates.index(data.Candidate("row_panels(rows=8)", PANELS[1]))
        wins = group.ratios[:, panels] < 0
        self.assertLess(abs(estimates[wins, panels].mean() - math.log2(0.4)), 0.3)
        pattern = read.patterns[0]
        row = learn.inputs_of(pattern, self.manifest["inputs"], [(32, 4, 0)])
        seconds = 2 ** learn.predict(trained.boosters["building.ubj"], row)[0]
        actual = next(iter(pattern.measured.values()))[data.Candidate("row_panels(rows=8)", PANELS[1])].preparation_ms / 1e3
        self.assertTrue(all(actual / 2 < s < actual * 2 for s in seconds), (seconds, actual))

    def test_the_same_data_make_the_same_model(self):
        again = self.at / "again"
        self.assertEqual(self.run_trainer("train", "--data", self.raw, f"--out={again}", "--name=tiny").returncode, 0)
        manifest = json.loads((again / "manifest.json").read_text())
        self.assertEqual(manifest["files"], self.manifest["files"])
        self.assertEqual(manifest["data"], self.manifest["data"])

    def test_families_are_never_on_both_sides(self):
        read = data.read([self.raw])
        rows = [pattern for pattern in read.patterns for _ in pattern.measured]
        split = judge.folds(read.patterns)
        self.assertEqual(len(split), 6)
        held_out = []
        for held, seen in judge.parts(rows, split):
            self.assertFalse({rows[i].family for i in held} & {rows[i].family for i in seen})
            self.assertEqual(sorted(held + seen), list(range(len(rows))))
            held_out += held
        self.assertEqual(sorted(held_out), list(range(len(rows))))

    def test_real_relatives_stay_together(self):
        def real(name):
            return data.Pattern(f"real-{name}", "real", f"real-real-{name}", {}, {})
        self.assertEqual(judge.household(real("musae_DE")), judge.household(real("musae_facebook")))
        self.assertEqual(judge.household(real("dnn-n1024-l1")), judge.household(real("dnn-n1024-l3")))
        self.assertEqual(judge.household(real("cora")), judge.household(real("cora_X")))
        self.assertEqual(judge.household(real("gowalla_R")), judge.household(real("gowalla_norm_adj")))
        self.assertNotEqual(judge.household(real("wing")), judge.household(real("watt_2")))

    def test_results_tell_every_choice(self):
        lines = [json.loads(text) for text in gzip.open(self.at / "results.jsonl.gz", "rt")]
        choices = [line for line in lines if line["line"] == "choice"]
        self.assertEqual(len(choices), 96)
        self.assertTrue(all(regret >= 0 for line in choices for regret in line["regrets"]))
        self.assertEqual({line["requests"] for line in lines if line["line"] == "policy"}, set(policy.REQUESTS))

    def test_a_model_is_judged(self):
        done = self.run_trainer("evaluate", "--data", self.raw, f"--model={self.trained}")
        self.assertEqual(done.returncode, 0, done.stderr)
        self.assertIn("K=128", done.stdout)

    # Going on with a model.

    def test_a_warm_start_learns_what_is_new(self):
        own = write(self.at / "swapped.jsonl.gz", exported(24))
        warm = self.at / "warm"
        done = self.run_trainer("train", "--data", own, f"--out={warm}", "--name=own", f"--warm-start={self.trained}")
        self.assertEqual(done.returncode, 0, done.stderr)
        before, after = model.load(self.trained), model.load(warm)
        self.assertEqual(after.manifest["inputs"], before.manifest["inputs"])
        self.assertEqual(model.candidates_of(after.manifest["groups"][0]), model.candidates_of(before.manifest["groups"][0]))
        group = next(training.groups_of(data.read([own]), before.manifest["inputs"]))
        regret = {name: judge.first(group, model.estimates(one, group)).mean() for name, one in (("before", before), ("after", after))}
        self.assertGreater(regret["before"], 1)
        self.assertLess(regret["after"], 0.6 * regret["before"])

    def test_a_warm_start_keeps_groups_that_were_not_measured(self):
        lines = list(corpus())
        transposed = [dict(line, transposed=True) for line in lines if line["line"] == "measurement"]
        both, own = self.at / "both", self.at / "both-warm"
        self.assertEqual(self.run_trainer("train", "--data", write(self.at / "both.jsonl", [*lines, *transposed]), f"--out={both}", "--name=both").returncode, 0)
        done = self.run_trainer("train", "--data", write(self.at / "own.jsonl", exported(24)), f"--out={own}", "--name=own", f"--warm-start={both}")
        self.assertEqual(done.returncode, 0, done.stderr)
        files = [json.loads((path / "manifest.json").read_text())["files"] for path in (both, own)]
        self.assertEqual(files[0]["spmm_transposed.ubj"], files[1]["spmm_transposed.ubj"])
        self.assertNotEqual(files[0]["spmm.ubj"], files[1]["spmm.ubj"])

    def test_a_warm_start_refuses_what_does_not_fit(self):
        def refuse(saying, **options):
            own = write(self.at / "unlike.jsonl", corpus(**options))
            self.refused("train", "--data", own, f"--out={self.at}/refused", "--name=own", f"--warm-start={self.trained}", saying=saying)
        refuse("of a cuda device, the measurements are of a cpu device", device="cpu", model_name=XEON)
        refuse("of version 2 of the kernels, the measurements are of 3", model_name=H100.replace("kernels 2", "kernels 3"))
        self.refused("train", "--data", self.raw, f"--out={self.at}/refused", "--name=own", f"--warm-start={self.at}/none", saying="no model")

    def test_a_damaged_model_is_refused(self):
        damaged = self.at / "damaged"
        damaged.mkdir()
        for path in self.trained.iterdir():
            content = path.read_bytes()
            (damaged / path.name).write_bytes(content[:-1] + b"!" if path.name == "spmm.ubj" else content)
        self.refused("evaluate", "--data", self.raw, f"--model={damaged}", saying="spmm.ubj is damaged")

    # What is refused.

    def test_data_that_do_not_go_together(self):
        cpu = write(self.at / "cpu.jsonl", corpus(device="cpu", model_name=XEON))
        other = write(self.at / "h200.jsonl", corpus(model_name=H100.replace("H100 80GB HBM3", "H200")))
        newer = write(self.at / "newer.jsonl", corpus(model_name=H100.replace("kernels 2", "kernels 3")))
        unversioned = write(self.at / "unversioned.jsonl", corpus(model_name="NVIDIA H100"))
        self.refused_data(self.raw, cpu, saying="a model is of one kind")
        self.refused_data(self.raw, other, saying="a model is of one device")
        self.refused_data(self.raw, newer, saying="with version 3 of the kernels, the others with 2")
        self.refused_data(unversioned, saying="does not say which version of the kernels")

    def test_files_that_cannot_be_read(self):
        empty = write(self.at / "empty.jsonl", [])
        self.refused_data(empty, saying="nothing in it")
        self.refused_data(self.at / "none.jsonl", saying="cannot be read")
        truncated = self.at / "truncated.jsonl.gz"
        truncated.write_bytes(self.raw.read_bytes()[:2000])
        self.refused_data(truncated, saying="cannot be read")
        half = self.at / "half.jsonl"
        half.write_text('{"line":"run","device":"cuda:0","device_model":"%s"}\n{"line":"measure' % H100)
        self.refused_data(half, saying="line 2 is no JSON")
        self.refused_data(write(self.at / "alien.jsonl", [{"a": 1}]), saying="neither of sparsed_corpus")
        self.refused_data(write(self.at / "list.jsonl", [[1]]), saying="line 1 is no object")
        lines = list(corpus(1, 1))
        del lines[2]["median_ms"]
        self.refused_data(write(self.at / "lacking.jsonl", lines), saying="line 3 is damaged")
        self.refused_data(write(self.at / "zst.jsonl.zst", corpus(1, 1)), saying="not .zst")

    def test_data_that_teach_nothing(self):
        lines = list(corpus())
        for line in lines:
            line.pop("features", None)
        self.refused_data(write(self.at / "featureless.jsonl", lines), saying="none of the patterns has features")
        self.refused_data(write(self.at / "few.jsonl", corpus(3, 1)), saying="3 patterns with features and measurements: at least 8")
        self.refused_data(write(self.at / "one.jsonl", corpus(1, 20)), saying="all patterns are of one family")
        unmeasured = [line for line in corpus() if line["line"] != "measurement"]
        self.refused_data(write(self.at / "unmeasured.jsonl", unmeasured), saying="no measurements")
        plain = [line for line in corpus() if line.get("recipe", "csr") == "csr"]
        self.refused_data(write(self.at / "plain.jsonl", plain), saying="nothing to choose between")

    def test_names_are_checked(self):
        for name in ("", "../up", "a b", "x" * 65, ".hidden"):
            self.refused("train", "--data", self.raw, f"--out={self.at}/refused", f"--name={name}", saying="no name of a model")
        self.assertEqual(self.run_trainer("train").returncode, 2)
        self.assertEqual(self.run_trainer().returncode, 2)

    def test_a_model_that_is_too_large_is_not_written(self):
        large = {"name": "large", "device": {"kind": "cpu", "model": ""}}
        with self.assertRaisesRegex(data.BadData, "more than"):
            model.write(self.at / "large", large, {"spmm.ubj": b"x" * (4 << 20)})
        self.assertFalse((self.at / "large").exists())

    # Trying by estimate.

    def test_what_costs_more_than_it_gains_is_not_tried(self):
        good = policy.Option("row_panels(rows=8)", -1.0, 0.2, 0.5, 1e-3, 1e-2)
        bad = policy.Option("group_rows(size=8)", 1.0, 0.1, 2.0, 1e-3, 1e-2)
        building = {good.pipeline: 1.0, bad.pipeline: 1.0}
        for requests, reached in ((1000, 1.0), (10_000, 0.5)):  # a gain of half a millisecond: 0.5 and 5 s
            best, built, tried, count = policy.simulate([[good, bad]], [0.1], building, building, requests)
            self.assertEqual(best, [reached])
            self.assertEqual((built, count), ((0, 0), (1.0, 1))[reached < 1])
            self.assertAlmostEqual(tried, 0.01 * count)

    def test_a_layout_is_built_once_for_all_classes(self):
        def options():
            return [policy.Option("row_panels(rows=8)", -1.0, 0.2, 0.5, 1e-3, 1e-2)]
        cost = {"row_panels(rows=8)": 1.0}
        self.assertEqual(policy.simulate([options()], [0.1], cost, cost, 1500)[0], [1.0])
        best, built, _, _ = policy.simulate([options(), options(), options()], [0.1] * 3, cost, cost, 1500)
        self.assertEqual((best, built), ([0.5] * 3, 1.0))

    def test_trials_tell_of_the_error_that_estimates_share(self):
        # All are half as fast as estimated: after one trial the others are known to be no gain.
        options = [policy.Option("csr", -0.5 - 0.01 * i, 0.05, 2 ** (0.5 - 0.01 * i), 1e-3, 1e-2) for i in range(8)]
        _, _, _, tried = policy.simulate([options], [1.0], {}, {}, 10_000)
        self.assertEqual(tried, 1)
        self.assertEqual(policy.simulate([options], [0.0], {}, {}, 10_000)[3], 8)

    def test_deviations_are_parted_in_shared_and_own(self):
        chance = numpy.random.default_rng(4)
        ratios = numpy.full((4000, 5), -1.0)
        estimates = ratios + chance.normal(0, 0.2, (4000, 1)) + chance.normal(0, 0.1, (4000, 5))
        group = learn.Group("spmm", False, [], [], None, [], ratios, numpy.ones(4000))
        own, shared = judge.deviations(group, estimates)
        self.assertAlmostEqual(shared, 0.2, delta=0.02)
        self.assertTrue(all(abs(deviation - 0.1) < 0.02 for deviation in own), own)

    def test_the_expected_gain_is_that_of_a_lognormal(self):
        option = policy.Option("csr", -0.2, 0.3, 1, 1, 1)
        chance = random.Random(3)
        drawn = [max(1 - 2 ** chance.gauss(-0.2, 0.3), 0) for _ in range(100_000)]
        self.assertAlmostEqual(policy.expected_gain(option, 1.0, policy.SharedError(0.0)), sum(drawn) / len(drawn), delta=2e-3)


if __name__ == "__main__":
    unittest.main()
