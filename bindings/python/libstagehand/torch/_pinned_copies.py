"""Copies of weights in pinned memory. They keep the device open as long as tensors over them live."""

from __future__ import annotations

from .._device import Device
from .._holders import note
from .._host import PinnedMemory


class PinnedCopies:
    """The pinned memory of one streamed model. The memory belongs to the library, so the device cannot close before it
    is freed. A state_dict() that was read while streaming has tensors over it.
    """

    def __init__(self, model: str) -> None:
        self._model = model
        self.ended = False  # whether streaming has ended, so that only tensors of the user keep the memory

    def allocate(self, device: Device, bytes: int) -> PinnedMemory:
        memory = PinnedMemory(device, bytes)
        note(memory._handle, device.name, self._told, uses_budget=False)
        return memory

    def _told(self) -> str | None:
        if not self.ended:
            return None  # the streamed model is told of
        return (
            f"tensors of a state_dict() of {self._model}, or other reads of its weights, that were made while streaming "
            "(they are over pinned copies of weights, so clone() what you keep)"
        )
