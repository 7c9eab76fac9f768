"""Helps for tests."""

# mypy: disable-error-code="import-not-found,misc,no-untyped-call,unused-ignore"
from __future__ import annotations

import torch


def get_device() -> str:
    """Returns the kind of device of the tests."""
    return "cuda"


def empty_cache() -> None:
    torch.cuda.empty_cache()


def get_and_print_gpu_memory(message: str, gpu_id: int = 0) -> int:
    """Prints how much memory of a GPU is in use, as the driver reports it, and returns the bytes."""
    free, total = torch.cuda.mem_get_info(gpu_id)
    print(f"GPU {gpu_id} memory: {(total - free) / 2**30:.2f} GiB ({message})", flush=True)
    return int(total - free)
