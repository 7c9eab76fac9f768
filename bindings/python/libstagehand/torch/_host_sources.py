"""The sources of streamed weights: the host memory where they were, pinned memory, or mapped files."""

# mypy: disable-error-code="import-not-found,misc,no-untyped-call,unused-ignore"
from __future__ import annotations

from collections.abc import Iterator

import torch
from torch import nn

from .._device import Device
from .._generated import WeightFormat
from .._host import PinnedMemory
from .._sources import BlockDesc, Mapped, Segment, Weights
from . import _weights
from ._files import TensorFiles
from ._formats import FORMATS
from ._mappings import Mappings
from ._memory import buffer_of, byte_tensor, strided
from ._pinned_copies import PinnedCopies
from ._similar_names import beside_similar
from ._subclasses import is_special
from ._weights import Found, HeldBlock, Weight


def adopt(
    found: list[Found], files: TensorFiles | None, strict: bool, model: str, trained: bool
) -> Iterator[tuple[Found, torch.Tensor]]:
    """Yields the tensors on the meta device, each with the tensor from the files that takes its place."""
    entries = files.entries if files else {}
    unused = set(entries)
    missing = []
    for one in found:
        known = [name for name in one.names if name in entries]
        unused.difference_update(known)
        if one.tensor.device.type != "meta":
            if known:
                raise ValueError(
                    f"{known[0]} is in {entries[known[0]].path}, but is not on the meta device: "
                    "it has contents of its own, and is not read from files"
                )
            continue
        if is_special(one.tensor):
            kind = type(one.tensor).__qualname__
            raise TypeError(
                f"{one.names[0]} is a {kind} on the meta device, which cannot be made from files: "
                "load the model before it is streamed"
            )
        if not known or files is None:
            missing.append(one.names[0])
            continue
        files.refuse_different(known)
        made: torch.Tensor = files.tensor(known[0], one.tensor)
        one.unread = files.packed_of(made)
        if one.unread and trained and one.tensor.requires_grad:
            one.unread.read()  # a copy is trained
        if one.is_parameter:
            made = nn.Parameter(made, requires_grad=one.tensor.requires_grad)
        yield one, made
    if missing:
        remedy = (
            "No file has them. Make computed buffers, which files do not store, on another device before. "
            "from_pretrained() of this package does so for models of transformers and diffusers, and renames tensors"
            if files
            else "Name their files by files="
        )
        names = beside_similar(missing, unused)
        raise ValueError(f"tensors on the meta device have no contents: {names}. {remedy}")
    if unused and strict:
        raise ValueError(
            f"the files have tensors that {model} does not have: {', '.join(sorted(unused)[:8])}. "
            "Pass strict=False to ignore them"
        )


def _format_of(weight: Weight) -> WeightFormat | None:
    """The format of all elements of the weight, or None if they have several, or one that cannot be packed."""
    types = {place.original.dtype for place in weight.places}
    format = FORMATS.get(types.pop()) if len(types) == 1 else None
    size = max(place.original.element_size() for place in weight.places)
    return format if weight.bytes and weight.bytes % size == 0 else None


def make_sources(
    device: Device,
    copies: PinnedCopies,
    blocks: list[HeldBlock],
    files: TensorFiles | Mappings | None,
    pin: bool,
    pack: bool,
) -> Iterator[BlockDesc]:
    """Gives each weight its source, and yields the descriptors of the blocks."""
    formats = {weight: _format_of(weight) for block in blocks for weight in block.weights if pack and not block.mutable}
    if pin:
        weights = [weight for block in blocks for weight in block.weights]
        _copy_small(device, copies, [weight for weight in weights if formats.get(weight) is None], files)
    for block in blocks:
        if any(weight.storage.device.type != "cpu" for weight in block.weights):
            _copy_to_host(device, copies, block)
        segments = []
        for weight in block.weights:
            if weight.host is None:
                weight.host = byte_tensor(weight.storage, weight.storage_offset, weight.bytes)
            original = weight.host if weight.copied is None else weight.copied
            file = files.source_of(original) if files else None
            packed = files.packed_of(original) if files else None
            weight.mapped = (file is not None or packed is not None) and not block.mutable
            if weight.copied is not None:
                file, weight.copied = None, None if weight.mapped else weight.copied
            elif file is not None and block.mutable:  # trained weights are not written to files
                # The module gets them at the end. A write to a private mapping does not reach the file.
                if any(place.tensor.requires_grad for place in weight.places):
                    weight.copied = weight.host
                weight.host, file = weight.host.clone(), None
            format = formats.get(weight)
            if packed is not None and weight.host is original:
                weight.unread = packed
                offset = original.data_ptr() - packed.memory.data_ptr()
                for source, at in packed.sources(offset, weight.bytes):
                    segments.append(Segment(source, weight.offset + at))
            elif format is not None:
                weight.packed, weight.mapped = True, False
                segments.append(Segment(Weights(buffer_of(weight.host), format), weight.offset))
            else:
                segments.append(Segment(Mapped(file) if file is not None else buffer_of(weight.host), weight.offset))
        yield BlockDesc(segments, block.name, block.bytes, mutable=block.mutable, unordered=block.unordered, pin=pin)


def _copy_small(
    device: Device, copies: PinnedCopies, weights: list[Weight], files: TensorFiles | Mappings | None
) -> None:
    """Copies the small weights in host memory to one piece of pinned memory. Other tensors and arrays over a weight
    would not see the copy.
    """
    small = [
        weight
        for weight in weights
        if weight.bytes < _weights.SMALL_SOURCE
        and weight.storage.device.type == "cpu"
        and not (weight.earlier or weight.in_array)
    ]
    if not small:
        return
    offsets = [0]
    for weight in small:
        offsets.append(-(-(offsets[-1] + weight.bytes) // _weights.ALIGNMENT) * _weights.ALIGNMENT)
    memory = copies.allocate(device, offsets[-1])
    for weight, offset in zip(small, offsets):
        original = byte_tensor(weight.storage, weight.storage_offset, weight.bytes)
        if files:
            files.read(original)
        weight.host = _part(memory, offset, weight.bytes)
        weight.host.copy_(original)
        weight.copied = original  # from now on the copy is put back at the end


def _copy_to_host(device: Device, copies: PinnedCopies, block: HeldBlock) -> None:
    """Copies the weights of a block from a device to pinned host memory. One block at a time is copied, so that device
    memory becomes free while host memory is filled.
    """
    memory = copies.allocate(device, block.bytes)
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
    """Returns a range of the memory as a tensor with a storage of its own, because to save a tensor saves all of its
    storage.
    """
    return torch.frombuffer(memory.buffer, dtype=torch.uint8, offset=offset, count=bytes)
