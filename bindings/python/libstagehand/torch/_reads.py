"""Finds reads of weights through views that were made while the block was held, and are used when it is not."""

# mypy: disable-error-code="import-not-found,misc,no-untyped-call,unused-ignore"
from __future__ import annotations

from collections.abc import Hashable
from threading import get_ident
from typing import Any

import torch
from torch.utils._python_dispatch import TorchDispatchMode
from torch.utils._pytree import tree_iter

from ._subclasses import ENTRY, found_in, is_wrapper, plain_parts
from ._weights import Weight

_ALIASES = (torch.ops.aten.detach.default, torch.ops.aten.alias.default)


class ReadCheck:
    """Checks every operation in the first step of each kind that passes, or in all steps for debugging.

    :param always: True checks all steps, None the first step of each kind, and False no step.
    """

    def __init__(self, weights: dict[int, Weight], always: bool | None) -> None:
        self._weights = weights
        self._always = always
        self._passed: set[Hashable] = set()
        self._kind: Hashable = None
        self._mode: Reads | None = None

    def wants(self) -> bool:
        """Whether enter() asks for the kind of the step."""
        return self._always is None

    def enter(self, kind: Hashable = None) -> None:
        if self._mode is not None or self._always is False or (self._always is None and kind in self._passed):
            return
        self._kind = kind
        self._mode = Reads(self._weights)
        self._mode.__enter__()

    def leave(self, passed: bool = False) -> None:
        """Ends the check of a step. `passed` says whether the step reached its end. A failed step does not count,
        because it is made and checked again.
        """
        mode, self._mode = self._mode, None
        if mode is not None:
            mode.end()
            if passed:
                self._passed.add(self._kind)


class Reads(TorchDispatchMode):
    """Refuses operations that read weights whose block is not held."""

    def __init__(self, weights: dict[int, Weight]) -> None:
        super().__init__()
        self._weights = weights
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
        if func not in _ALIASES:
            is_view = getattr(func, "is_view", False)
            for value in tree_iter((args, kwargs)):
                # A wrapper may read its parts to make a view of itself.
                if isinstance(value, torch.Tensor) and (not is_view or is_wrapper(value)):
                    self._check(func, value)
        return func(*args, **kwargs)

    def _check(self, func: Any, tensor: torch.Tensor) -> None:
        for part in plain_parts(tensor):
            # Operations on the weights themselves are seen in every step, by their key.
            found: tuple[Weight, ...] = () if ENTRY in part.__dict__ else found_in(part, self._weights)
            for weight in (weight for weight in found if not weight.block.held()):
                name = weight.places[0].name
                raise RuntimeError(
                    f"{func} reads {name} by a view of it, but its block {weight.block.name} is not held any more. "
                    "The view was made during the call of a module that has ended. Use the weight itself, or a clone() "
                    f"of the view, or keep the weight on the device by outside={name!r}"
                )
