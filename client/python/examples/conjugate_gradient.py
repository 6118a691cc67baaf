"""Solves sparse symmetric positive definite systems by conjugate gradients: several right-hand
sides in step, so that each product reads the matrix once for all of them.

python conjugate_gradient.py --server unix:/run/sparsed/sparsed.sock --matrix bcsstk16.mtx.gz
"""

import common
import numpy as np
import scipy.sparse as sp

import sparsed


def laplacian(n):
    """The 5-point stencil on n x n points."""
    line = sp.diags([-1.0, 2.0, -1.0], [-1, 0, 1], shape=(n, n))
    return sp.csr_matrix(sp.kron(sp.eye(n), line) + sp.kron(line, sp.eye(n)))


def solve(a, b, diagonal, tolerance=1e-8, limit=10_000):
    """x with A x = b, and the steps that it took. Scaled by the diagonal.

    Args:
        a: n x n, symmetric, positive definite, of f64.
        b: n x K, a right-hand side each column.
        diagonal: of A, n.
    """
    x, r = np.zeros_like(b), b.copy()
    z = r / diagonal[:, None]
    p, q = z.copy(), np.empty_like(b)
    rho = (r * z).sum(axis=0)
    goal = tolerance**2 * (b * b).sum(axis=0)
    for step in range(1, limit + 1):
        a.spmm(p, out=q)
        # Of a column that is solved exactly everything is 0.
        alpha = np.divide(rho, (p * q).sum(axis=0), out=np.zeros_like(rho), where=rho > 0)
        x += alpha * p
        r -= alpha * q
        if ((r * r).sum(axis=0) <= goal).all():
            return x, step
        z = r / diagonal[:, None]
        new = (r * z).sum(axis=0)
        p = z + np.divide(new, rho, out=np.zeros_like(rho), where=rho > 0) * p
        rho = new
    raise RuntimeError(f"it does not converge in {limit} steps")


def main():
    chosen = common.options(__doc__, "matrix")
    matrix = common.read(chosen.matrix) if chosen.matrix else laplacian(64)
    matrix = matrix.astype(np.float64)
    b = np.random.default_rng(0).random((matrix.shape[0], 8))
    with sparsed.connect(chosen.server) as client:
        with client.temporary(matrix, prepare=["spmm:8"]) as a:
            x, steps = solve(a, b, matrix.diagonal())
    residual = np.linalg.norm(b - matrix @ x) / np.linalg.norm(b)
    print(f"{steps} steps for {b.shape[1]} right-hand sides, residual {residual:.1e}")


if __name__ == "__main__":
    main()
