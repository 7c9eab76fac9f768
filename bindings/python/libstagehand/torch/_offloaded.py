"""Refuses models whose weights another library moves while they run."""

# mypy: disable-error-code="import-not-found,misc,no-untyped-call,unused-ignore"
from __future__ import annotations

from collections.abc import Iterator
from typing import Any

import torch
from torch import nn

# The hooks of diffusers that belong to group offloading. Its other hooks (caches, guidance) move no weights.
_GROUPS = ("group_offloading", "layer_execution_tracker", "lazy_prefetch_group_offloading")
_REMOVE_ACCELERATE = "accelerate.hooks.remove_hook_from_module(model, recurse=True)"


def refuse_offloaded(model: nn.Module, device: torch.device, name: str = "", remedy: str = "") -> None:
    """Refuses a model whose weights accelerate or diffusers moves. `remedy` is the call that undoes
    accelerate's offloading, if it is another one than for a single model.

    Hooks that only move inputs to the same device or cache results are none of this package's business.
    """
    what = name or type(model).__name__
    for module_name, module in model.named_modules():
        where = f"{what}.{module_name}" if module_name else what
        for hook in _accelerate_hooks(module):
            if _offloads_to_files(hook):
                raise ValueError(
                    f"{where} is offloaded to the disk by accelerate ({type(hook).__name__}): "
                    "load the model without device_map= before it is streamed. "
                    "from_pretrained() of this package streams it from its files"
                )
            if _moves(hook, device):
                raise ValueError(
                    f"{where} is offloaded or placed by accelerate ({type(hook).__name__}), "
                    f"which moves the weights that would be streamed: call {remedy or _REMOVE_ACCELERATE} before"
                )
    if names := _diffusers_hooks(model, _GROUPS):
        raise ValueError(
            f"{what} has the group offloading of diffusers, which moves the weights that would be streamed: call "
            "diffusers.hooks.HookRegistry.check_if_exists_or_initialize(model).remove_hook(name, recurse=True) "
            f"for each name of {names} before"
        )


def _accelerate_hooks(module: nn.Module) -> Iterator[Any]:
    hook = module.__dict__.get("_hf_hook")
    if hook is not None:
        # A SequentialHook has hooks of its own.
        yield from getattr(hook, "hooks", None) or [hook]


def _is_a(hook: object, name: str) -> bool:
    """Whether the hook has a class of that name. The class itself would need an import of accelerate."""
    return any(kind.__name__ == name for kind in type(hook).__mro__)


def _offloads_to_files(hook: Any) -> bool:
    # Such a hook was given a model without contents, so it has no memory to put the weights back into.
    before = getattr(hook, "original_devices", {})
    return (
        _is_a(hook, "AlignDevicesHook")
        and bool(hook.offload and before)
        and all(device.type == "meta" for device in before.values())
    )


def _moves(hook: Any, device: torch.device) -> bool:
    if _is_a(hook, "CpuOffload"):
        return True
    if not _is_a(hook, "AlignDevicesHook"):
        return False
    if hook.offload:
        return True
    if hook.execution_device is None:
        return False
    there = torch.device(hook.execution_device)
    return there.type != device.type or there.index not in (None, device.index)


def _diffusers_hooks(model: nn.Module, names: tuple[str, ...]) -> list[str]:
    """Returns which of these hooks of diffusers the model has."""
    registries = [
        module.__dict__["_diffusers_hook"] for module in model.modules() if "_diffusers_hook" in module.__dict__
    ]
    return [name for name in names if any(registry.get_hook(name) is not None for registry in registries)]
