"""The call that begins it."""
# mypy: disable-error-code="import-not-found,misc,no-untyped-call,unused-ignore"
from __future__ import annotations

import torch
from torch import nn

from .._device import Device
from ._division import Chosen
from ._files import Files
from ._streamed import Outside, Streamed
from ._training import MakeOptimizer


def stream(
    module: nn.Module,
    device: Device | str | torch.device = "cuda",
    *,
    budget: int | None = None,
    blocks: Chosen | None = None,
    outside: Outside = (),
    files: Files | None = None,
    strict: bool = True,
    pin: bool = True,
    max_held: int | None = None,
    debug: bool | None = None,
    name: str | None = None,
    optimizer: MakeOptimizer | None = None,
) -> Streamed:
    """Streams a module's weights from host memory, or from files, until the Streamed that is returned is closed, as by `with`.

    :param device: "cuda:0", "cpu" or "host" (for tests), or a Device, whose budget this model then shares with others.
    :param budget: Most bytes of device memory for the weights; None: as much as the device's budget leaves it.
    :param blocks: Names of modules, or patterns of such (`"model.layers.*"`), that make a block each; None: the layers of the model.
    :param outside: Names of parameters and buffers, or patterns, that are not streamed but stay on the device, out of the budget. Small
        buffers do anyway, and, where other parameters are frozen, those that require a gradient.
    :param files: safetensors files, or folders of such, with the tensors of what is on the meta device. They are mapped, not loaded.
    :param strict: Whether tensors in files that the module does not have are an error.
    :param pin: Pin the host's memory, so that copies from it need no detour.
    :param max_held: Most blocks that are used at the same time; None: by how the modules are nested.
    :param debug: True: every step is searched for reads of weights that are not there, which is slow; None: the first; False: none.
    :param name: In messages and traces.
    :param optimizer: Has streamed parameters that require a gradient be trained: makes the optimizer of one block from its parameters. Its
        step is made in the backward, as soon as the block's gradients are there, which are then given up.
    """
    return Streamed(
        module, device, budget=budget, blocks=blocks, outside=outside, files=files, strict=strict, pin=pin, max_held=max_held, debug=debug, name=name,
        optimizer=optimizer,
    )  # fmt: skip
