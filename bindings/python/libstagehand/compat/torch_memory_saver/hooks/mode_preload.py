"""The hook mode in which a library in front of CUDA's takes cudaMalloc() and cudaFree(). LD_PRELOAD names the library
before the program begins.
"""

from __future__ import annotations

import os
from collections.abc import Iterator
from contextlib import contextmanager
from typing import Any

from ..utils import change_env, get_binary_path_from_package
from .base import HookUtilBase

STEM = "torch_memory_saver_hook_mode_preload"


class HookUtilModePreload(HookUtilBase):
    def get_path_binary(self) -> str | os.PathLike[str]:
        preloaded = os.environ.get("LD_PRELOAD", "")
        found = [one for one in preloaded.replace(":", " ").split() if "torch_memory_saver" in one]
        if len(found) != 1:
            raise AssertionError(
                f"LD_PRELOAD={preloaded!r} has {len(found)} entries with torch_memory_saver, and hook_mode='preload' "
                "needs one: start the process inside configure_subprocess(), or set hook_mode='torch'"
            )
        return found[0]

    def get_allocator(self) -> Any:
        return None


@contextmanager
def configure_subprocess() -> Iterator[None]:
    """Has processes that begin inside of the `with` use the hook mode "preload"."""
    path = str(get_binary_path_from_package(STEM))
    before = os.environ.get("LD_PRELOAD")
    with change_env("LD_PRELOAD", f"{path}:{before}" if before else path):
        yield
