"""LightGCN: recommends items to users by embeddings that are propagated along their graph.

python lightgcn.py --server unix:/run/sparsed/sparsed.sock --ratings gowalla_R.mtx.gz
"""

import common
import numpy as np
import scipy.sparse as sp
import torch

import sparsed
import sparsed.torch as st


def generated(users=300, items=200, groups=5):
    """Users of a group like that group's items."""
    random = np.random.default_rng(0)
    liked = np.arange(users)[:, None] % groups == np.arange(items)[None] % groups
    likes = random.random((users, items)) < np.where(liked, 0.2, 0.01)
    return sp.csr_matrix(likes.astype(np.float32))


def adjacency(ratings):
    """Users and items as the nodes of one graph: [[0, R], [R^T, 0]]."""
    return sp.csr_matrix(sp.bmat([[None, ratings], [ratings.T, None]]), dtype=np.float32)


def batches(ratings, count, size, device="cpu", seed=0):
    """Pairs of a user and an item that it likes, and items that anybody may like: 3 x size."""
    users, items = (torch.from_numpy(part.astype(np.int64)) for part in ratings.nonzero())
    generator = torch.Generator().manual_seed(seed)
    for _ in range(count):
        chosen = torch.randint(len(users), (size,), generator=generator)
        other = torch.randint(ratings.shape[1], (size,), generator=generator)
        nodes = (users[chosen], items[chosen] + ratings.shape[0], other + ratings.shape[0])
        yield torch.stack(nodes).to(device)


def train(model, graph, pairs, rate=0.01):
    """The losses of one step for each batch."""
    optimizer = torch.optim.Adam(model.parameters(), lr=rate)
    losses = []
    for user, liked, other in pairs:
        optimizer.zero_grad()
        both = torch.cat((torch.stack((user, liked)), torch.stack((user, other))), dim=1)
        good, bad = model(graph, both).chunk(2)
        loss = model.recommendation_loss(good, bad, node_id=both.unique())
        loss.backward()
        optimizer.step()
        losses.append(loss.detach())
    return [float(loss) for loss in losses]


def main():
    chosen = common.options(__doc__, "ratings")
    ratings = common.read(chosen.ratings) if chosen.ratings else generated()
    with sparsed.connect(chosen.server) as client, client.temporary(adjacency(ratings)) as g:
        torch.manual_seed(0)
        model = st.nn.LightGCN(g.shape[0], 64, num_layers=3).to(chosen.device)
        pairs = batches(ratings, chosen.epochs, 2048, chosen.device)
        losses = train(model, g, pairs)
        print(f"loss {losses[0]:.3f} -> {losses[-1]:.3f}")
        users, items = ratings.shape
        best = model.recommend(
            g,
            src_index=torch.arange(3, device=chosen.device),
            dst_index=torch.arange(users, users + items, device=chosen.device),
            k=5,
        )
        for user, found in enumerate((best - users).tolist()):
            print(f"user {user}: items {found}")


if __name__ == "__main__":
    main()
