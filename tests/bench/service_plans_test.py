#!/usr/bin/env python3
"""`bench_service plans` on a small matrix and the CPU; CONTRIBUTING.md runs it on all, an hour on a GPU.

usage: service_plans_test.py SPARSED SPARSED_BENCH BENCH_SERVICE
"""

import json
import random
import subprocess
import sys
import tempfile
from pathlib import Path

ROOT = Path(__file__).resolve().parents[2]
sys.path.insert(0, str(ROOT / "tests/e2e"))
from running import running  # noqa: E402

ROWS = 60


def write_matrix(path):
    choose = random.Random(1)
    entries = sorted({(choose.randint(1, ROWS), choose.randint(1, ROWS)) for _ in range(600)})
    path.write_text(f"%%MatrixMarket matrix coordinate pattern general\n{ROWS} {ROWS} {len(entries)}\n" +
                    "".join(f"{row} {column}\n" for row, column in entries))
    return len(entries)


def main(sparsed, sparsed_bench, bench_service):
    with tempfile.TemporaryDirectory(prefix="sparsed-plans-") as name:
        folder = Path(name)
        nonzeros = write_matrix(folder / "small.mtx")
        pack = folder / "matrices.xz"
        subprocess.run([sparsed_bench, "pack", pack, folder / "small.mtx"], check=True, timeout=120)
        with running(sparsed, folder / "log", "--in-memory", "--devices=cpu") as server:
            # Of all that can be generated none: it would take minutes.
            done = subprocess.run([bench_service, "plans", f"--server={server.listen}", f"--pack={pack}",
                                   "--generated=all", "--only=small", "--k=8,32"],
                                  capture_output=True, text=True, timeout=240)
        assert done.returncode == 0, done.stderr
        (folder / "plans.jsonl").write_text(done.stdout)
        lines = [json.loads(line) for line in done.stdout.splitlines()]
        assert {line["matrix"] for line in lines} == {"small"}, lines
        assert {(line["rows"], line["nnz"]) for line in lines} == {(ROWS, nonzeros)}, lines
        for width in (8, 32):
            of_width = [line for line in lines
                        if (line["op"], line["transposed"], line["k"]) == ("spmm", False, width)]
            assert sum(line["plan"] for line in of_width) == 1, of_width
            assert all(line["ms"] > 0 and line["baseline_ms"] > 0 for line in of_width), of_width
        page = folder / "plans.md"
        subprocess.run([ROOT / "tests/bench/h100_tables.py", folder / "plans.jsonl", page], check=True,
                       timeout=120)
        assert "from plans.jsonl" in page.read_text(), page.read_text()


if __name__ == "__main__":
    main(*sys.argv[1:])
