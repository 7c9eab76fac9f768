"""Devices, and the functions for the whole process: version, backends, trace, monitor."""

from __future__ import annotations

import os
import weakref
from collections.abc import Iterable
from typing import Any

from ._errors import UsageError, check, closed, made
from ._generated import BackendInfo, DeviceCaps, DeviceFlag, MemoryInfo
from ._holders import holders_of, note
from ._lifetime import Owned, destroy_postponed, owned
from ._native import ffi, lib
from ._occupancy import Occupied
from ._scopes import Scope, process_scope
from ._structs import result, struct, text


class Device(Occupied, Owned):
    """A device with its budget. It is opened by name: "host", "cuda:0", "hip:1", "sim", "auto".

    Its runtimes, streams and memory keep the device open. The device closes with the last of them.
    """

    def __init__(
        self,
        name: str = "auto",
        *,
        budget_bytes: int = 0,
        margin_bytes: int = 0,
        page_bytes: int = 0,
        link_bytes_per_second: int = 0,
        staging_bytes: int = 0,
        staging_threads: int = 0,
        staging_cpus: str | None = None,
        host_node: int | None = None,
        small_host_pages: bool = False,
        device_memory: tuple[int, int] | None = None,
        helpers: str | Iterable[str] | None = None,
        helps: bool = False,
        backend_options: str | None = None,
        backend_path: str | os.PathLike[str] | None = None,
    ) -> None:
        """`staging_cpus` are the processors of the staging threads, such as "0-7,16". `host_node` is the NUMA node of
        the library's host memory (-1: any; None: the one that is closest to the device). `device_memory` is the address
        and the size of device memory that the caller lends to the library, and keeps until the device is closed.
        `helpers` are the names of devices of the same backend whose links bring a part of the weights, such as
        ["cuda:1", "cuda:2"], or "auto": all devices that were opened with `helps=True`. Open them earlier to give them
        budgets.
        """
        destroy_postponed()
        options = struct("device_options")
        options.budget_bytes = budget_bytes
        options.margin_bytes = margin_bytes
        options.page_bytes = page_bytes
        options.link_bytes_per_second = link_bytes_per_second
        options.host = host = struct("host_options")
        host.staging_bytes = staging_bytes
        host.staging_threads = staging_threads
        if host_node is not None:
            host.node = lib.SH_HOST_NODE_ANY if host_node == -1 else host_node + 1
        host.flags = lib.SH_HOST_SMALL_PAGES if small_host_pages else 0
        if device_memory is not None:
            address, options.device_memory_bytes = device_memory
            options.device_memory = ffi.cast("void *", address)
        options.helpers = others = struct("helper_options")
        others.flags = lib.SH_HELPS_OTHERS if helps else 0
        others.devices = named = text(helpers if helpers is None or isinstance(helpers, str) else ",".join(helpers))
        texts = text(backend_options), text(backend_path), text(staging_cpus)
        options.backend_options, options.backend_path, host.staging_cpus = texts
        called = text(name)
        try:
            handle = made("sh_device **", lambda out: lib.sh_device_open(called, options, out), lib.sh_device_close)
        except UsageError as error:
            raise _with_holders(error) from None
        self._handle = owned(handle, lib.sh_device_close)
        caps = self.capabilities()
        self.name: str = caps.name
        self.flags: DeviceFlag = caps.flags
        self.backend: str = caps.backend
        self.kind: int = caps.kind  # a DeviceKind, or another DLDeviceType of DLPack
        self.ordinal: int = caps.ordinal
        self_reference = weakref.ref(self)
        note(self, self.name, lambda: _told(self_reference()))

    def __repr__(self) -> str:
        return f"<libstagehand.Device {getattr(self, 'name', '')}{'' if self._handle else ' (closed)'}>"

    def close(self) -> None:
        """Gives up this reference to the device. The device closes with its last user."""
        self._handle = ffi.NULL
        destroy_postponed()

    def _open_handle(self) -> Any:
        if not self._handle:
            raise closed("device")
        return self._handle

    def memory(self) -> MemoryInfo:
        info = struct("memory_info")
        check(lib.sh_device_get_memory(self._handle, info))
        return result(MemoryInfo, info)

    def set_budget(self, budget_bytes: int) -> None:
        """Sets the budget in bytes. 0 is the free device memory, less the margin."""
        check(lib.sh_device_set_budget(self._handle, budget_bytes))

    def capabilities(self) -> DeviceCaps:
        caps = struct("device_caps")
        check(lib.sh_device_get_caps(self._handle, caps))
        return result(DeviceCaps, caps)

    def clock_ns(self) -> int:
        now = ffi.new("uint64_t *")
        check(lib.sh_device_get_clock(self._handle, now))
        return int(now[0])


def _told(device: Device | None) -> str | None:
    return "a Device that is not closed" if device is not None and device._handle else None


def _with_holders(error: UsageError) -> UsageError:
    """Returns an error that also names what keeps the device open, if the error is that the device is open."""
    name, is_open, _ = error.text.partition(" is open with ")
    holders = holders_of(name) if is_open else []
    if not holders:
        return error
    return UsageError(error.status, f"{error.text}. These keep {name} open: {'; '.join(holders)}")


def version() -> str:
    """Returns the version of the library."""
    number = lib.sh_version()
    return f"{number // 1_000_000}.{number // 1_000 % 1_000}.{number % 1_000}"


def backends() -> list[BackendInfo]:
    """Returns all backends, also those that do not work."""
    count = ffi.new("uint64_t *")
    check(lib.sh_backend_list(ffi.NULL, 0, count))
    infos = ffi.new("sh_backend_info[]", count[0])
    for info in infos:
        info.struct_size = ffi.sizeof("sh_backend_info")
    check(lib.sh_backend_list(infos, len(infos), count))
    return [result(BackendInfo, info) for info in list(infos)[: count[0]]]


def trace(path: str | os.PathLike[str]) -> Scope:
    """Records a trace of the process to a file for Perfetto in `with trace(path):`."""
    name = text(path)
    return process_scope(lambda out: lib.sh_trace_start(name, out))


def monitor(path: str | os.PathLike[str] | None = None) -> Scope:
    """Answers `stagehand top` on a socket in `with monitor():`, by a control without a device."""
    options = struct("control_options")
    address = text(None if path is None else b"unix:" + os.fsencode(path))
    options.address = address
    return process_scope(lambda out: lib.sh_control_start(ffi.NULL, options, ffi.NULL, out))
