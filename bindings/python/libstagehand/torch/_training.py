"""Weights that are trained while they are streamed: one optimizer for each block, whose step is made in the backward, while the block is there."""
# mypy: disable-error-code="import-not-found,misc,no-untyped-call,unused-ignore"
from __future__ import annotations

import inspect
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from typing import Any, TypeAlias

import torch
from torch import nn

from ._holding import Holding
from ._weights import HeldBlock

MakeOptimizer: TypeAlias = "Callable[[list[nn.Parameter]], torch.optim.Optimizer]"
"""Makes the optimizer of one block."""
MakeStep: TypeAlias = "Callable[[torch.optim.Optimizer], object]"
"""Has an optimizer make its step: its own step(), or that of a GradScaler."""


class _Trained:
    """A block with its optimizer, and how many of its gradients a backward has made."""

    def __init__(self, block: HeldBlock, parameters: list[nn.Parameter], optimizer: torch.optim.Optimizer) -> None:
        self.block = block
        self.parameters = parameters
        self.optimizer = optimizer
        self.arrived = 0
        self.stepping = False

    def refuse_by_hand(self) -> None:
        if not self.stepping:
            raise RuntimeError(
                f"the steps of {self.block.name!r} are made in the backward, or by optimize() of what stream() returned, while its weights are on the device. "
                "Where losses are scaled: stream(..., optimizer_step=scaler.step)"
            )


def _made(make: MakeOptimizer, parameters: list[nn.Parameter]) -> torch.optim.Optimizer:
    optimizer = make(list(parameters))
    if not isinstance(optimizer, torch.optim.Optimizer):
        raise TypeError(f"optimizer= has to make a torch.optim.Optimizer of a list of parameters, and made {optimizer!r}")
    asked = [one.name for one in inspect.signature(optimizer.step).parameters.values() if one.default is one.empty and one.kind is one.POSITIONAL_OR_KEYWORD]
    if asked:
        raise TypeError(f"{type(optimizer).__name__}.step() wants {asked[0]}: steps are made in the backward, with the gradients that are there, only")
    return optimizer


class Training:
    """The optimizers of one model."""

    def __init__(self, holding: Holding, blocks: list[HeldBlock], make: MakeOptimizer, make_step: MakeStep | None) -> None:
        self._holding = holding
        self._make_step: MakeStep = make_step or (lambda optimizer: optimizer.step())
        self._accumulating = False
        self._distributed = False  # the last forward was one of DistributedDataParallel
        self._trained: list[_Trained] = []
        self.handles: list[Any] = []
        for block in blocks:
            parameters: list[Any] = [place.tensor for place in block.places() if place.tensor.requires_grad]
            if parameters:
                with self._holding.reading(block):  # some make their state like their parameters
                    self._trained.append(_Trained(block, parameters, _made(make, parameters)))
        for trained in self._trained:  # once all are made: a hook would outlast the failure of another one
            self.handles.append(trained.optimizer.register_step_pre_hook(lambda *_, trained=trained: trained.refuse_by_hand()))
            for parameter in trained.parameters:
                self.handles.append(parameter.register_post_accumulate_grad_hook(lambda _, trained=trained: self._arrived(trained)))

    def optimizers(self) -> dict[str, torch.optim.Optimizer]:
        return {trained.block.name: trained.optimizer for trained in self._trained}

    @contextmanager
    def accumulate(self) -> Iterator[None]:
        before, self._accumulating = self._accumulating, True
        try:
            yield
        finally:
            self._accumulating = before

    def forward_begins(self) -> None:
        self._distributed = nn.parallel.DistributedDataParallel._active_ddp_module is not None
        self._refuse_distributed()

    def _refuse_distributed(self) -> None:
        """Steps in the backward come before the gradients of other processes are added up, which is at its end."""
        if self._distributed and not self._accumulating:
            raise RuntimeError(
                "DistributedDataParallel adds up gradients at the end of a backward, when the steps of streamed weights are made: have its forward and "
                "backward `with streamed.accumulate():` of what stream() returned, and then call its optimize()"
            )

    def _arrived(self, trained: _Trained) -> None:
        self._holding.in_backward()
        self._refuse_distributed()
        trained.arrived += 1
        # Of a block that was used several times, other parts of the backward may need the old weights still.
        if trained.arrived == len(trained.parameters) and trained.block.uses <= 1 and not self._accumulating:
            self._step(trained)

    def step_all(self, make_step: MakeStep | None) -> None:
        """Makes the steps of all blocks that have gradients."""
        for trained in self._trained:
            if any(parameter.grad is not None for parameter in trained.parameters):
                self._step(trained, make_step)

    def _step(self, trained: _Trained, make_step: MakeStep | None = None) -> None:
        trained.arrived = 0
        block = trained.block
        with self._holding.reading(block) as view:
            view.mark_dirty()
            block.trained += 1
            try:
                trained.stepping = True
                (make_step or self._make_step)(trained.optimizer)
                trained.optimizer.zero_grad(set_to_none=True)
                for place in block.places():
                    place.note_version()
            finally:
                trained.stepping = False
        torch.clear_autocast_cache()

    def backward_ends(self) -> None:
        """Makes the steps of blocks that were used several times, or not with all of their parameters."""
        for trained in self._trained:
            trained.arrived = 0
            trained.block.uses = 0
            if not self._accumulating and any(parameter.grad is not None for parameter in trained.parameters):
                self._step(trained)
