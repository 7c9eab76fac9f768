"""Operations on weights whose block is not held: a module reads a weight that another module holds.

The block is held for the operation. So the runtime learns the operation's place in the order of a step, and has the
block there in time from the second step on.
"""

# mypy: disable-error-code="import-not-found,misc,no-untyped-call,unused-ignore"
from __future__ import annotations

from collections.abc import Callable, Iterator
from typing import Any

import torch
from torch.utils._pytree import tree_iter, tree_map

from .._errors import BudgetError
from .._generated import Status
from .._runtime import Runtime
from ._holding import Holding
from ._hooks import refuse_untold_training
from ._key import closed, has_key, without_key
from ._loading import Updates
from ._memory import strided
from ._saved import SavedTensors
from ._subclasses import ENTRY, found_in, is_wrapper
from ._weights import HeldBlock, Weight, _data

_clone = torch.Tensor.clone
_transforms: Callable[[], object] = torch._C._functorch.peek_interpreter_stack  # vmap() and the like, if under way
# Functions that read memory past the dispatcher (numpy(), tolist(), printing) begin with these.
_RESOLVE = (torch.ops.aten.resolve_conj.default, torch.ops.aten.resolve_neg.default)


class UnheldOperations:
    """Makes the operations on unheld weights of one model."""

    def __init__(
        self,
        runtime: Runtime,
        holding: Holding,
        saved: SavedTensors,
        updates: Updates,
        weights: dict[int, Weight],
    ) -> None:
        self._runtime = runtime
        self._holding = holding
        self._saved = saved
        self._updates = updates
        self._weights = weights

    def __call__(self, operation: Any, args: Any, kwargs: Any) -> Any:
        weights = [weight for value in tree_iter((args, kwargs)) for weight in self._in(value)]
        blocks = list(dict.fromkeys(weight.block for weight in weights if not weight.block.held()))
        if not blocks or all([self._holding.read(block) for block in blocks]):  # a node of a backward holds them
            return self._make(operation, args, kwargs)
        computes = self._holding.computes()
        if not computes:
            _refuse_special(operation, (args, kwargs), weights)
        if _copies_never(operation) and not any(map(_has_parts, tree_iter((args, kwargs)))) and _transforms() is None:
            return without_key(operation, args, kwargs)
        written = [value for value in _written(operation, args, kwargs) if self._in(value)]
        if written:
            return self._write(operation, args, kwargs, written)
        if not computes:  # a step of another thread may be under way, so nothing is held
            return self._by_source(operation, args, kwargs, blocks)
        return self._read(operation, args, kwargs, blocks)

    def _in(self, value: Any) -> tuple[Weight, ...]:
        """Returns the weights that an argument is, or is a view of."""
        if not isinstance(value, torch.Tensor) or not (is_wrapper(value) or has_key(value)):
            return ()
        return found_in(value, self._weights)

    def _read(self, operation: Any, args: Any, kwargs: Any, blocks: list[HeldBlock]) -> Any:
        pushed = False
        if torch.is_grad_enabled():
            self._holding.trained_forward()
            refuse_untold_training(blocks)
            pushed = self._saved.push()
        try:
            with self._holding.borrowing(blocks):
                return tree_map(self._close, self._make(operation, args, kwargs))
        except BudgetError as error:
            if error.status != Status.ERROR_HELD:  # the budget has no room for all blocks at once
                raise
        finally:
            if pushed:
                self._saved.pop()
        return self._by_source(operation, args, kwargs, blocks)

    def _by_source(self, operation: Any, args: Any, kwargs: Any, blocks: list[HeldBlock]) -> Any:
        """Makes an operation with copies of the sources on the device."""
        self._write_back(blocks)
        return operation(*tree_map(self._from_source, args), **tree_map(self._from_source, kwargs))

    def _write_back(self, blocks: list[HeldBlock]) -> None:
        trained = [block.block for block in blocks if block.mutable]
        if trained:
            self._runtime.write_back(trained)

    def _make(self, operation: Any, args: Any, kwargs: Any) -> Any:
        made = without_key(operation, args, kwargs)
        return _clone(made) if operation in _RESOLVE else made

    def _close(self, made: Any) -> Any:
        """Gives a view in a result the key, because the block is not held any longer. A wrapper has no key."""
        if not isinstance(made, torch.Tensor) or has_key(made) or not found_in(made, self._weights):
            return made
        if is_wrapper(made) or _transforms() is not None:
            return _clone(made)
        with torch.no_grad():
            _data.__set__(made, closed(_data.__get__(made)))
        return made

    def _host(self, value: torch.Tensor) -> torch.Tensor:
        """Returns the same view of the source."""
        (weight,) = self._in(value)
        offset = value.storage_offset() * value.element_size() - weight.memory.storage_offset()
        return strided(weight.source(), int(offset), value)

    def _from_source(self, value: Any) -> Any:
        if not self._in(value) or is_wrapper(value):
            return value
        with torch.no_grad():
            copied = self._host(value).to(value.device, copy=True)
        return _Copy.apply(value, copied) if torch.is_grad_enabled() and value.requires_grad else copied

    def _write(self, operation: Any, args: Any, kwargs: Any, written: list[torch.Tensor]) -> Any:
        """Makes an operation in place on the sources. The block is loaded again before it is used again."""
        weights = list(dict.fromkeys(weight for value in written for weight in self._in(value)))
        for weight in weights:
            _refuse_write(operation, weight, by_itself=any(ENTRY in value.__dict__ for value in written))

        def on_host(value: Any) -> Any:
            if not isinstance(value, torch.Tensor):
                return value
            return self._host(value) if self._in(value) else value.cpu()

        blocks = list(dict.fromkeys(weight.block for weight in weights))
        self._write_back(blocks)
        for block in blocks:
            self._updates.begin(block)
        try:
            with torch.no_grad():
                operation(*tree_map(on_host, args), **tree_map(on_host, kwargs))
        finally:
            for block in blocks:
                self._updates.end(block)
            for place in (place for weight in weights for place in weight.places):
                place.note_write()
        return written[0]


class _Copy(torch.autograd.Function):
    """A copy of a weight, whose gradient is that of the weight."""

    @staticmethod
    def forward(ctx: Any, weight: torch.Tensor, copied: torch.Tensor) -> torch.Tensor:
        return copied

    @staticmethod
    def backward(ctx: Any, gradient: torch.Tensor) -> tuple[torch.Tensor, None]:
        return gradient, None


def _has_parts(value: Any) -> bool:
    return isinstance(value, torch.Tensor) and is_wrapper(value)


def _copies_never(operation: Any) -> bool:
    """Whether an operation only makes a view. An operation that is made of others (reshape) may also copy."""
    return bool(getattr(operation, "is_view", False)) and not operation.has_kernel_for_dispatch_key(
        torch._C.DispatchKey.CompositeImplicitAutograd
    )


def _written(operation: Any, args: Any, kwargs: Any) -> Iterator[torch.Tensor]:
    """Yields the tensors that an operation changes in place."""
    schema = operation._schema
    if schema.is_mutable:
        arguments = dict(zip((argument.name for argument in schema.arguments), args)) | kwargs
        for argument in schema.arguments:
            if argument.alias_info is not None and argument.alias_info.is_write:
                yield from (one for one in tree_iter(arguments.get(argument.name)) if isinstance(one, torch.Tensor))


def _refuse_write(operation: Any, weight: Weight, by_itself: bool) -> None:
    """Refuses a change in place. `by_itself` tells that the weight was given to the operation, and not its data."""
    why = ""
    if weight.fixed:
        why = f"the weight is {weight.fixed}"
    elif weight.block.mutable and by_itself:  # as by an optimizer over all parameters
        why = "the weight is trained. Its data may be changed"
    if why:
        name = weight.places[0].name
        raise RuntimeError(
            f"{operation} changes {name} in place while its block is not held, and cannot change the source: {why}. "
            f"Change the weight before it is streamed, or keep it on the device by outside={name!r}"
        )


def _refuse_special(operation: Any, values: Any, weights: list[Weight]) -> None:
    """Refuses operations on tensors that are more than their bytes. Their own class says what an operation means, and
    they have it while modules run only.
    """
    for value in tree_iter(values):
        entry = value.__dict__.get(ENTRY) if isinstance(value, torch.Tensor) else None
        if _has_parts(value) or (entry is not None and entry.special):
            name = weights[0].places[0].name
            raise RuntimeError(
                f"{operation} reads {name}, but its block {weights[0].block.name} is not held, because no module of "
                "the model runs. Read the weight by state_dict(), detach(), cpu() and the like, or keep it on the "
                f"device by outside={name!r}"
            )
