"""Conversions of streamed modules: to(), half(), cuda() and the like."""

# mypy: disable-error-code="import-not-found,misc,no-untyped-call,unused-ignore"
from __future__ import annotations

import logging
from collections.abc import Callable
from contextlib import ExitStack
from typing import Any

import torch
from torch import nn

from ._serving import Refusal
from ._weights import Entry

_log = logging.getLogger("libstagehand.torch")
_Convert = Callable[[torch.Tensor], torch.Tensor]


class Conversions:
    """The weights that the model's own code converts to another type while it runs, such as the router of Switch
    Transformers, and models with layerwise casting.

    The module has the converted weight on the device, outside the budget, until the model converts it back.
    """

    def __init__(self, streamed: dict[int, Entry], computes: Callable[[], bool], undo: ExitStack) -> None:
        self.streamed = streamed  # by the id of the tensor
        self.computes = computes
        self._converted: dict[int, Entry] = {}  # by the id of the converted tensor
        self._undo = undo
        self._told: set[str] = set()

    def convert(self, module: nn.Module, convert: _Convert) -> None:
        """Converts the weights of a module that runs, and those of its parts."""
        for tensor in _tensors(module):
            if (entry := self.streamed.get(id(tensor))) is not None:
                after = _after(entry.tensor, convert)
                if after.dtype == entry.tensor.dtype and after.device == entry.tensor.device:
                    continue
                if after.device != entry.tensor.device or entry.special or entry.tensor.requires_grad:
                    raise _refusal(entry, after)
                self._lend(entry, convert)
            elif (entry := self._converted.get(id(tensor))) is not None:
                self._take_back(entry, _after(tensor, convert).dtype)

    def _lend(self, entry: Entry, convert: _Convert) -> None:
        with torch.inference_mode(False), torch.no_grad():
            made = convert(entry.tensor)
        if isinstance(entry.tensor, nn.Parameter):
            made = nn.Parameter(made, requires_grad=False)
        entry.converted = True
        entry.put(made)
        self._converted[id(made)] = entry
        self._undo.callback(self._put_back, entry)
        if entry.name not in self._told:
            self._told.add(entry.name)
            _log.info(
                "the model converts %s to %s: the converted weight has %d bytes on the device, outside the budget",
                entry.name,
                str(made.dtype)[6:],
                made.numel() * made.element_size(),
            )

    def _take_back(self, entry: Entry, dtype: torch.dtype) -> None:
        """Puts the streamed weight back if the model converts the weight back without a loss of its first value."""
        if dtype == entry.tensor.dtype and _is_wider(entry.has.dtype, dtype):
            self._put_back(entry)

    def _put_back(self, entry: Entry) -> None:
        if entry.converted:
            self._converted.pop(id(entry.has), None)
            entry.converted = False
            entry.put(entry.tensor)


class Convert(Refusal):
    """The _apply() of a streamed module. While a module of the model runs, its weights are converted for a time.
    Otherwise a conversion of streamed weights to another type or device is refused, and a function that gives them
    other values changes their sources. Other tensors are converted as usual.
    """

    __slots__ = ("module", "conversions")

    def __init__(self, module: nn.Module, conversions: Conversions) -> None:
        self.module = module
        self.conversions = conversions

    def __call__(self, convert: Any, recurse: bool = True) -> nn.Module:
        module, streamed = self.module, self.conversions.streamed
        if self.conversions.computes():
            self.conversions.convert(module, convert)
        else:
            _apply_to_source(module, streamed, convert)
        dicts: list[dict[str, Any]] = [module._parameters, module._buffers]
        before = [dict(one) for one in dicts]
        for one in dicts:
            for key in [key for key, tensor in one.items() if id(tensor) in streamed]:
                one[key] = None
        try:
            type(module)._apply(module, convert, recurse)
        finally:
            for one, entries in zip(dicts, before):
                for key, tensor in entries.items():
                    if id(tensor) in streamed:
                        one[key] = tensor
        return module


def _apply_to_source(module: nn.Module, streamed: dict[int, Entry], convert: _Convert) -> None:
    """Has a function that gives weights other values change the sources of a module's own weights. A function that
    would give a weight of the module or of its parts another type or device is refused, before any weight is changed.
    """
    own = [*module._parameters.values(), *module._buffers.values()]  # the parts of the module have those of theirs
    changed = []
    for tensor in dict.fromkeys(_tensors(module)):
        if (entry := streamed.get(id(tensor))) is None:
            continue
        before = torch.zeros([1] * tensor.dim(), dtype=tensor.dtype, device=tensor.device)
        was_shared = before.is_shared()
        with torch.no_grad():
            after = convert(before)
        if after.is_shared() and not was_shared:  # by share_memory()
            tensor.share_memory_()
        if (after.dtype, after.device) != (tensor.dtype, tensor.device):
            raise _refusal(entry, after)
        if after is not before and any(one is tensor for one in own):
            changed.append(tensor)
    with torch.no_grad():
        for tensor in changed:
            tensor.data = convert(tensor)


def _tensors(module: nn.Module) -> list[torch.Tensor]:
    return [
        tensor
        for part in module.modules()
        for tensor in [*part._parameters.values(), *part._buffers.values()]
        if tensor is not None
    ]


def _after(tensor: torch.Tensor, convert: _Convert) -> torch.Tensor:
    """Returns an empty tensor of the type and on the device that a tensor would be converted to."""
    return convert(torch.empty(0, dtype=tensor.dtype, device=tensor.device))


def _is_wider(dtype: torch.dtype, than: torch.dtype) -> bool:
    """Whether a floating-point type has all values of another one."""
    if not (dtype.is_floating_point and than.is_floating_point):
        return False
    return bool(torch.finfo(dtype).bits > torch.finfo(than).bits)


def _refusal(entry: Entry, after: torch.Tensor) -> RuntimeError:
    return RuntimeError(
        f"{entry.name} is streamed as {str(entry.tensor.dtype)[6:]} on {entry.tensor.device} and cannot be made "
        f"{str(after.dtype)[6:]} on {after.device}: convert the model before it is streamed, or end streaming first"
    )
