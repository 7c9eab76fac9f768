"""Loads a model of transformers or diffusers, and streams it from the files that it was loaded from."""

# mypy: disable-error-code="import-not-found,misc,no-untyped-call,unused-ignore"
from __future__ import annotations

import inspect
import logging
import os
from collections.abc import Mapping
from typing import Any, overload

import torch
from torch import nn

from .._device import Device
from ._files import refuse_packed
from ._mappings import Mappings
from ._pipelines import StreamedPipeline
from ._stream import stream
from ._streamed import Streamed

_log = logging.getLogger("libstagehand.torch")
# More bytes than this in memory, beside the files, are worth a warning.
_MUCH = 64 << 20
_STREAM = {*inspect.signature(Streamed).parameters, *inspect.signature(StreamedPipeline).parameters}
_OURS = _STREAM - {"module", "pipe", "device", "files", "mapped", "strict"}


@overload
def from_pretrained(
    folder: str | os.PathLike[str],
    cls: type[nn.Module],
    device: Device | str | torch.device = "cuda",
    **options: Any,
) -> Streamed: ...


@overload
def from_pretrained(
    folder: str | os.PathLike[str], cls: Any, device: Device | str | torch.device = "cuda", **options: Any
) -> Any: ...


def from_pretrained(
    folder: str | os.PathLike[str], cls: Any, device: Device | str | torch.device = "cuda", **options: Any
) -> Any:
    """Loads a model by `cls.from_pretrained(folder)`, and streams it from its safetensors files, which are mapped, not
    read. Returns what stream() returns. Its `module` is the model, and its `pipe` the pipeline.

    The library that the class belongs to makes the model: it renames tensors, ties weights, makes the buffers that
    files do not hold, and converts types. A tensor that it has to compute from others, such as the experts of a layer
    in one tensor, is in host memory. The log of `libstagehand.torch` says which tensors these are, and how large.

    The parameters are frozen (`requires_grad_(False)`) if `optimizer=` is not given.

    :param cls: A class of transformers or diffusers with from_pretrained(): a model, an Auto class, or a pipeline.
    :param device: As for stream().
    :param options: The arguments of stream(), such as `budget`. All others are passed to `cls.from_pretrained()`, such
        as `dtype`, `torch_dtype`, `subfolder`, `variant` or `attn_implementation`.
    """
    if not callable(getattr(cls, "from_pretrained", None)):
        raise TypeError(f"{cls!r} has no from_pretrained(): pass a class of transformers or diffusers")
    if options.get("device_map") is not None:
        raise ValueError("device_map= places the weights that would be streamed: pass device= and budget= instead")
    theirs = {name: value for name, value in options.items() if name not in _OURS}
    ours = {name: value for name, value in options.items() if name in _OURS}
    refuse_packed(folder)
    made = cls.from_pretrained(folder, **theirs)
    model, *_ = made if isinstance(made, tuple) else [made]  # with output_loading_info=True there is more
    _tell(model)
    if isinstance(model, nn.Module) and ours.get("optimizer") is None:
        model.requires_grad_(False)
    return stream(model, device, mapped=True, **ours)


def _tell(model: Any) -> None:
    """Writes to the log what is not in files."""
    modules = {"": model} if isinstance(model, nn.Module) else _modules(model)
    mappings = Mappings(None)
    made: dict[str, int] = {}
    total = 0
    for prefix, module in modules.items():
        for name, tensor in module.named_parameters(prefix):
            size = tensor.numel() * tensor.element_size()
            total += size
            if size and not _is_mapped(mappings, tensor):
                made[name] = size
    if made:
        bytes = sum(made.values())
        names = f"{', '.join(list(made)[:8])}{' ...' if len(made) > 8 else ''}"
        _log.log(
            logging.WARNING if bytes > _MUCH else logging.INFO,
            "%s: %d of %d bytes are streamed from host memory, because the files do not have them in the type and "
            "layout that the model needs: %s",
            type(model).__name__,
            bytes,
            total,
            names,
        )


def _modules(pipe: Any) -> dict[str, nn.Module]:
    components: Mapping[str, Any] = getattr(pipe, "components", {})
    return {name: one for name, one in components.items() if isinstance(one, nn.Module)}


def _is_mapped(mappings: Mappings, tensor: torch.Tensor) -> bool:
    try:
        return mappings.is_mapped(tensor)
    except RuntimeError:  # a wrapper has no memory of its own
        return False
