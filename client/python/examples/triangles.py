"""Counts a graph's triangles: each edge's common neighbours, by a masked product of the graph with
itself.

python triangles.py --server unix:/run/sparsed/sparsed.sock --graph facebook_combined.mtx.gz
"""

import common
import scipy.sparse as sp

import sparsed


def triangles(client, graph):
    """
    Args:
        graph: a symmetric SciPy matrix without a diagonal.
    """
    # L L at the positions of L: each triangle's corners in one order alone.
    lower = sp.csr_matrix(sp.tril(graph, -1))
    with client.temporary(lower) as g:
        return int(g.spgemm(g, mask=g, semiring="plus-pair").sum())


def main():
    chosen = common.options(__doc__, "graph")
    graph = common.read(chosen.graph) if chosen.graph else common.generated(1000, 5)
    with sparsed.connect(chosen.server) as client:
        print(f"{triangles(client, graph)} triangles")


if __name__ == "__main__":
    main()
