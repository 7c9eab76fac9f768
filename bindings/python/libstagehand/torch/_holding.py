"""Who holds which block: modules while they run, nodes of a backward, and the step around both."""
# mypy: disable-error-code="import-not-found,misc,no-untyped-call,unused-ignore"
from __future__ import annotations

import threading
from collections.abc import Callable, Iterable, Iterator
from contextlib import contextmanager
from typing import Any

import torch

from .._errors import BudgetError, UsageError
from .._generated import Status
from .._runtime import Runtime
from .._scopes import Step
from .._view import View
from ._calls import Calls
from ._division import Unit
from ._weights import HeldBlock, Place

_graph_task: Callable[[], int] = torch._C._current_graph_task_id
_node: Callable[[], Any] = torch._C._current_autograd_node


class _Reading:
    """The node that a backward runs, and the blocks that it asked for: they stay until it has queued its work."""

    __slots__ = ("node", "blocks")

    def __init__(self, node: object) -> None:
        self.node = node
        self.blocks: list[HeldBlock] = []


class Holding:
    """The blocks of one model."""

    def __init__(self, runtime: Runtime, device: torch.device, places: list[Place], calls: Calls) -> None:
        self.calls = calls
        self.begin_beside: Callable[[Callable[[], None]], None] = lambda begin: begin()  # where other models are on the device
        self.step_thread: int | None = None
        self._runtime = runtime
        self._places = places
        self._cuda = device.index if device.type == "cuda" else None
        self._step: Step | None = None
        self._first: Unit | None = None  # what began a step that nobody asked for
        self._explicit = False
        self._readings: dict[tuple[int, int], _Reading] = {}  # by graph task and thread
        self._backward: dict[HeldBlock, None] = {}
        self._suspended: list[tuple[HeldBlock, int | None]] = []
        self._forward = 0  # views that modules hold
        self.running = 0  # calls of the whole model under way
        self.saved = False  # weights were kept for a backward in this step
        self.ended = False
        self.training = False
        self._capturing = False
        # Reads of weights are looked at, one by one, unless modules compute.
        self.unguard: Callable[[], None] = lambda: None
        self.guard: Callable[[], None] = lambda: None
        self.settle: Callable[[], None] = lambda: None  # before a step
        self.modules = 0  # that run
        self.trained_forward: Callable[[], None] = lambda: None  # before a module runs with gradients
        self.backward_ends: Callable[[], None] = lambda: None

    # Streams.

    def stream(self) -> int | None:
        """The stream that work of this thread goes to. Asked for each time: it changes."""
        return None if self._cuda is None else int(torch._C._cuda_getCurrentRawStream(self._cuda))

    def acquire(self, block: HeldBlock, stream: int | None) -> View:
        try:
            return self._runtime.acquire(block.block, stream)
        except BudgetError as error:
            # What a backward holds only so that it need not ask again is no reason to fail.
            if error.status != Status.ERROR_HELD or not (self._forget_done() or self._release_read()):
                raise
        return self._runtime.acquire(block.block, stream)

    # Modules.

    def enter(self, unit: Unit, blocks: list[HeldBlock]) -> None:
        """Holds blocks while a module runs."""
        if self.ended:
            raise UsageError(Status.ERROR_INVALID_HANDLE, "the model is not streamed any more")
        if self._readings:
            self._forget_done()
        if self.training and torch.is_grad_enabled() and _graph_task() == -1:
            for block in blocks:
                block.uses += 1
        if self._capturing:
            pass  # there are no steps
        elif self._step is None:
            self._begin()
            self._first = unit
        elif unit is self._first and not unit_is_held(blocks):
            # Nobody calls the whole model: a step ends where it began.
            self.end_step()
            self._begin()
            self._first = unit
        stream = self.stream()
        done = 0
        try:
            for block in blocks:
                block.forward.append(self._acquire_for_module(block, stream))
                self._forward += 1
                done += 1
        except BaseException as error:
            self.leave(blocks[:done])
            if isinstance(error, BudgetError):
                error.add_note("For stream(): a larger budget=, smaller blocks by blocks=, or outside= for what should stay on the device beside it.")
            raise

    def _acquire_for_module(self, block: HeldBlock, stream: int | None) -> View:
        try:
            return self.acquire(block, stream)
        except BudgetError as error:
            if error.status != Status.ERROR_HELD or not self._backward:
                raise
        # A checkpoint runs modules again while a node takes what it needs together: it has not begun. It gets its blocks back before.
        for held in list(self._backward):
            self._suspended += [(held, on) for on in held.backward]
            self._release_block(held)
        return self.acquire(block, stream)

    def _resume(self) -> None:
        suspended, self._suspended = self._suspended, []
        for block, stream in suspended:
            if stream not in block.backward:
                block.backward[stream] = self.acquire(block, stream)
                self._backward[block] = None

    def _forget_done(self) -> bool:
        """Where memory is needed: by a forward inside a backward, of a checkpoint, or an optimizer's step. What nodes before have read goes."""
        task = _graph_task()
        if task == -1:
            self._readings.clear()  # of a backward that failed
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
                block.forward.pop().release()
        if self._suspended and not self._forward:
            self._resume()

    # Backward.

    def in_backward(self) -> int:
        """The backward that this thread is in, whose end is waited for from now on; -1: none."""
        task = _graph_task()
        if task != -1 and not self.calls.in_backward(task):

            def ends() -> None:
                self._backward_ends(task)

            self.calls.begin_backward(task, ends)
            torch.autograd.Variable._execution_engine.queue_callback(ends)
        return task

    def read(self, block: HeldBlock) -> bool:
        """Holds a block for the node that a backward runs now. False: none runs."""
        if self.ended:
            raise UsageError(
                Status.ERROR_INVALID_HANDLE, f"a backward asks for the weights of {block.name}, which are not streamed any more: run it before streaming ends"
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
            if node is not None:  # else nobody can tell when its work is queued: at the end it is
                reading.blocks = []
        stream = self.stream()
        if stream not in block.backward:
            if self._step is None:
                self._begin()
            self._release_read()
            block.backward[stream] = self.acquire(block, stream)
            self._backward[block] = None
        if block not in reading.blocks:
            reading.blocks.append(block)
        return True

    def _release_read(self, task: int | None = None) -> bool:
        """Releases what nodes read that are done. Whether there was any."""
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
        for view in views.values():
            view.release()

    def _backward_ends(self, task: int) -> None:
        self._release_read(task)
        if self.calls.end_backward(task):
            self.saved = False
            self.backward_ends()
            if not self._explicit and not self.running:
                self.end_step()

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
        # Before it begins: an interrupt may come between, and what is not begun can be ended.
        self._step = self._runtime.step()
        try:
            self._step.__enter__()
        except BaseException:
            self._step = None
            raise
        self.step_thread = threading.get_ident()

    def end_idle_step(self) -> bool:
        """Ends a step that was begun for a call, and waits for its backward."""
        if self._step is None or self._explicit or self.running or self.modules or self._forward or self._backward or self.calls.elsewhere():
            return False
        self.end_step()
        return True

    @contextmanager
    def reading(self, block: HeldBlock) -> Iterator[View]:
        """Holds a block for functions of its weights, which see that they are there."""
        view = self.acquire(block, self.stream())
        block.forward.append(view)
        try:
            with self.computing():
                yield view
        finally:
            block.forward.remove(view)
            view.release()

    @contextmanager
    def computing(self) -> Iterator[None]:
        """While weights are read that are held, or nothing but what is known of them."""
        self.unguard()
        try:
            yield
        finally:
            self.guard_outside()

    def guard_outside(self) -> None:
        if not self.running and not self.modules:
            self.guard()

    def begin_step(self, explicit: bool = False) -> None:
        """Begins a step. One that nobody asked for by name ends before."""
        if self.ended:
            raise UsageError(Status.ERROR_INVALID_HANDLE, "the model is not streamed any more")
        if self._explicit:
            raise UsageError(Status.ERROR_INVALID_STATE, "a step is under way")
        self.end_step()
        self.release_all()
        self._begin()
        self._first = None
        self.saved = False
        self._explicit = explicit

    @property
    def explicit(self) -> bool:
        """Whether steps are not begun by calls of the model."""
        return self._explicit or self._capturing

    @contextmanager
    def capture(self) -> Iterator[None]:
        """While a graph is captured, whose launches are steps."""
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
        """Releases what an exception that no hook sees has left."""
        self._readings.clear()
        self.calls.forget_backwards()
        self._suspended.clear()
        self._release_read()
        if not self.running and self._forward:
            self._forward = 0
            for place in self._places:
                for view in place.weight.block.forward:
                    view.release()
                place.weight.block.forward.clear()


def unit_is_held(blocks: list[HeldBlock]) -> bool:
    return any(block.forward for block in blocks)


def refuse_changes(places: Iterable[Place]) -> None:
    """What was written to weights in place is lost when they are loaded again, which is before the next step."""
    changed = [place for place in places if place.changed()]
    for place in changed:
        place.overwritten = True
    if changed:
        raise RuntimeError(
            f"{changed[0].name} is streamed, and was changed in place: that reaches its device memory only, which is loaded again. "
            "Change it by load_state_dict(), before streaming, or leave it outside by outside="
        )
