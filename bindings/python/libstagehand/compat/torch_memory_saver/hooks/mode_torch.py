"""The hook mode in which pools of PyTorch call the library by themselves."""

# mypy: disable-error-code="import-not-found,misc,no-untyped-call,unused-ignore"
from __future__ import annotations

import os
from typing import Any

import torch

from ..utils import get_binary_path_from_package
from .base import HookUtilBase

STEM = "torch_memory_saver_hook_mode_torch"


class HookUtilModeTorch(HookUtilBase):
    def __init__(self) -> None:
        self._allocator: Any = None

    def get_path_binary(self) -> str | os.PathLike[str]:
        return get_binary_path_from_package(STEM)

    def get_allocator(self) -> Any:
        if self._allocator is None:
            self._allocator = torch.cuda.memory.CUDAPluggableAllocator(
                str(self.get_path_binary()), "tms_torch_malloc", "tms_torch_free"
            )
        return self._allocator.allocator()
