from __future__ import annotations

from typing import Any

import torch
from torch import Tensor
from torch.nn import Parameter, functional

from sparsed import Matrix, _native
from sparsed._errors import InvalidArgument
from sparsed.torch import _attention, _derived, _operators
from sparsed.torch._functions import _given, _prepare
from sparsed.torch._graphs import number_of
from sparsed.torch.nn import _layer

Features = Tensor | tuple[Tensor, Tensor | None]


class _Attention(torch.nn.Module):
    """What GAT and GATv2 share: self-loops, softmax, dropout, the weighted sum, and its end."""

    res: torch.nn.Linear | None
    bias: Parameter | None

    def __init__(
        self,
        in_channels: int | tuple[int, int],
        out_channels: int,
        heads: int,
        concat: bool,
        negative_slope: float,
        dropout: float,
        add_self_loops: bool,
        edge_dim: int | None,
        residual: bool,
        options: dict[str, Any],
    ) -> None:
        super().__init__()
        options.pop("fill_value", None)  # of self-loops' edge features: there are none
        _layer.refuse(self, options)
        _layer.sizes(self, *_layer.pair(in_channels), out_channels, heads, edge_dim)
        if edge_dim is not None and add_self_loops:
            raise InvalidArgument(
                f"{type(self).__name__} with edge_dim and add_self_loops: loops would have no edge "
                "features; upload a graph that has them, and set add_self_loops=False"
            )
        if negative_slope < 0:
            raise InvalidArgument(f"negative_slope is {negative_slope}, expected 0 or more")
        self.in_channels = in_channels
        self.out_channels = out_channels
        self.heads = heads
        self.concat = concat
        self.negative_slope = negative_slope
        self.dropout = dropout
        self.add_self_loops = add_self_loops
        self.edge_dim = edge_dim
        self.residual = residual

    def _make_end(self, targets: int, bias: bool) -> None:
        width = self.out_channels * (self.heads if self.concat else 1)
        if self.residual:
            self.res = _layer.GlorotLinear(targets, width, bias=False)
        else:
            self.register_parameter("res", None)
        if bias:
            self.bias = Parameter(torch.empty(width))
        else:
            self.register_parameter("bias", None)

    def _reset_end(self) -> None:
        if self.res is not None:
            self.res.reset_parameters()
        if self.bias is not None:
            torch.nn.init.zeros_(self.bias)

    def _graph(self, g: Matrix) -> int:
        number = number_of(g)
        return _derived.with_loops(number) if self.add_self_loops else number

    def _weighted(self, number: int, scores: Tensor, x: Tensor) -> tuple[Tensor, Tensor]:
        """The weights and their sums of x, N x (heads out_channels), from scores before the
        softmax, nnz x heads."""
        alpha = _operators.softmax(number, scores, 1.0)
        if self.dropout > 0 and self.training:
            alpha = functional.dropout(alpha, self.dropout)
        return _operators.spmm(number, x, alpha, False, False, False), alpha

    def _finish(
        self,
        number: int,
        out: Tensor,
        alpha: Tensor | None,
        targets: Tensor | None,
    ) -> Any:
        """`alpha`: the weights, if they are wanted."""
        if not self.concat and self.heads > 1:
            out = out.view(-1, self.heads, self.out_channels).mean(dim=1)
        if self.res is not None and targets is not None:
            out = out + self.res(targets)
        if self.bias is not None:
            out = out + self.bias
        out = _given(out)
        if alpha is not None:
            return out, (_operators.edge_index(number, alpha.detach()), alpha)
        return out

    def __repr__(self) -> str:
        return f"{type(self).__name__}({self.in_channels}, {self.out_channels}, heads={self.heads})"


def _edge_features(edge_attr: Tensor) -> Tensor:
    return edge_attr.unsqueeze(1) if edge_attr.dim() == 1 else edge_attr


# Of nodes: see GATConv._scores. With few of them the host's time counts more than the GPU's.
_ROWS_OF_A_BLOCK = 512
_FEW_NODES = 32768


class GATConv(_Attention):
    """Graph attention: weights softmax_j LeakyReLU(a_l . W x_j + a_r . W x_i), as
    torch_geometric.nn.GATConv. The graph's values do not count.

    One pass over the graph, and one for the gradient, with nothing of nnz x heads in memory; but
    with dropout of weights, edge features, and where weights are wanted, they are kept, nnz x
    heads.

    Args:
        in_channels: columns of X; a pair for sources and targets of a bipartite graph.
        out_channels: of each head.
        heads: how many.
        concat: heads side by side; False: their mean.
        negative_slope: LeakyReLU's.
        dropout: of weights, in training.
        add_self_loops: in the place of those that there are.
        edge_dim: columns of edge features, without self-loops.
        bias, residual: as PyG's.
        options: PyG's fill_value, of self-loops' edge features, changes nothing.

    Parameters: lin.weight (lin_src.weight and lin_dst.weight of a pair), att_src, att_dst, bias;
    lin_edge.weight and att_edge with edge_dim; res.weight if `residual`.
    """

    lin: torch.nn.Linear | None

    def __init__(
        self,
        in_channels: int | tuple[int, int],
        out_channels: int,
        heads: int = 1,
        concat: bool = True,
        negative_slope: float = 0.2,
        dropout: float = 0.0,
        add_self_loops: bool = True,
        edge_dim: int | None = None,
        bias: bool = True,
        residual: bool = False,
        **options: Any,
    ) -> None:
        super().__init__(
            in_channels, out_channels, heads, concat, negative_slope, dropout, add_self_loops,
            edge_dim, residual, options,
        )  # fmt: skip
        width = heads * out_channels
        sources, targets = _layer.pair(in_channels)
        self.lin = self.lin_src = self.lin_dst = None
        if isinstance(in_channels, int):
            self.lin = _layer.GlorotLinear(sources, width, bias=False)
        else:
            self.lin_src = _layer.GlorotLinear(sources, width, bias=False)
            self.lin_dst = _layer.GlorotLinear(targets, width, bias=False)
        self.att_src = Parameter(torch.empty(1, heads, out_channels))
        self.att_dst = Parameter(torch.empty(1, heads, out_channels))
        self.lin_edge = None
        if edge_dim is not None:
            self.lin_edge = _layer.GlorotLinear(edge_dim, width, bias=False)
            self.att_edge = Parameter(torch.empty(1, heads, out_channels))
        else:
            self.register_parameter("att_edge", None)
        self._make_end(targets, bias)
        self.reset_parameters()

    def reset_parameters(self) -> None:
        for lin in (self.lin, self.lin_src, self.lin_dst, self.lin_edge):
            if lin is not None:
                lin.reset_parameters()
        for att in (self.att_src, self.att_dst, self.att_edge):
            if att is not None:
                _layer.glorot(att)
        self._reset_end()

    def forward(
        self,
        x: Features,
        g: Matrix,
        edge_attr: Tensor | None = None,
        return_attention_weights: bool | None = None,
    ) -> Any:
        """
        Args:
            x: N x in_channels; or that of the sources, N rows, and of the targets, M rows or None.
            g: M x N.
            edge_attr: nnz x edge_dim.
            return_attention_weights: the weights, too.

        Returns:
            M x (heads out_channels), or M x out_channels without `concat`; with weights also
            (edge_index, weights) of the graph with its self-loops, nnz x heads.
        """
        number = self._graph(g)
        h, scores_of_targets, targets = self._transform(number, x)
        if scores_of_targets is None:
            with _layer.in_its_own_type(h):
                scores_of_sources, scores_of_targets = self._scores(h)
        else:
            scores_of_sources = self._scores_of(self.att_src, h)
        drops = self.dropout > 0 and self.training
        if (
            not drops
            and not return_attention_weights
            and (self.lin_edge is None or edge_attr is None)
        ):
            out = _attention.attention(
                number, scores_of_targets, scores_of_sources, h, None, None, _native.ADD,
                self.heads, self.negative_slope,
            )[0]  # fmt: skip
            return self._finish(number, out, None, targets)
        scores = _operators.edge_add(number, scores_of_targets, scores_of_sources)
        if self.lin_edge is not None and edge_attr is not None:
            # (e W) . a is e (W a): nothing of nnz x heads x out_channels.
            by_head = self.lin_edge.weight.view(self.heads, self.out_channels, -1)
            weight = (by_head * self.att_edge[0].unsqueeze(2)).sum(1)
            more = functional.linear(_edge_features(edge_attr), weight)
            scores = scores + _prepare(number, "edge_attr", more)
        scores = functional.leaky_relu(scores, self.negative_slope, inplace=True)
        out, alpha = self._weighted(number, scores, h)
        return self._finish(number, out, alpha if return_attention_weights else None, targets)

    def _transform(self, number: int, x: Features) -> tuple[Tensor, Tensor | None, Tensor | None]:
        """Sources' features, targets' scores if they are apart, and what `res` takes."""
        of_sources = self.lin if self.lin is not None else self.lin_src
        of_targets = self.lin if self.lin is not None else self.lin_dst
        assert of_sources is not None and of_targets is not None
        sources, targets = (x, x) if isinstance(x, Tensor) else x
        h = _prepare(number, "x", of_sources(sources))
        if isinstance(x, Tensor) and self.lin is not None:
            return h, None, targets
        if targets is None:
            return h, h.new_zeros((_operators.sizes(number)[0], self.heads)), None
        d = _prepare(number, "x", of_targets(targets))
        return h, self._scores_of(self.att_dst, d), targets

    def _scores_of(self, att: Tensor, h: Tensor) -> Tensor:
        """One end's."""
        with _layer.in_its_own_type(h):
            by_head = h.view(-1, self.heads, self.out_channels)
            return (by_head * att.to(h.dtype)).sum(-1)

    def _scores(self, h: Tensor) -> tuple[Tensor, Tensor]:
        """Sources' and targets', by one product that reads h once.

        Of many nodes in blocks of rows: the gradient of the weights is a product over all nodes of
        which so few numbers come out that it would keep a fraction of a GPU busy; of blocks it is
        many.
        """
        both = torch.stack((self.att_src[0], self.att_dst[0]), 2).to(h.dtype)
        if h.shape[0] < _FEW_NODES:
            by_head = h.view(-1, self.heads, self.out_channels).transpose(0, 1)
            # Of each end without gaps, by one copy.
            left, right = torch.bmm(by_head, both).permute(2, 1, 0).contiguous().unbind()
            return left, right
        one_head = torch.eye(self.heads, dtype=h.dtype, device=h.device)
        weights = (both.unsqueeze(3) * one_head.view(self.heads, 1, 1, -1)).flatten(0, 1).flatten(1)
        blocks = h.shape[0] // _ROWS_OF_A_BLOCK
        whole, rest = h.tensor_split([blocks * _ROWS_OF_A_BLOCK])
        scores = torch.mm(rest, weights)
        if blocks > 0:
            of_blocks = torch.bmm(
                whole.view(blocks, _ROWS_OF_A_BLOCK, -1), weights.expand(blocks, -1, -1)
            )
            scores = torch.cat((of_blocks.flatten(0, 1), scores))
        left, right = scores.tensor_split(2, 1)
        return left, right


class GATv2Conv(_Attention):
    """Graph attention with weights softmax_j a . LeakyReLU(W_l x_j + W_r x_i), as
    torch_geometric.nn.GATv2Conv. The graph's values do not count.

    One pass over the graph, and one for the gradient, with nothing of nnz x heads in memory. With
    dropout of weights, and where weights are wanted, they are kept, nnz x heads, and the LeakyReLU
    inside, which takes nnz x heads x out_channels numbers, is made in blocks, and again for the
    gradient: time is about PyG's then. Its gradient has none itself.

    Args: as GATConv's. share_weights: one W for both ends.

    Parameters: lin_l, lin_r (weight and bias), att, bias; res.weight if `residual`.
    """

    def __init__(
        self,
        in_channels: int | tuple[int, int],
        out_channels: int,
        heads: int = 1,
        concat: bool = True,
        negative_slope: float = 0.2,
        dropout: float = 0.0,
        add_self_loops: bool = True,
        edge_dim: int | None = None,
        bias: bool = True,
        share_weights: bool = False,
        residual: bool = False,
        **options: Any,
    ) -> None:
        super().__init__(
            in_channels, out_channels, heads, concat, negative_slope, dropout, add_self_loops,
            None, residual, options,
        )  # fmt: skip
        if edge_dim is not None:
            raise InvalidArgument("GATv2Conv knows no edge features: edge_dim has to be None")
        sources, targets = _layer.pair(in_channels)
        self.share_weights = share_weights
        width = heads * out_channels
        self.lin_l = _layer.GlorotLinear(sources, width, bias=bias)
        self.lin_r = self.lin_l if share_weights else _layer.GlorotLinear(targets, width, bias=bias)
        self.att = Parameter(torch.empty(1, heads, out_channels))
        self._make_end(targets, bias)
        self.reset_parameters()

    def reset_parameters(self) -> None:
        self.lin_l.reset_parameters()
        self.lin_r.reset_parameters()
        _layer.glorot(self.att)
        self._reset_end()

    def forward(self, x: Features, g: Matrix, return_attention_weights: bool | None = None) -> Any:
        """As GATConv's; x of the targets may not be None."""
        number = self._graph(g)
        sources, targets = (x, x) if isinstance(x, Tensor) else x
        if targets is None:
            raise InvalidArgument("GATv2Conv needs features of sources and of targets")
        right = _prepare(number, "x", self.lin_l(sources))
        same = self.share_weights and isinstance(x, Tensor)
        left = right if same else _prepare(number, "x", self.lin_r(targets))
        att = self.att[0].to(right.dtype)
        if not return_attention_weights and not (self.dropout > 0 and self.training):
            out = _attention.attention(
                number, left, right, right, None, att.view(1, -1), _native.GATV2, self.heads,
                self.negative_slope,
            )[0]  # fmt: skip
            return self._finish(number, out, None, targets)
        scores = _attention.gatv2_scores(number, left, right, att, self.negative_slope)
        out, alpha = self._weighted(number, scores, right)
        return self._finish(number, out, alpha if return_attention_weights else None, targets)
