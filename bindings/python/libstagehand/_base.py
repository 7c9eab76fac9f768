"""The part of a runtime that its views, scopes and graphs use."""

from __future__ import annotations

from typing import Any
from weakref import WeakSet

from ._callbacks import Exceptions
from ._device import Device
from ._errors import closed
from ._generated import BlockInfo
from ._lifetime import Closable, Owned, owned
from ._native import ffi, lib
from ._structs import result, struct


class RuntimeBase(Owned):
    """The handle of a runtime, its device, the state of its blocks, and its graphs, which close before it."""

    # Runtimes close before streams, because a runtime waits for the streams that it has seen.
    _turn = 1

    def __init__(self, device: Device, name: str | None) -> None:
        self.device = device
        self.name = name
        # The struct that the C helpers take: the handle, and the number of cancelled captures. A cancelled capture has
        # released the views that were held.
        self._core: Any = ffi.new("sh_py_runtime *")
        self._exceptions = Exceptions()
        self._graphs: WeakSet[Closable] = WeakSet()

    def __repr__(self) -> str:
        return f"<libstagehand.Runtime {self.name or ''} on {self.device.name}{'' if self._handle else ' (closed)'}>"

    def _own(self, handle: Any, *outlived: object) -> None:
        self._handle = owned(handle, lib.sh_runtime_destroy, *outlived)
        self._core.handle = handle

    def close(self) -> None:
        """Waits for work in flight, then destroys the runtime and its blocks. Dirty blocks are not written back. Call
        write_back() before if the changes are needed.
        """
        for graph in list(self._graphs):
            graph.close()
        self._core.handle = ffi.NULL
        super().close()

    def _check(self, status: int, block: int = 0) -> int:
        return self._exceptions.check(status, block)

    def _state(self, block: int) -> BlockInfo:
        state = struct("block_state")
        self._check(lib.sh_block_get_state(self._handle, block, state))
        return result(BlockInfo, state)


def open_handle(target: RuntimeBase) -> Any:
    """Returns the handle of a target. A closed target is an error."""
    if not target._handle:
        raise closed("target runtime")
    return target._handle
