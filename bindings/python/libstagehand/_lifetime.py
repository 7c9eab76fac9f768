"""When things of the library end: handles that destroy themselves, never inside a callback, and what is left when the interpreter exits.

A handle is a C pointer with a destructor (cffi's gc), and the destructor holds on to what has to outlive it. So whatever order Python
gives objects up in, even in cycles, a device closes after its runtimes and memory, and sources go after the runtime that reads them.
"""
from __future__ import annotations

import atexit
import threading
import weakref
from collections import deque
from collections.abc import Callable
from typing import Any, Protocol

from ._native import ffi


class Closable(Protocol):
    # When the interpreter exits, what has a lower one is closed before.
    _turn: int

    def close(self) -> None: ...


class _Thread(threading.local):
    callbacks = 0


# How many callbacks of the library this thread is inside of.
thread = _Thread()
postponed: deque[Callable[[], object]] = deque()
_open: weakref.WeakSet[Any] = weakref.WeakSet()


def owned(handle: Any, destroy: Callable[[Any], object], *outlived: object) -> Any:
    """A handle that is destroyed when it is released, or garbage. `outlived` lives longer."""

    def finish(raw: Any, _outlived: object = outlived, _thread: _Thread = thread, _later: deque[Callable[[], object]] = postponed) -> None:
        # Python may collect garbage anywhere, also in a callback, from which the library must not be called.
        if _thread.callbacks:
            _later.append(lambda: (destroy(raw), _outlived))
        else:
            destroy(raw)

    return ffi.gc(handle, finish)


def postpone(action: Callable[[], object]) -> None:
    """Has it done outside callbacks, soon."""
    postponed.append(action)


def destroy_postponed() -> None:
    """Does what could not be done inside callbacks."""
    while postponed and not thread.callbacks:
        try:
            postponed.popleft()()
        except IndexError:
            return


def close_at_exit(thing: Closable) -> None:
    """Has it closed before the interpreter goes: its callbacks are Python functions, which the library's threads cannot call any more then."""
    destroy_postponed()
    _open.add(thing)


def _close_all() -> None:
    interrupt: BaseException | None = None
    for thing in sorted(_open, key=lambda thing: int(thing._turn)):
        try:
            thing.close()
        except BaseException as exception:  # whoever does not want to wait for the first has to wait for the others too
            interrupt = interrupt or exception
    destroy_postponed()
    if interrupt is not None:
        raise interrupt


atexit.register(_close_all)
