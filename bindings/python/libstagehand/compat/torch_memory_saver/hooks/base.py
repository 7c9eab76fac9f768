"""What the hook modes have in common."""

from __future__ import annotations

import os
from typing import Any, Literal

HookMode = Literal["preload", "torch"]


class HookUtilBase:
    """A hook mode: where its library is, and the allocator for pools of PyTorch."""

    @staticmethod
    def create(hook_mode: HookMode) -> HookUtilBase:
        from .mode_preload import HookUtilModePreload
        from .mode_torch import HookUtilModeTorch

        modes: dict[str, type[HookUtilBase]] = {"preload": HookUtilModePreload, "torch": HookUtilModeTorch}
        if hook_mode not in modes:
            raise ValueError(f"hook_mode={hook_mode!r} is neither 'preload' nor 'torch'")
        return modes[hook_mode]()

    def get_path_binary(self) -> str | os.PathLike[str]:
        raise NotImplementedError

    def get_allocator(self) -> Any:
        """Returns the allocator for pools. None: that of PyTorch, which calls cudaMalloc()."""
        raise NotImplementedError
