"""Files in memory that look like the plain safetensors files whose tensors others have packed, for libraries that read
only those. Their contents are there once somebody needs them.
"""

# mypy: disable-error-code="import-not-found,misc,no-untyped-call,unused-ignore"
from __future__ import annotations

import json
import mmap
import os
import pathlib
import weakref
from bisect import bisect_right
from collections.abc import Iterable
from dataclasses import dataclass
from typing import Any

import torch

from .._errors import Error
from .._sources import Mapped, unpack
from ._files import PackedTensor, packed_tensors, read_header
from ._memory import buffer_of

_PAGE = mmap.PAGESIZE
_COPIED = 16 << 20  # of plain tensors, at a time
_WIDTHS = {
    "F64": 8,
    "I64": 8,
    "U64": 8,
    "C64": 8,
    "F32": 4,
    "I32": 4,
    "U32": 4,
    "F16": 2,
    "BF16": 2,
    "I16": 2,
    "U16": 2,
}


@dataclass(eq=False)
class Hollow:
    """A packed tensor, and where its contents belong in the plain file."""

    path: pathlib.Path
    name: str
    begin: int
    end: int
    source: memoryview  # as the packed file has it
    contents: PackedTensor  # in the plain file
    is_filled: bool = False

    def inside(self) -> tuple[int, int]:
        """The whole pages. The parts of pages at the ends are filled from the beginning."""
        return min(-(-self.begin // _PAGE) * _PAGE, self.end), max(self.end // _PAGE * _PAGE, self.begin)

    @property
    def text(self) -> str:
        return self.contents.text

    def fill(self) -> None:
        self.contents.read()
        self.is_filled = True


class PlainFile:
    """A packed file as a plain one. The system has no page of a packed tensor's contents before somebody reads it, so
    nobody can read without being noticed.
    """

    def __init__(self, path: pathlib.Path) -> None:
        with open(path, "rb") as file:
            self._map = mmap.mmap(file.fileno(), 0, access=mmap.ACCESS_READ)
        start, header = read_header(path)
        packed = packed_tensors(header)
        meta = {name: text for name, text in header.pop("__metadata__", {}).items() if name != "stagehand.packed"}
        plain: dict[str, Any] = {"__metadata__": meta} if meta else {}
        places, end = [], 0
        # The widest elements come first, so that all of them are aligned.
        for name, entry in sorted(header.items(), key=lambda one: -_width(packed.get(one[0], one[1]))):
            was = packed.get(name, entry)
            bytes = _bytes_of(was) if name in packed else entry["data_offsets"][1] - entry["data_offsets"][0]
            plain[name] = {"dtype": was["dtype"], "shape": was["shape"], "data_offsets": [end, end + bytes]}
            places.append((name, start + entry["data_offsets"][0], entry["data_offsets"], end, bytes))
            end += bytes
        text = json.dumps(plain).encode()
        text += b" " * (-len(text) % 8)
        self.file = os.memfd_create(f"stagehand:{path.name}", os.MFD_CLOEXEC)
        self._close = weakref.finalize(self, os.close, self.file)
        os.ftruncate(self.file, 8 + len(text) + end)
        os.pwrite(self.file, len(text).to_bytes(8, "little") + text, 0)
        self._memory = torch.frombuffer(mmap.mmap(self.file, 8 + len(text) + end), dtype=torch.uint8)
        self._tensors: list[Hollow] = []
        for name, at, (first, last), to, bytes in places:
            begin = 8 + len(text) + to
            source = memoryview(self._map)[at : at + last - first]
            if name not in packed:
                for done in range(0, bytes, _COPIED):
                    os.pwrite(self.file, source[done : done + _COPIED], begin + done)
            elif bytes:
                memory = self._memory[begin : begin + bytes]
                contents = PackedTensor(source, memory, f"{name} in {path}")
                one = Hollow(path, name, begin, begin + bytes, source, contents)
                self._fill_ends(one)
                self._tensors.append(one)
        self._begins = [one.begin for one in self._tensors]

    def _fill_ends(self, one: Hollow) -> None:
        begin, end = one.inside()
        for first, last in [(one.begin, begin), (max(end, begin), one.end)]:
            if first < last:
                part = memoryview(buffer_of(self._memory[first:last])).cast("B")
                try:
                    unpack(Mapped(one.source), part, first - one.begin)
                except Error as error:
                    raise type(error)(error.status, f"{one.text}: {error.text}") from None

    def fill_touched(self, used: set[Hollow]) -> list[str]:
        """Unpacks the tensors that somebody has read, and those that are not among the used ones. Returns their
        names.
        """
        names = []
        for one in self._tensors:
            begin, end = one.inside()
            if not one.is_filled and begin < end and (one not in used or _has_pages(self.file, begin, end)):
                one.fill()
                names.append(one.name)
        return names

    def overlapping(self, begin: int, end: int) -> list[Hollow]:
        """The packed tensors that have bytes in a part of the file."""
        first = max(bisect_right(self._begins, begin) - 1, 0)
        return [one for one in self._tensors[first : bisect_right(self._begins, end - 1)] if one.end > begin]


def _width(entry: dict[str, Any]) -> int:
    return _WIDTHS.get(entry["dtype"], 1)


def _bytes_of(entry: dict[str, Any]) -> int:
    bytes = _width(entry)
    for size in entry["shape"]:
        bytes *= size
    return bytes


def _has_pages(file: int, begin: int, end: int) -> bool:
    try:
        return os.lseek(file, begin, os.SEEK_DATA) < end
    except OSError:  # there is nothing up to the end of the file
        return False


class PlainMappings:
    """Where this process has mapped plain files, at the time when this object is made."""

    def __init__(self, files: Iterable[PlainFile]) -> None:
        numbers = {(status.st_dev, status.st_ino): one for one in files for status in [os.fstat(one.file)]}
        self._spans: list[tuple[int, int, int, PlainFile]] = []  # begin, end, where in the file
        with open("/proc/self/maps", encoding="utf-8", errors="surrogateescape") as maps:
            for line in maps:
                span, rights, offset, device, inode, *_ = line.split(None, 5)
                major, minor = (int(part, 16) for part in device.split(":"))
                file = numbers.get((os.makedev(major, minor), int(inode)))
                if file is not None and rights[3] == "p":  # the shared mapping is the file's own
                    start, end = (int(part, 16) for part in span.split("-"))
                    self._spans.append((start, end, int(offset, 16), file))
        self._starts = [start for start, *_ in self._spans]

    def hollows_of(self, tensor: torch.Tensor) -> list[tuple[Hollow, int]]:
        """The packed tensors that have a part of the tensor's memory, each with the place of the tensor in it."""
        if tensor.device.type != "cpu" or not tensor.numel():
            return []
        first = tensor.data_ptr()
        at = bisect_right(self._starts, first) - 1
        if at < 0 or first >= self._spans[at][1]:
            return []
        start, _, offset, file = self._spans[at]
        begin = offset + first - start
        return [(one, begin - one.begin) for one in file.overlapping(begin, begin + _extent(tensor))]

    def part_of(self, tensor: torch.Tensor) -> tuple[Hollow, int] | None:
        """Returns the packed tensor that has all of the tensor and is not there yet, with the tensor's place in it, or
        None. Several that have a part of it are filled.
        """
        hollows = self.hollows_of(tensor)
        if len(hollows) == 1:
            one, offset = hollows[0]
            if not one.is_filled and 0 <= offset and offset + _extent(tensor) <= one.end - one.begin:
                return one, offset
        self.fill(tensor)
        return None

    def fill(self, tensor: torch.Tensor) -> None:
        """Unpacks what has a part of the tensor, which then has its contents."""
        for one, _ in self.hollows_of(tensor):
            one.fill()


def _extent(tensor: torch.Tensor) -> int:
    """The bytes from the first element to the last."""
    last: int = sum((size - 1) * stride for size, stride in zip(tensor.size(), tensor.stride()))
    width: int = tensor.element_size()
    return (last + 1) * width
