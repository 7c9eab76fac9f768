"""What views, scopes and graphs need of the runtime that they belong to."""
from __future__ import annotations

from typing import Any
from weakref import WeakSet

from ._callbacks import Exceptions
from ._device import Device, result, struct
from ._errors import closed
from ._generated import BlockInfo
from ._lifetime import Closable, destroy_postponed, owned
from ._native import ffi, lib


class RuntimeBase:
    """A runtime's handle, its device and its blocks' state, and what has to end before it."""

    # Before streams, whose work ends by itself: a runtime waits for the streams that it has seen.
    _turn = 1

    def __init__(self, device: Device, name: str | None) -> None:
        self.device = device
        self.name = name
        self._handle: Any = ffi.NULL
        # The handle once more, as the helpers in C take it, with the number of captures that were cancelled: what they held is released.
        self._core: Any = ffi.new("sh_py_runtime *")
        self._exceptions = Exceptions()
        self._graphs: WeakSet[Closable] = WeakSet()

    def __repr__(self) -> str:
        return f"<libstagehand.Runtime {self.name or ''} on {self.device.name}{'' if self._handle else ' (closed)'}>"

    def _own(self, handle: Any, *outlived: object) -> None:
        self._handle = owned(handle, lib.sh_runtime_destroy, *outlived)
        self._core.handle = handle

    def close(self) -> None:
        """Waits for work in flight and destroys it with its blocks. What is dirty is not written back: write_back() comes before."""
        for graph in list(self._graphs):
            graph.close()
        handle, self._handle = self._handle, ffi.NULL
        self._core.handle = ffi.NULL
        if handle:
            ffi.release(handle)
        destroy_postponed()

    def _check(self, status: int, block: int = 0) -> int:
        return self._exceptions.check(status, block)

    def _state(self, block: int) -> BlockInfo:
        state = struct("block_state")
        self._check(lib.sh_block_info(self._handle, block, state))
        return result(BlockInfo, state)


def target_handle(target: RuntimeBase | None) -> Any:
    """To C, no target is the runtime itself, for which a closed one must not be taken."""
    if target is None:
        return ffi.NULL
    if not target._handle:
        raise closed("target runtime")
    return target._handle
