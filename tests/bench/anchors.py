"""Reads docs/results/anchors: what programs of others took on an H100."""

import csv
import gzip
import pathlib

FOLDER = pathlib.Path(__file__).resolve().parents[2] / "docs/results/anchors"


def blocks(path):
    """Lists of fields by (matrix, K), K being 0 for SpGEMM. The names of the columns are left out."""
    found, block = {}, None
    with gzip.open(path, "rt") as file:
        for text in file:
            if text.startswith("## "):
                _, _, matrix, *width = text.split()
                key = matrix.removeprefix("G-"), int(width[0].removeprefix("K=")) if width else 0
                block = found.setdefault(key, [])
            elif text.strip() and not text.startswith(("#", "impl,")):
                block.append(next(csv.reader([text], skipinitialspace=True)))
    return found


def spgemm(precisions=("fp32",), path=FOLDER / "spgemm.csv.gz"):
    """Milliseconds of each program whose result was right and sorted, by matrix and program."""
    return {matrix: {row[0]: float(row[3]) for row in rows
                     if row[1] in precisions and len(row) > 17 and row[16:18] == ["sorted", "ok"]}
            for (matrix, _), rows in blocks(path).items()}


def dense(operation):
    """Milliseconds of each program for `spmm` or `sddmm`, by (matrix, K) and program."""
    times = {}
    for path in sorted(FOLDER.glob(f"{operation}-*.csv.gz")):
        for key, rows in blocks(path).items():
            times[key] = {row[0]: float(row[3]) for row in rows if row[0] != "roofline" and row[3] not in ("-", "FAIL")}
    return times
