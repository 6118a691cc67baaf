"""A graph convolutional network that tells a graph's nodes apart.

python gcn.py --server unix:/run/sparsed/sparsed.sock --graph cora.mtx --features cora_X.mtx.gz
"""

import common
import torch

import sparsed.torch as st


class GCN(torch.nn.Module):
    def __init__(self, features, classes, hidden=16, nn=st.nn):
        super().__init__()
        self.conv1 = nn.GCNConv(features, hidden)
        self.conv2 = nn.GCNConv(hidden, classes)

    def forward(self, x, g):
        return self.conv2(self.conv1(x, g).relu(), g)


if __name__ == "__main__":
    common.main(__doc__, GCN)
