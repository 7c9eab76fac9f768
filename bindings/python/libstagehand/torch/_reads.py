"""Finds reads of weights whose block is not held: by a module that is not part of the block, or outside of every module."""
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
    """Looks at every operation while it is on: in the first step, or, for debugging, in all."""

    def __init__(self, weights: dict[int, Weight], steps: int | None) -> None:
        self._weights = weights
        self._left = steps  # that have to pass; None: no end
        self._mode: Reads | None = None

    def enter(self) -> None:
        if self._left == 0 or self._mode is not None:
            return
        self._mode = Reads(self._weights)
        self._mode.__enter__()

    def leave(self, passed: bool = False) -> None:
        """`passed`: the step came to its end. One that failed is made again, and searched again."""
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
        self._views = views  # whether they must not be made either
        self._thread = get_ident()

    def end(self) -> None:
        """From another thread, after that of a call that an interrupt ended, it cannot be left: it looks at nothing then."""
        if self._thread == get_ident():
            self.__exit__(None, None, None)
        self._weights = {}

    def __torch_dispatch__(self, func: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
        kwargs = kwargs or {}
        if self._views or func not in _ALIASES:
            is_view = not self._views and getattr(func, "is_view", False)
            for value in tree_iter((args, kwargs)):
                # What a wrapper does for a view of itself may read it.
                if isinstance(value, torch.Tensor) and (not is_view or is_wrapper(value)):
                    self._check(func, value)
        return func(*args, **kwargs)

    def _check(self, func: Any, tensor: torch.Tensor) -> None:
        for weight in found_in(tensor, self._weights):
            if not weight.block.held():
                raise _unheld(func, weight, self._views)


def _unheld(func: Any, weight: Weight, outside_modules: bool) -> RuntimeError:
    name = weight.places[0].name
    told = f"{func} reads {name}, whose block, {weight.block.name}, is not held"
    if outside_modules:
        return RuntimeError(
            f"{told}: no module of it runs. Its contents are in the source: read them by state_dict(), detach(), cpu() and the like, change them by "
            f"load_state_dict() or detach(), or leave it on the device (outside={name!r})"
        )
    return RuntimeError(
        f"{told}: the module that reads it is not the one whose call holds it. Divide the model so that a block is called where its weights are "
        f"read (blocks=), or leave this one on the device (outside={name!r})"
    )
