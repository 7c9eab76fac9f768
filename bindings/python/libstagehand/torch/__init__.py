"""Streams the weights of PyTorch modules under a memory budget.

    with libstagehand.torch.stream(model, device="cuda:0", budget=8 << 30):
        model(inputs)

Parameters get addresses on the device once; what is behind them is there while the module runs, or its backward. docs/torch.md says
what that asks of a model, and what is refused.
"""
# mypy: disable-error-code="import-not-found,misc,no-untyped-call,unused-ignore"
from __future__ import annotations

from ._streamed import Streamed

stream = Streamed
"""`with stream(model, device, budget=...):`"""

__all__ = ["Streamed", "stream"]
