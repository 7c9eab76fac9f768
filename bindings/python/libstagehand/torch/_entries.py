"""Methods that programs call instead of the model, like `vae.decode()`. They end the steps that they begin."""

# mypy: disable-error-code="import-not-found,misc,no-untyped-call,unused-ignore"
from __future__ import annotations

from collections.abc import Callable, Iterator
from contextlib import ExitStack
from typing import Any

import torch
from torch import nn

from ._serving import Refusal

# Such a method calls parts of the model. The hooks of the parts do not know which one is the last, so the step would
# stay open until the next one begins, and would keep memory from models of other threads.
_NAMES = ("encode", "decode", "get_text_features", "get_image_features", "get_audio_features")
_graph_task = torch._C._current_graph_task_id


class StepMethod(Refusal):
    """A method of a streamed model whose end ends a step. Copies and pickles of the model are made without it."""

    __slots__ = ("__wrapped__", "end_step", "is_under_way")

    def __init__(
        self, method: Callable[..., Any], is_under_way: Callable[[], bool], end_step: Callable[[], object]
    ) -> None:
        self.__wrapped__ = method  # inspect.signature() looks there
        self.is_under_way = is_under_way
        self.end_step = end_step

    def __call__(self, *args: Any, **kwargs: Any) -> Any:
        # With gradients the step must last to the end of the backward, which the hooks of the modules see to.
        if torch.is_grad_enabled() or self.is_under_way() or _graph_task() != -1:
            return self.__wrapped__(*args, **kwargs)
        try:
            return self.__wrapped__(*args, **kwargs)
        finally:
            if not self.is_under_way():
                self.end_step()


def attach_entries(
    module: nn.Module, is_under_way: Callable[[], bool], end_step: Callable[[], object], undo: ExitStack
) -> None:
    """Has the calls of a model's methods end their steps until `undo`. `is_under_way` tells of a step that goes on."""
    for name, method in _methods(module):
        had, before = name in module.__dict__, module.__dict__.get(name)
        module.__dict__[name] = StepMethod(method, is_under_way, end_step)
        undo.callback(_put_back, module, name, had, before)


def _methods(module: nn.Module) -> Iterator[tuple[str, Callable[..., Any]]]:
    for name in _NAMES:
        # A submodule of that name has a forward, and is not a method.
        method = None if name in module._modules else getattr(module, name, None)
        if callable(method):
            yield name, method


def _put_back(module: nn.Module, name: str, had: bool, before: Any) -> None:
    if had:
        module.__dict__[name] = before
    else:
        module.__dict__.pop(name, None)
