"""Python functions that the library calls before a pause and after a resume."""

from __future__ import annotations

import itertools
import sys
from collections.abc import Callable
from typing import Any

from ._errors import check
from ._lifetime import Owned, thread
from ._native import ffi, lib

PauseFunction = Callable[[list[str]], object]
"""function(tags) is called on the thread that pauses or resumes these tags. The function may use the device, but must
not allocate, free, pause or resume its memory.
"""

_numbers = itertools.count(1)
# The library gets a number, not a pointer: a device may outlive the objects that describe it here.
_all: dict[int, PauseCallbacks] = {}


class PauseCallbacks(Owned):
    """Functions that are called before a pause and after a resume, until they are closed or the device closes. See
    Device.on_pause().
    """

    def __init__(self, device: Any, before: PauseFunction | None, after: PauseFunction | None) -> None:
        self._before, self._after = before, after
        self._number, self._scope = next(_numbers), ffi.new("sh_scope **")
        _all[self._number] = self
        try:
            check(
                lib.sh_occupancy_add_callbacks(
                    device._handle,
                    lib.sh_py_before_pause if before else ffi.NULL,
                    lib.sh_py_after_resume if after else ffi.NULL,
                    ffi.cast("void *", self._number),
                    self._scope,
                )
            )
        except BaseException:
            del _all[self._number]
            raise

    def close(self) -> None:
        """Removes the functions. They are not called any more when the call returns."""
        if self._number not in _all:
            return
        check(lib.sh_scope_end(self._scope[0]))
        _all.pop(self._number, None)


def _names(tags: Any, count: int) -> list[str]:
    return [ffi.string(tags[i]).decode(errors="replace") for i in range(count)]


@ffi.def_extern(error=-1)
def sh_py_before_pause(tags: Any, count: int, message: Any, size: int, user_data: Any) -> int:
    thread.callbacks += 1
    try:
        callbacks = _all.get(int(ffi.cast("uintptr_t", user_data)))
        if callbacks is not None and callbacks._before is not None:
            callbacks._before(_names(tags, count))
    except BaseException as exception:
        text = f"{type(exception).__name__}: {exception}".encode()[: size - 1]
        ffi.memmove(message, text, len(text))
        return 1
    finally:
        thread.callbacks -= 1
    return 0


@ffi.def_extern()
def sh_py_after_resume(tags: Any, count: int, user_data: Any) -> None:
    thread.callbacks += 1
    try:
        callbacks = _all.get(int(ffi.cast("uintptr_t", user_data)))
        if callbacks is not None and callbacks._after is not None:
            callbacks._after(_names(tags, count))
    except BaseException:
        sys.excepthook(*sys.exc_info())  # no call can raise it
    finally:
        thread.callbacks -= 1
