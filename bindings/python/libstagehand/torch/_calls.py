"""Whose call of a model is under way. Calls of two threads must not overlap: what one of them lets go the other one computes with."""
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
# A thread of autograd lets go of a backward that failed some moments after its caller got the error.
_MOMENTS = 50


class Calls:
    """The calls of one model, and its backwards. On a GPU these run on threads of autograd, beside the one that waits for them."""

    def __init__(self, model: nn.Module, device: torch.device) -> None:
        self._name = type(model).__name__
        self._parts = {id(part) for part in model.modules()}
        self._own_threads = device.type != "cpu"  # autograd has such for the device
        self._lock = threading.Lock()
        self._thread: int | None = None  # whose call of modules is under way
        self._backwards: dict[int, tuple[int, weakref.ref[Callable[[], None]]]] = {}  # that run, by graph task: the thread, and what is called at the end

    def enter(self) -> bool:
        """A module is called. Whether another thread's call has left something behind, as one does that an interrupt ends."""
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
        """No module runs any more."""
        if self._thread == get_ident():
            self._thread = None

    def mine(self) -> bool:
        """Whether the call under way is one of this thread."""
        return self._thread == get_ident() or self._is_autograd()

    def check(self) -> None:
        """Refuses what must not come between, as the end of a step."""
        self._refuse_backward()
        if not self.mine() and self._is_calling(self._thread):
            raise self._refusal("its call")

    def is_calling(self) -> bool:
        """Whether a module of it runs on this thread."""
        return self._is_calling(get_ident())

    # Backwards.

    def in_backward(self, task: int) -> bool:
        """Whether it is known already that this one runs."""
        return task in self._backwards

    def begin_backward(self, task: int, ends: Callable[[], None]) -> None:
        """One begins; autograd calls `ends` at its end, and keeps nobody else's reference to it: that it is gone tells of one that failed."""
        if not self._own_threads:
            self.check()
        self._backwards[task] = get_ident(), weakref.ref(ends)

    def end_backward(self, task: int) -> bool:
        """Whether there is no other one."""
        self._backwards.pop(task, None)
        return not self._backwards

    def forget_backwards(self) -> None:
        self._backwards.clear()

    def elsewhere(self) -> bool:
        """Whether a backward runs that this thread is not in: it would wait for its own."""
        if not self._backwards or self._is_autograd():
            return False
        me, inside = get_ident(), _graph_task() != -1
        return any(ends() is not None and not (inside and thread == me) for thread, ends in list(self._backwards.values()))

    def _refuse_backward(self) -> None:
        for _ in range(_MOMENTS):
            if not self.elsewhere():
                return
            time.sleep(0.001)
        raise self._refusal("its backward")

    def _is_autograd(self) -> bool:
        return self._own_threads and _graph_task() != -1

    def _is_calling(self, thread: int | None) -> bool:
        frame = sys._current_frames().get(thread) if thread is not None else None
        while frame is not None:
            # By part of its name: torch.compile gives the rest of a function that it has divided another one.
            if "_call_impl" in frame.f_code.co_name and any(id(value) in self._parts for value in list(frame.f_locals.values())):
                return True
            frame = frame.f_back
        return False

    def _refusal(self, what: str) -> RuntimeError:
        return RuntimeError(
            f"{self._name} is streamed, and another thread uses it now: {what} is under way. What one of them lets go the other one would compute with: "
            "have one thread call it at a time (a lock around the call, and its backward)"
        )
