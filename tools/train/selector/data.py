"""Measurements of candidates on patterns: what is read, checked and packed.

Three kinds of files are read, plain or compressed (.gz, .xz): those of `sparsed_corpus measure` and `features` (the last ones of a pattern hold), those that `sparsectl measurements --all --out=FILE`
writes, and packed ones (pack.py). A candidate is (pipeline, kernel); a problem is (operation, transposed, type, allow_tf32, k).
"""

import collections
import dataclasses
import gzip
import json
import lzma
import math
import pathlib
import re

DISTANCES = 17  # bins of distance_histogram
MEASURED = ("median_ms", "csr_ms", "preparation_ms", "runs", "censored")


class BadData(Exception):
    """What was given cannot be learned from; the text says why."""


Problem = collections.namedtuple("Problem", "operation transposed type allow_tf32 k")
Candidate = collections.namedtuple("Candidate", "pipeline kernel")
# median_ms of `runs` runs, csr_ms of the default turn by turn with them, preparation_ms to build the pipeline's layout.
Measurement = collections.namedtuple("Measurement", MEASURED)


@dataclasses.dataclass
class Pattern:
    name: str
    family: str
    group: str  # of patterns that are alike: never on both sides of a split
    features: dict  # by name; distance_histogram is a list
    measured: dict  # by problem, then by candidate


@dataclasses.dataclass
class Device:
    kind: str  # "cpu" or "cuda"
    model: str
    kernels: int  # version of the kernel table

    @staticmethod
    def of(device, model):
        """Of the columns `device` ("cuda:0") and `model` ("NVIDIA H100 80GB HBM3, driver 13.0, kernels 2", "Xeon, 2 threads, kernels 2")."""
        version = re.search(r", kernels (\d+)$", model)
        if not version:
            raise BadData(f'"{model}" does not say which version of the kernels was measured')
        return Device(device.split(":")[0], re.sub(r",( driver [^,]*,| \d+ threads?,)? kernels \d+$", "", model), int(version[1]))


@dataclasses.dataclass
class Data:
    device: Device
    patterns: list

    def measurements(self):
        return sum(len(of) for pattern in self.patterns for of in pattern.measured.values())


def canonical(pipeline, operation):
    """The pipeline's name in a model: without the flag `force`; of SpGEMM of a pattern with itself, what the first factor is read from."""
    if operation == "spgemm" and pipeline.startswith("csr * "):
        pipeline = pipeline.removeprefix("csr * ")
    return re.sub(r"\(force\)", "", re.sub(r"\bforce,|,force\b", "", pipeline))


def opened(path):
    path = pathlib.Path(path)
    if path.suffix == ".zst":
        raise BadData(f"{path}: plain, .gz and .xz files are read, not .zst")
    return {".gz": gzip.open, ".xz": lzma.open}.get(path.suffix, open)(path, "rt", encoding="utf-8")


def lines(path):
    try:
        with opened(path) as file:
            for number, text in enumerate(file, 1):
                if not text.strip():
                    continue
                try:
                    line = json.loads(text)
                except json.JSONDecodeError as error:
                    raise BadData(f"{path}: line {number} is no JSON: {error}") from None
                if not isinstance(line, dict):
                    raise BadData(f"{path}: line {number} is no object")
                yield number, line
    except (OSError, EOFError, lzma.LZMAError, UnicodeDecodeError) as error:
        raise BadData(f"{path}: cannot be read: {error}") from None


def measurement_of(line):
    values = [float(line[name] or 0) for name in MEASURED[:3]]
    return Measurement(*values, int(line["runs"]), bool(line["censored"]))


class Reader:
    """Puts files together; the last measurement of a pattern, problem and candidate holds."""

    def __init__(self, kind=None):
        self.kind = kind  # of devices, whose measurements alone are taken from exported ones; None: all
        self.device = None
        self.patterns = {}
        self.left_out = 0  # exported measurements: of another kind of device, or of older kernels

    def pattern(self, name, family="", group=""):
        return self.patterns.setdefault(name, Pattern(name, family or name, group or family or name, {}, {}))

    def check_device(self, path, device):
        if self.device is None:
            self.device = device
            return
        if device.kind != self.device.kind:
            raise BadData(f"{path}: measured on a {device.kind} device, the others on a {self.device.kind} device: a model is of one kind")
        if device.model != self.device.model:
            raise BadData(f"{path}: measured on {device.model}, the others on {self.device.model}: a model is of one device")
        if device.kernels != self.device.kernels:
            raise BadData(f"{path}: measured with version {device.kernels} of the kernels, the others with {self.device.kernels}: "
                          "measure the older ones again, or leave them out")

    def is_left_out(self, device):
        """Of the other kind of device, or of older kernels than others: newer ones take the place of what was read before."""
        if self.kind and device.kind != self.kind:
            return True
        known = self.device
        if known is None or (known.kind, known.model) != (device.kind, device.model) or device.kernels == known.kernels:
            return False
        if device.kernels < known.kernels:
            return True
        for pattern in self.patterns.values():
            self.left_out += sum(len(measured) for measured in pattern.measured.values())
            pattern.measured.clear()
        self.device = device
        return False

    def add(self, pattern, problem, candidate, measurement):
        if measurement.median_ms > 0 and measurement.csr_ms > 0:
            pattern.measured.setdefault(problem, {})[candidate] = measurement

    def add_line(self, pattern, line):
        problem = Problem(line["operation"], bool(line["transposed"]), line["type"], bool(line["allow_tf32"]), int(line["k"]))
        candidate = Candidate(canonical(line["recipe"], problem.operation), line["kernel"])
        self.add(pattern, problem, candidate, measurement_of(line))

    def read(self, path):
        kind, begun = None, set()
        for number, line in lines(path):
            try:
                if kind is None:
                    kind = ("packed" if line.get("line") == "packed" else "corpus" if line.get("line") in ("run", "features") else
                            "exported" if "pattern_hash" in line else None)
                    if kind is None:
                        raise BadData(f"{path}: neither of sparsed_corpus measure, nor of sparsectl measurements --all --out, nor packed")
                    header = line
                    if line.get("line") == "run":
                        self.check_device(path, Device.of(line["device"], line["device_model"]))
                    if line.get("line") == "packed":
                        self.check_device(path, Device(**line["device"]))
                        problems = [Problem(*problem) for problem in line["problems"]]
                        candidates = [Candidate(*candidate) for candidate in line["candidates"]]
                        continue
                if kind == "packed":
                    self.read_packed(line, header["features"], problems, candidates)
                elif kind == "exported":
                    self.read_exported(path, line)
                elif line["line"] == "measurement":
                    self.add_line(self.pattern(line["pattern"], line["family"], line["group"]), line)
                elif line["line"] == "pattern" and "features" in line:
                    self.pattern(line["pattern"], line["family"], line["group"]).features = line["features"]
            except (KeyError, TypeError, ValueError, AttributeError, IndexError) as error:
                raise BadData(f"{path}: line {number} is damaged: {type(error).__name__}: {error}") from None
        if kind is None:
            raise BadData(f"{path}: nothing in it")

    def read_packed(self, line, names, problems, candidates):
        pattern = self.pattern(line["pattern"], line["family"], line["group"])
        pattern.features = dict(zip(names, line["features"]), distance_histogram=line["distance_histogram"])
        for problem, measurements in line["measured"].items():
            for candidate, median, csr, preparation, runs, censored in measurements:
                self.add(pattern, problems[int(problem)], candidates[candidate], Measurement(median, csr, preparation, runs, bool(censored)))

    def read_exported(self, path, line):
        """A customer's own: families are not known, each pattern is one."""
        pattern = self.pattern(line["pattern_hash"])
        if line["features"]:
            pattern.features = dict(line["features"], distance_histogram=[0] * DISTANCES)
            for one in line["distance_histogram"]:  # those that are not empty, by least distance: 1, 2, 4, 16, 64, ...
                least = int(one["least"])
                pattern.features["distance_histogram"][least - 1 if least < 3 else least.bit_length() // 2 + 1] = one["count"]
        for m in line["measurements"]:
            if not m["model"]:
                continue  # of a program that did not say
            # A product with another matrix: the model is of squares alone.
            if m["transpose_left"] or m["transpose_right"] or m["right_pattern_hash"] not in ("", line["pattern_hash"]):
                continue
            device = Device.of(m["device"], m["model"])
            if self.is_left_out(device):
                self.left_out += 1
                continue
            self.check_device(path, device)
            self.add_line(pattern, dict(m["class"], **{name: m[name] for name in ("type", "k", "recipe", "kernel", *MEASURED)}))

    def done(self):
        measured = [pattern for pattern in self.patterns.values() if pattern.measured]
        if not measured:
            raise BadData("there are no measurements in what was given")
        known = [pattern for pattern in measured if pattern.features.get("distance_histogram")]
        if not known:
            raise BadData("none of the patterns has features")
        return Data(self.device, known)


def read(paths, kind=None):
    """The data of files; kind: of exported measurements those of such devices alone. Raises BadData."""
    reader = Reader(kind)
    for path in paths:
        reader.read(path)
    if reader.left_out:
        print(f"{reader.left_out} measurements are left out: of another kind of device, or of older kernels")
    return reader.done()


def default(measured):
    """The candidate that the others were timed beside, or None if it has no line of its own: its two times are one."""
    same = [candidate for candidate, m in measured.items() if candidate.pipeline == "csr" and m.median_ms == m.csr_ms]
    return max(same, key=lambda candidate: measured[candidate].runs, default=None)


def log_ratios(measured):
    """log2(time / default's time) by candidate, without the default."""
    own = default(measured)
    return {candidate: math.log2(m.median_ms / m.csr_ms) for candidate, m in measured.items() if candidate != own}
