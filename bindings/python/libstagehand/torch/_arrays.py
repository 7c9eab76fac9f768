"""Arrays of NumPy, and other objects of Python, through which a program can write to the memory of a weight without
PyTorch noticing: `array = weight.numpy()`, and weights that are made by torch.from_numpy(array).

Neither the tensor nor its storage knows such an object. Python's garbage collector does not know arrays either, but
what has them.
"""

# mypy: disable-error-code="import-not-found,misc,no-untyped-call,unused-ignore"
from __future__ import annotations

import array
import gc
import logging
import mmap
import sys
from bisect import bisect_left
from collections.abc import Iterator
from inspect import CO_OPTIMIZED
from itertools import compress
from types import FrameType
from typing import Any

import torch

from .._native import ffi
from ._weights import Weight

_log = logging.getLogger("libstagehand.torch")
_BUFFERS = (bytearray, memoryview, array.array, mmap.mmap)


def find_arrays(weights: list[Weight]) -> None:
    """Finds the weights whose memory the program can write to through arrays, and warns of such writes."""
    suspects = [weight for weight in weights if _may_have_arrays(weight)]
    spans = _united(_writable_spans()) if suspects else []
    for weight in suspects:
        begin = weight.storage.data_ptr() + weight.storage_offset
        index = bisect_left(spans, (begin + weight.bytes,)) - 1
        weight.in_array = index >= 0 and spans[index][1] > begin
    found = [weight for weight in suspects if weight.in_array]
    if found:
        _log.warning(
            "steps do not see writes through NumPy to %s and %d other weights, which share memory with arrays. Change the "
            "weights instead of the arrays, or call weight.copy_(torch.from_numpy(array)) after such a write",
            found[0].places[0].name,
            len(found) - 1,
        )


def _may_have_arrays(weight: Weight) -> bool:
    """Whether somebody may have made an array of the weight, or the weight of an array. PyTorch does not resize such
    storages, and DLPack keeps the tensor.
    """
    if weight.from_file or weight.storage.device.type != "cpu":
        return False
    shared = weight.earlier or any(place.tensor._use_count() > 1 for place in weight.places)
    return bool(shared) or not weight.storage.resizable()


def _united(spans: Iterator[tuple[int, int]]) -> list[tuple[int, int]]:
    united: list[tuple[int, int]] = []
    for begin, end in sorted(spans):
        if united and begin <= united[-1][1]:
            united[-1] = united[-1][0], max(end, united[-1][1])
        else:
            united.append((begin, end))
    return united


def _writable_spans() -> Iterator[tuple[int, int]]:
    numpy = sys.modules.get("numpy")
    kinds = _BUFFERS if numpy is None else (numpy.ndarray, *_BUFFERS)
    for one in _objects(kinds):
        span = _span_of_buffer(one) if isinstance(one, _BUFFERS) else _span_of_array(one, kinds[0])
        if span is not None:
            yield span


def _span_of_buffer(one: Any) -> tuple[int, int] | None:
    try:
        memory = ffi.from_buffer("char[]", one, require_writable=True)
    except (BufferError, TypeError, ValueError):  # it is read-only, closed, or has gaps
        return None
    first = int(ffi.cast("uintptr_t", memory))
    return first, first + len(memory)


def _span_of_array(one: Any, kind: Any) -> tuple[int, int] | None:
    base = one
    while isinstance(base, kind) and not base.flags.writeable:
        base = base.base
    if not one.size or not isinstance(base, kind):
        return None
    first = int(one.__array_interface__["data"][0])
    reach = [(size - 1) * stride for size, stride in zip(one.shape, one.strides)]
    return first + sum(min(0, one) for one in reach), first + sum(max(0, one) for one in reach) + int(one.itemsize)


def _objects(kinds: tuple[type, ...]) -> Iterator[Any]:
    """Yields the objects of these kinds that the garbage collector's objects and the variables of functions have."""
    seen: set[int] = set()
    level = [*gc.get_objects(), *_variables()]
    while level:
        held = gc.get_referents(*level)
        types = list(map(type, held))
        wanted = {kind for kind in set(types) if issubclass(kind, kinds)}
        for one in compress(held, map(wanted.__contains__, types)):
            if id(one) not in seen:
                seen.add(id(one))
                yield one
        # The collector does not track these if they have nothing but arrays, numbers and the like.
        plain = {id(one): one for one in compress(held, map({dict, tuple}.__contains__, types))}
        level = [one for key, one in plain.items() if key not in seen and not gc.is_tracked(one)]
        seen.update(map(id, level))


def _variables() -> Iterator[list[Any]]:
    """Yields the values of the variables of all functions that are running."""
    for top in sys._current_frames().values():
        frame: FrameType | None = top
        while frame is not None:
            variables = frame.f_locals if frame.f_code.co_filename != __file__ else {}
            yield list(variables.values())
            # Before Python 3.13, this is a copy that the frame keeps: what a function deletes would live on. Somebody
            # else may have this copy, by locals(), and a debugger may be about to put it back.
            plain = frame.f_code.co_flags & CO_OPTIMIZED and isinstance(variables, dict) and frame.f_trace is None
            if plain and sys.getrefcount(variables) == 3:  # the frame, `variables`, and the argument
                variables.clear()
            frame = frame.f_back
