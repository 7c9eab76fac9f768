"""Prefill and decoding of a Llama of transformers: resident, streamed in several budgets, and offloaded by accelerate.

    torch_decode_bench.py [--device cuda:0] [--layers 32] [--budgets 0.25,0.5,0.75,0.9] [--json FILE]

The weights are random, in bf16, with the shapes of Llama 8B. A static cache has the keys and values. The bound of a
step is max(resident step, (weights - budget) / link), with the link measured in the same run. Each row has its ratios
to this bound, and tells whether its tokens and its last logits are those of the resident model, bit by bit. accelerate
holds as many layers as fit into the same budget beside the largest weight that it moves. A run on the CPU (--device cpu
--layers 3 --width 64 --vocabulary 256 --prompt 16 --tokens 4) only shows that the program works.
"""

from __future__ import annotations

import argparse
import gc
import importlib.util
import json
import os
import statistics
import sys
import time
from collections.abc import Callable
from typing import Any

os.environ.setdefault("CUBLAS_WORKSPACE_CONFIG", ":4096:8")

import torch

import libstagehand as sh
import libstagehand.torch as st

GB = 1e9


def read_options() -> argparse.Namespace:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--device", default="cuda:0")
    parser.add_argument("--layers", type=int, default=32)
    parser.add_argument("--width", type=int, default=4096)
    parser.add_argument("--vocabulary", type=int, default=128256)
    parser.add_argument(
        "--budgets", default="0.25,0.5,0.75,0.9", help="parts of the weights' bytes, separated by commas"
    )
    parser.add_argument("--prompt", type=int, default=4096, help="tokens of the prefill (4096)")
    parser.add_argument("--tokens", type=int, default=256, help="tokens that are decoded (256)")
    parser.add_argument("--rounds", type=int, default=3, help="timed rounds of prefill and decoding (3)")
    parser.add_argument("--blocks", help="modules that make a block each, separated by commas (automatic)")
    parser.add_argument("--packages", default="libstagehand,accelerate", help="separated by commas (both)")
    parser.add_argument("--json", help="write the results to this file")
    return parser.parse_args()


def config_of(options: argparse.Namespace) -> Any:
    import transformers

    heads = max(4, options.width // 128)
    return transformers.LlamaConfig(
        hidden_size=options.width,
        intermediate_size=options.width * 7 // 2,
        num_hidden_layers=options.layers,
        num_attention_heads=heads,
        num_key_value_heads=heads // 4,
        vocab_size=options.vocabulary,
        max_position_embeddings=options.prompt + options.tokens,
        rope_theta=5e5,
        bos_token_id=0,
        eos_token_id=1,
    )


def empty(config: Any) -> Any:
    """Returns a model whose weights are on the meta device. Its table of rotations is computed, and no weight."""
    import transformers

    with torch.device("meta"):
        model = transformers.LlamaForCausalLM(config)
    model.model.rotary_emb = type(model.model.rotary_emb)(config)
    return model.requires_grad_(False).eval()


def size_of(module: Any) -> int:
    return sum(one.numel() * one.element_size() for one in {id(p): p for p in module.parameters()}.values())


class Bench:
    def __init__(self, options: argparse.Namespace) -> None:
        self.options = options
        self.device = torch.device(options.device)
        self.cuda = self.device.type == "cuda"
        self.config = config_of(options)
        self.weights = self.filled()
        self.size = sum(one.nbytes for one in self.weights.values())
        generator = torch.Generator().manual_seed(1)
        self.prompt = torch.randint(0, options.vocabulary, (1, options.prompt), generator=generator).to(self.device)
        self.want: tuple[torch.Tensor, torch.Tensor] | None = None
        self.resident = (0.0, 0.0)  # seconds of the prefill, and of one token
        self.rows: list[dict[str, Any]] = []
        self.link = self.link_speed()

    def filled(self) -> dict[str, torch.Tensor]:
        """Returns random weights in host memory. The device makes the numbers, because it is faster than the host."""
        generator = torch.Generator(self.device).manual_seed(7)
        weights: dict[str, torch.Tensor] = {}
        for name, one in empty(self.config).state_dict().items():
            values = torch.empty(one.shape, dtype=torch.bfloat16, device=self.device)
            weights[name] = (values.normal_(0, 0.02, generator=generator) if one.dim() > 1 else values.fill_(1)).cpu()
        return weights

    def model(self) -> Any:
        """Returns another model over the same host memory."""
        model = empty(self.config)
        model.load_state_dict(self.weights, assign=True)
        model.model.rotary_emb.to(self.device)
        return model.requires_grad_(False)

    def synchronize(self) -> None:
        if self.cuda:
            torch.cuda.synchronize(self.device)

    def give_back(self) -> None:
        gc.collect()
        if self.cuda:
            torch.cuda.empty_cache()
            torch.cuda.reset_peak_memory_stats(self.device)

    def link_speed(self) -> float:
        """Returns the rate of one copy from pinned memory to the device, in bytes per second."""
        size = 1 << 30 if self.cuda else 64 << 20
        host = torch.empty(size, dtype=torch.uint8, pin_memory=self.cuda).fill_(1)
        there = torch.empty(size, dtype=torch.uint8, device=self.device)
        times = []
        for _ in range(5):
            self.synchronize()
            begin = time.perf_counter()
            there.copy_(host, non_blocking=True)
            self.synchronize()
            times.append(time.perf_counter() - begin)
        return size / min(times)

    # One round.

    def round(self, model: Any, cache: Any) -> tuple[float, float, torch.Tensor, torch.Tensor]:
        """Returns the seconds of the prefill, those of one token, the tokens, and the last logits."""
        cache.reset()
        self.synchronize()
        begin = time.perf_counter()
        logits = model(self.prompt, past_key_values=cache, use_cache=True, logits_to_keep=1).logits
        self.synchronize()
        middle = time.perf_counter()
        tokens = [logits.argmax(-1)]
        for _ in range(self.options.tokens):
            logits = model(tokens[-1], past_key_values=cache, use_cache=True).logits
            tokens.append(logits.argmax(-1))
        self.synchronize()
        end = time.perf_counter()
        return middle - begin, (end - middle) / self.options.tokens, torch.cat(tokens, 1).cpu(), logits.cpu()

    @torch.inference_mode()
    def measure(self, name: str, model: Any, budget: int, held: Callable[[], int] = lambda: 0) -> None:
        """Measures a model, and adds a row. `held` returns the most bytes of weights beside PyTorch's memory."""
        import transformers

        cache = transformers.StaticCache(self.config, max_cache_len=self.options.prompt + self.options.tokens)
        self.round(model, cache)
        rounds = [self.round(model, cache) for _ in range(self.options.rounds)]
        prefill, token = (statistics.median(one[number] for one in rounds) for number in (0, 1))
        if self.want is None:
            self.want, self.resident = rounds[0][2:], (prefill, token)
        copies = (self.size - budget) / self.link
        peak = (torch.cuda.max_memory_allocated(self.device) if self.cuda else 0) + held()
        row = {
            "package": name,
            "budget": budget / self.size,
            "prefill_ms": prefill * 1e3,
            "prefill_by_bound": prefill / max(self.resident[0], copies),
            "token_ms": token * 1e3,
            "token_by_bound": token / max(self.resident[1], copies),
            "peak_gb": peak / GB,
            "equal": all(torch.equal(a, b) for one in rounds for a, b in zip(one[2:], self.want)),
        }
        self.rows.append(row)
        print("  ".join(f"{key} {one:.4g}" if isinstance(one, float) else f"{key} {one}" for key, one in row.items()))
        sys.stdout.flush()

    # Rows.

    def run_resident(self) -> None:
        self.give_back()
        self.measure("resident", self.model().to(self.device), self.size)

    def run_streamed(self, part: float) -> None:
        self.give_back()
        budget, model = int(part * self.size), self.model()
        where = "host" if not self.cuda else str(self.device)
        blocks = self.options.blocks.split(",") if self.options.blocks else None
        try:
            with sh.Device(where, budget_bytes=budget) as device, st.stream(model, device, blocks=blocks):
                self.measure("libstagehand", model, budget, lambda: device.memory().peak_bytes)
        except sh.BudgetError as error:
            print(f"libstagehand: skipped, because {error}")

    def run_accelerate(self, part: float) -> None:
        import accelerate

        self.give_back()
        budget, model = int(part * self.size), self.model()
        if not self.cuda:  # dispatch_model() takes the CPU for the place of all weights
            self.measure("accelerate cpu_offload", accelerate.cpu_offload(model, self.device), 0)
            return
        room = budget - max(one.nbytes for one in self.weights.values())
        places: dict[str, Any] = {"model.rotary_emb": self.device.index}
        parts = {f"model.layers.{number}": layer for number, layer in enumerate(model.model.layers)}
        parts |= {
            "model.norm": model.model.norm,
            "lm_head": model.lm_head,
            "model.embed_tokens": model.model.embed_tokens,
        }
        for name, module in parts.items():
            fits = size_of(module) <= room
            places[name] = self.device.index if fits else "cpu"
            room -= size_of(module) if fits else 0
        made = accelerate.dispatch_model(model, places, main_device=self.device.index, force_hooks=True)
        self.measure("accelerate", made, budget)

    def table(self) -> None:
        print(
            f"\n{'package':24} {'budget':>6} {'prefill ms':>11} {'÷ bound':>8} {'token ms':>9} {'÷ bound':>8} "
            f"{'peak GB':>8}  equal"
        )
        for row in self.rows:
            print(
                f"{row['package']:24} {row['budget']:6.2f} {row['prefill_ms']:11.2f} {row['prefill_by_bound']:8.3f} "
                f"{row['token_ms']:9.3f} {row['token_by_bound']:8.3f} {row['peak_gb']:8.2f}  "
                f"{'yes' if row['equal'] else 'NO'}"
            )


def main() -> int:
    options = read_options()
    if importlib.util.find_spec("transformers") is None:
        print("transformers is not installed")
        return 1
    bench = Bench(options)
    print(
        f"torch {torch.__version__}, {torch.cuda.get_device_name(bench.device) if bench.cuda else 'CPU'}: "
        f"{options.layers} layers, {bench.size / GB:.3f} GB of weights, link {bench.link / GB:.1f} GB/s",
        flush=True,
    )
    bench.run_resident()
    packages = options.packages.split(",")
    for part in map(float, options.budgets.split(",")):
        if "libstagehand" in packages:
            bench.run_streamed(part)
        if "accelerate" not in packages:
            continue
        if importlib.util.find_spec("accelerate") is None:
            print("accelerate: skipped, because it is not installed")
        elif bench.cuda or not any(row["package"].startswith("accelerate") for row in bench.rows):
            bench.run_accelerate(part)
    bench.table()
    if options.json:
        with open(options.json, "w") as file:
            json.dump({"link_gbs": bench.link / GB, "weights_gb": bench.size / GB, "rows": bench.rows}, file, indent=1)
    return 0 if all(row["equal"] for row in bench.rows if row["package"] == "libstagehand") else 1


if __name__ == "__main__":
    sys.exit(main())
