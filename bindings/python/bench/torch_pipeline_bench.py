"""Images of a Flux pipeline of diffusers: resident, offloaded by diffusers, and streamed in the same device bytes.

    torch_pipeline_bench.py [--device cuda:0] [--steps 4] [--json FILE]

The weights are random, in bf16. Each of `enable_model_cpu_offload()`, `enable_sequential_cpu_offload()` and
`enable_group_offload()` makes images first. libstagehand then makes them in a budget that gives it the same peak. The
images are compared with those of the resident pipeline bit by bit. A run on the CPU (--device cpu --width 64 --blocks 1
--single 2 --encoder 2 --sizes 32) has only the resident and the streamed pipeline, and shows that the program works.
"""

from __future__ import annotations

import argparse
import gc
import importlib.util
import json
import statistics
import sys
import time
from collections.abc import Callable
from typing import Any

import torch
from torch import nn

import libstagehand as sh
import libstagehand.torch as st

GB = 1e9


def read_options() -> argparse.Namespace:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--device", default="cuda:0")
    parser.add_argument("--width", type=int, default=3072, help="of the transformer, a multiple of 64 (3072)")
    parser.add_argument("--blocks", type=int, default=6, help="blocks with two streams; Flux has 19 (6)")
    parser.add_argument("--single", type=int, default=12, help="blocks with one stream; Flux has 38 (12)")
    parser.add_argument("--encoder", type=int, default=8, help="layers of the text encoder; T5-XXL has 24 (8)")
    parser.add_argument("--sizes", default="1024", help="width and height of images that are made in turn (1024)")
    parser.add_argument("--steps", type=int, default=4, help="steps of an image (4)")
    parser.add_argument("--rounds", type=int, default=3, help="timed images of each row (3)")
    parser.add_argument("--json", help="write the results to this file")
    return parser.parse_args()


def make_parts(options: argparse.Namespace) -> dict[str, nn.Module]:
    """Returns the models of the pipeline, with weights on the meta device."""
    import diffusers
    import transformers

    size = 128 if options.width >= 1024 else 16
    with torch.device("meta"):
        transformer = diffusers.FluxTransformer2DModel(
            in_channels=64,
            num_layers=options.blocks,
            num_single_layers=options.single,
            attention_head_dim=size,
            num_attention_heads=options.width // size,
            joint_attention_dim=options.width,
            pooled_projection_dim=64,
            axes_dims_rope=[size // 8, size * 7 // 16, size * 7 // 16] if size == 128 else [4, 4, 8],
        )
        encoder = transformers.T5EncoderModel(
            transformers.T5Config(
                vocab_size=1024,
                d_model=options.width,
                d_ff=options.width * 5 // 2,
                d_kv=16,
                num_layers=options.encoder,
                num_heads=options.width // 16,
                feed_forward_proj="gated-gelu",
            )
        )
        channels = 128 if options.width >= 1024 else 8
        vae = diffusers.AutoencoderKL(
            down_block_types=("DownEncoderBlock2D",) * 4,
            up_block_types=("UpDecoderBlock2D",) * 4,
            block_out_channels=(channels, channels * 2, channels * 4, channels * 4),
            norm_num_groups=8,
            latent_channels=16,
            use_quant_conv=False,
            use_post_quant_conv=False,
            shift_factor=0.1159,
            scaling_factor=0.3611,
        )
    made = {"transformer": transformer, "text_encoder_2": encoder, "vae": vae}
    return {name: one.to(torch.bfloat16).requires_grad_(False).eval() for name, one in made.items()}


class Bench:
    def __init__(self, options: argparse.Namespace) -> None:
        self.options = options
        self.device = torch.device(options.device)
        self.cuda = self.device.type == "cuda"
        self.weights = {name: self.filled(part) for name, part in make_parts(options).items()}
        every = [one for part in self.weights.values() for one in part.values()]
        self.size = sum({one.data_ptr(): one.nbytes for one in every}.values())
        self.largest = max(one.nbytes for one in every)
        self.ids = torch.randint(0, 1024, (1, 64), generator=torch.Generator().manual_seed(1))
        self.activations = 0  # bytes on the device beside the weights
        self.sizes = [int(one) for one in options.sizes.split(",")]
        self.want: dict[int, torch.Tensor] = {}
        self.rows: list[dict[str, Any]] = []

    def filled(self, module: nn.Module) -> dict[str, torch.Tensor]:
        """Returns random weights in host memory. The device makes the numbers, because it is faster than the host."""
        generator = torch.Generator(self.device).manual_seed(7)
        made: dict[int, torch.Tensor] = {}
        weights: dict[str, torch.Tensor] = {}
        for name, one in module.state_dict(keep_vars=True).items():
            if id(one) not in made:  # some weights have two names
                values = torch.empty(one.shape, dtype=torch.bfloat16, device=self.device)
                made[id(one)] = (
                    values.normal_(0, 0.02, generator=generator) if one.dim() > 1 else values.fill_(1)
                ).cpu()
            weights[name] = made[id(one)]
        return weights

    def pipeline(self) -> Any:
        """Returns another pipeline over the same host memory."""
        import diffusers

        parts: dict[str, Any] = make_parts(self.options)
        for name, part in parts.items():
            part.load_state_dict(self.weights[name], assign=True)
            part.requires_grad_(False)
        pipe = diffusers.FluxPipeline(
            scheduler=diffusers.FlowMatchEulerDiscreteScheduler(),
            text_encoder=None,
            tokenizer=None,
            tokenizer_2=None,
            **parts,
        )
        pipe.set_progress_bar_config(disable=True)
        return pipe

    def synchronize(self) -> None:
        if self.cuda:
            torch.cuda.synchronize(self.device)

    def give_back(self) -> None:
        gc.collect()
        if self.cuda:
            torch.cuda.empty_cache()
            torch.cuda.reset_peak_memory_stats(self.device)

    def image(self, pipe: Any, size: int) -> torch.Tensor:
        """Makes an image from numbers in place of words."""
        embeds = pipe.text_encoder_2(self.ids.to(self.device))[0]
        made: torch.Tensor = pipe(
            prompt_embeds=embeds,
            pooled_prompt_embeds=torch.zeros(1, 64, dtype=torch.bfloat16, device=self.device),
            num_inference_steps=self.options.steps,
            height=size,
            width=size,
            generator=torch.Generator().manual_seed(0),
            output_type="pt",
        ).images
        return made.cpu()

    @torch.inference_mode()
    def measure(self, name: str, pipe: Any, beside: str = "", held: Callable[[], int] = lambda: 0) -> dict[str, Any]:
        """Measures a pipeline, and adds a row. `held` returns the most bytes of weights beside PyTorch's memory."""
        images = [(size, self.image(pipe, size)) for size in self.sizes]
        times = []
        for _ in range(self.options.rounds):
            self.synchronize()
            begin = time.perf_counter()
            images += [(size, self.image(pipe, size)) for size in self.sizes]
            times.append((time.perf_counter() - begin) / len(self.sizes))
        self.want = self.want or dict(images[: len(self.sizes)])
        row = {
            "package": name,
            "beside": beside,
            "image_ms": statistics.median(times) * 1e3,
            "peak_gb": ((torch.cuda.max_memory_allocated(self.device) if self.cuda else 0) + held()) / GB,
            "equal": all(torch.equal(one, self.want[size]) for size, one in images),
        }
        self.rows.append(row)
        print("  ".join(f"{key} {one:.4g}" if isinstance(one, float) else f"{key} {one}" for key, one in row.items()))
        sys.stdout.flush()
        return row

    # Rows.

    def run_resident(self) -> None:
        self.give_back()
        row = self.measure("resident", self.pipeline().to(self.device))
        self.activations = max(0, int(row["peak_gb"] * GB) - self.size) if self.cuda else 0

    def run_streamed(self, budget: int, beside: str) -> dict[str, Any] | None:
        self.give_back()
        pipe = self.pipeline()
        where = "host" if not self.cuda else str(self.device)
        try:
            with sh.Device(where, budget_bytes=budget) as device, st.stream(pipe, device):
                return self.measure("libstagehand", pipe, beside, lambda: device.memory().peak_bytes)
        except sh.BudgetError as error:
            print(f"libstagehand: skipped beside {beside}, because {error}")
            return None

    def run_offloaded(self, name: str, offload: Callable[[Any], None]) -> None:
        """Measures an offloaded pipeline, and a streamed one with the same peak."""
        self.give_back()
        pipe = self.pipeline()
        offload(pipe)
        other = self.measure(name, pipe)
        del pipe
        # The budget must hold the largest weight, so its peak may be above that of one that moves single weights.
        budget = min(self.size, max(int(other["peak_gb"] * GB) - self.activations, self.largest + (4 << 20)))
        row = self.run_streamed(budget, name)
        if row is not None:
            row["time_ratio"] = row["image_ms"] / other["image_ms"]
            row["peak_ratio"] = row["peak_gb"] / other["peak_gb"]

    def offloads(self) -> dict[str, Callable[[Any], None]]:
        def group(**how: Any) -> Callable[[Any], None]:
            return lambda pipe: pipe.enable_group_offload(
                onload_device=self.device, use_stream=True, record_stream=True, non_blocking=True, **how
            )

        return {
            "enable_model_cpu_offload": lambda pipe: pipe.enable_model_cpu_offload(device=self.device),
            "enable_sequential_cpu_offload": lambda pipe: pipe.enable_sequential_cpu_offload(device=self.device),
            "group offload, one block": group(offload_type="block_level", num_blocks_per_group=1),
            "group offload, four blocks": group(offload_type="block_level", num_blocks_per_group=4),
            "group offload, leaves": group(offload_type="leaf_level"),
        }

    def table(self) -> None:
        print(f"\n{'package':32} {'beside':32} {'image ms':>10} {'÷ other':>8} {'peak GB':>8} {'÷ other':>8}  equal")
        for row in self.rows:
            ratios = [f"{row[name]:8.3f}" if name in row else " " * 8 for name in ("time_ratio", "peak_ratio")]
            print(
                f"{row['package']:32} {row['beside']:32} {row['image_ms']:10.1f} {ratios[0]} {row['peak_gb']:8.2f} "
                f"{ratios[1]}  {'yes' if row['equal'] else 'NO'}"
            )


def main() -> int:
    options = read_options()
    if missing := [one for one in ("diffusers", "transformers") if importlib.util.find_spec(one) is None]:
        print(f"{missing[0]} is not installed")
        return 1
    bench = Bench(options)
    print(
        f"torch {torch.__version__}, {torch.cuda.get_device_name(bench.device) if bench.cuda else 'CPU'}: "
        f"{bench.size / GB:.3f} GB of weights",
        flush=True,
    )
    bench.run_resident()
    bench.run_streamed(bench.size // 2, "half of the weights")
    for name, offload in bench.offloads().items():
        if not bench.cuda:
            print(f"{name}: skipped, because it needs a GPU")
            continue
        try:
            bench.run_offloaded(name, offload)
        except (ImportError, ValueError) as error:  # accelerate is missing, or this version has no such offload
            print(f"{name}: skipped, because {error}")
    bench.table()
    if options.json:
        with open(options.json, "w") as file:
            json.dump(bench.rows, file, indent=1)
    return 0 if all(row["equal"] for row in bench.rows if row["package"] == "libstagehand") else 1


if __name__ == "__main__":
    sys.exit(main())
