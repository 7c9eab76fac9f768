"""What a failed backward leaves, until the interpreter ends.

PyTorch keeps the nodes that a failed backward had still to run in a queue of the thread. It frees them when the thread
ends. The main thread ends after the interpreter, and nodes with hooks for saved tensors then crash the process (PyTorch
2.11, also with hooks of others). A backward takes the nodes of that queue, the latest first, and skips those of other
backwards. So the backward of a very old node frees them all.
"""

# mypy: disable-error-code="import-not-found,misc,no-untyped-call,unused-ignore"
from __future__ import annotations

import atexit
import contextlib

import torch


def _node() -> torch.Tensor:
    with torch.inference_mode(False), torch.enable_grad():
        return torch.zeros((), device="cpu", requires_grad=True).clone()


# Older than all nodes with hooks of this package, because the hooks come later.
_oldest = _node()
_is_expected = False


def expect_hooks() -> None:
    """Hooks for saved tensors are in force from now on, so that the queue may hold nodes with hooks."""
    global _is_expected
    if not _is_expected:
        _is_expected = True
        atexit.register(_free_nodes)


def _free_nodes() -> None:
    with contextlib.suppress(Exception):  # the process ends anyway
        _oldest.backward()  # type: ignore[no-untyped-call]
