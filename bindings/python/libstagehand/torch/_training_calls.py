"""The calls that train streamed weights: gradients that add up, the optimizers' steps, and the optimizers' state."""

# mypy: disable-error-code="import-not-found,misc,no-untyped-call,unused-ignore"
from __future__ import annotations

from contextlib import AbstractContextManager
from typing import Any

import torch

from .._errors import UsageError
from .._generated import Status
from ._holding import Holding
from ._training import MakeStep, Training


class TrainingCalls:
    """The calls of a streamed model that is trained."""

    _holding: Holding
    _training: Training | None

    def step(self) -> AbstractContextManager[None]:
        raise NotImplementedError

    def accumulate(self) -> AbstractContextManager[None]:
        """Backwards in `with streamed.accumulate():` add up gradients and make no optimizer's steps. A backward outside
        of it makes the steps.
        """
        return self._trained().accumulate()

    def optimize(self, step: MakeStep | None = None) -> None:
        """Makes the optimizers' steps with the gradients of backwards in accumulate(). Use it if something needs all
        gradients before the steps, like clipping.
        """
        training = self._trained()
        if self._holding.explicit:
            training.step_all(step)
        else:
            with self.step():
                training.step_all(step)

    @property
    def optimizers(self) -> dict[str, torch.optim.Optimizer]:
        """The optimizers by the name of their block. Each block with trained weights has one."""
        return self._trained().optimizers()

    def optimizer_state(self) -> dict[str, Any]:
        """Returns the state of all optimizers as one state dict by the names of the parameters. It does not depend on
        the blocks, so load_optimizer_state() can load it after the model was streamed with another budget.
        """
        return self._trained().state()

    def load_optimizer_state(self, state: dict[str, Any]) -> None:
        """Loads what optimizer_state() has returned. The model has to train the same parameters."""
        self._holding.calls.check()
        if self._holding.ended:
            raise UsageError(Status.ERROR_INVALID_HANDLE, "streaming of the model has ended")
        self._trained().load_state(state)

    def _trained(self) -> Training:
        if self._training is None:
            raise UsageError(
                Status.ERROR_INVALID_STATE, "no streamed weight is trained: pass optimizer= to stream() to train"
            )
        return self._training
