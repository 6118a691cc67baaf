#!/usr/bin/env python3
"""Lists, writes and measures patterns of the corpus; kills a run, and goes on with it.

    corpus_test.py SPARSED_CORPUS
"""
import csv
import io
import json
import os
import signal
import subprocess
import sys
import tempfile
import time

corpus = sys.argv[1]
MODEL = os.path.join(os.path.dirname(os.path.abspath(__file__)), "../data/model/network")
# Few, small, quick.
FEW = ("--max-nnz=1500", "--families=road,rmat,banded,stencil", "--signatures=spmm:32,spmm:8",
       "--trial-budget-ms=20", "--threads=1")


def check(condition, what):
    if not condition:
        sys.exit(f"corpus_test: {what}")


def run(*arguments, code=0):
    done = subprocess.run([corpus, *arguments], capture_output=True, text=True)
    check(done.returncode == code,
          f"{' '.join(arguments)} ended with {done.returncode}: {done.stdout}{done.stderr}")
    return done.stdout if code == 0 else done.stdout + done.stderr


def lines_of(path):
    with open(path) as file:
        return [json.loads(line) for line in file]


def done_in(path):
    return [line["pattern"] for line in lines_of(path) if line["line"] == "pattern"]


def write_matrix(path):
    with open(path, "w") as file:
        file.write("%%MatrixMarket matrix coordinate pattern general\n3 4 4\n1 1\n1 4\n2 2\n3 4\n")


def test_list(folder):
    rows = list(csv.DictReader(io.StringIO(run("list"))))
    check(len(rows) >= 1500, f"{len(rows)} patterns")
    check(len({row["name"] for row in rows}) == len(rows), "names are not unique")
    groups = {row["name"]: row["group"] for row in rows}
    check(all(row["group"] == groups[row["parent"]] for row in rows if row["parent"]),
          "a derived pattern left its parent's group")
    same = [json.loads(line) for line in run("list", "--format=jsonl").splitlines()]
    check([pattern["name"] for pattern in same] == [row["name"] for row in rows], "two lists")
    roads = list(csv.DictReader(io.StringIO(run("list", "--families=road", "--min-nnz=100000",
                                                "--max-nnz=200000", "--limit=5"))))
    check(len(roads) == 5 and all(row["family"] == "road" and
                                  100000 <= int(row["nnz"]) <= 200000 for row in roads), roads)
    write_matrix(f"{folder}/small.mtx")
    real = list(csv.DictReader(io.StringIO(run("list", "--families=real", f"--files={folder}"))))
    check([row["name"] for row in real] == ["real-small"], real)


def test_write(folder):
    out = f"{folder}/out"
    for ending in ("npz", "mtx"):
        said = run("write", "road-grid950-1k", "banded-full2-10k", f"--out={out}",
                   f"--format={ending}")
        check(said.count("wrote") == 2 and os.path.getsize(f"{out}/road-grid950-1k.{ending}") > 0,
              said)
    head = open(f"{out}/banded-full2-10k.mtx").read().splitlines()
    check(head[0].startswith("%%MatrixMarket"), head[0])
    check("2000 2000 9994" in [line.strip() for line in head[:5]], head[:5])
    # What was written is read again, as it is.
    back = f"{folder}/back"
    run("write", "real-banded-full2-10k", f"--files={out}", f"--out={back}", "--format=mtx", code=3)
    os.remove(f"{out}/banded-full2-10k.npz")
    os.remove(f"{out}/road-grid950-1k.npz")
    run("write", "real-banded-full2-10k", f"--files={out}", f"--out={back}", "--format=mtx")
    entries = [line for line in open(f"{back}/real-banded-full2-10k.mtx") if line[0] != "%"]
    check(entries == [line + "\n" for line in head if line[0] != "%"], "another matrix")


def test_features(folder):
    few = FEW[:2]
    path = f"{folder}/features.jsonl"
    said = run("features", *few, f"--out={path}", "--maps")
    lines = lines_of(path)
    check(lines[0] == {"line": "features", "format": 1}, lines[0])
    check(f"features of {len(lines) - 1} patterns, 0 failed" in said and len(lines) > 5, said)
    run("measure", *few, f"--out={folder}/measured.jsonl", "--signatures=spmm:8", "--threads=1",
        "--trial-budget-ms=1", "--maps")
    measured = {line["pattern"]: line["features"] for line in lines_of(f"{folder}/measured.jsonl")
                if line["line"] == "pattern"}
    check({line["pattern"]: line["features"] for line in lines[1:]} == measured,
          "features are others when nothing is measured")
    parts = []
    for part in ("1/2", "2/2"):
        run("features", *few, f"--out={path}", f"--part={part}")
        parts += done_in(path)
    check(sorted(parts) == sorted(measured), f"{parts} and {list(measured)}")
    with open(f"{folder}/damaged.npz", "w") as file:
        file.write("no archive")
    said = run("features", "--families=real", f"--files={folder}", f"--out={path}")
    check("features of 0 patterns, 1 failed" in said and lines_of(path)[1]["failed"], said)
    check("--out" in run("features", *few, f"--out={folder}/none/file", code=1), "a file nowhere")


def test_estimates(folder):
    """What rules and a model of networks say of patterns, the density map included."""
    run("features", "--max-nnz=1500", "--families=road,linear_program", "--device=cpu",
        f"--model={MODEL}", "--classes=spmm:32,spgemm", "--repeat=3", f"--out={folder}/said.jsonl")
    patterns = [line for line in lines_of(f"{folder}/said.jsonl") if line["line"] == "pattern"]
    check(len(patterns) >= 3, patterns)
    for pattern in patterns:
        square = pattern["features"]["rows"] == pattern["features"]["cols"]
        check([said["class"] for said in pattern["estimates"]] ==
              ["spmm f32 k<=32 cpu"] + ["spgemm f32 cpu"] * square, pattern)
        for said, candidates in zip(pattern["estimates"], (3, 4)):
            model = said["models"]["network"]
            ratios = [candidate[2] for candidate in model["candidates"]]
            check(len(ratios) == candidates and ratios == sorted(ratios), model)
            check(model["microseconds"] > 0 and isinstance(said["rules"], list), said)
    check(any(len(pattern["estimates"]) == 2 for pattern in patterns), "no square")


def test_measure(folder):
    path = f"{folder}/all.jsonl"
    said = run("measure", *FEW, f"--out={path}", "--maps")
    names = done_in(path)
    check(len(names) >= 5 and f"{len(names)} patterns measured, 0 of them failed" in said, said)
    lines = lines_of(path)
    check(lines[0]["line"] == "run" and lines[0]["classes"], lines[0])
    for name in names:
        of_it = [line for line in lines if line.get("pattern") == name]
        measured = [line for line in of_it if line["line"] == "measurement"]
        check(of_it[0]["line"] == "begin" and of_it[-1]["line"] == "pattern", of_it)
        check({line["class"] for line in measured} == {8, 32}, of_it)
        check(all(line["median_ms"] > 0 and line["runs"] > 0 and line["model"] for line in measured),
              measured)
        check(of_it[-1]["measurements"] == len(measured), of_it)
        check(of_it[-1]["features"]["nnz"] == of_it[-1]["nnz"] > 0, of_it[-1])
        check(sum(of_it[-1]["features"]["density_map"][1::2]) == of_it[-1]["nnz"], of_it[-1])
    before = open(path).read()
    check(f"0 patterns measured, 0 of them failed, {len(names)} done before, 0 left" in
          run("measure", *FEW, f"--out={path}", "--maps"), "it did something again")
    check(open(path).read() == before, "the file is another one")
    # Of another run.
    said = run("measure", *FEW, f"--out={path}", code=3)
    check("maps is false, not true" in said, said)
    # Parts are all of it, each pattern once.
    parts = []
    for part in (1, 2, 3):
        run("measure", *FEW, f"--out={folder}/{part}.jsonl", f"--part={part}/3")
        parts += done_in(f"{folder}/{part}.jsonl")
    check(sorted(parts) == sorted(names), f"{parts} and {names}")
    check("2 left" in run("measure", *FEW, f"--out={folder}/stopped.jsonl", "--stop-after=1e-9",
                          "--limit=2"), "it did not stop")
    # As docs/corpus.md has it, of two patterns: every candidate, in both types.
    few = FEW[:2] + FEW[3:] + ("--signatures=spmm:8", "--limit=2")
    run("measure", *few, f"--out={folder}/rules.jsonl")
    run("measure", *few, f"--out={folder}/explored.jsonl", "--types=f32,f16", "--explore", "--part=1/1",
        "--seconds-per-pattern=60", "--stop-after=540")
    explored, ruled = ([line for line in lines_of(f"{folder}/{name}.jsonl") if line["line"] == "measurement"]
                       for name in ("explored", "rules"))
    check({line["type"] for line in explored} == {"f32", "f16"}, "types are missing")
    pipelines = [{line["recipe"] for line in lines} for lines in (explored, ruled)]
    check(pipelines[0] - pipelines[1], f"nothing was explored: {pipelines}")


def test_failures(folder):
    os.mkdir(f"{folder}/files")
    write_matrix(f"{folder}/files/good.mtx")
    with open(f"{folder}/files/bad.mtx", "w") as file:
        file.write("%%MatrixMarket matrix coordinate pattern general\n3 4 4\n1 1\n")
    path = f"{folder}/failed.jsonl"
    said = run("measure", "--families=real", f"--files={folder}/files", "--signatures=spmm:32",
               "--trial-budget-ms=5", f"--out={path}")
    check("2 patterns measured, 1 of them failed" in said, said)
    bad, = [line for line in lines_of(path) if line.get("failed")]
    check(bad["pattern"] == "real-bad" and "bad.mtx" in bad["failed"], bad)
    # What ends the program again and again is left out.
    with open(path) as file:
        first = file.readline()
    with open(path, "w") as file:
        file.write(first + 3 * '{"line":"begin","pattern":"real-good"}\n')
    run("measure", "--families=real", f"--files={folder}/files", "--signatures=spmm:32",
        "--trial-budget-ms=5", f"--out={path}")
    good, = [line for line in lines_of(path)
             if line["line"] == "pattern" and line["pattern"] == "real-good"]
    check("3 times" in good["failed"], good)


def test_kill(folder):
    path = f"{folder}/killed.jsonl"
    slow = [corpus, "measure", "--max-nnz=20000", "--families=road", "--classes=spmm:32,sddmm:32",
            "--limit=9", "--threads=1", "--trial-budget-ms=100", f"--out={path}"]
    killed, seen = 0, -1
    for _ in range(9):
        process = subprocess.Popen(slow, stdout=subprocess.DEVNULL, stderr=subprocess.DEVNULL)
        # Another pattern is done, and the next one is under way.
        while process.poll() is None:
            lines = open(path).read().splitlines() if os.path.exists(path) else []
            ends = sum('"line":"pattern"' in line for line in lines)
            if ends > max(seen, 0) and '"line":"begin"' in lines[-1]:
                break
            time.sleep(0.002)
        seen = ends
        if process.poll() is not None:
            break
        process.send_signal(signal.SIGKILL)
        process.wait()
        killed += 1
    subprocess.run(slow, check=True, stdout=subprocess.DEVNULL, stderr=subprocess.DEVNULL)
    check(killed >= 3, f"killed {killed} times")
    names = done_in(path)
    check(len(names) == 9 and len(set(names)) == 9, names)
    for end in [line for line in lines_of(path) if line["line"] == "pattern"]:
        measured = [line for line in lines_of(path)
                    if line["line"] == "measurement" and line["pattern"] == end["pattern"]]
        check("failed" not in end and len(measured) == end["measurements"], end)


def test_bad_input(folder):
    out = f"--out={folder}/bad.jsonl"
    for arguments, code, said in (
            ((), 2, "subcommand"),
            (("make",), 2, "subcommand"),
            (("list", "--format=xml"), 2, "--format"),
            (("list", "--families=none"), 3, "there are: banded"),
            (("list", "--files=/nowhere"), 3, "/nowhere"),
            (("list", "--min-nnz=-1"), 2, "--min-nnz"),
            (("list", "--max-nnz=many"), 2, "--max-nnz"),
            (("list", "--limit=x"), 2, "--limit"),
            (("write", f"--out={folder}"), 2, "NAME"),
            (("write", "road-grid950-1k"), 2, "--out"),
            (("write", "road-grid950-2k", f"--out={folder}"), 3, "road-grid950-2k"),
            (("write", "road-grid950-1k", f"--out={folder}", "--format=doc"), 2, "--format"),
            (("write", "road-grid950-1k", "--out=/dev/null/here"), 3, "--out"),
            (("measure",), 2, "--out"),
            (("measure", "--out=/nowhere/file"), 3, "/nowhere/file"),
            (("measure", out, "--device=tpu"), 3, "tpu"),
            (("measure", out, "--device=cuda:63"), None, "cuda:63"),
            (("measure", out, "--part=0/3"), 3, "0/3"),
            (("measure", out, "--part=4/3"), 3, "4/3"),
            (("measure", out, "--part=3"), 3, "--part"),
            (("measure", out, "--classes=spmm:100"), 3, "spmm:100"),
            (("measure", out, "--types=f8"), 3, "f8"),
            (("measure", out, "--types=f64", "--signatures=spmm:32:tf32"), 3, "tf32"),
            (("measure", out, "--threads=0"), 2, "--threads"),
            (("measure", out, "--expected-requests=1"), 2, "--model"),
            (("measure", out, "--model=x", "--expected-requests=0"), 2, "--expected-requests"),
            (("measure", out, "--memory=1KB"), 2, "--memory"),
            (("measure", out, "--trial-budget-ms=0"), 2, "--trial-budget-ms"),
            (("measure", out, "--seconds-per-pattern=-1"), 2, "--seconds-per-pattern"),
            (("measure", out, "--stop-after=-1"), 2, "--stop-after"),
            (("features", out, f"--model={folder}"), 3, "manifest.json cannot be read"),
            (("features", out, "--classes=spmm:100"), 3, "spmm:100"),
            (("features", out, "--repeat=0"), 2, "--repeat"),
            (("features", out, "--device=cuda:0"), 2, "--device")):
        done = subprocess.run([corpus, *arguments], capture_output=True, text=True)
        check(done.returncode == code if code is not None else done.returncode in (1, 3),
              f"{arguments} ended with {done.returncode}: {done.stdout}{done.stderr}")
        check(said in done.stdout + done.stderr, f"{arguments}: {done.stdout}{done.stderr}")
    check(not os.path.exists(f"{folder}/bad.jsonl"), "a refused run began a file")


for test in (test_list, test_write, test_features, test_estimates, test_measure,
             test_failures, test_kill, test_bad_input):
    with tempfile.TemporaryDirectory() as work:
        test(work)
print("corpus_test: ok")
