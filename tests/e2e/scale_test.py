#!/usr/bin/env python3
"""Asks sparsed_scale about matrices whose exchange is known, about odd ones, and about what docs/scale.md shows.

    scale_test.py SPARSED_SCALE
"""
import gzip
import json
import pathlib
import subprocess
import sys
import tempfile

scale = sys.argv[1]
ROOT = pathlib.Path(__file__).resolve().parents[2]
MESH = ROOT / "tests/data/delaunay_n16.mtx.gz"
KEPT = ROOT / "docs/results/scale/graphs.jsonl.gz"


def check(condition, what):
    if not condition:
        sys.exit(f"scale_test: {what}")


def run(*arguments, code=0):
    done = subprocess.run([scale, *map(str, arguments)], capture_output=True, text=True)
    check(done.returncode == code, f"{arguments} ended with {done.returncode}: {done.stdout}{done.stderr}")
    return done.stdout if code == 0 else done.stderr


def ask(*arguments):
    return json.loads(run(*arguments, "--json"))


def of(report, cards, distribution):
    found = [d for d in report["distributions"] if (d["cards"], d["distribution"]) == (cards, distribution)]
    check(len(found) == 1, f"{distribution} on {cards} cards is there {len(found)} times")
    return found[0]


def write(path, rows, cols, entries):
    with open(path, "w", encoding="utf-8") as file:
        file.write(f"%%MatrixMarket matrix coordinate pattern general\n{rows} {cols} {len(entries)}\n")
        for i, j in entries:
            file.write(f"{i + 1} {j + 1}\n")


def known(folder):
    # A ring of 40 vertices, numbered so that even ones come first: two blocks need each other whole.
    place = [i // 2 + 20 * (i % 2) for i in range(40)]
    ring = f"{folder}/ring.mtx"
    write(ring, 40, 40, [(place[i], place[(i + step) % 40]) for i in range(40) for step in (1, 39)])
    pairs = f"{folder}/ring.mtx.part.4"
    with open(pairs, "w", encoding="utf-8") as file:
        file.writelines(f"{old // 10}\n" for old in sorted(range(40), key=lambda i: place[i]))
    report = ask(ring, "--cards=4,2", f"--partition={pairs}", "--k=16")
    row = 16 * 4
    check([d["cards"] for d in report["distributions"]] == sorted(d["cards"] for d in report["distributions"]), "the order")
    check(of(report, 2, "rows")["exchanged_bytes"] == 40 * row, "two blocks of a ring that alternates")
    # Quarters of the ring in its own order: two neighbours each.
    partition = of(report, 4, "partition")
    check(partition["exchanged_bytes"] == 8 * row and partition["largest_card_bytes"] == 2 * row, partition)
    check(partition["imbalance"] == 1 and partition["counted"], partition)
    check(of(report, 2, "columns")["exchanged_bytes"] == 0, "K split exchanges nothing")
    check(of(report, 2, "1d")["exchanged_bytes"] == 40 * row, "1D")
    check({(left["cards"], left["distribution"]) for left in report["left_out"]} == {(2, "1.5d"), (2, "2d")}, report["left_out"])
    two_nodes = ask(ring, "--cards=2", "--k=16", "--cards-per-node=1")
    check(of(two_nodes, 2, "rows")["network_bytes"] == 40 * row, "two nodes")
    text = run(ring, "--cards=4", f"--partition={pairs}")
    check("partition" in text and "columns_rotating" in text and "4 cards" not in text, text)


def calibrated(folder):
    arguments = (f"{folder}/ring.mtx", "--cards=2", "--launch-us=1")
    report = ask(*arguments, "--measured-one-card-ms=40", "--measured=2:columns:21")
    check(abs(report["one_card"]["spmm"]["ms"] - 40) < 1e-9, report["one_card"])
    columns = of(report, 2, "columns")["spmm"]
    check(columns["measured_ms"] == 21 and abs(columns["error"] - (columns["ms"] / 21 - 1)) < 1e-9, columns)
    check("the model errs by" in run(*arguments, "--measured=2:columns:21"), "no error is said")
    check("not more than the launch" in run(*arguments, "--measured-one-card-ms=0.0005", code=3), "shorter than a launch")
    check("3:rows:1" in run(*arguments, "--measured=3:rows:1", code=3), "three cards were not asked for")
    for wrong in ("2:rows", "2:rows:-1", "2:rows:x", "rows"):
        check("is not CARDS:DISTRIBUTION:MS" in run(*arguments, f"--measured={wrong}", code=3), wrong)
    fixed = ask(*arguments, "--spmm-rate=128:1000,512:2000", "--memory=0.000001")
    check(fixed["machine"]["spmm_bytes_per_second"] == [[128, 1e12], [512, 2e12]], fixed["machine"])
    check(not fixed["one_card"]["fits"], "1,000 bytes are enough")
    for wrong in ("x", "0", "nan", "512:1,128:2", "1:2:3"):
        check("is no rate" in run(*arguments, f"--spmm-rate={wrong}", code=3), wrong)


def described():
    papers = ("--rows=111059956", "--nonzeros=1615685872", "--generated-rows=16384", "--cards=2,1024")
    report = ask(*papers)
    check(report["rows"] == 111059956 and report["generated"]["rows"] == 16384, report["generated"])
    many = of(report, 1024, "rows")
    check(0 < many["exchanged_bytes"] < of(report, 1024, "1d")["exchanged_bytes"] == 1023 * 111059956 * 512, many)
    check(not many["counted"] and 0 < report["drift"] < 1, report["drift"])
    check("16384 generated rows" in run(*papers), "the text does not say what was generated")
    # One that is small enough is generated as it is.
    check(ask("--rows=5000", "--nonzeros=40000", "--generator=uniform")["drift"] is None, "scaled")
    check("no generator is called" in run("--rows=50", "--nonzeros=400", "--generator=x", code=3), "a generator x")
    check("--generated-rows" in run("--rows=2000000", "--nonzeros=9000000", "--generated-rows=1000", "--cards=512", code=3),
          "more cards than a quarter of the rows")
    for wrong in (("--rows=5",), (), ("--rows=0", "--nonzeros=1"), ("--rows=3000000000", "--nonzeros=9"), (str(MESH), "--rows=5", "--nonzeros=5")):
        run(*wrong, code=2)


def odd(folder):
    write(f"{folder}/empty.mtx", 5, 5, [])
    write(f"{folder}/small.mtx", 3, 9, [(0, 0), (1, 8), (2, 4)])
    small = f"{folder}/small.mtx"
    check("there is nothing to distribute" in run(f"{folder}/empty.mtx", code=3), "an empty matrix")
    check("4 cards for 3 rows" in run(small, "--cards=4", code=3), "more cards than rows")
    run(small, "--cards=3")
    run(small, "--cards=1025", code=2)
    run(small, "--cards=0", code=2)
    run(small, "--type=f8", code=2)
    for wrong in ("nan", "0", "-1", "inf", "x"):
        check("is not in" in run(small, "--cards=2", f"--link-rate={wrong}", code=2), wrong)
    check("none.mtx" in run(f"{folder}/none.mtx", code=3), "no such file")
    check("known are" in run(small, "--cards=2", "--machine=x", code=3), "a machine x")
    part = f"{folder}/small.part"
    pathlib.Path(part).write_text("0\n1\n2\n", encoding="utf-8")
    check("has 3 parts: name so many cards" in run(small, "--cards=2", f"--partition={part}", code=3), "three parts on two cards")
    check("second partition into 3" in run(small, "--cards=3", f"--partition={part}", f"--partition={part}", code=3), "twice")
    check("only described" in run("--rows=50000", "--nonzeros=400000", "--generated-rows=5000", f"--partition={part}", code=3),
          "a partition of what is not there")


def kept():
    """What docs/scale.md shows of the mesh is what the tool says now."""
    with gzip.open(KEPT, "rt") as file:
        old = next(line for line in map(json.loads, file) if line["matrix"] == "delaunay_n16")
    cards = sorted({d["cards"] for d in old["distributions"]})
    now = ask(MESH, f"--cards={','.join(map(str, cards))}", "--machine=h200")
    for distribution in now["distributions"]:
        before = of(old, distribution["cards"], distribution["distribution"])
        for key, value in distribution.items():
            if key not in ("spmm", "sddmm"):
                check(before[key] == value, f"{distribution['distribution']}, {key}: {before[key]} before, {value} now")
                continue
            check(abs(before[key]["ms"] / value["ms"] - 1) < 1e-6, f"{distribution['distribution']}: {before[key]} before, {value} now")


with tempfile.TemporaryDirectory() as work:
    known(work)
    calibrated(work)
    described()
    odd(work)
    kept()
print("scale_test: ok")
