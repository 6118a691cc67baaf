"""Matrices for operators' tests: small ones in float64 with an empty row and an empty column, which
gradcheck and opcheck take."""

import numpy as np
import pytest

torch = pytest.importorskip("torch.autograd", reason="PyTorch is not installed") and __import__(
    "torch"
)


class Small:
    """A matrix on the server, and what it is."""

    def __init__(self, client, name, rows, cols, dtype, seed=0):
        generator = np.random.default_rng(seed)
        mask = generator.random((rows, cols)) < 0.5
        mask[rows // 2] = False
        mask[:, cols // 2] = False
        mask[0, 0] = True
        self.rows, self.cols = np.nonzero(mask)
        self.values = generator.uniform(0.5, 2, len(self.rows))
        self.g = client.upload(
            name, (self.rows, self.cols, self.values), shape=(rows, cols), dtype=dtype
        )
        self.shape = (rows, cols)
        self.nnz = len(self.rows)
        self.dtype = {"f32": torch.float32, "f64": torch.float64}.get(dtype)

    def dense(self, values=None, dtype=torch.float64):
        """S as a dense tensor; values may need a gradient."""
        if values is None:
            values = torch.from_numpy(self.values).to(dtype)
        index = (torch.from_numpy(self.rows), torch.from_numpy(self.cols))
        return torch.zeros(self.shape, dtype=values.dtype).index_put(index, values)

    def random(self, *shape, grad=True):
        return torch.randn(*shape, dtype=torch.float64, requires_grad=grad)


@pytest.fixture
def small(client, name):
    torch.manual_seed(0)
    made = Small(client, name + "-small", 7, 5, "f64")
    yield made
    made.g.delete()


@pytest.fixture
def square(client, name):
    torch.manual_seed(0)
    made = Small(client, name + "-square", 6, 6, "f64", seed=1)
    yield made
    made.g.delete()


@pytest.fixture(params=["steps", "chain"])
def way(request, monkeypatch):
    """Whether what is made of several products is one request or several."""
    from sparsed.torch import _calls

    monkeypatch.setattr(_calls, "_as_chain", lambda _: request.param == "chain")
    return request.param
