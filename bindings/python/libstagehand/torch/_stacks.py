"""Stacks: tensors that transformers puts together from tensors of files, such as the experts of a layer, which a file
has one by one. Streaming reads the parts from the files, so no stack is made in host memory.
"""

# mypy: disable-error-code="import-not-found,misc,no-untyped-call,unused-ignore"
from __future__ import annotations

import inspect
import threading
from bisect import bisect_right
from collections.abc import Iterator
from contextlib import contextmanager
from typing import Any

import torch
from torch import nn
from torch.utils._pytree import tree_leaves

from .._sources import Mapped, Source
from ._element_types import TYPES
from ._files import PackedTensor, TensorFiles, untouched
from ._headers import Tensor
from ._mappings import Mappings
from ._memory import buffer_of, byte_tensor

_TYPES = {kind: name for name, kind in TYPES.items()}
_IN_FILES = "the files of its parts"
# What a parameter tells without its contents.
_HARMLESS = {torch.Tensor.size, torch.Tensor.dim, torch.Tensor.numel, torch.Tensor.element_size} | {
    getattr(torch.Tensor, name).__get__ for name in ("shape", "dtype", "device", "nbytes", "requires_grad", "grad")
}


class _Part:
    """A tensor that lies whole in a mapped file, as bytes."""

    def __init__(self, tensor: torch.Tensor, packed: PackedTensor | None) -> None:
        self.memory = tensor
        self._packed = packed

    def sources(self, offset: int, bytes: int) -> Iterator[tuple[Source, int]]:
        if self._packed is not None:
            yield from self._packed.sources(self.memory.data_ptr() - self._packed.memory.data_ptr() + offset, bytes)
        else:
            yield Mapped(buffer_of(self.memory[offset : offset + bytes])), 0


class _Stack(PackedTensor):
    """The memory of a stack. It has the contents once somebody has asked for them."""

    def __init__(self, parts: list[_Part], memory: torch.Tensor) -> None:
        super().__init__(memoryview(b""), memory, "")
        self._parts = parts
        self._begins = [0]
        for part in parts:
            self._begins.append(self._begins[-1] + part.memory.numel())

    def sources(self, offset: int, bytes: int) -> Iterator[tuple[Source, int]]:
        at, end = offset, offset + bytes
        while at < end:
            number = bisect_right(self._begins, at) - 1
            size = min(end, self._begins[number + 1]) - at
            for source, begin in self._parts[number].sources(at - self._begins[number], size):
                yield source, at - offset + begin
            at += size

    def left(self, made: torch.Tensor, before: torch.Tensor) -> torch.Tensor:
        if not self._read:
            object.__setattr__(made, "__class__", _Unread)
            made.stack = self  # type: ignore[attr-defined]
        return made

    def _fill(self) -> None:
        contents = memoryview(buffer_of(self.memory)).cast("B")  # a copy by PyTorch would count as a change
        for part, begin in zip(self._parts, self._begins):
            contents[begin : begin + part.memory.numel()] = memoryview(buffer_of(part.memory)).cast("B")


class Stacks(TensorFiles):
    """The stacks of a model, by their names."""

    def __init__(self) -> None:
        super().__init__(None)
        self._parts: dict[str, list[_Part]] = {}

    def add(self, name: str, like: torch.Tensor, parts: list[_Part]) -> None:
        self._parts[name] = parts
        self.entries[name] = Tensor(
            name, _TYPES[like.dtype], tuple(like.shape), _IN_FILES, 0, like.nbytes, like.nbytes, False
        )

    def tensor(self, name: str, like: torch.Tensor) -> torch.Tensor:
        return self._over(_Stack(self._parts[name], untouched(like)), like)


class _Unread(nn.Parameter):
    """A stack that a module has after streaming. Its contents are read when somebody asks for them."""

    stack: _Stack

    @classmethod
    def __torch_function__(cls, func: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
        kwargs = kwargs or {}
        if func not in _HARMLESS:
            for one in tree_leaves((args, kwargs)):
                with_contents(one)
        with torch._C.DisableTorchFunctionSubclass():
            return func(*args, **kwargs)


def with_contents(tensor: Any) -> Any:
    """Reads the contents of a stack that a module has after streaming. Returns the tensor, whatever it is."""
    if type(tensor) is _Unread:
        tensor.stack.read()
        del tensor.stack
        object.__setattr__(tensor, "__class__", nn.Parameter)
    return tensor


class _Loading(threading.local):
    """What a thread loads."""

    stacks: Stacks | None = None


_loading = _Loading()
_lock = threading.Lock()
_loads = 0  # those that have transformers leave stacks out


@contextmanager
def stacking(cls: Any, stacks: Stacks) -> Iterator[None]:
    """Has a class of transformers leave stacks on the meta device, in calls of this thread, and notes their parts. What
    is not whole in files as the model needs it is put together in memory, as ever.
    """
    try:
        from transformers import PreTrainedModel, core_model_loading
        from transformers.models.auto.auto_factory import _BaseAutoModelClass

        classes = PreTrainedModel, _BaseAutoModelClass
        converter: Any = core_model_loading.WeightConverter
        plain = converter.convert
        replaced = _convert(plain, core_model_loading.MergeModulelist, core_model_loading.Concatenate)
    except (ImportError, AttributeError):  # another version works in another way
        yield
        return
    if not (inspect.isclass(cls) and issubclass(cls, classes)):
        yield
        return
    global _loads
    with _lock:
        if not _loads:
            converter.convert = replaced
        _loads += 1
    outer, _loading.stacks = _loading.stacks, stacks
    try:
        yield
    finally:
        _loading.stacks = outer
        with _lock:
            _loads -= 1
            if not _loads:
                converter.convert = converter.convert.plain


def _convert(plain: Any, merge: Any, join: Any) -> Any:
    """Returns the function that converts in the place of the plain one, with the classes of its operations."""
    made: dict[int, tuple[torch.Tensor, list[_Part]]] = {}  # by the ids of tensors on the meta device

    class Merge(merge):  # type: ignore[misc]
        def convert(self, input_dict: dict[str, Any], *args: Any, **options: Any) -> Any:
            mappings = Mappings(None)
            found = {key: _parts_of(mappings, tensors) for key, tensors in input_dict.items()}
            for key, parts in found.items() if all(found.values()) else ():
                assert parts is not None
                first = input_dict[key][0]
                stack = torch.empty((len(parts), *first.shape), dtype=first.dtype, device="meta")
                made[id(stack)] = stack, parts
                input_dict[key] = stack
            return super().convert(input_dict, *args, **options)

    class Join(join):  # type: ignore[misc]
        def convert(self, input_dict: dict[str, Any], source_patterns: list[str], *args: Any, **options: Any) -> Any:
            stacks = [made.get(id(input_dict[key])) for key in source_patterns if key in input_dict]
            result = super().convert(input_dict, source_patterns, *args, **options)
            if stacks and all(stacks):
                (joined,) = result.values()
                turns = zip(*(parts for _, parts in filter(None, stacks)))
                made[id(joined)] = joined, [part for turn in turns for part in turn]
            return result

    def convert(self: Any, layer_name: str, *args: Any, **options: Any) -> Any:
        before, stacks = self.operations, _loading.stacks
        kinds = [(type(one), getattr(one, "dim", None)) for one in before]
        if stacks is None or args or options.get("hf_quantizer") is not None:
            return plain(self, layer_name, *args, **options)
        if kinds not in ([(merge, 0)], [(merge, 0), (join, 1)]):
            return plain(self, layer_name, *args, **options)
        self.operations = [Merge(0), Join(1)][: len(before)]
        try:
            result = plain(self, layer_name, **options)
            for name, tensor in result.items():
                if id(tensor) in made:
                    stacks.add(name, *made[id(tensor)])
            return result
        finally:
            self.operations = before
            made.clear()

    convert.plain = plain  # type: ignore[attr-defined]
    return convert


def _parts_of(mappings: Mappings, tensors: Any) -> list[_Part] | None:
    """The parts of a stack, if all of them lie in files as the stack has them."""
    if not isinstance(tensors, list) or not tensors:
        return None
    first, parts = tensors[0], []
    for one in tensors:
        alike = type(one) is torch.Tensor and (one.dtype, one.shape) == (first.dtype, first.shape)
        if not alike or not one.is_contiguous() or one.dtype not in _TYPES or not mappings.is_mapped(one):
            return None
        memory = byte_tensor(one.untyped_storage(), one.storage_offset() * one.element_size(), one.nbytes)
        parts.append(_Part(memory, mappings.packed_of(memory)))
    return parts
