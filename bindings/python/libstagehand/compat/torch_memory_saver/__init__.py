"""The interface of the package torch_memory_saver 0.0.10, on libstagehand.

    from libstagehand.compat.torch_memory_saver import torch_memory_saver

Programs that import `torch_memory_saver` itself get this package after `install()`. docs/torch_memory_saver.md says
what is different.
"""

# mypy: disable-error-code="import-not-found,misc,no-untyped-call,unused-ignore"
from __future__ import annotations

import sys

from .entrypoint import TorchMemorySaver
from .hooks.mode_preload import configure_subprocess

torch_memory_saver = TorchMemorySaver()

__all__ = ["TorchMemorySaver", "configure_subprocess", "install", "torch_memory_saver"]


def install() -> None:
    """Has `import torch_memory_saver` give this package, for all modules of the process. It is an error if the package
    of that name has been imported already.
    """
    here = sys.modules[__name__]
    found = sys.modules.setdefault("torch_memory_saver", here)
    if found is not here:
        raise RuntimeError(f"torch_memory_saver is imported already, from {found.__file__}: call install() before")
    for name, module in list(sys.modules.items()):
        if name.startswith(f"{__name__}."):
            sys.modules.setdefault(f"torch_memory_saver{name.removeprefix(__name__)}", module)
