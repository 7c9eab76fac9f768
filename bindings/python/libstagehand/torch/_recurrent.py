"""Recurrent modules (LSTM, GRU, RNN) while they are streamed."""

# mypy: disable-error-code="import-not-found,misc,no-untyped-call,unused-ignore"
from __future__ import annotations

from typing import Any

from torch import nn

from ._serving import Refusal


class KeepsLayout(Refusal):
    """The flatten_parameters() of a streamed recurrent module, which does nothing. The function of PyTorch moves the
    weights into one piece of memory, but streamed weights have fixed addresses. The results are the same.
    """

    __slots__ = ()

    def __call__(self) -> None:
        pass


def instead_of_methods(module: nn.Module) -> dict[str, Any]:
    """Returns the methods that a module has while it is streamed, by name."""
    return {"flatten_parameters": KeepsLayout()} if isinstance(module, nn.RNNBase) else {}
