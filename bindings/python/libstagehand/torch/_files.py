"""Tensors of safetensors files. The files are mapped, not loaded."""

# mypy: disable-error-code="import-not-found,misc,no-untyped-call,unused-ignore"
from __future__ import annotations

import json
import mmap
import os
import pathlib
from collections.abc import Iterable
from dataclasses import dataclass
from typing import Any, TypeAlias, Union

import torch

Files: TypeAlias = Union[str, "os.PathLike[str]", Iterable[Union[str, "os.PathLike[str]"]]]
"""A file, a folder with files, or several of these."""

_TYPES = {
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


@dataclass(frozen=True)
class _Entry:
    path: pathlib.Path
    map: mmap.mmap
    offset: int
    bytes: int
    type: str
    shape: tuple[int, ...]


class TensorFiles:
    """The tensors of files by name. The tensors that it makes share the pages of the files. Writes to them do not reach
    the files.
    """

    def __init__(self, files: Files) -> None:
        self.entries: dict[str, _Entry] = {}
        self._maps: list[tuple[int, memoryview]] = []
        for path in _paths(files):
            self._open(path)

    def _open(self, path: pathlib.Path) -> None:
        with open(path, "rb") as file:
            size = os.fstat(file.fileno()).st_size
            length = int.from_bytes(file.read(8), "little")
            if size < 8 or length > size - 8:
                raise ValueError(
                    f"{path} is not a safetensors file: its header would have {length} bytes, but the file has {size}"
                )
            try:
                header = json.loads(file.read(length))
                # The mapping is private: a write to its tensors does not reach the file.
                map = mmap.mmap(file.fileno(), 0, access=mmap.ACCESS_COPY)
                for name, entry in header.items():
                    if name != "__metadata__":
                        self._add(path, map, 8 + length, size, name, entry)
            except (ValueError, KeyError, TypeError, AttributeError) as error:
                raise ValueError(f"{path} is not a safetensors file: {error}") from error
        self._maps.append((_address(map), memoryview(map)))

    def _add(self, path: pathlib.Path, map: mmap.mmap, start: int, size: int, name: str, entry: dict[str, Any]) -> None:
        begin, end = entry["data_offsets"]
        if name in self.entries:
            raise ValueError(f"{name} is also in {self.entries[name].path}")
        if not 0 <= begin <= end <= size - start:
            raise ValueError(
                f"{name} has the byte range {begin} to {end}, but the file has {size - start} bytes of data"
            )
        self.entries[name] = _Entry(path, map, start + begin, end - begin, str(entry["dtype"]), tuple(entry["shape"]))

    def tensor(self, name: str, like: torch.Tensor) -> torch.Tensor:
        """Returns the tensor of that name. It must have the type and the shape of `like`."""
        entry = self.entries[name]
        kind = _TYPES.get(entry.type)
        if kind != like.dtype or entry.shape != tuple(like.shape):
            is_ = f"{entry.type.lower()} {list(entry.shape)}"
            wanted = f"{str(like.dtype)[6:]} {list(like.shape)}"
            raise ValueError(
                f"{name} is {is_} in {entry.path}, and {wanted} in the model: the type and the shape must be equal"
            )
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

    def source_of(self, memory: torch.Tensor) -> memoryview | None:
        """Returns the part of a mapped file that a tensor of bytes lies in, or None if the tensor lies in no file."""
        for address, view in self._maps:
            offset = memory.data_ptr() - address
            if 0 <= offset and offset + memory.numel() <= len(view):
                return view[offset : offset + memory.numel()]
        return None


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
