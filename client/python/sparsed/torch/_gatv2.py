"""GATv2's scores: att . LeakyReLU(left_i + right_j) for each nonzero (i, j) and head.

For attention whose weights are kept, nnz x H: dropout changes them, and callers want them.
Otherwise scores are made and used in one pass by the server, and nothing of this is called.

The sum inside takes d numbers a nonzero and head, which no product of two matrices makes. It is
made in blocks of nonzeros that fit `BLOCK_BYTES`, and made again for the gradient, so that memory
does not grow with nnz x H x d. Time does: gathers and scatters are what this costs, as in PyG.
"""

from __future__ import annotations

from collections.abc import Iterator

import torch
from torch import Tensor
from torch.nn import functional

from sparsed.torch._graphs import Graph

# Of one array of a block; a few of them are there at a time.
BLOCK_BYTES = 32 << 20


def _blocks(graph: Graph, left: Tensor) -> Iterator[slice]:
    size = max(1, BLOCK_BYTES // max(1, left.shape[1] * left.element_size()))
    for begin in range(0, graph.nnz, size):
        yield slice(begin, min(begin + size, graph.nnz))


def scores(graph: Graph, left: Tensor, right: Tensor, att: Tensor, slope: float) -> Tensor:
    """left: M x H d, right: N x H d, att: H x d; nnz x H."""
    rows, columns = graph.ends(left.device)
    out = left.new_empty((graph.nnz, att.shape[0]))
    for block in _blocks(graph, left):
        z = left.index_select(0, rows[block]).add_(right.index_select(0, columns[block]))
        z = functional.leaky_relu_(z, slope).view(-1, *att.shape)
        out[block] = z.mul_(att).sum(-1)
    return out


def scores_gradient(
    graph: Graph, ds: Tensor, left: Tensor, right: Tensor, att: Tensor, slope: float
) -> tuple[Tensor, Tensor, Tensor]:
    """Of left, right and att. Sums of 16-bit types are in f32."""
    rows, columns = graph.ends(left.device)
    wide = torch.promote_types(left.dtype, torch.float32)
    d_left, d_right, d_att = (torch.zeros_like(one, dtype=wide) for one in (left, right, att))
    for block in _blocks(graph, left):
        z = left.index_select(0, rows[block]).add_(right.index_select(0, columns[block]))
        weight = ds[block].unsqueeze(2)
        d_z = (z > 0).to(wide).mul_(1 - slope).add_(slope).view(-1, *att.shape)
        d_z = d_z.mul_(att).mul_(weight)
        z = functional.leaky_relu_(z, slope).view(-1, *att.shape)
        d_att += (z * weight).sum(0, dtype=wide)
        d_z = d_z.view(-1, left.shape[1])
        d_left.index_add_(0, rows[block], d_z)
        d_right.index_add_(0, columns[block], d_z)
    return d_left.to(left.dtype), d_right.to(right.dtype), d_att.to(att.dtype)
