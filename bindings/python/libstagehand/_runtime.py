"""Runtimes: one model on a device, its blocks, its steps, and what it keeps when several models share the device."""
from __future__ import annotations

import itertools
import os
import threading
from collections.abc import Callable, Iterable, Sequence
from contextlib import ExitStack
from operator import index
from types import TracebackType
from typing import Any

from ._base import RuntimeBase, target_handle
from ._callbacks import Call, LoadFunction
from ._device import Device, result, struct, text
from ._errors import made
from ._generated import STREAM_HOST, BlockInfo, PlanInfo, ResidentPriority, RuntimeStats
from ._graphs import Capture
from ._host import Stream
from ._lifetime import close_at_exit, destroy_postponed, postponed
from ._native import ffi, lib
from ._scopes import Guest, KeepResident, Protection, SourceUpdate, Step
from ._sources import BlockDesc, Described, Segment, Source
from ._view import View, Views

_acquire = lib.sh_py_acquire
_new = ffi.new
_VIEW = ffi.typeof("sh_py_view *")


class Block:
    """A block of a runtime: what is used, and moves, together. It is registered until it is unregistered, or the runtime is closed."""

    __slots__ = ("runtime", "id", "bytes", "name")

    def __init__(self, runtime: Runtime, id: int, bytes: int, name: str | None) -> None:
        self.runtime = runtime
        self.id = id
        self.bytes = bytes
        self.name = name

    def __repr__(self) -> str:
        return f"<libstagehand.Block {self.id} {self.name or ''} of {self.bytes} bytes>"

    def __int__(self) -> int:
        return self.id

    def info(self) -> BlockInfo:
        return self.runtime.block_info(self)

    def unregister(self) -> None:
        self.runtime.unregister_blocks([self])


_numbers = itertools.count(1)


def _stream(stream: Stream | int | None) -> int:
    return STREAM_HOST if stream is None else index(stream)


class Runtime(RuntimeBase):
    """One model on a device. Streams are native handles as integers, or Stream; None: the calling thread computes by itself."""

    def __init__(
        self,
        device: Device,
        *,
        name: str | None = None,
        max_held: int = 0,
        max_bytes: int = 0,
        unordered_bytes: int = 0,
        share_wait: float = 0.0,
    ) -> None:
        """share_wait: seconds to wait, where a plan is made, for what others hold until their steps end, before SH_ERROR_BUSY."""
        super().__init__(device, name)
        # Sources and callbacks, by block; of blocks that are being registered, below 0.
        self._kept: dict[int, list[object]] = {}
        self._pressure: list[Call] = []
        self._pressure_lock = threading.RLock()
        destroy_postponed()
        options = struct("runtime_options")
        options.max_held, options.max_bytes, options.unordered_bytes = max_held, max_bytes, unordered_bytes
        options.share_wait_ns = round(share_wait * 1e9)
        label = text(name)
        options.name = label
        handle = device._open_handle()
        raw = made("sh_runtime **", lambda out: lib.sh_runtime_create(handle, options, out), lib.sh_runtime_destroy)
        self._own(raw, handle, self._kept, self._pressure)
        close_at_exit(self)

    def __enter__(self) -> Runtime:
        return self

    def __exit__(self, kind: type[BaseException] | None, exception: BaseException | None, trace: TracebackType | None) -> None:
        self.close()

    def close(self) -> None:
        super().close()
        self._kept, self._pressure = {}, []

    def synchronize(self) -> None:
        """Waits for every load and write-back, and raises what nobody was told of yet."""
        self._check(lib.sh_runtime_synchronize(self._handle))

    # Blocks.

    def register_block(
        self,
        source: Source | Sequence[Source | Segment],
        *,
        name: str | None = None,
        bytes: int | None = None,
        mutable: bool = False,
        whole: bool = False,
        unordered: bool = False,
        pin: bool = False,
        on_load: LoadFunction | None = None,
    ) -> Block:
        """Registers one block; see BlockDesc."""
        return self.register_blocks([BlockDesc(source, name, bytes, mutable, whole, unordered, pin, on_load)])[0]

    def register_blocks(self, blocks: Iterable[BlockDesc]) -> list[Block]:
        """Registers blocks, all or none. Small ones that stand next to each other share pages: give them in the order of use."""
        blocks = list(blocks)
        with ExitStack() as until_registered:
            described = [Described(block, self._exceptions, until_registered) for block in blocks]
            descs = ffi.new("sh_block_desc[]", [one.desc[0] for one in described])
            ids = ffi.new("sh_block[]", len(blocks))
            # Kept before they are used, and if an interrupt comes after the call.
            kept, until = self._kept, -next(_numbers)
            kept[until] = [described]
            status = lib.sh_register_blocks(self._handle, descs, len(blocks), ids)
            if status < 0:
                del kept[until]
                self._check(status)
        registered = []
        for id, one, block in zip(ids, described, blocks):
            for call in one.calls:
                call.block = id
            kept[id] = [*one.kept, *one.calls]
            registered.append(Block(self, id, one.desc.bytes, block.name))
        del kept[until]
        return registered

    def unregister_blocks(self, blocks: Iterable[Block]) -> None:
        """Unregisters blocks, all or none. Their sources are let go."""
        ids = self._ids(blocks)
        self._check(lib.sh_unregister_blocks(self._handle, ids, len(ids)))
        for id in ids:
            self._kept.pop(id, None)

    def block_info(self, block: Block | int) -> BlockInfo:
        return self._state(int(block))

    @staticmethod
    def _ids(blocks: Iterable[Block]) -> Any:
        return ffi.new("sh_block[]", [block.id for block in blocks])

    # Order and plan.

    def set_schedule(self, uses: Iterable[Block | tuple[Block, int]]) -> None:
        """The order of use in a step, as a hint; with a block may stand the nanoseconds that the device computes with it."""
        pairs = [use if isinstance(use, tuple) else (use, 0) for use in uses]
        made = ffi.new("sh_use[]", len(pairs))
        for use, (block, compute_ns) in zip(made, pairs):
            use.struct_size, use.block, use.compute_ns = ffi.sizeof("sh_use"), block.id, compute_ns
        self._check(lib.sh_set_schedule(self._handle, made, len(pairs)))

    def plan(
        self, *, dry_run: bool = False, drop_graphs: bool = False, budget_bytes: int = 0, link_bytes_per_second: int = 0
    ) -> PlanInfo:
        """Plans what stays and what streams, and puts it into force, unless it is a dry run."""
        options, info = struct("plan_options"), struct("plan_info")
        options.flags = (lib.SH_PLAN_DRY_RUN if dry_run else 0) | (lib.SH_PLAN_DROP_GRAPHS if drop_graphs else 0)
        options.budget_bytes, options.link_bytes_per_second = budget_bytes, link_bytes_per_second
        self._check(lib.sh_plan(self._handle, options, info))
        return result(PlanInfo, info)

    # Steps and views.

    def step(self) -> Step:
        """`with runtime.step():` around one pass over the model."""
        return Step(self)

    def managed_forward(self) -> Step:
        """step() by its other name."""
        return Step(self)

    def acquire(self, block: Block, stream: Stream | int | None = None) -> View:
        """Makes a block's bytes usable on a stream, until the view is released."""
        number = STREAM_HOST if stream is None else stream if type(stream) is int else index(stream)
        if postponed:
            destroy_postponed()
        held = _new(_VIEW)
        view = View(self, held)
        try:
            status = _acquire(self._core, block.id, number, 0, held)
            if status < 0:
                self._exceptions.check(status, block.id)
        except BaseException:
            view._drop()  # an interrupt that came while it waited
            raise
        return view

    def try_acquire(self, block: Block, stream: Stream | int | None = None) -> View | None:
        """As acquire(), but None where it would wait for bytes. The load goes on: ask again."""
        views = self._many([block], stream, lib.SH_ACQUIRE_NO_WAIT)
        return views[0] if views else None

    def _many(self, blocks: Iterable[Block], stream: Stream | int | None, flags: int) -> Views | None:
        ids, number = self._ids(blocks), _stream(stream)
        if not len(ids):
            return Views()
        destroy_postponed()
        views = Views(View(self, _new(_VIEW)) for _ in ids)
        held = ffi.new("sh_py_view *[]", [view._c for view in views])
        try:
            status = self._check(lib.sh_py_acquire_many(self._core, ids, len(ids), number, flags, held), ids[0])
        except BaseException:
            views._drop()  # an interrupt that came while it waited
            raise
        return None if status == lib.SH_NOT_READY else views

    def acquire_many(self, blocks: Iterable[Block], stream: Stream | int | None = None) -> Views:
        """Acquires a set, all or none; the loads of all are begun before any is waited for."""
        return self._many(blocks, stream, 0) or Views()

    def try_acquire_many(self, blocks: Iterable[Block], stream: Stream | int | None = None) -> Views | None:
        return self._many(blocks, stream, lib.SH_ACQUIRE_NO_WAIT)

    def prefetch(self, blocks: Iterable[Block]) -> None:
        """Begins to load blocks outside the order that will be used soon; a hint."""
        ids = self._ids(blocks)
        self._check(lib.sh_prefetch(self._handle, ids, len(ids)))

    def forget(self, stream: Stream | int) -> None:
        """Before a stream is destroyed inside a step."""
        self._check(lib.sh_stream_forget(self._handle, index(stream)))

    # Graphs.

    def capture(self, stream: Stream | int) -> Capture:
        """`with runtime.capture(stream) as capture:` inside a capture of the driver on that stream: what is acquired and released becomes part
        of the driver's graph, and `capture.graph` is what this runtime has of it. plan() comes before."""
        return Capture(self, index(stream))

    # Changing contents.

    def invalidate(self, blocks: Iterable[Block]) -> None:
        """The sources have other bytes: the next acquire loads them."""
        ids = self._ids(blocks)
        self._check(lib.sh_invalidate_blocks(self._handle, ids, len(ids)))

    def update_sources(self, blocks: Iterable[Block]) -> SourceUpdate:
        """`with runtime.update_sources(blocks):` sources may be changed; then the blocks are invalidated."""
        return SourceUpdate(self, self._ids(blocks))

    def write_back(self, blocks: Iterable[Block] | None = None) -> None:
        """Writes what is dirty back to the sources; None: of all blocks."""
        ids = self._ids(blocks or [])
        if blocks is None or len(ids):  # to C, no blocks are all
            self._check(lib.sh_write_back(self._handle, ids, len(ids)))

    # Several models on a device.

    def protect(self, blocks: Iterable[Block]) -> Protection:
        """`with runtime.protect(blocks):` what they have on the device stays there."""
        return Protection(self, self._ids(blocks))

    def keep_resident(self, target: Runtime | None = None) -> KeepResident:
        """`with runtime.keep_resident():` a runtime, this one by default, keeps the device memory that it has."""
        return KeepResident(self, target)

    def reserve_for_resident(
        self, target: Runtime | None = None, *, priority: ResidentPriority = ResidentPriority.PRIMARY, bytes: int = 0
    ) -> None:
        """A runtime's share, this one's by default, is never less than this; 0: as much as its plan uses. Until release_reservation()."""
        self._check(lib.sh_reserve(self._handle, target_handle(target), bytes, priority))

    def release_reservation(self, target: Runtime | None = None) -> None:
        """Nothing happens where there is none."""
        self._check(lib.sh_release_reservation(self._handle, target_handle(target)))

    def as_guest(self, guest: Runtime, *, bytes: int = 0, workspace_bytes: int = 0, shrink: bool = False) -> Guest:
        """`with runtime.as_guest(other):` the other gets memory that nobody has reserved, or is refused with BudgetError."""
        return Guest(self, guest, bytes, workspace_bytes, shrink)

    def trim(self, keep_bytes: int = 0) -> int:
        """Gives device memory back now. Returns the bytes that it holds after that."""
        held = ffi.new("uint64_t *")
        self._check(lib.sh_trim(self._handle, keep_bytes, held))
        return int(held[0])

    def set_pressure(self, function: Callable[[int], object] | None) -> None:
        """function(bytes) is told when others want memory that this runtime cannot give up at once. It must not use the library."""
        with self._pressure_lock:
            kept = self._pressure
            if function is None:
                self._check(lib.sh_set_pressure(self._handle, ffi.NULL, ffi.NULL))
                kept.clear()
                return
            call = Call(function, self._exceptions)
            kept.append(call)
            self._check(lib.sh_set_pressure(self._handle, lib.sh_py_pressure, call.handle))
            kept[:] = [call]  # the one before is not called any more

    # What happened.

    def stats(self) -> RuntimeStats:
        stats = struct("runtime_stats")
        self._check(lib.sh_stats(self._handle, stats))
        return result(RuntimeStats, stats)

    def telemetry_open(self, path: str | os.PathLike[str] | None) -> None:
        """Writes one line of JSON a step; None stops it."""
        name = text(path)
        self._check(lib.sh_telemetry_open(self._handle, name))
