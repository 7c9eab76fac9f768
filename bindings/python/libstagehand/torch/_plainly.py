"""The scope in which this package works on tensors, whatever the user's modes and transforms."""

# mypy: disable-error-code="import-not-found,misc,no-untyped-call,unused-ignore"
from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager

import torch


@contextmanager
def plainly() -> Iterator[None]:
    """Switches off modes, transforms (torch.func) and tensor classes that change the functions of tensors."""
    with torch.inference_mode(False), torch.no_grad(), torch._C.DisableTorchFunctionSubclass():
        with torch._C._DisableFuncTorch():
            yield
