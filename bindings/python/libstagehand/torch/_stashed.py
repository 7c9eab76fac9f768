"""Weights that functions keep by themselves for their backward (`ctx.weight = weight`). The hooks for saved tensors do
not see them.

Libraries of quantised weights do so. The block is held during the backward of such a function.
"""

# mypy: disable-error-code="import-not-found,misc,no-untyped-call,unused-ignore"
from __future__ import annotations

from typing import Any

import torch
from torch import nn
from torch.utils._pytree import tree_iter

from ._holding import Holding
from ._hooks import Hook
from ._weights import HeldBlock

_sequence_nr = torch._C._autograd._get_sequence_nr


class StashHooks:
    """The hooks of a module that itself has weights which are more than their bytes. The output of such a module is a
    tensor, as a rule.
    """

    def __init__(self, holding: Holding, blocks: list[HeldBlock]) -> None:
        self.holding = holding
        self.blocks = blocks
        self.begun: list[int] = []  # for each call under way, the number of the next node at its begin

    def attach(self, module: nn.Module) -> list[Any]:
        return [
            module.register_forward_hook(LeaveStash(self), always_call=True),
            module.register_forward_pre_hook(EnterStash(self), prepend=True),
        ]

    def hold(self, gradients: Any) -> None:
        for block in self.blocks:
            self.holding.read(block)
        if torch.is_grad_enabled():
            raise RuntimeError(
                "streamed weights do not support a backward that is differentiated again (create_graph=True): "
                f"it would keep weights of {self.blocks[0].name} without their block. "
                "Keep the weights on the device by outside="
            )
        self.holding.unguard()

    def let_go(self, before: Any, after: Any) -> None:
        self.holding.guard_outside()


class EnterStash(Hook):
    __slots__ = ("hooks",)

    def __init__(self, hooks: StashHooks) -> None:
        self.hooks = hooks

    def __call__(self, module: nn.Module, args: Any) -> None:
        self.hooks.begun.append(_sequence_nr())


class LeaveStash(Hook):
    __slots__ = ("hooks",)

    def __init__(self, hooks: StashHooks) -> None:
        self.hooks = hooks

    def __call__(self, module: nn.Module, args: Any, output: Any) -> None:
        hooks = self.hooks
        if not hooks.holding.calls.mine():
            return
        since = hooks.begun.pop() if hooks.begun else _sequence_nr()
        if not torch.is_grad_enabled():
            return
        seen = set()
        left = [value.grad_fn for value in tree_iter(output) if isinstance(value, torch.Tensor)]
        while left:
            node = left.pop()
            if node is None or node in seen or node._sequence_nr() < since:
                continue
            seen.add(node)
            if hasattr(node, "_forward_cls"):  # the function is written in Python
                hooks.holding.saved = True
                node.register_prehook(hooks.hold)
                node.register_hook(hooks.let_go)
            left += [before for before, _ in node.next_functions]
