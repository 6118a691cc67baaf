"""PageRank by power iteration, with NumPy alone.

python pagerank.py --server unix:/run/sparsed/sparsed.sock --graph wiki-Vote.mtx.gz
"""

import common
import numpy as np

import sparsed


def pagerank(g, links, damping=0.85, tolerance=1e-10, steps=200):
    """The ranks of the nodes, which sum up to 1.

    Args:
        g: n x n; a nonzero (i, j) is a link from i to j. Of f64.
        links: how many each node has, n.
    """
    n = len(links)
    rank = np.full(n, 1 / n)
    for _ in range(steps):
        share = np.divide(rank, links, out=np.zeros(n), where=links > 0)
        lost = rank[links == 0].sum()  # of nodes without links: to everybody
        new = damping * (g.T @ share + lost / n) + (1 - damping) / n
        if np.abs(new - rank).sum() < tolerance:
            return new
        rank = new
    return rank


def main():
    chosen = common.options(__doc__, "graph")
    graph = common.read(chosen.graph) if chosen.graph else common.generated(1000, 5)
    with sparsed.connect(chosen.server) as client, client.temporary(graph, dtype="f64") as g:
        rank = pagerank(g, np.asarray(graph.sum(axis=1)).ravel())
    for node in np.argsort(-rank)[:5]:
        print(f"node {node}: {rank[node]:.5f}")


if __name__ == "__main__":
    main()
