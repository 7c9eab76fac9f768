"""Models whose weights PyTorch's FSDP gathers for a layer and gives up after the layer."""

# mypy: disable-error-code="import-not-found,misc,no-untyped-call,unused-ignore"
from __future__ import annotations

import sys
from typing import Any

import torch
from torch import nn


def is_sharded(model: nn.Module | None) -> bool:
    """Whether FSDP has divided parts of a model. Without a model: whether it may have done so in this process."""
    # Nothing is divided in a process that has not imported it. The import takes long, and needs torch.distributed.
    fsdp: Any = sys.modules.get("torch.distributed.fsdp")
    kinds = tuple(getattr(fsdp, name) for name in ("FSDPModule", "FullyShardedDataParallel") if hasattr(fsdp, name))
    if not kinds:
        return False
    return model is None or any(isinstance(one, kinds) for one in model.modules())


def is_distributed(tensor: torch.Tensor) -> bool:
    """Whether a tensor is a DTensor, which has the part of this process."""
    tensors: Any = sys.modules.get("torch.distributed.tensor")
    return tensors is not None and isinstance(tensor, tensors.DTensor)


def refuse_distributed(model: nn.Module) -> None:
    """Refuses gradients that are only parts of tensors: their host memory would be a part of a parameter, too."""
    for name, parameter in model.named_parameters():
        if is_distributed(parameter):
            raise TypeError(
                f"offload_gradients=True does not support distributed parameters, and {name} is one. "
                "To have the gradients of fully_shard() on the host, give it offload_policy=CPUOffloadPolicy()"
            )


def is_given_up(tensor: torch.Tensor) -> bool:
    """Whether the memory of a weight is gone until the weight is gathered again."""
    return bool(tensor.numel()) and not tensor.untyped_storage().nbytes()
