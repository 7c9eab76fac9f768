"""The threads whose calls of a model are under way. Calls of two threads must not overlap, because one thread would
release blocks that the other thread computes with.
"""

# mypy: disable-error-code="import-not-found,misc,no-untyped-call,unused-ignore"
from __future__ import annotations

import sys
import threading
import time
import weakref
from collections.abc import Callable
from threading import get_ident

import torch
from torch import nn

_graph_task: Callable[[], int] = torch._C._current_graph_task_id
# Milliseconds to wait for the end of a backward that failed: autograd's thread may end it after its caller got the
# error.
_MOMENTS = 50


class Calls:
    """The calls of one model, and its backwards. On a GPU a backward runs on threads of autograd, while the thread that
    began the backward waits.
    """

    def __init__(self, model: nn.Module, device: torch.device) -> None:
        self._name = type(model).__name__
        self._parts = {id(part) for part in model.modules()}
        self._own_threads = device.type != "cpu"  # whether autograd has threads of its own for the device
        self._lock = threading.Lock()
        self._thread: int | None = None  # the thread whose call of modules is under way
        # The backwards that run, by graph task: the thread, and the function that autograd calls at the end.
        self._backwards: dict[int, tuple[int, weakref.ref[Callable[[], None]]]] = {}

    def enter(self) -> bool:
        """Notes that a module is called. Returns whether an earlier call of another thread was cut short, for example
        by an interrupt, so that its state is still there.
        """
        if self._backwards:
            self._refuse_backward()
        me = get_ident()
        if self._thread == me or self._is_autograd():
            return False
        with self._lock:
            before = self._thread
            if before is not None and self._is_calling(before):
                raise self._refusal("its call")
            self._thread = me
        return before is not None and _graph_task() == -1

    def leave(self) -> None:
        """Notes that no module runs any more."""
        if self._thread == get_ident():
            self._thread = None

    def mine(self) -> bool:
        """Whether this thread makes the call that is under way."""
        return self._thread == get_ident() or self._is_autograd()

    def check(self) -> None:
        """Raises an error if another thread uses the model, for an operation that must not come between, like the end
        of a step.
        """
        self._refuse_backward()
        if not self.mine() and self._is_calling(self._thread):
            raise self._refusal("its call")

    def is_calling(self) -> bool:
        """Whether a module of the model runs on this thread."""
        return self._is_calling(get_ident())

    # Backwards.

    def in_backward(self, task: int) -> bool:
        """Whether begin_backward() was called for this backward."""
        return task in self._backwards

    def begin_backward(self, task: int, ends: Callable[[], None], fails: Callable[[], None]) -> None:
        """Notes that a backward begins. Autograd calls `ends` at its end, and has the only reference to that function.
        So the function is gone if the backward has failed, and `fails` is called then.
        """
        if not self._own_threads:
            self.check()
        self._backwards[task] = get_ident(), weakref.ref(ends, lambda _: fails())

    def end_backward(self, task: int) -> bool:
        """Notes the end of a backward. Returns whether no other one runs."""
        self._backwards.pop(task, None)
        return not self._backwards

    def forget_backwards(self) -> None:
        self._backwards.clear()

    def elsewhere(self) -> bool:
        """Whether a backward runs that this thread is not part of. A thread must not wait for its own backward."""
        if not self._backwards or self._is_autograd():
            return False
        me, inside = get_ident(), _graph_task() != -1
        return any(
            ends() is not None and not (inside and thread == me) for thread, ends in list(self._backwards.values())
        )

    def await_failed(self) -> bool:
        """Waits a moment for the end of a backward that has failed. Returns whether no other thread's backward runs."""
        for _ in range(_MOMENTS):
            if not self.elsewhere():
                return True
            time.sleep(0.001)
        return False

    def _refuse_backward(self) -> None:
        if not self.await_failed():
            raise self._refusal("its backward")

    def _is_autograd(self) -> bool:
        return self._own_threads and _graph_task() != -1

    def _is_calling(self, thread: int | None) -> bool:
        frame = sys._current_frames().get(thread) if thread is not None else None
        while frame is not None:
            # A part of the name is compared, because torch.compile gives the rest of a divided function another name.
            if "_call_impl" in frame.f_code.co_name and any(
                id(value) in self._parts for value in list(frame.f_locals.values())
            ):
                return True
            frame = frame.f_back
        return False

    def _refusal(self, what: str) -> RuntimeError:
        return RuntimeError(
            f"{self._name} is streamed, and another thread uses it now: {what} is under way. "
            "One thread would release weights that the other thread computes with. "
            "Let one thread at a time use the model, with a lock around each call and its backward"
        )
