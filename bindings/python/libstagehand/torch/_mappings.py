"""Tensors in memory that is mapped from files: loaders that map files leave weights there, without reading them."""

# mypy: disable-error-code="import-not-found,misc,no-untyped-call,unused-ignore"
from __future__ import annotations

from bisect import bisect_right
from collections.abc import Iterator
from typing import Any

import torch

from ._files import PackedTensor, TensorFiles
from ._memory import buffer_of
from ._plain_files import PlainMappings


class Mappings:
    """The parts of this process's memory that are private mappings of files, at the time when this object is made.

    safetensors maps files so, and transformers and diffusers keep its tensors as parameters. The bytes are streamed
    from the mapping itself. So a weight that the program has changed since is streamed with the change.
    """

    def __init__(self, files: TensorFiles | None) -> None:
        self._files = files
        self._plain = PlainMappings()
        self._starts: list[int] = []
        self._ends: list[int] = []
        for start, end in _private_files():
            if self._ends and self._ends[-1] == start:  # a protection may have divided a mapping
                self._ends[-1] = end
            else:
                self._starts.append(start)
                self._ends.append(end)

    def source_of(self, memory: torch.Tensor) -> Any:
        """Returns the memory as a buffer if it is mapped from a file, or None."""
        named = self._files.source_of(memory) if self._files else None
        if named is not None:
            return named
        return buffer_of(memory) if self.is_mapped(memory) else None

    def packed_of(self, memory: torch.Tensor) -> PackedTensor | None:
        return (self._files.packed_of(memory) if self._files else None) or self._plain.packed_of(memory)

    def read(self, tensor: torch.Tensor) -> None:
        if self._files:
            self._files.read(tensor)

    def is_mapped(self, memory: torch.Tensor) -> bool:
        if memory.device.type != "cpu" or not memory.numel():
            return False
        first = memory.data_ptr()
        at = bisect_right(self._starts, first) - 1
        return at >= 0 and first + memory.numel() * memory.element_size() <= self._ends[at]


def _private_files() -> Iterator[tuple[int, int]]:
    with open("/proc/self/maps", encoding="utf-8", errors="surrogateescape") as maps:
        for line in maps:
            span, rights, _, _, inode, *path = line.split(None, 5)
            # Memory that several processes share (/dev/shm) is no file to stream from. Trained weights are written back
            # to the mapping, so it must be writable.
            if inode != "0" and rights.startswith("rw") and rights[3] == "p" and path and path[0].startswith("/"):
                start, end = span.split("-")
                yield int(start, 16), int(end, 16)
