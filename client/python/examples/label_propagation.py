"""Label propagation: known classes of a few nodes spread along edges to the others.

python label_propagation.py --server unix:/run/sparsed/sparsed.sock --graph cora.mtx
"""

import common
import torch

import sparsed
import sparsed.torch as st


def propagate(g, y, known, classes, k=20, alpha=0.1):
    """Each node's class: k steps of x' = (1 - alpha) D^-1/2 A D^-1/2 x' + alpha x, one request.

    Args:
        y: the nodes' classes, n integers, of which those of `known` are looked at.
    """
    x = torch.nn.functional.one_hot(y, classes).float()
    x[~known] = 0
    return st.nn.APPNP(k, alpha, add_self_loops=False)(x, g).argmax(dim=1)


def main():
    chosen = common.options(__doc__, "graph")
    data = common.nodes(chosen.graph)
    y, known = data.y.to(chosen.device), data.train.to(chosen.device)
    with sparsed.connect(chosen.server) as client, client.temporary(data.adjacency) as g:
        found = propagate(g, y, known, int(y.max()) + 1)
    print(f"accuracy on the other nodes {float((found == y)[~known].float().mean()):.3f}")


if __name__ == "__main__":
    main()
