"""Trains a small transformer in three ways: plain, with checkpoints, and with spilled activations. Compares the losses
and the weights bit by bit, and shows the time and the memory of a step.

train_spill.py [DEVICE]     the CPU if no device is given; cuda:0 is the first GPU
"""

# mypy: disable-error-code="import-not-found,misc,no-untyped-call,no-untyped-def"
from __future__ import annotations

import argparse
import copy
import statistics
import sys
import time
from collections.abc import Callable
from contextlib import AbstractContextManager, nullcontext
from dataclasses import dataclass, field
from typing import Any

import torch
from torch import nn
from torch.multiprocessing.reductions import StorageWeakRef
from torch.utils._python_dispatch import TorchDispatchMode
from torch.utils._pytree import tree_iter
from torch.utils.checkpoint import checkpoint

import libstagehand.torch as st

MIB = 1 << 20


class Layer(nn.Module):
    def __init__(self, width: int, heads: int) -> None:
        super().__init__()
        self.heads = heads
        self.norm1, self.norm2 = nn.LayerNorm(width), nn.LayerNorm(width)
        self.qkv, self.out = nn.Linear(width, 3 * width), nn.Linear(width, width)
        self.expand, self.reduce = nn.Linear(width, 4 * width), nn.Linear(4 * width, width)

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        qkv = self.qkv(self.norm1(x)).unflatten(-1, (3, self.heads, -1)).permute(2, 0, 3, 1, 4)
        mixed = nn.functional.scaled_dot_product_attention(*qkv, is_causal=True)
        x = x + self.out(mixed.transpose(1, 2).flatten(-2))
        return x + self.reduce(nn.functional.gelu(self.expand(self.norm2(x))))


class Transformer(nn.Module):
    def __init__(self, layers: int, width: int, heads: int) -> None:
        super().__init__()
        self.layers = nn.ModuleList(Layer(width, heads) for _ in range(layers))
        self.checkpointed = False

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        for layer in self.layers:
            x = checkpoint(layer, x, use_reentrant=False) if self.checkpointed else layer(x)
        return x


class Watch(TorchDispatchMode):
    """Looks at the memory after each operation. On a GPU the allocator counts it. On the CPU it is the memory of all
    tensors that were seen and are alive.
    """

    def __init__(self, device: torch.device, model: nn.Module) -> None:
        super().__init__()
        self.device = device
        self.begin = time.perf_counter()
        self.points: list[tuple[float, int]] = []
        self.alive: dict[int, tuple[StorageWeakRef, int]] = {}
        for one in model.parameters():
            self.see(one)

    def see(self, tensor: torch.Tensor) -> None:
        storage = tensor.untyped_storage()
        self.alive[storage._cdata] = StorageWeakRef(storage), storage.nbytes()

    def used(self) -> int:
        if self.device.type == "cuda":
            return int(torch.cuda.memory_allocated(self.device))
        self.alive = {key: one for key, one in self.alive.items() if not one[0].expired()}
        return sum(size for _, size in self.alive.values())

    def __torch_dispatch__(self, function, types, args=(), kwargs=None):
        result = function(*args, **(kwargs or {}))
        if self.device.type == "cpu":
            for one in tree_iter(result):
                if isinstance(one, torch.Tensor) and one.layout is torch.strided:
                    self.see(one)
        self.points.append((time.perf_counter() - self.begin, self.used()))
        return result


@dataclass
class Arm:
    """A way to train, and what was measured of it."""

    name: str
    model: Transformer
    scope: AbstractContextManager[Any]
    losses: list[torch.Tensor] = field(default_factory=list)
    seconds: list[float] = field(default_factory=list)
    points: list[tuple[float, int]] = field(default_factory=list)

    @property
    def peak(self) -> int:
        return max(size for _, size in self.points)


def step(arm: Arm, batch: torch.Tensor, optimizer: torch.optim.Optimizer) -> torch.Tensor:
    with arm.scope:
        loss = (arm.model(batch) - batch.roll(1, -1)).square().mean()
        loss.backward()
    optimizer.step()
    optimizer.zero_grad()
    return loss.detach()


def train(arm: Arm, batches: list[torch.Tensor]) -> None:
    """Trains with every batch. Measures the time of all steps but the first two, which allocate, and then the memory
    over one more step.
    """
    device = batches[0].device
    wait: Callable[[], None] = torch.cuda.synchronize if device.type == "cuda" else lambda: None
    optimizer = torch.optim.SGD(arm.model.parameters(), lr=1e-2)
    for batch in batches[:-1]:
        wait()
        begin = time.perf_counter()
        arm.losses.append(step(arm, batch, optimizer))
        wait()
        arm.seconds.append(time.perf_counter() - begin)
    with Watch(device, arm.model) as watch:
        arm.losses.append(step(arm, batches[-1], optimizer))
    arm.points = watch.points


def settings(copies: int) -> dict[str, object]:
    """Everything leaves that may leave. A tensor that is fetched ahead takes memory again, so that small models need a
    bound for that.
    """
    return {
        "vram_high_watermark_mb": 0,
        "vram_low_watermark_mb": 0,
        "slabs_per_class": 0,
        "max_inflight_d2h": copies,
        "max_inflight_h2d": copies,
        "telemetry_enabled": False,
    }


def table(arms: list[Arm]) -> str:
    plain_time, plain_peak = statistics.median(arms[0].seconds[2:]), arms[0].peak
    lines = [f"{'step':14} {'time':>10} {'of plain':>10} {'peak':>12} {'of plain':>10}"]
    for arm in arms:
        seconds = statistics.median(arm.seconds[2:])
        lines.append(
            f"{arm.name:14} {seconds * 1e3:7.1f} ms {seconds / plain_time:10.3f} {arm.peak / MIB:8.1f} MiB "
            f"{arm.peak / plain_peak:10.3f}"
        )
    return "\n".join(lines)


def text_picture(arms: list[Arm], columns: int = 72, rows: int = 5) -> str:
    """Returns bars of the memory over the step, one chart for each arm, with one scale for all."""
    highest = max(arm.peak for arm in arms)
    lines = []
    for arm in arms:
        end = arm.points[-1][0] or 1.0
        bars = [0] * columns
        for seconds, size in arm.points:
            column = min(columns - 1, int(seconds / end * columns))
            bars[column] = max(bars[column], size)
        for column in range(1, columns):
            bars[column] = bars[column] or bars[column - 1]
        lines.append(f"{arm.name}: the memory over a step, {arm.peak / MIB:.1f} MiB at most")
        for row in range(rows, 0, -1):
            level = highest * (row - 0.5) / rows
            lines.append(("  |" + "".join("#" if bar >= level else " " for bar in bars)).rstrip())
    return "\n".join(lines)


def draw(arms: list[Arm], path: str) -> None:
    from matplotlib import pyplot

    for arm in arms:
        pyplot.step([at * 1e3 for at, _ in arm.points], [size / MIB for _, size in arm.points], label=arm.name)
    pyplot.xlabel("time of the watched step, ms")
    pyplot.ylabel("memory, MiB")
    pyplot.legend()
    pyplot.savefig(path)


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("device", nargs="?", default="cpu")
    parser.add_argument("--layers", type=int, default=6)
    parser.add_argument("--width", type=int, default=256)
    parser.add_argument("--tokens", type=int, default=256, help="of a sequence")
    parser.add_argument("--batch", type=int, default=4, help="sequences of a step")
    parser.add_argument("--steps", type=int, default=8)
    parser.add_argument("--copies", type=int, default=4, help="copies in flight in each direction")
    parser.add_argument("--picture", help="a file for a picture of the memory, such as memory.svg; needs matplotlib")
    options = parser.parse_args()
    if options.steps < 4 or options.width % 4:
        parser.error("--steps is at least 4, and --width is a multiple of 4")

    torch.manual_seed(1)
    device = torch.device(options.device)
    model = Transformer(options.layers, options.width, heads=4).to(device)
    batches = [torch.randn(options.batch, options.tokens, options.width).to(device) for _ in range(options.steps)]
    arms = [Arm(name, copy.deepcopy(model), nullcontext()) for name in ("plain", "checkpointed", "spilled")]
    arms[1].model.checkpointed = True
    where = "host" if device.type == "cpu" else options.device
    spilled = st.spill_activations(arms[2].model, device=where, config=settings(options.copies))
    arms[2].scope = spilled
    for arm in arms:
        train(arm, batches)
    stats = spilled.stats()

    print("loss ", " ".join(f"{loss.item():.5f}" for loss in arms[0].losses))
    print(f"{stats.spilled} tensors left in {stats.steps} steps: {stats.spill_bytes / MIB:.1f} MiB copied\n")
    print(table(arms), end="\n\n")
    print(text_picture(arms), end="\n\n")
    if options.picture:
        draw(arms, options.picture)
    equal = all(
        torch.equal(torch.stack(arm.losses), torch.stack(arms[0].losses))
        and all(map(torch.equal, arm.model.state_dict().values(), arms[0].model.state_dict().values()))
        for arm in arms
    )
    print("the losses and the weights are", "equal, bit by bit" if equal else "DIFFERENT")
    return int(not equal)


if __name__ == "__main__":
    sys.exit(main())
