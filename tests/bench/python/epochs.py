#!/usr/bin/env python3
"""Epochs of graph networks with sparsed and with PyTorch Geometric, side by side in one run.

    tests/bench/python/epochs.py MATRIX.mtx.gz... [--device cuda] [--out epochs.jsonl]

Two layers, hidden 128, Adam, all of the graph at once. GCN: sparsed, and PyG by edge_index, by a CSR
tensor of PyTorch's, and by EdgeIndex, all of them normalised once; GAT (4 heads of 32) and TransformerConv (4 heads of 32):
sparsed, and PyG by edge_index. Ways take turns: one block of epochs each, again and again until the
time is over. For each matrix, model and way a line of JSON: median milliseconds of an epoch (and
quartiles), peak memory beyond what the graph, the features and the model take, the loss after the
first epochs (which has to be the same), and how operands travelled.

Without --server one is started on this machine, SPARSED_SERVER or `sparsed`. What PyG has no memory
for, or another failure, is a line with "error".
"""

import argparse
import gc
import json
import os
import shutil
import statistics
import subprocess
import sys
import tempfile
import time
import traceback
from pathlib import Path

import numpy as np
import scipy.io
import scipy.sparse as sp
import torch

import sparsed
import sparsed.torch as st

MODELS = ("gcn", "gat", "transformer")
HIDDEN, CLASSES = 128, 16


def parse():
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("matrices", nargs="+")
    parser.add_argument("--device", default="cuda" if torch.cuda.is_available() else "cpu")
    parser.add_argument("--models", default=",".join(MODELS))
    parser.add_argument("--ways", default="sparsed,edge_index,csr,EdgeIndex")
    parser.add_argument("--features", type=int, default=128)
    parser.add_argument("--seconds", type=float, default=20, help="of each matrix and model")
    parser.add_argument("--prepare", type=float, default=60, help="seconds, at most, for plans")
    parser.add_argument("--server", help="its address; one is started otherwise")
    parser.add_argument(
        "--graph", action="store_true", help="also sparsed as a captured CUDA graph"
    )
    parser.add_argument("--out", help="a file for the lines, too")
    return parser.parse_args()


class Server:
    """A server of this machine, for the time of the run."""

    def __init__(self, *flags):
        self.folder = tempfile.mkdtemp(prefix="sparsed-bench-")
        self.address = f"unix:{self.folder}/s.sock"
        program = os.environ.get("SPARSED_SERVER") or shutil.which("sparsed") or "sparsed"
        self.log = open(f"{self.folder}/log", "wb")
        self.process = subprocess.Popen(
            [
                program, f"--listen={self.address}", f"--local-listen=unix:{self.folder}/local.sock",
                "--metrics-listen=off", "--in-memory", *flags,
            ],
            stdout=self.log, stderr=self.log,
        )  # fmt: skip
        deadline = time.monotonic() + 60
        while not Path(f"{self.folder}/s.sock").exists():
            if self.process.poll() is not None or time.monotonic() > deadline:
                sys.exit(f"no server: {Path(self.folder, 'log').read_text()}")
            time.sleep(0.05)

    def close(self):
        self.process.terminate()
        try:
            self.process.wait(30)
        except subprocess.TimeoutExpired:
            self.process.kill()
        shutil.rmtree(self.folder, ignore_errors=True)


def server_for(arguments):
    """None if there is one; of the CPU alone if the tensors are on the CPU."""
    if arguments.server:
        return None
    return Server() if arguments.device.startswith("cuda") else Server("--devices=cpu")


def synchronize(device):
    if device.type == "cuda":
        torch.cuda.synchronize(device)


class Ours:
    """Models of sparsed's layers and of PyG's are put together alike."""

    GCNConv, GATConv, TransformerConv = st.nn.GCNConv, st.nn.GATConv, st.nn.TransformerConv


def model_of(kind, nn, features):
    if kind == "gcn":
        layers = [nn.GCNConv(features, HIDDEN), nn.GCNConv(HIDDEN, CLASSES)]
    elif kind == "gcn128":
        layers = [nn.GCNConv(features, HIDDEN), nn.GCNConv(HIDDEN, HIDDEN)]
    elif kind == "gat":
        layers = [nn.GATConv(features, 32, 4), nn.GATConv(HIDDEN, 32, 4)]
    else:
        layers = [nn.TransformerConv(features, 32, 4), nn.TransformerConv(HIDDEN, 32, 4)]

    class Model(torch.nn.Module):
        def __init__(self):
            super().__init__()
            self.layers = torch.nn.ModuleList(layers)

        def forward(self, x, graph):
            return self.layers[1](self.layers[0](x, graph).relu(), graph)

    return Model()


class Way:
    """One way to train one model: `epoch()` queues an epoch."""

    def __init__(self, name, model, graph, x, y):
        self.name = name
        self.model, self.graph, self.x, self.y = model, graph, x, y
        cuda = x.is_cuda
        self.optimizer = torch.optim.Adam(model.parameters(), lr=0.01, fused=cuda, capturable=cuda)
        self.times = []
        self.peak = None
        self.losses = []

    def epoch(self):
        self.optimizer.zero_grad(set_to_none=True)
        out = self.model(self.x, self.graph)
        loss = torch.nn.functional.cross_entropy(out, self.y)
        loss.backward()
        self.optimizer.step()
        return loss.detach()

    def block(self, device, seconds):
        """Epochs for so long, each with its time."""
        end = time.perf_counter() + seconds
        if device.type == "cuda":
            while time.perf_counter() < end:
                marks = [torch.cuda.Event(enable_timing=True) for _ in range(11)]
                marks[0].record()
                for mark in marks[1:]:
                    self.epoch()
                    mark.record()
                marks[-1].synchronize()
                self.times += [a.elapsed_time(b) for a, b in zip(marks, marks[1:])]
        else:
            while time.perf_counter() < end or not self.times:
                begin = time.perf_counter()
                self.epoch()
                self.times.append((time.perf_counter() - begin) * 1e3)

    def first(self, device):
        """Three epochs, whose losses are compared, and the peak of memory."""
        gc.collect()
        synchronize(device)
        if device.type == "cuda":
            torch.cuda.empty_cache()
            torch.cuda.reset_peak_memory_stats(device)
            before = torch.cuda.memory_allocated(device)
        self.losses = [float(self.epoch()) for _ in range(3)]
        synchronize(device)
        if device.type == "cuda":
            self.peak = (torch.cuda.max_memory_allocated(device) - before) / 1e6


class Captured(Way):
    """An epoch as a CUDA graph."""

    def first(self, device):
        side = torch.cuda.Stream(device)
        side.wait_stream(torch.cuda.current_stream(device))
        with torch.cuda.stream(side):
            self.losses = [float(super(Captured, self).epoch()) for _ in range(3)]
        torch.cuda.current_stream(device).wait_stream(side)
        self.captured = torch.cuda.CUDAGraph()
        with torch.cuda.graph(self.captured):
            super().epoch()

    def epoch(self):
        self.captured.replay()


def graphs_of(ways, kind, matrix, device):
    """What PyG's layers take."""
    rows, cols = matrix.nonzero()
    edge_index = torch.from_numpy(np.stack((cols, rows)).astype(np.int64)).to(device)
    made = {}
    if "edge_index" in ways:
        made["edge_index"] = edge_index
    if kind.startswith("gcn") and "csr" in ways:
        made["csr"] = None  # normalized_csr
    if kind.startswith("gcn") and "EdgeIndex" in ways:
        from torch_geometric import EdgeIndex

        by_column = edge_index[:, torch.argsort(edge_index[1], stable=True)]
        made["EdgeIndex"] = EdgeIndex(by_column, sparse_size=matrix.shape, sort_order="col")
    return made


def normalized_csr(matrix, device):
    """D^-1/2 (A + I) D^-1/2 as a CSR tensor whose rows are targets."""
    n = matrix.shape[0]
    missing = sp.diags_array((matrix.diagonal() == 0).astype(np.float32))
    with_loops = sp.csr_array(matrix + missing)
    roots = np.asarray(with_loops.sum(axis=1)).ravel() ** -0.5
    scaled = sp.csr_array(sp.diags_array(roots) @ with_loops @ sp.diags_array(roots))
    return torch.sparse_csr_tensor(
        torch.from_numpy(scaled.indptr.astype(np.int64)),
        torch.from_numpy(scaled.indices.astype(np.int64)),
        torch.from_numpy(scaled.data.astype(np.float32)),
        size=(n, n),
    ).to(device)


def their_model(kind, way, features):
    from torch_geometric import nn

    if not kind.startswith("gcn"):
        return model_of(kind, nn, features)
    # Normalised once, as with sparsed.
    options = {"normalize": False} if way == "csr" else {"cached": True}

    class Theirs:
        @staticmethod
        def GCNConv(a, b):
            return nn.GCNConv(a, b, **options)

    return model_of(kind, Theirs, features)


def measure(matrix, name, kind, arguments, client, emit):
    gc.collect()
    device = torch.device(arguments.device)
    wanted = arguments.ways.split(",")
    n = matrix.shape[0]
    torch.manual_seed(0)
    x = torch.randn(n, arguments.features, device=device)
    y = torch.randint(CLASSES, (n,), device=device)
    first = model_of(kind, Ours, arguments.features)
    state = {key: value.clone() for key, value in first.state_dict().items()}
    line = {
        "matrix": name, "rows": n, "nnz": int(matrix.nnz), "model": kind,
        "device": torch.cuda.get_device_name(device) if device.type == "cuda" else "cpu",
        "threads": torch.get_num_threads(), "torch": torch.__version__,
    }  # fmt: skip
    ways = []

    def add(way, make):
        """Sets a way up and does its first epochs; without it if that fails."""
        try:
            made = make()
            made.model.load_state_dict(state)
            made.first(device)
            ways.append(made)
        except Exception as error:
            emit({**line, "way": way, "error": f"{type(error).__name__}: {str(error)[:300]}"})
            traceback.print_exc()
            gc.collect()
            if device.type == "cuda":
                torch.cuda.empty_cache()

    with client.temporary(matrix) as g:
        if "sparsed" in wanted:
            add("sparsed", lambda: Way("sparsed", first.to(device), g, x, y))
            prepare(ways, g, device, arguments.prepare)
        if "sparsed" in wanted and arguments.graph and device.type == "cuda":
            model = model_of(kind, Ours, arguments.features).to(device)
            add("sparsed, CUDA graph", lambda: Captured("sparsed, CUDA graph", model, g, x, y))
        try:
            graphs = graphs_of(wanted, kind, matrix, device)
        except ImportError as error:
            emit({**line, "way": "pyg", "error": str(error)})
            graphs = {}
        for way, graph in graphs.items():

            def make(way=way, graph=graph):
                if way == "csr":
                    graph = normalized_csr(matrix, device)
                model = their_model(kind, way, arguments.features).to(device)
                return Way(way, model, graph, x, y)

            add(way, make)
        take_turns(ways, device, arguments.seconds)
        for way in ways:
            quartiles = (
                statistics.quantiles(way.times, n=4) if len(way.times) > 1 else way.times * 3
            )
            found = {
                **line, "way": way.name, "epoch_ms": round(quartiles[1], 4),
                "quartiles_ms": [round(quartiles[0], 4), round(quartiles[2], 4)],
                "epochs": len(way.times), "losses": [round(loss, 5) for loss in way.losses],
            }  # fmt: skip
            if way.peak is not None:
                found["peak_mb"] = round(way.peak, 1)
            if way.name == "sparsed":
                found["transport"] = sparsed.last_transport()
                found["plans"] = plans_of(g)
            emit(found)
        summarize(ways, line, emit)


def prepare(ways, g, device, seconds):
    """Runs epochs until the server has tried plans for the products that they ask for."""
    if not ways:
        return
    end = time.monotonic() + seconds
    seen = None
    while time.monotonic() < end:
        for _ in range(5):
            ways[0].epoch()
        synchronize(device)
        now = json.dumps(plans_of(g), sort_keys=True)
        ready = all(one.info()["state"].lower() == "ready" for one in matrices_of(g))
        if ready and now == seen:
            return
        seen = now
        time.sleep(1)


def matrices_of(g):
    return [g, *g._torch.derived.values()]


def plans_of(g):
    return [
        f"{plan['signature']['operation']}{'^T' if plan['signature']['transposed'] else ''}"
        f":{plan['signature']['k']} {plan['pipeline']} / {plan['kernel']}"
        for one in matrices_of(g)
        for plan in one.info()["plans"]
    ]


def take_turns(ways, device, seconds):
    """Blocks of a twentieth of the time; what came first comes last in the next round."""
    order = list(ways)
    end = time.monotonic() + seconds
    for way in order:
        way.block(device, 0.2 if device.type == "cuda" else 0)  # warm
        way.times.clear()
    while order and (time.monotonic() < end or not order[-1].times):
        for way in order:
            way.block(device, seconds / 20 / len(order))
        order.reverse()


def summarize(ways, line, emit):
    medians = {way.name: statistics.median(way.times) for way in ways if way.times}
    theirs = {name: ms for name, ms in medians.items() if not name.startswith("sparsed")}
    if "sparsed" not in medians or not theirs:
        return
    best = min(theirs, key=theirs.get)
    found = {**line, "way": "ratio", "fastest_peer": best}
    found["speedup"] = round(theirs[best] / medians["sparsed"], 3)
    peaks = {way.name: way.peak for way in ways}
    if peaks.get("sparsed") and peaks.get("edge_index"):
        found["memory_share"] = round(peaks["sparsed"] / peaks["edge_index"], 4)
    emit(found)


def main():
    arguments = parse()
    server = server_for(arguments)
    out = open(arguments.out, "a") if arguments.out else None

    def emit(line):
        text = json.dumps(line)
        print(text, flush=True)
        if out is not None:
            out.write(text + "\n")
            out.flush()

    try:
        with sparsed.connect(arguments.server or server.address) as client:
            for path in arguments.matrices:
                matrix = sp.csr_matrix(scipy.io.mmread(path)).astype(np.float32)
                matrix.data[:] = 1
                name = Path(path).name.split(".")[0]
                if matrix.shape[0] != matrix.shape[1]:
                    emit({"matrix": name, "error": "not square"})
                    continue
                for kind in arguments.models.split(","):
                    measure(matrix, name, kind, arguments, client, emit)
    finally:
        if server is not None:
            server.close()


if __name__ == "__main__":
    main()
