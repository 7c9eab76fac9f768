"""Tensors of safetensors files. The files are mapped, not loaded."""

# mypy: disable-error-code="import-not-found,misc,no-untyped-call,unused-ignore"
from __future__ import annotations

import json
import mmap
import os
import pathlib
import threading
from bisect import bisect_right
from collections.abc import Iterable
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass
from typing import Any, TypeAlias, Union

import torch

from .._errors import Error
from .._sources import Mapped, Packed, unpack
from ._memory import buffer_of

Files: TypeAlias = Union[str, "os.PathLike[str]", Iterable[Union[str, "os.PathLike[str]"]]]
"""A file, a folder with files, or several of these."""

TYPES = {
    "BOOL": torch.bool,
    "U8": torch.uint8,
    "I8": torch.int8,
    "I16": torch.int16,
    "I32": torch.int32,
    "I64": torch.int64,
    "U16": torch.uint16,
    "U32": torch.uint32,
    "U64": torch.uint64,
    "F16": torch.float16,
    "BF16": torch.bfloat16,
    "F32": torch.float32,
    "F64": torch.float64,
    "F8_E4M3": torch.float8_e4m3fn,
    "F8_E5M2": torch.float8_e5m2,
    "C64": torch.complex64,
}


_DESCRIPTION = "stagehand.packed"  # of the packed tensors, in the metadata of a file of `stagehand pack`
_PART = 8 << 20  # of the contents, which one thread unpacks at a time


@dataclass(frozen=True)
class _Entry:
    path: pathlib.Path
    map: mmap.mmap
    offset: int
    bytes: int  # in the file
    type: str
    shape: tuple[int, ...]
    packed: bool = False


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

    def source(self, offset: int, bytes: int) -> Packed:
        return Packed(Mapped(self._packed), bytes, offset)

    def read(self) -> None:
        with self._lock:
            if self._read:
                return
            contents = memoryview(buffer_of(self.memory)).cast("B")
            parts = [(contents[at : at + _PART], at) for at in range(0, len(contents), _PART)]
            try:
                with ThreadPoolExecutor(len(os.sched_getaffinity(0))) as threads:
                    for done in [threads.submit(unpack, Mapped(self._packed), part, at) for part, at in parts]:
                        done.result()
            except Error as error:
                raise type(error)(error.status, f"{self._text}: {error.text}") from None
            self._read = True


class TensorFiles:
    """The tensors of files by name. The tensors that it makes share the pages of the files, except packed ones. Writes
    to them do not reach the files.
    """

    def __init__(self, files: Files) -> None:
        self.entries: dict[str, _Entry] = {}
        self._maps: list[tuple[int, memoryview]] = []
        self._packed: list[PackedTensor] = []  # by their addresses
        self._starts: list[int] = []  # which are these
        for path in _paths(files):
            self._open(path)

    def _open(self, path: pathlib.Path) -> None:
        with open(path, "rb") as file:
            size = os.fstat(file.fileno()).st_size
            try:
                start, header = read_header(path)
                # The mapping is private: a write to its tensors does not reach the file.
                map = mmap.mmap(file.fileno(), 0, access=mmap.ACCESS_COPY)
                packed = packed_tensors(header)
                for name, entry in header.items():
                    if name != "__metadata__":
                        self._add(path, map, start, size, name, entry, packed.get(name))
            except (ValueError, KeyError, TypeError, AttributeError) as error:
                raise ValueError(f"{path} is not a safetensors file: {error}") from error
        self._maps.append((_address(map), memoryview(map)))

    def _add(
        self,
        path: pathlib.Path,
        map: mmap.mmap,
        start: int,
        size: int,
        name: str,
        entry: dict[str, Any],
        packed: dict[str, Any] | None,
    ) -> None:
        begin, end = entry["data_offsets"]
        if name in self.entries:
            raise ValueError(f"{name} is also in {self.entries[name].path}")
        if not 0 <= begin <= end <= size - start:
            raise ValueError(
                f"{name} has the byte range {begin} to {end}, but the file has {size - start} bytes of data"
            )
        was = entry if packed is None else packed
        type, shape = str(was["dtype"]), tuple(was["shape"])
        self.entries[name] = _Entry(path, map, start + begin, end - begin, type, shape, packed is not None)

    def tensor(self, name: str, like: torch.Tensor) -> torch.Tensor:
        """Returns the tensor of that name. It must have the type and the shape of `like`."""
        entry = self.entries[name]
        kind = TYPES.get(entry.type)
        if kind != like.dtype or entry.shape != tuple(like.shape):
            is_ = f"{entry.type.lower()} {list(entry.shape)}"
            wanted = f"{str(like.dtype)[6:]} {list(like.shape)}"
            raise ValueError(
                f"{name} is {is_} in {entry.path}, and {wanted} in the model: the type and the shape must be equal"
            )
        if entry.packed:
            return self._packed_tensor(name, entry, like)
        if entry.bytes != like.numel() * like.element_size():
            raise ValueError(
                f"{name} has {entry.bytes} bytes in {entry.path}, and {like.numel() * like.element_size()} in the model"
            )
        if not entry.bytes:
            return torch.empty(entry.shape, dtype=kind)
        raw = torch.frombuffer(entry.map, dtype=torch.uint8, count=entry.bytes, offset=entry.offset)
        if entry.offset % like.element_size():
            return raw.clone().view(kind).reshape(entry.shape)  # files of other programs may not align tensors enough
        return raw.view(kind).reshape(entry.shape)

    def _packed_tensor(self, name: str, entry: _Entry, like: torch.Tensor) -> torch.Tensor:
        # The system gives this memory when it is written to.
        memory = torch.empty(like.numel() * like.element_size(), dtype=torch.uint8)
        view = memoryview(entry.map)[entry.offset : entry.offset + entry.bytes]
        at = bisect_right(self._starts, memory.data_ptr())
        self._starts.insert(at, memory.data_ptr())
        self._packed.insert(at, PackedTensor(view, memory, f"{name} in {entry.path}"))
        return memory.view(like.dtype).reshape(entry.shape)

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
        for address, view in self._maps:
            offset = memory.data_ptr() - address
            if 0 <= offset and offset + memory.numel() <= len(view):
                return view[offset : offset + memory.numel()]
        return None


def packed_files(folder: str | os.PathLike[str]) -> list[pathlib.Path]:
    """Returns the files with packed tensors in a folder, and in the folders in it."""
    path = pathlib.Path(folder)
    found = []
    for file in sorted([*path.glob("*.safetensors"), *path.glob("*/*.safetensors")]):
        try:
            if packed_tensors(read_header(file)[1]):
                found.append(file)
        except (OSError, ValueError, KeyError, TypeError, AttributeError):
            continue  # the library of the model says what is wrong
    return found


def read_header(path: pathlib.Path) -> tuple[int, dict[str, Any]]:
    """Returns the place of the data in a safetensors file, and the header."""
    with open(path, "rb") as file:
        size = os.fstat(file.fileno()).st_size
        length = int.from_bytes(file.read(8), "little")
        if size < 8 or length > size - 8:
            raise ValueError(f"its header would have {length} bytes, but the file has {size}")
        header = json.loads(file.read(length))
        if not isinstance(header, dict):
            raise ValueError("its header is no object")
        return 8 + length, header


def packed_tensors(header: dict[str, Any]) -> dict[str, dict[str, Any]]:
    """Returns the types and shapes of the tensors that a file of `stagehand pack` has packed, by name."""
    text = header.get("__metadata__", {}).get(_DESCRIPTION)
    if text is None:
        return {}
    description = json.loads(text)
    if description["version"] != 1:
        raise ValueError(f"version {description['version']} of packed tensors is not known")
    return dict(description["tensors"])


def _address(map: mmap.mmap) -> int:
    return int(torch.frombuffer(map, dtype=torch.uint8, count=1).data_ptr())


def _paths(files: Files) -> list[pathlib.Path]:
    given = [files] if isinstance(files, (str, os.PathLike)) else list(files)
    paths: list[pathlib.Path] = []
    if not given:
        raise ValueError("files= is empty: name at least one file or folder")
    for path in map(pathlib.Path, given):
        inside = sorted(path.glob("*.safetensors")) if path.is_dir() else [path]
        if not inside:
            raise FileNotFoundError(f"no .safetensors file in {path}")
        paths += inside
    return paths
