"""Streams of the device and pinned memory, for engines that have none of their own."""

from __future__ import annotations

import functools
from collections.abc import Callable
from typing import Any

from ._callbacks import Exceptions, Launched, raise_from
from ._device import Device
from ._errors import OperationError, check, closed, made
from ._generated import STREAM_HOST, Status
from ._holders import note
from ._lifetime import Owned, close_at_exit, destroy_postponed, owned
from ._native import ffi, lib


class Stream(Owned):
    """An ordered queue of work on a device. An engine on a GPU does not need it, and passes its own streams as
    integers.
    """

    _turn = 2

    def __init__(self, device: Device) -> None:
        self._stream = STREAM_HOST
        self._exceptions = Exceptions()
        handle = device._open_handle()
        out = ffi.new("sh_stream *")
        check(lib.sh_stream_create(handle, out))
        self._stream = out[0]
        # A handle of the device whose end destroys the stream.
        self._handle = owned(handle, functools.partial(_destroy_stream, stream=self._stream), handle)
        note(self._handle, device.name, lambda: "a Stream that is not closed")
        close_at_exit(self)

    def __index__(self) -> int:
        return self.handle

    @property
    def handle(self) -> int:
        """The native handle."""
        if not self._handle:
            raise closed("stream")
        return self._stream

    def close(self) -> None:
        """Waits for the stream's work and destroys the stream. Call Runtime.forget() before if the stream was used in
        the current step.
        """
        super().close()

    def synchronize(self) -> None:
        """Waits for the queued work. Raises an error if a launched function has raised. The first exception that was
        not raised yet is its cause.
        """
        status = lib.sh_stream_synchronize(self._handle, self._stream)
        if (raised := self._exceptions.take()) is not None:
            raise_from(
                OperationError(Status.ERROR_CALLBACK, "a function that was launched on the stream raised an exception"),
                raised,
            )
        check(status)

    def launch(self, function: Callable[[], object] | None, busy_ns: int = 0) -> None:
        """Queues a call of `function`, and work that takes at least `busy_ns` nanoseconds. The function must not use
        the library. In a capture (Runtime.capture()) each launch of the graph calls the function.
        """
        if function is None:
            check(lib.sh_stream_launch(self._handle, self._stream, ffi.NULL, ffi.NULL, busy_ns))
            return
        call = Launched(function, self._exceptions, self._stream)
        call.queue()
        status = lib.sh_stream_launch(self._handle, self._stream, lib.sh_py_launch, call.handle, busy_ns)
        if status < 0:
            call.forget()
            check(status)


def _destroy_stream(device: Any, stream: int) -> None:
    lib.sh_stream_destroy(device, stream)


class PinnedMemory(Owned):
    """Zeroed host memory that is pinned for a device. Sources in it are copied to the device without a staging buffer.

    memoryview(memory.buffer) and numpy.asarray(memory) read and write the memory. It is freed when it is closed and no
    such object is left, and no block that was registered on it.
    """

    def __init__(self, device: Device, bytes: int) -> None:
        handle = device._open_handle()
        pinned, free = ffi.new("uint32_t *"), functools.partial(_free, handle)
        self._handle = owned(
            made("void **", lambda out: lib.sh_host_alloc(handle, bytes, out, pinned), free), free, handle
        )
        note(self._handle, device.name, lambda: f"pinned memory of {bytes} bytes", uses_budget=False)
        self.bytes = bytes
        self.pinned = bool(pinned[0])
        """False if the system refused to pin the memory. It is usable then, and its copies go through the staging
        buffers.
        """

    def __len__(self) -> int:
        return self.bytes

    def close(self) -> None:
        self._handle = ffi.NULL
        destroy_postponed()

    @property
    def buffer(self) -> Any:
        """An object with the buffer interface. It keeps the memory alive."""
        if not self._handle:
            raise closed("memory")
        return ffi.buffer(self._handle, self.bytes)

    @property
    def __array_interface__(self) -> dict[str, Any]:
        return {"version": 3, "shape": (self.bytes,), "typestr": "|u1", "data": self.buffer}


def _free(device: Any, memory: Any) -> None:
    lib.sh_host_free(device, memory)
