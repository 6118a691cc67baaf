from __future__ import annotations

from typing import Any

import torch
from torch import Tensor
from torch.nn import functional

from sparsed import Matrix
from sparsed._errors import InvalidArgument
from sparsed.torch import _derived, _operators
from sparsed.torch._functions import _given, _prepare
from sparsed.torch._graphs import number_of
from sparsed.torch.nn import _layer
from sparsed.torch.nn._gcn import normalize_weights


class APPNP(torch.nn.Module):
    """Personalised PageRank of predictions: K times x' = (1 - alpha) S x' + alpha x, as
    torch_geometric.nn.APPNP. One request, where no edges are dropped.

    Args:
        K: how many times.
        alpha: the share of x.
        dropout: of edges, in training.
        add_self_loops, normalize: as GCNConv's.
    """

    def __init__(
        self,
        K: int,
        alpha: float,
        dropout: float = 0.0,
        cached: bool = False,
        add_self_loops: bool = True,
        normalize: bool = True,
        **options: Any,
    ) -> None:
        super().__init__()
        _layer.refuse(self, options)
        self.K = K
        self.alpha = alpha
        self.dropout = dropout
        self.cached = cached
        self.add_self_loops = add_self_loops
        self.normalize = normalize

    def reset_parameters(self) -> None:
        """It has none."""

    def forward(self, x: Tensor, g: Matrix, edge_weight: Tensor | None = None) -> Tensor:
        """
        Args:
            x: N x K.
            g: N x N.
            edge_weight: as GCNConv's.
        """
        number = number_of(g)
        if self.normalize and edge_weight is None:
            number = _derived.normalized(number, 1.0 if self.add_self_loops else 0.0)
        elif self.normalize and edge_weight is not None:
            if self.add_self_loops:
                raise InvalidArgument(
                    "edge_weight and self-loops: upload a graph that has the loops, and set "
                    "add_self_loops=False; or leave the weights to the graph's values"
                )
            edge_weight = normalize_weights(number, edge_weight)
        x = _prepare(number, "x", x)
        drops = self.dropout > 0 and self.training
        if edge_weight is None and not drops:
            if self.K == 0:
                return _given(x)
            factors, shares = [1.0 - self.alpha] * self.K, [self.alpha] * self.K
            return _given(_operators.propagate(number, x, factors, shares, False))
        if edge_weight is None:
            edge_weight = _operators.own_values(number, x.detach())
        y = x
        for _ in range(self.K):
            dropped = functional.dropout(edge_weight, self.dropout) if drops else edge_weight
            y = (1 - self.alpha) * _layer.spread(number, y, dropped) + self.alpha * x
        return _given(y)

    def __repr__(self) -> str:
        return f"{type(self).__name__}(K={self.K}, alpha={self.alpha})"
