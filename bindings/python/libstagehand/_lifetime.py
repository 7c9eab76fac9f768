"""The end of the library's objects: handles destroy themselves, but never inside a callback, and objects that are open
are closed when the interpreter exits.

A handle is a C pointer with a destructor (cffi's gc), and the destructor keeps the objects that must outlive it. So the
order in which Python collects objects, even in cycles, does not matter: a device closes after its runtimes and memory,
and sources are freed after the runtime that reads them.
"""

from __future__ import annotations

import atexit
import threading
import weakref
from collections import deque
from collections.abc import Callable
from types import TracebackType
from typing import Any, Protocol, Self

from ._native import ffi


class Closable(Protocol):
    # Objects with a lower number are closed first when the interpreter exits.
    _turn: int

    def close(self) -> None: ...


class _Thread(threading.local):
    callbacks = 0


# `thread.callbacks` is the number of the library's callbacks that this thread runs now.
thread = _Thread()
postponed: deque[Callable[[], object]] = deque()
_open: weakref.WeakSet[Any] = weakref.WeakSet()


def owned(handle: Any, destroy: Callable[[Any], object], *outlived: object) -> Any:
    """Returns a handle that is destroyed when it is released or garbage. It keeps `outlived` until then."""

    def finish(
        raw: Any,
        _outlived: object = outlived,
        _thread: _Thread = thread,
        _later: deque[Callable[[], object]] = postponed,
    ) -> None:
        # Python may collect garbage anywhere, also inside a callback, where the library must not be called.
        if _thread.callbacks:
            _later.append(lambda: (destroy(raw), _outlived))
        else:
            destroy(raw)

    return ffi.gc(handle, finish)


class Closing:
    """What ends with close() or with a `with`."""

    def close(self) -> None:
        raise NotImplementedError

    def __enter__(self) -> Self:
        return self

    def __exit__(
        self, kind: type[BaseException] | None, exception: BaseException | None, trace: TracebackType | None
    ) -> None:
        self.close()


class Owned(Closing):
    """What also ends as garbage. `_handle` is what it owns, or NULL once that has ended."""

    _handle: Any = ffi.NULL

    def close(self) -> None:
        """Ends it now. Does nothing if it has ended."""
        handle, self._handle = self._handle, ffi.NULL
        if handle:
            ffi.release(handle)
        destroy_postponed()


def postpone(action: Callable[[], object]) -> None:
    """Has `action` called soon, outside callbacks."""
    postponed.append(action)


def destroy_postponed() -> None:
    """Runs the actions that had to wait for the end of a callback."""
    while postponed and not thread.callbacks:
        try:
            postponed.popleft()()
        except IndexError:
            return


def close_at_exit(thing: Closable) -> None:
    """Has `thing` closed before the interpreter ends. Its callbacks are Python functions, and the library's threads
    cannot call them after that.
    """
    destroy_postponed()
    _open.add(thing)


def _close_all() -> None:
    interrupt: BaseException | None = None
    for thing in sorted(_open, key=lambda thing: int(thing._turn)):
        try:
            thing.close()
        except BaseException as exception:  # an interrupt ends the wait for one object, and the others still must close
            interrupt = interrupt or exception
    destroy_postponed()
    if interrupt is not None:
        raise interrupt


atexit.register(_close_all)
