"""Spillers: tensors that a training step saves leave the device, and come back before its backward needs them."""

from __future__ import annotations

import os
from collections.abc import Iterable, Sequence
from operator import index
from types import TracebackType
from typing import Any

from ._device import Device
from ._errors import check, closed, made
from ._generated import STREAM_HOST, SpillerStats, Status, TicketInfo, TicketState
from ._holders import note
from ._host import Stream
from ._lifetime import Owned, close_at_exit, destroy_postponed, owned, postpone, thread
from ._native import ffi, lib
from ._scopes import Scope, _While
from ._structs import result, struct, text

_NUMBER = ffi.typeof("uint64_t *")
_NUMBERS = ffi.typeof("uint64_t[]")
# The most tickets that one call of the C interface names here. The package calls again for more.
_AT_ONCE = 64


def _stream(stream: Stream | int | None) -> int:
    return STREAM_HOST if stream is None else index(stream)


class Spiller(Owned):
    """The saved tensors of one training job on a device. A stream is a native handle as an integer, or a Stream, or
    None if the calling thread itself computes. The C header spill.h describes the arguments and the calls.

    None for `keep_bytes` sets no bound. `classes` are pairs of a size and a number of buffers.
    """

    # Spillers close before streams, because a spiller waits for the streams that it has seen.
    _turn = 1

    def __init__(
        self,
        device: Device,
        *,
        keep_bytes: int | None = None,
        high_watermark_bytes: int = 0,
        low_watermark_bytes: int = 0,
        least_bytes: int = 0,
        to_host_bytes: int = 0,
        to_device_bytes: int = 0,
        to_host_copies: int = 0,
        to_device_copies: int = 0,
        pool_bytes: int = 0,
        classes: Iterable[tuple[int, int]] = (),
        checksums: bool = False,
        pack: bool = False,
    ) -> None:
        self.device = device
        destroy_postponed()
        options = struct("spiller_options")
        if keep_bytes is not None:
            options.flags |= lib.SH_SPILLER_KEEP_BYTES
            options.keep_bytes = keep_bytes
        if checksums:
            options.flags |= lib.SH_SPILLER_CHECKSUMS
        if pack:
            options.flags |= lib.SH_SPILLER_PACK
        options.high_watermark_bytes, options.low_watermark_bytes = high_watermark_bytes, low_watermark_bytes
        options.least_bytes, options.pool_bytes = least_bytes, pool_bytes
        options.to_host_bytes, options.to_device_bytes = to_host_bytes, to_device_bytes
        options.to_host_copies, options.to_device_copies = to_host_copies, to_device_copies
        pairs = list(classes)
        sizes = ffi.new("sh_spill_class[]", len(pairs))
        for one, (size, count) in zip(sizes, pairs):
            one.struct_size, one.bytes, one.count = ffi.sizeof("sh_spill_class"), size, count
        options.classes, options.class_count = sizes if pairs else ffi.NULL, len(pairs)
        handle = device._open_handle()
        raw = made("sh_spiller **", lambda out: lib.sh_spiller_create(handle, options, out), lib.sh_spiller_destroy)
        self._handle = owned(raw, lib.sh_spiller_destroy, handle)
        note(self._handle, device.name, lambda: "a Spiller that is not closed", uses_budget=False)
        close_at_exit(self)

    def __repr__(self) -> str:
        return f"<libstagehand.Spiller on {self.device.name}{'' if self._handle else ' (closed)'}>"

    def close(self) -> None:
        """Waits for copies in flight, and ends all tickets."""
        super().close()

    def _check(self, status: int, block: int = 0) -> int:
        return check(status)

    # Steps.

    def step(self, number: int = 0) -> SpillStep:
        """Use `with spiller.step():` around a forward and its backward. The number is for telemetry."""
        return SpillStep(self, number)

    def begin_step(self, number: int = 0) -> None:
        check(lib.sh_spiller_begin_step(self._handle, number))

    def end_step(self) -> None:
        check(lib.sh_spiller_end_step(self._handle))

    # Tensors.

    def spill(
        self,
        address: int,
        sizes: Sequence[int],
        element_bytes: int = 1,
        stream: Stream | int | None = None,
        *,
        strides: Sequence[int] | None = None,
        storage_address: int = 0,
        storage_bytes: int = 0,
        storage_key: int = 0,
        used_bytes: int = 0,
        now: bool = False,
        keep: bool = False,
        format: int = 0,
    ) -> Ticket:
        """Saves a tensor. The caller keeps its memory until collect() names the ticket, or until the ticket is
        released. `now` has the tensor leave, and `keep` has it stay.
        """
        destroy_postponed()
        tensor = struct("saved_tensor")
        shape = ffi.new("int64_t[]", list(sizes))
        steps = ffi.NULL if strides is None else ffi.new("int64_t[]", list(strides))
        if strides is not None and len(strides) != len(shape):
            raise ValueError(f"{len(strides)} strides do not fit {len(shape)} sizes")
        tensor.address, tensor.element_bytes = address, element_bytes
        tensor.dimensions, tensor.sizes, tensor.strides = len(shape), shape, steps
        tensor.storage_address, tensor.storage_bytes, tensor.storage_key = storage_address, storage_bytes, storage_key
        tensor.used_bytes, tensor.format = used_bytes, format
        flags = (lib.SH_SPILL_NOW if now else 0) | (lib.SH_SPILL_KEEP if keep else 0)
        held = ffi.new(_NUMBER)
        ticket = Ticket(self, held)
        status = check(lib.sh_spill(self._handle, tensor, _stream(stream), flags, held))
        ticket.left = status == lib.SH_OK
        return ticket

    def collect(self, stream: Stream | int | None = None, *, all: bool = False) -> list[int]:
        """Returns the numbers of tickets whose device memory is not needed any more. Work that is queued on `stream`
        after this call may use the memory again. Each number is returned once.
        """
        flags = lib.SH_COLLECT_ALL if all else 0
        return self._named(
            lambda out, count: lib.sh_spiller_collect(self._handle, _stream(stream), flags, out, _AT_ONCE, count)
        )

    def upcoming(self, used_bytes: int = 0) -> list[int]:
        """Returns the numbers of the tickets that will be restored next, in order. With watermarks, the memory in
        use tells how many there may be. 0 means that it is not known.
        """
        out, count = ffi.new(_NUMBERS, _AT_ONCE), ffi.new(_NUMBER)
        check(lib.sh_spiller_get_upcoming(self._handle, used_bytes, out, _AT_ONCE, count))
        return list(out[0 : count[0]])

    def _named(self, call: Any) -> list[int]:
        out, count = ffi.new(_NUMBERS, _AT_ONCE), ffi.new(_NUMBER)
        named: list[int] = []
        while True:
            status = call(out, count)
            named.extend(out[0 : count[0]])
            check(status)
            if count[0] < _AT_ONCE:
                return named

    def prefetch(self, tickets: Sequence[Ticket | int], addresses: Sequence[int], stream: Stream | int | None) -> None:
        """Begins to bring tensors back into memory of the caller. Ticket.restore() with the same address completes
        it.
        """
        if len(tickets) != len(addresses):
            raise ValueError(f"{len(addresses)} addresses do not fit {len(tickets)} tickets")
        numbers = ffi.new("sh_ticket[]", [index(ticket) for ticket in tickets])
        memory = ffi.new("uint64_t[]", list(addresses))
        check(lib.sh_prefetch_spilled(self._handle, numbers, memory, len(numbers), _stream(stream)))

    # Statistics.

    def stats(self) -> SpillerStats:
        stats = struct("spiller_stats")
        check(lib.sh_spiller_get_stats(self._handle, stats))
        return result(SpillerStats, stats)

    def trim(self) -> int:
        """Frees the pinned buffers that no tensor is in. Returns their bytes."""
        freed = ffi.new("uint64_t *")
        check(lib.sh_spiller_trim(self._handle, freed))
        return int(freed[0])

    def telemetry(self, path: str | os.PathLike[str]) -> Scope:
        """Writes one line of JSON for each step to the file `path` in `with spiller.telemetry(path):`."""
        name = text(path)
        return Scope(self, lambda spiller, out: lib.sh_telemetry_start(ffi.NULL, spiller, name, out))


class SpillStep(_While):
    """The scope of a step of a spiller."""

    def __init__(self, spiller: Spiller, number: int) -> None:
        super().__init__(spiller)
        self._number = number

    def _begin(self) -> int:
        return int(lib.sh_py_spiller_begin_step(self._runtime._handle, self._number, self._count))

    def _end(self) -> int:
        return int(lib.sh_py_spiller_end_step(self._runtime._handle, self._count))


class Ticket:
    """A saved tensor of a spiller. It is released when a `with` ends or when it is garbage. int(ticket) is its
    number.
    """

    __slots__ = ("spiller", "left", "_held", "__weakref__")

    def __init__(self, spiller: Spiller, held: Any) -> None:
        self.spiller = spiller
        self.left = False
        """Whether the tensor left the device when it was saved. collect() tells of tensors that leave later."""
        self._held = held  # the number, which is 0 until the call that saves the tensor has written it

    def __index__(self) -> int:
        return int(self._held[0])

    __int__ = __index__

    def __repr__(self) -> str:
        return f"<libstagehand.Ticket {int(self)}>" if self._held[0] else "<libstagehand.Ticket (released)>"

    def __enter__(self) -> Ticket:
        return self

    def __exit__(
        self, kind: type[BaseException] | None, exception: BaseException | None, trace: TracebackType | None
    ) -> None:
        self.release()

    def info(self) -> TicketInfo:
        info = struct("ticket_info")
        check(lib.sh_ticket_get_info(self._spiller(), self._held[0], info))
        return result(TicketInfo, info)

    @property
    def state(self) -> TicketState:
        return TicketState(self.info().state)

    def restore(self, address: int = 0, stream: Stream | int | None = None) -> bool:
        """Brings the tensor back to `address`. Returns False if the memory of spill() still has the bytes. Then that
        memory stays in use.
        """
        return bool(check(lib.sh_restore(self._spiller(), self._held[0], address, _stream(stream))) == lib.SH_OK)

    def release(self) -> None:
        """Ends the ticket. Does nothing if it has ended, or if the spiller is closed."""
        handle, held = self.spiller._handle, self._held
        number, held[0] = held[0], 0
        if number and handle:
            check(lib.sh_ticket_release(handle, number))

    def _spiller(self) -> Any:
        if not self.spiller._handle:
            raise closed("spiller")
        return self.spiller._handle

    def __del__(self) -> None:
        held = getattr(self, "_held", None)
        if held is None or not held[0]:
            return
        release_ticket(self.spiller, held[0])
        held[0] = 0


def release_ticket(spiller: Spiller, number: int, kept: Any = None) -> bool:
    """Releases a ticket for an object that is garbage: on any thread, at any time, and without an exception. Returns
    False if a copy may use the ticket's memory for ever, because the driver has failed. `kept` lives until the release.
    """
    handle = spiller._handle
    if not handle:
        return True
    if thread.callbacks:
        postpone(lambda: (lib.sh_ticket_release(handle, number), kept))
        return True
    return int(lib.sh_ticket_release(handle, number)) != Status.ERROR_DEVICE_LOST
