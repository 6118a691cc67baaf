"""What is wrong with a tensor, said before the library is asked. Run for fake tensors, too."""

from __future__ import annotations

import torch
from torch import Tensor

from sparsed._errors import InvalidArgument, InvalidType
from sparsed.torch._graphs import Graph


def _shape(tensor: Tensor) -> str:
    return " x ".join(str(size) for size in tensor.shape) or "a scalar"


def _name(graph: Graph) -> str:
    return f"{graph.matrix().name!r} ({graph.rows} x {graph.cols}, {graph.nnz} nonzeros)"


def dense(graph: Graph, what: str, x: Tensor, rows: int) -> None:
    """`x` is rows x K of the graph's type."""
    shape = x.shape
    if len(shape) != 2 or shape[0] != rows:
        raise InvalidArgument(f"{what} is {_shape(x)}, expected {rows} x K for {_name(graph)}")
    if x.dtype != graph.dtype:
        raise InvalidType(
            f"{what} is {x.dtype} and the matrix {_name(graph)} {graph.dtype}: convert one of them"
        )
    if x.layout is not torch.strided:
        raise InvalidType(f"{what} is sparse ({x.layout}), expected a dense tensor")


def same(what: str, x: Tensor, other: str, y: Tensor) -> None:
    """`x` and `y` are on one device, and equally wide."""
    on_one_device(what, x, other, y)
    if x.shape[1] != y.shape[1]:
        raise InvalidArgument(
            f"{what} has {x.shape[1]} columns and {other} {y.shape[1]}, expected as many"
        )


def on_one_device(what: str, x: Tensor, other: str, y: Tensor) -> None:
    if x.device != y.device:
        raise InvalidArgument(f"{what} is on {x.device} and {other} on {y.device}")


def values(graph: Graph, what: str, values: Tensor | None, x: Tensor, width: int) -> None:
    """`values` are nnz, or nnz x H with H a divisor of `width`, where `x` is."""
    if values is None:
        return
    if values.dim() not in (1, 2) or values.shape[0] != graph.nnz:
        raise InvalidArgument(
            f"{what} are {_shape(values)}, expected {graph.nnz} or {graph.nnz} x H for "
            f"{_name(graph)}"
        )
    if values.dim() == 2 and (values.shape[1] == 0 or width % values.shape[1] != 0):
        raise InvalidArgument(
            f"{what} are of {values.shape[1]} heads, and {width} columns cannot be shared out "
            "among them"
        )
    dense(graph, what, values if values.dim() == 2 else values.unsqueeze(1), graph.nnz)
    on_one_device(what, values, "the other operand", x)


def heads(what: str, width: int, heads: int) -> None:
    if heads < 1:
        raise InvalidArgument(f"{what} is of {heads} heads, expected 1 or more")
    if width % heads != 0:
        raise InvalidArgument(
            f"{what} has {width} columns, which cannot be shared out among {heads} heads"
        )
