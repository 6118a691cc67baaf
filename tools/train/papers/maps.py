"""Density maps: how many nonzeros are in each of 128 x 128 tiles of a pattern, as `kernels/features/density_map.h` counts them."""

import pathlib
import subprocess
import tempfile

import numpy

from . import DataError
from .cases import read_lines

SIDE = 128
AT_ONCE = 25  # patterns that are on disk at a time


def counted(rows, cols, row_offsets, column_indices):
    """SIDE x SIDE counts: row r is in tile row floor(SIDE * r / rows)."""
    of_row = numpy.repeat(numpy.arange(rows), numpy.diff(row_offsets))
    tiles = SIDE * of_row // rows * SIDE + SIDE * column_indices.astype(numpy.int64) // cols
    return numpy.bincount(tiles, minlength=SIDE * SIDE).reshape(SIDE, SIDE)


def scaled(counts):
    """Counts from 0 to 255, the paper's range. By their logarithm: most tiles of an R-MAT graph would be 0 beside its fullest."""
    logarithms = numpy.log1p(counts.astype(numpy.float64))
    return numpy.round(255 * logarithms / max(logarithms.max(), 1e-9)).astype(numpy.uint8)


def make(names, corpus_program, files=None):
    """{name: scaled map}: the patterns are made anew by `sparsed_corpus write`; those of matrix files are in the folder `files`."""
    maps = {}
    for first in range(0, len(names), AT_ONCE):
        part = names[first:first + AT_ONCE]
        with tempfile.TemporaryDirectory() as folder:
            command = [corpus_program, "write", *part, f"--out={folder}", "--format=npz"]
            try:
                subprocess.run(command + ([f"--files={files}"] if files else []), check=True, capture_output=True, text=True)
            except OSError as error:
                raise DataError(f"{corpus_program} cannot be run: {error.strerror}") from None
            except subprocess.CalledProcessError as error:
                raise DataError(f"{corpus_program} failed: {error.stderr.strip()}") from None
            for name in part:
                with numpy.load(pathlib.Path(folder) / f"{name}.npz") as pattern:
                    rows, cols = map(int, pattern["shape"])
                    maps[name] = scaled(counted(rows, cols, pattern["indptr"], pattern["indices"]))
    return maps


def save(path, maps):
    numpy.savez_compressed(path, names=numpy.array(list(maps)), maps=numpy.stack(list(maps.values())))


def of_features(path):
    """{name: map}, scaled, of a file of `sparsed_corpus features --maps`."""
    found = {}
    for line in read_lines(path):
        numbers = numpy.array(line.get("features", {}).get("density_map", []), numpy.int64)
        if not len(numbers):
            continue
        places = numpy.cumsum(numbers[::2] + 1) - 1  # empty ones before each, and its count
        counts = numpy.zeros(SIDE * SIDE, numpy.int64)
        try:
            counts[places] = numbers[1::2]
        except (IndexError, ValueError):
            raise DataError(f"{path}: the density map of {line['pattern']} is none") from None
        found[line["pattern"]] = scaled(counts.reshape(SIDE, SIDE))
    if not found:
        raise DataError(f"{path} holds no density maps (sparsed_corpus features --maps)")
    return found


def load(path):
    """{name: map}, of a file that `save` made, or of `sparsed_corpus features --maps`."""
    if not str(path).endswith(".npz"):
        return of_features(path)
    try:
        with numpy.load(path, allow_pickle=False) as file:
            names, maps = file["names"], file["maps"]
    except (OSError, ValueError, KeyError) as error:
        raise DataError(f"{path} holds no density maps: {error}") from None
    if maps.shape != (len(names), SIDE, SIDE):
        raise DataError(f"{path} holds no density maps: their shape is {maps.shape}")
    return dict(zip(names.tolist(), maps))
