#!/usr/bin/env python3
"""A matrix whose rows are on three servers, with a real etcd: products, a node that is killed, and what
travels over the network.

shards_test.py SPARSED SPARSECTL [--results=FILE]

Where it may, it runs in a network namespace of its own, whose loopback carries nothing else: what
products move is counted there, and written to FILE as a JSON object a line.
"""

import argparse
import array
import bisect
import contextlib
import json
import os
import pathlib
import random
import shutil
import subprocess
import sys
import tempfile
import time
import urllib.error
import urllib.parse
import urllib.request

from cluster_test import DEVICES, Cluster, Etcd, say, wait_for

WIDTH = 128
# Of what products have to move.
MOST_BYTES = 1.1
IN_NAMESPACE = "SPARSED_TEST_OWN_NETWORK"


def numbers(path):
    """Those of a .npy file of f32."""
    data = path.read_bytes()
    values = array.array("f")
    values.frombytes(data[10 + int.from_bytes(data[8:10], "little"):])
    return values


def close(ours, theirs):
    """Whether they are sums of the same numbers, perhaps in another order."""
    return len(ours) == len(theirs) and all(
        abs(a - b) <= 1e-4 * (1 + abs(b)) for a, b in zip(ours, theirs))


def refused(cluster, node, *arguments, says):
    done = cluster.run(node, *arguments, check=False)
    text = done.stderr + done.stdout
    assert done.returncode != 0 and says in text, f"{arguments}: {text}"


def product(cluster, node, name, operand, *flags):
    out = cluster.folder / "C.npy"
    out.unlink(missing_ok=True)
    cluster.run(node, "spmm", name, f"--operand={operand}", f"--out={out}", *flags)
    return numbers(out)


def owned(cluster):
    return sum(node.metric('sparsed_cluster_matrices{role="owner"}')
               for node in cluster.nodes.values())


def multiply(cluster):
    """What the whole gives, at every node."""
    cluster.run("a", "upload", "g.mtx", "--name=whole")
    uploaded = cluster.run("a", "upload", "g.mtx", "--name=g", "--shards=3")
    assert len(uploaded["shards"]) == 3, uploaded
    owners = {shard["nodes"][0] for shard in uploaded["shards"]}
    assert owners == set(cluster.nodes), f"three shards are on {owners}"
    assert all(len(shard["nodes"]) == 2 for shard in uploaded["shards"]), uploaded
    people_see_shards(cluster, uploaded)
    cluster.run("a", "upload", "g.mtx", "--name=parts", "--shards=3", "--partition=parts.txt")
    cluster.run("b", "upload", "g.mtx", "--name=metis", "--shards=3", "--partition=metis")
    names = ("g", "parts", "metis")
    for node in cluster.nodes:
        wait_for(f"{node} lists all",
                 lambda n=node: set(cluster.matrices(n)) == {"whole", *names})
        for flags in ((), ("--transpose", "--alpha=0.5")):
            expected = product(cluster, node, "whole", "B.npy", *flags)
            for name in names:
                assert close(product(cluster, node, name, "B.npy", *flags), expected), \
                    f"{node} has another product of {name} {flags}"
    sampled = {}
    for name in ("whole", *names):
        cluster.run("b", "sddmm", name, "--left=B.npy", "--right=B.npy", "--out=V.npy")
        sampled[name] = numbers(cluster.folder / "V.npy")
        cluster.run("c", "download", name, f"--out={name}.mtx")
    files = {name: (cluster.folder / f"{name}.mtx").read_text() for name in sampled}
    for name in names:
        assert close(sampled[name], sampled["whole"]), f"SDDMM of {name} is another"
        assert files[name] == files["whole"], f"{name} was downloaded as another matrix"
    say("products of three shards, by ranges and by two partitions, are those of the whole")


def kept(cluster, node, name, matrix):
    """A buffer, put together."""
    cluster.run(node, "buffers", "get", name, f"--for={matrix}", "--out=K.npy")
    return numbers(cluster.folder / "K.npy")


def hold(cluster):
    """Operands and results that stay on the nodes: an iteration moves rows between these alone."""
    b = numbers(cluster.folder / "B.npy")
    once = product(cluster, "a", "whole", "B.npy")
    shutil.copy(cluster.folder / "C.npy", cluster.folder / "once.npy")
    twice = product(cluster, "a", "whole", "once.npy")
    added = [2 * x + y for x, y in zip(once, twice)]
    turned = product(cluster, "a", "whole", "B.npy", "--transpose")
    cluster.run("a", "sddmm", "whole", "--left=once.npy", "--right=B.npy", "--out=V.npy")
    sampled = numbers(cluster.folder / "V.npy")
    for name in ("g", "parts", "metis"):
        put = cluster.run("a", "buffers", "put", "x", "B.npy", f"--for={name}")
        assert put["shards"] == 3 and put["rows"] == 3000, put
        assert kept(cluster, "b", "x", name) == b, f"the buffer of {name} is another"
        for node in cluster.nodes:
            cluster.run(node, "spmm", name, "--operand=@x", "--keep-as=y")
            assert close(kept(cluster, node, "y", name), once), f"{node}: y of {name} is another"
        assert close(product(cluster, "c", name, "@x"), once), f"{name}: @x gives another"
        assert close(product(cluster, "b", name, "@x", "--transpose"), turned), \
            f"{name}: the transpose times @x gives another"
        cluster.run("a", "sddmm", name, "--left=@y", "--right=@x", "--out=V.npy")
        assert close(numbers(cluster.folder / "V.npy"), sampled), f"{name}: SDDMM of @y and @x"
        cluster.run("c", "spmm", name, "--operand=@y", "--keep-as=z")
        assert close(kept(cluster, "a", "z", name), twice), f"{name}: S y is another"
        # What is there is added to; also operands that the client brings.
        cluster.run("b", "spmm", name, "--operand=B.npy", "--keep-as=z", "--alpha=2", "--beta=1")
        assert close(kept(cluster, "a", "z", name), added), f"{name}: 2 S b + z is another"
        cluster.run("b", "spmm", name, "--operand=@y", "--keep-as=x")
        assert close(kept(cluster, "c", "x", name), twice), f"{name}: x := S y is another"
        renewed = cluster.run("c", "buffers", "renew", "x", f"--for={name}")
        assert renewed["version"] != put["version"], (put, renewed)
        cluster.run("a", "buffers", "delete", "x", "y", "z", f"--for={name}")
        refused(cluster, "b", "buffers", "get", "x", f"--for={name}", "--out=K.npy",
                says="has no buffer named")
    # Where rows and columns are not as many, operands lie evenly and results as the shards' rows.
    cluster.run("a", "generate", "matrix", "2000x3000", "--row-nonzeros=5", "--seed=4",
                "--out=wide3000.mtx")
    cluster.run("a", "upload", "wide3000.mtx", "--name=wide-whole")
    cluster.run("a", "upload", "wide3000.mtx", "--name=wide", "--shards=3")
    expected = product(cluster, "a", "wide-whole", "B.npy")
    cluster.run("b", "buffers", "put", "x", "B.npy", "--for=wide")
    cluster.run("c", "spmm", "wide", "--operand=@x", "--keep-as=y")
    assert close(kept(cluster, "a", "y", "wide"), expected), "the wide product is another"
    cluster.run("a", "delete", "wide", "wide-whole")
    # More rows of one node than one request asks for.
    cluster.run("a", "generate", "matrix", "400000x400000", "--row-nonzeros=4", "--seed=6",
                "--out=many.mtx")
    cluster.run("a", "generate", "dense", "400000x1", "--out=many.npy")
    cluster.run("a", "upload", "many.mtx", "--name=many-whole")
    cluster.run("a", "upload", "many.mtx", "--name=many", "--shards=2")
    expected = product(cluster, "a", "many-whole", "many.npy")
    cluster.run("b", "buffers", "put", "x", "many.npy", "--for=many")
    assert close(product(cluster, "c", "many", "@x"), expected), "the product of many rows is another"
    cluster.run("a", "delete", "many", "many-whole")
    say("operands and results of three shards stay on the nodes")


def held_mistakes(cluster):
    cluster.run("a", "generate", "dense", "7x16", "--out=seven.npy")
    refused(cluster, "a", "buffers", "put", "x", "seven.npy", "--for=g",
            says="have as many rows as it has rows or columns")
    refused(cluster, "a", "buffers", "put", "x", "B.npy", "--for=g", "--durable",
            says="is not durable")
    refused(cluster, "a", "spmm", "g", "--operand=@nothing", "--out=C.npy",
            says="has no buffer named")
    cluster.run("a", "buffers", "put", "x", "B.npy", "--for=g")
    refused(cluster, "b", "spmm", "g", "--operand=@x", "--keep-as=y", "--transpose",
            says="the client adds up")
    refused(cluster, "b", "sddmm", "g", "--left=@x", "--right=@x", "--keep-as=v",
            says="is a buffer")
    refused(cluster, "b", "spmm", "g", "--operand=@x", "--keep-as=x", says="operand and result")
    # One node's part is another product's.
    shard = cluster.run("a", "show", "g")["shards"][1]
    cluster.run(shard["nodes"][0], "buffers", "put", f"{shard['matrix']}/x", "--replace",
                f"--zeros={shard['rows']}x16")
    refused(cluster, "c", "spmm", "g", "--operand=@x", "--out=C.npy",
            says="of different products")
    cluster.run(shard["nodes"][0], "buffers", "delete", f"{shard['matrix']}/x")
    refused(cluster, "c", "spmm", "g", "--operand=@x", "--out=C.npy", says="put it")
    cluster.run("a", "buffers", "put", "x", "B.npy", "--for=g")
    cluster.run("a", "spmm", "g", "--operand=@x", "--out=C.npy")
    cluster.run("a", "buffers", "delete", "x", "--for=g")


def mistakes(cluster):
    refused(cluster, "a", "upload", "g.mtx", "--name=bad", "--shards=0", says="0 not in range 1 to 1024")
    refused(cluster, "a", "upload", "g.mtx", "--name=bad", "--shards=3001",
            says="3001 not in range 1 to 1024")
    refused(cluster, "a", "upload", "g.mtx", "--name=bad", "--shards=1024",
            "--partition=parts.txt", says="shard 3 of 1024 no row")
    refused(cluster, "a", "upload", "g.mtx", "--name=bad", "--shards=2", "--partition=parts.txt",
            says="expected a shard in [0, 2)")
    refused(cluster, "a", "upload", "g.mtx", "--name=bad", "--partition=parts.txt",
            says="--shards")
    (cluster.folder / "wide.mtx").write_text(
        "%%MatrixMarket matrix coordinate real general\n2 3 1\n1 3 5\n")
    refused(cluster, "a", "upload", "wide.mtx", "--name=bad", "--shards=2", "--partition=metis",
            says="METIS partitions graphs: the matrix is 2 x 3")
    refused(cluster, "b", "upload", "g.mtx", "--name=g", "--shards=3", says="already")
    refused(cluster, "b", "upload", "g.mtx", "--name=g", "--replace", says="in shards")
    refused(cluster, "c", "update", "g", "--values=V.npy", says="in 3 shards")
    refused(cluster, "c", "spgemm", "g", "g", "--out=P.mtx", says="in 3 shards")
    shard = cluster.run("c", "show", "g")["shards"][0]["matrix"]
    refused(cluster, "c", "delete", shard, says="is a shard of")


def kill_one(cluster):
    """With two replicas products go on."""
    expected = product(cluster, "a", "g", "B.npy")
    victim = cluster.run("a", "show", "g")["shards"][1]["nodes"][0]
    others = [name for name in cluster.nodes if name != victim]
    cluster.nodes[victim].kill()
    begun = time.monotonic()
    assert close(product(cluster, others, "g", "B.npy"), expected), "the product is another"
    say(f"{victim} was killed: a product took {time.monotonic() - begun:.2f} s at once")
    wait_for("all shards are on two nodes again", lambda: all(
        len(shard["nodes"]) == 2 and victim not in shard["nodes"]
        for shard in cluster.run(others[0], "show", "g")["shards"]))
    cluster.run(others[0], "rename", "g", "renamed")
    assert close(product(cluster, others[1], "renamed", "B.npy"), expected)
    cluster.nodes[victim].start()
    wait_for("it knows the new name", lambda: "renamed" in cluster.matrices(victim))
    assert close(product(cluster, victim, "renamed", "B.npy"), expected)
    cluster.run(victim, "upload", "g.mtx", "--name=renamed", "--shards=2", "--replace")
    assert close(product(cluster, victim, "renamed", "B.npy"), expected)
    for name in ("renamed", "parts", "metis", "whole"):
        cluster.run(victim, "delete", name)
    wait_for("nothing is left", lambda: owned(cluster) == 0)
    say("it came back; what was deleted left nothing")


def received():
    """Bytes that came over the loopback, with all headers."""
    for line in pathlib.Path("/proc/net/dev").read_text().splitlines():
        if line.strip().startswith("lo:"):
            return int(line.split(":", 1)[1].split()[0])
    raise SystemExit("there is no loopback")


def grid(path, width, height, shuffled=False):
    """Each point of a grid and its four neighbours."""
    lines = []
    number = list(range(1, width * height + 1))
    if shuffled:
        random.Random(1).shuffle(number)
    for y in range(height):
        for x in range(width):
            for dx, dy in ((0, -1), (-1, 0), (0, 0), (1, 0), (0, 1)):
                if 0 <= x + dx < width and 0 <= y + dy < height:
                    row, column = y * width + x, (y + dy) * width + x + dx
                    lines.append(f"{number[row]} {number[column]} 1")
    rows = width * height
    path.write_text("%%MatrixMarket matrix coordinate real general\n"
                    f"{rows} {rows} {len(lines)}\n" + "\n".join(lines) + "\n")
    return rows


def bytes_moved(cluster, results):
    """Of a product from a client that knows nothing yet: what had to travel, and what did."""
    rows = {"uniform": 30000, "grid": grid(cluster.folder / "grid.mtx", 200, 150),
            "shuffled": grid(cluster.folder / "shuffled.mtx", 200, 150, shuffled=True)}
    cluster.run("a", "generate", "matrix", "30000x30000", "--row-nonzeros=8", "--seed=5",
                "--out=uniform.mtx")
    cluster.run("a", "generate", "dense", f"30000x{WIDTH}", "--out=X.npy")
    for name, count in rows.items():
        cluster.run("a", "upload", f"{name}.mtx", "--shards=3",
                    *(["--partition=metis"] if name == "shuffled" else []))
        named = sum(shard["cols"] for shard in cluster.run("a", "show", name)["shards"])
        necessary = {"operand": named * WIDTH * 4, "result": count * WIDTH * 4}
        idle = received()
        time.sleep(1)
        idle = received() - idle
        before, begun = received(), time.monotonic()
        product(cluster, "b", name, "X.npy")
        moved = received() - before - int(idle * (time.monotonic() - begun))
        over = moved / sum(necessary.values())
        say(f"{name}: {moved / 1e6:.1f} MB moved, {over:.3f} of what was necessary; the shards "
            f"name {named} of 3 x {count} rows")
        results.append({"what": "SpMM in 3 shards, bytes over loopback", "matrix": name,
                        "rows": count, "k": WIDTH, "rows_named": named,
                        "necessary_bytes": necessary, "moved_bytes": moved, "ratio": over})
        # METIS finds what the order of the rows hides.
        assert name != "shuffled" or named < 1.1 * count, f"{named} rows are named"
        assert over <= MOST_BYTES, f"{name}: {over:.3f} of the necessary bytes"
        bytes_between_nodes(cluster, name, results)
        cluster.run("a", "delete", name)


def fetched(cluster, name):
    """Rows that the shards' nodes have to get from others, by the matrix's file and its shards."""
    entries = [line.split() for line in
               (cluster.folder / f"{name}.mtx").read_text().splitlines()[2:]]
    shards = cluster.run("a", "show", name)["shards"]
    if "first_row" in shards[0]:
        begins = [shard["first_row"] for shard in shards]
        owner = lambda row: bisect.bisect_right(begins, row) - 1  # noqa: E731
    else:
        return None
    wanted = {(owner(int(entry[0]) - 1), int(entry[1]) - 1) for entry in entries}
    return sum(owner(row) != shard for shard, row in wanted)


def people_see_shards(cluster, uploaded):
    """On a node's page a shard says what it is of, and what is not its rows is left out; the list
    says how many there are, and their bytes."""
    shards = {shard["matrix"]: number for number, shard in enumerate(uploaded["shards"])}
    seen = {}

    def all_there():
        for node in cluster.nodes.values():
            with urllib.request.urlopen(f"http://{node.metrics}/api/matrices?limit=100",
                                        timeout=10) as page:
                for row in json.load(page)["rows"]:
                    assert not row["name"].endswith(("/columns", "/rows")), row
                    if row["name"] in shards:
                        seen[row["name"]] = row["shard"]
                    else:
                        assert row["shard"] == "", row
        return seen == {name: f"shard {number} of g" for name, number in shards.items()}

    wait_for("the page's shards", all_there)
    told = 0
    for node in cluster.nodes.values():
        for name, number in shards.items():
            query = urllib.parse.urlencode({"tenant": "default", "name": name})
            with contextlib.suppress(urllib.error.HTTPError), urllib.request.urlopen(
                    f"http://{node.metrics}/api/matrix?{query}", timeout=10) as page:
                assert json.load(page)["shard"] == f"shard {number} of g", name
                told += 1
    assert told >= len(shards), f"{told} of {len(shards)} shards have a page"
    listed = cluster.run("a", "list")["matrices"]
    g = next(one for one in listed if one["name"] == "g")
    assert g["csr_bytes"] > 8 * g["rows"] + 8 * g["nnz"], g


def cluster_sum(cluster, metric):
    return sum(node.metric(metric) for node in cluster.nodes.values())


def bytes_between_nodes(cluster, name, results):
    """Of an iteration whose operand and result stay on the nodes."""
    cluster.run("a", "buffers", "put", "x", "X.npy", f"--for={name}")
    cluster.run("a", "spmm", name, "--operand=@x", "--keep-as=y")
    idle = received()
    time.sleep(1)
    idle = received() - idle
    fetch = 'sparsed_cluster_row_bytes_total{direction="received"}'
    copy = "sparsed_cluster_row_bytes_copied_total"
    counted, copied = cluster_sum(cluster, fetch), cluster_sum(cluster, copy)
    # Each time of an operand that is new: what was fetched for one product serves the next.
    cluster.run("a", "spmm", name, "--operand=@x", "--out=C.npy")
    if name != "uniform":
        assert cluster_sum(cluster, fetch) == counted, f"{name}: rows of x were fetched again"
    counted = cluster_sum(cluster, fetch)
    times = 5
    before, begun = received(), time.monotonic()
    for operand, result in ("yx", "xy", "yx", "xy", "yx")[:times]:
        cluster.run("a", "spmm", name, f"--operand=@{operand}", f"--keep-as={result}")
    moved = received() - before - int(idle * (time.monotonic() - begun))
    counted = cluster_sum(cluster, fetch) - counted
    copied = cluster_sum(cluster, copy) - copied
    # Rows anywhere name more of others' than a node has, and its own are copied; so they are of
    # results that a GPU made.
    assert (copied > 0) == (name == "uniform" or DEVICES != "cpu"), (
        f"{name}: {copied} bytes of own rows were copied")
    rows = fetched(cluster, name)
    necessary = (rows or 0) * WIDTH * 4 if rows is not None else counted // times
    assert counted == times * necessary, f"{name}: {counted} bytes of rows, not {times} x {necessary}"
    over = moved / (times * necessary)
    say(f"{name}: an iteration moved {moved / times / 1e6:.2f} MB, {over:.3f} of the rows that nodes "
        "had to get from others")
    results.append({"what": "SpMM in 3 shards, operand and result held, bytes over loopback",
                    "matrix": name, "k": WIDTH, "iterations": times,
                    "necessary_bytes": necessary, "moved_bytes": moved // times, "ratio": over})


def main():
    parser = argparse.ArgumentParser()
    parser.add_argument("sparsed")
    parser.add_argument("sparsectl")
    parser.add_argument("--results", type=pathlib.Path)
    arguments = parser.parse_args()
    if shutil.which("etcd") is None:
        print("skipped: etcd is not installed (Debian package etcd-server)")
        return 77
    private = ["unshare", "--map-root-user", "--net"]
    own = IN_NAMESPACE in os.environ
    if not own and subprocess.run([*private, "true"], check=False,
                                  capture_output=True).returncode == 0:
        return subprocess.run(
            [*private, "sh", "-c", 'ip link set lo up && exec "$@"', "sh", sys.executable,
             *sys.argv], env={**os.environ, IN_NAMESPACE: "1"}, check=False).returncode
    results = []
    with tempfile.TemporaryDirectory() as temporary:
        folder = pathlib.Path(temporary)
        etcd = Etcd(folder)
        etcd.start()
        cluster = Cluster(arguments.sparsed, arguments.sparsectl, folder, etcd, ("a", "b", "c"),
                          ["--local-listen=off"])
        try:
            with cluster.running():
                wait_for("all nodes know each other",
                         lambda: len(cluster.run("a", "cluster", "list")["nodes"]) == 3)
                cluster.run("a", "generate", "matrix", "3000x3000", "--row-nonzeros=7", "--seed=3",
                            "--out=g.mtx")
                cluster.run("a", "generate", "dense", "3000x16", "--out=B.npy")
                (folder / "parts.txt").write_text(
                    "".join(f"{(row * row + row // 5) % 3}\n" for row in range(3000)))
                multiply(cluster)
                hold(cluster)
                mistakes(cluster)
                held_mistakes(cluster)
                kill_one(cluster)
                if own:
                    bytes_moved(cluster, results)
                else:
                    say("no network namespace of its own: bytes are not counted")
        finally:
            etcd.kill()
    if arguments.results:
        arguments.results.write_text("".join(json.dumps(result) + "\n" for result in results))
    say("ok")
    return 0


if __name__ == "__main__":
    sys.exit(main())
