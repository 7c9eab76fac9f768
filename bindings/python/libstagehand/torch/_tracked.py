"""Copies of weights that autograd takes for the weights."""

# mypy: disable-error-code="import-not-found,misc,no-untyped-call,unused-ignore"
from __future__ import annotations

from collections.abc import Callable
from typing import Any

import torch
from torch._functorch.utils import enable_single_level_autograd_function
from torch.autograd import Function, forward_ad

from ._key import KEYS, without_key

_is_excluded: Callable[[Any], bool] = torch._C._dispatch_tls_is_dispatch_key_excluded
_FRONT = torch._C.DispatchKey.FuncTorchDynamicLayerFrontMode
# The keys that are in force for plain tensors.
_PLAIN = torch._C._dispatch_tls_local_include_set(), torch._C._dispatch_tls_local_exclude_set() | KEYS


class _Copy(Function):
    """A copy of a weight, whose gradient is that of the weight. They may be on different devices."""

    generate_vmap_rule = True

    @staticmethod
    def forward(weight: torch.Tensor, copied: torch.Tensor) -> torch.Tensor:
        return copied

    @staticmethod
    def setup_context(ctx: Any, inputs: Any, output: Any) -> None:
        ctx.devices = inputs[0].device, output.device

    @staticmethod
    def backward(ctx: Any, gradient: torch.Tensor) -> tuple[torch.Tensor, None]:
        return gradient.to(ctx.devices[0]), None

    @staticmethod
    def jvp(ctx: Any, tangent: torch.Tensor | None, _: None) -> torch.Tensor | None:
        return None if tangent is None else tangent.to(ctx.devices[1], copy=True)  # a result must not be an argument


def is_seen(weight: torch.Tensor) -> bool:
    """Whether autograd sees the operations on a weight."""
    return bool(torch.is_grad_enabled() and weight.requires_grad) or forward_ad._current_level >= 0


def tracked(weight: torch.Tensor, copied: torch.Tensor) -> torch.Tensor:
    """Returns a copy, or a tensor over the source, as a result of the weight."""
    apply: Any = _Copy.apply
    if not _is_excluded(_FRONT):
        return without_key(apply, (weight, copied), {})  # type: ignore[no-any-return]
    # vmap() calls an operation on the tensors that it has taken apart. They are plain, but it keeps autograd from them.
    apply = super(Function, _Copy).apply
    with torch._C._ForceDispatchKeyGuard(*_PLAIN), enable_single_level_autograd_function():
        return apply(weight, copied)  # type: ignore[no-any-return]
