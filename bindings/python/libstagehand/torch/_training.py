"""Trains streamed weights. Each block has an optimizer of its own, which makes its step in the backward, while the
block is on the device.
"""

# mypy: disable-error-code="import-not-found,misc,no-untyped-call,unused-ignore"
from __future__ import annotations

import inspect
from collections.abc import Callable, Iterator
from contextlib import AbstractContextManager, contextmanager, nullcontext
from typing import Any, TypeAlias

import torch
from torch import nn

from .._view import View
from ._holding import Holding
from ._optim_types import OptimTypes
from ._optimizer_state import Names, divided, merged
from ._outer_loop import OuterLoop
from ._weights import Found, HeldBlock, Place, Weight

MakeOptimizer: TypeAlias = "Callable[[list[nn.Parameter]], torch.optim.Optimizer]"
"""A function that makes the optimizer of one block from its parameters."""
MakeStep: TypeAlias = "Callable[[torch.optim.Optimizer], object]"
"""A function that has an optimizer make its step: the optimizer's own step(), or the step() of a GradScaler."""


class _Trained:
    """A trained block with its optimizer. `arrived` is the number of its gradients that a backward has made."""

    def __init__(self, block: HeldBlock, parameters: list[nn.Parameter], optimizer: torch.optim.Optimizer) -> None:
        self.block = block
        self.parameters = parameters
        self.optimizer = optimizer
        self.arrived = 0
        self.stepping = False

    def name_of(self, parameter: torch.Tensor) -> str:
        return next(place.name for place in self.block.places() if place.tensor is parameter)

    def refuse_by_hand(self) -> None:
        if not self.stepping:
            raise RuntimeError(
                f"the optimizer of {self.block.name!r} cannot be stepped by hand: its steps are made in the backward, "
                "or by optimize() of the object that stream() returned, while the weights are on the device. "
                "If losses are scaled, use stream(..., optimizer_step=scaler.step)"
            )


def check_maker(make: object) -> None:
    """Refuses anything but a function that makes optimizers."""
    how = "optimizer=lambda parameters: torch.optim.AdamW(parameters, lr=1e-5)"
    if isinstance(make, torch.optim.Optimizer):
        raise TypeError(
            f"optimizer= is an object ({type(make).__name__}), but each block needs an optimizer of its own: "
            f"give a function that makes an optimizer from parameters, like {how}"
        )
    if not callable(make):
        raise TypeError(
            f"optimizer={make!r} is no function: give one that makes an optimizer from parameters, like {how}"
        )


def _made(make: MakeOptimizer, block: HeldBlock, parameters: list[nn.Parameter]) -> torch.optim.Optimizer:
    optimizer = make(list(parameters))
    if not isinstance(optimizer, torch.optim.Optimizer):
        raise TypeError(
            f"optimizer= must return a torch.optim.Optimizer for a list of parameters, but returned {optimizer!r}"
        )
    asked = [
        one.name
        for one in inspect.signature(optimizer.step).parameters.values()
        if one.default is one.empty and one.kind is one.POSITIONAL_OR_KEYWORD
    ]
    if asked:
        raise TypeError(
            f"{type(optimizer).__name__}.step() needs the argument {asked[0]!r}: "
            "such optimizers cannot train streamed weights, because steps are made in the backward without arguments"
        )
    _check_parameters(optimizer, block, parameters)
    return optimizer


def _check_parameters(optimizer: torch.optim.Optimizer, block: HeldBlock, parameters: list[nn.Parameter]) -> None:
    """Refuses an optimizer that would not step all of the block's parameters, or would step others."""
    given = {id(parameter) for parameter in parameters}
    stepped = {id(parameter) for group in optimizer.param_groups for parameter in group["params"]}
    left_out = [place.name for place in block.places() if id(place.tensor) in given - stepped]
    problem = ""
    if not stepped:
        problem = "has no parameters, so it would train nothing"
    elif stepped - given:
        problem = "has parameters that are not of the block"
    elif left_out:
        problem = (
            f"does not have {', '.join(left_out[:8])}, which would not be trained "
            "(call requires_grad_(False) on parameters that are not to be trained)"
        )
    if problem:
        raise ValueError(
            f"the optimizer of the block {block.name!r} {problem}: "
            "the function optimizer= has to make an optimizer of the parameters that it gets"
        )


def _without_bytes(empty: list[Found]) -> HeldBlock:
    """Returns a block for parameters that have no elements. An optimizer has them in its state, as others."""
    block = HeldBlock("empty parameters")
    for one in empty:
        weight = Weight(0, one.tensor.untyped_storage(), 0, block=block)
        weight.places.append(Place(one.names[0], one.tensor, one.tensor.data, weight, 0))
        block.weights.append(weight)
    return block


class Training:
    """The optimizers of one model."""

    def __init__(
        self,
        holding: Holding,
        blocks: list[HeldBlock],
        empty: list[Found],
        make: MakeOptimizer,
        make_step: MakeStep | None,
    ) -> None:
        self._holding = holding
        self._make_step: MakeStep = make_step or (lambda optimizer: optimizer.step())
        self._accumulating = False
        self._distributed = False  # whether the last forward ran within DistributedDataParallel
        self._trained: list[_Trained] = []
        self.handles: list[Any] = []
        for block in [*blocks, _without_bytes(empty)]:
            parameters: list[Any] = [place.tensor for place in block.places() if place.tensor.requires_grad]
            if parameters:
                with self._reading(block):  # some optimizers read the parameters to make their state
                    self._trained.append(_Trained(block, parameters, _made(make, block, parameters)))
        self.handles.append(OptimTypes(parameter for trained in self._trained for parameter in trained.parameters))
        # After all optimizers are made, so that a failure leaves no hook behind.
        self._of = {id(one): trained for trained in self._trained for one in trained.parameters}
        parameters = [one for trained in self._trained for one in trained.parameters if trained.block.bytes]
        self.handles.append(OuterLoop(parameters, self._name_of, self._is_stepping))
        for trained in self._trained:
            for parameter in trained.parameters:
                self.handles.append(
                    parameter.register_post_accumulate_grad_hook(lambda _, trained=trained: self._arrived(trained))
                )

        holding.training = True
        holding.trained_forward = self.forward_begins
        holding.backward_ends, holding.backward_fails = self.backward_ends, self.begin_anew

    def _reading(self, block: HeldBlock) -> AbstractContextManager[View | None]:
        return self._holding.reading(block) if block.bytes else nullcontext()

    def optimizers(self) -> dict[str, torch.optim.Optimizer]:
        return {trained.block.name: trained.optimizer for trained in self._trained}

    def state(self) -> dict[str, Any]:
        """Returns the state of all optimizers by the names of the parameters."""
        return merged(self._by_name())

    def load_state(self, saved: dict[str, Any]) -> None:
        for trained, own in zip(self._trained, divided(self._by_name(), saved)):
            with self._reading(trained.block):  # some optimizers read the parameters to load their state
                trained.optimizer.load_state_dict(own)

    def _name_of(self, parameter: torch.Tensor) -> str | None:
        trained = self._of.get(id(parameter))
        return None if trained is None else trained.name_of(parameter)

    def _is_stepping(self, optimizer: torch.optim.Optimizer, parameter: torch.Tensor) -> bool:
        """Whether the parameter's block makes its step. Another optimizer may be a part of the block's own one."""
        trained = self._of[id(parameter)]
        if optimizer is trained.optimizer:
            trained.refuse_by_hand()
        return trained.stepping

    def _by_name(self) -> list[tuple[torch.optim.Optimizer, Names]]:
        return [(trained.optimizer, trained.name_of) for trained in self._trained]

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
        """Refuses steps in the backward of DistributedDataParallel, which adds up the gradients of all processes at the
        end of a backward. The steps would come before.
        """
        if self._distributed and not self._accumulating:
            raise RuntimeError(
                "DistributedDataParallel adds up gradients at the end of a backward, "
                "after the steps of streamed weights. "
                "Run its forward and backward in `with streamed.accumulate():`, and then call streamed.optimize(); "
                "`streamed` is the object that stream() returned"
            )

    def _arrived(self, trained: _Trained) -> None:
        self._holding.in_backward()
        self._refuse_distributed()
        trained.arrived += 1
        # Other parts of the backward may still need the old weights of a block that was used several times.
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
        with self._reading(block) as view:
            if view is not None:
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

    def begin_anew(self) -> None:
        """Forgets which gradients a backward has made. Gradients without a step stay in `grad`."""
        for trained in self._trained:
            trained.arrived = 0
            trained.block.uses = 0

    def backward_ends(self) -> None:
        """Makes the steps of blocks that were used several times, or that did not get all of their gradients."""
        self.begin_anew()
        for trained in self._trained:
            if not self._accumulating and any(parameter.grad is not None for parameter in trained.parameters):
                self._step(trained)
