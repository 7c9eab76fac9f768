"""What an engine without streams and memory of its own uses: streams of the device, and pinned memory."""
from __future__ import annotations

import functools
from collections.abc import Callable
from types import TracebackType
from typing import Any

from ._callbacks import Exceptions, Launched, raise_from
from ._device import Device
from ._errors import OperationError, check, closed, made
from ._generated import STREAM_HOST, Status
from ._lifetime import close_at_exit, destroy_postponed, owned
from ._native import ffi, lib


class Stream:
    """An ordered queue of work on a device. Engines on a GPU pass their own streams, as integers, and do not need it."""

    _turn = 2

    def __init__(self, device: Device) -> None:
        self._device: Any = ffi.NULL
        self._stream = STREAM_HOST
        self._exceptions = Exceptions()
        handle = device._open_handle()
        out = ffi.new("sh_stream *")
        check(lib.sh_stream_create(handle, out))
        self._stream = out[0]
        # A handle of the device that destroys the stream when it goes.
        self._device = owned(handle, functools.partial(_destroy_stream, stream=self._stream), handle)
        close_at_exit(self)

    def __enter__(self) -> Stream:
        return self

    def __exit__(self, kind: type[BaseException] | None, exception: BaseException | None, trace: TracebackType | None) -> None:
        self.close()

    def __index__(self) -> int:
        return self.handle

    @property
    def handle(self) -> int:
        """The native handle."""
        if not self._device:
            raise closed("stream")
        return self._stream

    def close(self) -> None:
        """Waits for its work and destroys it. Inside a step that used it, Runtime.forget() comes before."""
        device, self._device = self._device, ffi.NULL
        if device:
            ffi.release(device)
        destroy_postponed()

    def synchronize(self) -> None:
        """Waits for the work queued. Raises from the first exception of a launched function that was not told yet."""
        status = lib.sh_stream_synchronize(self._device, self._stream)
        if (raised := self._exceptions.take()) is not None:
            raise_from(OperationError(Status.ERROR_CALLBACK, "a function that was launched on the stream raised"), raised)
        check(status)

    def launch(self, function: Callable[[], object] | None, busy_ns: int = 0) -> None:
        """Queues a call of `function`, which must not use the library, and at least so much time. In a capture (Runtime.capture()) it is
        called with each launch of the graph."""
        if function is None:
            check(lib.sh_stream_launch(self._device, self._stream, ffi.NULL, ffi.NULL, busy_ns))
            return
        call = Launched(function, self._exceptions, self._stream)
        call.queue()
        status = lib.sh_stream_launch(self._device, self._stream, lib.sh_py_launch, call.handle, busy_ns)
        if status < 0:
            call.forget()
            check(status)


def _destroy_stream(device: Any, stream: int) -> None:
    lib.sh_stream_destroy(device, stream)


class PinnedMemory:
    """Zeroed host memory, pinned for a device: sources in it are copied without a detour.

    It can be read and written through memoryview(memory.buffer) and numpy.asarray(memory), and is freed when it is closed and nothing
    of these, and no block that was registered on it, is left.
    """

    def __init__(self, device: Device, bytes: int) -> None:
        self._memory: Any = ffi.NULL
        handle = device._open_handle()
        pinned, free = ffi.new("uint32_t *"), functools.partial(_free, handle)
        self._memory = owned(made("void **", lambda out: lib.sh_host_alloc(handle, bytes, out, pinned), free), free, handle)
        self.bytes = bytes
        self.pinned = bool(pinned[0])
        """False: the system refused to pin it. It is usable, and goes through the staging ring."""

    def __enter__(self) -> PinnedMemory:
        return self

    def __exit__(self, kind: type[BaseException] | None, exception: BaseException | None, trace: TracebackType | None) -> None:
        self.close()

    def __len__(self) -> int:
        return self.bytes

    def close(self) -> None:
        self._memory = ffi.NULL
        destroy_postponed()

    @property
    def buffer(self) -> Any:
        """An object with the buffer interface, which keeps the memory."""
        if not self._memory:
            raise closed("memory")
        return ffi.buffer(self._memory, self.bytes)

    @property
    def __array_interface__(self) -> dict[str, Any]:
        return {"version": 3, "shape": (self.bytes,), "typestr": "|u1", "data": self.buffer}


def _free(device: Any, memory: Any) -> None:
    lib.sh_host_free(device, memory)
