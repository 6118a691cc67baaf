#!/usr/bin/env python3
"""Three servers and a real etcd: nodes answer for each other, fail, come back and are drained.

cluster_test.py SPARSED SPARSECTL
"""

import contextlib
import json
import os
import pathlib
import re
import shutil
import signal
import ssl
import subprocess
import sys
import tempfile
import time
import urllib.request

from running import ended, reserved_port, serving

MATRICES = 12
# "cuda:0": all nodes on that GPU, where somebody tries these tests with one.
DEVICES = os.environ.get("SPARSED_TEST_DEVICES", "cpu")
REPLICAS = 2
# What is promised of a node that is gone.
SECONDS_TO_ANSWER = 5.0


def say(text):
    print(text, flush=True)


def wait_for(what, condition, seconds=60):
    """Polls until `condition()` is true."""
    deadline = time.monotonic() + seconds
    while time.monotonic() < deadline:
        if condition():
            return
        time.sleep(0.1)
    raise SystemExit(f"not within {seconds} s: {what}")


class Etcd:
    """A real one, whose data stays when it is killed. `tls`: a certificate and its key, by which it
    and its callers know each other. `name`: of a member of several, which `peers` has all of."""

    def __init__(self, folder, tls=None, name="test"):
        self.folder, self.tls, self.name = folder, tls, name
        self.port, self.peer_port = reserved_port(), reserved_port()
        self.addresses = f"127.0.0.1:{self.port}"
        self.peers = {name: self.peer_port}
        self.process = None

    def start(self, wait=True):
        client = f"{'https' if self.tls else 'http'}://127.0.0.1:{self.port}"
        flags = [f"--cert-file={self.tls[0]}", f"--key-file={self.tls[1]}", "--client-cert-auth",
                 f"--trusted-ca-file={self.tls[0]}"] if self.tls else []
        context = None
        if self.tls:
            context = ssl.create_default_context(cafile=self.tls[0])
            context.load_cert_chain(*self.tls)
        peer = f"http://127.0.0.1:{self.peer_port}"
        others = ",".join(f"{name}=http://127.0.0.1:{port}" for name, port in self.peers.items())
        with open(self.folder / "etcd.log", "ab") as log:
            self.process = subprocess.Popen(
                ["etcd", f"--name={self.name}", f"--data-dir={self.folder / self.name}",
                 f"--listen-client-urls={client}", f"--advertise-client-urls={client}",
                 f"--listen-peer-urls={peer}", f"--initial-advertise-peer-urls={peer}",
                 f"--initial-cluster={others}", "--auto-compaction-mode=periodic",
                 "--auto-compaction-retention=1h", *flags],
                stdout=log, stderr=log, env={**os.environ, "ETCD_UNSUPPORTED_ARCH": ""})

        def healthy():
            with contextlib.suppress(OSError, ValueError):
                with urllib.request.urlopen(f"{client}/health", timeout=1,
                                            context=context) as answer:
                    return json.load(answer).get("health") in ("true", True)
            return False
        if wait:
            wait_for("etcd is healthy", healthy)

    def kill(self):
        self.process.kill()
        self.process.wait()


class Etcds:
    """One of three members, of which any two go on."""

    def __init__(self, folder):
        self.members = [Etcd(folder, name=f"etcd-{i}") for i in range(3)]
        for member in self.members:
            member.peers = {other.name: other.peer_port for other in self.members}
        self.addresses = ",".join(member.addresses for member in self.members)

    def start(self):
        # None is well before two are there.
        for member in self.members[:-1]:
            member.start(wait=False)
        self.members[-1].start()

    def kill(self):
        for member in self.members:
            if member.process.poll() is None:
                member.kill()


class Node:
    """A server of the cluster, with its folder and address for as many runs as it has."""

    def __init__(self, sparsed, folder, name, etcd, flags=(), replicas=REPLICAS):
        self.flags, self.replicas = flags, replicas
        self.sparsed, self.folder, self.name, self.etcd = sparsed, folder / name, name, etcd
        self.folder.mkdir()
        self.port = reserved_port()
        self.address = f"127.0.0.1:{self.port}"
        self.process = self.metrics = None

    def start(self):
        log = self.folder / "log"
        with open(log, "ab") as out:
            begin = out.tell()
            self.process = subprocess.Popen(
                [self.sparsed, f"--listen={self.address}", f"--advertise={self.address}",
                 f"--node={self.name}", f"--etcd={self.etcd.addresses}",
                 f"--replicas={self.replicas}", f"--data-dir={self.folder / 'data'}",
                 f"--devices={DEVICES}",
                 "--host-memory=1GiB", "--threads=1", "--preparation-workers=0",
                 "--metrics-listen=127.0.0.1:0", "--log-format=json", "--shutdown-grace=5",
                 # Matrices move where a test looks at that alone.
                 *([] if any("--cluster-settle" in flag for flag in self.flags)
                   else ["--cluster-settle=0"]), *self.flags],
                stdout=out, stderr=out)
        self.metrics = serving(self.process, log, begin, 120)["metrics"]

    def kill(self):
        self.process.send_signal(signal.SIGKILL)
        self.process.wait()

    def all_metrics(self):
        with urllib.request.urlopen(f"http://{self.metrics}/metrics", timeout=10) as page:
            return page.read().decode()

    def metric(self, name):
        for line in self.all_metrics().splitlines():
            if line.startswith(name + " "):
                return float(line.rsplit(" ", 1)[1])
        raise SystemExit(f"{self.name} has no metric {name}")


class Cluster:
    def __init__(self, sparsed, sparsectl, folder, etcd, names, flags=(), replicas=REPLICAS):
        self.sparsectl, self.folder, self.etcd = sparsectl, folder, etcd
        self.nodes = {name: Node(sparsed, folder, name, etcd, flags, replicas) for name in names}

    @contextlib.contextmanager
    def running(self):
        """Starts its nodes, and ends those that are left. What they logged is shown where something
        fails."""
        try:
            for node in self.nodes.values():
                node.start()
            yield
        except BaseException:
            for node in self.nodes.values():
                with contextlib.suppress(OSError):
                    print(f"--- {node.name}\n{(node.folder / 'log').read_text()[-6000:]}")
            raise
        finally:
            for node in self.nodes.values():
                if node.process is not None and node.process.poll() is None:
                    with ended(node.process):
                        pass

    def run(self, node, *arguments, check=True, **flags):
        """sparsectl at a node, or at several."""
        names = node if isinstance(node, (list, tuple)) else [node]
        server = ",".join(self.nodes[name].address for name in names)
        done = subprocess.run([self.sparsectl, f"--server={server}", "--json", *arguments],
                              capture_output=True, text=True, timeout=120, check=False,
                              cwd=self.folder, **flags)
        if check and done.returncode != 0:
            raise SystemExit(f"sparsectl {arguments} at {names}: {done.stdout}{done.stderr}")
        return done if not check else (json.loads(done.stdout) if done.stdout.strip() else None)

    def matrices(self, node):
        listed = self.run(node, "list")
        return {matrix["name"]: matrix
                for matrix in (listed["matrices"] if isinstance(listed, dict) else listed)}

    def product(self, node, name):
        out = self.folder / "C.npy"
        out.unlink(missing_ok=True)
        self.run(node, "spmm", name, "--operand=B.npy", f"--out={out}")
        return out.read_bytes()


def upload_and_find(cluster, files):
    """Uploads by one node, and finds everything by every node."""
    for name in files:
        cluster.run("a", "upload", f"{name}.mtx")
    products = {}
    for node in cluster.nodes:
        wait_for(f"{node} lists all", lambda n=node: set(cluster.matrices(n)) == set(files))
        for name in files:
            result = cluster.product(node, name)
            products.setdefault(name, result)
            assert products[name] == result, f"{node} has another product of {name}"
    listed = cluster.matrices("a")
    owners = {matrix["nodes"][0] for matrix in listed.values()}
    assert len(owners) > 1, f"one node owns everything: {listed}"
    for name, matrix in listed.items():
        assert len(matrix["nodes"]) == REPLICAS, f"{name} is on {matrix['nodes']}"
    redirects = sum(n.metric("sparsed_cluster_redirects_total") for n in cluster.nodes.values())
    assert redirects > 0, "nobody was redirected"
    say(f"{len(files)} matrices of {len(owners)} owners, two nodes each; {redirects:.0f} redirects")
    return products


def buffers_stay(cluster, products):
    """A product goes to its matrix's node, and does not take the buffer of that name there."""
    name, matrix = next(iter(cluster.matrices("a").items()))
    here = matrix["nodes"][0]
    away = next(node for node in cluster.nodes if node not in matrix["nodes"])
    cluster.run(here, "buffers", "put", "b", "B.npy")
    cluster.run(away, "buffers", "put", "b", "--zeros=200x8")
    for ends in (("--operand=@b", "--out=H.npy"), ("--operand=B.npy", "--keep-as=k")):
        refused = cluster.run(away, "spmm", name, *ends, check=False)
        said = refused.stderr + refused.stdout
        assert refused.returncode == 6 and "is a buffer of the node that was asked" in said, said
        # Both nodes, and what to do.
        assert f"asked, {away}: put it there" in said, said
        assert any(f"sparsectl --server={cluster.nodes[node].address}" in said
                   for node in matrix["nodes"]), said
    cluster.run(here, "spmm", name, "--operand=@b", "--out=H.npy")
    assert (cluster.folder / "H.npy").read_bytes() == products[name]
    for node in (here, away):
        cluster.run(node, "buffers", "delete", "b")
    assert not cluster.run(away, "buffers")["buffers"], "what was made for the result is there yet"


def replicas_by_matrix(cluster):
    """More copies of one matrix than the others have, whatever becomes of it, and fewer."""
    assert len(cluster.nodes) > REPLICAS
    said = cluster.run("a", "upload", "m0.mtx", "--name=three", f"--replicas={len(cluster.nodes)}")
    assert said["replicas"] == len(cluster.nodes) == len(said["nodes"]), said
    cluster.run("a", "update", "three", "--values=values-a.npy")
    expected = cluster.product("a", "three")
    cluster.run("b", "rename", "three", "four")
    cluster.run("c", "copy", "four", "five")
    for name in ("four", "five"):
        shown = cluster.run("c", "show", name)
        assert shown["replicas"] == len(cluster.nodes) == len(shown["nodes"]), shown
    for node in cluster.nodes:
        assert cluster.product(node, "four") == expected, f"{node} has another"
    said = cluster.run("b", "upload", "m0.mtx", "--name=four", "--replace", "--replicas=1")
    assert said["replicas"] == 1 == len(said["nodes"]), said
    assert cluster.matrices("a")["m3"]["replicas"] == REPLICAS
    wrong = cluster.run("a", "upload", "m0.mtx", "--name=six", "--replicas=17", check=False)
    assert wrong.returncode != 0 and "--replicas" in wrong.stderr + wrong.stdout, wrong
    for name in ("four", "five"):
        cluster.run("a", "delete", name)
    say("copies by matrix")


def mistakes(cluster):
    again = cluster.run("b", "upload", "m0.mtx", check=False)
    assert again.returncode != 0 and "m0" in again.stderr + again.stdout, again
    missing = cluster.run("c", "show", "nothing", check=False)
    assert missing.returncode != 0, missing
    nobody = cluster.run("c", "cluster", "drain", "nobody", check=False)
    assert nobody.returncode != 0 and "nobody" in nobody.stderr + nobody.stdout, nobody


def metrics_are_documented(cluster):
    """Those that a node of a cluster alone has; of the others prometheus_test looks."""
    page = (pathlib.Path(__file__).parents[2] / "docs/metrics.md").read_text()
    documented = set(re.findall(r"^\| `(sparsed_cluster_\w+)`", page, re.M))
    served = set(re.findall(r"^# TYPE (sparsed_cluster_\S+)",
                            cluster.nodes["a"].all_metrics(), re.M))
    assert served == documented, f"served, documented: {served ^ documented} is one alone"


def change_by_any(cluster, products):
    """Values that are replaced, and names that change, by a node that does not own them."""
    for node in cluster.nodes:
        cluster.run(node, "update", "m0", f"--values=values-{node}.npy")
        results = {cluster.product(other, "m0") for other in cluster.nodes}
        assert len(results) == 1, "nodes have different values of m0"
        assert results != {products["m0"]}, "the values are the old ones"
        products["m0"] = results.pop()
    # What was read from one node means the same at the others.
    versions = {cluster.run(node, "show", "m0")["version"] for node in cluster.nodes}
    assert len(versions) == 1, f"m0 has the versions {versions}"
    cluster.run("c", "rename", "m1", "renamed")
    products["renamed"] = products.pop("m1")
    for node in cluster.nodes:
        wait_for(f"{node} knows the new name",
                 lambda n=node: "renamed" in (m := cluster.matrices(n)) and "m1" not in m)
        assert cluster.product(node, "renamed") == products["renamed"]
    cluster.run("b", "delete", "m2")
    del products["m2"]
    for node in cluster.nodes:
        wait_for(f"{node} has no m2", lambda n=node: "m2" not in cluster.matrices(n))
    say("values replaced, a name changed, a matrix deleted by nodes that did not own them")


def kill_one(cluster, products):
    """Nothing that was acknowledged is lost with a node, and what it had is answered at once."""
    listed = cluster.matrices("a")
    victim = max(cluster.nodes, key=lambda n: sum(m["nodes"][0] == n for m in listed.values()))
    others = [name for name in cluster.nodes if name != victim]
    lost = [name for name, matrix in listed.items() if matrix["nodes"][0] == victim]
    cluster.nodes[victim].kill()
    killed = time.monotonic()
    slowest = 0.0
    for name in lost:
        begun = time.monotonic()
        assert cluster.product(others, name) == products[name], f"{name} is another"
        slowest = max(slowest, time.monotonic() - begun)
    assert slowest < SECONDS_TO_ANSWER, f"a product took {slowest:.1f} s"
    # A client that knows only the dead one and another.
    assert cluster.product([victim, *others], lost[0]) == products[lost[0]]
    say(f"killed {victim}, which owned {len(lost)}: the slowest product took {slowest:.2f} s")

    def owned():
        return all(matrix["nodes"][0] != victim for matrix in cluster.matrices(others[0]).values())
    wait_for("others own its matrices", owned)
    say(f"others own them after {time.monotonic() - killed:.1f} s")
    changed, deleted = lost[0], lost[1]
    size = cluster.matrices(others[0])[changed]["nnz"]
    cluster.run(others[0], "update", changed, "--values=values-a.npy")
    assert size == cluster.matrices(others[0])[changed]["nnz"]
    products[changed] = cluster.product(others[1], changed)
    cluster.run(others[1], "delete", deleted)
    del products[deleted]

    def whole():
        return all(len(matrix["nodes"]) == REPLICAS and victim not in matrix["nodes"]
                   for matrix in cluster.matrices(others[0]).values())
    wait_for("copies are made again", whole)
    # Records name it yet: it is to be seen, though it has nothing any more.
    state = {node["name"]: node["state"]
             for node in cluster.run(others[0], "cluster", "list")["nodes"]}
    assert state[victim] == "gone", state
    say("its copies are made again")
    return victim, changed, deleted


def come_back(cluster, products, victim, changed, deleted):
    cluster.nodes[victim].start()
    wait_for("it has dropped or renewed what is old",
             lambda: deleted not in cluster.matrices(victim))
    for name, expected in products.items():
        assert cluster.product(victim, name) == expected, f"{victim} serves an old {name}"
    shown = cluster.run(victim, "show", deleted, check=False)
    assert shown.returncode != 0, f"{deleted} is back"
    assert cluster.product(victim, changed) == products[changed]
    say(f"{victim} is back and serves nothing that is old")


def restart_at_once(cluster, products):
    """A change that was acknowledged is there though its owner is killed and is back within its
    lease, so that nobody took over."""
    name = "m5" if "m5" in products else "m6"
    owner = cluster.matrices("a")[name]["nodes"][0]
    cluster.run(owner, "update", name, "--values=values-c.npy")
    expected = cluster.product(owner, name)
    assert expected != products[name], "the values are the old ones"
    cluster.nodes[owner].kill()
    cluster.nodes[owner].start()
    products[name] = expected
    for _ in range(3):
        for node in cluster.nodes:
            assert cluster.product(node, name) == expected, f"{node} has an older {name}"
        time.sleep(0.5)
    wait_whole(cluster)
    say(f"{owner} was back at once with what was acknowledged")


def wait_whole(cluster):
    wait_for("all copies are there", lambda: all(
        len(matrix["nodes"]) == REPLICAS for matrix in cluster.matrices("a").values()))


def lose_a_disk(cluster, products):
    """A node comes back with an empty data directory while another is away: what both had waits
    for that one."""
    listed = cluster.matrices("a")
    name = next(iter(listed))
    owner, other = listed[name]["nodes"]
    third = next(node for node in cluster.nodes if node not in (owner, other))
    cluster.nodes[other].kill()
    cluster.nodes[owner].kill()
    shutil.rmtree(cluster.nodes[owner].folder / "data")
    cluster.nodes[owner].start()
    wait_for(f"{other} owns {name}", lambda: cluster.matrices(third)[name]["nodes"] == [other])
    for node in (owner, third):
        for flags in ((), ("--replace",)):
            again = cluster.run(node, "upload", "m0.mtx", f"--name={name}", *flags, check=False)
            text = again.stderr + again.stdout
            assert again.returncode != 0 and "is there" in text, text
    time.sleep(6)  # longer than a look at everything
    cluster.nodes[other].start()
    for missing, expected in products.items():
        wait_for(f"{missing} is back", lambda m=missing: cluster.run(
            third, "spmm", m, "--operand=B.npy", "--out=C.npy", check=False).returncode == 0)
        for node in cluster.nodes:
            assert cluster.product(node, missing) == expected, f"{node} has another {missing}"
    wait_whole(cluster)
    say(f"{owner} lost its disk while {other} was away, and nothing else was lost")


def lose_etcd(cluster, products):
    cluster.etcd.kill()
    time.sleep(4)
    for node in cluster.nodes:
        for name in list(products)[:4]:
            assert cluster.product(node, name) == products[name]
        refused = cluster.run(node, "upload", "m0.mtx", "--name=late", check=False)
        text = refused.stderr + refused.stdout
        assert refused.returncode != 0 and "etcd" in text, text
        state = cluster.run(node, "cluster", "list")
        assert "etcd" in state["problem"], state
    refused = cluster.run("a", "delete", "m3" if "m3" in products else "m4", check=False)
    assert refused.returncode != 0 and "etcd" in refused.stderr + refused.stdout, refused
    say("without etcd products go on, and changes are refused")
    cluster.etcd.start()
    wait_for("changes are made again",
             lambda: cluster.run("a", "upload", "m0.mtx", "--name=late", "--replace",
                                 check=False).returncode == 0)
    products["late"] = cluster.product("b", "late")
    say("etcd is back, and so are changes")


def drain(cluster, products):
    wait_for("all nodes are there", lambda: all(
        node["state"] == "serving" for node in cluster.run("a", "cluster", "list")["nodes"]))
    for name in products:
        cluster.run("a", "share", name, "--with=bob")
    # What b shares with c must go to a, which takes nothing while it is stopped.
    stopped = cluster.nodes["a"].process
    stopped.send_signal(signal.SIGSTOP)
    try:
        early = cluster.run("c", "cluster", "drain", "b", "--wait=0.001", check=False)
    finally:
        stopped.send_signal(signal.SIGCONT)
    assert early.returncode == 8 and "b still has" in early.stderr + early.stdout, early

    def state():
        nodes = cluster.run("a", "cluster", "list")["nodes"]
        return next(node for node in nodes if node["name"] == "b")["state"]
    cluster.run("a", "cluster", "drain", "b", "--wait=60")
    assert state() == "drained"
    listed = cluster.matrices("a")
    assert all("b" not in matrix["nodes"] for matrix in listed.values()), listed
    for name, expected in products.items():
        assert cluster.product("b", name) == expected, f"{name} is another"
        # Its new owner may have yet to hear that it is: a copy takes shares a moment later.
        wait_for(f"{name} is bob's to read", lambda n=name: [
            share["with"] for share in cluster.run(listed[n]["nodes"][0], "show", n)["shares"]
        ] == ["bob"])
    cluster.run("a", "cluster", "drain", "b", "--undo")
    assert state() == "serving"
    say("drained b")


def side_by_side(cluster):
    """Counters and rates of all nodes, asked of one."""
    stats = cluster.run("a", "cluster", "stats")
    assert [node["name"] for node in stats["nodes"]] == list(cluster.nodes), stats
    assert all(node["stats"]["uptime_seconds"] > 0 for node in stats["nodes"]), stats
    assert stats["all"]["requests"] > 0 and stats["all"]["matrices"] > 0, stats
    top = cluster.run("b", "cluster", "top", "--once", "--interval=0.5")
    assert all("requests_per_second" in node for node in top["nodes"]), top
    say("counters and rates of all nodes are shown by each")


def forget(cluster, products):
    """A node that never comes back, and that does so with what it had."""
    refused = cluster.run("a", "cluster", "forget", "c", check=False)
    assert refused.returncode != 0 and "is there" in refused.stderr + refused.stdout, refused
    gone = cluster.nodes["c"]
    gone.kill()
    wait_for("c is gone", lambda: not any(
        node["name"] == "c" and node["state"] == "serving"
        for node in cluster.run("a", "cluster", "list")["nodes"]))
    said = cluster.run("a", "upload", "m0.mtx", "--name=fewer", "--replace")
    products["fewer"] = cluster.product("b", "fewer")
    assert said["copies_missing"] == 0, said
    gone_too = cluster.nodes["b"]
    wait_for("copies are made again", lambda: all(
        "c" not in matrix["nodes"] and len(matrix["nodes"]) == REPLICAS
        for matrix in cluster.matrices("a").values()))
    cluster.run("a", "delete", "fewer")
    del products["fewer"]
    forgotten = cluster.run("a", "cluster", "forget", "c")
    assert forgotten["records"] > 0 and forgotten["lost"] == 0, forgotten
    wait_for("c is listed no more", lambda: "c" not in [
        node["name"] for node in cluster.run("a", "cluster", "list")["nodes"]])
    again = cluster.run("a", "cluster", "forget", "c", check=False)
    assert again.returncode != 0 and "nothing is known" in again.stderr + again.stdout, again
    # Only one is left: what is acknowledged says so.
    gone_too.kill()
    wait_for("b is gone", lambda: not any(
        node["name"] == "b" and node["state"] == "serving"
        for node in cluster.run("a", "cluster", "list")["nodes"]))
    alone = cluster.run("a", "upload", "m0.mtx", "--name=alone", "--replace")
    assert alone["copies_missing"] == 1 and "fewer than 2 nodes have it" in alone["note"], alone
    gone_too.start()
    products["alone"] = cluster.product("b", "alone")
    with contextlib.suppress(SystemExit):
        gone.start()
    assert gone.process.wait(timeout=60) != 0, "c came back with what may be old"
    assert "forget" in (gone.folder / "log").read_text()[-2000:], "c does not say why"
    shutil.rmtree(gone.folder / "data")
    gone.start()
    wait_for("c is there", lambda: any(
        node["name"] == "c" and node["state"] == "serving"
        for node in cluster.run("a", "cluster", "list")["nodes"]))
    wait_whole(cluster)
    for name, expected in products.items():
        assert cluster.product("c", name) == expected, f"{name} is another"
    say("c was forgotten, and came back with nothing")


def with_strangers(sparsed, sparsectl, folder, etcd):
    """TLS, tenants and a token of the cluster's: what is another's stays his, on every node."""
    def openssl(*arguments):
        subprocess.run(["openssl", *arguments], cwd=folder, check=True, capture_output=True)
    openssl("req", "-x509", "-newkey", "ec", "-pkeyopt", "ec_paramgen_curve:prime256v1", "-nodes",
            "-keyout", "tls.key", "-out", "tls.crt", "-days", "2", "-subj", "/CN=node",
            "-addext", "subjectAltName=IP:127.0.0.1")
    tokens, lines = {}, []
    for tenant, role in (("alice", "operator"), ("bob", "user"), ("ops", "operator")):
        said = subprocess.check_output(
            [sparsectl, "token", "new", tenant, f"--tenant={tenant}", f"--role={role}"], text=True)
        tokens[tenant] = said.split("\n", 1)[0]
        lines.append(next(line for line in said.splitlines() if "sha256" in line))
    for name, text in {"access.yaml": "tokens:\n" + "\n".join(lines) + "\n",
                       "cluster-token": "c" * 40 + "\n", "other-token": "d" * 40 + "\n"}.items():
        (folder / name).write_text(text)
        (folder / name).chmod(0o600)
    flags = [f"--tls-certificate={folder}/tls.crt", f"--tls-key={folder}/tls.key",
             f"--cluster-ca={folder}/tls.crt", f"--access-file={folder}/access.yaml"]
    cluster = Cluster(sparsed, sparsectl, folder, etcd, ("t1", "t2"),
                      [*flags, f"--cluster-token-file={folder}/cluster-token"])
    stranger = Node(sparsed, folder, "t3", etcd, [*flags,
                                                  f"--cluster-token-file={folder}/other-token"])

    def run(tenant, node, *arguments, check=True):
        return cluster.run(node, *arguments, check=check,
                           env={**os.environ, "SPARSED_TLS_CA": f"{folder}/tls.crt",
                                "SPARSED_TOKEN": tokens[tenant]})
    try:
        for node in cluster.nodes.values():
            node.start()
        wait_for("two nodes", lambda: sum(
            n["state"] == "serving" for n in run("alice", "t1", "cluster", "list")["nodes"]) == 2)
        for name in ("m0", "m3", "m4", "m5"):
            run("alice", "t1", "upload", f"{name}.mtx")
        for node in cluster.nodes:
            for name in ("m0", "m3", "m4", "m5"):
                run("alice", node, "spmm", name, "--operand=B.npy", "--out=C.npy")
                for tenant, command in (("bob", "show"), ("bob", "explain"), ("ops", "prepare")):
                    hidden = run(tenant, node, command, f"alice~{name}", check=False)
                    text = hidden.stderr + hidden.stdout
                    assert hidden.returncode != 0 and "another node" not in text, text
                # An operator looks at it, wherever it is.
                for command in ("show", "explain"):
                    assert run("ops", node, command, f"alice~{name}"), name
        run("alice", "t1", "delete", "m5")
        for node in cluster.nodes:
            for tenant, name in (("alice", "m5"), ("ops", "alice~m5")):
                hidden = run(tenant, node, "show", name, check=False)
                assert "NOT_FOUND" in hidden.stderr + hidden.stdout, hidden
        run("alice", "t1", "share", "m0", "--with=bob")
        for node in cluster.nodes:
            run("bob", node, "spmm", "alice~m0", "--operand=B.npy", "--out=C.npy")
        # The same of a matrix in shards, which are shared with it.
        run("alice", "t1", "upload", "m0.mtx", "--name=parts", "--shards=2")
        for node in cluster.nodes:
            hidden = run("bob", node, "spmm", "alice~parts", "--operand=B.npy", "--out=C.npy",
                         check=False)
            assert "NOT_FOUND" in hidden.stderr + hidden.stdout, hidden
        run("alice", "t2", "share", "parts", "--with=bob")
        for node in cluster.nodes:
            run("bob", node, "spmm", "alice~parts", "--operand=B.npy", "--out=C.npy")
            kept = run("bob", node, "delete", "alice~parts", check=False)
            assert "PERMISSION_DENIED" in kept.stderr + kept.stdout, kept
            assert [m["name"] for m in run("bob", node, "list", "--shared")["matrices"]] == [
                "alice~m0", "alice~parts"]
        run("alice", "t2", "share", "parts", "--with=bob", "--revoke")
        for node in cluster.nodes:
            gone = run("bob", node, "spmm", "alice~parts", "--operand=B.npy", "--out=C.npy",
                       check=False)
            assert "NOT_FOUND" in gone.stderr + gone.stdout, gone
        run("alice", "t1", "delete", "parts")
        # One that has another secret gets no copies, and that is said.
        stranger.start()
        cluster.nodes["t2"].kill()
        wait_for("t2 is gone", lambda: not any(
            n["name"] == "t2" and n["state"] == "serving"
            for n in run("alice", "t1", "cluster", "list")["nodes"]))
        for i in range(6):
            refused = run("alice", "t1", "upload", "m0.mtx", f"--name=refused{i}", check=False)
            text = refused.stderr + refused.stdout
            assert refused.returncode != 0 and "t3" in text or "token" in text, text
    except BaseException:
        for node in (*cluster.nodes.values(), stranger):
            with contextlib.suppress(OSError):
                print(f"--- {node.name}\n{(node.folder / 'log').read_text()[-4000:]}")
        raise
    finally:
        for node in (*cluster.nodes.values(), stranger):
            if node.process is not None and node.process.poll() is None:
                with ended(node.process):
                    pass
    say("tenants, TLS and the cluster's token: what is another's stays his")


def etcd_over_tls(sparsed, sparsectl, folder):
    """An etcd that asks for certificates, and who has none."""
    certificate, key = folder / "etcd.crt", folder / "etcd.key"
    subprocess.run(
        ["openssl", "req", "-x509", "-newkey", "ec", "-pkeyopt", "ec_paramgen_curve:prime256v1",
         "-nodes", "-keyout", key, "-out", certificate, "-days", "2", "-subj", "/CN=etcd",
         "-addext", "subjectAltName=IP:127.0.0.1"], check=True, capture_output=True)
    etcd = Etcd(folder, (certificate, key))
    etcd.start()
    own = [f"--etcd-ca={certificate}"]
    cluster = Cluster(sparsed, sparsectl, folder, etcd, ("s1",),
                      [*own, f"--etcd-certificate={certificate}", f"--etcd-key={key}"])
    stranger = Node(sparsed, folder, "s2", etcd, own)
    try:
        cluster.nodes["s1"].start()
        cluster.run("s1", "upload", "m0.mtx")
        cluster.product("s1", "m0")
        with contextlib.suppress(SystemExit):
            stranger.start()
        assert stranger.process.wait(timeout=60) != 0, "it is served without a certificate"
        assert "etcd" in (stranger.folder / "log").read_text(), "it does not say why it ends"
    finally:
        for node in (*cluster.nodes.values(), stranger):
            if node.process is not None and node.process.poll() is None:
                with ended(node.process):
                    pass
        etcd.kill()
    say("etcd over TLS")


def join(sparsed, sparsectl, folder, etcd):
    """A third node gets its share of what two had, which is served all the time."""
    flags = ["--insecure", "--cluster-settle=1"]
    cluster = Cluster(sparsed, sparsectl, folder, etcd, ("j1", "j2"), flags, replicas=1)
    names = [f"moving-{i}" for i in range(30)]

    def counted(metric):
        return sum(node.metric(metric) for node in cluster.nodes.values())
    with cluster.running():
        for name in names:
            cluster.run("j1", "upload", "m0.mtx", f"--name={name}")
        wait_for("both know all", lambda: all(
            len(cluster.matrices(node)) == len(names) for node in cluster.nodes))
        expected = cluster.product("j1", names[0])
        before = {name: matrix["nodes"] for name, matrix in cluster.matrices("j1").items()}
        cluster.nodes["j3"] = Node(sparsed, folder, "j3", etcd, flags, replicas=1)
        cluster.nodes["j3"].start()
        rounds = 0
        deadline = time.monotonic() + 120
        # All of it again and again, by each node, until nothing has moved for two rounds.
        last, same = -1.0, 0
        while same < 2:
            assert time.monotonic() < deadline, f"{last} matrices have moved"
            for name in names:
                node = list(cluster.nodes)[rounds % len(cluster.nodes)]
                assert cluster.product(node, name) == expected, f"{name} is another"
                rounds += 1
            moved = counted("sparsed_cluster_moves_total")
            same = same + 1 if moved == last and moved > 0 else 0
            last = moved
        wait_for("nothing is to move", lambda: counted("sparsed_cluster_moves_waiting") == 0)
        wait_for("each is on one node", lambda: all(
            len(matrix["nodes"]) == 1 for matrix in cluster.matrices("j1").values()))
        after = {name: matrix["nodes"] for name, matrix in cluster.matrices("j1").items()}
        came = [name for name in names if after[name] == ["j3"]]
        # A third of them is ten; it is always the same ones, as placement goes by names.
        assert 3 <= len(came) <= 18, after
        # A node that joins moves what is its own, and nothing else.
        assert all(after[name] == before[name] for name in names if name not in came), after
        for name in names:
            cluster.run("j3", "delete", name)
    say(f"{len(came)} of {len(names)} matrices moved to a node that joined, while all were served")


def lose_a_member_of_etcd(sparsed, sparsectl, folder):
    """One of three members is killed, whichever it is: changes go on, and so does what nodes hear."""
    etcds = Etcds(folder)
    with contextlib.ExitStack() as stack:
        stack.callback(etcds.kill)
        etcds.start()
        cluster = Cluster(sparsed, sparsectl, folder, etcds, ("e1", "e2"), ["--insecure"])
        with cluster.running():
            cluster.run("e1", "upload", "m0.mtx", "--name=before")
            expected = cluster.product("e2", "before")
            for member in etcds.members:
                member.kill()
                # A node may have been connected to that member, and another one may have to lead.
                name = f"without-{member.name}"
                wait_for("changes are made", lambda n=name: cluster.run(
                    "e1", "upload", "m0.mtx", f"--name={n}", "--replace",
                    check=False).returncode == 0)
                for node in cluster.nodes:
                    wait_for(f"{node} has heard of it",
                             lambda n=node, m=name: m in cluster.matrices(n))
                    assert cluster.product(node, name) == expected, f"{node} has another {name}"
                assert cluster.product("e2", "before") == expected
                member.start()
    say("without any one of three members of etcd changes go on")


def main():
    sparsed, sparsectl = sys.argv[1:]
    if shutil.which("etcd") is None:
        print("skipped: etcd is not installed (Debian package etcd-server)")
        return 77
    with tempfile.TemporaryDirectory() as temporary, contextlib.ExitStack() as stack:
        folder = pathlib.Path(temporary)
        etcd = Etcd(folder)
        etcd.start()
        stack.callback(etcd.kill)
        cluster = Cluster(sparsed, sparsectl, folder, etcd, ("a", "b", "c"), ["--insecure"])
        with cluster.running():
            make = [sparsectl, "generate"]
            names = [f"m{i}" for i in range(MATRICES)]
            for i, name in enumerate(names):
                subprocess.run([*make, "matrix", "200x200", "--row-nonzeros=5", f"--seed={i + 1}",
                                f"--out={name}.mtx"], cwd=folder, check=True,
                               stdout=subprocess.DEVNULL)
            subprocess.run([*make, "dense", "200x8", "--out=B.npy"], cwd=folder, check=True,
                           stdout=subprocess.DEVNULL)
            for i, node in enumerate(cluster.nodes):
                subprocess.run([*make, "dense", "1000x1", f"--seed={i + 7}",
                                f"--out=values-{node}.npy"], cwd=folder, check=True,
                               stdout=subprocess.DEVNULL)
            products = upload_and_find(cluster, names)
            metrics_are_documented(cluster)
            buffers_stay(cluster, products)
            replicas_by_matrix(cluster)
            mistakes(cluster)
            change_by_any(cluster, products)
            victim, changed, deleted = kill_one(cluster, products)
            come_back(cluster, products, victim, changed, deleted)
            restart_at_once(cluster, products)
            lose_a_disk(cluster, products)
            lose_etcd(cluster, products)
            drain(cluster, products)
            side_by_side(cluster)
            forget(cluster, products)
    with tempfile.TemporaryDirectory() as temporary:
        folder = pathlib.Path(temporary)
        for name in ("m0", "m3", "m4", "m5"):
            subprocess.run([sparsectl, "generate", "matrix", "200x200", f"--out={name}.mtx"],
                           cwd=folder, check=True, stdout=subprocess.DEVNULL)
        subprocess.run([sparsectl, "generate", "dense", "200x8", "--out=B.npy"], cwd=folder,
                       check=True, stdout=subprocess.DEVNULL)
        etcd = Etcd(folder)
        etcd.start()
        try:
            with_strangers(sparsed, sparsectl, folder, etcd)
        finally:
            etcd.kill()
        etcd_over_tls(sparsed, sparsectl, folder)
    with tempfile.TemporaryDirectory() as temporary, contextlib.ExitStack() as stack:
        folder = pathlib.Path(temporary)
        for made in (["matrix", "200x200", "--out=m0.mtx"], ["dense", "200x8", "--out=B.npy"]):
            subprocess.run([sparsectl, "generate", *made], cwd=folder, check=True,
                           stdout=subprocess.DEVNULL)
        etcd = Etcd(folder)
        etcd.start()
        stack.callback(etcd.kill)
        join(sparsed, sparsectl, folder, etcd)
        lose_a_member_of_etcd(sparsed, sparsectl, folder)
    say("ok")
    return 0


if __name__ == "__main__":
    sys.exit(main())
