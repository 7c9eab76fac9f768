"""A backend for the sleep mode of vLLM: `--enable-sleep-mode --sleep-mode-backend stagehand`.

vLLM calls register() through the entry point `stagehand` of the group `vllm.general_plugins`, in each of its processes.
"""

# mypy: disable-error-code="import-not-found,misc,no-untyped-call,unused-ignore"
from __future__ import annotations

import functools
import importlib
from contextlib import AbstractContextManager
from typing import Any

NAME = "stagehand"


def register() -> None:
    """Registers the backend, and has workers that use it allocate in pools of the library. Does nothing in a vLLM
    without pluggable backends.
    """
    try:
        backends = importlib.import_module("vllm.device_allocator.sleep_mode_backend")
    except ModuleNotFoundError:
        return
    base = importlib.import_module("vllm.v1.worker.worker_base").WorkerBase
    if getattr(base.__init__, "of_stagehand", False):
        return
    backends.SleepModeBackendFactory.register_backend(NAME, f"{__name__}.backend", "StagehandSleepBackend")
    base.__init__ = _with_pools(base.__init__)


def _with_pools(begin: Any) -> Any:
    """Returns a constructor of workers that gives pools to a worker with this backend, and changes no other worker."""

    @functools.wraps(begin)
    def __init__(self: Any, *args: Any, **kwargs: Any) -> None:
        begin(self, *args, **kwargs)
        config = self.vllm_config.model_config
        if not config.enable_sleep_mode or config.sleep_mode_backend != NAME:
            return
        if not hasattr(type(self), "_maybe_get_memory_pool_context"):
            raise RuntimeError(
                f"{type(self).__name__} of this vLLM asks for no memory pools: use another sleep backend"
            )
        self._maybe_get_memory_pool_context = _pool

    setattr(__init__, "of_stagehand", True)
    return __init__


def _pool(tag: str) -> AbstractContextManager[Any]:
    from .backend import pool_of

    return pool_of(tag)
