"""The device of a streamed model, as the library and as PyTorch know it."""
# mypy: disable-error-code="import-not-found,misc,no-untyped-call,unused-ignore"
from __future__ import annotations

import torch

from .._device import Device
from .._errors import UsageError
from .._generated import DeviceFlag, Status


def open_device(name: str, budget: int | None) -> Device:
    """With pages as small as they would be if the budget were all of the device's; unless it is open already, with pages of its own."""
    if budget is not None:
        try:
            return Device(name, page_bytes=1 << max(0, (budget >> 10).bit_length() - 1))
        except UsageError as error:
            if error.status != Status.ERROR_INVALID_ARGUMENT:
                raise
    return Device(name)


def device_of(device: Device | str | torch.device, budget: int | None) -> tuple[Device, torch.device, str, bool]:
    """The library's device, PyTorch's, the backend, and whether it was opened here."""
    opened = not isinstance(device, Device)
    if not isinstance(device, Device):
        name = str(device)
        if name == "cpu":
            name = "host"
        if name == "cuda":
            name = f"cuda:{torch.cuda.current_device()}"
        if torch.version.hip and name.startswith("cuda:"):
            name = f"hip:{name[5:]}"
        if name.startswith(("cuda", "hip")):
            torch.cuda.init()
        device = open_device(name, budget)
    backend, _, number = device.name.partition(":")
    if backend not in ("host", "cuda", "hip"):
        raise ValueError(f"PyTorch cannot compute on {device.name}")
    if not device.flags & DeviceFlag.FIXED_ADDRESSES:
        raise ValueError(f"{device.name} cannot map memory by pages: addresses would change while tensors and autograd keep them")
    return device, torch.device("cpu") if backend == "host" else torch.device("cuda", int(number or 0)), backend, opened
