"""Experts, one by one: a call of a layer's experts without gradients gets a pool of slots in the place of its tensors,
and the numbers of slots in the place of those that the router has chosen. So only the experts that tokens use are
loaded.
"""

# mypy: disable-error-code="import-not-found,misc,no-untyped-call,unused-ignore"
from __future__ import annotations

import inspect
from collections.abc import Iterator
from typing import Any

import torch
from torch import nn

from .._errors import BudgetError
from .._members import Members, MemberSet
from .._runtime import Runtime
from .._sources import BlockDesc, Segment
from ._division import Unit
from ._guesses import Guesses, make_guesses, tell
from ._hooks import Hook, Running, UnitHooks, _Enter, _Leave
from ._memory import buffer_of, memory_tensor
from ._weights import ALIGNMENT, HeldBlock, Place

# The argument of a forward that has the numbers of the experts of each token, as the models of transformers call it.
_ROUTES = ("top_k_index", "router_indices", "selected_experts")
# The most experts that a plan has slots for in any case. A call that uses more has them if there is memory.
_CALL_EXPERTS = 8


def _route_of(module: nn.Module) -> tuple[int, str] | None:
    """The place and the name of the argument of a forward that has the experts of each token."""
    names = list(inspect.signature(type(module).forward).parameters)[1:]
    return next(((place, name) for place, name in enumerate(names) if name in _ROUTES), None)


def is_stacked(module: nn.Module) -> bool:
    """Whether a module has the tensors of all its experts, one behind the other, and gets the experts of each token."""
    count = getattr(module, "num_experts", None)
    tensors = list(module._parameters.values())
    return (
        isinstance(count, int)
        and count > 1
        and bool(tensors)
        and len(tensors) == sum(1 for _ in module.parameters()) + sum(1 for _ in module.buffers())
        and all(tensor is not None and tensor.dim() > 1 and tensor.size(0) == count for tensor in tensors)
        and _route_of(module) is not None
    )


class Layer:
    """The experts of one module."""

    def __init__(self, unit: Unit, places: list[Place]) -> None:
        self.unit = unit
        self.name = unit.name
        self.module = unit.module
        self.places = places
        self.count: int = unit.module.num_experts  # type: ignore[assignment]
        route = _route_of(unit.module)
        assert route is not None
        self.route = route
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

    def set_count(self, count: int) -> None:
        """Tells the module how many experts its tensors have."""
        module: Any = self.module
        module.num_experts = count

    def shape(self) -> tuple[Any, ...]:
        """What the layers of one pool have in common."""
        return (self.count, *((place.original.dtype, place.original.shape[1:]) for place in self.places))

    def describe(self) -> Iterator[BlockDesc]:
        for number in range(self.count):
            segments = []
            for place, offset in zip(self.places, self.offsets):
                bytes = self._part(place)
                begin = place.offset + number * bytes
                segments.append(Segment(buffer_of(place.weight.host[begin : begin + bytes]), offset))
            yield BlockDesc(segments, f"{self.name}.{number}", self.bytes)


class Pool:
    """The slots of all layers whose experts have one shape."""

    def __init__(self, runtime: Runtime, layers: list[Layer], device: torch.device) -> None:
        self._device, self._kind = device, runtime.device.kind
        first, at = layers[0], 0
        for layer in layers:
            layer.pool, layer.first = self, at
            at += layer.count
        descs = [desc for layer in layers for desc in layer.describe()]
        self.set: MemberSet = runtime.register_set(
            descs,
            call_members=min(first.count, _CALL_EXPERTS),
            group_members=first.count,
            name=first.name,
        )
        for layer in layers:
            for place in layer.places:
                place.weight.block.members = self.set.blocks[layer.first : layer.first + layer.count]
        self._seen: tuple[int, int] = (0, 0)
        self._memory: torch.Tensor = None  # type: ignore[assignment]

    def tensors(self, members: Members, layer: Layer) -> list[torch.Tensor]:
        """The tensors of a layer over the pool, with as many experts as there are slots."""
        if self._seen != (members.address, members.bytes):
            self._seen = members.address, members.bytes
            self._memory = memory_tensor(members.address, members.bytes, self._device, self._kind)
        stride, made = self.set.stride, []
        for place, offset in zip(layer.places, layer.offsets):
            like = place.original
            size = like.element_size()
            whole = torch.empty(0, dtype=like.dtype, device=self._memory.device)
            made.append(
                whole.set_(
                    self._memory.untyped_storage(),
                    (self._memory.storage_offset() + offset) // size,
                    (members.bytes // stride, *like.shape[1:]),
                    (stride // size, *like.stride()[1:]),
                )
            )
        return made


def make_layers(units: dict[Unit, list[HeldBlock]]) -> list[Layer]:
    """The layers whose experts are loaded one by one: those whose tensors lie whole and plain in host memory."""
    layers = []
    for unit, blocks in units.items():
        if not is_stacked(unit.module) or any(block.mutable for block in blocks):
            continue
        tensors = {id(tensor) for tensor in unit.module._parameters.values()}
        places = [place for block in blocks for place in block.all_places if id(place.tensor) in tensors]
        plain = all(
            place.original.is_contiguous()
            and not place.special
            and not (place.weight.mapped or place.weight.packed or place.weight.unread)
            for place in places
        )
        if plain and len(places) == len(tensors):
            layers.append(Layer(unit, places))
    return layers


def pool_bytes(units: dict[Unit, list[HeldBlock]]) -> int:
    """The least bytes of the pools of these units' experts."""
    least = {layer.shape(): min(layer.count, _CALL_EXPERTS) * layer.bytes for layer in make_layers(units)}
    return sum(least.values())


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
    alike: dict[tuple[Any, ...], list[Layer]] = {}
    for layer in layers.values():
        alike.setdefault(layer.shape(), []).append(layer)
    for same in alike.values():
        Pool(runtime, same, device)
    places = {id(place.tensor): place for blocks in units.values() for block in blocks for place in block.all_places}
    running.guesses = make_guesses(model, list(layers.values()), places)
    for unit, blocks in units.items():
        if unit in layers:
            yield ExpertHooks(running, unit, blocks, layers[unit])
        else:
            yield UnitHooks(running, unit, blocks, False)


class ExpertHooks(UnitHooks):
    """The hooks of a layer's experts. A call with gradients holds all of them in a block, as any unit does."""

    def __init__(self, running: Running, unit: Unit, blocks: list[HeldBlock], layer: Layer) -> None:
        super().__init__(running, unit, blocks, False)
        self.layer = layer
        self.held: list[Members] = []  # of the calls under way

    def attach(self, module: nn.Module) -> list[Any]:
        return [
            module.register_forward_hook(_LeaveExperts(self), always_call=True),
            module.register_forward_pre_hook(_EnterExperts(self), prepend=True, with_kwargs=True),
        ]

    def is_under_way(self) -> bool:
        return any(frame[0] is self for frame in self.running.frames)

    def acquire(self, chosen: torch.Tensor) -> Members | None:
        """Holds these experts, and puts the pool in the place of the module's tensors. None if they do not fit."""
        layer, running = self.layer, self.running
        holding = running.holding
        if holding.calls.enter():
            running.abandon()
        if not self.is_under_way():
            self.give_back()  # what an exception that no hook saw has left
        holding.enter(self.unit, [])
        try:
            members = layer.pool.set.acquire([layer.first + number for number in chosen.tolist()], holding.stream())
        except BudgetError:
            return None
        self.held.append(members)
        for place, tensor in zip(layer.places, layer.pool.tensors(members, layer)):
            place.put(tensor)
        layer.set_count(members.bytes // layer.pool.set.stride)
        running.frames.append((self, True, False))
        holding.modules += 1
        holding.unguard()
        return members

    def give_back(self) -> None:
        held, self.held = self.held, []
        if held:
            for place in self.layer.places:
                place.put_on_device()
            self.layer.set_count(self.layer.count)
        for members in held:
            members.release()


class _EnterExperts(Hook):
    __slots__ = ("hooks", "plainly")

    def __init__(self, hooks: ExpertHooks) -> None:
        self.hooks = hooks
        self.plainly = _Enter(hooks)

    def __call__(self, module: nn.Module, args: Any, kwargs: Any) -> Any:
        hooks = self.hooks
        place, name = hooks.layer.route
        routes = kwargs.get(name, args[place] if place < len(args) else None)
        if torch.is_grad_enabled() or not isinstance(routes, torch.Tensor) or not routes.numel():
            return self.plainly(module, args)
        on_host = routes.cpu()  # waits for the router
        chosen = _chosen(hooks.layer, on_host)
        members = hooks.acquire(chosen)
        if members is None:
            return self.plainly(module, args)
        tell(hooks.layer, args[0] if args else kwargs.get("hidden_states"), on_host)
        slots = torch.zeros(hooks.layer.count, dtype=routes.dtype)
        slots[chosen] = torch.tensor(members.slots, dtype=routes.dtype)
        routed = slots.to(routes.device)[routes]
        if name in kwargs:
            return args, {**kwargs, name: routed}
        return (*args[:place], routed, *args[place + 1 :]), kwargs


def _chosen(layer: Layer, routes: torch.Tensor) -> torch.Tensor:
    """The experts that any token uses."""
    chosen: torch.Tensor = torch.unique(routes)
    if chosen.is_floating_point() or int(chosen[0]) < 0 or int(chosen[-1]) >= layer.count:
        wrong = chosen[(chosen < 0) | (chosen >= layer.count)]
        raise IndexError(
            f"{layer.name} has {layer.count} experts, and the router has chosen {wrong.tolist()[:8] or chosen.dtype}"
        )
    return chosen


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
