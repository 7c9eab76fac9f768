"""Tensors that are more than their bytes, as quantised ones are: which plain tensors they are made of, and how they are made of others.

A wrapper (`__tensor_flatten__`) has no bytes of its own; it is made anew over other plain tensors. Others have bytes, and further tensors
in their attributes, which stay the same objects over other memory.
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

# The attribute that tensors have while they are streamed.
ENTRY = "_stagehand_entry"

is_wrapper: Callable[[object], bool] = is_traceable_wrapper_subclass


def is_special(tensor: torch.Tensor) -> bool:
    """Whether it may keep more than its bytes: its class is none of PyTorch's own."""
    return type(tensor) not in (torch.Tensor, nn.Parameter)


def _flattened(wrapper: Any) -> tuple[list[str], Any]:
    """The attributes that have its parts, and what else it is made of."""
    keys, context = wrapper.__tensor_flatten__()
    return keys, context


def parts(tensor: torch.Tensor, name: str) -> Iterator[tuple[str, torch.Tensor]]:
    """The plain tensors that it is made of, with their names: itself, unless it is a wrapper, first."""
    if is_wrapper(tensor):
        for key in _flattened(tensor)[0]:
            yield from parts(getattr(tensor, key), f"{name}.{key}")
        return
    yield name, tensor
    if is_special(tensor):
        yield from _inside(_attributes(tensor), name, {id(tensor)})


def beside(module: nn.Module, name: str) -> Iterator[tuple[str, torch.Tensor]]:
    """Tensors in objects that a module has as attributes: some keep there what belongs to their quantised weights."""
    for key, value in vars(module).items():
        if not key.startswith("_") and _is_data(value):
            yield from _inside(vars(value), f"{name}.{key}" if name else key, {id(value)})


def _attributes(tensor: torch.Tensor) -> dict[str, Any]:
    return {key: value for key, value in vars(tensor).items() if key != ENTRY}


def _is_data(value: object) -> bool:
    """Whether it is an object that has attributes, and is not a part of the model, a class, or a function."""
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
    """A tensor of the same class and attributes, over what `of` gives for each plain tensor. `kind`: the class, where it has another one now."""
    if is_wrapper(tensor):
        keys, context = _flattened(tensor)
        inner = {key: like(getattr(tensor, key), of) for key in keys}
        made: torch.Tensor = (kind or type(tensor)).__tensor_unflatten__(inner, context, tensor.size(), tensor.stride())  # type: ignore[attr-defined]
        for key, value in _attributes(tensor).items():
            made.__dict__.setdefault(key, value)
        return made.requires_grad_(tensor.requires_grad)
    if kind is None:
        return of(tensor)
    made = torch.Tensor._make_subclass(kind, of(tensor), tensor.requires_grad)  # type: ignore[arg-type]
    made.__dict__.update(_with_others(_attributes(tensor), of, {}))
    return made


def _with_others(value: Any, of: Make, known: dict[int, Any]) -> Any:
    """A copy with other tensors, of what has any; else the same."""
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


def found_in(tensor: torch.Tensor, known: dict[int, Any]) -> tuple[Any, ...]:
    """What is known by the address of the storage of a tensor, or of those that it is made of."""
    try:
        one = known.get(tensor.untyped_storage().data_ptr())
    except (NotImplementedError, RuntimeError):  # it has none
        if not is_wrapper(tensor):
            return ()
        inside = (one for key in _flattened(tensor)[0] for one in found_in(getattr(tensor, key), known))
        return tuple(dict.fromkeys(inside))
    return () if one is None else (one,)
