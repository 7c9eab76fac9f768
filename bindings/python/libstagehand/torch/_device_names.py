"""The names of devices as users write them, and the library's name of each."""

# mypy: disable-error-code="import-not-found,misc,no-untyped-call,unused-ignore"
from __future__ import annotations

import re
from collections.abc import Iterator
from contextlib import contextmanager

import torch

_GPU = re.compile(r"(cuda|hip|gpu)(?::(\d+))?")
_HOW = (
    'give "cuda" (the current GPU), "cuda:0" or 0 (the first GPU), "host" (the CPU, for tests), '
    "a torch.device, or a libstagehand.Device"
)


def library_name(device: object) -> str:
    """Returns the library's name of a device. A device that no name of PyTorch or of the library stands for is an
    error.
    """
    name = _text(device)
    if name in ("cpu", "cpu:0"):
        return "host"
    found = _GPU.fullmatch(name)
    if found is None:
        if name.partition(":")[0] in ("host", "sim", "auto"):
            return name
        raise ValueError(f"device={device!r} is not a device that models can be streamed to: {_HOW}")
    kind = "hip" if torch.version.hip or found[1] == "hip" else "cuda"
    return f"{kind}:{_current(device) if found[2] is None else int(found[2])}"


def _text(device: object) -> str:
    if isinstance(device, bool) or not isinstance(device, (str, int, torch.device)):
        raise TypeError(f"device={device!r} is a {type(device).__name__}, not a device: {_HOW}")
    if isinstance(device, int):
        if device < 0:
            raise ValueError(f"device={device!r} is negative, and GPUs are counted from 0: {_HOW}")
        return f"cuda:{device}"
    return str(device).strip().lower()


def _current(device: object) -> int:
    with _needing_gpu(device):
        return int(torch.cuda.current_device())


def begin_gpu(device: object) -> None:
    """Has PyTorch begin to use GPUs, before the library opens one."""
    with _needing_gpu(device):
        torch.cuda.init()


@contextmanager
def _needing_gpu(device: object) -> Iterator[None]:
    try:
        yield
    except (RuntimeError, AssertionError) as error:  # PyTorch asserts that it was built for a GPU
        raise RuntimeError(f"device={device!r} needs a GPU, and PyTorch has none ({error}): {_HOW}") from error
