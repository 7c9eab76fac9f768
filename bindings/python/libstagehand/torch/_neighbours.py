"""Several models on a device, in one program: whose steps a step of another one waits for, and whose it ends."""
# mypy: disable-error-code="import-not-found,misc,no-untyped-call,unused-ignore"
from __future__ import annotations

import time
from collections.abc import Callable
from threading import get_ident
from typing import Protocol
from weakref import WeakKeyDictionary, WeakSet

from .._device import Device
from .._errors import BudgetError
from .._generated import Status


class Neighbour(Protocol):
    step_thread: int | None  # that began its step; None: there is none

    def end_idle_step(self) -> bool:
        """Ends its step where nothing of it is in use, so that another one can be begun at any time. Whether there was any."""


class Neighbours:
    """The models of a device."""

    _of_device: WeakKeyDictionary[Device, WeakSet[Neighbour]] = WeakKeyDictionary()

    def __init__(self, device: Device, me: Neighbour, wait: float) -> None:
        self._me = me
        self._wait = wait
        self._all = self._of_device.setdefault(device, WeakSet())
        self._all.add(me)

    def begin(self, begin: Callable[[], None]) -> None:
        """Begins a step, when others have given up what is this model's share: at the end of their steps."""
        until = time.monotonic() + self._wait
        while True:
            try:
                return begin()
            except BudgetError as error:
                if error.status != Status.ERROR_BUSY or (not self._end_idle() and (not self._others_run() or time.monotonic() >= until)):
                    raise
            time.sleep(0.001)

    def _end_idle(self) -> bool:
        """Those of this thread, which would wait for itself. A step that only a backward is left of can be ended: that begins one of its own."""
        mine = [one for one in self._all if one is not self._me and one.step_thread == get_ident()]
        return any([one.end_idle_step() for one in mine])

    def _others_run(self) -> bool:
        return any(one.step_thread not in (None, get_ident()) for one in self._all)
