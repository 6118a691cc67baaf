"""A matrix's transpose, as a view."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

import numpy as np

from sparsed import _types
from sparsed._errors import InvalidType
from sparsed._handle import MatrixHandle

if TYPE_CHECKING:
    from sparsed import aio
    from sparsed._matrix import Matrix


class TransposedView:
    """What S^T of a matrix is called and how large it is, whoever multiplies by it."""

    _matrix: Matrix | aio.Matrix

    @property
    def shape(self) -> tuple[int, int]:
        """(N, M)."""
        rows, cols = self._matrix.shape
        return cols, rows

    @property
    def nnz(self) -> int:
        """As of S."""
        return self._matrix.nnz

    @property
    def dtype(self) -> np.dtype[Any]:
        """As of S."""
        return self._matrix.dtype

    @property
    def name(self) -> str:
        """As of S."""
        return self._matrix.name

    def __repr__(self) -> str:
        return f"{self._matrix!r}.T"


class Transposed(TransposedView):
    """A view of S^T of a matrix on a server, for products: `Matrix.T`."""

    _matrix: Matrix
    __array_ufunc__ = None
    __array_priority__ = 1000

    def __init__(self, matrix: Matrix) -> None:
        self._matrix = matrix

    @property
    def T(self) -> Matrix:
        """S itself."""
        return self._matrix

    def spmm(self, x: Any, *, transpose: bool = False, **options: Any) -> Any:
        """S^T @ x: `Matrix.spmm`, transposed."""
        return self._matrix.spmm(x, transpose=not transpose, **options)

    def spgemm(self, other: Any, *, transpose: bool = False, **options: Any) -> Any:
        """S^T @ other: `Matrix.spgemm`, transposed."""
        return self._matrix.spgemm(other, transpose=not transpose, **options)

    def matvec(self, x: Any) -> Any:
        """S^T @ x."""
        return self._matrix.rmatvec(x)

    def rmatvec(self, x: Any) -> Any:
        """S @ x."""
        return self._matrix.matvec(x)

    def matmat(self, x: Any) -> Any:
        """S^T @ x."""
        return self._matrix.rmatmat(x)

    def rmatmat(self, x: Any) -> Any:
        """S @ x."""
        return self._matrix.matmat(x)

    def __matmul__(self, other: Any) -> Any:
        return self.spgemm(other) if is_sparse(other) else self.spmm(other)

    def __rmatmul__(self, other: Any) -> Any:
        return row_times(other, self._matrix)


def is_sparse(x: Any) -> bool:
    if isinstance(x, (MatrixHandle, Transposed)) or hasattr(x, "tocsr"):
        return True
    torch = _types.torch()
    return torch is not None and isinstance(x, torch.Tensor) and x.layout is not torch.strided


def row_times(x: Any, transposed: Matrix | Transposed) -> Any:
    """x @ S as (S^T @ x^T)^T."""
    if hasattr(x, "tocsr"):
        raise InvalidType("sparse @ Matrix: upload the left one, too, and use spgemm")
    if not hasattr(x, "T"):
        x = np.asarray(x)
    return (transposed @ x.T).T
