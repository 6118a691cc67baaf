"""What layers have in common."""

from __future__ import annotations

import contextlib
import math
from typing import Any

import torch
from torch import Tensor

from sparsed._errors import InvalidArgument
from sparsed.torch import _operators
from sparsed.torch._functions import _autocasts, _prepare


class GlorotLinear(torch.nn.Linear):
    """x W^T + b, W uniform within the root of 6 / (in + out) at first, b 0."""

    def reset_parameters(self) -> None:
        glorot(self.weight)
        if self.bias is not None:
            torch.nn.init.zeros_(self.bias)


def glorot(weight: Tensor) -> None:
    bound = math.sqrt(6.0 / (weight.shape[-2] + weight.shape[-1]))
    torch.nn.init.uniform_(weight, -bound, bound)


def refuse(layer: torch.nn.Module, options: dict[str, Any]) -> None:
    """Options of PyG's MessagePassing: those that change nothing are taken."""
    harmless = {"aggr": ("add", "sum"), "flow": ("source_to_target",), "node_dim": (0, -2)}
    for name, value in options.items():
        if name not in harmless or value not in harmless[name]:
            raise InvalidArgument(
                f"{type(layer).__name__} does not know {name}={value!r}: build such a layer from "
                "sparsed.torch's functions"
            )


def sizes(layer: torch.nn.Module, *channels: int | None) -> None:
    for size in channels:
        if size is not None and size <= 0:
            raise InvalidArgument(
                f"{type(layer).__name__} with {size} channels: sizes are to be given, none is "
                "found out at the first call"
            )


def pair(channels: int | tuple[int, int]) -> tuple[int, int]:
    """Of sources and targets."""
    return (channels, channels) if isinstance(channels, int) else (channels[0], channels[1])


def spread(number: int, x: Tensor, values: Tensor | None = None) -> Tensor:
    """S x."""
    x = _prepare(number, "x", x)
    if values is not None:
        values = _prepare(number, "values", values)
    y: Tensor = _operators.spmm(number, x, values, False, False, False)
    return y


def in_its_own_type(x: Tensor) -> contextlib.AbstractContextManager[Any]:
    """No autocast: what is computed of x, which has the graph's type, has it too."""
    on = x.device.type
    return torch.autocast(on, enabled=False) if _autocasts(x) else contextlib.nullcontext()


def narrow_first(x: Tensor, lin: torch.nn.Linear) -> bool:
    """Whether S (x W) takes less than (S x) W: products are as wide as what they are of, and
    their gradient is another product unless x needs none."""
    products = 2 if x.requires_grad else 1
    return 2 * lin.out_features < products * lin.in_features
