"""The table of docs/operations.md: what /metrics and the status page's answers cost.

Its raw lines are those of tests/bench/page_cost.py --json.
"""

import json
import pathlib

from tables import table

RAW = pathlib.Path(__file__).resolve().parents[2] / "docs/results/cpu/page-cost.jsonl"


def answers():
    lines = [json.loads(line) for line in RAW.read_text(encoding="utf-8").splitlines()]
    machine = next(line for line in lines if line["line"] == "machine")
    rows = [[f"`{line['path']}`", f"{line['bytes']:,}", f"{line['cpu_ms']:.1f} ms",
             f"{line['every_s']} s", f"{100 * line['share']:.2f} %"]
            for line in lines if line["line"] == "answer"]
    rounds = len(next(line for line in lines if line["line"] == "answer")["rounds_ms"])
    return [f"{machine['matrices']:,} matrices of {machine['tenants']} tenants, "
            f"{machine['processors']} processors ({machine['processor']}, load "
            f"{machine['load']:.1f}): processor time of the whole server for an answer, the median "
            f"of {rounds} rounds, and its share of all processors' time where it is asked for so "
            "often ([raw](results/cpu/page-cost.jsonl)).", "",
            table(["answer", "bytes", "time", "asked for every", "share of throughput"], rows)]
