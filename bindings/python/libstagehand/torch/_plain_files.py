"""Files of `stagehand pack`, unpacked for libraries that read plain files. What these map is streamed from the packed
files.
"""

# mypy: disable-error-code="import-not-found,misc,no-untyped-call,unused-ignore"
from __future__ import annotations

import errno
import json
import mmap
import os
import struct
import tempfile
import weakref
from bisect import bisect_right
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass
from typing import Any

import torch

from .._errors import Error
from .._sources import Mapped, unpack
from ._element_types import TYPES
from ._files import PackedTensor
from ._headers import File, Tensor, map_file
from ._memory import byte_tensor

_PAGE = mmap.PAGESIZE
_PART = 8 << 20  # of a file, which one thread writes at a time


@dataclass(frozen=True)
class _Tensor:
    """Where a tensor that was packed lies in the plain file, and what the packed file has of it."""

    text: str
    begin: int
    end: int
    packed: memoryview


class PlainFile:
    """A packed file as a plain one, without a name, in the folder for temporary files. The system may take its memory
    as that of any file.
    """

    def __init__(self, file: File) -> None:
        map = map_file(file)
        plain: dict[str, Any] = {"__metadata__": file.metadata} if file.metadata else {}
        places, end = [], 0
        # The widest elements come first, so that all of them are aligned.
        for one in sorted(file.tensors, key=lambda one: -_width(one)):
            plain[one.name] = {"dtype": one.type, "shape": one.shape, "data_offsets": [end, end + one.bytes]}
            places.append((one, map[one.offset : one.offset + one.file_bytes], end))
            end += one.bytes
        text = json.dumps(plain).encode()
        text += b" " * (-len(text) % 8)
        self._open(file.path, 8 + len(text) + end)
        self._write(struct.pack("<Q", len(text)) + text, 0)
        self._tensors: list[_Tensor] = []
        with ThreadPoolExecutor(len(os.sched_getaffinity(0))) as threads:
            begun = []
            for one, source, to in places:
                begin = 8 + len(text) + to
                if one.packed and one.bytes:
                    self._tensors.append(_Tensor(f"{one.name} in {file.path}", begin, begin + one.bytes, source))
                for at in range(0, one.bytes, _PART):
                    size = min(_PART, one.bytes - at)
                    if one.packed:
                        begun.append(threads.submit(self._unpack, self._tensors[-1], at, size))
                    else:
                        begun.append(threads.submit(self._write, source[at : at + size], begin + at))
            for done in begun:
                done.result()
        self._begins = [one.begin for one in self._tensors]
        _files[self._number] = self

    def _open(self, path: str, bytes: int) -> None:
        file = tempfile.TemporaryFile()  # noqa: SIM115 it is open as long as this object lives
        self.file, self._close = file.fileno(), weakref.finalize(self, file.close)
        try:
            os.posix_fallocate(self.file, 0, bytes)
        except OSError as error:
            if error.errno != errno.ENOSPC:
                raise
            raise OSError(
                error.errno,
                f"{tempfile.gettempdir()} has too little room for {path}, which takes {bytes} bytes unpacked: "
                "name another folder in TMPDIR",
            ) from None
        status = os.fstat(self.file)
        self._number = (status.st_dev, status.st_ino)

    def _unpack(self, tensor: _Tensor, at: int, bytes: int) -> None:
        part = bytearray(bytes)
        try:
            unpack(Mapped(tensor.packed), part, at)
        except Error as error:
            raise type(error)(error.status, f"{tensor.text}: {error.text}") from None
        self._write(part, tensor.begin + at)

    def _write(self, part: bytes | bytearray | memoryview, at: int) -> None:
        left = memoryview(part)
        while left:
            done = os.pwrite(self.file, left, at)
            left, at = left[done:], at + done

    def tensor_with(self, begin: int, end: int) -> _Tensor | None:
        """The tensor that has all of this part of the file and was packed, or None."""
        at = bisect_right(self._begins, begin) - 1
        return self._tensors[at] if at >= 0 and end <= self._tensors[at].end else None


def _width(tensor: Tensor) -> int:
    kind = TYPES.get(tensor.type)
    return int(kind.itemsize) if kind else 1


_files: weakref.WeakValueDictionary[tuple[int, int], PlainFile] = weakref.WeakValueDictionary()


class PlainMappings:
    """Where this process has mapped plain files, at the time when this object is made."""

    def __init__(self) -> None:
        self._spans: list[tuple[int, int, int, PlainFile]] = []  # begin, end, where in the file
        if _files:
            self._find()
        self._starts = [start for start, *_ in self._spans]

    def _find(self) -> None:
        with open("/proc/self/maps", encoding="utf-8", errors="surrogateescape") as maps:
            for line in maps:
                span, rights, offset, device, inode, *_ = line.split(None, 5)
                major, minor = (int(part, 16) for part in device.split(":"))
                file = _files.get((os.makedev(major, minor), int(inode)))
                if file is not None and rights[3] == "p":
                    start, end = (int(part, 16) for part in span.split("-"))
                    self._spans.append((start, end, int(offset, 16), file))

    def packed_of(self, memory: torch.Tensor) -> PackedTensor | None:
        """Returns the packed tensor that has the contents of the tensor of bytes, or None. A change that the program
        has made in the mapping is not in the file.
        """
        if not self._spans or memory.device.type != "cpu" or not memory.numel():
            return None
        first = memory.data_ptr()
        at = bisect_right(self._starts, first) - 1
        if at < 0 or first + memory.numel() > self._spans[at][1]:
            return None
        start, _, offset, file = self._spans[at]
        begin = offset + first - start
        tensor = file.tensor_with(begin, begin + memory.numel())
        if tensor is None or _is_changed(first, memory.numel()):
            return None
        storage, whole_begin = memory.untyped_storage(), int(memory.storage_offset()) - (begin - tensor.begin)
        if whole_begin < 0 or whole_begin + tensor.end - tensor.begin > storage.nbytes():
            return None  # a part of the tensor has a storage of its own
        whole = byte_tensor(storage, whole_begin, tensor.end - tensor.begin)
        return PackedTensor(tensor.packed, whole, tensor.text, read=True)


def _is_changed(address: int, bytes: int) -> bool:
    """Whether a page of a private mapping is not the file's any more. The kernel's Documentation/admin-guide/mm/
    pagemap.rst describes the bits.
    """
    first, end = address // _PAGE, -(-(address + bytes) // _PAGE)
    try:
        with open("/proc/self/pagemap", "rb", buffering=0) as pages:
            pages.seek(8 * first)
            words = b"".join(iter(lambda: pages.read(min(8 * end - pages.tell(), 1 << 20)), b""))
    except OSError:
        return True  # nobody can tell
    if len(words) != 8 * (end - first):
        return True
    for (word,) in struct.iter_unpack("<Q", words):
        present, swapped, of_file = word >> 63 & 1, word >> 62 & 1, word >> 61 & 1
        if swapped or (present and not of_file):
            return True
    return False
