"""Python functions that the library calls, and what becomes of their exceptions."""
from __future__ import annotations

import atexit
import itertools
import sys
import threading
import weakref
from collections import deque
from collections.abc import Callable
from dataclasses import dataclass
from typing import Any, NoReturn

from ._errors import Error, check, error_of
from ._generated import LogLevel, Status
from ._lifetime import thread
from ._native import ffi, lib

FillFunction = Callable[[memoryview, int], object]
"""fill(buffer, offset): writes len(buffer) bytes of the source, from `offset` on. Called on threads of the library, several at once."""

# Exceptions that no call has told of yet are kept up to so many; older ones are dropped.
MOST_EXCEPTIONS = 64


class _Raised:
    """What a callback has raised, with the block that it worked for; 0: none."""

    def __init__(self, block: int, exception: BaseException) -> None:
        self.block = block
        self.exception = exception


class Exceptions:
    """What callbacks have raised and no call has told of yet.

    There is no lock: Python may collect garbage at any point of this, and what it finds may destroy a runtime, which waits for callbacks.
    """

    def __init__(self) -> None:
        self._raised: deque[_Raised] = deque(maxlen=MOST_EXCEPTIONS)
        self._told: _Raised | None = None

    def add(self, block: int, exception: BaseException) -> None:
        self._raised.append(_Raised(block, exception))

    def take(self, block: int = 0) -> BaseException | None:
        """The first of this block, else the first of all. Others of the same block come from the same load and are forgotten; the last one
        is told again to other threads that have waited for that load."""
        while raised := list(self._raised.copy()):
            found = next((one for one in raised if one.block == block), raised[0])
            if self._remove(found):  # else another thread tells of it
                for one in raised:
                    if one.block == found.block:
                        self._remove(one)
                self._told = found if block else None
                return found.exception
        told = self._told
        return told.exception if told is not None and block and told.block == block else None

    def _remove(self, one: _Raised) -> bool:
        try:
            self._raised.remove(one)
        except ValueError:
            return False
        return True

    def check(self, status: int, block: int = 0) -> int:
        """Raises on a failure, from the exception of a callback where that is the reason."""
        if status >= 0:
            return status
        error = error_of(status)
        if status == Status.ERROR_CALLBACK:
            raise_from(error, self.take(block))
        raise error


def raise_from(error: Error, cause: BaseException | None) -> NoReturn:
    """Raises the error, from what a callback raised. An interrupt that came while one ran on the main thread stays an interrupt."""
    if isinstance(cause, KeyboardInterrupt):
        raise cause
    raise error from cause


@dataclass(frozen=True)
class LoadedRange:
    """A contiguous range of a block's device memory that was just loaded; see sh_loaded_range."""

    block: int
    address: int
    offset: int
    bytes: int
    block_bytes: int
    stream: int


LoadFunction = Callable[[LoadedRange], object]
"""on_load(range): queues work on the range's stream. Called under locks of the library: of it, it may call nothing but Stream.launch."""


class Call:
    """A Python function with the place for its exceptions. The library gets a handle of it, alive as long as the call is."""

    def __init__(self, function: Callable[..., object], exceptions: Exceptions) -> None:
        self.function = function
        self.exceptions = exceptions
        self.block = 0
        self.handle = ffi.new_handle(self)


@ffi.def_extern(error=-1)
def sh_py_fill(buffer: Any, offset: int, size: int, user_data: Any) -> int:
    call: Call = ffi.from_handle(user_data)
    thread.callbacks += 1
    try:
        memory = ffi.buffer(buffer, size)
        users = sys.getrefcount(memory)
        with memoryview(memory) as view:
            call.function(view, offset)
        if sys.getrefcount(memory) > users:
            raise BufferError("a fill function has kept its buffer, whose memory is the library's again")
    except BaseException as exception:
        call.exceptions.add(call.block, exception)
        return -1
    finally:
        thread.callbacks -= 1
    return 0


@ffi.def_extern(error=-1)
def sh_py_load(loaded: Any, user_data: Any) -> int:
    call: Call = ffi.from_handle(user_data)
    thread.callbacks += 1
    try:
        address = int(ffi.cast("uintptr_t", loaded.address))
        call.function(LoadedRange(loaded.block, address, loaded.offset, loaded.bytes, loaded.block_bytes, loaded.stream))
    except BaseException as exception:
        call.exceptions.add(call.block, exception)
        return -1
    finally:
        thread.callbacks -= 1
    return 0


class Launched(Call):
    """A function queued on a stream. The library gets a number, so that nothing is lost when it calls once too often."""

    def __init__(self, function: Callable[..., object], exceptions: Exceptions, stream: int) -> None:
        self.function = function
        self.exceptions = exceptions
        self.stream = stream
        self.number = next(_numbers)
        self.handle = ffi.cast("void *", self.number)
        self.ran = False
        # The captures under way when it was queued: their graphs may call it with each launch.
        self.captures: set[int] = set()

    def queue(self) -> None:
        """Keeps it until it was called, and until the graphs that it may be part of are gone."""
        _launched[self.number] = self
        for captured in list(_captures):
            captured.calls.append(self)
            self.captures.add(captured.number)

    def forget(self) -> None:
        _launched.pop(self.number, None)
        self.captures.clear()


class Captured:
    """What was queued while a capture was under way. It lives as long as the capture, and as its graph."""

    def __init__(self, stream: int) -> None:
        self.number = next(_numbers)
        self.stream = stream
        self.calls: list[Launched] = []
        _captures.add(self)

    def end(self) -> None:
        _captures.discard(self)

    def __del__(self) -> None:
        for call in self.calls:
            call.captures.discard(self.number)
            # What was queued elsewhere may still be called for the first time.
            if not call.captures and (call.ran or call.stream == self.stream):
                call.forget()


_numbers = itertools.count(1)
_launched: dict[int, Launched] = {}
_captures: weakref.WeakSet[Captured] = weakref.WeakSet()


@ffi.def_extern()
def sh_py_launch(user_data: Any) -> None:
    thread.callbacks += 1
    try:
        call = _launched.get(int(ffi.cast("uintptr_t", user_data)))
        if call is None:
            raise RuntimeError("a driver's graph calls a function that was launched outside of Runtime.capture(), or whose Graph is gone")
        try:
            call.function()
        except BaseException as exception:
            call.exceptions.add(0, exception)
        call.ran = True
        if not call.captures:
            call.forget()
    except BaseException:
        sys.excepthook(*sys.exc_info())  # no call tells of it
    finally:
        thread.callbacks -= 1


@ffi.def_extern()
def sh_py_pressure(runtime: Any, size: int, user_data: Any) -> None:
    call: Call = ffi.from_handle(user_data)
    thread.callbacks += 1
    try:
        call.function(size)
    except BaseException:
        sys.excepthook(*sys.exc_info())  # no call tells of it
    finally:
        thread.callbacks -= 1


_log: list[Call] = []
_log_lock = threading.RLock()


@ffi.def_extern()
def sh_py_log(level: int, message: Any, user_data: Any) -> None:
    call: Call = ffi.from_handle(user_data)
    thread.callbacks += 1
    try:
        call.function(LogLevel(level), ffi.string(message).decode(errors="replace"))
    except BaseException:
        sys.excepthook(*sys.exc_info())
    finally:
        thread.callbacks -= 1


def set_log(level: int, function: Callable[[LogLevel, str], object] | None) -> None:
    """Has log lines up to `level` given to `function(level, message)`, on any thread; None: no log. It must not use the library."""
    with _log_lock:
        if function is None:
            check(lib.sh_set_log(0, ffi.NULL, ffi.NULL))
            _log.clear()
            return
        call = Call(function, Exceptions())
        _log.append(call)
        check(lib.sh_set_log(level, lib.sh_py_log, call.handle))
        _log[:] = [call]  # the one before is not called any more


# The library's threads cannot call Python once it goes. A forked child is refused, and that is well.
atexit.register(lib.sh_set_log, 0, ffi.NULL, ffi.NULL)
