"""Tensors that cannot be moved by their bytes."""

# mypy: disable-error-code="import-not-found,misc,no-untyped-call,unused-ignore"
from __future__ import annotations

import torch
from torch import nn

from ._sharded import is_distributed


def refuse_immovable(name: str, tensor: torch.Tensor) -> None:
    """Refuses a tensor that cannot be moved by its bytes."""
    why = ""
    if isinstance(tensor, (nn.UninitializedParameter, nn.UninitializedBuffer)):
        why = "has no shape yet: call the model once before it is streamed"
    elif tensor.layout != torch.strided or tensor.is_nested:
        why = f"has the layout {tensor.layout}"
    elif tensor.is_quantized:
        why = (
            f"is quantised ({tensor.dtype}): its scales are not in its bytes. "
            "Tensors of torchao, and plain integer tensors, can be streamed"
        )
    elif tensor.is_conj() or tensor.is_neg():
        why = "is conjugated or negated lazily: call resolve_conj() or resolve_neg() before"
    elif tensor.numel() and not tensor.is_meta and not _has_memory(tensor):
        why = (
            f"is a {full_name(type(tensor))}, which has no memory of its own, "
            "and no __tensor_flatten__ that names its parts"
        )
    if why:
        raise TypeError(f"{name} {why}. To keep it on the device, outside the budget, pass outside={name!r}")


def refuse_distributed_weight(name: str, tensor: torch.Tensor) -> None:
    """Refuses a weight of which this process has a part, because what has divided it also moves its memory."""
    if is_distributed(tensor):
        raise TypeError(
            f"{name} is a DTensor, as fully_shard() (FSDP) and tensor parallelism make it. Stream a model that is not "
            "distributed, or have FSDP keep its weights on the host by offload_policy=CPUOffloadPolicy(). "
            f"To keep it on the device, outside the budget, pass outside={name!r}"
        )


def full_name(kind: type) -> str:
    return f"{kind.__module__}.{kind.__qualname__}"


def _has_memory(tensor: torch.Tensor) -> bool:
    try:
        return bool(tensor.untyped_storage().data_ptr())
    except (NotImplementedError, RuntimeError):
        return False


def changed_elsewhere(name: str) -> RuntimeError:
    return RuntimeError(
        f"{name} is streamed, and a tensor that was made from it was moved to shared memory (multiprocessing) and then "
        "changed in place: steps do not see that change. Change the weight itself"
    )
