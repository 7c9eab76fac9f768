"""Saved tensors with tickets, and the memory that they come back to."""

# mypy: disable-error-code="import-not-found,misc,no-untyped-call,unused-ignore"
from __future__ import annotations

from typing import TYPE_CHECKING, Any

import torch

from .._native import ffi
from .._spiller import release_ticket
from ._kept import detached
from ._spill_tensors import Contents

if TYPE_CHECKING:
    from ._spill_device import SpilledDevice

MOST_NAMED = 16  # the most tickets that one call collects
_OUT = ffi.typeof(f"uint64_t[{MOST_NAMED + 2}]")
_new = ffi.new
# Memory that a copy may use for ever, because the driver has failed.
lost: list[object] = []


class Saved:
    """A saved tensor. It has a ticket once it may leave. `tensor` is None while only host memory has the bytes."""

    __slots__ = (
        "on",
        "held",
        "tensor",
        "version",
        "changed",
        "size",
        "stride",
        "offset",
        "dtype",
        "bytes",
        "begin",
        "contents",
        "stream",
        "__weakref__",
    )

    def __init__(self, on: SpilledDevice, tensor: torch.Tensor, contents: Contents, stream: int) -> None:
        self.on = on
        self.held = _new(_OUT)  # the ticket is its first number
        self.tensor: torch.Tensor | None = detached(tensor)
        self.version = contents.version
        self.changed: int | None = None  # the version of the tensor when it left, if it was changed while it left
        self.size = tensor.size()
        self.stride = tensor.stride()
        self.offset = tensor.storage_offset()
        self.dtype = tensor.dtype
        self.bytes = tensor.nbytes  # of the elements
        self.begin = tensor.data_ptr()  # the address of the first element
        self.contents = contents
        self.stream = stream  # that the tensor was saved on
        contents.count += 1

    def __del__(self, release: Any = release_ticket) -> None:
        # Garbage may be collected on any thread, at any time, also when the interpreter ends.
        held = getattr(self, "held", None)
        if held is None:
            return
        on, number, contents = self.on, held[0], self.contents
        if number:
            on.saved.pop(number, None)
            if self.tensor is not None:
                on.forget_used(self.tensor)
            memory = self.tensor, *contents.prefetched.values()
            if not release(on.spiller, number, memory):  # before the memory goes
                lost.append(memory)
        contents.unused()


class Restored:
    """A tensor that has come back, for other saved tensors with the same contents."""

    __slots__ = ("tensor", "version", "copy", "stream", "shift")

    def __init__(self, tensor: torch.Tensor, copy: int, stream: int, shift: int) -> None:
        self.tensor = tensor
        self.version = tensor._version
        self.copy = copy
        self.stream = stream
        self.shift = shift  # where the copy begins in the storage of the tensor


class Prefetched:
    """Memory that a copy was prefetched to. It is the copy's until a restore takes it, or until the copy's last ticket
    has ended.
    """

    __slots__ = ("memory", "shift", "stream", "ticket", "offset", "has_begun")

    def __init__(self, memory: torch.Tensor, shift: int, stream: int, ticket: int, offset: int) -> None:
        self.memory = memory
        self.shift = shift  # where the copy begins in the memory
        self.stream = stream
        self.ticket = ticket  # that was named
        self.offset = offset  # of its tensor in the copy
        # Another thread may restore the tensor before the copy begins. The copy writes to this memory even then, so
        # no restore may take the memory earlier.
        self.has_begun = False
