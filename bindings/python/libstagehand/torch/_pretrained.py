"""Loads a model of transformers or diffusers, and streams it from the files that it was loaded from."""

# mypy: disable-error-code="import-not-found,misc,no-untyped-call,unused-ignore"
from __future__ import annotations

import inspect
import logging
import os
import pathlib
from collections.abc import Mapping
from contextlib import nullcontext
from typing import Any, overload

import torch
from torch import nn

from .._device import Device
from ._files import packed_files
from ._mappings import Mappings
from ._pipelines import StreamedPipeline
from ._plain_files import PlainFile
from ._plain_folder import PlainFolder
from ._stacks import Stacks, stacking
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
    read. Returns what stream() returns. Its `module` is the model, and its `pipe` the pipeline. Files of
    `stagehand pack` are streamed packed.

    The library that the class belongs to makes the model: it renames tensors, ties weights, makes the buffers that
    files do not hold, and converts types. A tensor that it has to compute from others is in host memory. The log of
    `libstagehand.torch` says which tensors these are, and how large. The experts of a layer, which models of
    transformers have in one tensor, are read from the files one by one.

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
    stacks = Stacks()
    with nullcontext() if ours.get("pack") else stacking(cls, stacks):
        model, plain = _load(folder, cls, theirs)
    _tell(model)
    if isinstance(model, nn.Module) and ours.get("optimizer") is None:
        model.requires_grad_(False)
    if stacks.entries:
        ours["files"] = stacks
    made = stream(model, device, mapped=True, **ours)
    del plain  # which streaming knew its files by
    return made


def _load(folder: str | os.PathLike[str], cls: Any, options: dict[str, Any]) -> tuple[Any, list[PlainFile]]:
    """Has the library of the class load the model. Also returns plain files that were made of packed ones."""

    def load(path: str | os.PathLike[str]) -> Any:
        made = cls.from_pretrained(path, **options)
        return made[0] if isinstance(made, tuple) else made  # with output_loading_info=True there is more

    packed, refused = packed_files(pathlib.Path(folder, options.get("subfolder") or ""))
    try:
        if not packed:
            return load(folder), []
        with PlainFolder(folder, packed) as plain:
            model = load(str(plain.path))
            _rename(model, str(plain.path), os.path.abspath(folder))
            return model, plain.files
    except Exception as error:
        for one in refused:
            error.add_note(str(one))
        raise


def _rename(model: Any, path: str, folder: str) -> None:
    """Lets the model, and what it consists of, tell of the folder that it was asked for."""

    def real(value: Any) -> Any:
        return folder + value[len(path) :] if isinstance(value, str) and value.startswith(path) else value

    parts = [model, *getattr(model, "components", {}).values()]
    parts += [inside for part in parts if isinstance(part, nn.Module) for inside in part.modules()]
    parts += [getattr(part, name, None) for part in parts for name in ("config", "generation_config", "init_kwargs")]
    for part in {id(part): part for part in parts}.values():
        for name, value in list(getattr(part, "__dict__", {}).items()):
            if real(value) is not value:
                object.__setattr__(part, name, real(value))
        for name, value in list(part.items()) if isinstance(part, dict) else []:
            if real(value) is not value:
                dict.__setitem__(part, name, real(value))


def _named_modules(model: Any) -> dict[str, nn.Module]:
    return {"": model} if isinstance(model, nn.Module) else _modules(model)


def _tell(model: Any) -> None:
    """Writes to the log what is not in files."""
    modules = _named_modules(model)
    mappings = Mappings(None)
    made: dict[str, int] = {}
    total = 0
    for prefix, module in modules.items():
        for name, tensor in module.named_parameters(prefix):
            size = tensor.numel() * tensor.element_size()
            total += size
            if size and tensor.device.type != "meta" and not _is_mapped(mappings, tensor):
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
