"""Spectral embedding: coordinates of nodes from the first eigenvectors of the graph's Laplacian, by
SciPy's solvers.

python spectral_embedding.py --server unix:/run/sparsed/sparsed.sock --graph ca-CondMat.mtx.gz
"""

import common
import numpy as np
from scipy.sparse.linalg import LinearOperator, aslinearoperator, eigsh

import sparsed


def embedding(g, degrees, dimensions=2):
    """n x dimensions: eigenvectors of D^-1/2 A D^-1/2 behind the first, and all eigenvalues.

    Args:
        g: n x n, symmetric, of f64.
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
    with sparsed.connect(chosen.server) as client, client.temporary(graph, dtype="f64") as g:
        points, values = embedding(g, np.asarray(graph.sum(axis=1)).ravel())
    print("eigenvalues", np.round(values, 4))
    print("the first nodes", np.round(points[:5], 4).tolist())


if __name__ == "__main__":
    main()
