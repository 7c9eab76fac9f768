"""The hooks for tensors that autograd saves for the backward. A saved weight does not keep its block: the block is
acquired again when a node asks for the weight.

A block's address is fixed, so the saved tensor is right whenever the block is held. Every other tensor goes to the
hooks that were in force before, of checkpointing or of the user, or stays as it is.
"""

# mypy: disable-error-code="import-not-found,misc,no-untyped-call,unused-ignore"
from __future__ import annotations

from collections.abc import Callable
from contextlib import ExitStack
from typing import Any

import torch

from ._exit import expect_hooks
from ._holding import Holding
from ._kept import Kept, detached, modified
from ._key import closed, has_key, without_key
from ._subclasses import found_in, is_wrapper
from ._weights import Weight

_push = torch._C._autograd._push_saved_tensors_default_hooks
_pop = torch._C._autograd._pop_saved_tensors_default_hooks
_top = torch._C._autograd._top_saved_tensors_default_hooks
_clone = torch.Tensor.clone
_CHECKPOINTS = "torch.utils.checkpoint"  # the module with the hooks of checkpoints


class _SavedWeight:
    """A saved weight, or a saved view of one."""

    __slots__ = ("weights", "tensor", "version")

    def __init__(self, weights: tuple[Weight, ...], tensor: torch.Tensor) -> None:
        self.weights = weights
        self.tensor = detached(tensor)
        self.version = tensor._version


class SavedTensors:
    """The hooks of one streamed model."""

    def __init__(self, holding: Holding, weights: dict[int, Weight]) -> None:
        self._holding = holding
        self._weights = weights  # by the address of the storage
        self._plain = self._hooks(None)

    def _hooks(
        self, before: tuple[Callable[[Any], Any], Callable[[Any], Any]] | None
    ) -> tuple[Pack, Callable[[Any], Any]]:
        pack = Pack(self._holding, self._weights, before[0] if before else None)
        inner = before[1] if before else None

        def unpack(packed: Any) -> Any:
            if type(packed) is _SavedWeight:
                return self._unpack_weight(packed)
            if type(packed) is Kept:
                return packed.unpack()
            assert inner is not None
            return inner(packed)

        return pack, unpack

    def _unpack_weight(self, saved: _SavedWeight) -> torch.Tensor:
        tensor = saved.tensor
        if tensor._version != saved.version:
            raise modified(saved.weights[0].places[0].name, tensor._version, saved.version)
        blocks = list(dict.fromkeys(weight.block for weight in saved.weights))
        if all([self._holding.read(block) for block in blocks]):
            if torch.is_grad_enabled():
                raise RuntimeError(
                    "streamed weights do not support a backward that is differentiated again (create_graph=True): "
                    f"it would keep {saved.weights[0].places[0].name} without its block {blocks[0].name}. "
                    "Keep the weight on the device by outside="
                )
            return tensor
        # A saved tensor is read outside a backward, and the end of that use is not known. So the caller gets a copy.
        with ExitStack() as views:
            for block in blocks:
                views.enter_context(self._holding.reading(block))
            copied: torch.Tensor = without_key(_clone, (tensor,), {})
            return copied

    def push(self, by_module: bool = True) -> bool:
        """Puts the hooks in force if they are not. Returns whether pop() has to be called. A checkpoint counts the
        weights that its function reads by itself, and not those of modules in it.
        """
        expect_hooks()
        before = _top(False)
        if before is not None and not by_module and before[0].__module__ == _CHECKPOINTS:
            pack, unpack = before
            _push(lambda tensor: pack(self._closed(tensor)), unpack)
            return True
        if before is None:
            _push(*self._plain)
            return True
        if type(before[0]) is Pack and before[0].holding is self._holding:
            return False
        _push(*self._hooks(before))
        return True

    def _closed(self, tensor: torch.Tensor) -> torch.Tensor:
        """Gives a saved weight its key, because nodes that use it may run when its block has gone."""
        if has_key(tensor) or not found_in(tensor, self._weights):
            return tensor
        is_plain = not (is_wrapper(tensor) or tensor.is_conj() or tensor.is_neg())
        return closed(tensor) if is_plain else _clone(tensor)

    pop = staticmethod(_pop)

    def pop_left(self) -> None:
        """Removes the hooks that are left in force from an exception that no hook saw."""
        while (top := _top(False)) is not None and type(top[0]) is Pack and top[0].holding is self._holding:
            _pop()


class Pack:
    """The function that autograd calls for each tensor that it saves."""

    __slots__ = ("holding", "weights", "inner")

    def __init__(self, holding: Holding, weights: dict[int, Weight], inner: Callable[[Any], Any] | None) -> None:
        self.holding = holding
        self.weights = weights
        self.inner = inner

    def __call__(self, tensor: torch.Tensor) -> Any:
        weights = found_in(tensor, self.weights)
        if weights:
            self.holding.saved = True
            return _SavedWeight(weights, tensor)
        return Kept(tensor) if self.inner is None else self.inner(tensor)
