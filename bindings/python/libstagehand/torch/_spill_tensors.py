"""The tensors that may leave the device, and the contents that several saved tensors share."""

# mypy: disable-error-code="import-not-found,misc,no-untyped-call,unused-ignore"
from __future__ import annotations

import itertools
from collections.abc import Iterable
from typing import Any

import torch
from torch import nn

_keys = torch._C._dispatch_keys
_Parameter = nn.Parameter
_numbers = itertools.count(1)
# A storage keeps the same Python object as long as it lives, so an attribute of that object lives as long, too. A
# storage at the same address that comes later has no such attribute.
_CONTENTS = "_stagehand_contents"

# Whether tensors with these dispatch keys are plain. Tensors of a process have few sets of keys.
_plain: dict[int, bool] = {}
_PLAIN_KEYS = {
    "Dense",
    "CPU",
    "CUDA",
    "HIP",
    "ADInplaceOrView",
    "AutogradCPU",
    "AutogradCUDA",
    "AutogradHIP",
    "AutocastCPU",
    "AutocastCUDA",
    "AutocastHIP",
    "BackendSelect",
}


def is_plain(tensor: torch.Tensor) -> bool:
    """Whether a tensor is nothing but elements in memory: not sparse, nested, quantised, or a wrapper, and its elements
    are neither conjugated nor negated lazily. Such tensors have further keys of PyTorch's dispatcher, and so has a
    streamed weight whose block is not held.
    """
    keys = _keys(tensor)
    known = _plain.get(raw := keys.raw_repr())
    if known is None:
        names = str(keys).removeprefix("DispatchKeySet(").removesuffix(")").replace(" ", "").split(",")
        known = _plain[raw] = _PLAIN_KEYS.issuperset(names)
    return known


class Contents:
    """What a storage holds as long as its version does not change: tickets of the same contents share a copy."""

    __slots__ = ("key", "version", "address", "bytes", "count", "restored", "prefetched")

    def __init__(self, version: int, address: int, bytes: int) -> None:
        self.key = next(_numbers)  # the library's name for the contents, which no other contents ever have
        self.version = version
        self.address = address
        self.bytes = bytes
        self.count = 0  # the saved tensors with these contents, and those that are computed from them
        self.restored: Any = None  # a tensor that has come back, for the other saved tensors
        self.prefetched: dict[int, Any] = {}  # memory that copies back have begun into, by address

    def unused(self) -> None:
        """Notes that a holder of the contents has gone."""
        self.count -= 1
        if self.count <= 0:
            self.restored = None
            self.prefetched.clear()


def contents_of(storage: torch.UntypedStorage, version: int) -> Contents:
    """Returns what a storage holds now. A storage may get other memory, so address and size are compared, too."""
    known: Contents | None = getattr(storage, _CONTENTS, None)
    address, bytes = storage.data_ptr(), storage.nbytes()
    if known is None or known.version != version or known.address != address or known.bytes != bytes:
        known = Contents(version, address, bytes)
        setattr(storage, _CONTENTS, known)
    return known


def storages_of(model: nn.Module | None) -> set[int]:
    """Returns the storages of the parameters and buffers of a model."""
    if model is None:
        return set()
    tensors: Iterable[torch.Tensor] = itertools.chain(model.parameters(), model.buffers())
    return {
        tensor.untyped_storage()._cdata
        for tensor in tensors
        if type(tensor) in (torch.Tensor, _Parameter) and is_plain(tensor)
    }


def is_of_weight(tensor: torch.Tensor) -> bool:
    """Whether a tensor is a leaf that requires a gradient, a parameter, a view of one, or autocast's cast of one."""
    base = tensor._base
    if base is None:
        base = tensor
    if type(base) is _Parameter:
        return True
    if not base.requires_grad:
        return False
    node = base.grad_fn
    if node is None:
        return True
    # Autocast keeps the casts of leaves until its scope ends.
    if node.name() != "ToCopyBackward0" or not torch.is_autocast_cache_enabled():
        return False
    return torch.is_autocast_enabled(base.device.type) and hasattr(node.next_functions[0][0], "variable")


def overlaps(tensor: torch.Tensor) -> bool:
    """Whether several indices stand for one element, as expand() makes it."""
    return 0 in tensor.stride() and any(step == 0 and size > 1 for step, size in zip(tensor.stride(), tensor.size()))
