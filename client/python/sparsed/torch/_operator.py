"""What an operator of the namespace `sparsed` is.

Each is one function of tensors and numbers, and is there twice: as a PyTorch operator
(torch.ops.sparsed...), which torch.compile and other transformations see, and as an
autograd.Function, which a plain call takes because it costs a third of the time.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import torch
from torch import Tensor
from torch.autograd import forward_ad

from sparsed._errors import Unimplemented

_library: Any = torch.library.Library("sparsed", "DEF")  # type: ignore[no-untyped-call]
_dispatch_modes = torch._C._len_torch_dispatch_stack
_transforms = torch._C._are_functorch_transforms_active
_any_autocast = torch._C._is_any_autocast_enabled
_is_compiling = torch.compiler.is_compiling
_is_grad_enabled = torch.is_grad_enabled


def _refuse_tangents(arguments: tuple[Any, ...]) -> None:
    """Forward mode: PyTorch would take the tangents of what it knows nothing of for zeros."""
    for one in arguments:
        if isinstance(one, Tensor) and _has_tangent(one):
            raise Unimplemented(
                "operators of sparsed.torch have no derivatives in forward mode (torch.func.jvp, "
                "jacfwd, linearize, torch.autograd.forward_ad): torch.autograd.functional.jvp "
                "makes the same by two gradients"
            )


def _has_tangent(tensor: Tensor) -> bool:
    while torch._C._functorch.is_batchedtensor(tensor):
        tensor = torch._C._functorch.get_unwrapped(tensor)
    try:
        tangent = forward_ad.unpack_dual(tensor).tangent  # type: ignore[no-untyped-call]
    except RuntimeError:  # it cannot be told, in a compiled program
        return True
    return tangent is not None


def _apart(function: Callable[..., Any]) -> Callable[..., Any]:
    """`function`, inside of which types are those of its tensors: autocast is its caller's. It
    takes no tangents."""

    def apart(*arguments: Any) -> Any:
        if forward_ad._current_level >= 0:
            _refuse_tangents(arguments)
        if not _any_autocast():
            return function(*arguments)
        with torch._C._DisableAutocast():
            return function(*arguments)

    return apart


# What the arguments of an operator are: tensors that nobody but autograd looks at, or none.
_PLAIN = frozenset((Tensor, torch.nn.Parameter))
_NUMBERS = frozenset((int, bool, float, list, type(None)))


def _is_plain(arguments: tuple[Any, ...]) -> tuple[bool, bool]:
    """Whether nothing but autograd looks at these arguments, and whether one needs a gradient."""
    needs_gradient = False
    for one in arguments:
        kind = type(one)
        if kind in _NUMBERS:
            continue
        if kind not in _PLAIN:
            return False, False
        needs_gradient = needs_gradient or one.requires_grad
    return True, needs_gradient


class Operator:
    """Looks at no autocast, forward or backward: its tensors have the graph's type, and so have its
    results.

    Args:
        signature: as torch.library takes it, its first argument `int graph`.
        run: computes it.
        fake: makes tensors of the results' shapes.
        save: `save(ctx, inputs, output)` keeps what the gradient needs.
        gradient: `gradient(ctx, *d_outputs)` gives one gradient for each argument. Without, it has
            none.
    """

    def __init__(
        self,
        signature: str,
        run: Callable[..., Any],
        fake: Callable[..., Any],
        save: Callable[..., None] | None = None,
        gradient: Callable[..., Any] | None = None,
    ) -> None:
        name = signature.split("(")[0]
        self._bare = run
        run = _apart(run)
        if gradient is not None:
            gradient = _apart(gradient)
        _library.define(signature, tags=(torch.Tag.pt2_compliant_tag,))
        for key in ("CPU", "CUDA"):
            _library.impl(name, run, key)
        torch.library.register_fake(f"sparsed::{name}", fake, lib=_library)
        if gradient is not None:
            torch.library.register_autograd(
                f"sparsed::{name}", gradient, setup_context=save, lib=_library
            )
        self.overload = getattr(torch.ops.sparsed, name).default
        self._run = run
        self._function = _function(name, run, save, gradient) if gradient is not None else None

    def __call__(self, *arguments: Any) -> Any:
        if forward_ad._current_level >= 0:
            _refuse_tangents(arguments)
        if _is_compiling() or _dispatch_modes() or _transforms():
            return self.overload(*arguments)
        plain, needs_gradient = _is_plain(arguments)
        if not plain:
            return self.overload(*arguments)
        if needs_gradient and self._function is not None and _is_grad_enabled():
            return self._function.apply(*arguments)
        return self._run(*arguments) if _any_autocast() else self._bare(*arguments)


def _function(
    name: str, run: Callable[..., Any], save: Callable[..., None] | None, gradient: Any
) -> Any:
    def forward(ctx: Any, *arguments: Any) -> Any:
        output = run(*arguments)
        if save is not None:
            save(ctx, arguments, output)
        return output

    body = {"forward": staticmethod(forward), "backward": staticmethod(gradient)}
    return type(f"Sparsed_{name}", (torch.autograd.Function,), body)
