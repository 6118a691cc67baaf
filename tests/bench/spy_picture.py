#!/usr/bin/env python3
"""Draws a square pattern before and after it was ordered, side by side: docs/spy.png.

    sparsed_reorder MATRIX.mtx.gz --for=spmm --k=128 --cache=1536KB --max-products=300000 --out=order.txt
    tests/bench/spy_picture.py MATRIX.mtx.gz order.txt OUT.png

A pixel is the darker the more nonzeros are under it, by the logarithm. Nothing but Python is needed.
"""

import gzip
import math
import struct
import sys
import zlib

SIDE = 360  # pixels of one square
GAP = 24  # between the two
SHADES = 8


def read_pattern(path):
    """(n, rows, columns) of a square Matrix Market file, both halves of a symmetric one."""
    with gzip.open(path, "rt") if path.endswith(".gz") else open(path) as lines:
        symmetric = "symmetric" in next(lines)
        entries = (line.split() for line in lines if line.strip() and not line.startswith("%"))
        n, cols, _ = map(int, next(entries))
        if n != cols:
            raise SystemExit(f"{path} is {n} x {cols}, not square")
        pairs = [(int(entry[0]) - 1, int(entry[1]) - 1) for entry in entries]
    if symmetric:
        pairs += [(col, row) for row, col in pairs if row != col]
    return n, pairs


def shades(n, pairs, place):
    """SIDE x SIDE shades, 0 for no nonzero; row and column i of the matrix are at place[i]."""
    counts = [[0] * SIDE for _ in range(SIDE)]
    for row, col in pairs:
        counts[place[row] * SIDE // n][place[col] * SIDE // n] += 1
    most = math.log1p(max(map(max, counts)))
    return [[count and 1 + int((SHADES - 2) * math.log1p(count) / most) for count in line] for line in counts]


def write_png(path, pixels):
    """Rows of shades, in greys on white."""
    def chunk(kind, data):
        body = kind + data
        return struct.pack(">I", len(data)) + body + struct.pack(">I", zlib.crc32(body))

    # From light blue to dark, so that it shows on a dark page, too.
    palette = bytearray((255, 255, 255))
    for shade in range(1, SHADES):
        part = (shade - 1) / (SHADES - 2)
        palette += bytes(round(light + part * (dark - light)) for light, dark in ((176, 8), (200, 29), (232, 88)))
    raw = b"".join(b"\0" + bytes(line) for line in pixels)
    with open(path, "wb") as out:
        out.write(b"\x89PNG\r\n\x1a\n")
        out.write(chunk(b"IHDR", struct.pack(">IIBBBBB", len(pixels[0]), len(pixels), 8, 3, 0, 0, 0)))
        out.write(chunk(b"PLTE", bytes(palette)) + chunk(b"IDAT", zlib.compress(raw, 9)) + chunk(b"IEND", b""))


def framed(square):
    edge = SHADES - 1
    return [[edge] * (SIDE + 2)] + [[edge, *line, edge] for line in square] + [[edge] * (SIDE + 2)]


def main(matrix, order, out):
    n, pairs = read_pattern(matrix)
    with open(order) as lines:
        old = [int(line) for line in lines]  # row r of the ordered matrix is row old[r]
    if sorted(old) != list(range(n)):
        raise SystemExit(f"{order} is no order of {n} rows")
    place = [0] * n
    for new, row in enumerate(old):
        place[row] = new
    before, after = framed(shades(n, pairs, range(n))), framed(shades(n, pairs, place))
    write_png(out, [left + [0] * GAP + right for left, right in zip(before, after)])


if __name__ == "__main__":
    if len(sys.argv) != 4:
        raise SystemExit(__doc__)
    main(*sys.argv[1:])
