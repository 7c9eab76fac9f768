"""Device memory of an engine, which leaves the device and comes back at the same addresses."""

from __future__ import annotations

import functools
import os
from collections.abc import Iterable
from typing import Any

from ._control import Control
from ._errors import check, closed, made
from ._generated import Contents, OccupancyChange, OccupancyInfo
from ._holders import note
from ._lifetime import Owned, destroy_postponed, owned
from ._native import ffi, lib
from ._pause_callbacks import PauseCallbacks, PauseFunction
from ._structs import result, struct, text


class Occupied:
    """The part of a device that allocates memory, pauses it and resumes it. The C header occupancy.h describes the
    calls. `tags` is one tag, or several, or None for all.
    """

    _handle: Any
    name: str

    def alloc(
        self,
        bytes: int,
        *,
        tag: str | None = None,
        contents: Contents = Contents.DEFAULT,
        constant: bool = False,
        format: int = 0,
    ) -> Allocation:
        """Allocates device memory. Its contents are undefined. With `constant` they do not change any more after the
        first pause, and later pauses do not look at them. With `format`, the WeightFormat of most of their elements,
        they cross the link packed in pauses, without loss.
        """
        return Allocation(self, bytes, tag=tag, contents=contents, constant=constant, format=format)

    def pause(
        self,
        tags: str | Iterable[str] | None = None,
        *,
        contents: Contents = Contents.DEFAULT,
        format: int = 0,
        repeat: bool = False,
        wait: bool = True,
        copy_all: bool = False,
        unused: Iterable[tuple[int, int]] = (),
        folder: str | os.PathLike[str] | None = None,
        host_bytes: int = 0,
        pinned: bool = True,
        prepare: bool = False,
    ) -> OccupancyChange:
        """Waits for the work on the device, puts the contents of tags into host memory, and gives their device memory
        back. `contents` and `format` are used instead of what the allocations say. `repeat` leaves out tags that are
        released already. Without `wait` the call fails with Status.ERROR_BUSY instead of waiting for another call.
        Contents that host memory still has from the pause before are not copied, unless `copy_all`. `unused` has the
        addresses and sizes of ranges that hold nothing: they are not copied, and their contents are undefined
        afterwards.

        `folder` is for files that keep contents: those with Contents.FILE, those that would make host memory for
        contents larger than `host_bytes` (0: no limit), and those that the machine has too little memory for. Without
        `pinned`, new host memory is not pinned.

        With `prepare`, nothing is paused: threads of the library begin to pin the host memory that this pause will
        need, and the call returns.
        """
        options = struct("pause_options")
        place = text(None if folder is None else os.fspath(folder))
        options.folder, options.host_bytes = place, host_bytes
        options.contents, options.format = contents, format
        ranges = ffi.new("sh_memory_range[]", list(unused))
        options.unused, options.unused_count = ranges, len(ranges)
        flags = (lib.SH_OCCUPANCY_COPY_ALL if copy_all else 0) | (0 if pinned else lib.SH_OCCUPANCY_UNPINNED)
        flags |= lib.SH_OCCUPANCY_PREPARE if prepare else 0
        return self._change(lib.sh_pause, options, tags, repeat, wait, flags)

    def resume(
        self, tags: str | Iterable[str] | None = None, *, repeat: bool = False, wait: bool = True
    ) -> OccupancyChange:
        """Brings released tags back: same addresses, same contents. All tags of a call come back together, or none
        does. `repeat` leaves out tags that run already.
        """
        return self._change(lib.sh_resume, struct("resume_options"), tags, repeat, wait)

    def read_released(self, address: int, bytes: int) -> bytearray:
        """Returns contents while they are away. Their tag stays released. What host memory does not keep, because it is
        zeroed or unused, is 0.
        """
        destroy_postponed()
        contents = bytearray(bytes)
        check(lib.sh_occupancy_read(self._handle, address, bytes, ffi.from_buffer(contents) if bytes else ffi.NULL))
        return contents

    def on_pause(self, before: PauseFunction | None = None, after: PauseFunction | None = None) -> PauseCallbacks:
        """Has before(tags) called before a pause, and after(tags) when the tags run again: after a resume, or after a
        pause that failed. They run on the thread that pauses or resumes. The functions that were added first are called
        first before a pause, and last after a resume. If before() raises, nothing is paused, and the pause raises an
        error of Status.ERROR_CALLBACK with its text.
        """
        return PauseCallbacks(self, before, after)

    def serve_control(self, address: str | os.PathLike[str] | None = None, *, token: str | None = None) -> Control:
        """Has other processes pause and resume the memory by HTTP, until the result is closed. `address` is the path of
        a Unix socket, or "127.0.0.1:PORT" with a token. docs/control.md describes the requests. They run on threads of
        the library, and so do the functions of on_pause() then.
        """
        return Control(self, address, token)

    def occupancy(self, tag: str | None = None) -> OccupancyInfo:
        """Returns the state and the figures of a tag, or of all tags together."""
        info = struct("occupancy_info")
        check(lib.sh_occupancy_get_info(self._handle, text(tag), info))
        return result(OccupancyInfo, info)

    def occupancies(self) -> list[OccupancyInfo]:
        """Returns all tags, by name. A tag that another thread adds meanwhile may be missing."""
        count = ffi.new("uint64_t *")
        check(lib.sh_occupancy_list(self._handle, ffi.NULL, 0, count))
        infos = ffi.new("sh_occupancy_info[]", count[0])
        for info in infos:
            info.struct_size = ffi.sizeof("sh_occupancy_info")
        check(lib.sh_occupancy_list(self._handle, infos, len(infos), count))
        return [result(OccupancyInfo, info) for info in infos]

    def trim_occupancy(self) -> int:
        """Frees the host memory that holds no contents now. Returns its bytes."""
        freed = ffi.new("uint64_t *")
        check(lib.sh_occupancy_trim(self._handle, freed))
        return int(freed[0])

    def _change(
        self, call: Any, options: Any, tags: str | Iterable[str] | None, repeat: bool, wait: bool, flags: int = 0
    ) -> OccupancyChange:
        destroy_postponed()
        texts, names = _names(tags)
        options.tags, options.tag_count = names, len(texts)
        options.flags = flags | (lib.SH_OCCUPANCY_REPEAT if repeat else 0) | (0 if wait else lib.SH_OCCUPANCY_NO_WAIT)
        change = struct("occupancy_change")
        if texts or tags is None:  # for the C interface no tags are all tags
            check(call(self._handle, options, change))
        return result(OccupancyChange, change)


def _names(tags: str | Iterable[str] | None) -> tuple[list[Any], Any]:
    """Returns tags as C texts, and the array of them. None are none."""
    texts = [] if tags is None else [text(tag) for tag in ([tags] if isinstance(tags, str) else tags)]
    return texts, ffi.new("char *[]", texts)


class Allocation(Owned):
    """Device memory of an engine. It is freed when a `with` ends, or when the object is closed or garbage.

    The address stays the same. Nothing may use it while the tag is released.
    """

    def __init__(
        self,
        device: Occupied,
        bytes: int,
        *,
        tag: str | None = None,
        contents: Contents = Contents.DEFAULT,
        constant: bool = False,
        format: int = 0,
    ) -> None:
        self.device = device
        handle = device._handle
        if not handle:
            raise closed("device")
        destroy_postponed()
        options, name = struct("alloc_options"), text(tag)
        options.contents, options.tag, options.format = contents, name, format
        options.flags = lib.SH_ALLOC_CONST if constant else 0
        free = functools.partial(lib.sh_free, handle)
        address = made("uint64_t *", lambda out: lib.sh_alloc(handle, bytes, options, out), free)
        self._statuses: list[int] = []
        self._handle = owned(ffi.cast("void *", address), functools.partial(_free, handle, self._statuses), handle)
        self.address = int(address)
        """The device address of the first byte."""
        self.bytes = bytes
        self.tag = tag if tag is not None else "default"
        note(self._handle, device.name, lambda: f"an Allocation of {bytes} bytes that is not closed")

    def __repr__(self) -> str:
        closed = "" if self._handle else " (closed)"
        return f"<libstagehand.Allocation of {self.bytes} bytes, {self.tag!r}, on {self.device.name}{closed}>"

    def __len__(self) -> int:
        return self.bytes

    def close(self) -> None:
        """Waits for the work on the device, unless the tag is released, and frees the memory. If that fails, the memory
        stays allocated until the device closes.
        """
        super().close()
        statuses, self._statuses = self._statuses, []
        for status in statuses:
            check(status)


def _free(device: Any, statuses: list[int], memory: Any) -> None:
    statuses.append(lib.sh_free(device, int(ffi.cast("uintptr_t", memory))))
