"""Tensors that are more than their bytes, like quantised ones: the plain tensors that they are made of, and how to make
them from other plain tensors.

A wrapper (`__tensor_flatten__`) has no bytes of its own, so a new wrapper is made over other plain tensors. Another
special tensor has bytes, and further tensors in its attributes. It stays the same object over other memory.
"""

# mypy: disable-error-code="import-not-found,misc,no-untyped-call,unused-ignore"
from __future__ import annotations

import copy
from collections.abc import Callable, Iterator
from typing import Any

import torch
from torch import nn
from torch.utils._python_dispatch import is_traceable_wrapper_subclass

Make = Callable[[torch.Tensor], torch.Tensor]

# The attribute of a streamed tensor that has its Entry.
ENTRY = "_stagehand_entry"

_storage = torch.Tensor.untyped_storage  # whatever the class of the tensor makes of it
is_wrapper: Callable[[object], bool] = is_traceable_wrapper_subclass


def is_special(tensor: torch.Tensor) -> bool:
    """Whether a tensor may have more than its bytes, because its class is not one of PyTorch."""
    return type(tensor) not in (torch.Tensor, nn.Parameter)


def _inner(wrapper: Any) -> Iterator[tuple[str, torch.Tensor]]:
    """Yields the tensors that a wrapper is made of. A wrapper may also name other objects, as DTensor does."""
    for key in wrapper.__tensor_flatten__()[0]:
        value = getattr(wrapper, key)
        if isinstance(value, torch.Tensor):
            yield key, value


def parts(tensor: torch.Tensor, name: str) -> Iterator[tuple[str, torch.Tensor]]:
    """Yields the plain tensors that a tensor is made of, with their names. The first is the tensor itself, unless it is
    a wrapper.
    """
    if is_wrapper(tensor):
        for key, one in _inner(tensor):
            yield from parts(one, f"{name}.{key}")
        return
    yield name, tensor
    if is_special(tensor):
        yield from _inside(_attributes(tensor), name, {id(tensor)})


def beside(module: nn.Module, name: str) -> Iterator[tuple[str, torch.Tensor]]:
    """Yields the tensors in objects that a module has as attributes. Some modules keep parts of their quantised weights
    there.
    """
    for key, value in vars(module).items():
        if not key.startswith("_") and _is_data(value):
            yield from _inside(vars(value), f"{name}.{key}" if name else key, {id(value)})


def _attributes(tensor: torch.Tensor) -> dict[str, Any]:
    return {key: value for key, value in vars(tensor).items() if key != ENTRY}


def _is_data(value: object) -> bool:
    """Whether a value is an object with attributes that is not a module, a tensor, a class, or a function."""
    return hasattr(value, "__dict__") and not isinstance(value, (type, nn.Module, torch.Tensor)) and not callable(value)


def _inside(value: object, name: str, seen: set[int]) -> Iterator[tuple[str, torch.Tensor]]:
    if id(value) in seen:
        return
    seen.add(id(value))
    if isinstance(value, torch.Tensor):
        yield from parts(value, name)
    elif isinstance(value, dict):
        for key, one in value.items():
            yield from _inside(one, f"{name}.{key}", seen)
    elif isinstance(value, (list, tuple)):
        for index, one in enumerate(value):
            yield from _inside(one, f"{name}.{index}", seen)
    elif _is_data(value):
        yield from _inside(vars(value), name, seen)


def like(tensor: torch.Tensor, of: Make, kind: type | None = None) -> torch.Tensor:
    """Makes a tensor of the same class and attributes over other plain tensors. `of` returns the new tensor for each
    plain one. `kind` is the class to make, if the tensor has another class now.
    """
    if is_wrapper(tensor):
        flat: Any = tensor
        keys, context = flat.__tensor_flatten__()
        inner = {key: getattr(tensor, key) for key in keys}
        inner.update((key, like(one, of)) for key, one in _inner(tensor))
        wrapper: Any = kind or type(tensor)
        made: torch.Tensor = wrapper.__tensor_unflatten__(inner, context, tensor.size(), tensor.stride())
        for key, value in _attributes(tensor).items():
            made.__dict__.setdefault(key, value)
        return made.requires_grad_(tensor.requires_grad)
    if kind is None:
        return of(tensor)
    made = torch.Tensor._make_subclass(kind, of(tensor), tensor.requires_grad)  # type: ignore[arg-type]
    made.__dict__.update(_with_others(_attributes(tensor), of, {}))
    return made


def _with_others(value: Any, of: Make, known: dict[int, Any]) -> Any:
    """Returns a copy of the value with other tensors if it contains tensors. Otherwise returns the value itself."""
    if id(value) in known:
        return known[id(value)]
    known[id(value)] = value
    made = value
    if isinstance(value, torch.Tensor):
        made = like(value, of)
    elif isinstance(value, dict):
        made = {key: _with_others(one, of, known) for key, one in value.items()}
    elif isinstance(value, (list, tuple)) and any(isinstance(one, torch.Tensor) for one in value):
        made = type(value)(_with_others(one, of, known) for one in value)
    elif _is_data(value) and next(_inside(vars(value), "", set()), None) is not None:
        made = copy.copy(value)
        known[id(value)] = made
        made.__dict__.update(_with_others(vars(value), of, known))
    known[id(value)] = made
    return made


def plain_parts(tensor: torch.Tensor) -> Iterator[torch.Tensor]:
    """Yields the tensors with memory that a tensor is made of: itself, or the parts of a wrapper."""
    if is_wrapper(tensor):
        for _, one in _inner(tensor):
            yield from plain_parts(one)
    elif tensor.layout == torch.strided and not tensor.is_meta:
        yield tensor


def keys_of(memory: torch.Tensor) -> tuple[int, int]:
    """The keys by which found_in() looks a tensor over this memory up."""
    storage = _storage(memory)
    return storage._cdata, storage.data_ptr()


def found_in(tensor: torch.Tensor, known: dict[int, Any]) -> tuple[Any, ...]:
    """Looks up a tensor, or the tensors that it is made of, by the storage and its address."""
    try:
        storage = _storage(tensor)
        one = known.get(storage._cdata) or known.get(storage.data_ptr())
    except (NotImplementedError, RuntimeError):  # the tensor has no storage
        if not is_wrapper(tensor):
            return ()
        inside = (one for _, inner in _inner(tensor) for one in found_in(inner, known))
        return tuple(dict.fromkeys(inside))
    return () if one is None else (one,)
