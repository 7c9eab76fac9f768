"""Streams a model: the object that stream() returns, from its begin to its end."""

# mypy: disable-error-code="import-not-found,misc,no-untyped-call,unused-ignore"
from __future__ import annotations

from collections.abc import Iterable, Iterator
from contextlib import AbstractContextManager, ExitStack, contextmanager, suppress
from typing import Any, TypeAlias

import torch
from torch import nn

from .._device import Device
from .._errors import Error, UsageError
from .._generated import RuntimeStats, Status
from .._holders import note
from .._lifetime import Closing
from .._runtime import Runtime
from . import _subclasses
from ._aliases import find_earlier
from ._budget import Budget, bytes_of
from ._budget_errors import BudgetErrors
from ._calls import Calls
from ._conversions import Conversions, Convert
from ._copying import own_copy
from ._devices import AnyDevice, device_of, place_of
from ._division import Chosen, check_modules, is_called, own_tensors
from ._entries import attach_entries
from ._experts import alone_in, make_hooks, pool_bytes
from ._failed import forget_locals
from ._files import Files, TensorFiles
from ._graph import ForwardGraph
from ._guesses import GuessRates
from ._holding import Holding
from ._hooks import Running, StepHooks, UnitHooks, forget_compiled, run_uncompiled
from ._host_sources import adopt, make_sources
from ._key import compiled_use, is_compiling, own
from ._kinds import StepKinds
from ._loading import LoadedInto, LoadInto, Updates, loaded, refuse_lost
from ._mappings import Mappings
from ._memory import memory_tensor
from ._neighbours import Neighbours
from ._offloaded import refuse_offloaded
from ._outside import put_outside, tell_outside
from ._pinned_copies import PinnedCopies
from ._plainly import plainly
from ._progress import Progress, register
from ._reads import ReadCheck
from ._recurrent import instead_of_methods
from ._registry import begun, ended
from ._residency import Residency
from ._saved import SavedTensors
from ._serving import SaveSources, ServedTensors, Source, WithoutHooks, is_served, refuse_ties
from ._stashed import StashHooks
from ._ties import Ties
from ._together import in_pages, most_held, unordered_bytes
from ._training import MakeOptimizer, MakeStep, Training, check_maker
from ._training_calls import TrainingCalls
from ._unheld import UnheldOperations
from ._units import Divider
from ._weights import (
    Entry,
    Found,
    Place,
    Weight,
    choose,
    find_tensors,
    make_weights,
    put_into,
    weights_by_tensor,
)

Outside: TypeAlias = str | Iterable[str]


class Streamed(Closing, Residency, TrainingCalls, GuessRates, Source):
    """A module whose weights are streamed from host memory, or from files, until close() or the end of the `with`.

    :param device: "cuda" (the current GPU), "cuda:0" or 0 (the first GPU), "cpu" or "host" (for tests), a torch.device,
        or a Device. Models with the same Device share its budget.
    :param budget: The most bytes of device memory for the weights: a number of bytes, a size ("8GiB", "500MB"), or a
        part of what the streamed weights take ("25%"). None is what the device's budget leaves.
    :param blocks: The modules that make a block each: modules, names, or patterns of names (`"model.layers.*"`).
        None is the layers of the model.
    :param outside: Names, or patterns of names, of parameters and buffers that stay on the device, outside the budget.
        Small buffers stay there anyway, and so do parameters that require a gradient if others are frozen.
    :param files: safetensors files, shard indexes, or folders with such files, for the tensors on the meta device. An
        index decides which files of its folder are read. The files are mapped, not loaded.
    :param mapped: Whether tensors in host memory that is mapped from files are streamed from there, without being read
        to memory before. Loaders that map files (safetensors, and so transformers and diffusers) leave weights there.
    :param strict: Whether tensors in files that the module does not have are an error.
    :param pin: Whether to pin the host memory, so that copies from it need no staging buffer.
    :param pack: Whether to pack floating-point weights without loss, if they are not trained, into pinned memory (0.70
        of the bytes of bfloat16). The originals stay, and cannot be changed while they are streamed.
    :param max_held: The most blocks that are held at the same time. None is derived from how the modules are nested.
    :param debug: True checks every step, slowly, for views of weights that are used after their module has returned.
        None checks the first step of each kind (sizes of 1, types, gradients, training, adapters). False checks none.
    :param name: The name of the model in messages and traces.
    :param share_wait: The most seconds that a step waits for steps of other models on the device, in other threads, if
        these steps hold its memory.
    :param optimizer: A function that makes the optimizer of one block from all parameters that it gets. It has streamed
        parameters that require a gradient trained. An optimizer makes its step in the backward, as soon as the
        gradients of its block are there, and the gradients are then given up.
    :param optimizer_step: A function that has an optimizer make its step, like `scaler.step` of a GradScaler if losses
        are scaled. None calls the optimizer's step().
    :param progress: A function that is called as progress(done, total) with numbers of bytes while weights are copied
        or pinned. True shows a bar by tqdm, or else writes to the log of `libstagehand.torch`. None shows nothing.
    """

    def __init__(
        self,
        module: nn.Module,
        device: AnyDevice = "cuda",
        *,
        budget: Budget | None = None,
        blocks: Chosen | None = None,
        outside: Outside = (),
        files: Files | TensorFiles | None = None,
        mapped: bool = False,
        strict: bool = True,
        pin: bool = True,
        pack: bool = False,
        max_held: int | None = None,
        debug: bool | None = None,
        name: str | None = None,
        share_wait: float = 10.0,
        optimizer: MakeOptimizer | None = None,
        optimizer_step: MakeStep | None = None,
        progress: Progress = None,
    ) -> None:
        self.module = module
        self._closed = False
        self._weights: list[Weight] = []
        self._training: Training | None = None
        self._last_stats: RuntimeStats | None = None
        self._trained_from_files: list[Found] = []
        self._name = name or type(module).__name__
        self._copies = PinnedCopies(self._name)
        self._undo, self._ties = ExitStack(), Ties()
        try:
            with plainly():
                check_modules(module)
                if optimizer is not None:
                    check_maker(optimizer)
                place = place_of(device)
                refuse_offloaded(module, place)
                read = files if files is None or isinstance(files, TensorFiles) else TensorFiles(files)
                left = self._find(read, strict, outside, optimizer is not None, place)
                most = bytes_of(budget, sum(weight.bytes for weight in self._weights))
                total = sum(weight.bytes for weight in self._weights)
                by_expert = optimizer is None and blocks is None and most is not None and most < total
                divider = Divider(module, self._weights, self._entries, blocks, max_held, alone_in(module), pool_bytes)
                divider.divides_alone = by_expert
                pages_for = most if isinstance(device, Device) else divider.budget_of_pages(most)
                self.device, self._torch_device, opened = device_of(device, pages_for)
                if opened:
                    self._undo.callback(self.device.close)
                self._divide(divider, most, optimizer is not None)
                # A part of the model counts the pages that its blocks take, which only the device tells.
                most = bytes_of(budget, in_pages(self._blocks, self.device.memory().page_bytes))
                self._make_runtime(max_held, budget, most)
                if opened:
                    note(self.device, self.device.name, lambda: None)  # this object stands for its device
                self._register(pin, pack, mapped, progress)
                self._put_in_place()
                tell_outside(type(module).__name__, left, self._bytes())
                put_outside(left, self._torch_device, self._undo, self._replace)
                self._attach(debug, optimizer, optimizer_step)
                self._holding.begin_beside = Neighbours(self.device, self._holding, share_wait).begin
                attach_entries(module, self._is_under_way, self._holding.end_idle_step, self._undo)
                for one in self._trained_from_files:
                    one.stays = True
            begun(module, self)
        except BaseException as error:
            self._closed = True
            with plainly():
                self._undo.close()
            self._let_go()
            forget_locals(error)
            raise

    # Beginning.

    def _find(
        self, files: TensorFiles | None, strict: bool, outside: Outside, trained: bool, place: torch.device
    ) -> list[Found]:
        """Finds the tensors to stream to `place`. Returns the other tensors."""
        self._files = files
        found = find_tensors(self.module)
        for one in found:
            if is_served(one.tensor):
                raise UsageError(
                    Status.ERROR_INVALID_STATE,
                    f"{one.names[0]} is streamed already: end that streaming first, by unstream(model)",
                )
        for one, made in adopt(found, files, strict, type(self.module).__name__, trained):
            if trained and made.requires_grad:
                made.data = made.data.clone()  # because files are not written to
                self._trained_from_files.append(one)
            one.mapped = True
            self._replace(one, made)
        streamed, left = choose(found, [outside] if isinstance(outside, str) else outside, trained)
        empty = [one for one in left if one.parts and not one.bytes()]
        self._empty = [one for one in empty if one.tensor.requires_grad]
        if not streamed and not empty:
            raise ValueError(f"{type(self.module).__name__} has no parameter or buffer to stream")
        self._weights, self._entries = make_weights(streamed, place)
        self._places = [place for weight in self._weights for place in weight.places]
        self._undo.callback(find_earlier(self._weights, (one.tensor for one in found)))
        return left

    def _divide(self, divider: Divider, budget: int | None, trained: bool) -> None:
        memory = self.device.memory()
        total = sum(weight.bytes for weight in self._weights)
        self._units = divider.fitting(budget or memory.budget_bytes or total, memory.page_bytes)
        self._by_expert = divider.divides_alone
        self._blocks = list(dict.fromkeys(block for blocks in self._units.values() for block in blocks))
        for block in self._blocks:
            block.mutable = trained and any(place.tensor.requires_grad for place in block.places())

    def _make_runtime(self, max_held: int | None, given: Budget | None, budget: int | None) -> None:
        name = self._name
        self.runtime = Runtime(
            self.device,
            name=name,
            max_held=max_held or most_held(self._units),
            max_bytes=budget or 0,
            unordered_bytes=unordered_bytes(self.module, self._units, self.device.memory().page_bytes),
        )
        self._undo.callback(self.runtime.close)
        self._undo.callback(self._keep_stats)
        self.runtime._exceptions = BudgetErrors(name, self.device, given, budget, self._blocks)
        note(self.runtime._handle, self.device.name, lambda: f"the Streamed object of {name}, which is not closed")

    def _register(self, pin: bool, pack: bool, mapped: bool, progress: Progress) -> None:
        self._undo.callback(self._ties.restore)
        for place in self._places:
            self._undo.callback(self._restore, place)
        # The sources are in the frame of this function only, so that a failure does not keep them.
        files = Mappings(self._files) if mapped else self._files
        sources = make_sources(self.device, self._copies, self._blocks, files, pin, pack)
        for block, made in zip(self._blocks, register(self.runtime, sources, self._bytes(), progress)):
            block.block = made

    def _bytes(self) -> int:
        return sum(block.bytes for block in self._blocks)

    def _replace(self, one: Found, made: torch.Tensor) -> None:
        before, one.tensor = one.tensor, made
        put_into(one.keys, before, made)

        def back() -> None:
            if not one.stays:
                put_into(one.keys, made, one.unread.left(made, before) if one.unread else before)

        self._undo.callback(back)

    def _put_in_place(self) -> None:
        for block in self._blocks:
            address = self.runtime.block_info(block.block).address
            for weight in block.weights:
                weight.memory = memory_tensor(
                    address + weight.offset, weight.bytes, self._torch_device, self.device.kind
                )
                for place in weight.places:
                    if place.tensor.grad is not None:
                        raise ValueError(f"{place.name} has a gradient: call zero_grad() before the model is streamed")
                    place.find_memory()
                    place.put_on_device()
        self._by_storage = {key: weight for weight in self._weights for key in _subclasses.keys_of(weight.memory)}
        self._served = ServedTensors(self)
        for entry in self._entries:
            for block in entry.blocks():
                block.entries.append(entry)
            if _subclasses.is_wrapper(entry.original):
                self._rewrap(entry)
            self._serve(entry.tensor, entry)
        for place in self._places:
            if not is_served(place.tensor):  # the place is a part of a wrapper or of a special tensor
                self._serve(
                    place.tensor, Entry(place.name, place.tensor, place.tensor, [], [place], type(place.tensor), True)
                )

    def _serve(self, tensor: torch.Tensor, entry: Entry) -> None:
        kind = type(tensor)
        self._served.serve(tensor, entry)
        self._undo.callback(self._served.unserve, tensor, kind)

    def _rewrap(self, entry: Entry) -> None:
        """Gives modules a new wrapper over device memory, because a wrapper keeps the device that it was made for."""
        entry.tensor = entry.over(lambda place: place.tensor, self._torch_device)
        if entry.tensor.device != self._torch_device:
            raise TypeError(
                f"{entry.name} is a {entry.kind.__qualname__}, which reports the device {entry.tensor.device} "
                f"when it is made of tensors on {self._torch_device}. "
                f"Keep it on the device, outside the budget, by outside={entry.name!r}"
            )
        self._serve(entry.original, entry)
        entry.put(entry.tensor)
        self._undo.callback(entry.put, entry.original)

    def _restore(self, place: Place) -> None:
        weight, moved = place.weight, place.weight.moved
        if weight.copied is not None:  # the current values go back to the original memory
            copied, weight.copied = weight.copied, None
            copied.copy_(weight.host)
        place.put(place.original if moved is None else place.original.to(moved))

    def _attach(self, debug: bool | None, optimizer: MakeOptimizer | None, make_step: MakeStep | None) -> None:
        self._holding = Holding(self.runtime, self._torch_device, self._places, Calls(self.module, self._torch_device))
        self._holding.unguard, self._holding.guard = self._served.unguard, self._served.guard
        saved = SavedTensors(self._holding, self._by_storage)
        self._updates = Updates(self.runtime, self._holding.calls)
        unheld = UnheldOperations(self.runtime, self._holding, saved, self._updates, self._by_storage)
        self._served.unheld, self._served.replace, unheld.tie = unheld, unheld.replace, self._ties.note
        for weight in self._weights:
            self._undo.callback(own(weight.memory, unheld))
        self._undo.callback(self._ties.find, self.module, self._weights, unheld.weights_in)
        self._running = Running(
            self._holding,
            saved,
            ReadCheck(self._by_storage, debug),
            StepKinds(self.module),
        )
        self._running.with_grad = self._attach_inner
        if optimizer is not None:
            self._training = Training(self._holding, self._blocks, self._empty, optimizer, make_step)
            self._remove_at_end(*self._training.handles)
        self._holding.settle = self._settle
        self._undo.callback(self._end_work)
        run_uncompiled()
        streamed = {id(entry.tensor): entry for entry in self._entries}
        conversions = Conversions(streamed, self.computes, self._undo)
        for module in self.module.modules():
            keys = {**module._parameters, **module._buffers}
            entries = {key: streamed[id(tensor)] for key, tensor in keys.items() if id(tensor) in streamed}
            if entries:
                self._remove_at_end(
                    module._register_load_state_dict_pre_hook(LoadInto(entries, self._updates), with_module=True),
                    module.register_load_state_dict_post_hook(LoadedInto(entries, self._updates)),
                )
            self._set(module, "_save_to_state_dict", SaveSources(module, self, entries))
            self._set(module, "_apply", Convert(module, conversions))
            self._set(module, "__reduce_ex__", WithoutHooks(module))
            for key, method in {**own_copy(module), **instead_of_methods(module)}.items():
                self._set(module, key, method)
            kept = list(dict.fromkeys(block for entry in entries.values() if entry.special for block in entry.blocks()))
            if kept:
                self._remove_at_end(*StashHooks(self._holding, kept).attach(module))
        for hooks in make_hooks(
            self._running, self.module, self._units, self.runtime, self._torch_device, self._by_expert
        ):
            self._remove_at_end(*hooks.attach(hooks.unit.module))
        self._remove_at_end(*StepHooks(self._running).attach(self.module))
        self._undo.callback(forget_compiled)
        for block in self._blocks:
            block.settle()

    def _remove_at_end(self, *handles: Any) -> None:
        for handle in handles:
            self._undo.callback(handle.remove)

    def _settle(self) -> None:
        refuse_ties(self._entries)
        self._updates.settle(self._entries, self._places)

    def _set(self, module: nn.Module, name: str, value: object) -> None:
        """Sets an attribute of a module until streaming ends."""
        module.__dict__[name] = value
        self._undo.callback(module.__dict__.pop, name, None)

    def _attach_inner(self) -> None:
        """Attaches hooks to the modules inside a block, because with gradients a checkpoint may run such a module again
        by itself.
        """
        of_tensor = weights_by_tensor(self._entries)
        for unit in self._units:
            if unit.own:
                continue
            for module in unit.module.modules():
                if module is unit.module or not is_called(module):
                    continue
                weights = (weight for tensor in own_tensors(module) for weight in of_tensor.get(id(tensor), ()))
                blocks = list(dict.fromkeys(weight.block for weight in weights))
                if blocks:
                    self._remove_at_end(*UnitHooks(self._running, unit, blocks, True).attach(module))

    # Ending.

    def close(self) -> None:
        """Ends streaming. The module is then what it was before, except that trained weights are in memory. Weights
        that autograd has saved cannot be used any more.
        """
        if not self._closed:
            self.refuse_within()
            self._closed = True
            ended(self.module)
            # This comes before the scope below: a mode that ends inside the scope would be in force again after it.
            self._running.abandon()
            with plainly():
                self._undo.close()
            self._let_go()

    def refuse_within(self) -> None:
        """Raises an error if streaming cannot end now, because a call of the model is under way."""
        self._holding.calls.check()
        if self._holding.calls.is_calling():
            raise UsageError(
                Status.ERROR_INVALID_STATE,
                f"streaming cannot end within a call of the model {type(self.module).__name__}",
            )

    def _let_go(self) -> None:
        """Gives up memory that would otherwise live as long as this object."""
        self._copies.ended = True
        for weight in self._weights:
            del weight.host, weight.given, weight.memory, weight.storage, weight.earlier
            for place in weight.places:
                del place.original, place.given, place.open, place.closed

    def _end_work(self) -> None:
        try:
            self._holding.end_step()
            loaded(self._entries, self._updates)
            self._updates.end_all()
            self.runtime.write_back()
            refuse_lost(place for place in self._places if place.weight.earlier and place.source_changed())
        finally:
            self._holding.ended = True
            if self._torch_device.type == "cuda":
                torch.cuda.synchronize(self._torch_device)

    # Use.

    def __reduce_ex__(self, protocol: object) -> Any:
        raise TypeError("the object that stream() returned cannot be copied or pickled: copy or pickle its module")

    def __repr__(self) -> str:
        where = f"{len(self._blocks)} blocks on {self.device.name}{' (closed)' if self._closed else ''}"
        return f"<libstagehand.torch.Streamed {type(self.module).__name__}: {self._bytes()} bytes in {where}>"

    @contextmanager
    def step(self) -> Iterator[None]:
        """Use `with streamed.step():` around one pass over the model and its backward, if a step is not one call of the
        module.
        """
        if self._closed:
            raise UsageError(Status.ERROR_INVALID_HANDLE, "streaming of the model has ended")
        self._holding.calls.check()
        self._running.grad_enabled()
        self._running.abandon()
        self._holding.begin_step(explicit=True)
        self._running.reads.enter()
        passed = False
        try:
            yield
            passed = True
        finally:
            self._running.reads.leave(passed)
            self._holding.release_all()
            self._holding.end_step()

    def _is_under_way(self) -> bool:
        """Whether modules that run now, or step(), have begun a step that goes on."""
        return self._closed or self._holding.explicit or bool(self._holding.running or self._holding.modules)

    def managed_forward(self) -> AbstractContextManager[None]:
        """Another name of step()."""
        return self.step()

    def graph(self, *args: Any, warm_up: int = 3, **kwargs: Any) -> ForwardGraph:
        """Captures a forward without gradients, with these arguments, as a CUDA graph. The graph can be called with
        other tensors of the same shapes. `warm_up` is the number of forwards before the capture.
        """
        return ForwardGraph(self.module, self.runtime, self._holding, self._torch_device, warm_up, args, kwargs)

    def stats(self) -> RuntimeStats:
        """Returns counters of the copies. After the end of streaming they are those of the end."""
        return self.runtime.stats() if self._last_stats is None else self._last_stats

    def _keep_stats(self) -> None:
        with suppress(Error):
            self._last_stats = self.runtime.stats()

    def blocks(self) -> dict[str, list[str]]:
        """Returns the blocks by name, with the names of the tensors in them."""
        return {block.name: [place.name for place in block.places()] for block in self._blocks}

    def computes(self) -> bool:
        return self._holding.computes()

    def current(self, entry: Entry) -> torch.Tensor:
        if is_compiling():
            raise compiled_use(entry.name)
        for block in entry.blocks():
            if block.mutable:
                if block.backward:
                    self._holding.calls.await_failed()
                self.runtime.write_back([block.block])
        return entry.host()
