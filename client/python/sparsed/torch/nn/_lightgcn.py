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


class LGConv(torch.nn.Module):
    """D^-1/2 A D^-1/2 X, as torch_geometric.nn.LGConv. `normalize=False`: A X."""

    def __init__(self, normalize: bool = True, **options: Any) -> None:
        super().__init__()
        _layer.refuse(self, options)
        self.normalize = normalize

    def reset_parameters(self) -> None:
        """It has none."""

    def forward(self, x: Tensor, g: Matrix, edge_weight: Tensor | None = None) -> Tensor:
        """x: N x K, g: N x N; edge_weight: nnz, in the place of g's values."""
        number = number_of(g)
        if self.normalize and edge_weight is None:
            number = _derived.normalized(number, 0.0)
        elif self.normalize and edge_weight is not None:
            edge_weight = normalize_weights(number, edge_weight)
        return _given(_layer.spread(number, x, edge_weight))


class LightGCN(torch.nn.Module):
    """Embeddings of all nodes, propagated and summed up over layers, as
    torch_geometric.nn.LightGCN. All layers are one request.

    Args:
        num_nodes, embedding_dim: of the embedding.
        num_layers: k.
        alpha: the layers' factors, one number or k + 1; None: 1 / (k + 1).
        normalize: as LGConv's.

    Parameters: embedding.weight; buffer alpha.
    """

    alpha: Tensor

    def __init__(
        self,
        num_nodes: int,
        embedding_dim: int,
        num_layers: int,
        alpha: float | Tensor | None = None,
        normalize: bool = True,
        **options: Any,
    ) -> None:
        super().__init__()
        _layer.refuse(self, options)
        _layer.sizes(self, num_nodes, embedding_dim)
        self.num_nodes = num_nodes
        self.embedding_dim = embedding_dim
        self.num_layers = num_layers
        if alpha is None:
            alpha = 1.0 / (num_layers + 1)
        if not isinstance(alpha, Tensor):
            alpha = torch.tensor([alpha] * (num_layers + 1))
        if alpha.shape != (num_layers + 1,):
            raise InvalidArgument(
                f"alpha is {tuple(alpha.shape)}, expected {num_layers + 1} numbers for "
                f"{num_layers} layers"
            )
        self.register_buffer("alpha", alpha)
        self.embedding = torch.nn.Embedding(num_nodes, embedding_dim)
        self.convs = torch.nn.ModuleList([LGConv(normalize) for _ in range(num_layers)])
        # The buffer's numbers, and which of its states they are of: reading a GPU's would wait.
        self._weights: list[float] = []
        self._weights_of: tuple[int, int] | None = None
        self.reset_parameters()

    def reset_parameters(self) -> None:
        torch.nn.init.xavier_uniform_(self.embedding.weight)

    def get_embedding(self, g: Matrix, edge_weight: Tensor | None = None) -> Tensor:
        """num_nodes x embedding_dim: the sum over layers of alpha[l] S^l E."""
        x = self.embedding.weight
        if edge_weight is not None or self.alpha.requires_grad or torch.compiler.is_compiling():
            out = x * self.alpha[0]
            for layer, conv in enumerate(self.convs):
                x = conv(x, g, edge_weight)
                out = out + x * self.alpha[layer + 1]
            return _given(out)
        number = number_of(g)
        if self.num_layers and self.convs[0].normalize:
            number = _derived.normalized(number, 0.0)
        weights = self._numbers()
        if self.num_layers == 0:
            return _given(x * weights[0])
        x = _prepare(number, "x", x)
        factors = [weights[-1]] + [1.0] * (self.num_layers - 1)
        return _given(_operators.propagate(number, x, factors, weights[-2::-1], False))

    def _numbers(self) -> list[float]:
        if self.alpha.is_inference():  # whose changes nobody counts
            numbers: list[float] = self.alpha.tolist()
            return numbers
        state = (self.alpha.data_ptr(), self.alpha._version)
        if self._weights_of != state:
            self._weights = self.alpha.tolist()
            self._weights_of = state
        return self._weights

    def forward(
        self,
        g: Matrix,
        edge_label_index: Tensor | None = None,
        edge_weight: Tensor | None = None,
    ) -> Tensor:
        """The product of both ends' embeddings, for each of the pairs edge_label_index (2 x E), or
        for each nonzero of g."""
        out = self.get_embedding(g, edge_weight)
        if edge_label_index is None:
            number = number_of(g)
            out = _prepare(number, "the embedding", out)
            return _given(_operators.sddmm(number, out, out, None, True, 1)).squeeze(1)
        scores = (out[edge_label_index[0]] * out[edge_label_index[1]]).sum(dim=-1)
        return scores

    def predict_link(
        self,
        g: Matrix,
        edge_label_index: Tensor | None = None,
        edge_weight: Tensor | None = None,
        prob: bool = False,
    ) -> Tensor:
        """1 where a link is likely, else 0; the probability if `prob`."""
        pred: Tensor = self(g, edge_label_index, edge_weight).sigmoid()
        return pred if prob else pred.round()

    def recommend(
        self,
        g: Matrix,
        edge_weight: Tensor | None = None,
        src_index: Tensor | None = None,
        dst_index: Tensor | None = None,
        k: int = 1,
        sorted: bool = True,
    ) -> Tensor:
        """The k best of dst_index for each of src_index; None: all nodes."""
        embedding = self.get_embedding(g, edge_weight)
        sources = embedding if src_index is None else embedding[src_index]
        targets = embedding if dst_index is None else embedding[dst_index]
        top: Tensor = (sources @ targets.t()).topk(k, dim=-1, sorted=sorted).indices
        return top if dst_index is None else dst_index[top]

    def link_pred_loss(self, pred: Tensor, edge_label: Tensor, **options: Any) -> Tensor:
        """Binary cross entropy of forward's result, by labels 0 and 1."""
        return functional.binary_cross_entropy_with_logits(
            pred, edge_label.to(pred.dtype), **options
        )

    def recommendation_loss(
        self,
        pos_edge_rank: Tensor,
        neg_edge_rank: Tensor,
        node_id: Tensor | None = None,
        lambda_reg: float = 1e-4,
    ) -> Tensor:
        """Bayesian personalised ranking of forward's results for pairs that are edges and pairs
        that are none, and lambda_reg times the squared norm of the embeddings of node_id."""
        loss = -functional.logsigmoid(pos_edge_rank - neg_edge_rank).mean()
        if lambda_reg == 0:
            return loss
        weight = self.embedding.weight if node_id is None else self.embedding.weight[node_id]
        penalty: Tensor = lambda_reg * weight.norm(p=2).pow(2) / pos_edge_rank.shape[0]
        return loss + penalty

    def __repr__(self) -> str:
        return (
            f"{type(self).__name__}({self.num_nodes}, {self.embedding_dim}, "
            f"num_layers={self.num_layers})"
        )
