"""The device of a streamed model: the library's device and PyTorch's name of it."""

# mypy: disable-error-code="import-not-found,misc,no-untyped-call,unused-ignore"
from __future__ import annotations

from typing import TypeAlias

import torch

from .._device import Device
from .._errors import UsageError
from .._generated import DeviceFlag, DeviceKind, Status
from .._holders import only_memory_holds
from ._device_names import begin_gpu, library_name

AnyDevice: TypeAlias = "Device | str | int | torch.device"
"""A device of the library, a name of a device, the number of a GPU, or a device of PyTorch."""


def open_device(name: str, budget: int | None) -> Device:
    """Opens a device, with pages as small as they would be if `budget` were the budget of the device. A device that is
    open already keeps its pages.
    """
    if budget is not None:
        try:
            return _anew(Device(name, page_bytes=1 << max(0, (budget >> 10).bit_length() - 1)))
        except UsageError as error:
            if error.status != Status.ERROR_INVALID_ARGUMENT:
                raise
    return _anew(Device(name))


def _anew(device: Device) -> Device:
    """Forgets the budget of an earlier use of the device if only tensors over pinned memory are left of that use."""
    if only_memory_holds(device.name, besides=device) and not device.memory().runtime_count:
        device.set_budget(0)
    return device


def place_of(device: AnyDevice) -> torch.device:
    """Returns PyTorch's device. The library's device is not opened."""
    if isinstance(device, Device):
        return _place(device)
    kind, _, ordinal = library_name(device).partition(":")
    return torch.device("cuda", int(ordinal or 0)) if kind in ("cuda", "hip") else torch.device("cpu")


def _place(device: Device) -> torch.device:
    return torch.device("cpu") if device.kind == DeviceKind.HOST else torch.device("cuda", device.ordinal)


def device_of(device: AnyDevice, budget: int | None) -> tuple[Device, torch.device, bool]:
    """Returns the library's device, PyTorch's device, and whether this function has opened the device."""
    opened = not isinstance(device, Device)
    if not isinstance(device, Device):
        name = library_name(device)
        if name.startswith(("cuda", "hip")):
            begin_gpu(device)
        device = open_device(name, budget)
    if device.kind not in (DeviceKind.HOST, DeviceKind.CUDA, DeviceKind.ROCM):
        raise ValueError(f"PyTorch cannot compute on {device.name}: use a CUDA or HIP device, or the host")
    if not device.flags & DeviceFlag.FIXED_ADDRESSES:
        raise ValueError(
            f"{device.name} has no fixed addresses, because it cannot map memory by pages: "
            "tensors and autograd keep addresses, so PyTorch modules cannot be streamed to it"
        )
    return device, _place(device), opened
