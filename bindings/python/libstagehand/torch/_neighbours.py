"""Several models on a device in one program: a step of one model waits for steps of the others, ends idle ones, and has
idle models give back all memory if there is not even the least that the model needs.
"""

# mypy: disable-error-code="import-not-found,misc,no-untyped-call,unused-ignore"
from __future__ import annotations

import time
from collections.abc import Callable
from threading import Lock, get_ident
from typing import ClassVar, Protocol
from weakref import WeakKeyDictionary, WeakSet

from .._device import Device
from .._errors import BudgetError
from .._generated import Status


class Neighbour(Protocol):
    step_thread: int | None  # the thread that began the model's step; None if there is no step

    def end_idle_step(self) -> bool:
        """Ends the model's step if nothing uses it. Returns whether there was such a step. The model can begin another
        step at any time.
        """

    def give_all_back(self) -> bool:
        """Gives all device memory of the model back if nothing uses the model. Returns whether it did. The model takes
        memory again when it is used.
        """


class Neighbours:
    """The models of a device."""

    _lock: ClassVar[Lock] = Lock()  # for these sets, because models begin in any thread
    _of_device: ClassVar[WeakKeyDictionary[Device, WeakSet[Neighbour]]] = WeakKeyDictionary()

    def __init__(self, device: Device, me: Neighbour, wait: float) -> None:
        self._me = me
        self._wait = wait
        with self._lock:
            self._all = self._of_device.setdefault(device, WeakSet())
            self._all.add(me)

    def begin(self, begin: Callable[[], None]) -> None:
        """Begins a step. Waits until other models have given up the memory of this model's share, which they do at the
        end of their steps.
        """
        until = time.monotonic() + self._wait
        gone: set[int] = set()  # the models that have given all back for this step
        ran = True  # whether other threads may have been in the way
        while True:
            try:
                return begin()
            except BudgetError as error:
                if error.status == Status.ERROR_BUDGET:
                    if not self._take_all(gone):
                        raise
                elif error.status != Status.ERROR_BUSY:
                    raise
                elif not self._end_idle():
                    # The steps that were in the way may have ended by now, so the next try is the one that tells.
                    before, ran = ran, not self._is_in_step() or self._others_run()
                    if not (before or ran) or time.monotonic() >= until:
                        raise
            time.sleep(0.001)

    def _take_all(self, gone: set[int]) -> bool:
        """Has one idle model after the other give back all that it holds. Each model keeps the least that it needs
        otherwise, although models of a pipeline run in turn. Returns whether there was one more.
        """
        for one in self._others():
            if id(one) not in gone and one.give_all_back():
                gone.add(id(one))
                return True
        return False

    def _end_idle(self) -> bool:
        """Ends idle steps of this thread, because the thread cannot wait for itself. A step of which only the backward
        is left can be ended: the backward then begins a step of its own.
        """
        return any([one.end_idle_step() for one in self._others() if one.step_thread == get_ident()])

    def _others(self) -> list[Neighbour]:
        with self._lock:
            return [one for one in self._all if one is not self._me]

    def _is_in_step(self) -> bool:
        """Whether this thread is in a step, which it would wait for itself."""
        return any(one.step_thread == get_ident() for one in self._others())

    def _others_run(self) -> bool:
        return any(one.step_thread not in (None, get_ident()) for one in self._others())
