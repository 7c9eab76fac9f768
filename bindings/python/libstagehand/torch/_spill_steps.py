"""The steps of spilling: a forward and its backward. The library learns the order of a step's restores.

A step begins with the first tensor that is saved after a backward, unless the program begins and ends steps itself.
"""

# mypy: disable-error-code="import-not-found,misc,no-untyped-call,unused-ignore"
from __future__ import annotations

import logging
import threading
from collections.abc import Callable
from typing import Any

import torch

from .._errors import Error, UsageError
from .._generated import Status
from ._spill_device import SpilledDevice

_log = logging.getLogger("libstagehand.torch")
_graph_task: Callable[[], int] = torch._C._current_graph_task_id


class SpillSteps:
    """The steps of the spillers of one spill_activations()."""

    def __init__(self) -> None:
        self.devices: list[SpilledDevice] = []
        self.at_begin: Callable[[], None] = lambda: None
        self.at_backward_end: Callable[[], None] = lambda: None
        self.at_end: Callable[[], None] = lambda: None
        self.entered = 0  # the number of scopes that have the hooks in force
        self._number = 0
        self._open = False
        self._explicit = False
        self._turned = False  # whether the step's backward has begun
        self._task = -1  # the backward whose end is awaited
        self._lock = threading.RLock()

    def saves(self) -> None:
        """A tensor is about to be saved in a forward."""
        if self._open and (self._explicit or not self._turned):
            return
        with self._lock:
            if not self._open or (self._turned and not self._explicit):
                self._end_quietly()
                self._begin()

    def restores(self) -> None:
        """A tensor is about to be restored."""
        task = _graph_task()
        if task == -1:
            return  # the program looks at what a node has saved
        self._turned = True
        if task != self._task:
            self._task = task
            engine: Any = torch.autograd.Variable._execution_engine
            engine.queue_callback(self._backward_ends)

    def _backward_ends(self) -> None:
        self._task = -1
        self._forget()
        if not self.entered and not self._explicit:
            self._end_quietly()

    def _forget(self) -> None:
        """Gives up memory that is kept for further nodes of a backward."""
        for device in self.devices:
            device.forget_restored()
        self.at_backward_end()

    def leave(self) -> None:
        """The hooks are no more in force. A backward may still come."""
        if not self.entered and self._turned and not self._explicit:
            self._end()

    def begin(self, number: int | None) -> None:
        if self._explicit:
            raise UsageError(Status.ERROR_INVALID_STATE, "a step is under way: end_step() must end it before")
        with self._lock:
            self._end()
            self._begin(number)
            self._explicit = True

    def end(self) -> None:
        if not self._explicit:
            raise UsageError(Status.ERROR_INVALID_STATE, "no step is under way: begin_step() begins one")
        self._explicit = False
        self._end()

    def end_open(self) -> None:
        self._explicit = False
        self._end()

    def _begin(self, number: int | None = None) -> None:
        self._turned = False
        self._forget()  # a backward that failed did not
        self._number = self._number + 1 if number is None else number
        for device in self.devices:
            device.begin_step(self._number)
        self._open = True
        self.at_begin()

    def _end_quietly(self) -> None:
        """Ends a step where the program does not expect it."""
        try:
            self._end()
        except Error as error:  # the line of telemetry could not be written
            _log.warning("a step of spilling has ended with an error: %s", error)

    def _end(self) -> None:
        failed: Exception | None = None
        with self._lock:
            if not self._open:
                return
            self._open = self._turned = False
            for device in self.devices:
                try:
                    device.spiller.end_step()
                except Exception as error:
                    failed = failed or error
            self.at_end()
        if failed is not None:
            raise failed
