#!/usr/bin/env python3
"""A real Prometheus scrapes a real server and answers every query of the dashboards with numbers.

  prometheus_test.py SPARSED SPARSECTL

Also: every recorded rule has numbers, the alert rules are evaluated without error and name only
metrics that exist, and docs/metrics.md lists exactly the metrics that the server serves. Skipped
(exit status 77) where Prometheus is not installed.
"""

import contextlib
import hashlib
import json
import math
import os
import pathlib
import re
import secrets
import shutil
import subprocess
import sys
import tempfile
import threading
import time
import urllib.error
import urllib.parse
import urllib.request

sys.path.insert(0, str(pathlib.Path(__file__).resolve().parent))
from running import ended, reserved_port, running  # noqa: E402

ROOT = pathlib.Path(__file__).resolve().parents[2]
DASHBOARDS = ROOT / "deploy/grafana/dashboards"
RULES = [ROOT / "deploy/prometheus" / name for name in ("rules.yml", "alerts.yml")]
METRICS_PAGE = ROOT / "docs/metrics.md"
DEADLINE_SECONDS = 120
SKIPPED = 77

# In place of Grafana's variables. The ranges span many scrapes and little of the test.
GRAFANA_VARIABLES = {"$__rate_interval": "20s", "$__range": "5m", "$instance": ".*",
                     "$kind": "work"}


# What has no number here, and why.
WITHOUT_GPU = {title: "there is no GPU" for title in
               ("Copies between host and GPU", "Phase: to_device", "Phase: from_device")}


def get(url):
    with urllib.request.urlopen(url, timeout=10) as reply:
        return reply.read().decode()


def wait_for(what, probe, seconds=DEADLINE_SECONDS):
    deadline = time.monotonic() + seconds
    while time.monotonic() < deadline:
        with contextlib.suppress(urllib.error.URLError, ConnectionError, TimeoutError):
            if probe():
                return
        time.sleep(0.1)
    raise SystemExit(f"{what} did not come up within {seconds} s")


@contextlib.contextmanager
def started(command, log):
    with open(log, "w") as out:
        process = subprocess.Popen(command, stdout=out, stderr=out)
    with ended(process, seconds=20):
        yield process


class Traffic(threading.Thread):
    """Every operation, and requests that fail, over and over until it is told to stop."""

    def __init__(self, sparsectl, server, folder):
        super().__init__()
        self.sparsectl, self.server, self.folder = sparsectl, server, folder
        self.stop = threading.Event()
        self.failure = None

    def call(self, *arguments, status=0):
        command = [self.sparsectl, f"--server={self.server}", "--json", *arguments]
        result = subprocess.run(command, capture_output=True, text=True, timeout=60)
        if result.returncode != status:
            raise RuntimeError(f"{' '.join(command)}: exit status {result.returncode}, not "
                               f"{status}: {result.stdout}{result.stderr}")
        return result.stdout

    def run(self):
        try:
            self.work()
        except Exception as failure:
            self.failure = failure

    def work(self):
        rows, width = 2000, 16
        graph, operand, out = (str(self.folder / name) for name in ("s.mtx", "b.npy", "c.npy"))
        with open(graph, "w") as stream:
            # Rows that are alike lie far apart: the preparation builds layouts.
            entries = [(r, r % 50 * 40 + i) for r in range(rows) for i in range(40)]
            stream.write("%%MatrixMarket matrix coordinate pattern general\n")
            stream.write(f"{rows} {rows} {len(entries)}\n")
            stream.writelines(f"{r + 1} {c + 1}\n" for r, c in entries)
        subprocess.run([ROOT / "deploy/quickstart_check.py", "operand", str(rows), str(width), "1",
                        operand], check=True)
        while not self.stop.is_set():
            self.call("upload", graph, "--name=s", "--wait")
            self.call("list")
            self.call("buffers", "put", "b", operand)
            self.call("buffers", "put", "beyond", operand, status=7)
            for _ in range(3):
                self.call("spmm", "s", f"--operand={operand}", f"--out={out}")
                self.call("sddmm", "s", f"--left={operand}", f"--right={operand}", f"--out={out}")
                self.call("spgemm", "s", "s", "--discard")
                self.call("rename", "nobody", "other", status=4)
            self.call("delete", "s")


def dashboard_queries():
    """(panel title, PromQL) of every query of every dashboard, with Grafana's variables filled in."""
    for path in sorted(DASHBOARDS.glob("*.json")):
        for panel in json.loads(path.read_text())["panels"]:
            for target in panel.get("targets", []):
                query = target["expr"]
                for name, value in GRAFANA_VARIABLES.items():
                    query = query.replace(name, value)
                yield panel["title"], query


def has_data(prometheus, query):
    reply = json.loads(get(f"{prometheus}/api/v1/query?" + urllib.parse.urlencode({"query": query})))
    return any(math.isfinite(float(series["value"][1])) for series in reply["data"]["result"])


class Queries:
    """Which of them had numbers, once at least: on a busy machine a scrape may come too late."""

    def __init__(self, prometheus):
        self.prometheus, self.answered = prometheus, set()

    def had_data(self, query):
        if query not in self.answered and has_data(self.prometheus, query):
            self.answered.add(query)
        return query in self.answered


def rule_problems(prometheus, queries):
    groups = json.loads(get(f"{prometheus}/api/v1/rules"))["data"]["groups"]
    rules = [rule for group in groups for rule in group["rules"]]
    known = set(json.loads(get(f"{prometheus}/api/v1/label/__name__/values"))["data"])
    problems = []
    for kind in ("recording", "alerting"):
        if not any(rule["type"] == kind for rule in rules):
            problems.append(f"no {kind} rule was loaded")
    for rule in rules:
        if rule["health"] != "ok":
            problems.append(f"rule {rule['name']} is {rule['health']}: {rule.get('lastError')}")
        for name in set(re.findall(r"(?<![:\w])(?:sparsed|process)_\w+", rule["query"])) - known:
            problems.append(f"rule {rule['name']} looks at {name}, which the server does not have")
        if rule["type"] == "recording" and not queries.had_data(rule["name"]):
            problems.append(f"no data: rule {rule['name']}")
    return problems


def documentation_problems(metrics):
    served = set(re.findall(r"^# TYPE (\S+)", metrics, re.M))
    documented = set(re.findall(r"^\| `(\w+)`", METRICS_PAGE.read_text(), re.M))
    problems = [f"{name} is served, docs/metrics.md lacks it" for name in served - documented]
    # What nodes of a cluster have besides, cluster_test looks at.
    missing = {name for name in documented - served if not name.startswith("sparsed_cluster_")}
    problems += [f"docs/metrics.md has {name}, it is not served" for name in missing]
    return problems


def watch(prometheus, metrics_url, traffic):
    """Problems that are left when everything has data, or time is up."""
    queries, answers = list(dashboard_queries()), Queries(prometheus)
    has_gpu = re.search(r'^sparsed_device_up{device="cuda:\d+"} 1$', get(metrics_url), re.M)
    without = {} if has_gpu else WITHOUT_GPU
    deadline = time.monotonic() + DEADLINE_SECONDS
    while True:
        time.sleep(1)
        if traffic.failure:
            return [f"the traffic failed: {traffic.failure}"]
        empty = [(title, query) for title, query in queries if not answers.had_data(query)]
        problems = [f"no data: {title}: {query}" for title, query in empty
                    if title not in without]
        problems += rule_problems(prometheus, answers)
        if not problems or time.monotonic() > deadline:
            print(f"{len(queries) - len(empty)} of {len(queries)} dashboard queries have data")
            for title in sorted({title for title, _ in empty} & without.keys()):
                print(f"without: {title}: {without[title]}")
            return problems + documentation_problems(get(metrics_url))


def make_certificate(folder):
    """One for the server, which vouches for itself; clients find it in the environment."""
    certificate, key = folder / "server.pem", folder / "server.key"
    subprocess.run(
        ["openssl", "req", "-x509", "-newkey", "ec", "-pkeyopt", "ec_paramgen_curve:P-256",
         "-nodes", "-days", "60", "-subj", "/CN=sparsed", "-addext", "subjectAltName=IP:127.0.0.1",
         "-keyout", key, "-out", certificate], check=True, capture_output=True)
    key.chmod(0o600)
    os.environ["SPARSED_TLS_CA"] = str(certificate)
    return [f"--tls-certificate={certificate}", f"--tls-key={key}"]


def make_access_file(folder):
    """An operator, whom clients are by the environment, with a quota of one buffer."""
    token, path = secrets.token_hex(32), folder / "access.yaml"
    digest = hashlib.sha256(token.encode()).hexdigest()
    path.write_text(
        f"tokens:\n  - {{name: traffic, sha256: {digest}, tenant: jobs, role: operator}}\n"
        "tenants:\n  jobs: {quotas: {buffers: 1}}\n")
    path.chmod(0o600)
    os.environ["SPARSED_TOKEN"] = token
    return f"--access-file={path}"


def main(sparsed, sparsectl):
    if not shutil.which("prometheus"):
        print("prometheus is not installed")
        return SKIPPED
    with tempfile.TemporaryDirectory(prefix="sparsed-prometheus-") as name, \
            contextlib.ExitStack() as stack:
        folder = pathlib.Path(name)
        server = stack.enter_context(running(
            sparsed, folder / "sparsed.log", f"--data-dir={folder / 'data'}", "--buffer-memory=1GiB",
            f"--models={ROOT / 'tests/data/model'}",
            # Nobody is there: spans are dropped.
            f"--otlp-endpoint=http://127.0.0.1:{reserved_port()}", *make_certificate(folder),
            make_access_file(folder)))
        web = f"127.0.0.1:{reserved_port()}"
        metrics_url, prometheus = f"{server.page}/metrics", f"http://{web}"

        # JSON is YAML.
        (folder / "prometheus.yml").write_text(json.dumps({
            "global": {"scrape_interval": "1s", "evaluation_interval": "1s"},
            "rule_files": [str(path) for path in RULES],
            "scrape_configs": [{"job_name": "sparsed",
                                "static_configs": [{"targets": [server.metrics]}]}]}))
        stack.enter_context(started(
            ["prometheus", f"--config.file={folder / 'prometheus.yml'}",
             f"--storage.tsdb.path={folder / 'tsdb'}", f"--web.listen-address={web}"],
            folder / "prometheus.log"))
        wait_for("Prometheus", lambda: get(f"{prometheus}/-/ready"))

        traffic = Traffic(sparsectl, server.listen, folder)
        traffic.call("snapshot", "save", str(folder / "saved"))
        traffic.start()
        try:
            problems = watch(prometheus, metrics_url, traffic)
        finally:
            traffic.stop.set()
            traffic.join()
        for problem in problems:
            print(problem)
        if problems:
            print((folder / "sparsed.log").read_text()[-4000:])
        return 1 if problems else 0


if __name__ == "__main__":
    sys.exit(main(*sys.argv[1:]))
