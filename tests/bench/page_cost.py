#!/usr/bin/env python3
"""What /metrics and the status page's answers cost a server with many matrices of many tenants.

  tests/bench/page_cost.py SPARSED SPARSECTL [--matrices=10000] [--tenants=50] [--patterns=8]
    [--rounds=3] [--json]

Processor time of the whole server for each answer, which hardly depends on what else the machine
does: a share of throughput where requests take all processors. A page that is open asks for its
status and its view every two seconds, a Prometheus for /metrics every 15. With --json: lines for
docs/results/cpu/page-cost.jsonl, of which docs/operations.md has a table.
"""

import argparse
import contextlib
import hashlib
import json
import os
import pathlib
import random
import statistics
import subprocess
import sys
import tempfile
import time
import urllib.request

sys.path.insert(0, str(pathlib.Path(__file__).resolve().parents[1] / "e2e"))
from running import running  # noqa: E402

PATHS = {  # and how often it is asked for, in seconds
    "/metrics": 15,
    "/api/status": 2,
    "/api/matrices?sort=rate&order=desc&limit=25": 2,
    "/api/matrices?search=m-01&sort=bytes&limit=100": 2,
    "/api/matrix?tenant=t00&name=m-0000": 2,
    "/api/preparations": 2,
    "/api/requests": 2,
    "/api/tenants?limit=100": 2,
    "/api/buffers": 2,
}


def processor_name():
    for line in pathlib.Path("/proc/cpuinfo").read_text().splitlines():
        if line.startswith("model name"):
            return line.split(":", 1)[1].strip()
    return ""


def cpu_seconds(pid):
    return time.clock_gettime((~pid << 3) | 2)  # as clock_getcpuclockid(3) makes it


def write_matrices(folder, count, patterns):
    """As many files, of so many patterns."""
    numbers = random.Random(1)
    texts = []
    for _ in range(patterns):
        entries = sorted({(numbers.randrange(1, 65), numbers.randrange(1, 65)) for _ in range(200)})
        texts.append(f"%%MatrixMarket matrix coordinate pattern general\n64 64 {len(entries)}\n" +
                     "".join(f"{i} {j}\n" for i, j in entries))
    paths = [folder / f"m-{i:04}.mtx" for i in range(count)]
    for i, path in enumerate(paths):
        path.write_text(texts[i % patterns])
    return paths


@contextlib.contextmanager
def server(sparsed, folder, tenants):
    lines = ["tokens:\n"]
    for name in [*tenants, "boss"]:
        (folder / name).write_text(name)
        (folder / name).chmod(0o600)
        digest = hashlib.sha256(name.encode()).hexdigest()
        role = "operator" if name == "boss" else "user"
        lines.append(f"  - {{name: {name}, sha256: {digest}, tenant: {name}, role: {role}}}\n")
    (folder / "access.yaml").write_text("".join(lines))
    (folder / "access.yaml").chmod(0o600)
    with running(sparsed, folder / "log", "--in-memory", "--devices=cpu", "--host-memory=1GiB",
                 f"--listen=unix:{folder}/socket",
                 f"--access-file={folder}/access.yaml") as process:
        yield process.pid, process.page, process.listen


def get(url):
    request = urllib.request.Request(url, headers={"authorization": "Bearer boss"})
    with urllib.request.urlopen(request, timeout=60) as reply:
        return reply.read()


def wait_until_prepared(url):
    while b"\nsparsed_preparations_pending 0" not in get(url + "/metrics"):
        time.sleep(2)


def main():
    parser = argparse.ArgumentParser()
    parser.add_argument("sparsed")
    parser.add_argument("sparsectl")
    parser.add_argument("--matrices", type=int, default=10000)
    parser.add_argument("--tenants", type=int, default=50)
    parser.add_argument("--patterns", type=int, default=8, help="of each tenant")
    parser.add_argument("--rounds", type=int, default=3, help="of which the median is said")
    parser.add_argument("--json", action="store_true")
    options = parser.parse_args()
    tenants = [f"t{i:02}" for i in range(options.tenants)]
    with tempfile.TemporaryDirectory(prefix="page_cost_") as name:
        folder = pathlib.Path(name)
        files = write_matrices(folder, options.matrices // options.tenants, options.patterns)
        with server(options.sparsed, folder, tenants) as (pid, url, listen):
            for tenant in tenants:
                subprocess.run([options.sparsectl, f"--server={listen}",
                                f"--token-file={folder}/{tenant}", "upload", *files],
                               check=True, stdout=subprocess.DEVNULL)
            wait_until_prepared(url)
            idle_begin, idle_cpu = time.monotonic(), cpu_seconds(pid)
            time.sleep(5)
            idle = (cpu_seconds(pid) - idle_cpu) / (time.monotonic() - idle_begin)
            machine = {"matrices": options.matrices, "tenants": options.tenants,
                       "patterns_each": options.patterns, "processors": os.cpu_count(),
                       "processor": processor_name(), "load": os.getloadavg()[0]}
            if options.json:
                print(json.dumps({"line": "machine", **machine}))
            else:
                print(", ".join(f"{name} {value}" for name, value in machine.items()))
                print(f"{'answer':50} {'bytes':>8} {'CPU ms':>8} {'share of throughput':>20}")
            for path, interval in PATHS.items():
                rounds, size = [], 0
                for _ in range(options.rounds):
                    # As often as it is asked for, or a snapshot would be shared by more of them.
                    times = 6 if interval == 2 else 20
                    begin, before = time.monotonic(), cpu_seconds(pid)
                    for _ in range(times):
                        size = len(get(url + path))
                        if interval == 2:
                            time.sleep(2)
                    spent = cpu_seconds(pid) - before - idle * (time.monotonic() - begin)
                    rounds.append(max(0.0, spent / times) * 1e3)
                each = statistics.median(rounds)
                share = each / 1e3 / interval / os.cpu_count()
                if options.json:
                    print(json.dumps({"line": "answer", "path": path, "every_s": interval,
                                      "bytes": size, "cpu_ms": each, "rounds_ms": rounds,
                                      "share": share}), flush=True)
                else:
                    print(f"{path:50} {size:8} {each:8.1f} {share * 100:18.3f} %", flush=True)


if __name__ == "__main__":
    main()
