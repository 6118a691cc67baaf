#!/usr/bin/env python3
"""A real Prometheus scrapes real servers and answers every query of the dashboards with numbers: those
of the cluster's of three nodes, all others of a server by itself.

  prometheus_test.py SPARSED SPARSECTL

Also: what docs/metrics.md says to ask first and every recorded rule have numbers, the alert rules are
evaluated without error and name only metrics that exist, and docs/metrics.md lists exactly the metrics
that the server serves. Where etcd is not installed there are no nodes, and their dashboard is left out;
skipped (exit status 77) where Prometheus is not.
"""

import contextlib
import functools
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
import cluster_test  # noqa: E402
from running import ended, reserved_port, running  # noqa: E402

ROOT = pathlib.Path(__file__).resolve().parents[2]
DASHBOARDS = ROOT / "deploy/grafana/dashboards"
RULES = [ROOT / "deploy/prometheus" / name for name in ("rules.yml", "alerts.yml")]
METRICS_PAGE = ROOT / "docs/metrics.md"
CLUSTER = "sparsed-cluster"
DEADLINE_SECONDS = 240
SKIPPED = 77

# In place of Grafana's variables. The ranges span many scrapes and little of the test.
GRAFANA_VARIABLES = {"$__rate_interval": "20s", "$__range": "5m", "$kind": "work"}
# Panels of the cluster that show zeros as long as all is well; every other one shows more.
ZERO_WHEN_WELL = {"Nodes gone", "Copies missing", "Copies missing by owner", "Take-overs",
                  "Errors of etcd"}

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
    """Work, over and over until it is told to stop: while the context lasts."""

    def __init__(self, work):
        super().__init__()
        self.work, self.stop, self.failure = work, threading.Event(), None

    def run(self):
        try:
            while not self.stop.is_set():
                self.work()
        except (Exception, SystemExit) as failure:
            self.failure = failure

    @contextlib.contextmanager
    def going(self):
        self.start()
        try:
            yield
        finally:
            self.stop.set()
            self.join()


def called(sparsectl, server, *arguments, status=0):
    command = [sparsectl, f"--server={server}", "--json", *arguments]
    result = subprocess.run(command, capture_output=True, text=True, timeout=60)
    if result.returncode != status:
        raise RuntimeError(f"{' '.join(command)}: exit status {result.returncode}, not "
                           f"{status}: {result.stdout}{result.stderr}")


def every_operation(call, folder):
    """What calls every operation, and makes requests that fail."""
    rows, width = 2000, 16
    graph, operand, out = (str(folder / name) for name in ("s.mtx", "b.npy", "c.npy"))
    with open(graph, "w") as stream:
        # Rows that are alike lie far apart: the preparation builds layouts.
        entries = [(r, r % 50 * 40 + i) for r in range(rows) for i in range(40)]
        stream.write("%%MatrixMarket matrix coordinate pattern general\n")
        stream.write(f"{rows} {rows} {len(entries)}\n")
        stream.writelines(f"{r + 1} {c + 1}\n" for r, c in entries)
    subprocess.run([ROOT / "deploy/quickstart_check.py", "operand", str(rows), str(width), "1",
                    operand], check=True)

    def work():
        call("upload", graph, "--name=s", "--wait")
        call("list")
        call("buffers", "put", "b", operand)
        call("buffers", "put", "beyond", operand, status=7)
        for _ in range(3):
            call("spmm", "s", f"--operand={operand}", f"--out={out}")
            call("sddmm", "s", f"--left={operand}", f"--right={operand}", f"--out={out}")
            call("spgemm", "s", "s", "--discard")
            call("rename", "nobody", "other", status=4)
        call("delete", "s")
    return work


def every_cluster_operation(checked, nodes):
    """What has nodes make copies, send clients to each other, and fetch rows from each other."""
    # So few nonzeros that shards name few of their nodes' own rows, which are copied then.
    checked("a", "generate", "matrix", "900x900", "--row-nonzeros=1", "--out=g.mtx")
    checked("a", "generate", "dense", "900x16", "--out=B.npy")
    checked("a", "upload", "g.mtx", "--name=whole")
    for node in nodes:
        wait_for(f"a matrix at {node}",
                 lambda n=node: checked(n, "show", "whole", check=False).returncode == 0)

    def work():
        # Of a machine that is busy one or another may be refused; panels show whether any came through.
        run = functools.partial(checked, check=False)
        run("a", "upload", "g.mtx", "--name=whole", "--replace")
        for node in nodes:
            run(node, "spmm", "whole", "--operand=B.npy", "--out=C.npy")
        # All by one node: others know of a moment later what was made.
        run("b", "upload", "g.mtx", "--name=parts", "--shards=3", "--replace")
        run("b", "buffers", "put", "x", "B.npy", "--for=parts")
        run("b", "spmm", "parts", "--operand=@x", "--out=C.npy")
    return work


@contextlib.contextmanager
def cluster_of(sparsed, sparsectl, folder):
    """Three nodes with an etcd, or None where there is none to be had."""
    if not shutil.which("etcd"):
        yield None
        return
    folder.mkdir()
    etcd = cluster_test.Etcd(folder)
    etcd.start()
    try:
        cluster = cluster_test.Cluster(sparsed, sparsectl, folder, etcd, ("a", "b", "c"))
        with cluster.running():
            yield cluster
    finally:
        etcd.kill()


def dashboard_queries(server, nodes):
    """Title of the panel, PromQL, and whether zeros will do, of every query of every dashboard, with
    Grafana's variables filled in: the nodes are chosen on the cluster's, elsewhere the server."""
    for path in sorted(DASHBOARDS.glob("*.json")):
        is_cluster = path.stem == CLUSTER
        instances = nodes if is_cluster else [server]
        for panel in json.loads(path.read_text())["panels"] if instances else []:
            for target in panel.get("targets", []):
                query = target["expr"].replace("$instance", "|".join(instances))
                for name, value in GRAFANA_VARIABLES.items():
                    query = query.replace(name, value)
                yield panel["title"], query, not is_cluster or panel["title"] in ZERO_WHEN_WELL


def documented_queries():
    """What docs/metrics.md says to ask first."""
    section = re.search(r"^## In short$(.*?)^## ", METRICS_PAGE.read_text(), re.M | re.S)[1]
    for question, asked in re.findall(r"^\| ([^|`]+\?) \| (.*) \|$", section, re.M):
        for query in re.findall(r"`([^`]+)`", asked):
            yield f"docs/metrics.md: {question}", query.replace("[5m]", "[20s]"), True


def has_data(prometheus, query, zeros_do=True):
    reply = json.loads(get(f"{prometheus}/api/v1/query?" + urllib.parse.urlencode({"query": query})))
    values = [float(series["value"][1]) for series in reply["data"]["result"]]
    return any(math.isfinite(value) and (zeros_do or value != 0) for value in values)


class Queries:
    """Which of them had numbers, once at least: on a busy machine a scrape may come too late."""

    def __init__(self, prometheus):
        self.prometheus, self.answered = prometheus, set()

    def had_data(self, query, zeros_do=True):
        if query not in self.answered and has_data(self.prometheus, query, zeros_do):
            self.answered.add(query)
        return query in self.answered


def documented():
    """The metrics that docs/metrics.md lists, those of nodes of a cluster apart."""
    names = set(re.findall(r"^\| `(\w+)`", METRICS_PAGE.read_text(), re.M))
    of_nodes = {name for name in names if name.startswith("sparsed_cluster_")}
    return names - of_nodes, of_nodes


def rule_problems(prometheus, queries, has_nodes):
    groups = json.loads(get(f"{prometheus}/api/v1/rules"))["data"]["groups"]
    rules = [rule for group in groups for rule in group["rules"]]
    known = set(json.loads(get(f"{prometheus}/api/v1/label/__name__/values"))["data"])
    if not has_nodes:
        known |= documented()[1]
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
    expected, of_nodes = documented()  # what nodes have, cluster_test looks at
    problems = [f"{name} is served, docs/metrics.md lacks it"
                for name in served - expected - of_nodes]
    problems += [f"docs/metrics.md has {name}, it is not served" for name in expected - served]
    return problems


def watch(prometheus, server, nodes, traffics):
    """Problems that are left when everything has data, or time is up."""
    queries = [*dashboard_queries(server.metrics, nodes), *documented_queries()]
    answers = Queries(prometheus)
    metrics_url = f"{server.page}/metrics"
    has_gpu = re.search(r'^sparsed_device_up{device="cuda:\d+"} 1$', get(metrics_url), re.M)
    without = {} if has_gpu else WITHOUT_GPU
    deadline = time.monotonic() + DEADLINE_SECONDS
    while True:
        time.sleep(1)
        for traffic in traffics:
            if traffic.failure:
                return [f"the traffic failed: {traffic.failure}"]
        empty = [(title, query) for title, query, zeros_do in queries
                 if not answers.had_data(query, zeros_do)]
        problems = [f"no data: {title}: {query}" for title, query in empty
                    if title not in without]
        problems += rule_problems(prometheus, answers, bool(nodes))
        if not problems or time.monotonic() > deadline:
            print(f"{len(queries) - len(empty)} of {len(queries)} queries of dashboards and docs have data")
            for title in sorted({title for title, _ in empty} & without.keys()):
                print(f"without: {title}: {without[title]}")
            if not nodes:
                print(f"without: {CLUSTER}: etcd is not installed (Debian package etcd-server)")
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
        # Neither TLS nor tokens, which the server by itself has.
        plain = {key: value for key, value in os.environ.items() if not key.startswith("SPARSED_")}
        cluster = stack.enter_context(cluster_of(sparsed, sparsectl, folder / "cluster"))
        nodes = [] if cluster is None else [node.metrics for node in cluster.nodes.values()]
        server = stack.enter_context(running(
            sparsed, folder / "sparsed.log", f"--data-dir={folder / 'data'}", "--buffer-memory=1GiB",
            f"--models={ROOT / 'tests/data/model'}",
            # Nobody is there: spans are dropped.
            f"--otlp-endpoint=http://127.0.0.1:{reserved_port()}", *make_certificate(folder),
            make_access_file(folder)))
        web = f"127.0.0.1:{reserved_port()}"
        prometheus = f"http://{web}"

        # JSON is YAML.
        (folder / "prometheus.yml").write_text(json.dumps({
            "global": {"scrape_interval": "1s", "evaluation_interval": "1s"},
            "rule_files": [str(path) for path in RULES],
            "scrape_configs": [{"job_name": "sparsed",
                                "static_configs": [{"targets": [server.metrics, *nodes]}]}]}))
        stack.enter_context(started(
            ["prometheus", f"--config.file={folder / 'prometheus.yml'}",
             f"--storage.tsdb.path={folder / 'tsdb'}", f"--web.listen-address={web}"],
            folder / "prometheus.log"))
        wait_for("Prometheus", lambda: get(f"{prometheus}/-/ready"))

        call = functools.partial(called, sparsectl, server.listen)
        call("snapshot", "save", str(folder / "saved"))
        traffics = [Traffic(every_operation(call, folder))]
        if cluster is not None:
            run = functools.partial(cluster.run, env=plain)
            traffics.append(Traffic(every_cluster_operation(run, cluster.nodes)))
        with contextlib.ExitStack() as going:
            for traffic in traffics:
                going.enter_context(traffic.going())
            problems = watch(prometheus, server, nodes, traffics)
        for problem in problems:
            print(problem)
        if problems:
            for log in (folder / "sparsed.log", *sorted(folder.glob("cluster/*/log"))):
                print(f"--- {log}\n{log.read_text()[-4000:]}")
        return 1 if problems else 0


if __name__ == "__main__":
    sys.exit(main(*sys.argv[1:]))
