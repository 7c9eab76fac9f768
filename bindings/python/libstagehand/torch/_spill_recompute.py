"""Saved tensors that are computed again instead of being kept or moved: results of cheap operations.

A saved tensor whose memory has a recipe (_spill_record.py) is computed again if the arguments are there: saved by other
nodes, computed again themselves, parameters, or small enough to be saved for it. The operations run again below
autograd and autocast, on the stream of the node, with arguments of the same bits, sizes and strides.
"""

# mypy: disable-error-code="import-not-found,misc,no-untyped-call,unused-ignore"
from __future__ import annotations

import itertools
import threading
import weakref
from collections import deque
from collections.abc import Callable
from typing import Any

import torch

from ._kept import Kept
from ._sharded import is_given_up
from ._spill_saved import Saved
from ._spill_record import Argument, Recipe, Record, note_saved, place_of, pop, push, recipe_of
from ._spill_tensors import is_of_weight, is_plain, overlaps
from ._subclasses import ENTRY

_MOST_KEPT = 3
# Bytes that the device may read and write for each byte that is saved. A link is about 80 times slower than that.
_MOST_WORK = 32
_numbers = itertools.count(1)
_Save = Callable[[torch.Tensor], Any]


class Recomputed:
    """A saved tensor that is computed again."""

    __slots__ = ("made", "size", "stride", "offset")

    def __init__(self, made: Made, tensor: torch.Tensor) -> None:
        self.made = made
        made.saved = True
        self.size = tensor.size()
        self.stride = tensor.stride()
        self.offset = tensor.storage_offset()
        made.count += 1

    def __del__(self) -> None:
        made = getattr(self, "made", None)
        if made is not None:
            made.unused()


class Part:
    """An argument of a result that is computed again: packed by the hooks, or computed again, too."""

    __slots__ = ("packed", "size", "stride", "offset")

    def __init__(self, packed: Any, argument: Argument, begin: int) -> None:
        self.packed = packed
        self.size = argument.size
        self.stride = argument.stride
        self.offset = argument.offset - begin  # from the first element of what was packed
        # What comes back for a node is kept until the other one has it.
        if type(packed) is Saved:
            packed.contents.count += 1
        elif type(packed) is Made:
            packed.count += 1

    def __del__(self) -> None:
        packed = getattr(self, "packed", None)
        if type(packed) is Saved:
            packed.contents.unused()
        elif type(packed) is Made:
            packed.unused()


class Made:
    """A result that is computed again. Several saved tensors may be views of it."""

    __slots__ = (
        "number",
        "saved",
        "bytes",
        "work_bytes",
        "run",
        "arguments",
        "named",
        "size",
        "stride",
        "dtype",
        "device",
        "count",
        "result",
        "version",
        "stream",
        "__weakref__",
    )

    def __init__(self, recipe: Recipe, parts: dict[int, Part], work_bytes: int) -> None:
        self.number = next(_numbers)
        self.saved = False  # whether a node has saved the result itself
        self.bytes = recipe.bytes
        self.work_bytes = work_bytes  # what computing it reads and writes
        self.run = recipe.run
        self.arguments = tuple(_with_parts(one, parts) for one in recipe.arguments)
        self.named = recipe.named
        self.size = recipe.size
        self.stride = recipe.stride
        self.dtype = recipe.dtype
        self.device = recipe.device
        self.count = 0
        self.result: torch.Tensor | None = None
        self.version = 0
        self.stream = 0

    def unused(self) -> None:
        self.count -= 1
        if self.count <= 0:
            self.result = None


def _with_parts(value: Any, parts: dict[int, Part]) -> Any:
    if type(value) is Argument:
        return parts[id(value)]
    return [_with_parts(one, parts) for one in value] if type(value) is list else value


class _Way:
    """How a result can be computed again: what is there, and what has to be saved for it."""

    __slots__ = ("recipe", "found", "saved_bytes", "work_bytes")

    def __init__(self, recipe: Recipe) -> None:
        self.recipe = recipe
        self.found: dict[int, tuple[str, Any]] = {}
        self.saved_bytes = 0  # of arguments that nobody else has saved
        self.work_bytes = recipe.bytes


class RecomputeStats:
    """Counters since the beginning. Bytes are those of memory that several tensors may share."""

    __slots__ = ("tensors", "bytes", "argument_bytes", "computed", "computed_bytes")

    def __init__(self) -> None:
        self.tensors = 0  # saved tensors that are computed again
        self.bytes = 0  # bytes that were not saved
        self.argument_bytes = 0  # bytes that were saved only to compute others
        self.computed = 0  # results that were computed again
        self.computed_bytes = 0

    def __repr__(self) -> str:
        return f"RecomputeStats({', '.join(f'{name}={getattr(self, name)}' for name in self.__slots__)})"


class Recompute:
    """Finds the saved tensors that can be computed again, and computes them."""

    def __init__(
        self, unpack: Callable[[Any], Any], save: _Save, stream: Callable[[torch.device], int], below: int = 0
    ) -> None:
        self._unpack = unpack
        self._save = save
        self._stream = stream
        self._below = below  # results with as many bytes or more are not computed again. 0: there is no bound
        self._recent: deque[Made] = deque()
        self._lock = threading.Lock()
        self._threads = threading.local()  # the modes that record, for each thread that has the hooks in force
        self.weights_go = False  # whether the memory of parameters goes before the backward (FSDP)
        self.stats = RecomputeStats()

    # Scopes.

    def enter(self) -> None:
        """Begins to record on this thread."""
        records = self._threads.__dict__.setdefault("records", [])
        records.append(Record())
        push(records[-1])

    def leave(self) -> None:
        pop()
        self._threads.records.pop()

    # Saving.

    def operation(self, tensor: torch.Tensor) -> Any:
        """Returns the operation that made a tensor, if it is cheap."""
        storage = tensor.untyped_storage()
        recipe = recipe_of(storage, tensor._version, place_of(storage))
        return None if recipe is None else recipe.run

    def pack(self, tensor: torch.Tensor) -> Recomputed | None:
        """Returns what stands for a tensor, or None if the tensor is not to be computed again."""
        storage = tensor.untyped_storage()
        place = place_of(storage)
        recipe = recipe_of(storage, tensor._version, place)
        if recipe is None or recipe.saved or tensor.dtype != recipe.dtype or 0 < self._below <= recipe.bytes:
            return None
        # Memory without a gradient may be written: by kernels that PyTorch does not know, and by that of the node.
        records = self._threads.__dict__.get("records", ())
        if tensor.grad_fn is None and not any(one.has_made(place) for one in records):
            return None
        if any(one.in_function() for one in records):
            return None
        made: Made | None = recipe.made()
        if made is None:
            way = self._way(recipe)
            gain = recipe.bytes - (0 if way is None else way.saved_bytes)
            if way is None or gain * 4 < recipe.bytes or way.work_bytes > _MOST_WORK * gain:
                return None
            made = self._follow(way)
            self.stats.bytes += recipe.bytes
        self.stats.tensors += 1
        return Recomputed(made, tensor)

    def note(self, packed: Saved, tensor: torch.Tensor) -> None:
        """Notes that a tensor is saved. Other results may be computed from it."""
        storage = tensor.untyped_storage()
        place_of(storage).note(packed, tensor._version)
        note_saved(storage)

    def _way(self, recipe: Recipe) -> _Way | None:
        way = _Way(recipe)
        for argument in recipe.inputs:
            way.work_bytes += argument.bytes
            found = self._find(argument)
            if found is None:
                return None
            way.found[id(argument)] = found
            if found[0] == "recipe":
                way.saved_bytes += found[1].saved_bytes
                way.work_bytes += found[1].work_bytes
            elif found[0] == "save":
                way.saved_bytes += argument.bytes
        return way

    def _find(self, argument: Argument) -> tuple[str, Any] | None:
        """Finds where an argument comes from."""
        if not argument.unchanged():
            return None
        for packed in argument.place.found(argument.version):
            if _covers(packed, argument):
                return "packed", packed
        recipe = argument.recipe
        if recipe is not None:
            made = recipe.made()
            if made is not None:
                return "made", made
        tensor = argument.tensor()
        if tensor is not None and (tensor._version != argument.version or not is_plain(tensor)):
            tensor = None
        if tensor is not None and is_of_weight(tensor):
            return self._find_weight(tensor)
        if recipe is not None and (way := self._way(recipe)) is not None:
            return "recipe", way
        return None if tensor is None or overlaps(tensor) else ("save", tensor)

    def _find_weight(self, weight: torch.Tensor) -> tuple[str, Any] | None:
        base = weight if weight._base is None else weight._base
        if ENTRY in base.__dict__ or is_given_up(weight):
            return None  # the memory of a streamed weight goes
        return ("save" if self.weights_go else "kept"), weight

    def _follow(self, way: _Way) -> Made:
        parts: dict[int, Part] = {}
        for argument in way.recipe.inputs:
            kind, value = way.found[id(argument)]
            begin: int = 0
            if kind == "packed":
                begin = value.offset
            elif kind == "kept":
                begin, value = int(argument.offset), Kept(value)
            elif kind == "recipe":
                # A result may be an argument twice.
                value = value.recipe.made() or self._follow(value)
            elif kind == "save":
                begin, value = int(argument.offset), self._save_copy(argument, value)
            parts[id(argument)] = Part(value, argument, begin)
        made = Made(way.recipe, parts, way.work_bytes)
        way.recipe.made = weakref.ref(made)
        return made

    def _save_copy(self, argument: Argument, tensor: torch.Tensor) -> Any:
        """Saves an argument that autograd has not saved. The program may change it, so it is copied."""
        for packed in argument.place.found(argument.version):  # saved for another argument just now
            if _covers(packed, argument) and packed.offset == argument.offset and packed.stride == argument.stride:
                return packed
        with torch.no_grad(), torch._C._DisableTorchDispatch():
            copy = torch.empty_strided(tensor.size(), tensor.stride(), dtype=tensor.dtype, device=tensor.device)
            copy.copy_(tensor)
        packed = self._save(copy)
        if type(packed) is Saved:
            packed.offset = argument.offset
            argument.place.note(packed, argument.version)
        self.stats.argument_bytes += argument.bytes
        return packed

    # Restoring.

    def unpack(self, saved: Recomputed) -> torch.Tensor:
        made = saved.made
        with torch.no_grad(), torch._C._DisableTorchDispatch():
            if torch.is_autocast_enabled(made.device.type):
                with torch.autocast(made.device.type, enabled=False):
                    result = self._result(made)
            else:
                result = self._result(made)
            return result.detach().as_strided(saved.size, saved.stride, saved.offset)

    def _result(self, made: Made) -> torch.Tensor:
        result = made.result
        if result is not None and result._version == made.version and made.stream == self._stream(result.device):
            if made.count <= 1:
                made.result = None
            return result
        result = self._compute(made)
        if made.count > 1:
            made.result, made.version, made.stream = result, result._version, self._stream(result.device)
            with self._lock:
                self._recent.append(made)
                if len(self._recent) > _MOST_KEPT:
                    self._recent.popleft().result = None
        return result

    def _compute(self, made: Made) -> torch.Tensor:
        arguments = [self._value(one) for one in made.arguments]
        result = made.run(*arguments, **made.named)
        self.stats.computed += 1
        self.stats.computed_bytes += result.nbytes
        if result.size() != made.size or result.stride() != made.stride or result.dtype != made.dtype:
            raise RuntimeError(
                f"a saved tensor of {list(made.size)} was to be computed again, and is {list(result.size())} now: "
                "use recompute=False"
            )
        return result

    def _value(self, argument: Any) -> Any:
        if type(argument) is list:
            return [self._value(one) for one in argument]
        if type(argument) is not Part:
            return argument
        packed = argument.packed
        tensor: torch.Tensor = self._result(packed) if type(packed) is Made else self._unpack(packed)
        offset = tensor.storage_offset() + argument.offset
        if tensor.size() == argument.size and tensor.stride() == argument.stride and not argument.offset:
            return tensor
        return tensor.as_strided(argument.size, argument.stride, offset)

    def forget(self) -> None:
        """Gives up results that are kept for other saved tensors. Called when a backward ends."""
        with self._lock:
            while self._recent:
                self._recent.popleft().result = None


def _covers(packed: Any, argument: Argument) -> bool:
    """Whether an argument lies in the memory of a saved tensor."""
    if type(packed) is not Saved or packed.dtype != argument.dtype or packed.contents.scope is not packed.on.scope:
        return False
    if packed.size == argument.size and packed.stride == argument.stride and packed.offset == argument.offset:
        return True
    end = packed.offset + _span(packed.size, packed.stride)
    return bool(packed.offset <= argument.offset and argument.offset + _span(argument.size, argument.stride) <= end)


def _span(size: torch.Size, stride: tuple[int, ...]) -> int:
    """The number of elements from the first one to the last one."""
    return 1 + sum((length - 1) * step for length, step in zip(size, stride)) if size.numel() else 0
