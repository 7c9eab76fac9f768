"""A model that is streamed."""
# mypy: disable-error-code="import-not-found,misc,no-untyped-call,unused-ignore"
from __future__ import annotations

from collections.abc import Iterable, Iterator, Sequence
from contextlib import AbstractContextManager, ExitStack, contextmanager
from types import TracebackType
from typing import Any, TypeAlias, Union

import torch
from torch import nn

from .._device import Device
from .._errors import UsageError
from .._generated import DeviceFlag, ResidentPriority, RuntimeStats, Status
from .._host import PinnedMemory
from .._runtime import Runtime
from .._sources import BlockDesc, Mapped, Segment
from . import _weights
from ._division import Chosen, Division, Unit, check_modules, is_called, largest_block, own_modules
from ._files import Files, TensorFiles
from ._graph import ForwardGraph
from ._holding import Holding
from ._hooks import Running, StepHooks, UnitHooks, forget_compiled, run_uncompiled
from ._loading import LoadedInto, LoadInto, Updates, loaded
from ._memory import buffer_of, byte_tensor, memory_tensor
from ._reads import ReadCheck
from ._saved import SavedTensors
from ._serving import RefuseConversion, ServedState, ServedTensors, Source, WithoutHooks, is_served
from ._training import MakeOptimizer, Training
from ._weights import Found, HeldBlock, Place, Weight, choose, find_tensors, make_blocks, make_weights

Outside: TypeAlias = Union[str, Iterable[str]]


def open_device(name: str, budget: int | None) -> Device:
    """With pages as small as they would be if the budget were all of the device's; unless it is open already, with pages of its own."""
    if budget is not None:
        try:
            return Device(name, page_bytes=1 << max(0, (budget >> 10).bit_length() - 1))
        except UsageError as error:
            if error.status != Status.ERROR_INVALID_ARGUMENT:
                raise
    return Device(name)


def device_of(device: Device | str | torch.device, budget: int | None) -> tuple[Device, torch.device, str, bool]:
    """The library's device, PyTorch's, the backend, and whether it was opened here."""
    opened = not isinstance(device, Device)
    if not isinstance(device, Device):
        name = str(device)
        if name == "cpu":
            name = "host"
        if name == "cuda":
            name = f"cuda:{torch.cuda.current_device()}"
        if torch.version.hip and name.startswith("cuda:"):
            name = f"hip:{name[5:]}"
        if name.startswith(("cuda", "hip")):
            torch.cuda.init()
        device = open_device(name, budget)
    backend, _, number = device.name.partition(":")
    if backend not in ("host", "cuda", "hip"):
        raise ValueError(f"PyTorch cannot compute on {device.name}")
    if not device.flags & DeviceFlag.FIXED_ADDRESSES:
        raise ValueError(f"{device.name} cannot map memory by pages: addresses would change while tensors and autograd keep them")
    return device, torch.device("cpu") if backend == "host" else torch.device("cuda", int(number or 0)), backend, opened


class Streamed(Source):
    """A module whose weights are streamed, until close() or the end of the `with`. Made by stream()."""

    def __init__(
        self,
        module: nn.Module,
        device: Device | str | torch.device,
        *,
        budget: int | None = None,
        blocks: Chosen | None = None,
        outside: Outside = (),
        files: Files | None = None,
        strict: bool = True,
        pin: bool = True,
        max_held: int | None = None,
        debug: bool | None = None,
        name: str | None = None,
        optimizer: MakeOptimizer | None = None,
    ) -> None:
        self._make_optimizer = optimizer
        self._training: Training | None = None
        self.module = module
        self._closed = False
        self._weights: list[Weight] = []
        self._undo = ExitStack()
        try:
            with torch.inference_mode(False), torch.no_grad():
                self._begin(device, budget, blocks, [outside] if isinstance(outside, str) else list(outside), files, strict, pin, max_held, debug, name)
        except BaseException:
            self._closed = True
            with torch.inference_mode(False), torch.no_grad():
                self._undo.close()
            self._let_go()
            raise

    # Beginning.

    def _begin(
        self,
        device: Device | str | torch.device,
        budget: int | None,
        blocks: Chosen | None,
        outside: Sequence[str],
        files: Files | None,
        strict: bool,
        pin: bool,
        max_held: int | None,
        debug: bool | None,
        name: str | None,
    ) -> None:
        check_modules(self.module)
        self.device, self._torch_device, self._backend, opened = device_of(device, budget)
        if opened:
            self._undo.callback(self.device.close)
        self._files = None if files is None else TensorFiles(files)
        found = find_tensors(self.module)
        for one in found:
            if is_served(one.tensor):
                raise UsageError(Status.ERROR_INVALID_STATE, f"{one.names[0]} is streamed already")
        self._adopt(found, strict)
        streamed, left = choose(found, outside, trained=self._make_optimizer is not None)
        if not streamed:
            raise ValueError(f"{type(self.module).__name__} has nothing to stream")
        self._weights = make_weights(streamed)
        self._places = [place for weight in self._weights for place in weight.places]
        total = sum(weight.bytes for weight in self._weights)
        self._units = self._make_units(blocks, largest_block(budget or self.device.memory().budget_bytes or total, total))
        self._blocks = list(dict.fromkeys(block for blocks in self._units.values() for block in blocks))
        self.runtime = Runtime(
            self.device, name=name or type(self.module).__name__, max_held=max_held or self._most_held(), max_bytes=budget or 0
        )
        self._undo.callback(self.runtime.close)
        self._make_sources(pin)
        self._put_in_place()
        self._put_outside(left)
        self._attach(debug)

    def _adopt(self, found: list[Found], strict: bool) -> None:
        """Has what is on the meta device come from the files."""
        entries = self._files.entries if self._files else {}
        unused = set(entries)
        missing = []
        for one in found:
            known = [name for name in one.names if name in entries]
            unused.difference_update(known)
            if one.tensor.device.type != "meta":
                if known:
                    raise ValueError(f"{known[0]} is in {entries[known[0]].path}, but is not on the meta device: it has contents of its own")
                continue
            if not known or self._files is None:
                missing.append(one.names[0])
                continue
            made: torch.Tensor = self._files.tensor(known[0], one.tensor)
            if one.is_parameter:
                made = nn.Parameter(made, requires_grad=one.tensor.requires_grad)
            self._replace(one, made)
        if missing:
            what = "no file has them; buffers that are computed, not stored, have to be made on another device before" if self._files else "give files="
            raise ValueError(f"on the meta device, without contents: {', '.join(missing[:8])}{' ...' if len(missing) > 8 else ''}: {what}")
        if unused and strict:
            raise ValueError(f"no part of {type(self.module).__name__}: {', '.join(sorted(unused)[:8])}: strict=False passes over them")

    def _replace(self, one: Found, made: torch.Tensor) -> None:
        before, one.tensor = one.tensor, made

        def put(tensor: torch.Tensor) -> None:
            for module, key in one.keys:
                entries: dict[str, Any] = module._parameters if key in module._parameters else module._buffers
                entries[key] = tensor

        put(made)
        self._undo.callback(put, before)

    def _make_units(self, blocks: Chosen | None, largest: int) -> dict[Unit, list[HeldBlock]]:
        of_tensor = {id(place.tensor): weight for weight in self._weights for place in weight.places}
        known: dict[int, int] = {}

        def bytes_of(module: nn.Module) -> int:
            if id(module) not in known:
                inside = {
                    of_tensor[id(tensor)]
                    for part in module.modules()
                    for tensor in [*part._parameters.values(), *part._buffers.values()]
                    if id(tensor) in of_tensor
                }
                known[id(module)] = sum(weight.bytes for weight in inside)
            return known[id(module)]

        division = Division(bytes_of, largest)
        units = division.automatic(self.module) if blocks is None else division.chosen(self.module, blocks)

        def describe(unit: Unit) -> str:
            return unit.name or type(self.module).__name__

        return make_blocks(units, self._weights, describe)

    def _most_held(self) -> int:
        """Most ordered blocks that are held at the same time."""
        return max(1, *(sum(not block.unordered for block in blocks) for blocks in self._units.values()))

    def _make_sources(self, pin: bool) -> None:
        descs = []
        if pin:
            self._copy_small()
        for block in self._blocks:
            block.mutable = self._make_optimizer is not None and any(place.tensor.requires_grad for place in block.places())
            if any(weight.storage.device.type != "cpu" for weight in block.weights):
                self._copy_to_host(block)
            segments = []
            for weight in block.weights:
                if weight.host is None:
                    weight.host = byte_tensor(weight.storage, weight.storage_offset, weight.bytes)
                original = weight.host if weight.copied is None else weight.copied
                file = self._files.source_of(original) if self._files else None
                weight.mapped = file is not None and not block.mutable
                if weight.copied is not None:
                    file, weight.copied = None, None if weight.mapped else weight.copied
                elif file is not None and block.mutable:  # what is trained is not written to files
                    weight.host, file = weight.host.clone(), None
                segments.append(Segment(Mapped(file) if file is not None else buffer_of(weight.host), weight.offset))
            descs.append(BlockDesc(segments, block.name, block.bytes, mutable=block.mutable, unordered=block.unordered, pin=pin))
        for block, made in zip(self._blocks, self.runtime.register_blocks(descs)):
            block.block = made

    def _copy_small(self) -> None:
        """Small weights of the host, all into one piece of pinned memory."""
        small = [weight for weight in self._weights if weight.bytes < _weights.SMALL_SOURCE and weight.storage.device.type == "cpu"]
        if not small:
            return
        offsets = [0]
        for weight in small:
            offsets.append(-(-(offsets[-1] + weight.bytes) // _weights.ALIGNMENT) * _weights.ALIGNMENT)
        host = torch.frombuffer(PinnedMemory(self.device, offsets[-1]).buffer, dtype=torch.uint8)
        for weight, offset in zip(small, offsets):
            weight.copied = byte_tensor(weight.storage, weight.storage_offset, weight.bytes)
            weight.host = host[offset : offset + weight.bytes]
            weight.host.copy_(weight.copied)

    def _copy_to_host(self, block: HeldBlock) -> None:
        """From a device, block by block, so that memory of the device comes free as that of the host is filled."""
        memory = PinnedMemory(self.device, block.bytes)
        host = torch.frombuffer(memory.buffer, dtype=torch.uint8)
        for weight in block.weights:
            if weight.storage.device.type == "cpu":
                continue
            weight.host = host[weight.offset : weight.offset + weight.bytes]
            weight.host.copy_(byte_tensor(weight.storage, weight.storage_offset, weight.bytes))
            weight.moved = weight.storage.device
            weight.storage = weight.host.untyped_storage()
            for place in weight.places:
                place.original = place.host()
                place.put(place.original)

    def _put_in_place(self) -> None:
        for block in self._blocks:
            address = self.runtime.block_info(block.block).address
            for weight in block.weights:
                weight.memory = memory_tensor(address + weight.offset, weight.bytes, self._torch_device, self._backend)
                for place in weight.places:
                    if place.tensor.grad is not None:
                        raise ValueError(f"{place.name} has a gradient: zero_grad() before it is streamed")
                    place.put(place.on_device())
                    self._undo.callback(self._restore, place)
        self._by_storage = {weight.memory.untyped_storage().data_ptr(): weight for weight in self._weights}
        self._served = ServedTensors(self, self._by_storage)
        for place in self._places:
            self._served.serve(place)
            self._undo.callback(self._served.unserve, place)

    def _restore(self, place: Place) -> None:
        weight, moved = place.weight, place.weight.moved
        if weight.copied is not None:  # what has become of it goes back
            copied, weight.copied = weight.copied, None
            copied.copy_(weight.host)
        place.put(place.original if moved is None else place.original.to(moved))

    def _put_outside(self, left: list[Found]) -> None:
        """What is not streamed is moved, and moved back with what has become of it."""

        def back(tensor: torch.Tensor, original: torch.Tensor) -> None:
            original.copy_(tensor.data)
            grad, tensor.grad = tensor.grad, None
            tensor.data = original
            if grad is not None:
                tensor.grad = grad.to(original.device)

        for one in left:
            tensor = one.tensor
            if tensor.device == self._torch_device:
                continue
            if tensor.grad is not None:
                raise ValueError(f"{one.names[0]} has a gradient: zero_grad() before it is streamed")
            original = tensor.data
            tensor.data = original.to(self._torch_device)
            self._undo.callback(back, tensor, original)

    def _attach(self, debug: bool | None) -> None:
        self._holding = Holding(self.runtime, self._torch_device, self._places)
        self._holding.unguard, self._holding.guard = self._served.unguard, self._served.guard
        self._running = Running(
            self._holding, SavedTensors(self._holding, self._by_storage), ReadCheck(self._by_storage, None if debug else 1 if debug is None else 0)
        )
        self._running.with_grad = self._attach_inner
        if self._make_optimizer is not None:
            self._training = Training(self._holding, self._blocks, self._make_optimizer)
            self._holding.training = True
            self._holding.backward_ends = self._training.backward_ends
            for handle in self._training.handles:
                self._undo.callback(handle.remove)
        self._updates = Updates(self.runtime)
        self._undo.callback(self._end_work)
        run_uncompiled()
        handles: list[object] = []
        streamed = {id(place.tensor): place for place in self._places}
        for module in self.module.modules():
            keys = {**module._parameters, **module._buffers}
            places = {key: streamed[id(tensor)] for key, tensor in keys.items() if id(tensor) in streamed}
            if places:
                handles += [
                    module.register_state_dict_post_hook(ServedState(self, places)),
                    module._register_load_state_dict_pre_hook(LoadInto(places, self._updates)),
                    module.register_load_state_dict_post_hook(LoadedInto(places, self._updates)),
                ]
            self._set(module, "_apply", RefuseConversion(module, streamed))
            self._set(module, "__reduce_ex__", WithoutHooks(module))
        for unit, blocks in self._units.items():
            handles += UnitHooks(self._running, unit, blocks, False).attach(unit.module)
        handles += StepHooks(self._running).attach(self.module)
        for handle in handles:
            self._undo.callback(handle.remove)  # type: ignore[attr-defined]
        self._undo.callback(forget_compiled)

    def _set(self, module: nn.Module, name: str, value: object) -> None:
        """An attribute of a module, as long as it is streamed."""
        module.__dict__[name] = value
        self._undo.callback(module.__dict__.pop, name, None)

    def _attach_inner(self) -> None:
        """With gradients a checkpoint may run a part of a block again, by itself."""
        of_tensor = {id(place.tensor): place.weight.block for place in self._places}
        for unit in self._units:
            if unit.own:
                continue
            for module in unit.module.modules():
                if module is unit.module or not is_called(module):
                    continue
                tensors = [tensor for part in own_modules(module) for tensor in [*part._parameters.values(), *part._buffers.values()]]
                blocks = list(dict.fromkeys(of_tensor[id(tensor)] for tensor in tensors if id(tensor) in of_tensor))
                if blocks:
                    for handle in UnitHooks(self._running, unit, blocks, True).attach(module):
                        self._undo.callback(handle.remove)

    # Ending.

    def __enter__(self) -> Streamed:
        return self

    def __exit__(self, kind: type[BaseException] | None, exception: BaseException | None, trace: TracebackType | None) -> None:
        self.close()

    def close(self) -> None:
        """Ends streaming: the module is what it was. Tensors that autograd has kept of it cannot be used any more."""
        if not self._closed:
            self._closed = True
            with torch.inference_mode(False), torch.no_grad():
                self._undo.close()
            self._let_go()

    def _let_go(self) -> None:
        """Of memory, which else would last as long as this object."""
        for weight in self._weights:
            del weight.host, weight.memory, weight.storage
            for place in weight.places:
                del place.original

    def _end_work(self) -> None:
        self._holding.running = 0
        self._running.abandon()
        try:
            self._holding.end_step()
            loaded(self._places, self._updates)
            self._updates.end_all()
            self.runtime.write_back()
        finally:
            self._holding.ended = True
            if self._torch_device.type == "cuda":
                torch.cuda.synchronize(self._torch_device)

    # Use.

    def __repr__(self) -> str:
        size = sum(block.bytes for block in self._blocks)
        where = f"{self.device.name}{' (closed)' if self._closed else ''}"
        return f"<libstagehand.torch.Streamed {type(self.module).__name__}: {size} bytes in {len(self._blocks)} blocks on {where}>"

    @contextmanager
    def step(self) -> Iterator[None]:
        """One pass over the model, with its backward, where a call of the module is not one by itself."""
        if self._closed:
            raise UsageError(Status.ERROR_INVALID_HANDLE, "the model is not streamed any more")
        self._running.grad_enabled()
        self._running.abandon()
        self._holding.begin_step(explicit=True)
        self._running.reads.enter()
        try:
            yield
        finally:
            self._running.reads.leave()
            self._holding.release_all()
            self._holding.end_step()

    def managed_forward(self) -> AbstractContextManager[None]:
        """step() by its other name."""
        return self.step()

    def graph(self, *args: Any, warm_up: int = 3, **kwargs: Any) -> ForwardGraph:
        """A forward without gradients, with these arguments, as a CUDA graph: to be called with others of the same shapes."""
        return ForwardGraph(self, warm_up, args, kwargs)

    def accumulate(self) -> AbstractContextManager[None]:
        """`with streamed.accumulate():` backwards add to the gradients, and optimizers do nothing, until one outside of it."""
        return self._trained().accumulate()

    @property
    def optimizers(self) -> dict[str, torch.optim.Optimizer]:
        """One for each block with weights that are trained, by its name."""
        return self._trained().optimizers()

    def _trained(self) -> Training:
        if self._training is None:
            raise UsageError(Status.ERROR_INVALID_STATE, "no streamed weight is trained: stream(..., optimizer=)")
        return self._training

    def stats(self) -> RuntimeStats:
        return self.runtime.stats()

    def blocks(self) -> dict[str, list[str]]:
        """The blocks by name, with the names of what is in them."""
        return {block.name: [place.name for place in block.places()] for block in self._blocks}

    def current(self, place: Place) -> torch.Tensor:
        if place.weight.block.mutable:
            self.runtime.write_back([place.weight.block.block])
        host = place.host()
        return nn.Parameter(host, requires_grad=place.tensor.requires_grad) if isinstance(place.tensor, nn.Parameter) else host

    # Several models on a device.

    def keep_resident(self, target: Streamed | Runtime | None = None) -> AbstractContextManager[None]:
        """`with streamed.keep_resident():` a model, this one by default, keeps the device memory that it has."""
        return self.runtime.keep_resident(_runtime(target))

    def reserve_for_resident(
        self, target: Streamed | Runtime | None = None, *, priority: ResidentPriority = ResidentPriority.PRIMARY, bytes: int = 0
    ) -> None:
        """A model's share, this one's by default, is never less than this; 0: as much as its plan uses. Until release_reservation()."""
        self.runtime.reserve_for_resident(_runtime(target), priority=priority, bytes=bytes)

    def release_reservation(self, target: Streamed | Runtime | None = None) -> None:
        self.runtime.release_reservation(_runtime(target))

    def as_guest(self, guest: Streamed | Runtime, *, bytes: int = 0, workspace_bytes: int = 0, shrink: bool = False) -> AbstractContextManager[None]:
        """`with streamed.as_guest(other):` the other gets memory that nobody has reserved, or is refused with BudgetError."""
        return self.runtime.as_guest(guest.runtime if isinstance(guest, Streamed) else guest, bytes=bytes, workspace_bytes=workspace_bytes, shrink=shrink)


def _runtime(target: Streamed | Runtime | None) -> Runtime | None:
    return target.runtime if isinstance(target, Streamed) else target


