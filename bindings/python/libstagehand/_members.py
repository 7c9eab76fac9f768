"""Sets: blocks of one size of which a call uses a few, such as the experts of a model."""

from __future__ import annotations

from collections.abc import Sequence
from operator import index
from types import TracebackType
from typing import TYPE_CHECKING, Any

from ._generated import STREAM_HOST, SetInfo
from ._host import Stream
from ._lifetime import destroy_postponed, postpone, thread
from ._native import ffi, lib
from ._structs import result, struct

if TYPE_CHECKING:
    from ._runtime import Block, Runtime


class MemberSet:
    """A set of a runtime, from Runtime.register_set(). Its members share slots of one size in device memory. The set
    lives until it is unregistered or the runtime is closed. @experimental
    """

    __slots__ = ("runtime", "id", "blocks", "stride", "name")

    def __init__(self, runtime: Runtime, id: int, blocks: list[Block], name: str | None) -> None:
        self.runtime = runtime
        self.id = id
        self.blocks = blocks
        """The members, which are blocks, too."""
        self.name = name
        self.stride = self.info().stride
        """Distance between slots in bytes."""

    def __repr__(self) -> str:
        return f"<libstagehand.MemberSet {self.name or self.id} of {len(self.blocks)} members>"

    def acquire(self, members: Sequence[int], stream: Stream | int | None = None) -> Members:
        """Makes these members usable on a stream until the returned object is released: all of them or none."""
        return Members(self, members, STREAM_HOST if stream is None else index(stream))

    def prefetch(self, members: Sequence[int], chances: Sequence[float] | None = None) -> None:
        """Begins to load members that a call will probably use, the most probable ones first. It is a hint. `chances`
        tells how probable the use of each is, from 0 to 1.
        """
        if chances is not None and len(chances) != len(members):
            raise ValueError(f"there are {len(chances)} chances for {len(members)} members")
        numbers = ffi.new("uint32_t[]", members)
        values = ffi.NULL if chances is None else ffi.new("float[]", chances)
        runtime = self.runtime
        runtime._check(lib.sh_prefetch_members(runtime._handle, self.id, numbers, values, len(members)))

    def _block_of(self, numbers: Any) -> int:
        """Returns the block whose callback probably failed, or 0."""
        first = numbers[0] if len(numbers) else len(self.blocks)
        return self.blocks[first].id if first < len(self.blocks) else 0

    def info(self) -> SetInfo:
        """What the set has now, and how well it served."""
        info = struct("set_info")
        self.runtime._check(lib.sh_set_get_info(self.runtime._handle, self.id, info))
        return result(SetInfo, info)

    def unregister(self) -> None:
        """Unregisters the set with all its members. The package then gives up their sources."""
        self.runtime._check(lib.sh_set_destroy(self.runtime._handle, self.id))
        self.runtime._forget(block.id for block in self.blocks)


class Members:
    """Members that are held. They are released when a `with` ends or when this object is garbage."""

    __slots__ = ("_runtime", "_numbers", "_c", "address", "bytes", "slots", "__weakref__")

    def __init__(self, set: MemberSet, members: Sequence[int], stream: int) -> None:
        self._runtime = runtime = set.runtime
        # A release needs the struct that the acquire fills in, and the numbers.
        self._c = pool = ffi.new("sh_py_members *")
        self._numbers: Any = ffi.new("uint32_t[]", members)
        count = len(self._numbers)
        slots = ffi.new("uint32_t[]", count)
        destroy_postponed()
        try:
            status = lib.sh_py_acquire_members(runtime._core, set.id, self._numbers, count, stream, 0, pool, slots)
            if status < 0:
                runtime._check(status, set._block_of(self._numbers))
        except BaseException:
            self._drop()  # an interrupt may have come while the call waited, and the members are held then
            raise
        self.address: int = int(ffi.cast("uintptr_t", pool.pool.address))
        """Device address of slot 0."""
        self.bytes: int = pool.pool.bytes
        """The bytes of all slots."""
        self.slots: list[int] = list(slots)
        """The slot of each member."""

    def __enter__(self) -> Members:
        return self

    def __exit__(
        self, kind: type[BaseException] | None, exception: BaseException | None, trace: TracebackType | None
    ) -> None:
        status = lib.sh_py_release_members(self._c, self._numbers, len(self._numbers))
        # A failed release must not hide an exception of the `with`, which may be its reason.
        if kind is None:
            self._runtime._check(status)

    def __del__(self) -> None:
        if not hasattr(self, "_numbers") or not self._c.runtime:
            return
        if thread.callbacks:
            held, numbers, runtime = self._c, self._numbers, self._runtime
            # The runtime is kept, because the struct points to a part of it.
            postpone(lambda: (lib.sh_py_release_members(held, numbers, len(numbers)), runtime))
        else:
            self._drop()

    def _drop(self) -> None:
        """Releases the members if they are held, and ignores a failure."""
        self.__exit__(BaseException, None, None)

    def release(self) -> None:
        """Releases the members now. A second call does nothing."""
        self.__exit__(None, None, None)
