"""The interface of the package torch_memory_saver 0.0.10, on libstagehand.

    from libstagehand.compat.torch_memory_saver import torch_memory_saver

Programs that import `torch_memory_saver` itself get this package after `install()`, or by the package that
`libstagehand.compat.alias` makes. docs/torch_memory_saver.md says what is different.
"""

# mypy: disable-error-code="import-not-found,misc,no-untyped-call,unused-ignore"
from __future__ import annotations

import importlib
import pkgutil
import sys

from .entrypoint import TorchMemorySaver
from .hooks.mode_preload import configure_subprocess

torch_memory_saver = TorchMemorySaver()

__all__ = ["TorchMemorySaver", "configure_subprocess", "install", "torch_memory_saver"]


_NAME = "torch_memory_saver"


def install() -> None:
    """Has `import torch_memory_saver` give this package, for all modules of the process. It is an error if the package
    of that name has been imported already.
    """
    here = sys.modules[__name__]
    other = sys.modules.get(_NAME, here)
    if other is not here and not hasattr(other, "is_alias_of_libstagehand"):
        raise RuntimeError(f"torch_memory_saver is imported already, from {other.__file__}: call install() before")
    alias_modules()
    sys.modules[_NAME] = here


def alias_modules() -> None:
    """Has `import torch_memory_saver.utils` and so on give the modules of this package."""
    for found in pkgutil.walk_packages(__path__, f"{__name__}."):
        sys.modules[f"{_NAME}{found.name.removeprefix(__name__)}"] = importlib.import_module(found.name)
