"""Cases: what was measured of each pattern, in packed files; and which of them are trained on together.

A packed file is JSON lines (.gz): a header (`task`, `device`, `settings`, `contenders`, `features`), then a line a pattern: its name,
family and group, its features in the header's order, `histogram` (distances between neighbours in a row, powers of 4), for each setting
`ms` and, where layouts are built, `preparation_ms` of each contender in the header's order (null: was not measured, because it does
not suit the pattern), and `beside`, times of other kernels. Numbers have four significant digits.
"""

import dataclasses
import gzip
import json
import random
import re
import zlib

from . import DataError

# The paper's 24 (Mehrabi et al., table II).
ORDER_FEATURES = ["rows", "cols", "density"] + [f"{name}_{of}" for name in (
    "row_nonzeros", "row_blocks", "warp_load", "same_lines", "warp_distinct_lines", "warp_lines", "adjacent_distance")
    for of in ("min", "mean", "max")]
# MatNet's table 4, without InCSR's padding: the GPU has no such kernel.
PRODUCT_FEATURES = ["rows", "cols", "nnz", "density", "row_nonzeros_max", "row_nonzeros_min", "row_nonzeros_mean", "row_nonzeros_variance",
                    "diagonals", "diagonal_ratio", "dia_padding", "ell_padding", "bcsr_padding", "row_nonzeros_cv"]
FEATURES = list(dict.fromkeys(ORDER_FEATURES + PRODUCT_FEATURES))
ORDERS = ["csr", "dcsr"] + [f"{name}_sort" for name in (
    "plain", "flipped", "lpt", "warp", "cta", "hybrid1", "hybrid21", "hybrid22", "hybrid23")]
THRESHOLDS = range(1, 17)
COARSENINGS = range(5)  # of row_segments; 0: as its cost model says


@dataclasses.dataclass
class Case:
    pattern: str
    family: str
    group: str
    features: dict      # by name
    histogram: list
    ms: dict            # by setting: milliseconds of each contender, None where it was not measured
    preparation_ms: dict
    beside: dict        # by setting: {kernel: ms}


@dataclasses.dataclass
class Cases:
    task: str
    device: str
    settings: list
    contenders: list
    cases: list


def read_lines(path):
    """The JSON lines of a file, plain or .gz; a last line that was cut off, as of a run that was stopped, is left out."""
    try:
        with (gzip.open(path, "rt") if str(path).endswith(".gz") else open(path, encoding="utf-8")) as file:
            text = file.read()
    except (OSError, EOFError, UnicodeDecodeError, zlib.error) as error:
        raise DataError(f"{path} cannot be read: {error}") from None
    lines = []
    for number, line in enumerate(text.split("\n"), 1):
        try:
            if line:
                lines.append(json.loads(line))
        except ValueError:
            if number > text.count("\n"):
                break
            raise DataError(f"{path}: line {number} is no JSON") from None
    return lines


def short(number):
    return None if number is None else float(f"{number:.4g}")


def one_device(devices):
    if len(devices) != 1:
        raise DataError(f"measurements of one device are wanted, these are of {sorted(devices) or 'none'}")
    return devices.pop()


def corpus(paths):
    """Of files of `sparsed_corpus measure`: {pattern: its line} of those with features, all measurements, the device."""
    patterns, measurements, devices = {}, [], set()
    for path in paths:
        for line in read_lines(path):
            kind = line.get("line") if isinstance(line, dict) else None
            if kind == "run":
                devices.add(line["device_model"])
            elif kind == "pattern" and line.get("features"):
                patterns[line["pattern"]] = line
            elif kind == "measurement":
                measurements.append(line)
            elif kind not in ("begin", "pattern"):
                raise DataError(f"{path} is no file of sparsed_corpus measure")
    return patterns, measurements, one_device(devices)


def case(line):
    features = line["features"]
    missing = [name for name in FEATURES if name not in features]
    if missing:
        raise DataError(f"pattern {line['pattern']} has no feature {missing[0]}")
    return Case(line["pattern"], line["family"], line["group"], {name: features[name] for name in FEATURES},
                features["distance_histogram"], {}, {}, {})


def orders(paths, corpus_paths):
    """What `bench_permutations` measured, with the features that the corpus has of the patterns."""
    patterns, _, _ = corpus(corpus_paths)
    found, devices = {}, set()
    for path in paths:
        for line in read_lines(path):
            try:
                name, kernel, order = line["matrix"], line["kernel"], line["layout"].split("(")[0]
                ms, device = line["ms"], line["device"]
            except (KeyError, TypeError):
                raise DataError(f"{path} is no file of bench_permutations") from None
            if name not in patterns:
                raise DataError(f"pattern {name} of {path} is not in the corpus's files: it has no features")
            devices.add(device)
            of = found.setdefault(name, case(patterns[name]))
            if kernel.startswith("cusparse"):
                of.beside.setdefault("cusparse", {})[kernel] = ms
            else:
                of.ms.setdefault(kernel, [None] * len(ORDERS))[ORDERS.index(order)] = ms
    settings = sorted({kernel for of in found.values() for kernel in of.ms})
    return Cases("orders", one_device(devices), settings, ORDERS, list(found.values()))


def contender(pipeline):
    """Of row segments, "12", or "12/2" where a coarsening is given; None if it is none of the thresholds'."""
    found = re.fullmatch(r"row_segments\(.*min_heavy=(\d+)(?:,coarsen=(\d+))?\)", pipeline)
    if found is None or int(found[1]) not in THRESHOLDS or int(found[2] or 0) not in COARSENINGS:
        return None
    return found[1] + (f"/{found[2]}" if int(found[2] or 0) else "")


def threshold_and_coarsening(name):
    threshold, _, coarsening = name.partition("/")
    return int(threshold), int(coarsening or 0)


def thresholds(paths):
    """RS-SpMM's thresholds, of `sparsed_corpus measure` with a pipeline for each that is tried, with one coarsening or with each of several; settings are K."""
    patterns, measurements, device = corpus(paths)
    taken = [(name, line) for line in measurements if line["operation"] == "spmm" and line["pattern"] in patterns
             and (name := contender(line["recipe"])) is not None]
    contenders = sorted({name for name, _ in taken}, key=lambda name: threshold_and_coarsening(name)[::-1])
    found = {}
    for name, line in taken:
        of, k = found.setdefault(line["pattern"], case(patterns[line["pattern"]])), str(line["k"])
        of.ms.setdefault(k, [None] * len(contenders))[contenders.index(name)] = line["median_ms"]
        of.beside.setdefault(k, {})["csr"] = line["csr_ms"]
    settings = sorted({k for of in found.values() for k in of.ms}, key=int)
    return Cases("thresholds", device, settings, contenders, [of for of in found.values() if all(None not in ms for ms in of.ms.values())])


def products(paths):
    """Squares of square patterns, f32. A contender is a kernel, of `blocks` with the width that its layout has."""
    patterns, measurements, device = corpus(paths)
    taken = [line for line in measurements
             if line["operation"] == "spgemm" and line["type"] == "f32" and line["pattern"] in patterns]

    def contender(line):
        width = re.fullmatch(r"bcsr\(width=(\d+)\)", line["recipe"])
        return line["kernel"].split(".")[-1] + (f".{width[1]}" if width else "")
    contenders = sorted({contender(line) for line in taken})
    found = {}
    for line in taken:
        of = found.setdefault(line["pattern"], case(patterns[line["pattern"]]))
        for times, key in ((of.ms, "median_ms"), (of.preparation_ms, "preparation_ms")):
            times.setdefault("f32", [None] * len(contenders))[contenders.index(contender(line))] = line[key]
    return Cases("products", device, ["f32"], contenders, list(found.values()))


def save(path, of):
    header = {"line": "header", "task": of.task, "device": of.device, "settings": of.settings, "contenders": of.contenders, "features": FEATURES}
    with open(path, "wb") as raw, gzip.GzipFile("", "wb", 9, raw, mtime=0) as file:
        for line in [header] + [
            {"pattern": c.pattern, "family": c.family, "group": c.group, "features": [short(c.features[name]) for name in FEATURES],
             "histogram": c.histogram, "ms": {s: list(map(short, ms)) for s, ms in c.ms.items()},
             "preparation_ms": {s: list(map(short, ms)) for s, ms in c.preparation_ms.items()},
             "beside": {s: {k: short(ms) for k, ms in of_s.items()} for s, of_s in c.beside.items()}}
                for c in sorted(of.cases, key=lambda c: c.pattern)]:
            file.write((json.dumps(line, separators=(",", ":")) + "\n").encode())


def load(path, task):
    """A packed file of that task."""
    lines = read_lines(path)
    header = lines[0] if lines and isinstance(lines[0], dict) else {}
    if header.get("task") != task:
        raise DataError(f"{path} is no packed file of {task} (tools/train/papers/run pack {task} makes one)")
    try:
        read = [Case(line["pattern"], line["family"], line["group"], dict(zip(header["features"], line["features"], strict=True)),
                     line["histogram"], line["ms"], line["preparation_ms"], line["beside"]) for line in lines[1:]]
        for c in read:
            if set(c.ms) != set(header["settings"]) or any(len(ms) != len(header["contenders"]) or all(v is None for v in ms)
                                                         for ms in c.ms.values()):
                raise DataError(f"{path}: pattern {c.pattern} has not the settings and contenders of the header")
        return Cases(task, header["device"], header["settings"], header["contenders"], read)
    except (KeyError, TypeError, ValueError):
        raise DataError(f"{path} is damaged: a line has not the members that the header promises") from None


def family_folds(cases, folds):
    """The fold of each case: families are whole, folds about even."""
    families = {}
    for c in cases:
        families[c.family] = families.get(c.family, 0) + 1
    if len(families) < 2:
        raise DataError("patterns of one family alone: there is nothing to train on and judge by")
    sizes, fold_of = [0] * min(folds, len(families)), {}
    for family, count in sorted(families.items(), key=lambda item: (-item[1], item[0])):
        fold_of[family] = sizes.index(min(sizes))
        sizes[fold_of[family]] += count
    return [fold_of[c.family] for c in cases]


def random_folds(cases, folds):
    """The papers' split, at random over patterns: relatives of a pattern that is judged may be trained on."""
    of = [i % folds for i in range(len(cases))]
    random.Random(1).shuffle(of)
    return of


SPLITS = {"families": family_folds, "random": random_folds}
