"""What is in force as long as a `with`: steps, source updates, protections, and the scopes of several models.

Each ends on every path. What went wrong in the `with` is not hidden by a failure to end it.
"""
from __future__ import annotations

from types import TracebackType
from typing import Any

from ._base import RuntimeBase, target_handle
from ._device import struct
from ._errors import made
from ._lifetime import destroy_postponed, owned, postpone, thread
from ._native import ffi, lib


class _While:
    """Calls `_begin` and `_end`, which return statuses. What has begun ends with this object, if not before."""

    def __init__(self, runtime: RuntimeBase) -> None:
        self._runtime = runtime
        self._open = 0

    def _begin(self, begun: Any) -> int:
        """Sets what `begun` points to as soon as it has begun."""
        raise NotImplementedError

    def _end(self) -> int:
        raise NotImplementedError

    def __enter__(self) -> None:
        destroy_postponed()
        begun = ffi.new("int32_t *")
        try:
            self._runtime._check(self._begin(begun))
            self._open += 1
        except BaseException:
            # An interrupt that came while it waited.
            if begun[0]:
                self._end()
            raise

    def __exit__(self, kind: type[BaseException] | None, exception: BaseException | None, trace: TracebackType | None) -> None:
        self._open = max(0, self._open - 1)
        status = self._end()
        if status < 0 and kind is None:
            self._runtime._check(status)


    def __del__(self) -> None:
        # An interrupt at the very beginning of __exit__.
        while getattr(self, "_open", 0):
            self._open -= 1
            if thread.callbacks:
                postpone(self._end)
            else:
                self._end()


class Step(_While):
    """A step under way."""

    def _begin(self, begun: Any) -> int:
        return int(lib.sh_py_step_begin(self._runtime._handle, begun))

    def _end(self) -> int:
        return int(lib.sh_step_end(self._runtime._handle))


class SourceUpdate(_While):
    """The time in which sources may be changed."""

    def __init__(self, runtime: RuntimeBase, blocks: Any) -> None:
        super().__init__(runtime)
        self._blocks = blocks

    def _begin(self, begun: Any) -> int:
        return int(lib.sh_py_source_update_begin(self._runtime._handle, self._blocks, len(self._blocks), begun))

    def _end(self) -> int:
        return int(lib.sh_source_update_end(self._runtime._handle, self._blocks, len(self._blocks)))


class Protection(_While):
    """The time in which blocks are protected."""

    def __init__(self, runtime: RuntimeBase, blocks: Any) -> None:
        super().__init__(runtime)
        self._blocks = blocks

    def _begin(self, begun: Any) -> int:
        return int(lib.sh_py_protect_blocks(self._runtime._handle, self._blocks, len(self._blocks), begun))

    def _end(self) -> int:
        return int(lib.sh_unprotect_blocks(self._runtime._handle, self._blocks, len(self._blocks)))


class _Scope(_While):
    """A scope of the C interface."""

    def __init__(self, runtime: RuntimeBase) -> None:
        super().__init__(runtime)
        self._scopes: list[Any] = []

    def _begin_scope(self, out: Any) -> int:
        raise NotImplementedError

    def _begin(self, begun: Any) -> int:
        scope = made("sh_scope **", self._begin_scope, lib.sh_scope_end, self._runtime._check)
        self._scopes.append(owned(scope, lib.sh_scope_end))
        begun[0] = 1
        return 0

    def _end(self) -> int:
        scope = self._scopes.pop()
        ffi.gc(scope, None)
        return int(lib.sh_scope_end(scope))


class KeepResident(_Scope):
    """The time in which a runtime keeps its device memory."""

    def __init__(self, runtime: RuntimeBase, target: RuntimeBase | None) -> None:
        super().__init__(runtime)
        self._target = target

    def _begin_scope(self, out: Any) -> int:
        return int(lib.sh_keep_resident(self._runtime._handle, target_handle(self._target), out))


class Guest(_Scope):
    """The time in which a runtime is a guest."""

    def __init__(self, runtime: RuntimeBase, guest: RuntimeBase, bytes: int, workspace_bytes: int, shrink: bool) -> None:
        super().__init__(runtime)
        self._guest = guest
        self._options = struct("guest_options")
        self._options.flags = lib.SH_GUEST_SHRINK if shrink else 0
        self._options.bytes, self._options.workspace_bytes = bytes, workspace_bytes

    def _begin_scope(self, out: Any) -> int:
        return int(lib.sh_guest_begin(self._runtime._handle, target_handle(self._guest), self._options, out))
