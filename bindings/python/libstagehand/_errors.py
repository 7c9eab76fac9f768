"""Exceptions of the package: one class for each hundred of statuses."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

from ._generated import Status
from ._lifetime import thread
from ._native import ffi, lib


class Error(Exception):
    """A call of the library failed. `status` says why: it is a Status, or an int if this version does not know the
    status.
    """

    def __init__(self, status: int, text: str) -> None:
        try:
            self.status: int = Status(status)
        except ValueError:
            self.status = status
        self.text = text
        super().__init__(status, text)

    def __str__(self) -> str:
        known = isinstance(self.status, Status)
        name = f"SH_{Status(self.status).name}" if known else ffi.string(lib.sh_status_string(self.status)).decode()
        return f"{name}: {self.text}" if self.text else str(name)


class UsageError(Error):
    """1xx: the caller made a mistake. Nothing has changed."""


class BudgetError(Error):
    """2xx: memory or budget does not suffice. Nothing has changed."""


class OperationError(Error):
    """3xx: an operation failed, and may be tried again. If a callback raised, that exception is the __cause__."""


class BackendError(Error):
    """4xx: the backend or its driver failed."""


class LostError(Error):
    """5xx: the object is lost. It can only be closed."""


class InternalError(Error):
    """6xx: the library itself failed."""


_CLASSES = {1: UsageError, 2: BudgetError, 3: OperationError, 4: BackendError, 5: LostError, 6: InternalError}


def error_of(status: int) -> Error:
    """Returns the exception for the status that the last call of this thread returned. It has no text inside a
    callback, because a callback must not ask the library.
    """
    if thread.callbacks:
        return error_with(status, "")
    length = lib.sh_last_error(ffi.NULL, 0)
    text = ffi.new("char[]", length + 1)
    lib.sh_last_error(text, length + 1)
    return error_with(status, ffi.string(text).decode(errors="replace"))


def error_with(status: int, text: str) -> Error:
    """Returns the exception for a status whose text is known."""
    return _CLASSES.get(-status // 100, Error)(status, text)


def check(status: int) -> int:
    """Raises an error if `status` is a failure. Returns Status.OK and the positive statuses."""
    if status < 0:
        raise error_of(status)
    return status


def made(
    kind: str, call: Callable[[Any], int], undo: Callable[[Any], object], check: Callable[[int], int] = check
) -> Any:
    """Returns the object that a call has made, from its output parameter. An interrupt that comes during the call is
    raised after it. Then the object is destroyed by `undo`.
    """
    out = ffi.new(kind)
    try:
        check(call(out))
        return out[0]
    except BaseException:
        if out[0]:
            undo(out[0])
        raise


def closed(what: str) -> UsageError:
    return UsageError(Status.ERROR_INVALID_HANDLE, f"the {what} is closed")
