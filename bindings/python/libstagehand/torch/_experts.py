"""Experts, one by one: a call of a layer's experts without gradients gets a pool of slots in the place of its tensors,
and the numbers of slots in the place of those that the router has chosen. So only the experts that tokens use are
loaded. An expert that is a module of a list is loaded into a slot when it is called.
"""

# mypy: disable-error-code="import-not-found,misc,no-untyped-call,unused-ignore"
from __future__ import annotations

import inspect
import re
from collections.abc import Callable, Iterator
from typing import Any

import torch
from torch import nn

from .._errors import BudgetError
from .._members import Members, MemberSet
from .._runtime import Runtime
from .._sources import BlockDesc, Mapped, Segment
from ._division import Unit, is_called, own_tensors
from ._guesses import Guesses, Told, make_guesses
from ._hooks import Hook, Running, UnitHooks, _Enter, _Leave
from ._memory import buffer_of, memory_tensor
from ._weights import ALIGNMENT, HeldBlock, Place, Weight

# The argument of a forward that has the numbers of the experts of each token, as the models of transformers call it.
_ROUTES = ("top_k_index", "router_indices", "selected_experts")
# The name of an expert in a list. Lists of other names may have layers that every call uses.
_LISTED = re.compile(r"(^|\.)experts\.(expert_)?\d+$")
# The most experts that a plan has slots for in any case. A call that uses more has them if there is memory.
_CALL_EXPERTS = 8
# So few routes are looked through in Python: each operation of PyTorch takes some microseconds.
_FEW_ROUTES = 256
# A grouped product of PyTorch on CUDA takes fewer groups than this, and each slot of a pool is a group.
_GROUPS = 1024


def _route_of(module: nn.Module) -> tuple[int, str] | None:
    """The place and the name of the argument of a forward that has the experts of each token."""
    names = list(inspect.signature(type(module).forward).parameters)[1:]
    return next(((place, name) for place, name in enumerate(names) if name in _ROUTES), None)


def is_stacked(module: nn.Module) -> bool:
    """Whether a module has the tensors of all its experts, one behind the other, and gets the experts of each token.
    Modules in it that it calls, such as a norm, are blocks of their own.
    """
    count = getattr(module, "num_experts", None)
    tensors = list(module._parameters.values())
    return (
        isinstance(count, int)
        and count > 1
        and bool(tensors)
        and not module._buffers
        and all(map(is_called, module.children()))
        and all(tensor is not None and tensor.dim() > 1 and tensor.size(0) == count for tensor in tensors)
        and _route_of(module) is not None
    )


def alone_in(model: nn.Module) -> Callable[[nn.Module], bool]:
    """Tells the modules of a model that have experts, or are experts of a list."""
    listed = {module for name, module in model.named_modules() if _LISTED.search(name) and is_called(module)}
    return lambda module: module in listed or is_stacked(module)


def _sources(weight: Weight, begin: int, bytes: int) -> Iterator[tuple[Any, int]]:
    """Yields the sources of a part of a weight, and where they begin in it. What a file has packed is unpacked on the
    device.
    """
    if weight.unread is not None:
        yield from weight.unread.sources(weight.host.data_ptr() - weight.unread.memory.data_ptr() + begin, bytes)
        return
    part = buffer_of(weight.host[begin : begin + bytes])
    in_file = weight.mapped and weight.host.data_ptr() == weight.storage.data_ptr() + weight.storage_offset
    yield Mapped(part) if in_file else part, 0


class Layer:
    """The experts of one module: all of a layer if they are stacked, or one of a list."""

    def __init__(self, unit: Unit, places: list[Place]) -> None:
        self.unit = unit
        self.name = unit.name
        self.module = unit.module
        self.places = places
        self.stacked = is_stacked(unit.module)
        self.count: int = unit.module.num_experts if self.stacked else 1  # type: ignore[assignment]
        self.group = unit.name if self.stacked else unit.name.rpartition(".")[0]
        self.keys = list(unit.module._parameters)
        self.route = _route_of(unit.module) if self.stacked else None
        self.offsets = [0]  # of each tensor's part, in a member
        for place in places:
            self.offsets.append(-(-(self.offsets[-1] + self._part(place)) // ALIGNMENT) * ALIGNMENT)
        self.bytes = self.offsets.pop()
        self.pool: Pool = None  # type: ignore[assignment]
        self.first = 0  # the number of its first expert in the pool's set
        self.guesses: Guesses | None = None  # of its experts
        self.next: Layer | None = None

    def _part(self, place: Place) -> int:
        return int(place.original.nbytes) // self.count

    def is_plain(self) -> bool:
        """Whether the module reads its tensors themselves. Adapters may put what they compute in their place."""
        return not self.stacked or all(key in self.module._parameters for key in self.keys)

    def set_count(self, count: int) -> None:
        """Tells the module how many experts its tensors have."""
        if self.stacked:
            self.module.__dict__["num_experts"] = count  # a module takes long to set an attribute

    def shape(self) -> tuple[Any, ...]:
        """What the layers of one pool have in common."""
        skipped = int(self.stacked)
        return (self.count, *((place.original.dtype, place.original.shape[skipped:]) for place in self.places))

    def describe(self) -> Iterator[BlockDesc]:
        for number in range(self.count):
            segments = []
            for place, offset in zip(self.places, self.offsets):
                bytes = self._part(place)
                for source, at in _sources(place.weight, place.offset + number * bytes, bytes):
                    segments.append(Segment(source, offset + at))
            yield BlockDesc(segments, f"{self.name}.{number}" if self.stacked else self.name, self.bytes)


class Pool:
    """The slots of all layers whose experts have one shape. A group has the experts of a layer."""

    def __init__(self, runtime: Runtime, groups: list[list[Layer]], device: torch.device) -> None:
        self._device, self._kind = device, runtime.device.kind
        layers = [layer for group in groups for layer in group]
        first, at = layers[0], 0
        for layer in layers:
            layer.pool, layer.first = self, at
            at += layer.count
        descs = [desc for layer in layers for desc in layer.describe()]
        self.set: MemberSet = runtime.register_set(
            descs,
            call_members=_call_experts(groups[0]),
            group_members=_count(groups[0]),
            name=first.group,
        )
        for layer in layers:
            for place in layer.places:
                place.weight.block.members = self.set.blocks[layer.first : layer.first + layer.count]
        self._seen: tuple[int, int] = (0, 0)
        self._memory: torch.Tensor = None  # type: ignore[assignment]
        self._made: dict[Layer, list[torch.Tensor]] = {}  # over that memory

    def tensors(self, members: Members, layer: Layer) -> list[torch.Tensor]:
        """The tensors of a layer over the pool, with as many experts as there are slots, or of an expert in a list over
        its slot.
        """
        if self._seen != (members.address, members.bytes):
            self._seen = members.address, members.bytes
            self._memory = memory_tensor(members.address, members.bytes, self._device, self._kind)
            self._made = {}
        made = self._made.get(layer)
        if made is None:
            made = self._make(members, layer)
            if layer.stacked:
                self._made[layer] = made
        return made

    def _make(self, members: Members, layer: Layer) -> list[torch.Tensor]:
        stride, made = self.set.stride, []
        for place, offset in zip(layer.places, layer.offsets):
            like = place.original
            size = like.element_size()
            at = self._memory.storage_offset() + offset
            shape: Any = like.shape
            strides: Any = like.stride()
            if layer.stacked:
                shape, strides = (members.bytes // stride, *shape[1:]), (stride // size, *strides[1:])
            else:
                at += members.slots[0] * stride
            whole = torch.empty(0, dtype=like.dtype, device=self._memory.device)
            made.append(whole.set_(self._memory.untyped_storage(), at // size, shape, strides))
        return made


def make_layers(units: dict[Unit, list[HeldBlock]]) -> list[Layer]:
    """The layers whose experts are loaded one by one: those whose tensors lie whole and plain in memory or a file."""
    layers = []
    for unit, blocks in units.items():
        stacked = is_stacked(unit.module)
        if not (stacked or _LISTED.search(unit.name)) or any(block.mutable for block in blocks):
            continue
        tensors = {id(tensor) for tensor in own_tensors(unit.module)} if stacked else _tensors(unit)
        places = [place for block in blocks for place in block.all_places]
        plain = all(
            place.original.is_contiguous()
            and id(place.tensor) in tensors
            and len(place.weight.users) == 1
            and not place.special
            and not place.weight.packed  # which would be packed twice
            for place in places
        )
        if plain and places and (not stacked or len(places) == len(tensors)):
            layers.append(Layer(unit, places))
    return layers


def _tensors(unit: Unit) -> set[int]:
    return {id(tensor) for module in unit.modules() for tensor in own_tensors(module)}


def _count(group: list[Layer]) -> int:
    return sum(layer.count for layer in group)


def _call_experts(group: list[Layer]) -> int:
    return min(_count(group), _CALL_EXPERTS)


def alike(layers: list[Layer]) -> Iterator[list[list[Layer]]]:
    """Yields the groups of experts that share a pool: they are as many, and have one shape."""
    groups: dict[tuple[Any, ...], list[Layer]] = {}
    for layer in layers:
        groups.setdefault((layer.group, layer.shape()), []).append(layer)
    by_shape: dict[tuple[Any, ...], list[list[Layer]]] = {}
    for (_, shape), group in groups.items():
        by_shape.setdefault((len(group), shape), []).append(group)
    for same in by_shape.values():
        most = max(1, (_GROUPS - 1) // _count(same[0])) if same[0][0].stacked else len(same)
        for first in range(0, len(same), most):
            yield same[first : first + most]


def pool_bytes(units: dict[Unit, list[HeldBlock]]) -> int:
    """The least bytes of the pools of these units' experts."""
    return sum(_call_experts(groups[0]) * groups[0][0].bytes for groups in alike(make_layers(units)))


def make_hooks(
    running: Running,
    model: nn.Module,
    units: dict[Unit, list[HeldBlock]],
    runtime: Runtime,
    device: torch.device,
    by_expert: bool,
) -> Iterator[UnitHooks]:
    """Yields the hooks of all units. With `by_expert` the experts of layers are registered as the members of sets:
    layers whose experts have one shape share a pool.
    """
    layers = {layer.unit: layer for layer in (make_layers(units) if by_expert else [])}
    for groups in alike(list(layers.values())):
        Pool(runtime, groups, device)
    stacked = [layer for layer in layers.values() if layer.stacked]
    places = {id(place.tensor): place for blocks in units.values() for block in blocks for place in block.all_places}
    running.guesses = make_guesses(model, stacked, places)
    for unit, blocks in units.items():
        if unit in layers:
            yield ExpertHooks(running, unit, blocks, layers[unit])
        else:
            yield UnitHooks(running, unit, blocks, False)


class ExpertHooks(UnitHooks):
    """The hooks of a layer's experts, or of an expert in a list. A call with gradients holds them as a block, as any
    unit does.
    """

    def __init__(self, running: Running, unit: Unit, blocks: list[HeldBlock], layer: Layer) -> None:
        super().__init__(running, unit, blocks, False)
        self.layer = layer
        self.held: list[Members] = []  # of the calls under way
        self.told: Told | None = None

    def attach(self, module: nn.Module) -> list[Any]:
        return [
            module.register_forward_hook(_LeaveExperts(self), always_call=True),
            module.register_forward_pre_hook(_EnterExperts(self), prepend=True, with_kwargs=True),
        ]

    def is_under_way(self) -> bool:
        return any(frame[0] is self for frame in self.running.frames)

    def acquire(self, chosen: list[int]) -> Members | None:
        """Holds these experts, and puts the pool in the place of the module's tensors. None if they do not fit."""
        layer, running = self.layer, self.running
        holding = running.holding
        if holding.calls.enter():
            running.abandon()
        holding.enter(self.unit, [])
        try:
            members = layer.pool.set.acquire([layer.first + number for number in chosen], holding.stream())
        except BudgetError:
            return None
        self.held.append(members)
        for place, tensor in zip(layer.places, layer.pool.tensors(members, layer)):
            place.put(tensor)
        layer.set_count(members.bytes // layer.pool.set.stride)
        running.frames.append((self, True, False))
        running.pooled.add(self.unit)
        holding.modules += 1
        holding.unguard()
        return members

    def give_back(self) -> None:
        held, self.held = self.held, []
        if held:
            for place in self.layer.places:
                place.put_on_device()
            self.layer.set_count(self.layer.count)
            self.running.pooled.discard(self.unit)
        for members in held:
            members.release()


class _EnterExperts(Hook):
    __slots__ = ("hooks", "plainly")

    def __init__(self, hooks: ExpertHooks) -> None:
        self.hooks = hooks
        self.plainly = _Enter(hooks)

    def __call__(self, module: nn.Module, args: Any, kwargs: Any) -> Any:
        hooks = self.hooks
        if not hooks.is_under_way():
            hooks.give_back()  # what an exception that no hook saw has left
        if torch.is_grad_enabled():
            return self.plainly(module, args)
        if hooks.layer.route is None:
            return None if hooks.acquire([0]) else self.plainly(module, args)
        place, name = hooks.layer.route
        routes = kwargs.get(name, args[place] if place < len(args) else None)
        if not isinstance(routes, torch.Tensor) or not routes.numel():
            return self.plainly(module, args)
        if routes.dtype not in (torch.int32, torch.int64) or not hooks.layer.is_plain():
            return self.plainly(module, args)
        on_host = routes.cpu()  # waits for the router
        chosen = _chosen(hooks.layer, on_host)
        members = hooks.acquire(chosen)
        if members is None:
            return self.plainly(module, args)
        hooks.told = Told(hooks.layer, args[0] if args else kwargs.get("hidden_states"), on_host)
        routed = _routed(on_host, dict(zip(chosen, members.slots))).to(routes.device)
        if name in kwargs:
            return args, {**kwargs, name: routed}
        return (*args[:place], routed, *args[place + 1 :]), kwargs


def _chosen(layer: Layer, routes: torch.Tensor) -> list[int]:
    """The experts that any token uses, in ascending order. They are in host memory, where they do not change."""
    few = routes.numel() <= _FEW_ROUTES
    chosen: list[int] = sorted(set(routes.flatten().tolist())) if few else torch.unique(routes).tolist()
    if chosen[0] < 0 or chosen[-1] >= layer.count:
        wrong = [number for number in chosen if not 0 <= number < layer.count]
        raise IndexError(f"{layer.name} has {layer.count} experts, and the router has chosen {wrong[:8]}")
    return chosen


def _routed(routes: torch.Tensor, slots: dict[int, int]) -> torch.Tensor:
    """The slots in the place of the experts."""
    if routes.numel() <= _FEW_ROUTES:
        flat = [slots[number] for number in routes.flatten().tolist()]
        return torch.tensor(flat, dtype=routes.dtype).view(routes.shape)
    table = torch.zeros(max(slots) + 1, dtype=routes.dtype)
    table[list(slots)] = torch.tensor(list(slots.values()), dtype=routes.dtype)
    return table[routes]


class _LeaveExperts(Hook):
    __slots__ = ("hooks", "plainly")

    def __init__(self, hooks: ExpertHooks) -> None:
        self.hooks = hooks
        self.plainly = _Leave(hooks)

    def __call__(self, module: nn.Module, args: Any, output: Any) -> None:
        hooks = self.hooks
        if hooks.is_under_way():
            hooks.give_back()
        self.plainly(module, args, output)
        told, hooks.told = hooks.told, None
        if told is not None:
            told.use()
