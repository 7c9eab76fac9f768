"""Weights: what of a model is streamed, in which bytes, and in which block."""
# mypy: disable-error-code="import-not-found,misc,no-untyped-call,unused-ignore"
from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator
from dataclasses import dataclass, field
from fnmatch import fnmatchcase
from typing import Any

import torch
from torch import nn

from .._runtime import Block
from .._view import View
from ._division import Unit
from ._memory import strided

# Of all tensors, whatever their class says.
_data: Any = torch._C.TensorBase.data
# Weights begin at multiples of it, as blocks do.
ALIGNMENT = 256
# Buffers below this are left outside: counters and statistics, which a model may write, and tables of a few positions.
SMALL_BUFFER = 64 << 10
# Below this sources that are to be pinned are copied to pinned memory. Where they lie they share pages with others, which drivers refuse to pin
# twice, and each would be pinned for itself.
SMALL_SOURCE = 256 << 10


@dataclass(eq=False)
class Place:
    """A parameter or buffer in a weight."""

    name: str
    tensor: torch.Tensor
    original: torch.Tensor  # what its `data` was
    weight: Weight
    offset: int  # in the weight, in bytes
    keys: list[tuple[nn.Module, str]]  # where modules have it
    version: int = 0
    counted: bool = False  # whether it has versions
    loading: bool = False
    kind: type = torch.Tensor  # the tensor's class

    def put(self, data: torch.Tensor) -> None:
        """Has the parameter or buffer be over other memory."""
        _data.__set__(self.tensor, data)

    def on_device(self) -> torch.Tensor:
        """Over its device memory."""
        return strided(self.weight.memory, self.offset, self.original)

    def host(self) -> torch.Tensor:
        """Over the source."""
        return strided(self.weight.host, self.offset, self.original)

    def changed(self) -> bool:
        return self.counted and self.tensor._version != self.version

    def note_version(self) -> None:
        self.counted = not self.tensor.is_inference()
        self.version = self.tensor._version if self.counted else 0


@dataclass(eq=False)
class Weight:
    """A range of bytes that moves as one: a parameter, or several that overlap."""

    bytes: int
    storage: torch.UntypedStorage  # of the original
    storage_offset: int
    places: list[Place] = field(default_factory=list)
    users: list[Unit] = field(default_factory=list)
    host: torch.Tensor = None  # type: ignore[assignment]  # the source, as bytes
    mapped: bool = False  # the source is a file
    copied: torch.Tensor | None = None  # the original's bytes, where the source is a copy of them
    moved: torch.device | None = None  # where it was before it was copied to the host
    memory: torch.Tensor = None  # type: ignore[assignment]  # the device's
    block: HeldBlock = None  # type: ignore[assignment]
    offset: int = 0  # in the block


@dataclass(eq=False)
class HeldBlock:
    """A block with its weights, and how it is held."""

    name: str
    weights: list[Weight] = field(default_factory=list)
    bytes: int = 0
    block: Block = None  # type: ignore[assignment]
    forward: list[View] = field(default_factory=list)
    backward: dict[int | None, View] = field(default_factory=dict)  # by stream
    mutable: bool = False
    uses: int = 0  # by modules, since the last backward
    # Held while other blocks come and go, which the memory that ordered blocks share is not made for.
    unordered: bool = False

    def held(self) -> bool:
        return bool(self.forward or self.backward)

    def places(self) -> Iterator[Place]:
        for weight in self.weights:
            yield from weight.places

    def add(self, weight: Weight) -> None:
        weight.block = self
        weight.offset = -(-self.bytes // ALIGNMENT) * ALIGNMENT
        self.weights.append(weight)
        self.bytes = weight.offset + weight.bytes


def refuse_special(name: str, tensor: torch.Tensor) -> None:
    """What has no plain bytes of its own, or keeps more beside them, cannot be moved by bytes."""
    why = ""
    if isinstance(tensor, (nn.UninitializedParameter, nn.UninitializedBuffer)):
        why = "has no shape yet: call the model once before"
    elif tensor.layout != torch.strided or tensor.is_nested:
        why = f"has the layout {tensor.layout}"
    elif tensor.is_quantized:
        why = f"is quantised ({tensor.dtype}): its scales are not in its bytes. Models whose quantised weights are plain integer tensors stream"
    elif type(tensor) not in (torch.Tensor, nn.Parameter):
        why = f"is a {type(tensor).__module__}.{type(tensor).__qualname__}, which may keep more than its bytes"
    elif tensor.is_conj() or tensor.is_neg():
        why = "is conjugated or negated lazily: resolve_conj(), resolve_neg()"
    if why:
        raise TypeError(f"{name} {why}. It can stay on the device, out of the budget: outside={name!r}")


def matches(name: str, patterns: Iterable[str]) -> bool:
    return any(fnmatchcase(name, pattern) for pattern in patterns)


def span_of(tensor: torch.Tensor) -> tuple[int, int]:
    """The bytes of its storage that it covers."""
    last = sum((int(size) - 1) * int(stride) for size, stride in zip(tensor.size(), tensor.stride()))
    first = int(tensor.storage_offset())
    return first * tensor.element_size(), (first + last + 1) * tensor.element_size()


@dataclass(eq=False)
class Found:
    """A tensor of a model, with the names and modules that it is found by."""

    tensor: torch.Tensor
    names: list[str] = field(default_factory=list)
    keys: list[tuple[nn.Module, str]] = field(default_factory=list)

    @property
    def is_parameter(self) -> bool:
        return isinstance(self.tensor, nn.Parameter)


def find_tensors(root: nn.Module) -> list[Found]:
    """Every parameter and buffer, once each."""
    found: dict[int, Found] = {}
    for module_name, module in root.named_modules():
        for key, tensor in [*module._parameters.items(), *module._buffers.items()]:
            if tensor is not None:
                one = found.setdefault(id(tensor), Found(tensor))
                one.names.append(f"{module_name}.{key}" if module_name else key)
                one.keys.append((module, key))
    return list(found.values())


def choose(found: list[Found], outside: Iterable[str], trained: bool) -> tuple[list[Found], list[Found]]:
    """What is streamed, and what stays outside: what was told, small buffers, and what is trained beside frozen weights."""
    patterns = list(outside)
    floating = [one for one in found if one.is_parameter and one.tensor.is_floating_point()]
    partly_frozen = any(not one.tensor.requires_grad for one in floating)
    streamed: list[Found] = []
    left: list[Found] = []
    for one in found:
        tensor = one.tensor
        if any(matches(name, patterns) for name in one.names):
            left.append(one)
            continue
        refuse_special(one.names[0], tensor)
        small = not one.is_parameter and tensor.numel() * tensor.element_size() < SMALL_BUFFER
        if not tensor.numel() or small or (tensor.requires_grad and partly_frozen and not trained):
            left.append(one)
        else:
            streamed.append(one)
    return streamed, left


def make_weights(streamed: list[Found]) -> list[Weight]:
    """One weight for tensors that overlap in memory, in the order in which they are found."""
    by_storage: dict[int, list[tuple[int, int, int, Found]]] = {}
    for index, one in enumerate(streamed):
        first, end = span_of(one.tensor)
        by_storage.setdefault(one.tensor.untyped_storage()._cdata, []).append((first, end, index, one))
    made: list[tuple[int, Weight]] = []
    for spans in by_storage.values():
        spans.sort(key=lambda span: span[:3])
        groups: list[list[tuple[int, int, int, Found]]] = []
        reach = -1
        for span in spans:
            if span[0] >= reach:
                groups.append([])
            groups[-1].append(span)
            reach = max(reach, span[1])
        for group in groups:
            first, end = group[0][0], max(span[1] for span in group)
            weight = Weight(end - first, group[0][3].tensor.untyped_storage(), first)
            for begin, _, _, one in group:
                place = Place(one.names[0], one.tensor, one.tensor.data, weight, begin - first, one.keys)
                place.note_version()
                weight.places.append(place)
            made.append((min(span[2] for span in group), weight))
    return [weight for _, weight in sorted(made, key=lambda pair: pair[0])]


def make_blocks(units: list[Unit], weights: list[Weight], describe: Callable[[Unit], str]) -> dict[Unit, list[HeldBlock]]:
    """A block for each unit, and one for each set of units that share weights, acquired by all of them."""
    of_tensor = {id(place.tensor): weight for weight in weights for place in weight.places}
    for unit in units:
        for module in unit.modules():
            for tensor in [*module._parameters.values(), *module._buffers.values()]:
                weight = of_tensor.get(id(tensor))
                if weight is not None and unit not in weight.users:
                    weight.users.append(unit)
    blocks: dict[tuple[int, ...], HeldBlock] = {}
    used: dict[Unit, list[HeldBlock]] = {}
    for weight in weights:
        if not weight.users:
            raise ValueError(f"{weight.places[0].name} belongs to no module that is called: outside={weight.places[0].name!r}")
        key = tuple(id(unit) for unit in weight.users)
        if key not in blocks:
            name = " and ".join(describe(unit) for unit in weight.users)
            blocks[key] = HeldBlock(name)
            for unit in weight.users:
                used.setdefault(unit, []).append(blocks[key])
        blocks[key].add(weight)
        blocks[key].unordered |= any(unit.own for unit in weight.users)
    return used
