"""Tensors over device memory, and bytes of tensors for the library."""
# mypy: disable-error-code="import-not-found,misc,no-untyped-call,unused-ignore"
from __future__ import annotations

import ctypes
from typing import Any

import torch
import torch.utils.dlpack

from .. import _view
from .._native import ffi, lib

_new_capsule = _view._new_capsule


class Anchor:
    """What a tensor over device memory keeps: something to count."""


def memory_tensor(address: int, bytes: int, device: torch.device, backend: str) -> torch.Tensor:
    """A tensor of bytes at a device address, behind which there need not be memory yet. By DLPack, which does not ask the driver about it."""
    kind = _view._DLPACK_TYPES[backend]
    made = lib.sh_py_export_bytes(id(anchor), address, bytes, kind, device.index or 0, False, False)
    if not made:
        raise MemoryError
    return torch.utils.dlpack.from_dlpack(_new_capsule(int(ffi.cast("uintptr_t", made)), b"dltensor", _view._capsule_delete))


anchor = Anchor()


def strided(memory: torch.Tensor, offset: int, like: torch.Tensor) -> torch.Tensor:
    """A tensor over the memory of a tensor of bytes, from byte `offset` of it on, with another's type, sizes and strides."""
    first = memory.storage_offset() + offset
    if first % like.element_size():
        raise ValueError(f"it begins at byte {first} of its memory, which is no multiple of its elements' {like.element_size()}")
    made = torch.empty(0, dtype=like.dtype, device=memory.device)
    return made.set_(memory.untyped_storage(), first // like.element_size(), like.size(), like.stride())


def byte_tensor(storage: torch.UntypedStorage, offset: int, bytes: int) -> torch.Tensor:
    """A range of a storage as a tensor of bytes."""
    return torch.empty(0, dtype=torch.uint8, device=storage.device).set_(storage, offset, (bytes,), (1,))


def buffer_of(memory: torch.Tensor) -> Any:
    """A tensor of bytes of the host as an object with the buffer interface, which keeps it."""
    made = (ctypes.c_ubyte * memory.numel()).from_address(memory.data_ptr())
    made.kept = memory  # type: ignore[attr-defined,unused-ignore]
    return made
