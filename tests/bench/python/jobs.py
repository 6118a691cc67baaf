#!/usr/bin/env python3
"""Several training jobs at once on one device: with sparsed, through one server, and with PyG.

    tests/bench/python/jobs.py MATRIX.mtx.gz... [--jobs 2] [--model gcn] [--way csr] [--out jobs.jsonl]

Each job is a process with the model of epochs.py. With sparsed all jobs use one matrix of one server;
with PyG each has its own, in the form `--way`. The ways take turns: all jobs of one train at the same
time, then all of the other. For each matrix a line of JSON: epochs a second of all jobs together, by
way, and of one job alone; and on a GPU the memory that the jobs of each way take on the device, the
server's with sparsed.

Without --server one is started on this machine, SPARSED_SERVER or `sparsed`.
"""

import argparse
import json
import statistics
import subprocess
import sys
from pathlib import Path

import numpy as np
import scipy.io
import scipy.sparse as sp
import torch
from epochs import (
    Ours,
    Way,
    graphs_of,
    model_of,
    normalized_csr,
    prepare,
    server_for,
    synchronize,
    their_model,
)

import sparsed

NAME = "jobs"


def parse():
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("matrices", nargs="+")
    parser.add_argument("--device", default="cuda" if torch.cuda.is_available() else "cpu")
    parser.add_argument("--jobs", type=int, default=2)
    parser.add_argument("--model", default="gcn")
    parser.add_argument("--way", default="csr", help="of PyG: csr, edge_index or EdgeIndex")
    parser.add_argument("--features", type=int, default=128)
    parser.add_argument("--rounds", type=int, default=7)
    parser.add_argument("--seconds", type=float, default=1.5, help="of each turn")
    parser.add_argument("--prepare", type=float, default=30, help="seconds, at most, for plans")
    parser.add_argument("--server", help="its address; one is started otherwise")
    parser.add_argument("--out", help="a file for the lines, too")
    parser.add_argument("--as-job", help=argparse.SUPPRESS)
    return parser.parse_args()


def read(path):
    matrix = sp.csr_matrix(scipy.io.mmread(path)).astype(np.float32)
    matrix.data[:] = 1
    return matrix


# ---- A job: reads seconds from its standard input, trains for so long, and says how many epochs.


def be_job(arguments):
    device = torch.device(arguments.device)
    matrix = read(arguments.matrices[0])
    torch.manual_seed(0)
    x = torch.randn(matrix.shape[0], arguments.features, device=device)
    y = torch.randint(16, (matrix.shape[0],), device=device)
    if arguments.as_job == "sparsed":
        with sparsed.connect(arguments.server) as client:
            graph = client.matrix(NAME)
            model = model_of(arguments.model, Ours, arguments.features).to(device)
            way = Way("sparsed", model, graph, x, y)
            way.first(device)
            prepare([way], graph, device, arguments.prepare)
            serve(way, device)
    else:
        form = arguments.as_job
        if form == "csr":
            graph = normalized_csr(matrix, device)
        else:
            graph = graphs_of([form], arguments.model, matrix, device)[form]
        model = their_model(arguments.model, form, arguments.features).to(device)
        way = Way(form, model, graph, x, y)
        way.first(device)
        serve(way, device)


def serve(way, device):
    way.block(device, 0.2)
    synchronize(device)
    print("ready", flush=True)
    for line in sys.stdin:
        way.times.clear()
        way.block(device, float(line))
        synchronize(device)
        print(json.dumps({"epochs": len(way.times), "seconds": sum(way.times) / 1e3}), flush=True)


# ---- Who tells them


class Job:
    def __init__(self, arguments, path, way, address):
        command = [
            sys.executable, __file__, path, f"--as-job={way}", f"--device={arguments.device}",
            f"--model={arguments.model}", f"--features={arguments.features}",
            f"--prepare={arguments.prepare}", f"--server={address}",
        ]  # fmt: skip
        self.process = subprocess.Popen(
            command, stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True
        )

    def answer(self):
        line = self.process.stdout.readline()
        if not line:
            sys.exit(f"a job ended with exit code {self.process.wait()}")
        return line

    def begin(self, seconds):
        self.process.stdin.write(f"{seconds}\n")
        self.process.stdin.flush()

    def close(self):
        self.process.stdin.close()
        self.process.wait()


def rate_of(jobs, seconds):
    """Epochs a second of all of them together."""
    for job in jobs:
        job.begin(seconds)
    answers = [json.loads(job.answer()) for job in jobs]
    return sum(one["epochs"] / one["seconds"] for one in answers)


def used_mb(device):
    """What all processes have of the device's memory; None of a CPU."""
    if not device.startswith("cuda"):
        return None
    command = ["nvidia-smi", "--query-gpu=memory.used", "--format=csv,noheader,nounits"]
    return float(subprocess.check_output(command, text=True).split()[0])


def measure(arguments, path, address):
    matrix = read(path)
    ways = ("sparsed", arguments.way)
    jobs, memory = {}, {}
    try:
        before = used_mb(arguments.device)
        with sparsed.connect(address) as client:
            g = client.upload(NAME, matrix, replace=True)
            for way in ways:
                jobs[way] = [Job(arguments, path, way, address) for _ in range(arguments.jobs)]
                for job in jobs[way]:
                    job.answer()
                after = used_mb(arguments.device)
                memory[way] = None if before is None else after - before
                before = after
            together = {way: [] for way in ways}
            alone = {way: [] for way in ways}
            for number in range(arguments.rounds):
                for way in ways if number % 2 == 0 else reversed(ways):
                    together[way].append(rate_of(jobs[way], arguments.seconds))
                    alone[way].append(rate_of(jobs[way][:1], arguments.seconds))
            g.delete()
    finally:
        for one in jobs.values():
            for job in one:
                job.close()
    rates = {way: statistics.median(together[way]) for way in ways}
    return {
        "matrix": Path(path).name.split(".")[0], "rows": matrix.shape[0], "nnz": int(matrix.nnz),
        "model": arguments.model, "jobs": arguments.jobs, "way": arguments.way,
        "device": torch.cuda.get_device_name() if arguments.device.startswith("cuda") else "cpu",
        "epochs_per_second": {way: round(rate, 2) for way, rate in rates.items()},
        "rounds": {way: [round(rate, 2) for rate in together[way]] for way in ways},
        "one_job": {way: round(statistics.median(alone[way]), 2) for way in ways},
        "ratio": round(rates["sparsed"] / rates[arguments.way], 3), "memory_mb": memory,
    }  # fmt: skip


def main():
    arguments = parse()
    if arguments.as_job:
        be_job(arguments)
        return
    server = server_for(arguments)
    try:
        for path in arguments.matrices:
            line = json.dumps(measure(arguments, path, arguments.server or server.address))
            print(line, flush=True)
            if arguments.out:
                with open(arguments.out, "a") as out:
                    out.write(line + "\n")
    finally:
        if server is not None:
            server.close()


if __name__ == "__main__":
    main()
