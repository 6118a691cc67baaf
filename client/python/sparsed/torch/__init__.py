"""Products with sparse matrices for PyTorch: operators with gradients, and layers.

    import sparsed
    import sparsed.torch as st

    g = sparsed.connect("unix:/run/sparsed/sparsed.sock").upload("cora", A)
    y = st.spmm(g, x)                          # x: a tensor on the CPU or a GPU
    conv = st.nn.GCNConv(16, 7)
    y = conv(x, g)

g's rows are targets and its columns sources. Values of nonzeros (weights, scores) are tensors of
nnz, or nnz x H for H heads, in the order of g's canonical CSR. Operands have g's type; inside
autocast they are converted to it, and products' results to autocast's.

On a GPU everything is queued in PyTorch's current stream, and nothing waits for it.
torch.compile(fullgraph=True) sees operators of the namespace torch.ops.sparsed.
"""

from sparsed.torch import nn
from sparsed.torch._functions import (
    attention,
    edge_add,
    edge_softmax,
    gat,
    gatv2,
    propagate,
    scale,
    sddmm,
    spmm,
    total,
)
from sparsed.torch._memory import empty, pool

__all__ = [
    "attention",
    "edge_add",
    "edge_softmax",
    "empty",
    "gat",
    "gatv2",
    "nn",
    "pool",
    "propagate",
    "scale",
    "sddmm",
    "spmm",
    "total",
]
