"""What the examples share: their options, and a graph with features and classes of nodes."""

from __future__ import annotations

import argparse
from collections.abc import Callable
from typing import NamedTuple

import numpy as np
import scipy.io
import scipy.sparse as sp
import torch
from scipy.sparse.csgraph import dijkstra


def options(what: str, *paths: str) -> argparse.Namespace:
    """The command line: --server, --device, --epochs, and a path for each of `paths`."""
    parser = argparse.ArgumentParser(description=what)
    parser.add_argument("--server", default="unix:/run/sparsed/sparsed.sock")
    parser.add_argument("--device", default="cuda" if torch.cuda.is_available() else "cpu")
    parser.add_argument("--epochs", type=int, default=100)
    for path in paths:
        parser.add_argument(f"--{path}", help="a Matrix Market file; otherwise one is generated")
    return parser.parse_args()


def read(path: str) -> sp.csr_matrix:
    """A Matrix Market file, gzipped or not."""
    return sp.csr_matrix(scipy.io.mmread(path)).astype(np.float32)


class Nodes(NamedTuple):
    """A graph whose nodes are to be told apart.

    Attributes:
        adjacency: n x n.
        x: features, n x d.
        y: classes, n.
        train: the nodes whose class may be seen.
    """

    adjacency: sp.csr_matrix
    x: torch.Tensor
    y: torch.Tensor
    train: torch.Tensor


def nodes(graph: str | None = None, features: str | None = None, classes: int = 7) -> Nodes:
    """Of files, or generated. A node's class is which of the best connected nodes is nearest to
    it."""
    adjacency = read(graph) if graph else generated(1000, classes)
    count = adjacency.shape[0]
    if features:
        x = torch.from_numpy(read(features).toarray())
    else:
        x = torch.randn(count, 64, generator=torch.Generator().manual_seed(0))
    hubs = np.argsort(-np.diff(adjacency.indptr), kind="stable")[:classes]
    distances = dijkstra(adjacency, directed=False, indices=hubs, unweighted=True)
    y = torch.from_numpy(distances.argmin(axis=0))
    x[:, :classes] += torch.from_numpy(np.exp(-distances.T)).float()  # a hint
    train = torch.rand(count, generator=torch.Generator().manual_seed(1)) < 0.3
    return Nodes(adjacency, x, y, train)


def generated(count: int, groups: int, seed: int = 0) -> sp.csr_matrix:
    """Groups with some ten neighbours inside and one outside for each node; symmetric."""
    random = np.random.default_rng(seed)
    group = random.integers(groups, size=count)
    rows = np.repeat(np.arange(count), 10)
    cols = random.integers(count, size=len(rows))
    kept = (group[rows] == group[cols]) | (random.random(len(rows)) < 0.1)
    kept &= rows != cols
    upper = sp.coo_matrix((np.ones(kept.sum()), (rows[kept], cols[kept])), shape=(count, count))
    both = sp.csr_matrix(upper + upper.T)
    both.data[:] = 1
    return both.astype(np.float32)


def train(
    model: torch.nn.Module, data: Nodes, graph: object, epochs: int, rate: float = 0.01
) -> list[float]:
    """Full batches; the losses."""
    optimizer = torch.optim.Adam(model.parameters(), lr=rate, weight_decay=5e-4)
    losses = []
    for _ in range(epochs):
        optimizer.zero_grad()
        out = model(data.x, graph)
        loss = torch.nn.functional.cross_entropy(out[data.train], data.y[data.train])
        loss.backward()
        optimizer.step()
        losses.append(loss.detach())
    return [float(loss) for loss in losses]


@torch.no_grad()
def accuracy(model: torch.nn.Module, data: Nodes, graph: object) -> float:
    """Of the nodes whose class was not seen."""
    model.eval()
    right = model(data.x, graph).argmax(dim=1) == data.y
    return float(right[~data.train].float().mean())


def main(what: str, make: Callable[[int, int], torch.nn.Module]) -> None:
    """Trains `make(features, classes)` on the graph of the command line."""
    import sparsed

    chosen = options(what, "graph", "features")
    data = nodes(chosen.graph, chosen.features)
    data = data._replace(
        **{name: getattr(data, name).to(chosen.device) for name in data._fields[1:]}
    )
    with sparsed.connect(chosen.server) as client:
        with client.temporary(data.adjacency) as g:
            torch.manual_seed(0)
            model = make(data.x.shape[1], int(data.y.max()) + 1).to(chosen.device)
            losses = train(model, data, g, chosen.epochs)
            print(f"loss {losses[0]:.3f} -> {losses[-1]:.3f}")
            print(f"accuracy on the other nodes {accuracy(model, data, g):.3f}")
