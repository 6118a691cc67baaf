#!/usr/bin/env python3
"""Three servers that have each matrix once, with a real etcd: what people are told of matrices that
other nodes have, and of nodes that are gone.

one_replica_test.py SPARSED SPARSECTL
"""

import base64
import contextlib
import json
import pathlib
import re
import shutil
import signal
import subprocess
import sys
import tempfile
import time
import urllib.request

from cluster_test import Cluster, Etcd, say, wait_for

MATRICES = [f"m{i}" for i in range(8)]


def said(cluster, node, *arguments, code=0):
    """What people read."""
    done = subprocess.run(
        [cluster.sparsectl, f"--server={cluster.nodes[node].address}", *arguments],
        capture_output=True, text=True, timeout=120, check=False, cwd=cluster.folder)
    text = done.stdout + done.stderr
    assert done.returncode == code, f"{arguments}: {done.returncode}, not {code}: {text}"
    return text


def owner_of(cluster, name):
    return cluster.run("a", "show", name)["nodes"][0]


def elsewhere(cluster, than):
    """A matrix of another node."""
    return next(name for name in MATRICES if owner_of(cluster, name) != than)


def lists_tell(cluster):
    """Every node's list says of each matrix what its node does."""
    owners = {name: owner_of(cluster, name) for name in MATRICES}
    assert len(set(owners.values())) == 3, owners
    for node in cluster.nodes:
        listed = cluster.matrices(node)
        for name, owner in owners.items():
            known = cluster.matrices(owner)[name]
            for key in ("state", "csr_bytes", "durable", "version", "nodes"):
                assert listed[name][key] == known[key], (node, key, listed[name], known)
            assert len(listed[name]["plans"]) == len(known["plans"]), (listed[name], known)
            assert known["state"] != "unknown" and known["durable"] and known["csr_bytes"] > 0
        text = said(cluster, node, "list")
        assert "unknown" not in text and "3 shards" in text, text
    say("each node's list says of all matrices what their nodes know")


def advice_can_be_followed(cluster):
    name = elsewhere(cluster, "a")
    address = cluster.nodes[owner_of(cluster, name)].address
    for _ in range(4):
        cluster.run("a", "spmm", name, "--operand=B.npy", "--out=C.npy")
    explained = cluster.run("a", "explain", name)
    assert explained["server"] == address, explained
    text = said(cluster, "a", "explain", name)
    assert text.startswith(f"{name} is on another node, at {address}"), text
    commands = re.findall(r"sparsectl\b(?! --server=)[^\n]*", text)
    assert not commands and "sparsectl --server=" in text, f"{commands} of {text}"
    # At its own node there is nothing to say, and by a name of another one nothing is changed.
    own = said(cluster, owner_of(cluster, name), "explain", name)
    assert "--server=" not in own and "another node" not in own, own
    # Buffers are put, and multiplied with, where the matrix is; else that is said.
    refused = said(cluster, "a", "buffers", "put", "b", "B.npy", f"--for={name}", code=6)
    assert f"--server={address}" in refused and owner_of(cluster, name) in refused, refused
    assert not cluster.run("a", "buffers")["buffers"]
    said(cluster, owner_of(cluster, name), "buffers", "put", "b", "B.npy", f"--for={name}")
    refused = said(cluster, "a", "spmm", name, "--operand=@b", "--keep-as=c", code=4)
    assert f"sparsectl --server={address}" in refused, refused
    cluster.run("a", "buffers", "put", "b", "B.npy")
    refused = said(cluster, "a", "spmm", name, "--operand=@b", "--keep-as=c", code=6)
    assert f"sparsectl --server={address}" in refused, refused
    assert "asked, a:" in refused and owner_of(cluster, name) in refused, refused
    said(cluster, owner_of(cluster, name), "spmm", name, "--operand=@b", "--keep-as=c")
    said(cluster, owner_of(cluster, name), "buffers", "delete", "b", "c")
    cluster.run("a", "buffers", "delete", "b")
    say("what is advised of another node's matrix names that node")


def mistakes(cluster):
    cluster.run("a", "buffers", "put", "q", "B.npy", "--for=g")
    refused = said(cluster, "a", "sddmm", "g", "--left=@q", "--right=@q", "--keep-as=v", code=6)
    assert "operands and results of SpMM" in refused and "files" in refused, refused
    cluster.run("a", "buffers", "delete", "q", "--for=g")
    refused = said(cluster, "a", "upload", "m0.mtx", "--name=bad", "--shards=2",
                   "--partition=metiss", code=3)
    assert "--partition" in refused and 'did you mean "metis"' in refused, refused
    refused = said(cluster, "a", "upload", "m0.mtx", "--name=bad", "--shards=2",
                   "--partition=parts", code=3)
    assert "cannot open parts" in refused and "did you mean" not in refused, refused


def failures(cluster, nodes):
    """Requests that ended with UNAVAILABLE, at these nodes."""
    count = 0
    for node in nodes:
        for line in cluster.nodes[node].all_metrics().splitlines():
            if line.startswith("sparsed_requests_total") and 'code="UNAVAILABLE"' in line:
                count += float(line.rsplit(" ", 1)[1])
    return count


def one_is_gone(cluster):
    lost = [name for name in MATRICES if owner_of(cluster, name) == "c"]
    cluster.nodes["c"].kill()
    states = {}

    def gone():
        states.update((node["name"], node["state"])
                      for node in cluster.run("a", "cluster", "list")["nodes"])
        return states["c"] == "gone"
    wait_for("c is gone", gone)
    assert states == {"a": "serving", "b": "serving", "c": "gone"}, states
    assert "sparsectl cluster forget c" in said(cluster, "a", "cluster", "list")

    listed = cluster.run("a", "list")
    assert "gone: c" in listed["note"], listed["note"]
    for matrix in listed["matrices"]:
        name = matrix["name"]
        if name == "g":
            assert matrix["nodes_gone"] == ["c"], matrix
            continue
        assert (matrix["state"] == "unknown") == (name in lost), matrix
        assert matrix["nodes_gone"] == (["c"] if name in lost else []), matrix
        assert (matrix["durable"] is None) == (name in lost), matrix
    text = said(cluster, "b", "list", "-o", "wide")
    assert "3 shards, 1 away" in text and "c (gone)" in text and "note " in text, text
    assert "c (gone)" in said(cluster, "a", "show", "g")
    renamed = cluster.run("a", "rename", "g", "h")
    assert renamed["note"].startswith("1 of its 3 shards is away, until c is there again"), renamed
    cluster.run("b", "rename", "h", "g")

    # A command that is refused does not look like an outage.
    before = failures(cluster, ("a", "b"))
    for arguments in (("spmm", lost[0], "--operand=B.npy", "--out=C.npy"),
                      ("bench", "g", "--k=8", "--seconds=0.2", "--concurrency=1")):
        text = said(cluster, "a", *arguments, code=5)
        assert "the node c, which owns" in text, text
        tries, before = failures(cluster, ("a", "b")) - before, failures(cluster, ("a", "b"))
        assert 1 <= tries <= 8, f"{arguments} was tried {tries} times"
    cluster.nodes["c"].start()
    # Who waits for it is answered soon after it is back.
    cluster.product("a", lost[0])
    wait_for("all is known again", lambda: "note" not in cluster.run("a", "list"))
    say("of a node that is gone: what it had is told, and that nobody knows more")


def one_is_silent(cluster):
    """A list waits for it, and not for long."""
    stopped = cluster.nodes["c"].process
    stopped.send_signal(signal.SIGSTOP)
    try:
        begun = time.monotonic()
        listed = cluster.run("a", "list")
        took = time.monotonic() - begun
    finally:
        stopped.send_signal(signal.SIGCONT)
    assert took < 20, f"a list took {took:.1f} s"
    for matrix in listed["matrices"]:
        if "shards" not in matrix:
            assert (matrix["state"] == "unknown") == (matrix["nodes"] == ["c"]), matrix
    assert re.search("silent: c|gone: c", listed["note"]), listed["note"]
    wait_for("c is there", lambda: all(
        node["state"] == "serving" for node in cluster.run("a", "cluster", "list")["nodes"]))
    say("a list does not wait for a node that is silent for long")


def etcd_asks(etcd, method, message):
    with urllib.request.urlopen(urllib.request.Request(
            f"http://127.0.0.1:{etcd.port}/v3/{method}", data=json.dumps(message).encode(),
            headers={"Content-Type": "application/json"}), timeout=10) as answer:
        return json.load(answer)


def nobody_knows(cluster):
    """Leases ended, and etcd says no more: nobody is said to be gone."""
    def nodes():
        listed = cluster.run("a", "cluster", "list")
        return listed["problem"], {node["name"]: node["state"] for node in listed["nodes"]}

    def key(text):
        return base64.b64encode(text.encode()).decode()

    for _ in range(5):  # nodes may be faster, and register again
        etcd_asks(cluster.etcd, "kv/deleterange",
                  {"key": key("/sparsed/nodes/"), "range_end": key("/sparsed/nodes0")})
        cluster.etcd.kill()
        wait_for("etcd is missed", lambda: nodes()[0] != "")
        problem, states = nodes()
        assert "etcd has not answered" in problem, problem
        assert states["a"] == "serving" and "gone" not in states.values(), states
        text = said(cluster, "a", "cluster", "list")
        assert "forget" not in text and "gone" not in text, text
        cluster.etcd.start()
        wait_for("all are there", lambda: set(nodes()[1].values()) == {"serving"})
        if "unknown" in states.values():
            say("while etcd is silent nobody is said to be gone")
            return
    raise SystemExit("no node was taken for gone")


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
        cluster = Cluster(sparsed, sparsectl, folder, etcd, ("a", "b", "c"), replicas=1)
        with cluster.running():
            wait_for("all nodes know each other",
                     lambda: len(cluster.run("a", "cluster", "list")["nodes"]) == 3)
            for i, name in enumerate(("g", *MATRICES)):
                cluster.run("a", "generate", "matrix", "900x900", "--row-nonzeros=5",
                            f"--seed={i + 1}", f"--out={name}.mtx")
            cluster.run("a", "generate", "dense", "900x16", "--out=B.npy")
            for name in MATRICES:
                cluster.run("b", "upload", f"{name}.mtx")
            cluster.run("b", "upload", "g.mtx", "--shards=3")
            for node in cluster.nodes:
                wait_for(f"{node} lists all",
                         lambda n=node: set(cluster.matrices(n)) == {"g", *MATRICES})
            lists_tell(cluster)
            advice_can_be_followed(cluster)
            mistakes(cluster)
            one_is_gone(cluster)
            one_is_silent(cluster)
            nobody_knows(cluster)
    say("ok")
    return 0


if __name__ == "__main__":
    sys.exit(main())
