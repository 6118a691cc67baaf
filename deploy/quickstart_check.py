#!/usr/bin/env python3
"""Makes operands for deploy/quickstart and checks its results, with nothing but plain loops.

  quickstart_check.py operand ROWS COLS SEED OUT.npy    random numbers in [-1, 1), f32
  quickstart_check.py spmm   GRAPH B.npy C.npy          C = S * B
  quickstart_check.py sddmm  GRAPH A.npy B.npy V.npy    V = S .* (A * B^T)
  quickstart_check.py spgemm GRAPH C.npz                C = S * S

Every element is recomputed in float64 and compared with a bound that follows from float32's
precision and the number of terms. Exits with 1 if one is off.
"""

import array
import ast
import gzip
import random
import struct
import sys
import zipfile

NUMPY_TYPES = {"<f4": "f", "<f8": "d", "<i4": "i", "<i8": "q"}
F32_EPSILON = 2.0**-23


def read_npy(stream):
    """(shape, elements) of a .npy file."""
    magic = stream.read(8)
    if magic[:6] != b"\x93NUMPY":
        raise ValueError("not a .npy file")
    size = struct.unpack("<H", stream.read(2)) if magic[6] == 1 else struct.unpack("<I", stream.read(4))
    header = ast.literal_eval(stream.read(size[0]).decode("latin1"))
    elements = array.array(NUMPY_TYPES[header["descr"]])
    elements.frombytes(stream.read())
    return header["shape"], elements


def read_rows(path):
    """Rows of a dense .npy matrix."""
    with open(path, "rb") as stream:
        (rows, cols), elements = read_npy(stream)
    return [elements[r * cols : (r + 1) * cols] for r in range(rows)]


def write_operand(rows, cols, seed, path):
    generator = random.Random(seed)
    elements = array.array("f", (generator.random() * 2 - 1 for _ in range(rows * cols)))
    header = f"{{'descr': '<f4', 'fortran_order': False, 'shape': ({rows}, {cols}), }}"
    header += " " * (-(len(header) + 11) % 64) + "\n"
    with open(path, "wb") as out:
        out.write(b"\x93NUMPY\x01\x00" + struct.pack("<H", len(header)) + header.encode())
        out.write(elements.tobytes())


def read_graph(path):
    """Rows of a Matrix Market file as sorted lists of (column, value)."""
    with gzip.open(path, "rt") if path.endswith(".gz") else open(path) as lines:
        banner = lines.readline().lower().split()
        entries = (line.split() for line in lines if line.strip() and not line.startswith("%"))
        rows, _, _ = map(int, next(entries))
        symmetric, pattern = "symmetric" in banner, "pattern" in banner
        graph = [{} for _ in range(rows)]
        for entry in entries:
            row, col = int(entry[0]) - 1, int(entry[1]) - 1
            value = 1.0 if pattern else float(entry[2])
            graph[row][col] = graph[row].get(col, 0.0) + value
            if symmetric and row != col:
                graph[col][row] = graph[col].get(row, 0.0) + value
    return [sorted(row.items()) for row in graph]


class Comparison:
    """The largest error over the bound of its element; right is at most 1."""

    def __init__(self):
        self.count = 0
        self.worst = 0.0

    def add(self, got, want, magnitude, terms):
        self.count += 1
        if got == want:
            return
        bound = (terms + 2) * F32_EPSILON * magnitude
        # A NaN compares false with everything: it must not pass for a small error.
        error = abs(got - want) / bound if bound > 0 else float("inf")
        self.worst = max(self.worst, error if error == error else float("inf"))


def check_spmm(graph, b, c):
    result = Comparison()
    zeros = [0.0] * len(b[0])
    for row, got in zip(graph, c, strict=True):
        want, magnitude = zeros, zeros
        for col, value in row:
            products = [value * element for element in b[col]]
            want = [x + y for x, y in zip(want, products)]
            magnitude = [x + abs(y) for x, y in zip(magnitude, products)]
        for triple in zip(got, want, magnitude, strict=True):
            result.add(*triple, len(row))
    return result


def check_sddmm(graph, a, b, values):
    result = Comparison()
    got = iter(values)
    for row, left in zip(graph, a, strict=True):
        for col, value in row:
            products = [value * x * y for x, y in zip(left, b[col], strict=True)]
            result.add(next(got), sum(products), sum(map(abs, products)), len(products))
    if next(got, None) is not None:
        raise ValueError("more values than the graph has nonzeros")
    return result


def check_spgemm(graph, path):
    with zipfile.ZipFile(path) as archive:
        offsets, columns, values = (
            read_npy(archive.open(name + ".npy"))[1] for name in ("indptr", "indices", "data"))
    result = Comparison()
    for r, row in enumerate(graph):
        want = {}
        for middle, left in row:
            for col, right in graph[middle]:
                total, magnitude = want.get(col, (0.0, 0.0))
                want[col] = (total + left * right, magnitude + abs(left * right))
        got = range(offsets[r], offsets[r + 1])
        if [columns[p] for p in got] != sorted(want):
            raise ValueError(f"row {r} has other columns")
        for p in got:
            result.add(values[p], *want[columns[p]], len(row))
    return result


def main(command, *arguments):
    if command == "operand":
        rows, cols, seed, path = arguments
        write_operand(int(rows), int(cols), int(seed), path)
        return 0
    graph = read_graph(arguments[0])
    if command == "spmm":
        result = check_spmm(graph, *map(read_rows, arguments[1:]))
    elif command == "sddmm":
        a, b, values = arguments[1:]
        with open(values, "rb") as stream:
            result = check_sddmm(graph, read_rows(a), read_rows(b), read_npy(stream)[1])
    elif command == "spgemm":
        result = check_spgemm(graph, arguments[1])
    else:
        raise SystemExit(__doc__)
    right = result.worst <= 1
    print(f"{'right' if right else 'WRONG'}: {result.count:,} elements recomputed, largest error "
          f"{result.worst:.2f} of what float32 allows")
    return 0 if right else 1


if __name__ == "__main__":
    if len(sys.argv) < 3:
        raise SystemExit(__doc__)
    sys.exit(main(*sys.argv[1:]))
