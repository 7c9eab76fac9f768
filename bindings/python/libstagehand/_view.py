"""Views of blocks, and the protocols by which other packages use their bytes."""

from __future__ import annotations

import ctypes
from types import TracebackType
from typing import Any

from ._base import RuntimeBase
from ._errors import UsageError, closed
from ._generated import STREAM_HOST, BlockFlag, DeviceFlag, DeviceKind, Status, ViewFlag
from ._lifetime import postpone, thread
from ._native import ffi, lib
from ._sources import Buffer

_release = lib.sh_py_release
# DLPack's number of the kind of device, by the name of the backend.
_new_capsule = ctypes.pythonapi.PyCapsule_New
_new_capsule.restype = ctypes.py_object
_new_capsule.argtypes = [ctypes.c_void_p, ctypes.c_char_p, ctypes.c_void_p]
_capsule_delete = int(ffi.cast("uintptr_t", ffi.addressof(lib, "sh_py_capsule_delete")))


class View:
    """A block's device memory from acquire to release. The view is released when a `with` ends or when it is garbage.

    Other packages use its bytes by DLPack and as a CUDA array. If the host can address the memory, `view.buffer` (for
    memoryview) and numpy.asarray(view) work too. Objects made so must not be used after the release, because the
    library uses the memory again. Write to the memory only if the block is mutable, and call mark_dirty() then.
    """

    __slots__ = ("_runtime", "_held", "_c", "__weakref__")

    def __init__(self, runtime: RuntimeBase, held: Any) -> None:
        self._runtime = runtime
        self._held = held  # the C struct that an acquire fills in; None after the release
        self._c = held

    def __enter__(self) -> View:
        return self

    def __exit__(
        self, kind: type[BaseException] | None, exception: BaseException | None, trace: TracebackType | None
    ) -> None:
        held = self._held
        if held is not None:
            self._held = None
            status = _release(held)
            # A failed release must not hide an exception of the `with`, which may be its reason.
            if status < 0 and kind is None:
                self._runtime._exceptions.check(status, held.view.block)

    def __del__(self) -> None:
        held = self._held
        if held is not None:
            self._held = None
            if thread.callbacks:
                runtime = self._runtime  # kept, because the struct points to a part of the runtime
                postpone(lambda: (_release(held), runtime))
            else:
                _release(held)

    def _drop(self) -> None:
        """Releases the view if it is held, and ignores a failure."""
        self.__exit__(BaseException, None, None)

    def release(self) -> None:
        """Releases the view now. The view is released also if this raises an error. A second call does nothing."""
        self.__exit__(None, None, None)

    def _used(self) -> RuntimeBase:
        """Returns the runtime, or raises an error if the view is not held any more."""
        if self._held is None or not lib.sh_py_held(self._c):
            raise UsageError(Status.ERROR_INVALID_STATE, f"the view of block {self.block} was released")
        if not self._runtime._handle:
            raise closed("runtime")
        return self._runtime

    @property
    def address(self) -> int:
        """The device address of the first byte."""
        self._used()
        return int(ffi.cast("uintptr_t", self._c.view.address))

    @property
    def bytes(self) -> int:
        return int(self._c.view.bytes)

    @property
    def serial(self) -> int:
        """A number that grows each time any of the contents are loaded."""
        return int(self._c.view.serial)

    @property
    def flags(self) -> ViewFlag:
        return ViewFlag(self._c.view.flags)

    @property
    def block(self) -> int:
        """The block's id."""
        return int(self._c.view.block)

    def __len__(self) -> int:
        return int(self._c.view.bytes)

    def read(self, offset: int = 0, bytes: int | None = None) -> bytearray:
        """Copies bytes of the block to the host, after the work that is queued on the view's stream."""
        copy = bytearray(max(0, self._c.view.bytes - offset) if bytes is None else bytes)
        self.read_into(copy, offset)
        return copy

    def read_into(self, buffer: Buffer, offset: int = 0) -> None:
        """Like read(), but copies to a writable buffer, which it fills."""
        runtime = self._used()
        with ffi.from_buffer(buffer, require_writable=True) as target:
            status = lib.sh_read_block(runtime._handle, self._c.view.block, self._c.stream, offset, target, len(target))
        runtime._exceptions.check(status, self._c.view.block)

    def verify(self) -> None:
        """Reads the sources of the block again, and compares them with its bytes on the device, after the work that is
        queued on the view's stream. Raises an error that names the first byte that differs. For debugging.
        """
        runtime = self._used()
        status = lib.sh_verify_block(runtime._handle, self._c.view.block, self._c.stream)
        runtime._exceptions.check(status, self._c.view.block)

    def mark_dirty(self) -> None:
        """Tells the library that the contents are changed on the device. The library writes them back to the source.
        The block must be mutable.
        """
        runtime = self._used()
        runtime._exceptions.check(lib.sh_mark_dirty(runtime._handle, self._c.view.block), self._c.view.block)

    # The bytes, for other packages.

    def _read_only(self, runtime: RuntimeBase) -> bool:
        return not runtime._state(self._c.view.block).flags & BlockFlag.MUTABLE

    def _on_host(self) -> RuntimeBase:
        runtime = self._used()
        if not runtime.device.flags & DeviceFlag.HOST_ADDRESSABLE:
            raise BufferError(f"the host cannot address the memory of {runtime.device.name}: use read()")
        return runtime

    @property
    def buffer(self) -> memoryview:
        """The bytes in place, if the host can address them. They must not be used after the release."""
        runtime = self._on_host()
        view = memoryview(ffi.buffer(ffi.cast("char *", self._c.view.address), self._c.view.bytes))
        return view.toreadonly() if self._read_only(runtime) else view

    @property
    def __array_interface__(self) -> dict[str, Any]:
        runtime = self._on_host()
        return {
            "version": 3,
            "shape": (self.bytes,),
            "typestr": "|u1",
            "data": (self.address, self._read_only(runtime)),
        }

    @property
    def __cuda_array_interface__(self) -> dict[str, Any]:
        runtime = self._used()
        if runtime.device.kind not in (DeviceKind.CUDA, DeviceKind.ROCM):
            raise AttributeError(f"{runtime.device.name} is not a GPU")
        # This interface calls the default stream 1. It does not say that the memory is read-only, because PyTorch
        # refuses read-only memory.
        stream = None if self._c.stream == STREAM_HOST else self._c.stream or 1
        return {"version": 3, "shape": (self.bytes,), "typestr": "|u1", "data": (self.address, False), "stream": stream}

    def __dlpack_device__(self) -> tuple[int, int]:
        device = self._used().device
        if device.kind == DeviceKind.NONE:
            raise BufferError(f"DLPack has no device type for {device.name}")
        return device.kind, device.ordinal

    def __dlpack__(
        self,
        *,
        stream: Any = None,
        max_version: tuple[int, int] | None = None,
        dl_device: tuple[int, int] | None = None,
        copy: bool | None = None,
    ) -> Any:
        runtime = self._used()
        device = self.__dlpack_device__()
        if copy or (dl_device is not None and tuple(dl_device) != device):
            raise BufferError("DLPack cannot copy a view: use read()")
        # The view is ordered on its own stream only. DLPack calls CUDA's default stream 1, and -1 asks for no order.
        if (
            device[0] != 1
            and stream not in (None, -1)
            and self._c.stream not in (STREAM_HOST, 0 if stream == 1 else stream)
        ):
            raise BufferError("the view was acquired on another stream: acquire the block on the stream that uses it")
        versioned = max_version is not None and max_version[0] >= 1
        made = lib.sh_py_export_bytes(id(self), self.address, self.bytes, *device, self._read_only(runtime), versioned)
        if not made:
            raise MemoryError
        return _new_capsule(
            int(ffi.cast("uintptr_t", made)), b"dltensor_versioned" if versioned else b"dltensor", _capsule_delete
        )


class Views(tuple[View, ...]):
    """Views of blocks that were acquired together. They are released together when a `with` ends."""

    def __enter__(self) -> Views:
        return self

    def __exit__(
        self, kind: type[BaseException] | None, exception: BaseException | None, trace: TracebackType | None
    ) -> None:
        first: BaseException | None = None
        for view in self:
            try:
                view.__exit__(kind, exception, trace)
            except BaseException as error:
                first = first or error
        if first is not None:
            raise first

    def _drop(self) -> None:
        for view in self:
            view._drop()

    def release(self) -> None:
        """Releases all views, and then raises the first failure, if there was one."""
        self.__exit__(None, None, None)
