"""What is in force as long as a `with`: steps, source updates, protections, and the scopes of several models.

Each ends on every path. What went wrong in the `with` is not hidden by a failure to end it.
"""
from __future__ import annotations

from types import TracebackType
from typing import TYPE_CHECKING, Any

from ._device import struct
from ._errors import closed
from ._lifetime import owned
from ._native import ffi, lib

if TYPE_CHECKING:
    from ._runtime import Runtime


def target_handle(target: Runtime | None) -> Any:
    """To C, no target is the runtime itself, for which a closed one must not be taken."""
    if target is None:
        return ffi.NULL
    if not target._handle:
        raise closed("target runtime")
    return target._handle


class _While:
    """Calls `_begin` and `_end`, which return statuses."""

    def __init__(self, runtime: Runtime) -> None:
        self._runtime = runtime

    def _begin(self) -> int:
        raise NotImplementedError

    def _end(self) -> int:
        raise NotImplementedError

    def __enter__(self) -> None:
        self._runtime._check(self._begin())

    def __exit__(self, kind: type[BaseException] | None, exception: BaseException | None, trace: TracebackType | None) -> None:
        status = self._end()
        if status < 0 and kind is None:
            self._runtime._check(status)


class Step(_While):
    """A step under way."""

    def _begin(self) -> int:
        return int(lib.sh_step_begin(self._runtime._handle))

    def _end(self) -> int:
        return int(lib.sh_step_end(self._runtime._handle))


class SourceUpdate(_While):
    """The time in which sources may be changed."""

    def __init__(self, runtime: Runtime, blocks: Any) -> None:
        super().__init__(runtime)
        self._blocks = blocks

    def _begin(self) -> int:
        return int(lib.sh_source_update_begin(self._runtime._handle, self._blocks, len(self._blocks)))

    def _end(self) -> int:
        return int(lib.sh_source_update_end(self._runtime._handle, self._blocks, len(self._blocks)))


class Protection(_While):
    """The time in which blocks are protected."""

    def __init__(self, runtime: Runtime, blocks: Any) -> None:
        super().__init__(runtime)
        self._blocks = blocks

    def _begin(self) -> int:
        return int(lib.sh_protect_blocks(self._runtime._handle, self._blocks, len(self._blocks)))

    def _end(self) -> int:
        return int(lib.sh_unprotect_blocks(self._runtime._handle, self._blocks, len(self._blocks)))


class _Scope(_While):
    """A scope of the C interface. It ends with this object, if not before."""

    def __init__(self, runtime: Runtime) -> None:
        super().__init__(runtime)
        self._scopes: list[Any] = []

    def _begin_scope(self, out: Any) -> int:
        raise NotImplementedError

    def _begin(self) -> int:
        out = ffi.new("sh_scope **")
        status = self._begin_scope(out)
        if status >= 0:
            self._scopes.append(owned(out[0], lib.sh_scope_end))
        return status

    def _end(self) -> int:
        scope = self._scopes.pop()
        ffi.gc(scope, None)
        return int(lib.sh_scope_end(scope))


class KeepResident(_Scope):
    """The time in which a runtime keeps its device memory."""

    def __init__(self, runtime: Runtime, target: Runtime | None) -> None:
        super().__init__(runtime)
        self._target = target

    def _begin_scope(self, out: Any) -> int:
        return int(lib.sh_keep_resident(self._runtime._handle, target_handle(self._target), out))


class Guest(_Scope):
    """The time in which a runtime is a guest."""

    def __init__(self, runtime: Runtime, guest: Runtime, bytes: int, workspace_bytes: int, shrink: bool) -> None:
        super().__init__(runtime)
        self._guest = guest
        self._options = struct("guest_options")
        self._options.flags = lib.SH_GUEST_SHRINK if shrink else 0
        self._options.bytes, self._options.workspace_bytes = bytes, workspace_bytes

    def _begin_scope(self, out: Any) -> int:
        return int(lib.sh_guest_begin(self._runtime._handle, target_handle(self._guest), self._options, out))
