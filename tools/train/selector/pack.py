"""Measurements in a compact file: a header, then a line for each pattern, numbers with four significant digits, xz."""

import json
import lzma

from selector import data


def short(value, digits=4):
    value = float(f"{value:.{digits}g}")
    return int(value) if value.is_integer() else value


def pack(read, out):
    """Writes what data.read() gave to a file."""
    problems = sorted({problem for pattern in read.patterns for problem in pattern.measured})
    candidates = sorted({candidate for pattern in read.patterns for of in pattern.measured.values() for candidate in of})
    names = sorted({name for pattern in read.patterns for name in pattern.features} - {"distance_histogram", "density_map"})
    place = {candidate: index for index, candidate in enumerate(candidates)}
    header = {"line": "packed", "format": 1, "device": vars(read.device), "problems": problems, "candidates": candidates, "features": names,
              "measurement": ["candidate", *data.MEASURED]}
    with lzma.open(out, "wt", preset=9 | lzma.PRESET_EXTREME, encoding="utf-8") as file:
        for line in (header, *(packed(pattern, problems, place, names) for pattern in read.patterns)):
            file.write(json.dumps(line, separators=(",", ":")) + "\n")


def packed(pattern, problems, place, names):
    measured = {}
    for index, problem in enumerate(problems):
        if problem in pattern.measured:
            measured[index] = [[place[candidate], *times(m), short(m.preparation_ms), m.runs, int(m.censored)]
                               for candidate, m in sorted(pattern.measured[problem].items())]
    return {"pattern": pattern.name, "family": pattern.family, "group": pattern.group,
            "features": [short(pattern.features.get(name, 0), 6) for name in names],
            "distance_histogram": pattern.features["distance_histogram"], "measured": measured}


def times(measurement):
    """median_ms and csr_ms; unrounded where rounding would make them equal: that is what tells the default (data.default)."""
    median, csr = measurement.median_ms, measurement.csr_ms
    if short(median) == short(csr) and median != csr:
        return median, csr
    return short(median), short(csr)
