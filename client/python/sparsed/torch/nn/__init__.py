"""Layers by the names, parameters and state dictionaries of PyTorch Geometric's.

A layer is called with features and a graph, `conv(x, g)`: g is a `sparsed.Matrix` whose rows are
targets and whose columns are sources, and its values are the weights of edges. On the same weights
results are PyG's within rounding. What a layer does not know is refused when it is made.
"""

from sparsed.torch.nn._appnp import APPNP
from sparsed.torch.nn._gat import GATConv, GATv2Conv
from sparsed.torch.nn._gcn import GCNConv
from sparsed.torch.nn._lightgcn import LGConv, LightGCN
from sparsed.torch.nn._sage import SAGEConv
from sparsed.torch.nn._transformer import TransformerConv

__all__ = [
    "APPNP",
    "GATConv",
    "GATv2Conv",
    "GCNConv",
    "LGConv",
    "LightGCN",
    "SAGEConv",
    "TransformerConv",
]
