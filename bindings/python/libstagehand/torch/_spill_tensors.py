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
_CONTENTS, _PARTS = "_stagehand_contents", "_stagehand_parts"
_MOST_PARTS = 64

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
    """What the memory of a tensor and its views holds as long as their version does not change: tickets of the same
    contents share a copy.
    """

    __slots__ = ("key", "scope", "version", "address", "bytes", "count", "restored", "prefetched")

    def __init__(self, scope: object, version: int, address: int, bytes: int) -> None:
        self.key = next(_numbers)  # the library's name for the contents, which no other contents ever have
        self.scope = scope
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


def contents_of(tensor: torch.Tensor, storage: torch.UntypedStorage, scope: object) -> Contents:
    """Returns what a tensor, its views, and the tensor that it is a view of hold now. What was saved in another scope,
    which may be one of another spiller, is not the same: PyTorch does not see all writes.

    Only these share a version. unsafe_split() and compiled code make tensors that share memory and have versions of
    their own: a change of one of them leaves the versions of the others.
    """
    base = tensor._base
    whole = tensor if base is None else base
    version, bytes = tensor._version, storage.nbytes()
    if whole.nbytes == bytes:
        known: Contents | None = getattr(storage, _CONTENTS, None)
        address = storage.data_ptr()
        # A storage may get other memory.
        if (
            known is None
            or known.version != version
            or known.address != address
            or known.bytes != bytes
            or known.scope is not scope
        ):
            known = Contents(scope, version, address, bytes)
            setattr(storage, _CONTENTS, known)
        return known
    if base is not None and not _within(tensor, base):
        whole = tensor
    return _contents_of_part(whole, storage, version, scope)


def end_sharing(storage: torch.UntypedStorage) -> None:
    """Notes that a storage is written to: what is saved from now on shares no copy with what was saved before. Not all
    writes change a version.
    """
    for name in (_CONTENTS, _PARTS):
        storage.__dict__.pop(name, None)


def _contents_of_part(whole: torch.Tensor, storage: torch.UntypedStorage, version: int, scope: object) -> Contents:
    parts: dict[tuple[int, int], Contents] | None = getattr(storage, _PARTS, None)
    if parts is None or len(parts) >= _MOST_PARTS:
        parts = {}
        setattr(storage, _PARTS, parts)
    place = whole.data_ptr(), _extent(whole)
    known = parts.get(place)
    if known is None or known.version != version or known.scope is not scope:
        known = parts[place] = Contents(scope, version, *place)
    return known


def _extent(tensor: torch.Tensor) -> int:
    """Returns the bytes from the first element to the end of the last one."""
    steps = sum((size - 1) * step for size, step in zip(tensor.size(), tensor.stride()))
    return (1 + steps) * tensor.itemsize if tensor.numel() else 0


def _within(view: torch.Tensor, base: torch.Tensor) -> bool:
    begin = view.data_ptr() - base.data_ptr()
    return bool(begin >= 0 and begin + _extent(view) <= _extent(base))


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
