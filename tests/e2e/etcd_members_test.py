#!/usr/bin/env python3
"""Three servers and an etcd of three members. Without one of these a server that is killed is
noticed as ever; without two of them products go on, and changes do not.

etcd_members_test.py SPARSED SPARSECTL
"""

import contextlib
import pathlib
import shutil
import subprocess
import sys
import tempfile

from cluster_test import REPLICAS, Cluster, Etcds, say, wait_for

MATRICES = 6


def all_serve(cluster, products):
    for node in cluster.nodes:
        for name, expected in products.items():
            assert cluster.product(node, name) == expected, f"{node} has another {name}"


def changes_go_on(cluster, products, names):
    """A matrix is made at each node. One whose member was just killed may refuse a change, as it
    does not know whether that was made, and hears of others' changes when it watches another."""
    for node, name in zip(cluster.nodes, names, strict=True):
        wait_for(f"{name} is made at {node}", lambda n=node, m=name: cluster.run(
            n, "upload", "m0.mtx", f"--name={m}", "--replace", check=False).returncode == 0)
        products[name] = products["m0"]
    for node in cluster.nodes:
        wait_for(f"{node} knows what was made",
                 lambda n=node: set(cluster.matrices(n)) == set(products))
    all_serve(cluster, products)


def states(cluster, node):
    return {told["name"]: told["state"] for told in cluster.run(node, "cluster", "list")["nodes"]}


def wait_serving(cluster):
    for node in cluster.nodes:
        wait_for(f"{node} knows that all are there",
                 lambda n=node: set(states(cluster, n).values()) == {"serving"})


def lose_a_node_meanwhile(cluster, products):
    """With two members of three a node that is killed is noticed, and its copies are made again."""
    victim = max(cluster.nodes, key=lambda node: sum(
        matrix["nodes"][0] == node for matrix in cluster.matrices("a").values()))
    others = [node for node in cluster.nodes if node != victim]
    cluster.nodes[victim].kill()
    wait_for("its copies are made again", lambda: all(
        victim not in matrix["nodes"] and len(matrix["nodes"]) == REPLICAS
        for matrix in cluster.matrices(others[0]).values()))
    for name, expected in products.items():
        assert cluster.product(others, name) == expected, f"{name} is another"
    cluster.nodes[victim].start()
    wait_serving(cluster)
    all_serve(cluster, products)
    say(f"{victim} was killed meanwhile, and came back")


def lose_most(cluster, first, second, products):
    """One of three members decides nothing."""
    second.kill()
    for node in cluster.nodes:
        wait_for(f"{node} says what is wrong",
                 lambda n=node: "etcd" in cluster.run(n, "cluster", "list")["problem"])
        refused = cluster.run(node, "upload", "m0.mtx", "--name=m0", "--replace", check=False)
        assert refused.returncode != 0 and "etcd" in refused.stderr + refused.stdout, refused
    all_serve(cluster, products)
    say("without two of them products go on, and changes are refused")
    # It has to catch up: what was written while it was away is on one other disk alone.
    first.start()
    changes_go_on(cluster, products, ["two-a", "two-b", "two-c"])
    wait_serving(cluster)
    say("the first of them is back, and so are changes")


def main():
    sparsed, sparsectl = sys.argv[1:]
    if shutil.which("etcd") is None:
        print("skipped: etcd is not installed (Debian package etcd-server)")
        return 77
    with tempfile.TemporaryDirectory() as temporary, contextlib.ExitStack() as stack:
        folder = pathlib.Path(temporary)
        for i in range(MATRICES):
            subprocess.run([sparsectl, "generate", "matrix", "200x200", f"--seed={i + 1}",
                            f"--out=m{i}.mtx"], cwd=folder, check=True, stdout=subprocess.DEVNULL)
        subprocess.run([sparsectl, "generate", "dense", "200x8", "--out=B.npy"], cwd=folder,
                       check=True, stdout=subprocess.DEVNULL)
        etcd = Etcds(folder)
        stack.callback(etcd.kill)
        etcd.start()
        cluster = Cluster(sparsed, sparsectl, folder, etcd, ("a", "b", "c"), ["--insecure"])
        with cluster.running():
            products = {}
            for i in range(MATRICES):
                cluster.run("a", "upload", f"m{i}.mtx")
            for i in range(MATRICES):
                products[f"m{i}"] = cluster.product("a", f"m{i}")
            all_serve(cluster, products)
            first, second = etcd.members[:2]
            first.kill()
            changes_go_on(cluster, products, ["one-a", "one-b", "one-c"])
            lose_a_node_meanwhile(cluster, products)
            lose_most(cluster, first, second, products)
    say("ok")
    return 0


if __name__ == "__main__":
    sys.exit(main())
