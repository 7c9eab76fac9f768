"""Weights: the tensors of a model that are streamed, their bytes, and their blocks."""

# mypy: disable-error-code="import-not-found,misc,no-untyped-call,unused-ignore"
from __future__ import annotations

from collections import deque
from collections.abc import Callable, Iterable, Iterator
from dataclasses import dataclass, field
from functools import cached_property
from typing import TYPE_CHECKING, Any

import torch
from torch import nn

from .._runtime import Block
from .._view import View
from . import _subclasses
from ._division import Unit, matches
from ._files import PackedTensor
from ._guard import Guard
from ._key import closed
from ._memory import sealed, span_of, strided
from ._movable import changed_elsewhere, full_name, refuse_distributed_weight, refuse_immovable
from ._plainly import plainly
from ._stacks import with_contents

if TYPE_CHECKING:
    from ._aliases import Earlier

# The plain `data` of tensors, whatever property their class has.
_data: Any = torch._C.TensorBase.data
_set_data = _data.__set__
_each = deque[Any](maxlen=0).extend  # calls what a map() calls, without a loop in Python
_modes: Callable[[], int] = torch._C._len_torch_dispatch_stack
# Weights in a block begin at multiples of this number of bytes, as blocks and the tensors of GPUs do.
ALIGNMENT = 256
# The alignment of PyTorch's tensors in host memory. Kernels of processors tell no larger ones apart.
HOST_ALIGNMENT = 64
# Smaller buffers stay outside: counters and statistics, which a model may write, and small tables.
SMALL_BUFFER = 64 << 10
# Smaller sources are copied to pinned memory if they are to be pinned. In place they share pages with other sources,
# and drivers refuse to pin a page twice. Also each of them would need a call to pin it.
SMALL_SOURCE = 256 << 10


@dataclass(eq=False)
class Place:
    """A tensor in a weight: a parameter or buffer, or a part of such a tensor."""

    name: str
    tensor: torch.Tensor
    original: torch.Tensor  # the `data` of the tensor before streaming
    weight: Weight
    offset: int  # in the weight, in bytes
    version: int = 0
    counted: bool = False  # whether the tensor has versions
    inference: bool = False  # whether the tensor was made in inference mode
    loading: bool = False
    special: bool = False  # whether its class may have functions of its own
    overwritten: bool = False  # whether its device memory was changed and has to be loaded again
    # A tensor over the source. Callers get aliases of it, so its version tells that the source was changed.
    given: torch.Tensor | None = None
    given_version: int = 0
    trained: int = 0  # the optimizer's steps of the block when a caller got an alias
    # The data over the device memory while the block is held, and the data with the key of unheld weights.
    open: torch.Tensor = None  # type: ignore[assignment]
    closed: torch.Tensor = None  # type: ignore[assignment]

    def put(self, data: torch.Tensor) -> None:
        """Puts the tensor over other memory."""
        with torch._C.DisableTorchFunctionSubclass():
            _data.__set__(self.tensor, data)

    def find_memory(self) -> None:
        """Makes the data over the device memory."""
        with torch.inference_mode(self.inference):
            self.open = strided(self.weight.memory, self.offset, self.original)
            self.closed = closed(self.open)
        self.special = _subclasses.is_special(self.tensor)

    def put_on_device(self) -> None:
        self.put(self.open if self.weight.block.open else self.closed)

    def host(self) -> torch.Tensor:
        """Returns data over the source."""
        if self.is_moved():
            changed, self.given = self.source_changed(), None
            if changed:
                raise changed_elsewhere(self.name)
        if self.given is None:
            with plainly():
                self.given = strided(self.weight.to_give(), self.offset, self.original)
            self.note_source()
        self.trained = self.weight.block.trained
        return self.given.detach()

    def is_moved(self) -> bool:
        """Whether other code has moved the memory of the tensors that it got."""
        return self.given is not None and self.given.data_ptr() != self.weight.host.data_ptr() + self.offset

    def may_change(self) -> bool:
        """Whether other code has tensors over the source, or whether the device memory was overwritten."""
        return self.overwritten or self.given is not None or bool(self.weight.earlier)

    def source_changed(self) -> bool:
        if self.given is not None and self.given._version != self.given_version:
            return True
        return any(tensor.changed() for tensor in self.weight.earlier)

    def note_source(self) -> None:
        if self.given is not None:
            self.given_version = self.given._version
        if self.weight.earlier:
            for tensor in self.weight.earlier:
                tensor.note()
            self.note_version()  # a view that was made before shares the versions of the weight

    def note_write(self) -> None:
        """Has autograd see a change of the source, as it sees a change of a tensor in place."""
        if self.counted:
            torch.autograd.graph.increment_version(self.tensor)
        self.note_version()

    def note_version(self) -> None:
        try:
            self.version, self.counted = self.tensor._version, True
        except RuntimeError:  # tensors of inference mode have no version
            self.counted = False


@dataclass(eq=False)
class Entry:
    """A parameter or buffer of modules."""

    name: str
    tensor: torch.Tensor  # the tensor of the modules while it is streamed
    original: torch.Tensor  # the tensor of the modules before; it is another one for a wrapper
    keys: list[tuple[nn.Module, str]]  # the modules, and the names by which they have the tensor
    places: list[Place]
    kind: type  # the class of the original
    special: bool  # whether it is more than its bytes, or a part of such a tensor
    has: torch.Tensor = None  # type: ignore[assignment]  # the tensor that was last put into the modules
    converted: bool = False  # whether that tensor is a converted copy

    def __post_init__(self) -> None:
        self.has = self.original

    def blocks(self) -> list[HeldBlock]:
        return list(dict.fromkeys(place.weight.block for place in self.places))

    def held(self) -> bool:
        return all(place.weight.block.held() for place in self.places)

    def put(self, tensor: torch.Tensor) -> None:
        """Gives the modules another tensor."""
        before, self.has = self.has, tensor
        put_into(self.keys, before, tensor)

    def is_of(self, module: nn.Module, key: str) -> bool:
        """Whether the module still has the tensor. It may have been given another parameter since."""
        return not self.converted and entry_of(module, key) is self.has

    def over(self, make: Callable[[Place], torch.Tensor], device: torch.device) -> torch.Tensor:
        """Makes the same tensor over other memory. `make` returns the data of each place. Tensors without bytes go to
        `device`.
        """
        of = {id(place.tensor): place for place in self.places}

        def part(tensor: torch.Tensor) -> torch.Tensor:
            if id(tensor) in of:
                return make(of[id(tensor)])
            return tensor.to(device)

        return _subclasses.like(self.original, part, self.kind)

    def host(self) -> torch.Tensor:
        """Returns a tensor over the source."""
        with plainly():
            if self.special and self.keys:
                return self.over(Place.host, torch.device("cpu"))
            host = self.places[0].host()
            if isinstance(self.tensor, nn.Parameter):
                return nn.Parameter(host, requires_grad=self.tensor.requires_grad)
            return host


@dataclass(eq=False)
class Weight:
    """A range of bytes that moves as one: a parameter, or several parameters that overlap."""

    bytes: int
    storage: torch.UntypedStorage  # the storage before streaming
    storage_offset: int
    places: list[Place] = field(default_factory=list)
    users: list[Unit] = field(default_factory=list)
    host: torch.Tensor = None  # type: ignore[assignment]  # the source, as bytes
    mapped: bool = False  # whether the source is a file
    packed: bool = False  # whether the library has packed its bytes, so that the source is not read any more
    unread: PackedTensor | None = None  # what a file has packed, whose memory `host` is
    copied: torch.Tensor | None = None  # the original bytes, if the source is a copy of them
    moved: torch.device | None = None  # the device that it was on, if it was copied to the host
    given: torch.Tensor | None = None  # the same bytes, for other code
    memory: torch.Tensor = None  # type: ignore[assignment]  # the device memory, as bytes
    block: HeldBlock = None  # type: ignore[assignment]
    offset: int = 0  # in the block
    lead: int = 0  # how many bytes it begins after a multiple of the alignment
    from_file: bool = False  # whether it was on the meta device and comes from a file
    earlier: list[Earlier] = field(default_factory=list)  # the tensors over the storage that were made before
    in_array: bool = False  # whether an array of the program's has a part of it

    def source(self) -> torch.Tensor:
        """The source, as bytes that can be read."""
        if self.unread is not None:
            self.unread.read()
        return self.host

    def to_give(self) -> torch.Tensor:
        """The source for tensors of other code, which may move their memory, as multiprocessing does."""
        source = self.source()
        if self.given is None or self.given.data_ptr() != source.data_ptr():
            self.given = sealed(source)
        return self.given

    @property
    def fixed(self) -> str:
        """Why no step would see a change of the source, or ""."""
        if self.mapped:
            return "streamed from a mapped file, and files are not written to"
        return "packed (pack=True), and only the packed weights are read" if self.packed else ""


@dataclass(eq=False)
class HeldBlock:
    """A block with its weights, and the views that hold it."""

    name: str
    weights: list[Weight] = field(default_factory=list)
    bytes: int = 0
    block: Block = None  # type: ignore[assignment]
    members: list[Block] = field(default_factory=list)  # those of a set that have parts of the same sources
    forward: list[View] = field(default_factory=list)
    backward: dict[int | None, View] = field(default_factory=dict)  # by stream
    mutable: bool = False  # whether it is trained
    entries: list[Entry] = field(default_factory=list)  # the entries that have bytes in the block
    uses: int = 0  # how often modules have used it with gradients since the last backward
    trained: int = 0  # how many steps its optimizer has made
    # An unordered block is held while other blocks come and go. The ring of ordered blocks is not made for that.
    unordered: bool = False
    open: bool = True  # whether operations may read the weights without asking
    # The classes of each wrapper: the class while it is held, and the class while it is not held.
    wrappers: list[tuple[Entry, type, type]] = field(default_factory=list)

    def held(self) -> bool:
        return bool(self.forward or self.backward)

    def settle(self) -> None:
        """Opens the weights while modules hold the block. A backward asks, because later nodes use what it makes."""
        tensors, opened, closed, special, guard = self._swaps
        guard.set(self.held())
        held = bool(self.forward or (self.backward and (special or self.wrappers)))
        if held is self.open:
            return
        self.open = held
        # Modes of the user, and the check of reads, need not see this. The scope costs as much as a weight.
        unseen = torch._C._DisableTorchDispatch() if _modes() else None  # type: ignore[attr-defined]
        _each(map(_set_data, tensors, opened if held else closed))
        for place in special:
            place.put_on_device()
        del unseen
        for entry, own, served in self.wrappers:
            entry.tensor.__class__ = own if entry.held() else served

    @cached_property
    def _swaps(self) -> tuple[Any, ...]:
        """The plain tensors with their data while the block is held and while not, the places of others, the guard."""
        plain, special = ([one for one in self.all_places if one.special is kind] for kind in (False, True))
        return *([getattr(one, name) for one in plain] for name in ("tensor", "open", "closed")), special, Guard(self)

    @cached_property
    def all_places(self) -> list[Place]:
        return [place for weight in self.weights for place in weight.places]

    def changed(self) -> list[Place]:
        return changed_in_place(self.all_places)

    def places(self) -> Iterator[Place]:
        for weight in self.weights:
            yield from weight.places

    def add(self, weight: Weight) -> None:
        weight.block = self
        weight.offset = -(-self.bytes // ALIGNMENT) * ALIGNMENT + weight.lead
        self.weights.append(weight)
        self.bytes = weight.offset + weight.bytes


def changed_in_place(places: Iterable[Place]) -> list[Place]:
    """Returns the places whose tensors were changed in place."""
    return [place for place in places if place.counted and place.tensor._version != place.version]


def entry_of(module: nn.Module, key: str) -> torch.Tensor | None:
    found = module._parameters.get(key)
    return module._buffers.get(key) if found is None else found


def put_into(keys: list[tuple[nn.Module, str]], before: torch.Tensor, tensor: torch.Tensor) -> None:
    """Gives modules `tensor` where they have `before`."""
    for module, key in keys:
        if entry_of(module, key) is before:
            entries: dict[str, Any] = module._parameters if key in module._parameters else module._buffers
            entries[key] = tensor


@dataclass(eq=False)
class Found:
    """A tensor of a model, with its names and the modules that have it."""

    tensor: torch.Tensor
    names: list[str] = field(default_factory=list)
    keys: list[tuple[nn.Module, str]] = field(default_factory=list)
    parts: list[tuple[str, torch.Tensor]] = field(default_factory=list)  # the plain tensors that it is made of
    mapped: bool = False  # whether it was on the meta device and comes from a file
    unread: PackedTensor | None = None  # what that file has packed
    stays: bool = False  # whether the module keeps it when streaming ends

    @property
    def is_parameter(self) -> bool:
        return isinstance(self.tensor, nn.Parameter)

    def find_parts(self) -> None:
        """Finds the plain tensors that the tensor is made of, and refuses tensors that cannot be moved."""
        name = self.names[0]
        refuse_distributed_weight(name, self.tensor)
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
            refuse_immovable(part, tensor)
        if wrapper:
            again = dict(_subclasses.parts(self.tensor, name))
            for part, tensor in self.parts:
                if again[part] is not tensor:
                    kind = full_name(type(self.tensor))
                    raise TypeError(
                        f"{name} is a {kind}, which makes {part} anew each time. "
                        f"Keep it on the device, outside the budget, by outside={name!r}"
                    )

    def bytes(self) -> int:
        return sum(tensor.numel() * tensor.element_size() for _, tensor in self.parts)


def find_tensors(root: nn.Module) -> list[Found]:
    """Returns all parameters and buffers of a model, each one once."""
    found: dict[int, Found] = {}
    for module_name, module in root.named_modules():
        for key, tensor in [*module._parameters.items(), *module._buffers.items()]:
            if tensor is not None:
                one = found.setdefault(id(tensor), Found(with_contents(tensor)))
                one.names.append(f"{module_name}.{key}" if module_name else key)
                one.keys.append((module, key))
    return list(found.values())


def choose(found: list[Found], outside: Iterable[str], trained: bool) -> tuple[list[Found], list[Found]]:
    """Returns the tensors to stream, and the tensors that stay outside. These match `outside`, or are small buffers, or
    require a gradient beside frozen weights.
    """
    patterns = list(outside)
    names = [name for one in found for name in one.names]
    if unused := [pattern for pattern in patterns if not any(matches(name, [pattern]) for name in names)]:
        raise ValueError(
            f"outside={unused} matches no parameter or buffer: use names of named_parameters() and named_buffers()"
        )
    floating = [one for one in found if one.is_parameter and one.tensor.is_floating_point()]
    partly_frozen = any(not one.tensor.requires_grad for one in floating)
    streamed: list[Found] = []
    left: list[Found] = []
    for one in found:
        if any(matches(name, patterns) for name in one.names):
            left.append(one)
            continue
        one.find_parts()
        small = not one.is_parameter and one.bytes() < SMALL_BUFFER
        if not one.bytes() or small or (one.tensor.requires_grad and partly_frozen and not trained):
            left.append(one)
        elif one.tensor.requires_grad and trained and _subclasses.is_wrapper(one.tensor):
            raise TypeError(
                f"{one.names[0]} is a {full_name(type(one.tensor))} that requires a gradient, "
                "and cannot be trained while it is streamed. Call requires_grad_(False) on it, "
                f"or keep it on the device, outside the budget, by outside={one.names[0]!r}"
            )
        else:
            streamed.append(one)
    if trained and not any(one.tensor.requires_grad for one in streamed):
        raise ValueError("optimizer= was given, but no streamed weight requires a gradient")
    return streamed, left


def make_weights(streamed: list[Found], device: torch.device) -> tuple[list[Weight], list[Entry]]:
    """Makes the weights in the order of the tensors. Tensors that overlap in memory are one weight.

    Kernels may sum up in another order where a tensor begins at another alignment. So a weight has the alignment that
    it has in the model that is not streamed: its own, unless that model is copied to the device or loaded from a file.
    """
    parts: dict[int, tuple[str, torch.Tensor]] = {}
    from_files = {id(tensor) for one in streamed if one.mapped for _, tensor in one.parts}
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
            weight.from_file = id(group[0][4]) in from_files
            if weight.storage.device.type == device.type and not weight.from_file:
                alignment = HOST_ALIGNMENT if device.type == "cpu" else ALIGNMENT
                weight.lead = (weight.storage.data_ptr() + first) % alignment
            for begin, _, _, name, tensor in group:
                place = places[id(tensor)] = Place(name, tensor, _data.__get__(tensor), weight, begin - first)
                place.inference = tensor.is_inference()
                place.note_version()
                weight.places.append(place)
            made.append((min(span[2] for span in group), weight))
    entries = []
    for one in streamed:
        inside = [places[id(tensor)] for _, tensor in one.parts if id(tensor) in places]
        entries.append(
            Entry(
                one.names[0],
                one.tensor,
                one.tensor,
                one.keys,
                inside,
                type(one.tensor),
                _subclasses.is_special(one.tensor),
            )
        )
    return [weight for _, weight in sorted(made, key=lambda pair: pair[0])], entries


def weights_by_tensor(entries: list[Entry]) -> dict[int, list[Weight]]:
    """Returns the weights of each parameter or buffer, by the id of the module's tensor."""
    return {id(entry.tensor): list(dict.fromkeys(place.weight for place in entry.places)) for entry in entries}


def make_blocks(
    units: list[Unit], weights: list[Weight], entries: list[Entry], describe: Callable[[Unit], str]
) -> dict[Unit, list[HeldBlock]]:
    """Makes a block for each unit, and one for each set of units that share weights. All units of a set acquire the
    shared block.
    """
    of_tensor = weights_by_tensor(entries)
    for weight in weights:
        weight.users.clear()
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
            raise ValueError(
                f"{weight.places[0].name} belongs to no module with a forward, so no call would hold it. "
                f"Keep it on the device by outside={weight.places[0].name!r}"
            )
        key = tuple(id(unit) for unit in weight.users)
        if key not in blocks:
            name = " and ".join(describe(unit) for unit in weight.users)
            blocks[key] = HeldBlock(name)
            for unit in weight.users:
                used.setdefault(unit, []).append(blocks[key])
        blocks[key].add(weight)
        blocks[key].unordered |= any(unit.own for unit in weight.users)
    return used
