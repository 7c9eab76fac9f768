"""Ends of PyTorch's pools, at a time when PyTorch can stand them."""

# mypy: disable-error-code="import-not-found,misc,no-untyped-call,unused-ignore"
from __future__ import annotations

import threading
from typing import Any

import torch


class PoolUses:
    """Counts uses of pools, and destroys pools while there is none: PyTorch ends the process if a pool is destroyed
    while any pool is in use, in any thread.
    """

    def __init__(self) -> None:
        self._lock = threading.Lock()
        self._uses = 0
        self._retired: list[Any] = []

    def begin(self) -> None:
        with self._lock:
            self._uses += 1

    def end(self) -> None:
        with self._lock:
            self._uses -= 1
            self._destroy_retired()

    def retire(self, pools: list[Any]) -> None:
        """Empties the list, destroys its pools and gives their unused memory back, at the end of the last use."""
        with self._lock:
            self._retired += pools
            pools.clear()
            self._destroy_retired()

    def _destroy_retired(self) -> None:
        if self._uses or not self._retired or torch.cuda.is_current_stream_capturing():
            return
        self._retired.clear()
        torch.cuda.empty_cache()
