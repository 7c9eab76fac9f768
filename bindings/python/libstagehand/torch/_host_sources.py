"""Where the weights are in host memory while they are streamed: where they were, in pinned memory, or in mapped files."""
# mypy: disable-error-code="import-not-found,misc,no-untyped-call,unused-ignore"
from __future__ import annotations

from collections.abc import Iterator

import torch
from torch import nn

from .._device import Device
from .._host import PinnedMemory
from .._sources import BlockDesc, Mapped, Segment
from . import _weights
from ._files import TensorFiles
from ._memory import buffer_of, byte_tensor, strided
from ._subclasses import is_special
from ._weights import Found, HeldBlock, Weight


def adopt(found: list[Found], files: TensorFiles | None, strict: bool, model: str) -> Iterator[tuple[Found, torch.Tensor]]:
    """What is on the meta device, with what comes from the files in its place."""
    entries = files.entries if files else {}
    unused = set(entries)
    missing = []
    for one in found:
        known = [name for name in one.names if name in entries]
        unused.difference_update(known)
        if one.tensor.device.type != "meta":
            if known:
                raise ValueError(f"{known[0]} is in {entries[known[0]].path}, but is not on the meta device: it has contents of its own")
            continue
        if is_special(one.tensor):
            kind = type(one.tensor).__qualname__
            raise TypeError(f"{one.names[0]} is a {kind} on the meta device, which cannot be made from files: load the model before")
        if not known or files is None:
            missing.append(one.names[0])
            continue
        made: torch.Tensor = files.tensor(known[0], one.tensor)
        if one.is_parameter:
            made = nn.Parameter(made, requires_grad=one.tensor.requires_grad)
        yield one, made
    if missing:
        what = "no file has them; buffers that are computed, not stored, have to be made on another device before" if files else "give files="
        raise ValueError(f"on the meta device, without contents: {', '.join(missing[:8])}{' ...' if len(missing) > 8 else ''}: {what}")
    if unused and strict:
        raise ValueError(f"no part of {model}: {', '.join(sorted(unused)[:8])}: strict=False passes over them")


def make_sources(device: Device, blocks: list[HeldBlock], files: TensorFiles | None, pin: bool) -> list[BlockDesc]:
    """Gives each weight its source, and tells the blocks of them."""
    descs = []
    if pin:
        _copy_small(device, [weight for block in blocks for weight in block.weights])
    for block in blocks:
        if any(weight.storage.device.type != "cpu" for weight in block.weights):
            _copy_to_host(device, block)
        segments = []
        for weight in block.weights:
            if weight.host is None:
                weight.host = byte_tensor(weight.storage, weight.storage_offset, weight.bytes)
            original = weight.host if weight.copied is None else weight.copied
            file = files.source_of(original) if files else None
            weight.mapped = file is not None and not block.mutable
            if weight.copied is not None:
                file, weight.copied = None, None if weight.mapped else weight.copied
            elif file is not None and block.mutable:  # what is trained is not written to files
                weight.host, file = weight.host.clone(), None
            segments.append(Segment(Mapped(file) if file is not None else buffer_of(weight.host), weight.offset))
        descs.append(BlockDesc(segments, block.name, block.bytes, mutable=block.mutable, unordered=block.unordered, pin=pin))
    return descs


def _copy_small(device: Device, weights: list[Weight]) -> None:
    """Small weights of the host, all into one piece of pinned memory."""
    small = [weight for weight in weights if weight.bytes < _weights.SMALL_SOURCE and weight.storage.device.type == "cpu"]
    if not small:
        return
    offsets = [0]
    for weight in small:
        offsets.append(-(-(offsets[-1] + weight.bytes) // _weights.ALIGNMENT) * _weights.ALIGNMENT)
    memory = PinnedMemory(device, offsets[-1])
    for weight, offset in zip(small, offsets):
        weight.copied = byte_tensor(weight.storage, weight.storage_offset, weight.bytes)
        weight.host = _part(memory, offset, weight.bytes)
        weight.host.copy_(weight.copied)


def _copy_to_host(device: Device, block: HeldBlock) -> None:
    """From a device, block by block, so that memory of the device comes free as that of the host is filled."""
    memory = PinnedMemory(device, block.bytes)
    for weight in block.weights:
        if weight.storage.device.type == "cpu":
            continue
        weight.host = _part(memory, weight.offset, weight.bytes)
        weight.host.copy_(byte_tensor(weight.storage, weight.storage_offset, weight.bytes))
        weight.moved = weight.storage.device
        weight.storage = weight.host.untyped_storage()
        for place in weight.places:
            place.original = strided(weight.host, place.offset, place.original)
            place.put(place.original)


def _part(memory: PinnedMemory, offset: int, bytes: int) -> torch.Tensor:
    """With a storage of its own: who stores a tensor stores all of its storage."""
    return torch.frombuffer(memory.buffer, dtype=torch.uint8, offset=offset, count=bytes)
