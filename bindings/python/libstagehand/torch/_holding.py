"""Holds blocks for the modules that run and for the nodes of a backward, within a step."""

# mypy: disable-error-code="import-not-found,misc,no-untyped-call,unused-ignore"
from __future__ import annotations

import threading
from collections.abc import Callable, Iterable, Iterator
from contextlib import contextmanager
from typing import Any

import torch

from .._errors import BudgetError, Error, UsageError
from .._generated import Status
from .._runtime import Runtime
from .._scopes import Step
from .._view import View
from ._calls import Calls
from ._division import Unit
from ._weights import HeldBlock, Place, changed_in_place

_graph_task: Callable[[], int] = torch._C._current_graph_task_id
_node: Callable[[], Any] = torch._C._current_autograd_node


class _Reading:
    """The node that a backward runs now, and the blocks that the node has asked for. The blocks are held until the node
    has queued its work.
    """

    __slots__ = ("node", "blocks")

    def __init__(self, node: object) -> None:
        self.node = node
        self.blocks: list[HeldBlock] = []


class Holding:
    """Holds and releases the blocks of one model, and begins and ends its steps."""

    def __init__(self, runtime: Runtime, device: torch.device, places: list[Place], calls: Calls) -> None:
        self.calls = calls
        # Begins a step beside the steps of other models on the device.
        self.begin_beside: Callable[[Callable[[], None]], None] = lambda begin: begin()
        self.step_thread: int | None = None
        self._runtime = runtime
        self._places = places
        self._cuda = device.index if device.type == "cuda" else None
        self._step: Step | None = None
        self._kind: str | None = None  # of the step that begins next
        self._first: Unit | None = None  # the unit whose call began a step; None if the model's call or step() began it
        self._explicit = False  # whether step() began the step
        self._readings: dict[tuple[int, int], _Reading] = {}  # by graph task and thread
        self._backward: dict[HeldBlock, None] = {}
        self._suspended: list[tuple[HeldBlock, int | None]] = []
        self._forward = 0  # the number of views that modules hold
        self.running = 0  # the number of calls of the whole model under way
        self.saved = False  # whether autograd has kept weights for a backward in this step
        self.ended = False
        self.training = False
        self._capturing = False
        # guard() has every read of a weight checked. unguard() ends that while modules compute.
        self.unguard: Callable[[], None] = lambda: None
        self.guard: Callable[[], None] = lambda: None
        self.settle: Callable[[], None] = lambda: None  # called before a step
        self.modules = 0  # the number of modules that run
        self.trained_forward: Callable[[], None] = lambda: None  # called before a module runs with gradients
        self.backward_ends: Callable[[], None] = lambda: None
        self.backward_fails: Callable[[], None] = lambda: None

    # Streams.

    def stream(self) -> int | None:
        """The current stream of this thread. It is asked for each time, because it changes."""
        return None if self._cuda is None else int(torch._C._cuda_getCurrentRawStream(self._cuda))

    def acquire(self, block: HeldBlock, stream: int | None) -> View:
        try:
            return self._runtime.acquire(block.block, stream)
        except BudgetError as error:
            # A backward holds blocks of earlier nodes only to save another acquire. They can be released instead.
            if error.status != Status.ERROR_HELD or not (self._forget_done() or self._release_read()):
                raise
        return self._runtime.acquire(block.block, stream)

    # Modules.

    def enter(self, unit: Unit, blocks: list[HeldBlock]) -> None:
        """Holds blocks while a module runs."""
        if self.ended:
            raise UsageError(Status.ERROR_INVALID_HANDLE, "streaming of the model has ended")
        if self._readings:
            self._forget_done()
        if self.training:
            self._count_uses(blocks)
        if self._capturing:
            pass  # a capture has no steps
        elif self._step is None:
            self._begin()
            self._first = unit
        elif unit is self._first and not unit_is_held(blocks):
            # Only parts of the model are called, so a step ends when the part that began it is called again.
            self.end_step()
            self._begin()
            self._first = unit
        self._take(blocks)

    def _take(self, blocks: list[HeldBlock]) -> None:
        stream = None if self._cuda is None else self.stream()
        acquire = self._runtime.acquire
        done = 0
        try:
            for block in blocks:
                try:
                    view = acquire(block.block, stream)
                except BudgetError:
                    view = self._acquire_for_module(block, stream)
                block.forward.append(view)
                self._forward += 1
                done += 1
                if not block.open:
                    block.settle()
        except BaseException:
            self.leave(blocks[:done])
            raise

    def _count_uses(self, blocks: list[HeldBlock]) -> None:
        if self.training and torch.is_grad_enabled() and _graph_task() == -1:
            for block in blocks:
                block.uses += 1

    def _acquire_for_module(self, block: HeldBlock, stream: int | None) -> View:
        try:
            return self.acquire(block, stream)
        except BudgetError as error:
            if error.status != Status.ERROR_HELD or not self._backward:
                raise
        # A checkpoint runs modules again while a node still collects its saved tensors. The node has not begun its
        # work, so its blocks can be released now. _resume() acquires them again before the node begins.
        for held in list(self._backward):
            self._suspended += [(held, on) for on in held.backward]
            self._release_block(held)
        return self.acquire(block, stream)

    def _resume(self) -> None:
        suspended, self._suspended = self._suspended, []
        for block, stream in suspended:
            if stream not in block.backward:
                self._take_in_backward(block, stream)

    def _forget_done(self) -> bool:
        """Releases the blocks that earlier nodes of a backward have read. It is called when a forward inside a backward
        (of a checkpoint) or an optimizer's step needs memory. Returns whether there were any.
        """
        task = _graph_task()
        if task == -1:
            self._readings.clear()  # left by a backward that failed
            self.calls.forget_backwards()
        else:
            reading = self._readings.get((task, threading.get_ident()))
            node = _node()
            if reading is None or node is None or reading.node is node:
                return False
            reading.node, reading.blocks = node, []
        return self._release_read()

    def leave(self, blocks: list[HeldBlock]) -> None:
        for block in blocks:
            if block.forward:
                self._forward -= 1
                view = block.forward.pop()
                block.settle()
                view.release()
        if self._suspended and not self._forward:
            self._resume()

    # Backward.

    def in_backward(self) -> int:
        """Returns the backward that this thread is in, or -1 if there is none. The first call for a backward registers
        a function for its end.
        """
        task = _graph_task()
        if task != -1 and not self.calls.in_backward(task):

            def ends() -> None:
                self._backward_ends(task)

            self.calls.begin_backward(task, ends, lambda: self._backward_fails(task))
            torch.autograd.Variable._execution_engine.queue_callback(ends)
        return task

    def read(self, block: HeldBlock) -> bool:
        """Holds a block for the node that a backward runs now. Returns False if no backward runs."""
        if self.ended:
            raise UsageError(
                Status.ERROR_INVALID_HANDLE,
                f"a backward needs the weights of {block.name}, but streaming has ended: "
                "run the backward before streaming ends",
            )
        task = self.in_backward()
        if task == -1:
            return False
        key = (task, threading.get_ident())
        node = _node()
        reading = self._readings.get(key)
        if reading is None:
            reading = self._readings[key] = _Reading(node)
        elif node is None or reading.node is not node:
            reading.node = node
            if node is not None:  # without a node the end of its work is not known before the end of the backward
                reading.blocks = []
        stream = self.stream()
        if stream not in block.backward:
            if self._step is None:
                self._begin()
            self._release_read()
            self._take_in_backward(block, stream)
        if block not in reading.blocks:
            reading.blocks.append(block)
        return True

    @contextmanager
    def within_node(self, blocks: list[HeldBlock]) -> Iterator[bool]:
        """Holds blocks for one operation of the node that a backward runs now, which may go on to run another backward.
        Yields False if no backward runs.
        """
        reading = self._readings.get((_graph_task(), threading.get_ident()))
        before = list(reading.blocks) if reading is not None and reading.node is _node() else []
        try:
            yield all([self.read(block) for block in blocks])
        finally:
            reading = self._readings.get((_graph_task(), threading.get_ident()))
            if reading is not None:
                reading.blocks = [block for block in reading.blocks if block in before or block not in blocks]

    def _take_in_backward(self, block: HeldBlock, stream: int | None) -> None:
        block.backward[stream] = self.acquire(block, stream)
        self._backward[block] = None
        block.settle()

    def _release_read(self, task: int | None = None) -> bool:
        """Releases the blocks of nodes that have ended. Returns whether there were any."""
        if task is not None:
            for key in [key for key in self._readings if key[0] == task]:
                del self._readings[key]
        kept = {id(block) for reading in self._readings.values() for block in reading.blocks}
        gone = [block for block in self._backward if id(block) not in kept]
        for block in gone:
            self._release_block(block)
        return bool(gone)

    def _release_block(self, block: HeldBlock) -> None:
        del self._backward[block]
        views, block.backward = block.backward, {}
        block.settle()
        for view in views.values():
            view.release()

    def _backward_ends(self, task: int) -> None:
        self._release_read(task)
        if self.calls.end_backward(task):
            self.saved = False
            self.backward_ends()
            if not self._explicit and not self.running:
                self.end_step()

    def _backward_fails(self, task: int) -> None:
        """Releases what a backward has left that an exception has ended. The step goes on to the next call."""
        self._release_read(task)
        self.calls.end_backward(task)
        self.backward_fails()

    # Steps.

    def _begin(self) -> None:
        self.settle()
        self.begin_beside(self._begin_step)
        with self.computing():
            try:
                refuse_changes(self._places)
            except RuntimeError:
                self.end_step()
                raise

    def _begin_step(self) -> None:
        # The step is noted before it begins, because an interrupt may come in between. The end of a step that has not
        # begun does no harm.
        self._step, self._kind = self._runtime.step(self._kind), None
        try:
            self._step.__enter__()
        except BaseException:
            self._step = None
            raise
        self.step_thread = threading.get_ident()

    def end_idle_step(self) -> bool:
        """Ends a step whose forward is over and whose backward has not begun. Returns whether there was such a step."""
        if (
            self._step is None
            or self._explicit
            or self.running
            or self.modules
            or self._forward
            or self._backward
            or self.calls.elsewhere()
        ):
            return False
        self.end_step()
        return True

    def give_all_back(self) -> bool:
        """Gives all device memory back if nothing uses the model. Returns whether it did."""
        if self._step is not None and (self.step_thread != threading.get_ident() or not self.end_idle_step()):
            return False
        if self.ended or self._capturing or self._forward or self._backward:
            return False
        try:
            return self._runtime.trim(0) == 0
        except Error:  # another thread has begun to use it
            return False

    @contextmanager
    def reading(self, block: HeldBlock) -> Iterator[View]:
        """Holds a block so that functions can read its weights."""
        view = self.acquire(block, self.stream())
        block.forward.append(view)
        try:
            block.settle()
            with self.computing():
                yield view
        finally:
            block.forward.remove(view)
            block.settle()
            view.release()

    @contextmanager
    def borrowing(self, blocks: list[HeldBlock]) -> Iterator[None]:
        """Holds blocks for one operation of a module that does not hold them."""
        self._count_uses(blocks)
        self._take(blocks)
        views = [block.forward[-1] for block in blocks]
        try:
            yield
        finally:
            for block, view in zip(blocks, views):
                if view in block.forward:  # otherwise an exception that no hook saw has released it
                    block.forward.remove(view)
                    self._forward -= 1
                    block.settle()
                    view.release()
            if self._suspended and not self._forward:
                self._resume()

    def computes(self) -> bool:
        """Whether this thread runs a module of the model."""
        return bool(self.running or self.modules) and self.calls.mine()

    @contextmanager
    def computing(self) -> Iterator[None]:
        """Reads of weights are not checked meanwhile: the block is held, or only properties of a weight are read."""
        self.unguard()
        try:
            yield
        finally:
            self.guard_outside()

    def guard_outside(self) -> None:
        if not self.running and not self.modules:
            self.guard()

    def begin_step(self, explicit: bool = False, kind: str | None = None) -> None:
        """Begins a step, of the kind with that name. A step that a call began ends before."""
        if self.ended:
            raise UsageError(Status.ERROR_INVALID_HANDLE, "streaming of the model has ended")
        if self._explicit:
            raise UsageError(Status.ERROR_INVALID_STATE, "a step() of the model is under way: it must end before")
        self.end_step()
        self.release_all()
        self._kind = kind
        self._begin()
        self._first = None
        self.saved = False
        self._explicit = explicit

    @property
    def explicit(self) -> bool:
        """Whether calls of the model begin no steps, because step() or a capture is under way."""
        return self._explicit or self._capturing

    @contextmanager
    def capture(self) -> Iterator[None]:
        """The scope of a graph's capture. It has no steps, because each launch of the graph is one."""
        self.end_step()
        self.release_all()
        self._capturing = True
        try:
            yield
        finally:
            self._capturing = False
            self.release_all()

    def end_step(self) -> None:
        step = self._step
        self._first, self._explicit = None, False
        if step is not None:
            try:
                step.__exit__(None, None, None)
            finally:
                self._step = self.step_thread = None

    def release_all(self) -> None:
        """Releases the blocks that are left from an exception that no hook saw."""
        self._readings.clear()
        self.calls.forget_backwards()
        self._suspended.clear()
        self._release_read()
        if not self.running and self._forward:
            self._forward = 0
            for place in self._places:
                block = place.weight.block
                views, block.forward = block.forward, []
                block.settle()
                for view in views:
                    view.release()


def unit_is_held(blocks: list[HeldBlock]) -> bool:
    return any(block.forward for block in blocks)


def refuse_changes(places: Iterable[Place]) -> None:
    """Refuses weights that were changed in place. The changes are lost when the weights are loaded again, which is
    before the next step.
    """
    changed = changed_in_place(places)
    for place in changed:
        place.overwritten = True
    if changed:
        raise RuntimeError(
            f"{changed[0].name} is streamed, and was changed in place. The change is only in device memory, "
            "and is lost when the weight is loaded again. "
            "Change the weight by load_state_dict(), or before streaming, or keep it on the device by outside="
        )
