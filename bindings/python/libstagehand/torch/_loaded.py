"""Packed tensors of a model that another library has loaded from plain files (_plain_files.py). The model has them on
the meta device, and streaming takes them from here.
"""

# mypy: disable-error-code="import-not-found,misc,no-untyped-call,unused-ignore"
from __future__ import annotations

import weakref
from dataclasses import dataclass
from pathlib import Path

import torch
from torch import nn

from ._files import TensorFiles
from ._memory import strided
from ._plain_files import Hollow, PlainMappings
from ._subclasses import is_special, parts
from ._weights import find_tensors, put_into


@dataclass(frozen=True)
class _Part:
    packed: Hollow
    offset: int  # in bytes

    @property
    def path(self) -> Path:
        return self.packed.path


class LoadedTensors(TensorFiles):
    """They have the names that the model gives them, which need not be those in the files."""

    def __init__(self) -> None:
        super().__init__(None)
        self._parts: dict[str, _Part] = {}
        self._memories: dict[Hollow, torch.Tensor] = {}

    def add(self, name: str, packed: Hollow, offset: int) -> None:
        self._parts[name] = _Part(packed, offset)
        self.entries[name] = self._parts[name]

    def tensor(self, name: str, like: torch.Tensor) -> torch.Tensor:
        packed, offset = self._parts[name].packed, self._parts[name].offset
        memory = self._memories.get(packed)
        if memory is None:
            memory = self._memory_for(packed.source, packed.end - packed.begin, packed.text)
            self._memories[packed] = memory
        return strided(memory, offset, like)


_loaded: weakref.WeakKeyDictionary[nn.Module, LoadedTensors] = weakref.WeakKeyDictionary()


def loaded_tensors(module: nn.Module) -> LoadedTensors | None:
    """What the module has on the meta device because of leave_packed(), or None."""
    return _loaded.get(module)


def leave_packed(module: nn.Module, mappings: PlainMappings) -> None:
    """Puts tensors whose contents are still packed on the meta device."""
    loaded = LoadedTensors()
    for one in find_tensors(module):
        if is_special(one.tensor):
            _fill(one.tensor, mappings)
            continue
        part = mappings.part_of(one.tensor)
        if part is None:
            continue
        loaded.add(one.names[0], *part)
        made = torch.empty_strided(one.tensor.size(), one.tensor.stride(), dtype=one.tensor.dtype, device="meta")
        if one.is_parameter:
            made = nn.Parameter(made, requires_grad=one.tensor.requires_grad)
        put_into(one.keys, one.tensor, made)
    if loaded.entries:
        _loaded[module] = loaded


def fill(module: nn.Module, mappings: PlainMappings) -> None:
    """Unpacks the module's tensors to host memory."""
    for one in find_tensors(module):
        _fill(one.tensor, mappings)


def _fill(tensor: torch.Tensor, mappings: PlainMappings) -> None:
    for _, part in parts(tensor, ""):
        mappings.fill(part)
