"""Networks and trees as files that engine/planning/network.h reads.

A layer is (what it says of itself, its weights); layers are a list of them.
"""

import json

import numpy
from torch import nn

FORMAT = 1


def standardise(offset, mean, deviation):
    """(log2(offset + |x|) - mean) / deviation, within +-5."""
    return {"kind": "standardise"}, [offset, mean, 1 / numpy.asarray(deviation, float)]


def dense(weights, bias):
    return {"kind": "dense", "outputs": len(bias)}, [weights, bias]


def of_torch(sequential):
    """The layers of an nn.Sequential; maps are square, and padded so that only strides make them
    smaller."""
    layers = []
    for module in sequential:
        if isinstance(module, nn.Linear):
            layers.append(dense(numbers(module.weight), numbers(module.bias)))
        elif isinstance(module, nn.Conv2d):
            size = module.kernel_size[0]
            assert module.padding == (size // 2, size // 2)
            says = {
                "kind": "convolution",
                "channels": module.out_channels,
                "size": size,
                "stride": module.stride[0],
            }
            layers.append((says, [numbers(module.weight), numbers(module.bias)]))
        elif isinstance(module, nn.MaxPool2d):
            layers.append(({"kind": "max_pool", "size": module.kernel_size}, []))
        elif isinstance(module, nn.ReLU):
            layers.append(({"kind": "relu"}, []))
        else:
            assert isinstance(module, nn.Flatten)
    return layers


def numbers(parameter):
    return parameter.detach().numpy()


def tree(learned, leaves):
    """A tree of scikit-learn; `leaves`: what each of its nodes gives, if it is a leaf, nodes x
    outputs."""
    nodes = learned.tree_
    leaf = nodes.children_left < 0
    # scikit-learn compares floats of 32 bits with thresholds of 64: rounded down they part alike.
    thresholds = numpy.where(leaf, 0, nodes.threshold)
    short = thresholds.astype(numpy.float32)
    short = numpy.where(
        short > thresholds, numpy.nextafter(short, numpy.float32(-numpy.inf)), short
    )
    right = numpy.where(leaf, numpy.cumsum(leaf) - 1, nodes.children_right)
    says = {
        "kind": "tree",
        "outputs": leaves.shape[1],
        "input": numpy.where(leaf, 0, nodes.feature).tolist(),
        "left": numpy.where(leaf, -1, nodes.children_left).tolist(),
        "right": right.tolist(),
    }
    return says, [short, leaves[leaf]]


def soft_labels(default, algorithms, parameters=None):
    says = {"kind": "soft_labels", "default": default, "algorithms": list(algorithms)}
    return dict(says, parameters=list(parameters)) if parameters is not None else says, []


def file(branches, layers):
    """The bytes; branches: a list of ("features" or "density_map", layers)."""
    header = {
        "format": FORMAT,
        "branches": [
            {"of": of, "layers": [says for says, _ in of_branch]} for of, of_branch in branches
        ],
        "layers": [says for says, _ in layers],
    }
    weights = [array for _, of_branch in branches for _, arrays in of_branch for array in arrays]
    weights += [array for _, arrays in layers for array in arrays]
    floats = [numpy.ascontiguousarray(array, dtype="<f4").tobytes() for array in weights]
    return json.dumps(header, separators=(",", ":")).encode() + b"\n" + b"".join(floats)
