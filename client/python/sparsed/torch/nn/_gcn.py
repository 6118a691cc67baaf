from __future__ import annotations

from typing import Any

import torch
from torch import Tensor
from torch.nn import Parameter, functional

from sparsed import Matrix
from sparsed._errors import InvalidArgument, InvalidType
from sparsed.torch import _derived, _operators
from sparsed.torch._functions import _given, _prepare
from sparsed.torch._graphs import number_of
from sparsed.torch.nn import _layer


def normalize_weights(number: int, weights: Tensor) -> Tensor:
    """D^-1/2 W D^-1/2 of weights given in the call, nnz; the gradient goes through the degrees."""
    weights = _prepare(number, "edge_weight", weights)
    if weights.dim() == 1:
        weights = weights.unsqueeze(1)
    degrees = _operators.total(number, weights, False)
    with _layer.in_its_own_type(degrees):
        roots = degrees.pow(-0.5)
        roots = roots.masked_fill(roots == float("inf"), 0.0)
    scaled: Tensor = _operators.scale(number, weights, roots, roots)
    return scaled


class GCNConv(torch.nn.Module):
    """Graph convolution: D^-1/2 (A + I) D^-1/2 X W + b, as torch_geometric.nn.GCNConv.

    The normalised graph is made once and kept; `cached` changes nothing. Of S (X W) and (S X) W
    the cheaper one is computed.

    Args:
        in_channels, out_channels: columns of X, and of the result.
        improved: 2 I in the place of I, where the graph has weights. As in PyG it changes nothing
            where it has none: it was uploaded without values (or, of `Client.matrix`, all are 1).
        add_self_loops: where there are none; None: if `normalize`.
        normalize: False: A as it is.
        bias: whether there is a b.

    Parameters: lin.weight (out x in), bias (out).
    """

    def __init__(
        self,
        in_channels: int,
        out_channels: int,
        improved: bool = False,
        cached: bool = False,
        add_self_loops: bool | None = None,
        normalize: bool = True,
        bias: bool = True,
        **options: Any,
    ) -> None:
        super().__init__()
        _layer.refuse(self, options)
        _layer.sizes(self, in_channels, out_channels)
        if add_self_loops is None:
            add_self_loops = normalize
        if add_self_loops and not normalize:
            raise InvalidArgument("GCNConv adds self-loops only where it normalises")
        self.in_channels = in_channels
        self.out_channels = out_channels
        self.improved = improved
        self.cached = cached
        self.add_self_loops = add_self_loops
        self.normalize = normalize
        self.lin = _layer.GlorotLinear(in_channels, out_channels, bias=False)
        if bias:
            self.bias = Parameter(torch.empty(out_channels))
        else:
            self.register_parameter("bias", None)
        self.reset_parameters()

    def reset_parameters(self) -> None:
        self.lin.reset_parameters()
        if self.bias is not None:
            torch.nn.init.zeros_(self.bias)

    def forward(self, x: Tensor, g: Matrix, edge_weight: Tensor | None = None) -> Tensor:
        """
        Args:
            x: N x in_channels.
            g: N x N.
            edge_weight: nnz, in the place of g's values; may need a gradient. Not together with
                self-loops.

        Returns:
            N x out_channels.
        """
        if isinstance(x, (tuple, list)):
            raise InvalidType("GCNConv takes one matrix of features: it has no bipartite form")
        number = number_of(g)
        if self.normalize and edge_weight is None:
            loops = (2.0 if self.improved else 1.0) if self.add_self_loops else 0.0
            number = _derived.normalized(number, loops)
        elif self.normalize and edge_weight is not None:
            if self.add_self_loops:
                raise InvalidArgument(
                    "edge_weight and self-loops: upload a graph that has the loops, and set "
                    "add_self_loops=False; or leave the weights to the graph's values"
                )
            edge_weight = normalize_weights(number, edge_weight)
        if _layer.narrow_first(x, self.lin):
            y = _layer.spread(number, self.lin(x), edge_weight)
            return _given(y if self.bias is None else y + self.bias)
        y = _layer.spread(number, x, edge_weight)
        return functional.linear(y, self.lin.weight, self.bias)

    def __repr__(self) -> str:
        return f"{type(self).__name__}({self.in_channels}, {self.out_channels})"
