"""Compares packed weights with diffusers' group offload and with DFloat11, on the same layers of a GPU.

    torch_packed_bench.py [--device cuda:0] [--layers 48] [--width 1536] [--tokens 64 4096] [--json FILE]

All layers have the same random weights, in memory of their own, because DFloat11 packs in Python and takes half a
minute for one layer. Each package runs the same steps. libstagehand runs with several budgets, also captured in a CUDA
graph, and with the peak device memory of each other package. Every output is compared bit by bit with that of the
resident layers. A line tells of each package that is not installed. DFloat11 needs CuPy. A run on the CPU (--device cpu
--layers 4 --width 256) only shows that the program works.
"""

import argparse
import contextlib
import gc
import importlib.util
import io
import json
import os
import statistics
import sys
import tempfile
import time

import torch
from torch import nn
from torch.nn import functional as F

import libstagehand as sh
import libstagehand.torch as st

parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
parser.add_argument("--device", default="cuda:0")
parser.add_argument("--layers", type=int, default=48)
parser.add_argument("--width", type=int, default=1536)
parser.add_argument("--tokens", type=int, nargs="+", default=[64, 4096])
parser.add_argument("--steps", type=int, default=6, help="timed steps of each package (6)")
parser.add_argument("--json", help="write the results to this file")
options = parser.parse_args()
device = torch.device(options.device)
on_gpu = device.type == "cuda"
results = []
MATRICES = ["qkv", "out", "gate", "up", "down"]


def tell(**values):
    results.append(values)
    print("  ".join(f"{k} {v:.4g}" if isinstance(v, float) else f"{k} {v}" for k, v in values.items()), flush=True)


def missing(*packages):
    names = [one for one in packages if importlib.util.find_spec(one) is None]
    return "it needs a GPU" if not on_gpu else f"{', '.join(names)} not installed" if names else None


class Layer(nn.Module):
    """A layer with attention and a gated network."""

    def __init__(self):
        super().__init__()
        width = options.width
        self.before, self.between = nn.RMSNorm(width), nn.RMSNorm(width)
        self.qkv, self.out = nn.Linear(width, 3 * width, bias=False), nn.Linear(width, width, bias=False)
        self.gate, self.up = nn.Linear(width, 4 * width, bias=False), nn.Linear(width, 4 * width, bias=False)
        self.down = nn.Linear(4 * width, width, bias=False)

    def forward(self, x):
        batch, tokens, width = x.shape
        q, k, v = self.qkv(self.before(x)).view(batch, tokens, 3, width // 64, 64).permute(2, 0, 3, 1, 4)
        x = x + self.out(F.scaled_dot_product_attention(q, k, v).transpose(1, 2).reshape(batch, tokens, width))
        h = self.between(x)
        return x + self.down(F.silu(self.gate(h)) * self.up(h))


class Stack(nn.Module):
    def __init__(self, count):
        super().__init__()
        self.layers = nn.ModuleList(Layer() for _ in range(count))

    def forward(self, x):
        for layer in self.layers:
            x = layer(x)
        return x


def made(count=options.layers):
    """Layers in host memory, each time with the same weights."""
    generator = torch.Generator().manual_seed(7)
    first = Layer().to(torch.bfloat16)
    for parameter in first.parameters():
        if parameter.dim() > 1:
            parameter.data.normal_(0, 0.02, generator=generator)
    with torch.device("meta"):
        model = Stack(count)
    model = model.to(torch.bfloat16).to_empty(device="cpu").requires_grad_(False).eval()
    for layer in model.layers:
        layer.load_state_dict(first.state_dict())
    return model


def give_back():
    gc.collect()
    if on_gpu:
        torch.cuda.empty_cache()


def synchronize():
    if on_gpu:
        torch.cuda.synchronize(device)


def measured(run, x, want, weights_peak=lambda: 0):
    """The median time of a step in ms, the peak device memory, and whether all compared outputs are right."""
    if on_gpu:
        torch.cuda.empty_cache()
        torch.cuda.reset_peak_memory_stats(device)
    times = []
    with torch.inference_mode():
        # Plans are made anew in the first steps.
        equal = all(torch.equal(run(x).cpu(), want) for _ in range(10))
        for _ in range(options.steps):
            synchronize()
            begin = time.perf_counter()
            run(x)
            run(x)
            synchronize()
            times.append((time.perf_counter() - begin) / 2)
        equal = equal and torch.equal(run(x).cpu(), want)
    peak = (torch.cuda.max_memory_allocated(device) if on_gpu else 0) + weights_peak()
    return statistics.median(times) * 1e3, peak, equal


class Rows:
    """The rows of one number of tokens."""

    def __init__(self, tokens, size):
        self.tokens, self.size = tokens, size
        self.x = torch.randn(1, tokens, options.width, generator=torch.Generator().manual_seed(3))
        self.x = self.x.to(torch.bfloat16).to(device)
        self.want = None
        self.activations = 0

    def tell(self, package, figures, **more):
        step, peak, equal = figures
        tell(tokens=self.tokens, package=package, step_ms=step, peak_gb=peak / 1e9, equal=equal, **more)
        give_back()
        return step, peak

    def resident(self):
        model = made().to(device)
        with torch.inference_mode():
            self.want = model(self.x).cpu()
        _, peak = self.tell("resident", measured(model, self.x, self.want))
        self.activations = max(0, peak - self.size) if on_gpu else 0

    def ours(self, budget, pack, beside, captured=False):
        name = "host" if device.type == "cpu" else str(device)
        try:
            model = made()
            with sh.Device(name, budget_bytes=int(budget)) as where, st.stream(model, where, pack=pack) as streamed:
                forward = streamed.graph(self.x, warm_up=10) if captured else model
                figures = measured(forward, self.x, self.want, lambda: where.memory().peak_bytes)
                copied = streamed.stats().bytes_to_device / max(1, streamed.stats().steps)
                if captured:
                    forward.close()
        except sh.BudgetError as error:
            print(f"libstagehand cannot stream within {budget / 1e9:.3f} GB: {error}")
            return None
        if not figures[2]:
            sys.exit("libstagehand: the output differs from that of the resident layers")
        package = ("libstagehand packed" if pack else "libstagehand") + (", captured" if captured else "")
        return self.tell(package, figures, beside=beside, budget_gb=budget / 1e9, copied_gb_per_step=copied / 1e9)

    def with_budgets(self, captured=False):
        for part in (0.25, 0.5, 0.8):
            for pack in (False, True):
                self.ours(part * self.size, pack, f"{part:.0%} of the weights", captured)

    def beside(self, name, model):
        """Measures another package, and libstagehand with its peak device memory."""
        step, peak = self.tell(name, measured(model, self.x, self.want))
        del model
        give_back()
        for pack in (False, True):
            if (mine := self.ours(peak - self.activations, pack, name)) is not None:
                tell(tokens=self.tokens, other=name, packed=pack, time_ratio=mine[0] / step, peak_ratio=mine[1] / peak)


def with_group_offload():
    from diffusers.hooks import apply_group_offloading

    model = made()
    apply_group_offloading(
        model, onload_device=device, offload_device=torch.device("cpu"), offload_type="block_level",
        num_blocks_per_group=1, use_stream=True, record_stream=True, non_blocking=True,
    )  # fmt: skip
    return model


def pack_for_dfloat11(folder):
    """Packs one layer, and writes the layers of the whole model from it."""
    import dfloat11
    from dfloat11.dfloat11 import compress_model
    from safetensors.torch import load_file, save_file

    one = os.path.join(folder, "one")
    begin = time.perf_counter()
    with contextlib.redirect_stdout(io.StringIO()), contextlib.redirect_stderr(io.StringIO()):
        compress_model(made(1), {r"layers\.\d+": MATRICES}, one)
    seconds = time.perf_counter() - begin
    tensors = load_file(os.path.join(one, "model.safetensors"))
    all_layers = os.path.join(folder, "all")
    os.mkdir(all_layers)
    os.rename(os.path.join(one, "config.json"), os.path.join(all_layers, "config.json"))
    whole = {
        name.replace("layers.0.", f"layers.{i}."): tensor.clone()
        for i in range(options.layers)
        for name, tensor in tensors.items()
    }
    save_file(whole, os.path.join(all_layers, "model.safetensors"))
    size = sum(tensor.nbytes for tensor in tensors.values())
    tell(
        package="dfloat11", version=getattr(dfloat11, "__version__", "?"), packs_a_layer_s=seconds, layer_gb=size / 1e9
    )
    return all_layers


def with_dfloat11(folder, offload):
    from dfloat11 import DFloat11Model

    with contextlib.redirect_stdout(io.StringIO()), contextlib.redirect_stderr(io.StringIO()):
        return DFloat11Model.from_pretrained(folder, device=str(device), bfloat16_model=made(), cpu_offload=offload)


def main():
    size = sum(one.nbytes for one in made().parameters())
    tell(
        device=torch.cuda.get_device_name(device) if on_gpu else "cpu",
        torch=torch.__version__,
        layers=options.layers,
        weights_gb=size / 1e9,
    )
    with tempfile.TemporaryDirectory() as folder:
        without_diffusers, without_dfloat11 = missing("diffusers"), missing("dfloat11", "cupy")
        packed = None if without_dfloat11 else pack_for_dfloat11(folder)
        all_rows = []
        for tokens in options.tokens:
            rows = Rows(tokens, size)
            rows.resident()
            rows.with_budgets()
            all_rows.append(rows)
            if without_diffusers:
                print(f"diffusers is skipped: {without_diffusers}")
            else:
                rows.beside("diffusers group offload", with_group_offload())
            if without_dfloat11:
                print(f"dfloat11 is skipped: {without_dfloat11}")
                continue
            rows.beside("dfloat11 on the device", with_dfloat11(packed, False))
            rows.beside("dfloat11 offloaded", with_dfloat11(packed, True))
    if on_gpu:  # last, because graphs leave memory of PyTorch behind, which would count as that of others
        for rows in all_rows:
            rows.with_budgets(captured=True)


main()
if options.json:
    with open(options.json, "w") as file:
        json.dump(results, file, indent=1)
