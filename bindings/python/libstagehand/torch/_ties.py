"""Parameters and buffers that other code has made of idle views, like `nn.Parameter(weight.data)`. They share memory
with the weight, also when streaming has ended.
"""

# mypy: disable-error-code="import-not-found,misc,no-untyped-call,unused-ignore"
from __future__ import annotations

from collections.abc import Callable, Iterator
from weakref import WeakValueDictionary

import torch
from torch import nn

from ._aliases import rejoin
from ._key import has_key
from ._memory import span_of
from ._subclasses import ENTRY
from ._weights import Place, Weight, _data

_storage = torch.Tensor.untyped_storage


class Ties:
    """The parameters and buffers over the weights of one model."""

    def __init__(self) -> None:
        self._made: WeakValueDictionary[int, torch.Tensor] = WeakValueDictionary()  # by id
        self._weights: list[Weight] = []
        self._found: list[tuple[torch.Tensor, Place, int]] = []  # each with the place, and its first byte there

    def note(self, tensor: torch.Tensor) -> None:
        self._made[id(tensor)] = tensor

    def _all(self, model: nn.Module) -> Iterator[torch.Tensor]:
        yield from list(self._made.values())
        for module in model.modules():
            yield from (one for one in (*module._parameters.values(), *module._buffers.values()) if one is not None)

    def find(
        self, model: nn.Module, weights: list[Weight], weights_of: Callable[[torch.Tensor], tuple[Weight, ...]]
    ) -> None:
        """Finds them while they are over device memory."""
        self._weights = weights
        for tensor in {id(one): one for one in self._all(model)}.values():
            if ENTRY in tensor.__dict__ or not has_key(tensor):
                continue
            for weight in weights_of(tensor):
                begin, end = (byte - int(weight.memory.storage_offset()) for byte in span_of(tensor))
                places = [place for place in weight.places if place.offset <= begin and end <= _end(place)]
                place = (places or weight.places)[0]
                self._found.append((tensor, place, begin - place.offset))

    def restore(self) -> None:
        """Puts them over the memory that the weights have after streaming."""
        rejoin(self._weights)
        for tensor, place, first in self._found:
            of: torch.Tensor = _data.__get__(place.tensor)
            first += int(of.storage_offset()) * of.element_size()
            with torch.inference_mode(False), torch.no_grad():
                made = torch.empty(0, dtype=tensor.dtype, device=of.device)
                made.set_(_storage(of), first // made.element_size(), tensor.size(), tensor.stride())
                _data.__set__(tensor, made)
            tensor.__class__ = nn.Parameter if isinstance(tensor, nn.Parameter) else torch.Tensor
        for parameter in self._made.values():
            parameter.__class__ = nn.Parameter  # also of those that have got other data
        self._found, self._weights = [], []


def _end(place: Place) -> int:
    first, end = span_of(place.original)
    return place.offset + end - first
