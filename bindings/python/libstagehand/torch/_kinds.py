"""The kind of a step: calls of one kind take the same way through the code of a model, as a rule."""

# mypy: disable-error-code="import-not-found,misc,no-untyped-call,unused-ignore"
from __future__ import annotations

from collections.abc import Hashable
from typing import Any

import torch
from torch import nn
from torch.utils._pytree import tree_flatten

_LONGEST_NAME = 32
_MOST_NAMED = 64


class StepKinds:
    """Tells the kinds of steps of one model apart: by the arguments, by gradients and training, and by the adapters
    that are active.
    """

    def __init__(self, model: nn.Module) -> None:
        self._model = model
        self._adapted = [module for module in model.modules() if _is_adapted(module)]
        self._numbers: dict[Hashable, int] = {}

    def name(self, kind: Hashable) -> str | None:
        """A name for the runtime, which plans for the kinds that come in turn. None if there are very many kinds."""
        if kind not in self._numbers and len(self._numbers) == _MOST_NAMED:
            return None
        return f"kind {self._numbers.setdefault(kind, len(self._numbers) + 1)}"

    def kind(self, args: Any, kwargs: Any) -> Hashable:
        values, structure = tree_flatten((args, kwargs))
        return (
            tuple(map(_describe, values)),
            str(structure),
            torch.is_grad_enabled(),
            self._model.training,
            torch.is_autocast_enabled(),
            tuple(map(_adapters, self._adapted)),
        )


def _describe(value: Any) -> Any:
    """Describes an argument. Sizes above 1 are not told apart, because the sizes of a decoder's inputs change with each
    token, and the way through the code does not. A long string is contents, not the name of a way.
    """
    if isinstance(value, torch.Tensor):
        return value.dtype, tuple(size if size < 2 else 2 for size in value.shape)
    if isinstance(value, (int, float)) and not isinstance(value, bool):
        return type(value), value if value in (0, 1) else 2
    if value is None or isinstance(value, bool) or (isinstance(value, str) and len(value) <= _LONGEST_NAME):
        return value
    return type(value)


def _is_adapted(module: nn.Module) -> bool:
    # Models of transformers and diffusers have a method of that name, which asks such modules.
    return hasattr(module, "active_adapters") and not callable(module.active_adapters)


def _adapters(module: Any) -> Hashable:
    merged = getattr(module, "merged_adapters", ())
    return str(module.active_adapters), str(merged), bool(getattr(module, "disable_adapters", False))
