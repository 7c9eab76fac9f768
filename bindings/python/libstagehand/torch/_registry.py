"""The models that are streamed now, so that streaming can be ended by the model alone."""

# mypy: disable-error-code="import-not-found,misc,no-untyped-call,unused-ignore"
from __future__ import annotations

import weakref
from typing import Protocol

from torch import nn

from .._device import Device
from .._errors import UsageError
from .._generated import RuntimeStats, Status


class Ending(Protocol):
    @property
    def device(self) -> Device: ...
    def close(self) -> None: ...
    def stats(self) -> RuntimeStats: ...


# A model keeps its Streamed object alive by its hooks, so the registry needs no references of its own.
_of_model: weakref.WeakKeyDictionary[nn.Module, weakref.ref[Ending]] = weakref.WeakKeyDictionary()


def begun(model: nn.Module, streamed: Ending) -> None:
    _of_model[model] = weakref.ref(streamed)


def ended(model: nn.Module) -> None:
    _of_model.pop(model, None)


def loaded_bytes(device: str) -> int:
    """Returns the bytes that the models of a device have loaded since their streaming began."""
    found = [reference() for reference in list(_of_model.values())]
    return sum(one.stats().bytes_to_device for one in found if one is not None and one.device.name == device)


def unstream(model: nn.Module) -> None:
    """Ends streaming of a model that was given to stream(), like close() of the object that stream() returned."""
    if not isinstance(model, nn.Module):
        raise TypeError(f"unstream() needs the module that was given to stream(), but got {type(model).__name__}")
    reference = _of_model.get(model)
    streamed = reference() if reference is not None else None
    if streamed is None:
        raise UsageError(Status.ERROR_INVALID_STATE, _not_streamed(model))
    streamed.close()


def _not_streamed(model: nn.Module) -> str:
    kind = type(model).__name__
    for other in list(_of_model):
        for name, part in other.named_modules():
            if part is model:
                whole = type(other).__name__
                return f"{kind} is the part {name!r} of {whole}, which is streamed as a whole: unstream that"
    for name, part in model.named_modules():
        if part in _of_model:
            return f"{kind} is not streamed, but its part {name!r} is: unstream that part"
    return f"{kind} is not streamed"
