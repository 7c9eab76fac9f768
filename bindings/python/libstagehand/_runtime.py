"""Runtimes: one model on a device, its blocks and steps, and its device memory when several models share the device."""

from __future__ import annotations

import itertools
import os
import threading
from collections.abc import Callable, Iterable, Sequence
from contextlib import ExitStack
from operator import index
from typing import Any, NamedTuple

from ._base import RuntimeBase, open_handle
from ._callbacks import Call, LoadFunction
from ._device import Device
from ._errors import made
from ._generated import STREAM_HOST, BlockFlag, BlockInfo, KindInfo, PlanInfo, ResidentPriority, RuntimeStats
from ._graphs import Capture
from ._holders import note
from ._host import Stream
from ._lifetime import close_at_exit, destroy_postponed, postponed
from ._members import MemberSet
from ._native import ffi, lib
from ._scopes import Scope, SourceUpdate, Step
from ._sources import BlockDesc, Described, Segment, Source
from ._structs import result, struct, text
from ._view import View, Views

_acquire = lib.sh_py_acquire
_new = ffi.new
_VIEW = ffi.typeof("sh_py_view *")


class Block:
    """A block of a runtime: bytes that are used and moved together. It lives until it is unregistered or the runtime is
    closed.
    """

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


class Part(NamedTuple):
    """A part of a block that register_parts() divided."""

    block: Block
    """The part's block."""
    offset: int
    """Offset of the part in the divided block, in bytes."""


_numbers = itertools.count(1)


def _stream(stream: Stream | int | None) -> int:
    return STREAM_HOST if stream is None else index(stream)


class Runtime(RuntimeBase):
    """One model on a device. A stream is a native handle as an integer, or a Stream, or None if the calling thread
    itself computes.
    """

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
        """`share_wait` is the most seconds that a call which plans waits for other runtimes to end their steps, when
        they hold memory beyond their shares. After that the call fails with SH_ERROR_BUSY.
        """
        super().__init__(device, name)
        # Sources and callbacks by block id. A number below 0 stands for blocks that are being registered.
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
        note(self._handle, device.name, lambda: f"the runtime {name or ''}, which is not closed")
        close_at_exit(self)

    def close(self) -> None:
        super().close()
        self._kept, self._pressure = {}, []

    def synchronize(self) -> None:
        """Waits for all loads and write-backs. Raises the error of asynchronous work that no other call has raised."""
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
        """Registers one block. BlockDesc describes the arguments."""
        return self.register_blocks([BlockDesc(source, name, bytes, mutable, whole, unordered, pin, on_load)])[0]

    def register_blocks(self, blocks: Iterable[BlockDesc]) -> list[Block]:
        """Registers all of the blocks or none. Small blocks that are neighbours in the list share pages, so give blocks
        in their order of use.
        """
        return self._register(
            list(blocks), lambda descs, count, ids: lib.sh_register_blocks(self._handle, descs, count, ids)
        )

    def register_set(
        self,
        members: Iterable[BlockDesc],
        *,
        call_members: int = 1,
        group_members: int = 0,
        slots: int = 0,
        stride: int = 0,
        name: str | None = None,
    ) -> MemberSet:
        """Registers a set of blocks of one size, of which a call uses at most `call_members` at once. They share at
        most `slots` slots of device memory (0: one for each), at a distance of `stride` bytes (0: their size, rounded
        up to 256). The members are in groups of `group_members` (0: all are one), such as layers, and a call uses those
        of one group. @experimental
        """
        options, label, made = struct("set_options"), text(name), ffi.new("sh_set *")
        options.call_members, options.group_members, options.slots = call_members, group_members, slots
        options.stride, options.name = stride, label
        blocks = self._register(
            list(members),
            lambda descs, count, ids: lib.sh_set_create(self._handle, options, descs, count, ids, made),
        )
        return MemberSet(self, made[0], blocks, name)

    def _register(self, blocks: list[BlockDesc], call: Callable[[Any, int, Any], int]) -> list[Block]:
        with ExitStack() as until_registered:
            described = [Described(block, self._exceptions, until_registered) for block in blocks]
            descs = ffi.new("sh_block_desc[]", [one.desc[0] for one in described])
            ids = ffi.new("sh_block[]", len(blocks))
            # The sources are kept before the call, so that they live if an interrupt comes right after it.
            kept, until = self._kept, -next(_numbers)
            kept[until] = [described]
            status = call(descs, len(blocks), ids)
            if status < 0:
                del kept[until]
                self._check(status)
        registered = []
        for id, one, block in zip(ids, described, blocks):
            if one.hook is not None:
                one.hook.block = id
            kept[id] = one.keep_for(id, one.hook)
            registered.append(Block(self, id, one.desc.bytes, block.name))
        del kept[until]
        return registered

    def register_parts(
        self, block: BlockDesc, unit_bytes: int, *, largest_bytes: int = 0, most: int = 1024
    ) -> list[Part]:
        """Divides a block that is used part by part, and registers each part as a block of its own. Parts begin at
        multiples of `unit_bytes`: a row of a matrix, for example. They have at most `largest_bytes` bytes (0: the
        library chooses), unless there would be more than `most`.
        """
        options = struct("part_options")
        options.unit_bytes, options.largest_bytes = unit_bytes, largest_bytes
        with ExitStack() as until_registered:
            described = Described(block, self._exceptions, until_registered)
            found, count = ffi.new("sh_part[]", most), ffi.new("uint64_t *")
            for part in found:
                part.struct_size = ffi.sizeof("sh_part")
            kept, until = self._kept, -next(_numbers)
            kept[until] = [described]
            status = lib.sh_register_parts(self._handle, described.desc, options, found, most, count)
            if status < 0:
                del kept[until]
                self._check(status)
        parts = []
        for number in range(count[0]):
            part = found[number]
            kept[part.block] = [described.hook, *described.kept, *described.calls]
            name = f"{block.name}[{number + 1}/{count[0]}]" if block.name is not None else None
            parts.append(Part(Block(self, part.block, part.bytes, name), part.offset))
        del kept[until]
        return parts

    def unregister_blocks(self, blocks: Iterable[Block]) -> None:
        """Unregisters all of the blocks or none. The package then gives up their sources."""
        ids = self._ids(blocks)
        self._check(lib.sh_unregister_blocks(self._handle, ids, len(ids)))
        self._forget(ids)

    def _forget(self, ids: Iterable[int]) -> None:
        for id in ids:
            self._kept.pop(id, None)

    def block_info(self, block: Block | int) -> BlockInfo:
        return self._state(int(block))

    @staticmethod
    def _ids(blocks: Iterable[Block]) -> Any:
        return ffi.new("sh_block[]", [block.id for block in blocks])

    # Order and plan.

    def set_schedule(self, uses: Iterable[Block | tuple[Block, int]]) -> None:
        """Gives the order in which a step uses blocks. It is a hint. A pair of a block and a number also tells how many
        nanoseconds the device computes with the block.
        """
        pairs = [use if isinstance(use, tuple) else (use, 0) for use in uses]
        made = ffi.new("sh_use[]", len(pairs))
        for use, (block, compute_ns) in zip(made, pairs):
            use.struct_size, use.block, use.compute_ns = ffi.sizeof("sh_use"), block.id, compute_ns
        self._check(lib.sh_set_schedule(self._handle, made, len(pairs)))

    def plan(
        self, *, dry_run: bool = False, drop_graphs: bool = False, budget_bytes: int = 0, link_bytes_per_second: int = 0
    ) -> PlanInfo:
        """Plans which blocks are resident and which are streamed. The plan takes effect unless `dry_run` is set."""
        options, info = struct("plan_options"), struct("plan_info")
        options.flags = (lib.SH_PLAN_DRY_RUN if dry_run else 0) | (lib.SH_PLAN_DROP_GRAPHS if drop_graphs else 0)
        options.budget_bytes, options.link_bytes_per_second = budget_bytes, link_bytes_per_second
        self._check(lib.sh_plan(self._handle, options, info))
        return result(PlanInfo, info)

    # Steps and views.

    def step(self, kind: str | None = None) -> Step:
        """Use `with runtime.step():` around one pass over the model. `kind` names the kind of the step ("prefill",
        "decode"): steps of one kind use the same blocks in the same order and compute about as long. Kinds that
        alternate get one plan.
        """
        return Step(self, kind)

    def managed_forward(self, kind: str | None = None) -> Step:
        """Another name of step()."""
        return Step(self, kind)

    def kinds(self) -> list[KindInfo]:
        """The kinds of step that the runtime knows."""
        count = ffi.new("uint64_t *")
        infos = ffi.new("sh_kind_info[]", 8)
        for info in infos:
            info.struct_size = ffi.sizeof("sh_kind_info")
        self._check(lib.sh_kind_list(self._handle, infos, len(infos), count))
        return [result(KindInfo, infos[number]) for number in range(min(count[0], len(infos)))]

    def acquire(self, block: Block, stream: Stream | int | None = None) -> View:
        """Makes a block's bytes usable on a stream until the returned view is released."""
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
            view._drop()  # an interrupt may have come while the call waited, and the block is held then
            raise
        return view

    def try_acquire(self, block: Block, stream: Stream | int | None = None) -> View | None:
        """Like acquire(), but returns None if it would wait for bytes. The load goes on: try again later."""
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
            views._drop()  # an interrupt may have come while the call waited, and the blocks are held then
            raise
        return None if status == lib.SH_NOT_READY else views

    def acquire_many(self, blocks: Iterable[Block], stream: Stream | int | None = None) -> Views:
        """Acquires all of the blocks or none. It begins all loads before it waits for one of them."""
        return self._many(blocks, stream, 0) or Views()

    def try_acquire_many(self, blocks: Iterable[Block], stream: Stream | int | None = None) -> Views | None:
        return self._many(blocks, stream, lib.SH_ACQUIRE_NO_WAIT)

    def prefetch(self, blocks: Iterable[Block]) -> None:
        """Begins to load blocks outside the order that will be used soon. It is a hint."""
        ids = self._ids(blocks)
        self._check(lib.sh_prefetch(self._handle, ids, len(ids)))

    def forget(self, stream: Stream | int) -> None:
        """Forgets a stream. Call it before the stream is destroyed inside a step."""
        self._check(lib.sh_stream_forget(self._handle, index(stream)))

    # Graphs.

    def capture(self, stream: Stream | int) -> Capture:
        """Use `with runtime.capture(stream) as capture:` inside a capture of the driver on that stream. Acquires and
        releases in it become part of the driver's graph. `capture.graph` is the runtime's part of that graph. Call
        plan() before.
        """
        return Capture(self, index(stream))

    # Changing contents.

    def invalidate(self, blocks: Iterable[Block]) -> None:
        """Tells the library that the sources have other bytes. The next acquire loads them."""
        ids = self._ids(blocks)
        self._check(lib.sh_invalidate_blocks(self._handle, ids, len(ids)))

    def update_sources(self, blocks: Iterable[Block]) -> SourceUpdate:
        """The sources of the blocks may be changed in `with runtime.update_sources(blocks):`. Its end invalidates the
        blocks.
        """
        return SourceUpdate(self, self._ids(blocks))

    def replace_source(self, block: Block, source: Source | Sequence[Source | Segment]) -> None:
        """Gives a block other sources, inside `with runtime.update_sources([block]):`. They are as in BlockDesc: other
        memory, another file, or new Weights. The package then gives up the sources before.
        """
        mutable = bool(self.block_info(block).flags & BlockFlag.MUTABLE)
        with ExitStack() as until_replaced:
            described = Described(BlockDesc(source, mutable=mutable), self._exceptions, until_replaced)
            kept, until = self._kept, -next(_numbers)
            kept[until] = [described]  # before the call, as in register_blocks()
            status = lib.sh_source_replace(self._handle, block.id, described.segments, len(described.segments))
            if status < 0:
                del kept[until]
                self._check(status)
        if block.id in kept:
            kept[block.id] = described.keep_for(block.id, kept[block.id][0])
        del kept[until]

    def write_back(self, blocks: Iterable[Block] | None = None) -> None:
        """Writes dirty blocks back to their sources. None means all blocks."""
        if blocks is None:
            self._check(lib.sh_write_back(self._handle, ffi.NULL, 0))
        else:
            ids = self._ids(blocks)
            self._check(lib.sh_write_back(self._handle, ids, len(ids)))

    # Several models on a device.

    def protect(self, blocks: Iterable[Block]) -> Scope:
        """The bytes that the blocks have on the device stay there in `with runtime.protect(blocks):`."""
        ids = self._ids(blocks)
        return Scope(self, lambda runtime, out: lib.sh_protect_blocks(runtime, ids, len(ids), out))

    def keep_resident(self, target: Runtime | None = None) -> Scope:
        """The target keeps the device memory that it has in `with runtime.keep_resident():`. None is this runtime."""
        return Scope(target or self, lib.sh_keep_resident)

    def reserve(
        self, target: Runtime | None = None, *, priority: ResidentPriority = ResidentPriority.PRIMARY, bytes: int = 0
    ) -> Scope:
        """The target's share is never less than `bytes` in `with runtime.reserve():`. 0 is the memory that its plan
        uses. The target is this runtime by default. Another reservation of the target takes the place of this one: the
        end of this one then does nothing.
        """
        return Scope(target or self, lambda runtime, out: lib.sh_reserve(runtime, bytes, priority, out))

    def as_guest(
        self, guest: Runtime, *, bytes: int = 0, workspace_bytes: int = 0, shrink: bool = False, wait: float = 0
    ) -> Scope:
        """The other runtime is a guest in `with runtime.as_guest(other):`. It gets memory that no runtime has reserved.
        The begin raises BudgetError if that memory does not suffice. It waits for at most `wait` seconds until other
        runtimes have given their memory up, and raises BudgetError (ERROR_BUSY) after that.
        """
        open_handle(self)
        options = struct("guest_options")
        options.flags = lib.SH_GUEST_SHRINK if shrink else 0
        options.bytes, options.workspace_bytes, options.wait_ns = bytes, workspace_bytes, round(wait * 1e9)
        return Scope(guest, lambda runtime, out: lib.sh_guest_begin(runtime, options, out))

    def trim(self, keep_bytes: int = 0) -> int:
        """Gives up device memory now, down to `keep_bytes`. Returns the bytes that the runtime holds after that."""
        held = ffi.new("uint64_t *")
        self._check(lib.sh_trim(self._handle, keep_bytes, held))
        return int(held[0])

    def set_pressure(self, function: Callable[[int], object] | None) -> None:
        """Has the library call function(bytes) when other runtimes need memory that this runtime holds beyond its share
        and cannot give up at once. The function must not use the library. None ends the calls.
        """
        with self._pressure_lock:
            kept = self._pressure
            if function is None:
                self._check(lib.sh_set_pressure(self._handle, ffi.NULL, ffi.NULL))
                kept.clear()
                return
            call = Call(function, self._exceptions)
            kept.append(call)
            self._check(lib.sh_set_pressure(self._handle, lib.sh_py_pressure, call.handle))
            kept[:] = [call]  # the library does not call the earlier function any more

    # Statistics.

    def stats(self) -> RuntimeStats:
        stats = struct("runtime_stats")
        self._check(lib.sh_runtime_get_stats(self._handle, stats))
        return result(RuntimeStats, stats)

    def telemetry(self, path: str | os.PathLike[str]) -> Scope:
        """Writes one line of JSON for each step to the file `path` in `with runtime.telemetry(path):`."""
        name = text(path)
        return Scope(self, lambda runtime, out: lib.sh_telemetry_start(runtime, ffi.NULL, name, out))
