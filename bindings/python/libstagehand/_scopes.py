"""Scopes of a `with`: steps, source updates, and the scopes of several models.

A scope ends on every path. A failure to end it does not hide an exception that was raised in the `with`.
"""

from __future__ import annotations

from collections.abc import Callable
from types import TracebackType
from typing import TYPE_CHECKING, Any, Protocol

from ._errors import check, closed
from ._lifetime import destroy_postponed, owned, postpone, thread
from ._native import ffi, lib
from ._structs import text

if TYPE_CHECKING:
    from ._base import RuntimeBase


class _Owner(Protocol):
    """The object that a scope is of: a runtime, a spiller, or the process."""

    @property
    def _handle(self) -> Any: ...

    def _check(self, status: int, block: int = 0) -> int: ...


class _While:
    """A scope that calls `_begin` and `_end`, which return statuses. A scope that is open ends with this object at the
    latest.

    The C calls that begin and end the scope also count how often it is open. So no interrupt can come between the call
    and the count.
    """

    def __init__(self, runtime: _Owner) -> None:
        self._runtime: Any = runtime
        self._count = ffi.new("int32_t *")

    def _open(self) -> int:
        return int(self._count[0])

    def _begin(self) -> int:
        raise NotImplementedError

    def _end(self) -> int:
        raise NotImplementedError

    def __enter__(self) -> None:
        destroy_postponed()
        before = self._open()
        try:
            self._runtime._check(self._begin())
        except BaseException:
            # An interrupt may have come while the call waited. The scope is open then.
            if self._open() > before:
                self._end()
            raise

    def __exit__(
        self, kind: type[BaseException] | None, exception: BaseException | None, trace: TracebackType | None
    ) -> None:
        status = self._end()
        if status < 0 and kind is None:
            self._runtime._check(status)

    def __del__(self) -> None:
        # The scope is still open if an interrupt came before its end.
        for _ in range(self._open() if hasattr(self, "_count") else 0):
            if thread.callbacks:
                postpone(self._end)
            else:
                self._end()


class Step(_While):
    """The scope of a step, of the kind with that name."""

    def __init__(self, runtime: RuntimeBase, kind: str | None = None) -> None:
        super().__init__(runtime)
        self._kind = text(kind)

    def _begin(self) -> int:
        return int(lib.sh_py_step_begin(self._runtime._handle, self._kind, self._count))

    def _end(self) -> int:
        return int(lib.sh_py_step_end(self._runtime._handle, self._count))


class SourceUpdate(_While):
    """The scope in which sources may be changed."""

    def __init__(self, runtime: RuntimeBase, blocks: Any) -> None:
        super().__init__(runtime)
        self._blocks = blocks

    def _begin(self) -> int:
        return int(lib.sh_py_source_update_begin(self._runtime._handle, self._blocks, len(self._blocks), self._count))

    def _end(self) -> int:
        return int(lib.sh_py_source_update_end(self._runtime._handle, self._blocks, len(self._blocks), self._count))


class Scope(_While):
    """What lasts until a `with` ends, such as a protection, a guest's stay or a trace: a scope of the C interface, with
    a handle. The library writes the handle to memory in `_scopes`, and the end of the scope takes it from there.
    """

    def __init__(self, owner: _Owner, begin: Callable[[Any, Any], int]) -> None:
        super().__init__(owner)
        self._call = begin
        self._scopes: list[Any] = []

    def _open(self) -> int:
        return sum(1 for scope in self._scopes if scope[0])

    def _begin_scope(self, out: Any) -> int:
        if not self._runtime._handle:
            raise closed("object")
        return int(self._call(self._runtime._handle, out))

    def _begin(self) -> int:
        self._scopes.append(owned(ffi.new("sh_scope **"), lib.sh_py_scope_end))
        return self._begin_scope(self._scopes[-1])

    def _end(self) -> int:
        while self._scopes and not self._scopes[-1][0]:
            self._scopes.pop()
        return int(lib.sh_py_scope_end(self._scopes[-1])) if self._scopes else 0


class _Process:
    """The owner of the scopes of the whole process."""

    _handle = True

    def _check(self, status: int, block: int = 0) -> int:
        return check(status)


def process_scope(begin: Callable[[Any], int]) -> Scope:
    return Scope(_Process(), lambda _, out: begin(out))
