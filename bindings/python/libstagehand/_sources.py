"""Sources of the bytes of a block, and their translation to segments of the C interface."""

from __future__ import annotations

import mmap
import os
from collections.abc import Sequence
from contextlib import ExitStack
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any, Protocol, TypeAlias, Union

from ._callbacks import Call, Exceptions, FillFunction, LoadFunction
from ._errors import check
from ._generated import BlockFlag, WeightFormat
from ._host import PinnedMemory
from ._native import ffi, lib
from ._structs import struct, text

if TYPE_CHECKING:
    from typing_extensions import Buffer as Buffer
else:
    Buffer = object


class HasFileno(Protocol):
    def fileno(self) -> int: ...


@dataclass(frozen=True)
class FileRange:
    """Bytes of a file, which is a path, an open file or a descriptor. The caller may close the file once the block is
    registered.
    """

    file: str | os.PathLike[str] | int | HasFileno
    offset: int
    bytes: int


@dataclass(frozen=True)
class Mapped:
    """Bytes of a mapped file: a part of a mapping, or a numpy.memmap. A whole mmap.mmap needs no Mapped around it."""

    buffer: Buffer


@dataclass(frozen=True)
class Fill:
    """Bytes that a function makes. fill(buffer, offset) writes the len(buffer) bytes that begin at `offset`. Several
    threads of the library may call the function at the same time. It must not use the library, and must not keep the
    buffer.
    """

    function: FillFunction
    bytes: int


@dataclass(frozen=True)
class DeviceMemory:
    """Bytes in the memory of this device or of another one. The block keeps `owner` alive."""

    address: int
    bytes: int
    owner: object = None


@dataclass(frozen=True)
class Packed:
    """A packed tensor of `stagehand pack`, of which `bytes` bytes of the contents are used, from `offset` on. It must
    not change while the block is registered. It crosses the link packed, and the device unpacks it.
    """

    source: Buffer | PinnedMemory | FileRange | Mapped
    bytes: int
    offset: int = 0


@dataclass(frozen=True)
class Weights:
    """Floating-point weights in memory. The registration packs them, without loss, into pinned memory of the library.
    The caller may free or change the memory afterwards. A mutable block keeps the memory: changes are written there,
    and the block is plain from the first one on.
    """

    source: Buffer | PinnedMemory
    format: WeightFormat


@dataclass(frozen=True)
class Segment:
    """A source that begins at `offset` in the block, instead of right after the source before it."""

    source: Source
    offset: int


Source: TypeAlias = Union["Buffer", PinnedMemory, FileRange, Mapped, Fill, DeviceMemory, Packed, Weights]
"""The library reads bytes-like objects and NumPy arrays in place. The block keeps them alive."""


@dataclass(frozen=True)
class BlockDesc:
    """A block to register, with its source, or with several sources one after the other."""

    source: Source | Sequence[Source | Segment]
    name: str | None = None
    bytes: int | None = None
    """The size on the device. None is the end of the last source."""
    mutable: bool = False
    whole: bool = False
    unordered: bool = False
    pin: bool = False
    on_load: LoadFunction | None = None

    @property
    def flags(self) -> int:
        flags = BlockFlag.MUTABLE if self.mutable else BlockFlag(0)
        flags |= BlockFlag.WHOLE if self.whole else BlockFlag(0)
        flags |= BlockFlag.UNORDERED if self.unordered else BlockFlag(0)
        return int(flags | (BlockFlag.PIN if self.pin else BlockFlag(0)))


class Described:
    """A block's descriptor in C. The objects in `kept` must live as long as the block. The files that it has opened are
    closed once the block is registered.
    """

    def __init__(self, block: BlockDesc, exceptions: Exceptions, until_registered: ExitStack) -> None:
        self.kept: list[object] = []
        self.calls: list[Call] = []
        self.hook: Call | None = None
        self._exceptions = exceptions
        self._until_registered = until_registered
        self._mutable = block.mutable
        sources = block.source if isinstance(block.source, (list, tuple)) else [block.source]
        self.segments = ffi.new("sh_segment[]", len(sources))
        end = 0
        for segment, source in zip(self.segments, sources):
            segment.struct_size = ffi.sizeof("sh_segment")
            segment.offset = end
            if isinstance(source, Segment):
                segment.offset, source = source.offset, source.source
            self._fill_in(segment, source)
            end = max(end, segment.offset + segment.bytes)
        self.name = text(block.name)
        self.desc = struct("block_desc")
        packs = any(segment.format for segment in self.segments)
        self.desc.flags = block.flags | (BlockFlag.PACK if packs else 0)
        self.desc.bytes = end if block.bytes is None else block.bytes
        self.desc.segments, self.desc.segment_count = self.segments, len(sources)
        self.desc.name = self.name
        if block.on_load is not None:
            self.hook = Call(block.on_load, exceptions)
            self.desc.on_load, self.desc.user_data = lib.sh_py_load, self.hook.handle

    def keep_for(self, block: int, hook: object) -> list[object]:
        """Returns what a registered block keeps alive. The first object is the call of its on_load, or None."""
        for call in self.calls:
            call.block = block
        return [hook, *self.kept, *self.calls]

    def _call(self, function: Any) -> Any:
        self.calls.append(Call(function, self._exceptions))
        return self.calls[-1].handle

    def _fill_in(self, segment: Any, source: Any) -> None:
        if isinstance(source, Packed):
            if isinstance(source.source, (Packed, Weights, Fill, DeviceMemory)):
                raise TypeError("the source of Packed is memory or a range of a file")
            self._fill_in(segment, source.source)
            if segment.bytes == 0:
                raise ValueError("the source of Packed is empty")
            segment.packed_bytes = segment.bytes
            segment.bytes, segment.packed_offset = source.bytes, source.offset
        elif isinstance(source, Weights):
            if isinstance(source.source, (Packed, Weights, Mapped, FileRange, Fill, DeviceMemory)):
                raise TypeError("the source of Weights is memory")
            if self._mutable:
                self._fill_in(segment, source.source)
                segment.kind, segment.format = lib.SH_SOURCE_POINTER, WeightFormat(source.format)
                return
            memory = ffi.from_buffer(_buffer_of(source.source))
            segment.kind, segment.format = lib.SH_SOURCE_POINTER, WeightFormat(source.format)
            segment.pointer, segment.bytes = memory, len(memory)
            self._until_registered.callback(ffi.release, memory)
        elif isinstance(source, FileRange):
            segment.kind, segment.file = lib.SH_SOURCE_FILE, self._descriptor(source.file)
            segment.file_offset, segment.bytes = source.offset, source.bytes
        elif isinstance(source, Fill):
            segment.kind, segment.fill = lib.SH_SOURCE_FILL, lib.sh_py_fill
            segment.user_data, segment.bytes = self._call(source.function), source.bytes
        elif isinstance(source, DeviceMemory):
            segment.kind, segment.pointer = lib.SH_SOURCE_DEVICE, ffi.cast("void *", source.address)
            segment.bytes = source.bytes
            self.kept.append(source.owner)
        else:
            mapped = isinstance(source, (Mapped, mmap.mmap))
            # Not what ffi.from_buffer() returns is kept: Python crashes if it collects that and a memoryview together.
            kept = memoryview(_buffer_of(source))
            with ffi.from_buffer(kept, require_writable=self._mutable) as memory:
                segment.kind = lib.SH_SOURCE_MAPPED if mapped else lib.SH_SOURCE_POINTER
                segment.pointer, segment.bytes = memory, len(memory)
            self.kept.append(kept)

    def _descriptor(self, file: Any) -> int:
        if isinstance(file, int):
            return file
        if hasattr(file, "fileno"):
            return int(file.fileno())
        descriptor = os.open(file, os.O_RDONLY | os.O_CLOEXEC)
        self._until_registered.callback(os.close, descriptor)
        return descriptor


def unpack(packed: Buffer | PinnedMemory | Mapped, out: Buffer, offset: int = 0) -> None:
    """Fills a writable buffer with the contents of a packed tensor of `stagehand pack`, from `offset` on."""
    with ffi.from_buffer(_buffer_of(packed)) as source, ffi.from_buffer(out, require_writable=True) as to:
        check(lib.sh_unpack(source, len(source), offset, len(to), to))


def _buffer_of(source: Any) -> Any:
    return source.buffer if isinstance(source, (Mapped, PinnedMemory)) else source
