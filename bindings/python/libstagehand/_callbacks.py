"""Python functions that the library calls, and the way of their exceptions to the caller."""

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
"""fill(buffer, offset) writes the len(buffer) bytes of the source that begin at `offset`. Several threads of the
library may call the function at the same time.
"""

# The most exceptions that are kept for a later call to raise. Older ones are dropped.
MOST_EXCEPTIONS = 64


class _Raised:
    """An exception of a callback, and the id of the block that the callback worked for, or 0 if there is none."""

    def __init__(self, block: int, exception: BaseException) -> None:
        self.block = block
        self.exception = exception


class Exceptions:
    """Exceptions of callbacks that no call has raised yet.

    There is no lock, because Python may collect garbage at any point here. The garbage may include a runtime, and
    destroying a runtime waits for callbacks.
    """

    def __init__(self) -> None:
        self._raised: deque[_Raised] = deque(maxlen=MOST_EXCEPTIONS)
        self._told: _Raised | None = None

    def add(self, block: int, exception: BaseException) -> None:
        self._raised.append(_Raised(block, exception))

    def take(self, block: int = 0) -> BaseException | None:
        """Returns the first exception of this block, or the first of all if the block has none. The other exceptions of
        that block come from the same load and are dropped. Other threads may have waited for that load, so they get the
        same exception again.
        """
        while raised := list(self._raised.copy()):
            found = next((one for one in raised if one.block == block), raised[0])
            if self._remove(found):  # otherwise another thread raises it
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
        """Raises an error if `status` is a failure. The exception of a callback is the cause if the callback failed."""
        if status >= 0:
            return status
        error = error_of(status)
        if status == Status.ERROR_CALLBACK:
            raise_from(error, self.take(block))
        raise error


def raise_from(error: Error, cause: BaseException | None) -> NoReturn:
    """Raises the error, with the exception of a callback as its cause. A KeyboardInterrupt is raised itself. It came
    while the callback ran on the main thread.
    """
    if isinstance(cause, KeyboardInterrupt):
        raise cause
    raise error from cause


@dataclass(frozen=True)
class LoadedRange:
    """A contiguous range of a block's device memory that has just been loaded. See sh_loaded_range."""

    block: int
    address: int
    offset: int
    bytes: int
    block_bytes: int
    stream: int


LoadFunction = Callable[[LoadedRange], object]
"""on_load(range) queues work on the range's stream. The library calls the function under its locks, so the function may
call nothing of the library except Stream.launch.
"""


class Call:
    """A Python function, and the place where its exceptions are kept. The library gets `handle`, which is valid as long
    as this object lives.
    """

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
            raise BufferError("a fill function kept its buffer; the library uses that memory again after the call")
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
        call.function(
            LoadedRange(loaded.block, address, loaded.offset, loaded.bytes, loaded.block_bytes, loaded.stream)
        )
    except BaseException as exception:
        call.exceptions.add(loaded.block, exception)
        return -1
    finally:
        thread.callbacks -= 1
    return 0


class Launched(Call):
    """A function that is queued on a stream. The library gets a number, not a pointer. So a call that comes too late
    finds no function, and reads no freed memory.
    """

    def __init__(self, function: Callable[..., object], exceptions: Exceptions, stream: int) -> None:
        self.function = function
        self.exceptions = exceptions
        self.stream = stream
        self.number = next(_numbers)
        self.handle = ffi.cast("void *", self.number)
        self.ran = False
        # The numbers of the captures that were under way when the function was queued. A launch of their graphs may
        # call it.
        self.captures: set[int] = set()

    def queue(self) -> None:
        """Keeps this object until the function was called, and until the graphs that may call it are gone."""
        _launched[self.number] = self
        for captured in list(_captures):
            captured.calls.append(self)
            self.captures.add(captured.number)

    def forget(self) -> None:
        _launched.pop(self.number, None)
        self.captures.clear()


class Captured:
    """The functions that were queued while a capture was under way. It lives as long as the capture and its graph."""

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
            # A function that was queued on another stream may still wait for its first call.
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
            raise RuntimeError(
                "a graph of the driver calls a Python function that is gone: "
                "launch the function inside Runtime.capture(), and keep the Graph as long as it is launched"
            )
        try:
            call.function()
        except BaseException as exception:
            call.exceptions.add(0, exception)
        call.ran = True
        if not call.captures:
            call.forget()
    except BaseException:
        sys.excepthook(*sys.exc_info())  # no call can raise it
    finally:
        thread.callbacks -= 1


@ffi.def_extern()
def sh_py_pressure(runtime: Any, size: int, user_data: Any) -> None:
    call: Call = ffi.from_handle(user_data)
    thread.callbacks += 1
    try:
        call.function(size)
    except BaseException:
        sys.excepthook(*sys.exc_info())  # no call can raise it
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
    """Has the library call `function(level, message)` for each log line up to `level`. None ends the log. The library
    calls the function on any thread, and the function must not use the library.
    """
    with _log_lock:
        if function is None:
            check(lib.sh_set_log(0, ffi.NULL, ffi.NULL))
            _log.clear()
            return
        call = Call(function, Exceptions())
        _log.append(call)
        check(lib.sh_set_log(level, lib.sh_py_log, call.handle))
        _log[:] = [call]  # the library does not call the earlier function any more


# The library's threads cannot call Python after the interpreter has ended. The library refuses this call in a forked
# child, which does no harm.
atexit.register(lib.sh_set_log, 0, ffi.NULL, ffi.NULL)
