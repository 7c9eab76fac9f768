"""Compares steps of training whose saved tensors leave as they are, and packed.

    torch_spill_ways_bench.py [--device cuda:0] [--layers 24] [--width 4096] [--tokens 16384]

All tensors leave that may. Every gradient is compared bit by bit with that of a step in which all stay. A run on the
host (--device host:0 --layers 4 --width 256 --tokens 1024) only shows that the program works.
"""

import argparse
import time

import torch
from torch import nn

import libstagehand as sh
import libstagehand.torch as st

parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
parser.add_argument("--device", default="cuda:0")
parser.add_argument("--layers", type=int, default=24)
parser.add_argument("--width", type=int, default=4096)
parser.add_argument("--tokens", type=int, default=16384)
parser.add_argument("--warm", type=int, default=4, help="steps before (4)")
parser.add_argument("--steps", type=int, default=6, help="timed steps (6)")
parser.add_argument("--repeats", type=int, default=2)
options = parser.parse_args()
on_gpu = options.device.startswith("cuda")
BUDGET = 2 << 30  # saved tensors are beside it


class Layer(nn.Module):
    def __init__(self):
        super().__init__()
        width = options.width
        self.norm = nn.LayerNorm(width, dtype=torch.bfloat16)
        self.up = nn.Linear(width, 2 * width, bias=False, dtype=torch.bfloat16)
        self.down = nn.Linear(2 * width, width, bias=False, dtype=torch.bfloat16)

    def forward(self, x):
        return x + self.down(torch.relu(self.up(self.norm(x))))


def step(model, x):
    for parameter in model.parameters():
        parameter.grad = None
    model(x).float().square().mean().backward()


def timed(model, x):
    """Returns the time of a step in milliseconds, and the peak of device memory in GB."""
    for _ in range(options.warm):
        step(model, x)
    if on_gpu:
        torch.cuda.synchronize()
        torch.cuda.reset_peak_memory_stats()
    began = time.perf_counter()
    for _ in range(options.steps):
        step(model, x)
    if on_gpu:
        torch.cuda.synchronize()
    took = (time.perf_counter() - began) / options.steps * 1e3
    return took, torch.cuda.max_memory_allocated() / 1e9 if on_gpu else 0.0


def show(name, took, peak, rest=""):
    print(f"{name:12s} {took:8.1f} ms a step, peak {peak:6.2f} GB{rest}", flush=True)


def run(model, x, want, name, pack=False):
    with sh.Device(options.device, budget_bytes=BUDGET) as device:
        spilled = st.spill_activations(model, device=device, pack=pack)
        with spilled:
            took, peak = timed(model, x)
        stats = spilled.stats()
        equal = all(torch.equal(one.grad, other) for one, other in zip(model.parameters(), want))
        both = stats.spill_bytes + stats.restore_bytes
        rest = f", {both / stats.steps / 1e9:.2f} GB out and back"
        rest += f", {stats.packed_bytes / stats.spill_bytes:.0%} packed"
        show(name, took, peak, f"{rest}, gradients equal: {equal}")
        spilled.close()


def main():
    torch.manual_seed(1)
    with torch.device(options.device if on_gpu else "cpu"):
        model = nn.Sequential(*(Layer() for _ in range(options.layers)))
        x = torch.randn(options.tokens, options.width, dtype=torch.bfloat16)
    show("all stay", *timed(model, x))
    want = [parameter.grad.clone() for parameter in model.parameters()]
    for _ in range(options.repeats):
        run(model, x, want, "as they are")
        run(model, x, want, "packed", pack=True)


main()
