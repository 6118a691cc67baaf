"""Spectral embedding: coordinates of nodes from the first eigenvectors of the graph's Laplacian, by
SciPy's solvers. Of a graph in several components, of the largest one.

python spectral_embedding.py --server unix:/run/sparsed/sparsed.sock --graph ca-CondMat.mtx.gz
"""

import common
import numpy as np
from scipy.sparse import csr_matrix
from scipy.sparse.csgraph import connected_components
from scipy.sparse.linalg import LinearOperator, aslinearoperator, eigsh

import sparsed


def largest_component(graph):
    """The part of a symmetric graph with the most nodes that are connected, and which these are.

    Each component has the eigenvalue 1 for itself. Of several, the first eigenvectors say which
    component a node is in and no more, and a solver that looks for the first few of hundreds of
    equal eigenvalues hardly ever ends.
    """
    _, component = connected_components(graph, directed=False)
    nodes = np.flatnonzero(component == np.bincount(component).argmax())
    return csr_matrix(graph[nodes][:, nodes]), nodes


def embedding(g, degrees, dimensions=2):
    """n x dimensions: eigenvectors of D^-1/2 A D^-1/2 behind the first, and all eigenvalues.

    Args:
        g: n x n, symmetric, connected, of f64.
        degrees: what its rows add up to.
    """
    a = aslinearoperator(g)
    roots = np.divide(1, np.sqrt(degrees), out=np.zeros(len(degrees)), where=degrees > 0)
    normalized = LinearOperator(
        a.shape, matvec=lambda x: roots * a.matvec(roots * x.ravel()), dtype=np.float64
    )
    start = np.random.default_rng(0).random(len(degrees))
    values, vectors = eigsh(normalized, k=dimensions + 1, which="LA", v0=start)
    order = np.argsort(-values)
    return vectors[:, order[1:]], values[order]


def main():
    chosen = common.options(__doc__, "graph")
    graph = common.read(chosen.graph) if chosen.graph else common.generated(1000, 3)
    graph, nodes = largest_component(graph.astype(np.float64))
    with sparsed.connect(chosen.server) as client, client.temporary(graph) as g:
        points, values = embedding(g, np.asarray(graph.sum(axis=1)).ravel())
    print(f"{len(nodes)} connected nodes; the first ones are {nodes[:5].tolist()}")
    print("eigenvalues", np.round(values, 4))
    print("where these are", np.round(points[:5], 4).tolist())


if __name__ == "__main__":
    main()
