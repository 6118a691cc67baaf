"""A graph transformer that tells a graph's nodes apart: attention along edges, with residuals.

python graph_transformer.py --server unix:/run/sparsed/sparsed.sock --graph pubmed.mtx.gz
"""

import common
import torch

import sparsed.torch as st


class Block(torch.nn.Module):
    def __init__(self, width, heads, nn):
        super().__init__()
        self.norm1 = torch.nn.LayerNorm(width)
        self.attention = nn.TransformerConv(width, width // heads, heads, beta=True)
        self.norm2 = torch.nn.LayerNorm(width)
        self.dense = torch.nn.Sequential(
            torch.nn.Linear(width, 2 * width), torch.nn.GELU(), torch.nn.Linear(2 * width, width)
        )

    def forward(self, x, g):
        x = x + self.attention(self.norm1(x), g)
        return x + self.dense(self.norm2(x))


class GraphTransformer(torch.nn.Module):
    def __init__(self, features, classes, width=32, heads=4, blocks=2, nn=st.nn):
        super().__init__()
        self.first = torch.nn.Linear(features, width)
        self.blocks = torch.nn.ModuleList([Block(width, heads, nn) for _ in range(blocks)])
        self.last = torch.nn.Linear(width, classes)

    def forward(self, x, g):
        x = self.first(x)
        for block in self.blocks:
            x = block(x, g)
        return self.last(x)


if __name__ == "__main__":
    common.main(__doc__, GraphTransformer)
