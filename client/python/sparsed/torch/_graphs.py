"""What operators know of a matrix.

An operator takes its graph as an integer, the graph's number, which torch.compile can put into a
program. The number stands for the matrix for as long as the `sparsed.Matrix` lives; a program that
is used after that gets an exception.
"""

from __future__ import annotations

import weakref
from collections.abc import Callable
from typing import ParamSpec, TypeVar

import numpy as np
import torch
from torch import Tensor

from sparsed import Csr, Matrix
from sparsed._errors import FailedPrecondition, InvalidType
from sparsed._handle import by_number

Arguments = ParamSpec("Arguments")
Result = TypeVar("Result")

_DTYPES = {
    "f32": torch.float32,
    "f64": torch.float64,
    "f16": torch.float16,
    "bf16": torch.bfloat16,
}


class Pattern:
    """Where the nonzeros are, in the order of the matrix's values, and what these were.

    Attributes:
        shape: (rows, columns) of the matrix.
        rows, columns: of each nonzero, int32.
        values: as float64, nnz.
        weighted: whether these are weights, not the ones that stand for none; of a matrix by its
            name, whether there are others than ones.
    """

    __slots__ = ("columns", "rows", "shape", "values", "weighted")

    def __init__(self, matrix: Matrix) -> None:
        csr = matrix.download()
        if isinstance(csr, Csr):
            offsets, columns, values = csr.row_offsets, csr.column_indices, csr.values
        else:  # SciPy's
            offsets, columns, values = csr.indptr, csr.indices, csr.data
        self.shape: tuple[int, int] = csr.shape
        self.rows = np.repeat(np.arange(csr.shape[0], dtype=np.int32), np.diff(offsets))
        self.columns = np.asarray(columns, np.int32)
        self.values = np.ones(len(columns)) if values is None else np.asarray(values, np.float64)
        known = matrix._weighted
        self.weighted = bool((self.values != 1).any()) if known is None else known


class Graph:
    """Of one matrix, which owns it.

    Attributes:
        number: what operators are given.
        rows, cols, nnz, dtype: of the matrix.
        symmetric: S^T is known to be S, values included.
        derived: matrices made of this one, by what they are, which live as long as it.
        restore: makes the matrix again on the server, with `stale_only` if it is stale; None: only
            who uploaded it can.
        stale: the matrix that it was made of has other values now: restore it before its use.
    """

    __slots__ = (
        "__weakref__",
        "_matrix",
        "_tensors",
        "cols",
        "derived",
        "dtype",
        "nnz",
        "number",
        "restore",
        "rows",
        "stale",
        "symmetric",
    )

    def __init__(self, matrix: Matrix) -> None:
        self.number = matrix._number
        self.rows, self.cols = matrix.shape
        self.nnz = int(matrix.nnz)
        self.dtype = _DTYPES[matrix.type]
        self.symmetric = False
        self.derived: dict[object, Matrix] = {}
        self.restore: Callable[..., None] | None = None
        self.stale = False
        self._matrix = weakref.ref(matrix)
        self._tensors: dict[object, Tensor] = {}

    def matrix(self) -> Matrix:
        matrix = self._matrix()
        if matrix is None:
            raise _released()
        return matrix

    def use(self, matrix: Matrix) -> None:
        """From now on this graph is that matrix, of the same pattern and type."""
        matrix._torch = self
        self._matrix = weakref.ref(matrix)

    def values_changed(self) -> None:
        """The matrix has got other values."""
        for key, matrix in self.derived.items():
            if isinstance(key, tuple):  # others are made of the pattern alone
                graph_of(matrix).stale = True

    def refresh(self) -> None:
        """Makes the matrix again if it is stale: before anything is asked of it."""
        if self.stale and self.restore is not None:
            self.restore(stale_only=True)

    def ends(self, device: torch.device) -> tuple[Tensor, Tensor]:
        """The row and the column of each nonzero, int32, on that device. Downloaded once."""
        rows, columns = self._tensors.get(("rows", device)), self._tensors.get(("columns", device))
        if rows is None or columns is None:
            pattern = Pattern(self.matrix())
            rows, columns = (
                torch.from_numpy(one).to(device) for one in (pattern.rows, pattern.columns)
            )
            self._keep(("rows", device), rows)
            self._keep(("columns", device), columns)
        return rows, columns

    def inverse_counts(self, like: Tensor, transpose: bool) -> Tensor:
        """One over the number of nonzeros of each row (transpose: column), 0 of none; M x 1."""
        key = ("inverse counts", like.device, like.dtype, transpose)
        found = self._tensors.get(key)
        if found is None:
            ends = self.ends(like.device)[1 if transpose else 0]
            counts = torch.bincount(ends, minlength=self.cols if transpose else self.rows)
            found = torch.where(counts > 0, 1.0 / counts.double(), 0.0).to(like.dtype).unsqueeze(1)
            self._keep(key, found)
        return found

    def ones(self, like: Tensor) -> Tensor:
        """nnz x 1."""
        key = ("ones", like.device, like.dtype)
        found = self._tensors.get(key)
        if found is None:
            found = torch.ones((self.nnz, 1), dtype=like.dtype, device=like.device)
            self._keep(key, found)
        return found

    def _keep(self, key: object, tensor: Tensor) -> None:
        """For later calls, in whatever stream they are: it has to be there. Not what a CUDA graph
        makes, which is there while the graph runs."""
        if tensor.is_cuda:
            if torch.cuda.is_current_stream_capturing():
                return
            torch.cuda.current_stream(tensor.device).synchronize()
        self._tensors[key] = tensor


_graphs: dict[int, weakref.ref[Graph]] = {}


def find(number: int) -> Graph:
    """What operators know of the matrix of that number."""
    reference = _graphs.get(number)
    graph = None if reference is None else reference()
    if graph is None:
        matrix = by_number.get(number)
        if not isinstance(matrix, Matrix):
            raise _released()
        graph = graph_of(matrix)
    return graph


def graph_of(matrix: Matrix) -> Graph:
    graph: Graph | None = matrix._torch
    if graph is None:
        graph = matrix._torch = Graph(matrix)
        number = graph.number
        _graphs[number] = weakref.ref(graph, lambda _: _graphs.pop(number, None))
    return graph


def number_of(matrix: Matrix) -> int:
    """The number that stands for the matrix in operators. torch.compile makes it a condition of its
    program."""
    if not isinstance(matrix, Matrix):
        raise InvalidType(
            f"a graph is a sparsed.Matrix, not a {type(matrix).__name__}: "
            "client.upload(name, ...) or client.matrix(name) gives one"
        )
    # A string is a constant to torch.compile, which would take a number that has been another one
    # before for a variable.
    return int(matrix._number_text)


def _released() -> FailedPrecondition:
    return FailedPrecondition(
        "the graph of this operator is no more: keep the sparsed.Matrix for as long as compiled "
        "programs and backward passes use it"
    )


def constant(function: Callable[Arguments, Result]) -> Callable[Arguments, Result]:
    """A function that torch.compile calls once, and whose result it takes for a constant."""
    assume: Callable[..., Callable[Arguments, Result]] = torch.compiler.assume_constant_result
    return assume(function)
