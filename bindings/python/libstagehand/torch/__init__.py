"""Streams the weights of PyTorch modules under a memory budget.

    with libstagehand.torch.stream(model, device="cuda:0", budget=8 << 30):
        model(inputs)

`unstream(model)` ends streaming too.

Each parameter gets a fixed address on the device. Its bytes are there while its module runs, and while the backward of
the module runs.

    with libstagehand.torch.spill_activations(model, device="cuda:0", keep="8GiB"):
        loss(model(inputs)).backward()

Tensors that autograd saves leave the device, and come back in the backward.

    with libstagehand.torch.pausable("weights", "cuda:0") as pool:
        model = Model().cuda()
    pool.pause()

Tensors of a pool leave the device, and come back at the same addresses with pool.resume(). docs/torch.md says what a
model must do for that, and what the package refuses.
"""

# mypy: disable-error-code="import-not-found,misc,no-untyped-call,unused-ignore"
from __future__ import annotations

from ._pipelines import StreamedPipeline
from ._pools import PausablePool, PoolMemory, pausable
from ._pretrained import from_pretrained
from ._registry import unstream
from ._spill import SpilledActivations, spill_activations
from ._stream import stream
from ._streamed import Streamed

__all__ = [
    "PausablePool",
    "PoolMemory",
    "SpilledActivations",
    "Streamed",
    "StreamedPipeline",
    "from_pretrained",
    "pausable",
    "spill_activations",
    "stream",
    "unstream",
]
