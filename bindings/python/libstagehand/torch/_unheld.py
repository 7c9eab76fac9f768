"""Operations on weights whose block is not held: a module reads a weight that another module holds.

The block is held for the operation. So the runtime learns the operation's place in the order of a step, and has the
block there in time from the second step on.
"""

# mypy: disable-error-code="import-not-found,misc,no-untyped-call,unused-ignore"
from __future__ import annotations

from collections.abc import Callable, Iterator
from contextlib import contextmanager
from typing import Any

import torch
from torch.utils._pytree import tree_iter, tree_map

from .._errors import BudgetError
from .._generated import Status
from .._runtime import Runtime
from ._aliases import leave, others_over
from ._holding import Holding
from ._hooks import refuse_untold_training
from ._key import closed, compiled_use, has_key, is_compiling, without_key, written
from ._loading import Updates
from ._memory import lazily, placed_copy, strided
from ._plainly import plainly
from ._saved import SavedTensors
from ._subclasses import ENTRY, found_in, is_wrapper
from ._tracked import is_seen, tracked
from ._views import as_view
from ._weights import HeldBlock, Place, Weight, _data

_clone = torch.Tensor.clone
_as_strided = torch.ops.aten.as_strided.default
_storage = torch.Tensor.untyped_storage
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
        # Notes a parameter that was made of a view. It has the memory of the weight when streaming ends.
        self.tie: Callable[[torch.Tensor], None] = lambda parameter: None

    def __call__(self, operation: Any, args: Any, kwargs: Any) -> Any:
        return tree_map(as_view, self._called(operation, args, kwargs))

    def _called(self, operation: Any, args: Any, kwargs: Any) -> Any:
        weights = [weight for value in tree_iter((args, kwargs)) for weight in self.weights_in(value)]
        blocks = list(dict.fromkeys(weight.block for weight in weights if not weight.block.open))
        if not blocks:
            return self._make(operation, args, kwargs)
        with self._holding.within_node(blocks) as is_held:
            if is_held:
                with self._saving():
                    return self._make(operation, args, kwargs)
        computes = self._holding.computes()
        if not computes:
            _refuse_special(operation, (args, kwargs), weights)
        plain = _transforms() is None and not any(map(_has_parts, tree_iter((args, kwargs))))
        if plain and _copies_never(operation):
            return without_key(operation, args, kwargs)
        if any(map(self.weights_in, written(operation, args, kwargs))):
            return self._write(operation, args, kwargs)
        if computes:
            return self._read(operation, args, kwargs, blocks)
        # A step of another thread may be under way, so nothing is held.
        if plain and _may_view(operation):  # the operations that it is made of come here again
            return operation.decompose(*args, **kwargs)
        return self._by_source(operation, args, kwargs, blocks)

    def weights_in(self, value: Any) -> tuple[Weight, ...]:
        """Returns the weights that an argument is, or is a view of."""
        if not isinstance(value, torch.Tensor) or not (is_wrapper(value) or has_key(value)):
            return ()
        return found_in(value, self._weights)

    def _read(self, operation: Any, args: Any, kwargs: Any, blocks: list[HeldBlock]) -> Any:
        if torch.is_grad_enabled():
            self._holding.trained_forward()
            refuse_untold_training(blocks)
        try:
            with self._saving(), self._holding.borrowing(blocks):
                return tree_map(self._close, self._make(operation, args, kwargs))
        except BudgetError as error:
            if error.status != Status.ERROR_HELD:  # the budget has no room for all blocks at once
                raise
        return self._by_source(operation, args, kwargs, blocks)

    @contextmanager
    def _saving(self) -> Iterator[None]:
        """Weights that autograd saves for an operation are acquired again when they are needed."""
        pushed = torch.is_grad_enabled() and self._saved.push(by_module=False)
        try:
            yield
        finally:
            if pushed:
                self._saved.pop()

    def _by_source(self, operation: Any, args: Any, kwargs: Any, blocks: list[HeldBlock]) -> Any:
        """Makes an operation with copies of the sources on the device."""
        self._write_back(blocks)
        copies: dict[int, tuple[torch.Tensor, torch.Tensor]] = {}  # by the address of the storage, with the original
        is_plain = operation not in _RESOLVE and _transforms() is None

        def copied(value: Any) -> Any:
            made = self._from_source(value)
            if is_plain and made is not value:
                copies[_address(made)] = value, made
            return made

        def on_weight(made: Any) -> Any:
            """Gives a view of the weight for a view of the copy, whatever operation has made it."""
            if not isinstance(made, torch.Tensor) or made.layout != torch.strided or not made.numel():
                return made  # tensors without elements have no address to know them by
            if _address(made) not in copies:
                return made
            value, copy = copies[_address(made)]
            first = value.storage_offset() + made.storage_offset() - copy.storage_offset()
            return without_key(_as_strided, (value, made.size(), made.stride(), first), {})

        made = operation(*tree_map(copied, args), **tree_map(copied, kwargs))
        return tree_map(on_weight, made) if is_plain else made

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

    def readable(self, view: torch.Tensor, always: bool, copied: bool) -> torch.Tensor:
        (weight,) = self.weights_in(view)
        if is_compiling():
            raise compiled_use(weight.places[0].name)
        if not always:
            if weight.block.held():
                return view
            if self._holding.computes():
                with torch.no_grad():
                    return placed_copy(view) if copied else view
        self._write_back([weight.block])
        with plainly():
            made = self._host(view, weight.to_give())
            for place in weight.places:
                if place.original.dtype == view.dtype:  # so that a change is seen, it shares the versions of the data
                    shared = torch.as_strided(place.host(), made.size(), made.stride(), made.storage_offset())
                    made = lazily(shared, view)
                    break
        return made.requires_grad_(view.requires_grad)

    def _host(self, value: torch.Tensor, source: torch.Tensor | None = None) -> torch.Tensor:
        """Returns the same view of the source, or of a copy of the source."""
        (weight,) = self.weights_in(value)
        offset = int(value.storage_offset() * value.element_size() - weight.memory.storage_offset())
        return lazily(strided(weight.source() if source is None else source, offset, value), value)

    def _from_source(self, value: Any) -> Any:
        if not self.weights_in(value) or is_wrapper(value):
            return value
        with torch.no_grad():
            host = self._host(value)
            copied = host.to(value.device, copy=True)
            if copied.stride() != host.stride() and torch._debug_has_internal_overlap(host) != 1:
                # A result that is the copy itself, or a view of it, is known by its strides.
                copied = torch.empty_strided(
                    host.size(), host.stride(), dtype=copied.dtype, device=copied.device
                ).copy_(copied)
        return tracked(value, copied) if is_seen(value) else copied

    def _write(self, operation: Any, args: Any, kwargs: Any) -> Any:
        """Makes an operation in place on the sources. The blocks are loaded again before they are used again."""
        changed = list(written(operation, args, kwargs))
        for value in changed:
            for weight in self.weights_in(value):
                _refuse_write(operation, weight, by_itself=ENTRY in value.__dict__)
        if torch.Tag.inplace_view in operation.tags:
            return self._set(operation, args, kwargs, changed[0])
        results = {id(value) for value in written(operation, args, kwargs, results=True)}
        # An operation may resize a tensor for its result, which the source must not be. So a result goes to a copy of
        # the source, as do the arguments that may overlap with it.
        copies = {
            weight: weight.source().clone()
            for value in changed
            if id(value) in results
            for weight in self.weights_in(value)
        }
        made_for: dict[int, tuple[torch.Tensor, torch.Tensor]] = {}  # each argument and its tensor on the host, by id

        def on_host(value: Any) -> Any:
            if not isinstance(value, torch.Tensor):
                return value
            if id(value) not in made_for:
                weight = next(iter(self.weights_in(value)), None)
                made_for[id(value)] = value, self._host(value, copies.get(weight)) if weight else value.cpu()
            return made_for[id(value)][1]

        with self._writing([weight for value in changed for weight in self.weights_in(value)]), torch.no_grad():
            made = operation(*tree_map(on_host, args), **tree_map(on_host, kwargs))
            pairs = [made_for[id(value)] for value in changed]
            for value, host in pairs:
                for weight in self.weights_in(value):
                    if host.shape != value.shape:
                        raise _reshaped(operation, weight.places[0].name, value.shape, host.shape)
            for value, host in pairs:
                if not self.weights_in(value):
                    if host is not value:
                        value.resize_(host.shape).copy_(host)
                elif id(value) in results:
                    self._host(value).copy_(host)
        given_back = {id(host): value for value, host in pairs}
        device = changed[0].device
        return tree_map(
            lambda one: given_back.get(id(one), one.to(device)) if isinstance(one, torch.Tensor) else one, made
        )

    @contextmanager
    def _writing(self, weights: list[Weight]) -> Iterator[None]:
        """The sources of the weights are written meanwhile."""
        weights = list(dict.fromkeys(weights))
        blocks = list(dict.fromkeys(weight.block for weight in weights))
        self._write_back(blocks)
        for block in blocks:
            self._updates.begin(block)
        try:
            yield
        finally:
            for block in blocks:
                self._updates.end(block)
            for place in (place for weight in weights for place in weight.places):
                place.note_write()

    def _set(self, operation: Any, args: Any, kwargs: Any, changed: torch.Tensor) -> Any:
        """Makes an operation that gives a tensor another shape or other memory, like set_()."""
        with torch.no_grad():
            made = torch.empty_strided(
                changed.size(), changed.stride(), dtype=changed.dtype, device=changed.device
            )  # which the operation changes in place of the tensor, to see what it makes of it
            before = _address(made)
            operation(*tree_map(lambda value: made if value is changed else value, args), **kwargs)
            if ENTRY not in changed.__dict__:  # a view of the weight, or its data, which changes alone
                if _address(made) == before:
                    # The weight, whose versions it may share, is not changed.
                    with torch.autograd._unsafe_preserve_version_counter(changed):  # type: ignore[attr-defined]
                        return without_key(operation, args, kwargs)
                _data.__set__(changed, made)
                return changed
            place = changed.__dict__[ENTRY].places[0]
            if (made.shape, made.dtype) != (changed.shape, changed.dtype):
                raise _reshaped(operation, place.name, changed.shape, made.shape)
            if _address(made) != before:
                self.replace(place, made)
        return changed

    def replace(self, place: Place, value: torch.Tensor, is_over_source: bool = False) -> None:
        """Gives a weight other contents, as `weight.data = value` does. Tensors that were made from the weight before
        keep the contents so far. A tensor over the source may have been changed without its version: `other =
        weight.float(); other.data -= 1; weight.data = other`.
        """
        weight = place.weight
        _refuse_write("set_data", weight, by_itself=False)
        if len(weight.places) > 1 and not is_over_source:
            names = ", ".join(other.name for other in weight.places if other is not place)
            raise RuntimeError(
                f"{place.name} is streamed and shares memory with {names}, so its data cannot be replaced: "
                "change the data in place, or before streaming"
            )
        with torch.no_grad():
            value = value.to("cpu", copy=True)  # it may be a tensor over the weight
            others = [] if is_over_source else others_over(weight, set(self._weights.values()))
            with self._writing([weight]):
                leave(weight, others)
                strided(weight.host, place.offset, place.original).copy_(value)


def _has_parts(value: Any) -> bool:
    return isinstance(value, torch.Tensor) and is_wrapper(value)


def _copies_never(operation: Any) -> bool:
    """Whether an operation only makes a view. An operation that is made of others (reshape) may also copy."""
    return bool(getattr(operation, "is_view", False)) and not operation.has_kernel_for_dispatch_key(
        torch._C.DispatchKey.CompositeImplicitAutograd
    )


def _may_view(operation: Any) -> bool:
    """Whether an operation is made of others, one of which may make a view. Some that never make a view (max_pool1d)
    read memory by themselves.
    """
    return (
        operation not in _RESOLVE
        and operation.has_kernel_for_dispatch_key(torch._C.DispatchKey.CompositeImplicitAutograd)
        and any(result.alias_info is not None for result in operation._schema.returns)
    )


def _address(tensor: torch.Tensor) -> int:
    return int(_storage(tensor).data_ptr())


def _reshaped(operation: Any, name: str, before: torch.Size, after: torch.Size) -> RuntimeError:
    return RuntimeError(
        f"{operation} would give {name} the shape {tuple(after)}, but it is streamed with the shape {tuple(before)}: "
        "end streaming first"
    )


def _refuse_write(operation: object, weight: Weight, by_itself: bool) -> None:
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
