"""The host's time that spilling adds to a saved tensor, and to one that comes back.

A chain of operations saves tensors of one size. Half of the steps are with spilling, in turns, and the numbers are
medians. On the host it is the processor's time of the calling thread, because other threads make the copies there. With
--copies none the tensors stay. With --products N each tensor comes with N matrix products in the forward and twice as
many in the backward, and the program compares whole steps.
"""

# mypy: disable-error-code="import-not-found,misc,no-untyped-call,unused-ignore"
from __future__ import annotations

import argparse
import statistics
import time
from contextlib import AbstractContextManager, nullcontext
from typing import Any

import torch

import libstagehand.torch as st


class Save(torch.autograd.Function):
    """Saves a tensor, and computes a number of matrix products whose results nobody needs."""

    products = 0
    factor: torch.Tensor | None = None

    @staticmethod
    def compute(times: int) -> None:
        for _ in range(times * Save.products):
            assert Save.factor is not None
            torch.mm(Save.factor, Save.factor)

    @staticmethod
    def forward(ctx: Any, x: torch.Tensor, tensor: torch.Tensor) -> torch.Tensor:
        ctx.save_for_backward(tensor)
        Save.compute(1)
        return x.clone()

    @staticmethod
    def backward(ctx: Any, *gradients: torch.Tensor) -> Any:
        (_,) = ctx.saved_tensors
        Save.compute(2)
        return gradients[0], None


def now(x: torch.Tensor) -> float:
    return time.perf_counter() if x.is_cuda else time.thread_time()


def seconds(tensors: list[torch.Tensor], x: torch.Tensor, scope: AbstractContextManager[Any]) -> tuple[float, float]:
    with scope:
        begin = now(x)
        out = x
        for tensor in tensors:
            out = Save.apply(out, tensor)
        middle = now(x)
        if x.is_cuda:
            torch.cuda.synchronize()
        between = now(x)
        out.sum().backward()
        return middle - begin, now(x) - between


def step(tensors: list[torch.Tensor], x: torch.Tensor, scope: AbstractContextManager[Any]) -> float:
    begin = time.perf_counter()
    with scope:
        out = x
        for tensor in tensors:
            out = Save.apply(out, tensor)
        out.sum().backward()
        if x.is_cuda:
            torch.cuda.synchronize()
    return time.perf_counter() - begin


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--device", default="host")
    parser.add_argument("--tensors", type=int, default=400)
    parser.add_argument("--bytes", type=int, default=943_718)  # 0.9 MiB
    parser.add_argument("--rounds", type=int, default=20)
    parser.add_argument("--copies", choices=["all", "none"], default="all")
    parser.add_argument("--products", type=int, default=0, help="matrix products for each tensor (0)")
    parser.add_argument("--width", type=int, default=4096, help="of the matrices (4096)")
    options = parser.parse_args()
    on = "cpu" if options.device == "host" else options.device
    x = torch.ones(1, device=on, requires_grad=True)
    tensors = [torch.ones(options.bytes // 4, device=on) for _ in range(options.tensors)]
    spilled = st.spill_activations(device=options.device, keep=0 if options.copies == "all" else "1TB")
    if options.products:
        Save.products = options.products
        Save.factor = torch.rand(options.width, options.width, device=on, dtype=torch.bfloat16)
        for _ in range(3):
            step(tensors, x, spilled)
        both = [(step(tensors, x, nullcontext()), step(tensors, x, spilled)) for _ in range(options.rounds)]
        plain, with_ = (statistics.median(column) for column in zip(*both))
        print(f"a step: {plain * 1e3:.1f} ms without spilling, {with_ * 1e3:.1f} with it, {with_ / plain:.4f} times")
        print(spilled.stats())
        return
    for _ in range(3):
        seconds(tensors, x, spilled)
    pairs = [(seconds(tensors, x, nullcontext()), seconds(tensors, x, spilled)) for _ in range(options.rounds)]
    for number, what in enumerate(("saved", "restored")):
        without, with_ = (statistics.median(column[number] for column in columns) for columns in zip(*pairs))
        print(
            f"{what}: {without / options.tensors * 1e6:6.2f} us a tensor without spilling, "
            f"{with_ / options.tensors * 1e6:6.2f} with it, {(with_ - without) / options.tensors * 1e6:6.2f} more"
        )
    print(spilled.stats())


if __name__ == "__main__":
    main()
