"""A graph attention network that tells a graph's nodes apart.

python gat.py --server unix:/run/sparsed/sparsed.sock --graph cora.mtx --features cora_X.mtx.gz
"""

import common
import torch

import sparsed.torch as st


class GAT(torch.nn.Module):
    def __init__(self, features, classes, hidden=8, heads=8, nn=st.nn):
        super().__init__()
        self.conv1 = nn.GATConv(features, hidden, heads)
        self.conv2 = nn.GATConv(hidden * heads, classes, concat=False)

    def forward(self, x, g):
        return self.conv2(torch.nn.functional.elu(self.conv1(x, g)), g)


if __name__ == "__main__":
    common.main(__doc__, GAT)
