"""Compares steps of a model that is streamed from a plain file with steps from the packed file.

    torch_packed_files_bench.py [--device cuda:0] [--layers 40] [--width 4096] [--warm 40] [--stagehand PATH]

Both files are in the page cache. `stagehand pack` makes the packed one. Every output is compared bit by bit with that
of the resident layers. A run on the CPU (--device cpu --layers 12 --width 1024) only shows that the program works.
"""

import argparse
import json
import os
import struct
import subprocess
import tempfile
import time

import torch
from torch import nn

import libstagehand as sh
import libstagehand.torch as st

parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
parser.add_argument("--device", default="cuda:0")
parser.add_argument("--layers", type=int, default=40)
parser.add_argument("--width", type=int, default=4096)
parser.add_argument("--tokens", type=int, default=16)
parser.add_argument("--warm", type=int, default=40, help="steps before, for plans with the speeds that they show (40)")
parser.add_argument("--steps", type=int, default=10, help="timed steps (10)")
parser.add_argument("--stagehand", default="stagehand", help="the command")
options = parser.parse_args()
device = torch.device(options.device)


class Layer(nn.Module):
    def __init__(self):
        super().__init__()
        width = options.width
        self.norm = nn.LayerNorm(width, dtype=torch.bfloat16)
        self.up = nn.Linear(width, 2 * width, bias=False, dtype=torch.bfloat16)
        self.down = nn.Linear(2 * width, width, bias=False, dtype=torch.bfloat16)

    def forward(self, x):
        return x + self.down(torch.relu(self.up(self.norm(x))))


def made():
    return nn.Sequential(*(Layer() for _ in range(options.layers))).requires_grad_(False)


def write(path, state):
    header, end = {}, 0
    for name, tensor in state.items():
        begin, end = end, end + tensor.numel() * tensor.element_size()
        header[name] = {"dtype": "BF16", "shape": list(tensor.shape), "data_offsets": [begin, end]}
    text = json.dumps(header).encode()
    text += b" " * (-len(text) % 8)
    with open(path, "wb") as file:
        file.write(struct.pack("<Q", len(text)) + text)
        for tensor in state.values():
            file.write(tensor.cpu().view(torch.int16).numpy().tobytes())
    return end


def synchronize():
    if device.type == "cuda":
        torch.cuda.synchronize()


def run(path, budget, x, want):
    """Returns the time of a step in milliseconds, the plan, and whether all outputs are right."""
    with torch.device("meta"):
        model = made()
    # The device's budget is the model's, which gives it pages of the right size.
    opened = sh.Device("host" if device.type == "cpu" else str(device), budget_bytes=budget)
    with opened, st.stream(model, opened, files=path) as streamed:
        right = all(torch.equal(model(x).view(torch.int16), want.view(torch.int16)) for _ in range(options.warm))
        synchronize()
        began = time.perf_counter()
        for _ in range(options.steps):
            got = model(x)
        synchronize()
        took = (time.perf_counter() - began) / options.steps * 1e3
        return took, streamed.runtime.plan(), right and torch.equal(got.view(torch.int16), want.view(torch.int16))


def main():
    torch.manual_seed(1)
    with tempfile.TemporaryDirectory() as folder:
        files = [os.path.join(folder, name) for name in ("plain.safetensors", "packed.safetensors")]
        with device:
            model = made()
        x = torch.randn(options.tokens, options.width, device=device, dtype=torch.bfloat16)
        want = model(x).clone()
        size = write(files[0], model.state_dict())
        del model
        subprocess.run([options.stagehand, "pack", files[0], "-o", files[1], "--quiet"], check=True)
        print("budget  file     ms a step  planned  kept packed  equal")
        for part in (0.25, 0.5, 0.8):
            for name, path in zip(("plain", "packed"), files):
                took, plan, right = run(path, int(size * part), x, want)
                kept = plan.packed_resident_bytes / 1e6
                print(
                    f"{part:5.0%}   {name:7s} {took:10.1f} {plan.step_ns / 1e6:8.1f} {kept:9.0f} MB  {right}",
                    flush=True,
                )


main()
