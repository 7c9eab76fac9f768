"""Finds reads of weights whose block is not held. A module that does not hold the block may read them, or code outside
all modules.
"""

# mypy: disable-error-code="import-not-found,misc,no-untyped-call,unused-ignore"
from __future__ import annotations

from threading import get_ident
from typing import Any

import torch
from torch.utils._python_dispatch import TorchDispatchMode
from torch.utils._pytree import tree_iter

from ._subclasses import found_in, is_wrapper
from ._weights import Weight

_ALIASES = (torch.ops.aten.detach.default, torch.ops.aten.alias.default)


class ReadCheck:
    """Checks every operation in the first step, or in all steps for debugging."""

    def __init__(self, weights: dict[int, Weight], steps: int | None) -> None:
        self._weights = weights
        self._left = steps  # the number of steps to check that have to pass; None for all steps
        self._mode: Reads | None = None

    def enter(self) -> None:
        if self._left == 0 or self._mode is not None:
            return
        self._mode = Reads(self._weights)
        self._mode.__enter__()

    def leave(self, passed: bool = False) -> None:
        """Ends the check of a step. `passed` says whether the step reached its end. A failed step does not count,
        because it is made and checked again.
        """
        mode, self._mode = self._mode, None
        if mode is not None:
            mode.end()
            if passed and self._left is not None:
                self._left -= 1


class Reads(TorchDispatchMode):
    """Refuses operations that read weights whose block is not held."""

    def __init__(self, weights: dict[int, Weight], views: bool = False) -> None:
        super().__init__()
        self._weights = weights
        self._views = views  # whether views of such weights are refused too
        self._thread = get_ident()

    def end(self) -> None:
        """Ends the checks. The mode cannot be left on another thread than the one that entered it. That happens after
        an interrupt has ended a call. So the mode stays then, without weights to check.
        """
        if self._thread == get_ident():
            self.__exit__(None, None, None)
        self._weights = {}

    def __torch_dispatch__(self, func: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
        kwargs = kwargs or {}
        if self._views or func not in _ALIASES:
            is_view = not self._views and getattr(func, "is_view", False)
            for value in tree_iter((args, kwargs)):
                # A wrapper may read its parts to make a view of itself.
                if isinstance(value, torch.Tensor) and (not is_view or is_wrapper(value)):
                    self._check(func, value)
        return func(*args, **kwargs)

    def _check(self, func: Any, tensor: torch.Tensor) -> None:
        for weight in found_in(tensor, self._weights):
            if not weight.block.held():
                raise _unheld(func, weight, self._views)


def _unheld(func: Any, weight: Weight, outside_modules: bool) -> RuntimeError:
    name = weight.places[0].name
    problem = f"{func} reads {name}, but its block {weight.block.name} is not held"
    if outside_modules:
        return RuntimeError(
            f"{problem}, because no module that uses the block runs. The contents are in the source. "
            "Read them by state_dict(), detach(), cpu() and the like, change them by load_state_dict() or detach(), "
            f"or keep the weight on the device by outside={name!r}"
        )
    return RuntimeError(
        f"{problem}. Another module than the reading one holds the block during its call. "
        "Divide the model by blocks= so that the module that reads a weight also holds its block, "
        f"or keep the weight on the device by outside={name!r}"
    )
