#!/usr/bin/env python3
"""What a cluster costs, side by side with one server.

  tests/bench/cluster_cost.py SPARSED SPARSECTL [--pairs=15] [--nonzeros=2000000] [--seconds=5]

Prints a JSON object a line: uploads to one replica and to two (all nodes share this machine's
processors and its disk, which nodes with their own do not), and the processor time of a server for
a product, of a node of three and of a server by itself. Takes etcd (Debian package etcd-server).
"""

import argparse
import contextlib
import json
import pathlib
import statistics
import subprocess
import sys
import tempfile
import time

sys.path.insert(0, str(pathlib.Path(__file__).resolve().parents[1] / "e2e"))
from cluster_test import Etcd, wait_for  # noqa: E402
from running import ended, reserved_port, serving  # noqa: E402


def cpu_seconds(process):
    return time.clock_gettime((~process.pid << 3) | 2)  # as clock_getcpuclockid(3) makes it


class Bench:
    def __init__(self, arguments, folder):
        self.arguments, self.folder, self.stack = arguments, folder, contextlib.ExitStack()

    def etcd(self, name):
        (self.folder / name).mkdir()
        etcd = Etcd(self.folder / name)
        etcd.start()
        self.stack.callback(etcd.kill)
        return etcd

    def servers(self, names, etcd=None, replicas=1):
        """Their processes and addresses."""
        servers = []
        for name in names:
            address = f"127.0.0.1:{reserved_port()}"
            flags = [f"--etcd=127.0.0.1:{etcd.port}", f"--advertise={address}", f"--node={name}",
                     f"--replicas={replicas}"] if etcd else []
            log = self.folder / f"{name}.log"
            with open(log, "wb") as out:
                process = subprocess.Popen(
                    [self.arguments.sparsed, f"--listen={address}", *flags, "--devices=cpu",
                     f"--data-dir={self.folder / name}", "--host-memory=1GiB", "--threads=1",
                     "--preparation-workers=0", "--metrics-listen=off", "--log-format=json",
                     "--local-listen=off"], stdout=out, stderr=out)
            self.stack.enter_context(ended(process))
            serving(process, log, 0, 120)
            servers.append((process, address))
        if etcd:
            wait_for("all nodes know each other", lambda: len(self.run(
                servers[0][1], "cluster", "list")["nodes"]) == len(names))
        return servers

    def run(self, address, *words):
        done = subprocess.run([self.arguments.sparsectl, f"--server={address}", "--json", *words],
                              capture_output=True, text=True, check=True, cwd=self.folder)
        return json.loads(done.stdout) if done.stdout.strip() else None

    def generate(self, name, rows, nonzeros):
        subprocess.run([self.arguments.sparsectl, "generate", "matrix", f"{rows}x{rows}",
                        f"--row-nonzeros={nonzeros // rows}", f"--out={name}"], check=True,
                       cwd=self.folder, stdout=subprocess.DEVNULL)

    def uploads(self):
        """Of the same matrix, to clusters of two nodes, in turns."""
        self.generate("large.mtx", 100_000, self.arguments.nonzeros)
        clusters = {replicas: self.servers([f"u{replicas}a", f"u{replicas}b"],
                                           self.etcd(f"etcd{replicas}"), replicas)
                    for replicas in (1, 2)}
        seconds = {1: [], 2: []}
        for pair in range(self.arguments.pairs + 1):
            for replicas in (1, 2) if pair % 2 else (2, 1):
                address = clusters[replicas][0][1]
                # By the node that takes it: a redirect is another matter.
                said = self.run(address, "upload", "large.mtx", "--name=large", "--replace")
                if pair > 0:  # the first place is another one's, and caches are cold
                    seconds[replicas].append(said["upload_ns"] * 1e-9)
        ratios = [two / one for one, two in zip(seconds[1], seconds[2])]
        return {"what": "upload, two replicas over one", "nonzeros": self.arguments.nonzeros,
                "seconds_one": seconds[1], "seconds_two": seconds[2],
                "median_ratio": statistics.median(ratios), "ratios": ratios}

    def products(self):
        """Processor time of a server for a product: of a node of three, one after the other as if
        each had processors of its own, and of a server by itself, in turns."""
        self.generate("small.mtx", 2_000, 20_000)
        alone = self.servers(["alone"])[0]
        nodes = self.servers(["p1", "p2", "p3"], self.etcd("etcd-products"))
        self.run(alone[1], "upload", "small.mtx", "--name=small")
        names = {}  # a matrix of each node, by what placement says
        for i in range(100):
            self.run(nodes[0][1], "upload", "small.mtx", f"--name=m{i}")
            names[self.run(nodes[0][1], "show", f"m{i}")["nodes"][0]] = f"m{i}"
            if len(names) == len(nodes):
                break
        milliseconds = {"alone": [], "node": []}
        for turn in range(4 * len(nodes)):
            node = turn % len(nodes)
            sides = [("alone", alone, "small"), ("node", nodes[node], names[f"p{node + 1}"])]
            for side, (process, address), name in sides if turn % 2 else reversed(sides):
                before = cpu_seconds(process)
                done = self.run(address, "bench", name, "--k=16", "--no-prepare",
                                "--concurrency=4", f"--seconds={self.arguments.seconds}")
                spent = cpu_seconds(process) - before
                milliseconds[side].append(1e3 * spent / done["requests"])
        ratios = [n / a for n, a in zip(milliseconds["node"], milliseconds["alone"])]
        return {"what": "processor time of a node a product, over that of a server by itself",
                "milliseconds": milliseconds, "ratios": ratios,
                "median_ratio": statistics.median(ratios)}


def main():
    parser = argparse.ArgumentParser(description=__doc__.split("\n", maxsplit=1)[0])
    parser.add_argument("sparsed")
    parser.add_argument("sparsectl")
    parser.add_argument("--pairs", type=int, default=15)
    parser.add_argument("--nonzeros", type=int, default=2_000_000)
    parser.add_argument("--seconds", type=float, default=5)
    arguments = parser.parse_args()
    with tempfile.TemporaryDirectory(prefix="cluster_cost_") as name:
        bench = Bench(arguments, pathlib.Path(name))
        with bench.stack:
            for part in (bench.uploads, bench.products):
                print(json.dumps(part()), flush=True)


if __name__ == "__main__":
    main()
