#!/usr/bin/env python3
"""Reorders a shuffled matrix, uploads it in that order, and asks what it still could gain.

    reorder_test.py SPARSED_REORDER SPARSED SPARSECTL
"""
import json
import os
import random
import subprocess
import sys
import tempfile
import time

reorder, sparsed, sparsectl = sys.argv[1:4]
ROWS = 1200


def check(condition, what):
    if not condition:
        sys.exit(f"reorder_test: {what}")


def run(*command, code=0):
    done = subprocess.run(command, capture_output=True, text=True)
    check(done.returncode == code,
          f"{' '.join(command)} ended with {done.returncode}: {done.stdout}{done.stderr}")
    return done.stdout if code == 0 else done.stderr


def write(path, rows, cols, entries):
    with open(path, "w") as file:
        file.write(f"%%MatrixMarket matrix coordinate real general\n{rows} {cols} {len(entries)}\n")
        for i, j, value in entries:
            file.write(f"{i + 1} {j + 1} {value}\n")


def read(path):
    lines = [line.split() for line in open(path) if not line.startswith("%")]
    return {(int(i) - 1, int(j) - 1): float(value) for i, j, value in lines[1:]}


def main(folder):
    # Cliques of eight whose members are far apart: their products have nothing to do with each other.
    names = list(range(ROWS))
    random.Random(1).shuffle(names)
    entries = [(names[i], names[j], (i * 7 + j) % 13 + 1)
               for i in range(ROWS) for j in range(i // 8 * 8, i // 8 * 8 + 8)]
    matrix, order_file = f"{folder}/cliques.mtx", f"{folder}/order.txt"
    write(matrix, ROWS, ROWS, entries)

    for operation in ("spmv", "spmm", "spgemm"):
        report = json.loads(run(reorder, matrix, "--json", f"--for={operation}", "--cache=32KB",
                                "--k=16", f"--out={order_file}"))
        order = [int(line) for line in open(order_file)]
        check(sorted(order) == list(range(ROWS)), "the order is no permutation")
        partition = report["partition"]
        check(partition["fits"] and not partition["estimate"], f"{operation}: {partition}")
        check(1 <= partition["upper_bound_ratio"] < 1.2, f"{operation}: {partition}")
        for when in ("before", "after", "put_back"):
            check(report["times"][f"{when}_seconds"] > 0, f"{operation}: {report['times']}")
    # The last order, of SpGEMM.
    before, after = report["before"]["spgemm"], report["after"]["spgemm"]
    check(before["footprint_bytes"] == after["footprint_bytes"], "another footprint")
    check(after["moved_bytes"] < 1.1 * after["footprint_bytes"] < before["moved_bytes"] / 1.2,
          f"{before} {after}")
    sampled = json.loads(run(reorder, matrix, "--json", "--max-products=2000", "--cache=32KB"))
    check(sampled["partition"]["estimate"] and sampled["partition"]["products"] <= 2000, sampled)
    check("an estimate" in run(reorder, matrix, "--max-products=2000", "--cache=32KB"), "no text")

    write(f"{folder}/wide.mtx", 2, 3, [(0, 0, 1)])
    check("2 x 3" in run(reorder, f"{folder}/wide.mtx", code=3), "a wide matrix is not refused")
    check("none.mtx" in run(reorder, f"{folder}/none.mtx", code=3), "nor is one that is not there")

    socket = f"unix:{folder}/s"
    server = subprocess.Popen([sparsed, "--in-memory", f"--listen={socket}", "--metrics-listen=off"],
                              stdout=subprocess.DEVNULL, stderr=subprocess.DEVNULL)
    try:
        for _ in range(100):
            if os.path.exists(f"{folder}/s"):
                break
            time.sleep(0.1)
        control = [sparsectl, f"--server={socket}"]
        run(*control, "upload", matrix, "--name=before", "--type=f64")
        run(*control, "upload", matrix, "--name=after", "--type=f64", f"--permutation={order_file}")
        run(*control, "download", "after", f"--out={folder}/after.mtx")
        permuted = read(f"{folder}/after.mtx")
        original = {(i, j): value for i, j, value in entries}
        check(len(permuted) == len(original) and
              all(original[order[i], order[j]] == value for (i, j), value in permuted.items()),
              "row and column r are not row and column order[r]")
        gains = {}
        for name in ("before", "after"):
            explained = json.loads(run(*control, "--json", "explain", name, "--k=64", "--cache=256KiB"))
            gains[name] = explained["operations"][1]["greatest_gain"]
            text = run(*control, "explain", name, "--k=64", "--cache=256KiB")
            check("SpMM K=64: " in text and "reordering" in text, text)
        check(gains["after"] < 1.1 < 1.5 < gains["before"], gains)
        run(*control, "upload", f"{folder}/wide.mtx", f"--permutation={order_file}", code=3)
    finally:
        server.terminate()
        server.wait()
    print("reorder_test: ok")


with tempfile.TemporaryDirectory() as work:
    main(work)
