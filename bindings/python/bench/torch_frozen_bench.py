"""Time of training steps of adapters over a frozen base, while weights stream and activations leave.

    torch_frozen_bench.py [--device cuda:0] [--budget 0.5] [--keep 0.5] [--json FILE]

The arms are: everything on the device, streamed weights, spilled activations, and both at once. Each arm takes steps to
warm up and timed steps, and its time is the median. The bound beside each arm is the longest of three times: the step
with everything on the device, the bytes of both streams to the device by the speed of the link, and the bytes to the
host by the speed of the link. The link is measured in the same run. The gradients of each arm are compared with those
of the first one bit by bit. A run on the CPU (--device cpu --width 64 --layers 3 --tokens 64 --heads 4) only shows that
the program works.
"""

from __future__ import annotations

import argparse
import gc
import json
import os
import sys
from contextlib import ExitStack
from typing import Any

os.environ.setdefault("CUBLAS_WORKSPACE_CONFIG", ":4096:8")

import torch
from torch import nn
from torch.nn import functional as F
from torch_train_bench import GIB, Bench

import libstagehand.torch as st
from libstagehand.torch._spill_clock import speeds_of


class Adapted(nn.Module):
    """A frozen linear layer with a trained adapter."""

    def __init__(self, base: nn.Linear, rank: int) -> None:
        super().__init__()
        self.base = base.requires_grad_(False)
        like = {"device": base.weight.device, "dtype": base.weight.dtype}
        self.down = nn.Parameter(torch.randn(rank, base.in_features, **like) / base.in_features)
        self.up = nn.Parameter(torch.randn(base.out_features, rank, **like) / rank)

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        return self.base(x) + F.linear(F.linear(x, self.down), self.up)


def with_adapters(model: nn.Module, rank: int) -> None:
    model.requires_grad_(False)
    for module in list(model.modules()):
        for name, child in list(module.named_children()):
            if isinstance(child, nn.Linear):
                setattr(module, name, Adapted(child, rank))


class FrozenBench(Bench):
    def __init__(self, options: argparse.Namespace) -> None:
        super().__init__(options)
        with_adapters(self.model, options.rank)
        self.base_bytes = sum(one.nbytes for one in self.model.parameters() if not one.requires_grad)
        self.speeds = speeds_of(self.device)

    def gradients(self) -> Any:
        for name, parameter in self.model.named_parameters():
            if parameter.requires_grad:
                yield name.replace("module.", ""), parameter.grad

    def arm(self, name: str, streams: bool, spills: bool) -> None:
        options = self.options
        self.clear()
        gc.collect()
        if self.cuda:
            torch.cuda.empty_cache()
        with ExitStack() as stack:
            streamed = spilled = None
            if streams:
                self.model.cpu()
                budget = max(int(self.base_bytes * options.budget), 1)
                streamed = stack.enter_context(st.stream(self.model, str(options.device), budget=budget))
            if spills:
                keep = int(self.activation_bytes * options.keep)
                spilled = st.spill_activations(self.model, device=options.device, keep=keep)
            scope = spilled or torch.enable_grad()
            for _ in range(options.warm):
                self.step(scope)
            self.synchronize()
            self.peak()
            before = self.moved(streamed, spilled)
            times = sorted(self.times(scope))
            peak, after = self.peak(), self.moved(streamed, spilled)
            with self.deterministic():
                self.step(scope)
            self.note(name, times[len(times) // 2], peak, [b - a for a, b in zip(before, after)])
            self.results[-1]["equal"] = self.equal(None, False)
            print(self.results[-1], flush=True)
            self.clear()
            if spilled is not None:
                spilled.close()
        if streams:
            self.model.to(self.device)

    def moved(self, streamed: Any, spilled: Any) -> list[int]:
        """Returns the bytes so far: of weights to the device, and of activations to the device and to the host."""
        stats = None if spilled is None else spilled.stats()
        return [
            0 if streamed is None else streamed.stats().bytes_to_device,
            0 if stats is None else stats.restore_bytes,
            0 if stats is None else stats.spill_bytes,
        ]

    def note(self, name: str, seconds: float, peak: float, moved: list[int]) -> None:
        weights, back, out = (one / self.options.steps for one in moved)
        plain = self.results[0]["seconds"] if self.results else seconds
        # What leaves, leaves in the forward. What comes back, comes back in the backward. Each loads the weights once.
        forward = min(self.forward_seconds, plain)
        bound = max(forward, weights / 2 / self.speeds.to_device, out / self.speeds.to_host)
        bound += max(plain - forward, (weights / 2 + back) / self.speeds.to_device)
        self.results.append(
            {
                "arm": name,
                "seconds": seconds,
                "peak_gib": peak,
                "weights_gib": weights / GIB,
                "restored_gib": back / GIB,
                "spilled_gib": out / GIB,
                "bound_seconds": bound,
                "ratio": seconds / bound,
            }
        )

    def table(self) -> None:
        print(
            f"base {self.base_bytes / GIB:.2f} GiB, activations {self.activation_bytes / GIB:.2f} GiB, link "
            f"{self.speeds.to_device / 1e9:.1f} GB/s to the device, {self.speeds.to_host / 1e9:.1f} to the host"
        )
        print(f"{'arm':<22}{'ms':>9}{'bound':>9}{'ratio':>7}{'peak':>7}{'weights':>9}{'back':>7}{'out':>7}  GiB")
        for one in self.results:
            print(
                f"{one['arm']:<22}{one['seconds'] * 1e3:>9.1f}{one['bound_seconds'] * 1e3:>9.1f}{one['ratio']:>7.3f}"
                f"{one['peak_gib']:>7.2f}{one['weights_gib']:>9.2f}{one['restored_gib']:>7.2f}"
                f"{one['spilled_gib']:>7.2f}  {'bit-equal' if one['equal'] else 'OTHER GRADIENTS'}"
            )


def read_options() -> argparse.Namespace:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--device", default="cuda:0")
    parser.add_argument("--width", type=int, default=4096)
    parser.add_argument("--heads", type=int, default=32)
    parser.add_argument("--layers", type=int, default=24)
    parser.add_argument("--rank", type=int, default=16)
    parser.add_argument("--tokens", type=int, default=8192, help="tokens of a step (8192)")
    parser.add_argument("--sequence", type=int, default=2048, help="tokens of a sequence (2048)")
    parser.add_argument("--budget", type=float, default=0.5, help="the part of the base's bytes on the device (0.5)")
    parser.add_argument("--keep", type=float, default=0.5, help="the part of the activations on the device (0.5)")
    parser.add_argument("--warm", type=int, default=5)
    parser.add_argument("--steps", type=int, default=20)
    parser.add_argument("--json", help="write the results to this file")
    options = parser.parse_args()
    options.model = "llama"
    return options


def main() -> int:
    options = read_options()
    bench = FrozenBench(options)
    bench.measure_activations()
    for name, streams, spills in (
        ("on the device", False, False),
        ("streamed", True, False),
        ("spilled", False, True),
        ("streamed and spilled", True, True),
        ("on the device again", False, False),
    ):
        bench.arm(name, streams, spills)
    bench.table()
    if options.json:
        with open(options.json, "w") as file:
            json.dump(bench.results, file, indent=1)
    return 0 if all(one["equal"] for one in bench.results) else 1


if __name__ == "__main__":
    sys.exit(main())
