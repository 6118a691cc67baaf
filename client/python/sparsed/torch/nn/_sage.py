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


class SAGEConv(torch.nn.Module):
    """GraphSAGE: W_r x_i + W_l mean_j x_j + b, as torch_geometric.nn.SAGEConv.

    The graph's values do not count.

    Args:
        in_channels: columns of X; a pair for sources and targets of a bipartite graph.
        aggr: "mean", "sum" ("add"), "max" or "min".
        normalize: divide each row of the result by its norm.
        root_weight: False: no W_r x_i.
        project: x_j becomes relu(W x_j + b) first.
        bias: whether there is a b.

    Parameters: lin_l.weight, lin_l.bias, lin_r.weight; lin.weight, lin.bias if `project`.
    """

    def __init__(
        self,
        in_channels: int | tuple[int, int],
        out_channels: int,
        aggr: str | None = "mean",
        normalize: bool = False,
        root_weight: bool = True,
        project: bool = False,
        bias: bool = True,
        **options: Any,
    ) -> None:
        super().__init__()
        _layer.refuse(self, options)
        sources, targets = _layer.pair(in_channels)
        _layer.sizes(self, sources, targets, out_channels)
        if aggr not in ("mean", "sum", "add", "max", "min"):
            raise InvalidArgument(f"aggr is {aggr!r}, expected 'mean', 'sum', 'max' or 'min'")
        self.in_channels = in_channels
        self.out_channels = out_channels
        self.aggr = aggr
        self.normalize = normalize
        self.root_weight = root_weight
        self.project = project
        if project:
            self.lin = torch.nn.Linear(sources, sources)
        self.lin_l = torch.nn.Linear(sources, out_channels, bias=bias)
        if root_weight:
            self.lin_r = torch.nn.Linear(targets, out_channels, bias=False)

    def reset_parameters(self) -> None:
        for layer in self.children():
            layer.reset_parameters()  # type: ignore[operator]

    def forward(self, x: Tensor | tuple[Tensor, Tensor | None], g: Matrix) -> Tensor:
        """
        Args:
            x: N x in_channels; or that of the sources, N rows, and of the targets, M rows or None.
            g: M x N.

        Returns:
            M x out_channels.
        """
        sources, targets = (x, x) if isinstance(x, Tensor) else x
        if self.project:
            sources = self.lin(sources).relu()
        out = self._neighbours(sources, number_of(g))
        if self.root_weight and targets is not None:
            out = out + self.lin_r(targets)
        return _given(functional.normalize(out, p=2.0, dim=-1) if self.normalize else out)

    def _neighbours(self, x: Tensor, number: int) -> Tensor:
        if self.aggr in ("max", "min"):
            x = _prepare(number, "x", x)
            best = _operators.spmm_best(number, x, None, self.aggr == "min", False, True)[0]
            y: Tensor = self.lin_l(best)
            return y
        average = self.aggr == "mean"
        number = _derived.averaged(number) if average else _derived.unweighted(number)
        if _layer.narrow_first(x, self.lin_l):
            y = _layer.spread(number, functional.linear(x, self.lin_l.weight))
            return y if self.lin_l.bias is None else y + self.lin_l.bias
        y = self.lin_l(_layer.spread(number, x))
        return y

    def __repr__(self) -> str:
        return f"{type(self).__name__}({self.in_channels}, {self.out_channels}, aggr={self.aggr})"
