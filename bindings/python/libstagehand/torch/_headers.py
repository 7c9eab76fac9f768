"""The tensors of safetensors files, as the headers of the files describe them."""

from __future__ import annotations

import os
from collections.abc import Iterable
from dataclasses import dataclass
from typing import Any

from ._reader import ffi, lib


@dataclass(frozen=True)
class Tensor:
    name: str
    type: str  # the format's own word; of a packed tensor, what it was
    shape: tuple[int, ...]  # in elements
    path: str  # of its file
    offset: int  # in the file
    file_bytes: int
    bytes: int  # once it is unpacked
    packed: bool


@dataclass(frozen=True)
class File:
    path: str
    bytes: int
    stamp: tuple[int, int, int, int]  # device, inode, bytes and last change, when the header was read
    metadata: dict[str, str]  # without what `stagehand pack` has added
    tensors: list[Tensor]


def read_headers(paths: Iterable[str | os.PathLike[str]]) -> list[File]:
    """Reads the headers of the files that the paths name: of files, shard indexes and folders. The reader chooses the
    files of a folder, and refuses files that are not as the format says.
    """
    encoded = [os.fsencode(path) for path in paths]
    for path in encoded:
        if b"\0" in path:  # where the name would end for the reader
            raise ValueError(f"{os.fsdecode(path)!r}: the name holds a NUL byte")
    names = [ffi.new("char[]", path) for path in encoded]
    reading = lib.model_open(ffi.new("const char *[]", names), len(names))
    if not reading:
        raise MemoryError
    try:
        number = ffi.new("int32_t *")
        error = lib.model_error(reading, number)
        if error:
            text = ffi.string(error).decode()
            raise OSError(number[0], text) if number[0] else ValueError(text)
        return _files(reading)
    finally:
        lib.model_close(reading)


def map_file(file: File, writable: bool = False) -> memoryview:
    """Maps a whole file privately: a write to the memory does not reach the file. Keeps no descriptor: a process may
    have more files than descriptors. The mapping ends with the last object that uses its memory.
    """
    descriptor = os.open(file.path, os.O_RDONLY | os.O_CLOEXEC | os.O_NONBLOCK)
    try:
        found = os.fstat(descriptor)
        if (found.st_dev, found.st_ino, found.st_size, found.st_mtime_ns) != file.stamp:
            raise ValueError(f"{file.path} was changed, or is another file, since its header was read: try again")
        number = ffi.new("int32_t *")
        mapping = lib.model_map(descriptor, file.bytes, writable, number)
    finally:
        os.close(descriptor)
    if not mapping:
        raise OSError(number[0], f"cannot be mapped: {os.strerror(number[0])}", file.path)
    owned = ffi.gc(mapping, lambda ended: lib.model_unmap(ended, file.bytes))
    return memoryview(ffi.buffer(owned, file.bytes))


def _files(reading: Any) -> list[File]:
    count = ffi.new("uint64_t *")
    files = []
    of = lib.model_files(reading, count)
    for file in ffi.unpack(of, count[0]) if count[0] else []:
        facts = ffi.unpack(file.facts, file.fact_count) if file.fact_count else []
        metadata = {_bytes(fact.key).decode(): _bytes(fact.value).decode() for fact in facts}
        stamp = (file.device, file.inode, file.bytes, file.changed_ns)
        files.append(File(os.fsdecode(_bytes(file.path)), file.bytes, stamp, metadata, []))
    of = lib.model_tensors(reading, count)
    for one in ffi.unpack(of, count[0]) if count[0] else []:
        file = files[one.file]
        shape = tuple(ffi.unpack(one.shape, one.dimensions)) if one.dimensions else ()
        name, type = _bytes(one.name).decode(), _bytes(one.type).decode()
        file.tensors.append(
            Tensor(name, type, shape, file.path, one.offset, one.file_bytes, one.bytes, bool(one.packed))
        )
    return files


def _bytes(text: Any) -> bytes:
    return ffi.buffer(text.data, text.bytes)[:] if text.bytes else b""
