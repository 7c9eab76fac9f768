"""Saved tensors whose bytes may still be written.

Autograd saves the arguments of an operation while it makes the node, before the kernel runs. Some kernels write to
arguments that they save: rrelu to its noise, a norm to its statistics. No version tells of it. So a copy of such a
tensor has to wait until the kernel is queued: until the thread makes its next node, or until the forward ends.

A tensor that requires a gradient needs no wait, because autograd notices who writes to it. What compiled graphs save
needs none either: autograd saves it when the graph has run. It would keep the tensors of one more block on the device.
"""

# mypy: disable-error-code="import-not-found,misc,no-untyped-call,unused-ignore"
from __future__ import annotations

import sys
import threading
import weakref
from types import FrameType
from typing import TYPE_CHECKING, Any

import torch

if TYPE_CHECKING:
    from ._spill_saved import Saved

_next_node: Any = torch._C._autograd._get_sequence_nr  # the number of the next node that this thread makes
_BETWEEN = (__package__, "torch._dynamo")  # what lies between the caller of an operation and here
_RUN_GRAPHS = ("torch._functorch._aot_autograd", "torch.autograd.function")


def may_be_written(tensor: torch.Tensor) -> bool:
    """Whether the operation that saves a tensor, now, may write to it later."""
    return not tensor.requires_grad and not _of_graph()


def _of_graph() -> bool:
    """Whether autograd saves for a compiled graph that has run. Older versions of PyTorch also tell functions of the
    program.
    """
    frame: FrameType | None = sys._getframe(1)
    while (name := _module(frame)).startswith(_BETWEEN):
        frame = frame and frame.f_back
    return name.startswith(_RUN_GRAPHS)


def _module(frame: FrameType | None) -> str:
    return "" if frame is None else str(frame.f_globals.get("__name__"))


class Pending(threading.local):
    """The saved tensors of a thread that wait. A tensor that nobody needs any more does not wait."""

    def __init__(self) -> None:
        self._node = 0  # the number of the node after the one that has saved them
        self._waiting: list[tuple[weakref.ref[Saved], int]] = []

    def add(self, saved: Saved, flags: int) -> None:
        self._node = _next_node()
        self._waiting.append((weakref.ref(saved), flags))

    def node_is_made(self) -> None:
        """The thread makes a node. The kernels of the nodes before are queued."""
        if self._waiting and self._node != _next_node():
            self.forward_ends()

    def forward_ends(self) -> None:
        """Lets all tensors leave."""
        waiting, self._waiting = self._waiting, []
        for found, flags in waiting:
            if (saved := found()) is not None:
                saved.on.written(saved, flags)

    def stay(self) -> None:
        """Has all tensors stay where they are."""
        self._waiting = []

    def bytes(self, on: object) -> int:
        waiting = [saved for found, _ in self._waiting if (saved := found()) is not None]
        return sum(saved.bytes for saved in waiting if saved.on is on)
