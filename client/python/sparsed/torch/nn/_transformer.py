from __future__ import annotations

import math
from typing import Any

import torch
from torch import Tensor
from torch.nn import functional

from sparsed import Matrix, _native
from sparsed._errors import InvalidArgument
from sparsed.torch import _attention, _operators
from sparsed.torch._functions import _given, _prepare
from sparsed.torch._graphs import number_of
from sparsed.torch.nn import _layer


class TransformerConv(torch.nn.Module):
    """Dot product attention along edges, as torch_geometric.nn.TransformerConv. The graph's values
    do not count.

    One pass over the graph, and one for the gradient, with nothing of nnz x heads in memory; but
    with dropout of weights, and where they are wanted, they are kept, nnz x heads.

    Args:
        in_channels: columns of X; a pair for sources and targets of a bipartite graph.
        out_channels: of each head.
        heads: how many.
        concat: heads side by side; False: their mean.
        beta: a gate between neighbours and the node itself.
        dropout: of weights, in training.
        bias: of all linear maps.
        root_weight: False: no W_skip x_i, and no gate.

    Parameters: lin_key, lin_query, lin_value, lin_skip (weight and bias); lin_beta.weight if
    `beta`.
    """

    lin_beta: torch.nn.Linear | None

    def __init__(
        self,
        in_channels: int | tuple[int, int],
        out_channels: int,
        heads: int = 1,
        concat: bool = True,
        beta: bool = False,
        dropout: float = 0.0,
        edge_dim: int | None = None,
        bias: bool = True,
        root_weight: bool = True,
        **options: Any,
    ) -> None:
        super().__init__()
        _layer.refuse(self, options)
        sources, targets = _layer.pair(in_channels)
        _layer.sizes(self, sources, targets, out_channels, heads)
        if edge_dim is not None:
            raise InvalidArgument("TransformerConv knows no edge features: edge_dim has to be None")
        self.in_channels = in_channels
        self.out_channels = out_channels
        self.heads = heads
        self.concat = concat
        self.beta = beta and root_weight
        self.dropout = dropout
        self.root_weight = root_weight
        width = heads * out_channels
        self.lin_key = torch.nn.Linear(sources, width, bias=bias)
        self.lin_query = torch.nn.Linear(targets, width, bias=bias)
        self.lin_value = torch.nn.Linear(sources, width, bias=bias)
        self.register_parameter("lin_edge", None)
        end = width if concat else out_channels
        self.lin_skip = torch.nn.Linear(targets, end, bias=bias)
        if self.beta:
            self.lin_beta = torch.nn.Linear(3 * end, 1, bias=False)
        else:
            self.register_parameter("lin_beta", None)

    def reset_parameters(self) -> None:
        for layer in self.children():
            layer.reset_parameters()  # type: ignore[operator]

    def forward(
        self,
        x: Tensor | tuple[Tensor, Tensor],
        g: Matrix,
        return_attention_weights: bool | None = None,
    ) -> Any:
        """
        Args:
            x: N x in_channels; or that of the sources, N rows, and of the targets, M rows.
            g: M x N.
            return_attention_weights: the weights, too.

        Returns:
            M x (heads out_channels), or M x out_channels without `concat`; with weights also
            (edge_index, weights), nnz x heads.
        """
        number = number_of(g)
        sources, targets = (x, x) if isinstance(x, Tensor) else x
        q = _prepare(number, "x", self.lin_query(targets))
        k = _prepare(number, "x", self.lin_key(sources))
        v = _prepare(number, "x", self.lin_value(sources))
        scale = 1.0 / math.sqrt(self.out_channels)
        drops = self.dropout > 0 and self.training
        alpha = None
        if drops or return_attention_weights is not None:
            scores = _operators.sddmm(number, q, k, None, True, self.heads)
            alpha = _operators.softmax(number, scores, scale)
            dropped = functional.dropout(alpha, self.dropout, training=drops)
            out = _operators.spmm(number, v, dropped, False, False, False)
        else:
            out = _attention.attention(
                number, q, k, v, None, None, _native.DOT, self.heads, scale
            )[0]
        out = _given(out)  # of one type with lin_skip's
        if not self.concat and self.heads > 1:
            out = out.view(-1, self.heads, self.out_channels).mean(dim=1)
        if self.root_weight:
            out = self._with_root(out, self.lin_skip(targets))
        if alpha is not None and return_attention_weights is not None:
            return out, (_operators.edge_index(number, alpha.detach()), alpha)
        return out

    def _with_root(self, out: Tensor, root: Tensor) -> Tensor:
        if self.lin_beta is None:
            return out + root
        gate: Tensor = self.lin_beta(torch.cat((out, root, out - root), dim=-1)).sigmoid()
        return gate * root + (1 - gate) * out

    def __repr__(self) -> str:
        return f"{type(self).__name__}({self.in_channels}, {self.out_channels}, heads={self.heads})"
