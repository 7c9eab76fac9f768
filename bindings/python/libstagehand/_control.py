"""The control of a device by other processes, by HTTP."""

from __future__ import annotations

import os
from typing import Any

from ._errors import check, closed, made
from ._holders import note
from ._lifetime import Owned, close_at_exit, destroy_postponed, owned
from ._native import ffi, lib
from ._structs import struct, text


class Control(Owned):
    """Answers requests of other processes until a `with` ends, or until the object is closed or garbage. See
    Device.serve_control(). It keeps the device open.
    """

    _turn = 0  # its threads may call Python functions

    def __init__(self, device: Any, address: str | os.PathLike[str] | None, token: str | None) -> None:
        self.device = device
        handle = device._handle
        if not handle:
            raise closed("device")
        destroy_postponed()
        options = struct("control_options")
        texts = text(address), text(token)
        options.address, options.token = texts
        info = struct("control_info")
        raw = made("sh_scope **", lambda out: lib.sh_control_start(handle, options, info, out), lib.sh_scope_end)
        self._handle = owned(raw, lib.sh_scope_end, handle)
        self.address: str = ffi.string(info.address).decode(errors="replace")
        """The path of the Unix socket, or the TCP address with its port."""
        self.port = int(info.port)
        """The TCP port. 0: a Unix socket."""
        note(self._handle, device.name, lambda: "a Control that is not closed")
        close_at_exit(self)

    def __repr__(self) -> str:
        return f"<libstagehand.Control of {self.device.name}{'' if self._handle else ' (closed)'}>"

    def close(self) -> None:
        """Ends the connections, and waits for a pause or a resume that a request has begun. A function of on_pause()
        must not call it during a request.
        """
        if self._handle:
            check(lib.sh_scope_end(self._handle))
        super().close()  # the handle is stopped, so its destructor finds nothing
