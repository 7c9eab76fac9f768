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
from . import _subclasses
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
    """A tensor in a weight: a parameter or buffer, or a part of one."""

    name: str
    tensor: torch.Tensor
    original: torch.Tensor  # what its `data` was
    weight: Weight
    offset: int  # in the weight, in bytes
    version: int = 0
    counted: bool = False  # whether it has versions
    inference: bool = False  # it was made in inference mode, and is used in it
    loading: bool = False
    overwritten: bool = False  # its device memory was changed, and has to be loaded again
    given: torch.Tensor | None = None  # over the source: what is handed out are aliases of it, so that its version tells of changes
    given_version: int = 0
    trained: int = 0  # optimizers' steps of the block when it was handed out

    def put(self, data: torch.Tensor) -> None:
        """Has the tensor be over other memory."""
        with torch._C.DisableTorchFunctionSubclass():
            _data.__set__(self.tensor, data)

    def on_device(self) -> torch.Tensor:
        """Over its device memory."""
        with torch.inference_mode(self.inference):
            return strided(self.weight.memory, self.offset, self.original)

    def put_on_host(self) -> None:
        """Has the tensor be over the source."""
        with torch.inference_mode(self.inference):
            self.put(strided(self.weight.host, self.offset, self.original))

    def host(self) -> torch.Tensor:
        """Over the source."""
        if self.given is None:
            with torch.inference_mode(False), torch.no_grad():
                self.given = strided(self.weight.host, self.offset, self.original)
            self.note_source()
        self.trained = self.weight.block.trained
        return self.given.detach()

    def source_changed(self) -> bool:
        return self.given is not None and self.given._version != self.given_version

    def note_source(self) -> None:
        if self.given is not None:
            self.given_version = self.given._version

    def changed(self) -> bool:
        return self.counted and self.tensor._version != self.version

    def note_version(self) -> None:
        try:
            self.version, self.counted = self.tensor._version, True
        except RuntimeError:  # it was made in inference mode
            self.counted = False


@dataclass(eq=False)
class Entry:
    """A parameter or buffer as modules have it."""

    name: str
    tensor: torch.Tensor  # what they have while it is streamed
    original: torch.Tensor  # what they had before: another one, where it is a wrapper
    keys: list[tuple[nn.Module, str]]  # where modules have it
    places: list[Place]
    kind: type  # its class
    special: bool  # more than its bytes, or a part of such
    has: torch.Tensor = None  # type: ignore[assignment]  # what modules have now, unless they were given something else

    def __post_init__(self) -> None:
        self.has = self.original

    def blocks(self) -> list[HeldBlock]:
        return list(dict.fromkeys(place.weight.block for place in self.places))

    def held(self) -> bool:
        return all(place.weight.block.held() for place in self.places)

    def put(self, tensor: torch.Tensor) -> None:
        """Has modules have another one."""
        before, self.has = self.has, tensor
        put_into(self.keys, before, tensor)

    def is_of(self, module: nn.Module, key: str) -> bool:
        """Whether the module has it there still: it may have been given another parameter since."""
        return entry_of(module, key) is self.has

    def over(self, make: Callable[[Place], torch.Tensor], device: torch.device) -> torch.Tensor:
        """The same over other memory: `make` tells that of each place. What has no bytes goes to the device."""
        of = {id(place.tensor): place for place in self.places}

        def part(tensor: torch.Tensor) -> torch.Tensor:
            if id(tensor) in of:
                return make(of[id(tensor)])
            return tensor.to(device)

        return _subclasses.like(self.original, part, self.kind)

    def host(self) -> torch.Tensor:
        """Over the source."""
        if self.special and self.keys:
            with torch._C.DisableTorchFunctionSubclass():
                return self.over(Place.host, torch.device("cpu"))
        host = self.places[0].host()
        return nn.Parameter(host, requires_grad=self.tensor.requires_grad) if isinstance(self.tensor, nn.Parameter) else host


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
    mutable: bool = False  # it is trained
    entries: list[Entry] = field(default_factory=list)  # that have something in it
    uses: int = 0  # by modules, with gradients, since the last backward
    trained: int = 0  # steps that its optimizer has made
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


def refuse(name: str, tensor: torch.Tensor) -> None:
    """What has no plain bytes cannot be moved by bytes."""
    why = ""
    if isinstance(tensor, (nn.UninitializedParameter, nn.UninitializedBuffer)):
        why = "has no shape yet: call the model once before"
    elif tensor.layout != torch.strided or tensor.is_nested:
        why = f"has the layout {tensor.layout}"
    elif tensor.is_quantized:
        why = f"is quantised ({tensor.dtype}): its scales are not in its bytes. Tensors of torchao, or plain integer tensors, stream"
    elif tensor.is_conj() or tensor.is_neg():
        why = "is conjugated or negated lazily: resolve_conj(), resolve_neg()"
    elif tensor.numel() and not tensor.is_meta and not _has_memory(tensor):
        why = f"is a {_full_name(type(tensor))}, which has no memory of its own, and no __tensor_flatten__ that tells what it is made of"
    if why:
        raise TypeError(f"{name} {why}. It can stay on the device, out of the budget: outside={name!r}")


def _full_name(kind: type) -> str:
    return f"{kind.__module__}.{kind.__qualname__}"


def _has_memory(tensor: torch.Tensor) -> bool:
    try:
        return bool(tensor.untyped_storage().data_ptr())
    except (NotImplementedError, RuntimeError):
        return False


def entry_of(module: nn.Module, key: str) -> torch.Tensor | None:
    found = module._parameters.get(key)
    return module._buffers.get(key) if found is None else found


def put_into(keys: list[tuple[nn.Module, str]], before: torch.Tensor, tensor: torch.Tensor) -> None:
    """Where modules have `before`."""
    for module, key in keys:
        if entry_of(module, key) is before:
            entries: dict[str, Any] = module._parameters if key in module._parameters else module._buffers
            entries[key] = tensor


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
    parts: list[tuple[str, torch.Tensor]] = field(default_factory=list)  # the plain tensors that it is made of
    mapped: bool = False  # it was on the meta device, and is in a file
    stays: bool = False  # in the module, in its place, when streaming ends

    @property
    def is_parameter(self) -> bool:
        return isinstance(self.tensor, nn.Parameter)

    def find_parts(self) -> None:
        """Refuses what cannot be moved."""
        name = self.names[0]
        wrapper = _subclasses.is_wrapper(self.tensor)
        parts = list(_subclasses.parts(self.tensor, name))
        if _subclasses.is_special(self.tensor) and not wrapper:
            for module, key in self.keys:
                parts += _subclasses.beside(module, name[: -len(key)].rstrip("."))
        once: dict[int, tuple[str, torch.Tensor]] = {}
        for part, tensor in parts:
            once.setdefault(id(tensor), (part, tensor))
        self.parts = list(once.values())
        for part, tensor in self.parts:
            refuse(part, tensor)
        if wrapper:
            again = dict(_subclasses.parts(self.tensor, name))
            for part, tensor in self.parts:
                if again[part] is not tensor:
                    kind = _full_name(type(self.tensor))
                    raise TypeError(f"{name} is a {kind}, which makes {part} anew each time. It can stay on the device, out of the budget: outside={name!r}")

    def bytes(self) -> int:
        return sum(tensor.numel() * tensor.element_size() for _, tensor in self.parts)


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
    if unused := [pattern for pattern in patterns if not any(matches(name, [pattern]) for one in found for name in one.names)]:
        raise ValueError(f"outside: no parameter or buffer is {unused}; names are those of named_parameters() and named_buffers()")
    floating = [one for one in found if one.is_parameter and one.tensor.is_floating_point()]
    partly_frozen = any(not one.tensor.requires_grad for one in floating)
    streamed: list[Found] = []
    left: list[Found] = []
    for one in found:
        tensor = one.tensor
        if any(matches(name, patterns) for name in one.names):
            left.append(one)
            continue
        one.find_parts()
        small = not one.is_parameter and one.bytes() < SMALL_BUFFER
        if not one.bytes() or small or (tensor.requires_grad and partly_frozen and not trained):
            left.append(one)
        elif tensor.requires_grad and trained and _subclasses.is_wrapper(tensor):
            raise TypeError(
                f"{one.names[0]} is a {_full_name(type(tensor))} that requires a gradient: it cannot be trained while it is streamed. "
                f"requires_grad_(False), or have it stay on the device, out of the budget: outside={one.names[0]!r}"
            )
        else:
            streamed.append(one)
    if trained and not any(one.tensor.requires_grad for one in streamed):
        raise ValueError("optimizer= is for streamed weights that require a gradient: there is none")
    return streamed, left


def make_weights(streamed: list[Found]) -> tuple[list[Weight], list[Entry]]:
    """One weight for tensors that overlap in memory, in the order in which they are found."""
    parts: dict[int, tuple[str, torch.Tensor]] = {}
    for one in streamed:
        for name, tensor in one.parts:
            if tensor.numel():
                parts.setdefault(id(tensor), (name, tensor))
    by_storage: dict[int, list[tuple[int, int, int, str, torch.Tensor]]] = {}
    for index, (name, tensor) in enumerate(parts.values()):
        first, end = span_of(tensor)
        by_storage.setdefault(tensor.untyped_storage()._cdata, []).append((first, end, index, name, tensor))
    made: list[tuple[int, Weight]] = []
    places: dict[int, Place] = {}
    for spans in by_storage.values():
        spans.sort(key=lambda span: span[:3])
        groups: list[list[tuple[int, int, int, str, torch.Tensor]]] = []
        reach = -1
        for span in spans:
            if span[0] >= reach:
                groups.append([])
            groups[-1].append(span)
            reach = max(reach, span[1])
        for group in groups:
            first, end = group[0][0], max(span[1] for span in group)
            weight = Weight(end - first, group[0][4].untyped_storage(), first)
            for begin, _, _, name, tensor in group:
                place = places[id(tensor)] = Place(name, tensor, _data.__get__(tensor), weight, begin - first)
                place.inference = tensor.is_inference()
                place.note_version()
                weight.places.append(place)
            made.append((min(span[2] for span in group), weight))
    entries = []
    for one in streamed:
        inside = [places[id(tensor)] for _, tensor in one.parts if id(tensor) in places]
        entries.append(Entry(one.names[0], one.tensor, one.tensor, one.keys, inside, type(one.tensor), _subclasses.is_special(one.tensor)))
    return [weight for _, weight in sorted(made, key=lambda pair: pair[0])], entries


def weights_by_tensor(entries: list[Entry]) -> dict[int, list[Weight]]:
    """The weights that a parameter or buffer of a module is made of, by the id of what the module has."""
    return {id(entry.tensor): list(dict.fromkeys(place.weight for place in entry.places)) for entry in entries}


def make_blocks(units: list[Unit], weights: list[Weight], entries: list[Entry], describe: Callable[[Unit], str]) -> dict[Unit, list[HeldBlock]]:
    """A block for each unit, and one for each set of units that share weights, acquired by all of them."""
    of_tensor = weights_by_tensor(entries)
    for unit in units:
        for module in unit.modules():
            for tensor in [*module._parameters.values(), *module._buffers.values()]:
                for weight in of_tensor.get(id(tensor), ()):
                    if unit not in weight.users:
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
