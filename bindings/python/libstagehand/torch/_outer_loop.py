"""Refuses what a loop of training does to streamed weights without an effect: steps of an optimizer of its own, and
clips after a backward. Schedules and accumulation of such a loop act through its optimizer's step.
"""

# mypy: disable-error-code="import-not-found,misc,no-untyped-call,unused-ignore"
from __future__ import annotations

import sys
from collections.abc import Callable, Iterable
from typing import Any

import torch
from torch.optim.optimizer import register_optimizer_step_pre_hook

_CLIPS = "torch.nn.utils.clip_grad"
_gradient: Any = torch._C.TensorBase.grad  # whatever the class of the tensor makes of it
_INSTEAD = (
    "A training loop with an optimizer, a schedule, accumulation or clipping of its own (like the Trainer of "
    "transformers) cannot train streamed weights. Write the loop yourself: put the backwards in "
    "`with streamed.accumulate():`, then clip, and call streamed.optimize(). Schedule the optimizers of "
    "streamed.optimizers. Give an optimizer of your own only parameters that are not streamed. "
    "`streamed` is the object that stream() returned"
)


class OuterLoop:
    """Looks at all steps of optimizers and at all clips, until remove()."""

    def __init__(
        self,
        parameters: Iterable[torch.Tensor],
        name_of: Callable[[torch.Tensor], str | None],
        check: Callable[[torch.optim.Optimizer, torch.Tensor], bool],
    ) -> None:
        """`name_of` returns the name of a parameter that is trained here, or None. `check` returns whether an optimizer
        makes its step for the parameter now because this package has called it.
        """
        self._parameters = list(parameters)
        self._name_of = name_of
        self._check = check
        self._handle = register_optimizer_step_pre_hook(self._steps)
        self._kinds: dict[Any, None] = dict.fromkeys(type(one) for one in self._parameters)
        for kind in self._kinds:  # classes of this model alone
            kind.grad = property(self._read, _gradient.__set__, _gradient.__delete__)

    def remove(self) -> None:
        self._handle.remove()
        for kind in self._kinds:
            del kind.grad

    def _steps(self, optimizer: torch.optim.Optimizer, *_: Any) -> None:
        for group in optimizer.param_groups:
            for parameter in group["params"]:
                name = self._name_of(parameter)
                if name is not None and not self._check(optimizer, parameter):
                    raise RuntimeError(
                        f"{type(optimizer).__name__}.step() was called for {name}, which is trained while it is "
                        f"streamed: the optimizers that optimizer= of stream() has made train it. {_INSTEAD}"
                    )

    def _read(self, parameter: torch.Tensor) -> Any:
        gradient = _gradient.__get__(parameter)
        if gradient is None and sys._getframe(1).f_globals.get("__name__") == _CLIPS:
            name = self._name_of(parameter)
            if name is not None and all(_gradient.__get__(one) is None for one in self._parameters):
                raise RuntimeError(
                    f"the gradient of {name} cannot be clipped: it was given up in the backward, where the optimizers "
                    f"that optimizer= of stream() has made have made their steps. {_INSTEAD}"
                )
        return gradient
