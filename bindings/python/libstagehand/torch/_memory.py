"""Tensors over device memory, and the bytes of tensors as sources for the library."""

# mypy: disable-error-code="import-not-found,misc,no-untyped-call,unused-ignore"
from __future__ import annotations

import ctypes
from typing import Any

import torch
import torch.utils.dlpack

from .. import _view
from .._native import ffi, lib

_new_capsule = _view._new_capsule
_LARGEST_ELEMENT = 16  # bytes


class Anchor:
    """The object that every tensor over device memory keeps alive, because DLPack needs one."""


def memory_tensor(address: int, bytes: int, device: torch.device, kind: int) -> torch.Tensor:
    """Makes a tensor of bytes at a device address. There need not be memory at the address yet: the tensor is made by
    DLPack, which does not ask the driver about the address.
    """
    made = lib.sh_py_export_bytes(id(anchor), address, bytes, kind, device.index or 0, False, False)
    if not made:
        raise MemoryError
    return torch.utils.dlpack.from_dlpack(
        _new_capsule(int(ffi.cast("uintptr_t", made)), b"dltensor", _view._capsule_delete)
    )


anchor = Anchor()


def strided(memory: torch.Tensor, offset: int, like: torch.Tensor) -> torch.Tensor:
    """Makes a tensor over the memory of a tensor of bytes. It begins at byte `offset`, and has the type, sizes and
    strides of `like`.
    """
    first = memory.storage_offset() + offset
    if first % like.element_size():
        raise ValueError(
            f"a tensor cannot begin at byte {first} of its memory: "
            f"that is not a multiple of the {like.element_size()} bytes of an element"
        )
    made = torch.empty(0, dtype=like.dtype, device=memory.device)
    return made.set_(memory.untyped_storage(), first // like.element_size(), like.size(), like.stride())


def lazily(made: torch.Tensor, like: torch.Tensor) -> torch.Tensor:
    """Conjugates and negates a tensor as lazily as another one is."""
    made = torch._conj(made) if like.is_conj() else made
    return torch._neg_view(made) if like.is_neg() else made


def byte_tensor(storage: torch.UntypedStorage, offset: int, bytes: int) -> torch.Tensor:
    """Returns a range of a storage as a tensor of bytes."""
    return torch.empty(0, dtype=torch.uint8, device=storage.device).set_(storage, offset, (bytes,), (1,))


def buffer_of(memory: torch.Tensor) -> Any:
    """Returns an object with the buffer interface over a host tensor of bytes. The object keeps the tensor alive."""
    made = (ctypes.c_ubyte * memory.numel()).from_address(memory.data_ptr())
    made.kept = memory  # type: ignore[attr-defined,unused-ignore]
    return made


def sealed(memory: torch.Tensor) -> torch.Tensor:
    """Returns the same host memory over a storage of its own. Code that moves or resizes that storage, as
    multiprocessing does, leaves the memory where it is.
    """
    first = int(memory.storage_offset())
    begin = first // _LARGEST_ELEMENT * _LARGEST_ELEMENT
    storage: torch.UntypedStorage = memory.untyped_storage()[begin : first + memory.numel()]  # type: ignore[assignment]
    return byte_tensor(storage, first - begin, memory.numel())


def placed_copy(tensor: torch.Tensor) -> torch.Tensor:
    """Returns a copy that lies in its storage as the tensor does in its own: code may read the storage by itself."""
    if not tensor.numel() or tensor.is_conj() or tensor.is_neg() or torch._debug_has_internal_overlap(tensor) == 1:
        return tensor.clone()
    memory = torch.empty(span_of(tensor)[1] // tensor.element_size(), dtype=tensor.dtype, device=tensor.device)
    made = memory.as_strided(tensor.size(), tensor.stride(), tensor.storage_offset())
    return made.copy_(tensor)


def span_of(tensor: torch.Tensor) -> tuple[int, int]:
    """Returns the first byte of its storage that a tensor covers, and the end."""
    last = sum((int(size) - 1) * int(stride) for size, stride in zip(tensor.size(), tensor.stride()))
    first = int(tensor.storage_offset())
    return first * tensor.element_size(), (first + last + 1) * tensor.element_size()
