"""How the contents of a storage were made: recorded while operations run, below autograd and autocast.

A recipe is an operation with its arguments. It holds none of the memory of its arguments. A note of how a storage was
made ends with the storage, and with the first operation that writes to the storage. Nothing is noted inside functions
of the program (`torch.autograd.Function`) and inside compiled code, because other kernels write to memory there. Memory
of the graph that an operation uses without gradients counts as written, because functions of the program do that.
"""

# mypy: disable-error-code="import-not-found,misc,no-untyped-call,unused-ignore"
from __future__ import annotations

import weakref
from typing import Any

import torch
from torch.utils import _python_dispatch

from ._spill_cheap import CHEAP, DROPOUT, SEVERAL, Run, masked
from ._spill_tensors import end_sharing, is_plain
from ._subclasses import plain_parts

_graph_task = torch._C._current_graph_task_id
_grad_enabled = torch.is_grad_enabled
_next_node: Any = torch._C._autograd._get_sequence_nr  # the number of the next node of a graph
_Tensor, _Parameter = torch.Tensor, torch.nn.Parameter
_PLACE, _RECIPE = "_stagehand_place", "_stagehand_recipe"
_MOST_STEPS = 64  # operations between a result and the arguments that it is computed from
_MOST_PACKED = 4


class Place:
    """What is known of the memory of a storage. It lives as long as the storage, or as long as a recipe names it."""

    __slots__ = ("writes", "packed")

    def __init__(self) -> None:
        self.writes = 0  # the number of operations that have written to it
        self.packed: list[tuple[weakref.ref[Any], int, int]] = []  # with versions, and numbers of writes

    def note(self, packed: Any, version: int) -> None:
        """Notes that the hooks have packed a tensor over this memory."""
        if len(self.packed) >= _MOST_PACKED:
            del self.packed[0]
        self.packed.append((weakref.ref(packed), version, self.writes))

    def found(self, version: int) -> list[Any]:
        """Returns what the hooks have packed with the contents of now, the latest first."""
        here = [one for one, of, writes in self.packed if of == version and writes == self.writes]
        return [packed for one in reversed(here) if (packed := one()) is not None]


class Argument:
    """A tensor that an operation had as an argument."""

    __slots__ = ("place", "tensor", "size", "stride", "offset", "dtype", "version", "writes", "recipe")

    def __init__(self, tensor: torch.Tensor) -> None:
        storage = tensor.untyped_storage()
        self.place = place_of(storage)
        self.tensor = weakref.ref(tensor)
        self.size = tensor.size()
        self.stride = tensor.stride()
        self.offset = tensor.storage_offset()
        self.dtype = tensor.dtype
        self.version = tensor._version
        self.writes = self.place.writes
        recipe: Recipe | None = recipe_of(storage, self.version, self.place)
        linked = recipe is not None and not recipe.saved and recipe.steps < _MOST_STEPS and recipe.dtype == self.dtype
        self.recipe: Recipe | None = recipe if linked else None

    @property
    def bytes(self) -> int:
        return int(self.size.numel() * self.dtype.itemsize)

    def unchanged(self) -> bool:
        return self.writes == self.place.writes


class Recipe:
    """An operation whose result is cheap to compute again."""

    __slots__ = (
        "run",
        "arguments",
        "named",
        "size",
        "stride",
        "dtype",
        "device",
        "version",
        "writes",
        "steps",
        "inputs",
        "saved",
        "made",
    )

    def __init__(self, run: Run, arguments: tuple[Any, ...], named: dict[str, Any], result: torch.Tensor) -> None:
        self.run = run
        self.inputs: list[Argument] = []
        self.arguments = tuple(self._argument(one) for one in arguments)
        self.named = {name: self._argument(one) for name, one in named.items()}
        self.size = result.size()
        self.stride = result.stride()
        self.dtype = result.dtype
        self.device = result.device
        self.version = result._version
        self.writes = 0
        self.steps: int = 1 + max((one.recipe.steps for one in self.inputs if one.recipe is not None), default=0)
        self.saved = False
        self.made: Any = lambda: None  # a weak reference to what computes it

    def _argument(self, value: Any) -> Any:
        if isinstance(value, _Tensor):
            made = Argument(value)
            self.inputs.append(made)
            return made
        if isinstance(value, (list, tuple)):
            return [self._argument(one) for one in value]
        return value

    @property
    def bytes(self) -> int:
        return int(self.size.numel() * self.dtype.itemsize)


def place_of(storage: torch.UntypedStorage) -> Place:
    place: Place | None = getattr(storage, _PLACE, None)
    if place is None:
        place = Place()
        setattr(storage, _PLACE, place)
    return place


def recipe_of(storage: torch.UntypedStorage, version: int, place: Place) -> Recipe | None:
    """Returns how a storage was made, if it was not changed since. Its contents may be saved by now."""
    recipe: Recipe | None = getattr(storage, _RECIPE, None)
    if recipe is None or recipe.version != version or recipe.writes != place.writes:
        return None
    return recipe


def note_saved(storage: torch.UntypedStorage) -> None:
    """Notes that the contents of a storage are saved, so that nothing behind them is needed."""
    recipe: Recipe | None = getattr(storage, _RECIPE, None)
    if recipe is not None:
        recipe.saved = True


def _tensors(values: Any) -> list[torch.Tensor] | None:
    """Returns the tensors among arguments, or None if one of them is more than elements in memory."""
    found: list[torch.Tensor] = []
    for value in values:
        if isinstance(value, _Tensor):
            if type(value) not in (_Tensor, _Parameter) or not is_plain(value) or value.is_inference():
                return None
            found.append(value)
        elif isinstance(value, (list, tuple)) and value and isinstance(value[0], _Tensor):
            inner = _tensors(value)
            if inner is None:
                return None
            found += inner
    return found


class Record(_python_dispatch.TorchDispatchMode):
    """The mode that notes how results are made. It is pushed and popped on a thread without the flags that PyTorch's
    own `with` sets for all threads.
    """

    supports_higher_order_operators = True

    def __init__(self) -> None:
        super().__init__()
        self._last: Place | None = None  # the memory of the result that was noted last
        self._node = -1  # the next node at that time
        self.apart = -1  # the next node when an operation last ran without gradients

    def in_function(self) -> bool:
        """Whether a function of the program saves a tensor now: nodes of PyTorch save before their operations run."""
        return bool(self.apart == _next_node())

    def has_made(self, place: Place) -> bool:
        """Whether a result of the node that is being made is in this memory: its operation has run."""
        return self._last is place and bool(self._node == _next_node())

    @classmethod
    def is_infra_mode(cls) -> bool:
        return True

    @classmethod
    def ignore_compile_internals(cls) -> bool:
        return True

    def __torch_dispatch__(self, func: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
        written = _WRITTEN.get(func)
        if written is None:
            written = _WRITTEN[func] = _written(func)
        if written:
            _note_writes(written, args, kwargs or {})
        if not _grad_enabled() and _graph_task() == -1:
            self.apart = _next_node()
            _note_uses(args)
        result = func(*args, **kwargs) if kwargs else func(*args)
        if func in CHEAP or func is DROPOUT:
            self._note(func, args, kwargs or {}, result)
        return result

    def _note(self, func: Any, args: tuple[Any, ...], named: dict[str, Any], result: Any) -> None:
        if not _grad_enabled() or _graph_task() != -1:
            return
        tensors = _tensors(args)
        if tensors is None or any(isinstance(one, _Tensor) for one in named.values()):
            return
        if not any(one.requires_grad for one in tensors):
            return
        if func is DROPOUT:
            result, mask = result
            recipe = Recipe(masked, (args[0], mask, 1 - args[1]), {}, result)
        else:
            if func in SEVERAL:
                result = result[0]
            recipe = Recipe(CHEAP[func], args, named, result)
        storage = result.untyped_storage()
        if result.storage_offset() or any(one.device != result.device and one.dim() for one in tensors):
            return
        place = place_of(storage)
        recipe.writes = place.writes
        setattr(storage, _RECIPE, recipe)
        self._last, self._node = place, _next_node()


# For each operation: the positions and names of the arguments that it writes to.
_WRITTEN: dict[Any, tuple[tuple[int, str], ...]] = {}


# Operations that write to arguments without a word of it in their schemas: to the statistics of a batch norm.
_UNTOLD = {
    f"aten::{name}": arguments
    for names, arguments in (
        ("native_batch_norm cudnn_batch_norm miopen_batch_norm", ((3, "running_mean"), (4, "running_var"))),
        ("batch_norm_gather_stats batch_norm_gather_stats_with_counts", ((3, "running_mean"), (4, "running_var"))),
        ("batch_norm_update_stats", ((1, "running_mean"), (2, "running_var"))),
    )
    for name in names.split()
}


def _written(func: Any) -> tuple[tuple[int, str], ...]:
    # The schema says that it writes. It only tells the allocator which stream uses the memory.
    if func is torch.ops.aten.record_stream.default:
        return ()
    schema = getattr(func, "_schema", None)
    if schema is None:
        return ()
    collective = schema.name.startswith("c10d::")  # these schemas do not tell either
    return _UNTOLD.get(schema.name, ()) + tuple(
        (number, one.name)
        for number, one in enumerate(schema.arguments)
        if collective or (one.alias_info is not None and one.alias_info.is_write)
    )


def _note_writes(written: tuple[tuple[int, str], ...], args: tuple[Any, ...], named: dict[str, Any]) -> None:
    for number, name in written:
        _note_write(args[number] if number < len(args) else named.get(name))


def _note_write(value: Any) -> None:
    if isinstance(value, (list, tuple)):
        for one in value:
            _note_write(one)
    elif isinstance(value, _Tensor):
        for tensor in plain_parts(value):
            try:
                storage = tensor.untyped_storage()
            except (NotImplementedError, RuntimeError):  # transforms of functions have such tensors
                continue
            end_sharing(storage)
            place: Place | None = getattr(storage, _PLACE, None)
            if place is not None:
                place.writes += 1


def _note_uses(values: Any) -> None:
    """Notes that an operation uses memory of the graph without gradients."""
    for value in values:
        if isinstance(value, (list, tuple)):
            _note_uses(value)
        elif type(value) is _Tensor and value.requires_grad and not _is_leaf(value):
            _note_write(value)


def _is_leaf(tensor: torch.Tensor) -> bool:
    try:
        return bool(tensor.is_leaf)
    except RuntimeError:  # a view with others beside it that was changed without gradients, so that it has no node
        return False


def push(record: Record) -> None:
    _python_dispatch._push_mode(record)


def pop() -> None:
    _python_dispatch._pop_mode()
