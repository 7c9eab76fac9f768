"""Work that is done once in a process, whichever thread comes first."""

from __future__ import annotations

import threading
from collections.abc import Callable
from functools import wraps
from typing import TypeVar

_Made = TypeVar("_Made")


def once(function: Callable[[], _Made]) -> Callable[[], _Made]:
    """Has the function called once, and its result returned to all callers. Threads that come meanwhile wait, which
    functools.cache does not have them do. The next caller calls the function again if it has failed.
    """
    lock = threading.RLock()
    made: list[_Made] = []

    @wraps(function)
    def called() -> _Made:
        if not made:
            with lock:
                if not made:
                    made.append(function())
        return made[0]

    return called
