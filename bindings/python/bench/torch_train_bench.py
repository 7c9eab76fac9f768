"""Time and memory of training steps: plain, checkpointed, offloaded by others, and with spill_activations().

    torch_train_bench.py [--model gpt|llama|transformers] [--device cuda:0] [--arms plain,checkpoint,...] [--json FILE]

Each arm takes 5 steps to warm up and 20 timed steps. The time is the median. The peak is the most memory that the
allocator of PyTorch gave during the timed steps, and the first peak is that of the steps before them. Each arm then
takes steps with deterministic kernels. Its gradients are compared with those of the plain step bit by bit. `gpt` and
`llama` are layers of this program, and the loss is that of their output. `transformers` is the Llama of transformers,
unchanged, with its vocabulary and its loss. The arms `save_on_cpu` and `trl` are those of PyTorch and of the package
trl, and the latter is left out where trl is not installed. A run on the CPU (--device cpu --width 64 --layers 2
--tokens 64 --heads 4) only shows that the program works.
"""

from __future__ import annotations

import argparse
import gc
import inspect
import itertools
import json
import logging
import os
import statistics
import sys
import time
from collections.abc import Callable, Iterator
from contextlib import AbstractContextManager, contextmanager, nullcontext
from typing import Any

os.environ.setdefault("CUBLAS_WORKSPACE_CONFIG", ":4096:8")

import torch
from torch import nn
from torch.nn import functional as F
from torch.nn.attention import SDPBackend, sdpa_kernel
from torch.utils.checkpoint import checkpoint

import libstagehand.torch as st

GIB = 1 << 30


class GptLayer(nn.Module):
    def __init__(self, width: int, heads: int) -> None:
        super().__init__()
        self.heads = heads
        self.before, self.between = nn.LayerNorm(width), nn.LayerNorm(width)
        self.qkv, self.out = nn.Linear(width, 3 * width), nn.Linear(width, width)
        self.up, self.down = nn.Linear(width, 4 * width), nn.Linear(4 * width, width)

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        batch, tokens, width = x.shape
        q, k, v = (
            self.qkv(self.before(x)).view(batch, tokens, 3, self.heads, width // self.heads).permute(2, 0, 3, 1, 4)
        )
        a = F.scaled_dot_product_attention(q, k, v, is_causal=True)
        x = x + self.out(a.transpose(1, 2).reshape(batch, tokens, width))
        return x + self.down(F.gelu(self.up(self.between(x))))


class RmsNorm(nn.Module):
    """As the Llama of transformers has it."""

    def __init__(self, width: int) -> None:
        super().__init__()
        self.weight = nn.Parameter(torch.ones(width))

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        dtype = x.dtype
        x = x.to(torch.float32)
        variance = x.pow(2).mean(-1, keepdim=True)
        x = x * torch.rsqrt(variance + 1e-5)
        return self.weight * x.to(dtype)


def rotated(x: torch.Tensor, cos: torch.Tensor, sin: torch.Tensor) -> torch.Tensor:
    half = x.shape[-1] // 2
    return (x * cos) + (torch.cat((-x[..., half:], x[..., :half]), dim=-1) * sin)


class LlamaLayer(nn.Module):
    def __init__(self, width: int, heads: int) -> None:
        super().__init__()
        self.heads, self.groups, self.size = heads, max(1, heads // 4), width // heads
        self.before, self.between = RmsNorm(width), RmsNorm(width)
        self.q = nn.Linear(width, width, bias=False)
        self.k, self.v = (nn.Linear(width, self.groups * self.size, bias=False) for _ in range(2))
        self.out = nn.Linear(width, width, bias=False)
        self.gate, self.up = (nn.Linear(width, width * 7 // 2, bias=False) for _ in range(2))
        self.down = nn.Linear(width * 7 // 2, width, bias=False)

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        batch, tokens, width = x.shape
        h = self.before(x)
        q = self.q(h).view(batch, tokens, self.heads, self.size).transpose(1, 2)
        k, v = (one(h).view(batch, tokens, self.groups, self.size).transpose(1, 2) for one in (self.k, self.v))
        place = torch.arange(tokens, device=x.device, dtype=torch.float32)
        turns = 1e4 ** (-torch.arange(0, self.size, 2, device=x.device, dtype=torch.float32) / self.size)
        angle = torch.outer(place, turns).repeat(1, 2)
        cos, sin = angle.cos().to(x.dtype), angle.sin().to(x.dtype)
        a = F.scaled_dot_product_attention(
            rotated(q, cos, sin), rotated(k, cos, sin), v, is_causal=True, enable_gqa=True
        )
        x = x + self.out(a.transpose(1, 2).reshape(batch, tokens, width))
        h = self.between(x)
        return x + self.down(F.silu(self.gate(h)) * self.up(h))


class Stack(nn.Module):
    def __init__(self, kind: Callable[[int, int], nn.Module], options: argparse.Namespace) -> None:
        super().__init__()
        self.layers = nn.ModuleList(kind(options.width, options.heads) for _ in range(options.layers))
        self.checkpointed = False

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        for layer in self.layers:
            x = checkpoint(layer, x, use_reentrant=False) if self.checkpointed else layer(x)
        return x

    def loss(self, x: torch.Tensor) -> torch.Tensor:
        loss: torch.Tensor = self(x).square().mean()
        return loss

    def checkpoint(self, on: bool) -> None:
        self.checkpointed = on


class Transformers(nn.Module):
    """A Llama of transformers, with random weights."""

    def __init__(self, options: argparse.Namespace) -> None:
        super().__init__()
        import transformers

        config = transformers.LlamaConfig(
            hidden_size=options.width,
            intermediate_size=options.width * 7 // 2,
            num_hidden_layers=options.layers,
            num_attention_heads=options.heads,
            num_key_value_heads=max(1, options.heads // 4),
            max_position_embeddings=options.sequence,
            vocab_size=options.vocabulary,
            bos_token_id=0,
            eos_token_id=1,
            use_cache=False,
        )
        self.inner = transformers.LlamaForCausalLM(config).train()

    def loss(self, ids: torch.Tensor) -> torch.Tensor:
        loss: torch.Tensor = self.inner(input_ids=ids, labels=ids).loss
        return loss

    def checkpoint(self, on: bool) -> None:
        if on:
            self.inner.gradient_checkpointing_enable({"use_reentrant": False})
        else:
            self.inner.gradient_checkpointing_disable()


def read_options() -> argparse.Namespace:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--model", choices=["gpt", "llama", "transformers"], default="gpt")
    parser.add_argument("--device", default="cuda:0")
    parser.add_argument("--width", type=int, default=4096)
    parser.add_argument("--heads", type=int, default=32)
    parser.add_argument("--layers", type=int, default=16)
    parser.add_argument("--tokens", type=int, default=8192, help="tokens of a step (8192)")
    parser.add_argument("--sequence", type=int, default=2048, help="tokens of a sequence (2048)")
    parser.add_argument("--vocabulary", type=int, default=32000, help="of the model of transformers (32000)")
    parser.add_argument("--warm", type=int, default=8)
    parser.add_argument("--steps", type=int, default=20)
    parser.add_argument("--peak", default="13.4GiB", help="the peak that the arms with peak= ask for")
    parser.add_argument("--low-peak", default="11.5GiB", help="the same where gradients leave, too")
    parser.add_argument("--arms", help="only these, separated by commas")
    parser.add_argument("--json", help="write the results to this file")
    return parser.parse_args()


class Bench:
    def __init__(self, options: argparse.Namespace) -> None:
        self.options = options
        self.device = torch.device(options.device)
        self.cuda = self.device.type == "cuda"
        torch.manual_seed(7)
        dtype = torch.bfloat16 if self.cuda else torch.float32
        shape = max(1, options.tokens // options.sequence), min(options.tokens, options.sequence)
        self.model: Stack | Transformers
        with self.device:
            if options.model == "transformers":
                self.model = Transformers(options).to(dtype)
                self.x = torch.randint(0, options.vocabulary, shape)
            else:
                self.model = Stack(GptLayer if options.model == "gpt" else LlamaLayer, options).to(dtype)
                self.x = torch.randn(*shape, options.width, dtype=dtype).requires_grad_()
        self.offloaded: Any = None  # whose gradients leave the device
        self.want: dict[str, torch.Tensor] = {}
        self.results: list[dict[str, Any]] = []
        self.forward_seconds = self.activation_bytes = 0.0

    # One step.

    def clear(self) -> None:
        self.model.zero_grad(set_to_none=True)
        self.x.grad = None
        if self.offloaded is not None:
            self.offloaded.zero_gradients()

    def step(self, scope: AbstractContextManager[Any]) -> None:
        self.clear()
        with scope:
            loss = self.model.loss(self.x)
        loss.backward()

    def synchronize(self) -> None:
        if self.cuda:
            torch.cuda.synchronize(self.device)

    def allocated(self) -> int:
        return torch.cuda.memory_allocated(self.device) if self.cuda else 0

    def peak(self) -> float:
        """Returns the peak since the last call."""
        if not self.cuda:
            return 0.0
        self.synchronize()
        peak = torch.cuda.max_memory_allocated(self.device) / GIB
        torch.cuda.reset_peak_memory_stats(self.device)
        return peak

    def measure_activations(self) -> None:
        """Measures what a plain forward leaves on the device, and how long it takes."""
        for _ in range(3):
            self.clear()
            self.synchronize()
            before, begin = self.allocated(), time.perf_counter()
            loss = self.model.loss(self.x)
            self.synchronize()
            self.forward_seconds = time.perf_counter() - begin
            self.activation_bytes = self.allocated() - before
            del loss

    def times(self, scope: AbstractContextManager[Any]) -> list[float]:
        if not self.cuda:
            times = []
            for _ in range(self.options.steps):
                begin = time.perf_counter()
                self.step(scope)
                times.append(time.perf_counter() - begin)
            return times
        marks = [torch.cuda.Event(enable_timing=True) for _ in range(self.options.steps + 1)]
        marks[0].record()
        for mark in marks[1:]:
            self.step(scope)
            mark.record()
        self.synchronize()
        return [one.elapsed_time(other) / 1e3 for one, other in itertools.pairwise(marks)]

    # Gradients.

    def gradients(self) -> Iterator[tuple[str, torch.Tensor]]:
        inputs = [("input", self.x)] if self.x.requires_grad else []
        for name, parameter in (*self.model.named_parameters(), *inputs):
            if parameter.grad is None:
                raise AssertionError(f"{name} has no gradient")
            yield name, parameter.grad

    def equal(self, spilled: Any, offloaded: bool) -> bool:
        """Compares gradients with those of the first arm, bit by bit."""
        found = dict(spilled.gradients()) if offloaded else {}
        if not offloaded:
            found = dict(self.gradients())
        elif self.x.grad is not None:
            found["input"] = self.x.grad
        if not self.want:
            self.want = {name: one.detach().cpu().clone() for name, one in found.items()}
            return True
        if set(found) != set(self.want):
            return False
        whole = torch.int16 if self.cuda else torch.int32
        return all(
            torch.equal(one.detach().to(self.device).view(whole), self.want[name].to(self.device).view(whole))
            for name, one in found.items()
        )

    @contextmanager
    def deterministic(self) -> Iterator[None]:
        torch.utils.deterministic.fill_uninitialized_memory = False  # type: ignore[attr-defined]
        torch.use_deterministic_algorithms(True, warn_only=False)
        try:
            # The attention of cuDNN, which may be the default, has no deterministic backward.
            with sdpa_kernel([SDPBackend.FLASH_ATTENTION, SDPBackend.MATH]):
                yield
        finally:
            torch.use_deterministic_algorithms(False)

    # Arms.

    def run(self, name: str, scope: Any, *, checkpointed: bool = False, offloaded: bool = False) -> None:
        self.offloaded = scope if offloaded else None
        self.clear()
        gc.collect()
        if self.cuda:
            torch.cuda.empty_cache()
        self.model.checkpoint(checkpointed)
        try:
            self.peak()
            for _ in range(self.options.warm):
                self.step(scope)
            first = self.peak()
            stats = getattr(scope, "stats", lambda: None)
            before = stats()
            begin = time.perf_counter()
            times = self.times(scope)
            peak, whole = self.peak(), time.perf_counter() - begin
            after, plan = stats(), getattr(scope, "plan", None)
            with self.deterministic():
                for _ in range(4):  # other kernels may save other tensors, and a plan is carried out in the next step
                    self.step(scope)
                self.synchronize()
            equal = self.equal(scope, offloaded)
        except torch.OutOfMemoryError as error:
            print(f"{name}: {str(error).splitlines()[0]}", flush=True)
            return
        result = {
            "arm": name,
            "ms": statistics.median(times) * 1e3,
            "least_ms": min(times) * 1e3,
            "mean_ms": whole / len(times) * 1e3,
            "peak_gib": peak,
            "first_peak_gib": first,
            "equal": equal,
        }
        if after is not None:
            steps = len(times)
            result["spilled_gib"] = (after.spill_bytes - before.spill_bytes) / steps / GIB
            result["stall_ms"] = (after.stall_ns - before.stall_ns) / steps / 1e6
            result["pinned_gib"] = after.pool_bytes / GIB
            print(f"{name}: {after}", flush=True)
        if (tell := getattr(scope, "recompute_stats", None)) is not None and tell() is not None:
            print(f"{name}: {tell()}", flush=True)
        if plan is not None:
            figures = {key: one for key, one in vars(plan).items() if key != "fates"}
            print(f"{name}: the plan: {figures}", flush=True)
        self.results.append(result)
        print(
            "  ".join(f"{key} {one:.4g}" if isinstance(one, float) else f"{key} {one}" for key, one in result.items())
        )
        sys.stdout.flush()

    def offloaded_by_trl(self, name: str) -> None:
        """The offloading of activations of the package trl, as its trainers use it."""
        try:
            from trl.models.activation_offloading import OffloadActivations
        except ImportError as error:
            print(f"{name}: skipped, because trl cannot be imported: {error}")
            return
        self.run(name, OffloadActivations(use_streams=self.cuda))

    def spilled(self, name: str, **arguments: Any) -> None:
        known = inspect.signature(st.spill_activations).parameters
        if missing := set(arguments) - set(known):
            print(f"{name}: skipped, because spill_activations() has no {', '.join(missing)}=")
            return
        where = "host" if not self.cuda else str(self.device)
        with_close = st.spill_activations(self.model, device=where, **arguments)
        try:
            self.run(name, with_close, offloaded=bool(arguments.get("offload_gradients")))
        finally:
            self.clear()
            self.offloaded = None
            with_close.close()


def main() -> int:
    options = read_options()
    logging.basicConfig(level=logging.INFO, format="%(message)s")
    bench = Bench(options)
    bench.measure_activations()
    whole = int(bench.activation_bytes)
    print(
        f"torch {torch.__version__}, {torch.cuda.get_device_name(bench.device) if bench.cuda else 'CPU'}: "
        f"{options.model}, {options.layers} layers, width {options.width}, {options.tokens} tokens: forward "
        f"{bench.forward_seconds * 1e3:.1f} ms, activations {whole / GIB:.2f} GiB",
        flush=True,
    )
    arms: dict[str, Callable[[str], None]] = {
        "plain": lambda name: bench.run(name, nullcontext()),
        "checkpoint": lambda name: bench.run(name, nullcontext(), checkpointed=True),
        "save_on_cpu": lambda name: bench.run(name, torch.autograd.graph.save_on_cpu(pin_memory=bench.cuda)),
        "trl": lambda name: bench.offloaded_by_trl(name),
        "all": lambda name: bench.spilled(name, keep=0),
        "quarter": lambda name: bench.spilled(name, keep=whole * 3 // 4),
        "10GiB": lambda name: bench.spilled(name, keep=max(0, whole - 10 * GIB)),
        "recompute": lambda name: bench.spilled(name, keep="1TB", recompute=True),
        "watermarks": lambda name: bench.spilled(name, watermarks=(options.peak, options.peak), recompute=True),
        "peak": lambda name: bench.spilled(name, peak=options.peak),
        "peak+gradients": lambda name: bench.spilled(name, peak=options.low_peak, offload_gradients=True),
        "plain again": lambda name: bench.run(name, nullcontext()),
    }
    chosen = list(arms) if options.arms is None else ["plain", *options.arms.split(",")]
    for name in dict.fromkeys(chosen):
        arms[name](name)
    plain = bench.results[0]["ms"]
    print(f"\n{'arm':20} {'ms':>8} {'x plain':>8} {'peak GiB':>9} {'first':>7} {'spilled':>8} {'stall ms':>9}  equal")
    for one in bench.results:
        print(
            f"{one['arm']:20} {one['ms']:8.1f} {one['ms'] / plain:8.3f} {one['peak_gib']:9.2f} "
            f"{one['first_peak_gib']:7.2f} {one.get('spilled_gib', 0):8.2f} {one.get('stall_ms', 0):9.1f}  "
            f"{'yes' if one['equal'] else 'NO'}"
        )
    if options.json:
        with open(options.json, "w") as file:
            json.dump(bench.results, file, indent=1)
    return 0 if all(one["equal"] for one in bench.results) else 1


if __name__ == "__main__":
    sys.exit(main())
