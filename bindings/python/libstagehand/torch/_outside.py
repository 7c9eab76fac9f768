"""Tensors that are not streamed, but stay on the device, outside the budget."""

# mypy: disable-error-code="import-not-found,misc,no-untyped-call,unused-ignore"
from __future__ import annotations

import logging
from collections.abc import Callable
from contextlib import ExitStack

import torch

from . import _subclasses
from ._weights import Found

_log = logging.getLogger("libstagehand.torch")


def tell_outside(model: str, left: list[Found], streamed: int) -> None:
    """Writes a warning to the log if more bytes stay outside than are streamed, because they require a gradient.

    Some classes freeze a table of positions and nothing else. The rest of such a model looks like adapters.
    """
    trained = [one for one in left if one.parts and one.tensor.requires_grad]
    bytes = sum(one.bytes() for one in trained)
    if bytes > streamed:
        _log.warning(
            "%s: %d bytes require a gradient, and stay on the device, outside the budget. %d bytes are streamed. "
            "Call model.requires_grad_(False) before if the model is not trained, or pass optimizer= to train it",
            model,
            bytes,
            streamed,
        )


def put_outside(
    left: list[Found], device: torch.device, undo: ExitStack, replace: Callable[[Found, torch.Tensor], None]
) -> None:
    """Moves tensors that are not streamed to the device. `undo` moves them back, with their values of then.

    Modules get another wrapper by `replace` because a wrapper keeps the device that it was made for.
    """
    for one in left:
        if one.unread:
            one.unread.read()
        if one.mapped:
            undo.callback(_keep, one, one.tensor._version)
        parts = [tensor for _, tensor in one.parts or _subclasses.parts(one.tensor, one.names[0])]
        if all(tensor.device == device for tensor in parts):
            continue
        if one.tensor.grad is not None:
            raise ValueError(f"{one.names[0]} has a gradient: call zero_grad() before the model is streamed")
        for tensor in parts:
            original = tensor.data
            tensor.data = original.to(device)
            undo.callback(_move_back, tensor, original)
        if _subclasses.is_wrapper(one.tensor):
            replace(one, _subclasses.like(one.tensor, lambda tensor: tensor, type(one.tensor)))


def _move_back(tensor: torch.Tensor, original: torch.Tensor) -> None:
    original.copy_(tensor.data)
    grad, tensor.grad = tensor.grad, None
    tensor.data = original
    if grad is not None:
        tensor.grad = grad.to(original.device)


def _keep(one: Found, version: int) -> None:
    """Keeps a tensor from a file in the module if the model may have changed it."""
    # A version tells of a trained parameter. No version tells of a write to a buffer, so buffers are always kept.
    if one.tensor._version != version or not one.is_parameter:
        one.tensor.data = one.tensor.data.clone()
        one.stays = True
