"""Tensors of safetensors files. The files are mapped, not loaded."""

# mypy: disable-error-code="import-not-found,misc,no-untyped-call,unused-ignore"
from __future__ import annotations

import os
import pathlib
import threading
from bisect import bisect_right
from collections.abc import Iterable, Iterator
from concurrent.futures import ThreadPoolExecutor
from typing import TypeAlias, Union

import torch

from .._errors import Error
from .._sources import Mapped, Packed, Source, unpack
from ._element_types import TYPES, shape_in_torch
from ._headers import File, Tensor, map_file, read_headers
from ._memory import buffer_of

Files: TypeAlias = Union[str, "os.PathLike[str]", Iterable[Union[str, "os.PathLike[str]"]]]
"""A file, a shard index, a folder with files, or several of these."""

_PART = 8 << 20  # of the contents, which one thread unpacks at a time


class PackedTensor:
    """The memory of a tensor that a file has packed. The memory has the contents once somebody has asked for them:
    streaming reads the file, so most models need no memory for contents on the host. `read`: it has them already.
    """

    def __init__(self, packed: memoryview, memory: torch.Tensor, text: str, read: bool = False) -> None:
        self.memory = memory
        self._packed = packed
        self._text = text
        self._lock = threading.Lock()
        self._read = read

    def sources(self, offset: int, bytes: int) -> Iterator[tuple[Source, int]]:
        """Yields what the files have of a part, and where that begins in the part."""
        yield Packed(Mapped(self._packed), bytes, offset), 0

    def read(self) -> None:
        with self._lock:
            if not self._read:
                self._fill()
                self._read = True

    def left(self, made: torch.Tensor, before: torch.Tensor) -> torch.Tensor:
        """Returns what a module gets when streaming ends, which had `before` and then `made`."""
        return before

    def _fill(self) -> None:
        contents = memoryview(buffer_of(self.memory)).cast("B")
        parts = [(contents[at : at + _PART], at) for at in range(0, len(contents), _PART)]
        try:
            with ThreadPoolExecutor(len(os.sched_getaffinity(0))) as threads:
                for done in [threads.submit(unpack, Mapped(self._packed), part, at) for part, at in parts]:
                    done.result()
        except Error as error:
            raise type(error)(error.status, f"{self._text}: {error.text}") from None


class TensorFiles:
    """The tensors of files by name. The tensors that it makes share the pages of the files, except packed ones. Writes
    to them do not reach the files.
    """

    def __init__(self, files: Files | None) -> None:
        given = [files] if isinstance(files, (str, os.PathLike)) else list(files or ())
        if not given and files is not None:
            raise ValueError("files= is empty: name at least one file or folder")
        self.entries: dict[str, Tensor] = {}
        self._maps: dict[str, memoryview] = {}  # by the paths of the files
        self._spans: list[tuple[int, memoryview]] = []  # where they are
        self._packed: list[PackedTensor] = []  # by their addresses
        self._starts: list[int] = []  # which are these
        for file in read_headers(given) if given else ():
            map = self._maps[file.path] = map_file(file, writable=True)
            self._spans.append((_address(map), map))
            self.entries.update((one.name, one) for one in file.tensors)

    def tensor(self, name: str, like: torch.Tensor) -> torch.Tensor:
        """Returns the tensor of that name. It must have the type and the shape of `like`."""
        entry = self.entries[name]
        kind = TYPES.get(entry.type)
        if kind is None:
            raise ValueError(f"{name} is {entry.type} in {entry.path}, and this PyTorch has no such type")
        shape = shape_in_torch(entry)
        if kind != like.dtype or shape != tuple(like.shape):
            is_ = f"{entry.type.lower()} {list(entry.shape if shape is None else shape)}"
            wanted = f"{str(like.dtype)[6:]} {list(like.shape)}"
            raise ValueError(
                f"{name} is {is_} in {entry.path}, and {wanted} in the model: the type and the shape must be equal"
            )
        if entry.packed:
            return self._packed_tensor(name, entry, like)
        if not entry.bytes:
            return torch.empty(shape, dtype=kind)
        map = self._maps[entry.path]
        raw = torch.frombuffer(map, dtype=torch.uint8, count=entry.bytes, offset=entry.offset)
        if entry.offset % like.element_size():
            raw = raw.clone()  # files of other programs may not align tensors enough
        return raw.view(kind).reshape(shape)

    def _packed_tensor(self, name: str, entry: Tensor, like: torch.Tensor) -> torch.Tensor:
        view = self._maps[entry.path][entry.offset : entry.offset + entry.file_bytes]
        return self._over(PackedTensor(view, untouched(like), f"{name} in {entry.path}"), like)

    def _over(self, packed: PackedTensor, like: torch.Tensor) -> torch.Tensor:
        memory = packed.memory
        at = bisect_right(self._starts, memory.data_ptr())
        self._starts.insert(at, memory.data_ptr())
        self._packed.insert(at, packed)
        return memory.view(like.dtype).reshape(like.shape)

    def refuse_different(self, names: list[str]) -> None:
        """Raises an error if tensors that are one tensor of the model are not equal in the files."""
        first, *others = (self.entries[name] for name in names)
        for other in others:
            alike = (other.type, other.shape, other.packed) == (first.type, first.shape, first.packed)
            if not alike or not torch.equal(self._stored(other), self._stored(first)):
                raise ValueError(
                    f"{first.name} in {first.path} and {other.name} in {other.path} differ, and are one tensor in the "
                    "model: give the module a tensor for each"
                )

    def _stored(self, entry: Tensor) -> torch.Tensor:
        if not entry.file_bytes:
            return torch.empty(0, dtype=torch.uint8)
        map = self._maps[entry.path]
        return torch.frombuffer(map, dtype=torch.uint8, count=entry.file_bytes, offset=entry.offset)

    def packed_of(self, memory: torch.Tensor) -> PackedTensor | None:
        """Returns the packed tensor whose memory has the tensor of bytes, or None."""
        first, end = memory.data_ptr(), memory.data_ptr() + memory.numel() * memory.element_size()
        at = bisect_right(self._starts, first) - 1
        fits = at >= 0 and end <= self._starts[at] + self._packed[at].memory.numel()
        return self._packed[at] if fits else None

    def read(self, tensor: torch.Tensor) -> None:
        """Unpacks the tensor if a file has it packed, and nobody has read it yet."""
        packed = self.packed_of(tensor) if tensor.device.type == "cpu" and tensor.numel() else None
        if packed is not None:
            packed.read()

    def source_of(self, memory: torch.Tensor) -> memoryview | None:
        """Returns the part of a mapped file that a tensor of bytes lies in, or None if the tensor lies in no file."""
        for address, view in self._spans:
            offset = memory.data_ptr() - address
            if 0 <= offset and offset + memory.numel() <= len(view):
                return view[offset : offset + memory.numel()]
        return None


def untouched(like: torch.Tensor) -> torch.Tensor:
    """Memory for the contents of a tensor. The system gives it when it is written to."""
    return torch.empty(like.numel() * like.element_size(), dtype=torch.uint8)


def packed_files(folder: str | os.PathLike[str]) -> tuple[list[File], list[Exception]]:
    """Returns the files with packed tensors in a folder, and in the folders in it, and why other files were refused."""
    path = pathlib.Path(folder)
    found: list[File] = []
    refused: list[Exception] = []
    for name in sorted([*path.glob("*.safetensors"), *path.glob("*/*.safetensors")]):
        try:
            found += [file for file in read_headers([name]) if any(one.packed for one in file.tensors)]
        except (OSError, ValueError) as error:
            refused.append(error)  # which the library of the model may not need
    return found, refused


def _address(map: memoryview) -> int:
    return int(torch.frombuffer(map, dtype=torch.uint8, count=1).data_ptr())
