"""Checks libstagehand.torch on a GPU, and compares its steps with diffusers' group offload and with accelerate.

    torch_offload_bench.py [--device cuda:0] [--gb 8] [--only check|bench|loop] [--json FILE]

`check` streams a Llama of transformers in a quarter of its bytes. The weights are random, and the logits must equal
those of the resident model bit by bit.
`bench` runs the same layers under each package, with the same peak device memory, in one run. It compares every output
bit by bit. It prints a line for each package that is not installed.
`loop` does the same with a loop whose steps have other numbers of tokens after a while, as a diffusion loop whose
resolution changes. A run on the CPU (--device cpu --gb 0.01) only
shows that the program works.
"""

import argparse
import gc
import importlib.util
import json
import statistics
import sys
import time
from contextlib import contextmanager

import torch
from torch import nn
from torch.nn import functional as F

import libstagehand as sh
import libstagehand.torch as st

parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
parser.add_argument("--device", default="cuda:0")
parser.add_argument("--gb", type=float, default=8.0, help="size of the models in 10^9 bytes (8)")
parser.add_argument("--only", choices=["check", "bench", "loop"])
parser.add_argument(
    "--tokens", type=int, nargs="+", default=[256, 4096, 32768], help="tokens of a step; one benchmark for each number"
)
parser.add_argument("--steps", type=int, default=8, help="timed steps of each package (8)")
parser.add_argument("--json", help="write the results to this file; - is standard output")
parser.add_argument("--profile", action="store_true", help="also measure the host's time of a step that copies nothing")
options = parser.parse_args()
device = torch.device(options.device)
on_gpu = device.type == "cuda"
results = []


def tell(**values):
    results.append(values)
    print(
        "  ".join(
            f"{key} {value:.4g}" if isinstance(value, float) else f"{key} {value}" for key, value in values.items()
        ),
        flush=True,
    )


def there(package):
    return importlib.util.find_spec(package) is not None


def synchronize():
    if on_gpu:
        torch.cuda.synchronize(device)


def size_of(module):
    return sum(one.numel() * one.element_size() for one in {id(p): p for p in module.parameters()}.values())


def filled(module, dtype):
    """Gives a module on the meta device random weights in host memory. The device makes the numbers, because it is
    faster than the host.
    """
    generator = torch.Generator(device).manual_seed(7)
    module.to(dtype).to_empty(device="cpu")
    for parameter in module.parameters():
        parameter.requires_grad_(False)
        values = torch.empty(parameter.shape, dtype=dtype, device=device)
        parameter.data.copy_(values.normal_(0, 0.02, generator=generator) if parameter.dim() > 1 else values.fill_(1))
    return module.eval()


def alike(make, module):
    """Returns another module over the same host memory."""
    with torch.device("meta"):
        made = make()
    made.load_state_dict(module.state_dict(), assign=True)
    return made.requires_grad_(False).eval()


class Layer(nn.Module):
    """A layer with attention and a gated network, as language and video models have it."""

    def __init__(self, width, heads):
        super().__init__()
        self.heads = heads
        self.before, self.between = nn.RMSNorm(width), nn.RMSNorm(width)
        self.qkv, self.out = nn.Linear(width, 3 * width, bias=False), nn.Linear(width, width, bias=False)
        self.gate, self.up = nn.Linear(width, 4 * width, bias=False), nn.Linear(width, 4 * width, bias=False)
        self.down = nn.Linear(4 * width, width, bias=False)

    def forward(self, x):
        batch, tokens, width = x.shape
        q, k, v = (
            self.qkv(self.before(x)).view(batch, tokens, 3, self.heads, width // self.heads).permute(2, 0, 3, 1, 4)
        )
        x = x + self.out(F.scaled_dot_product_attention(q, k, v).transpose(1, 2).reshape(batch, tokens, width))
        h = self.between(x)
        return x + self.down(F.silu(self.gate(h)) * self.up(h))


class Stack(nn.Module):
    def __init__(self, width, count):
        super().__init__()
        self.layers = nn.ModuleList(Layer(width, width // 64) for _ in range(count))

    def forward(self, x):
        for layer in self.layers:
            x = layer(x)
        return x


def llama_check():
    """Streams an unchanged model of transformers in a quarter of its bytes, and compares its logits."""
    if not there("transformers"):
        print("check: skipped, because transformers is not installed")
        return
    import transformers

    width = 4096 if options.gb >= 1 else 256
    shape = {
        "hidden_size": width,
        "intermediate_size": width * 7 // 2,
        "num_attention_heads": width // 64,
        "num_key_value_heads": width // 256,
        "vocab_size": 8 * width,
    }
    layer_bytes = 2 * (2 * width * width + width * width // 2 + 3 * width * width * 7 // 2)
    count = max(4, -(-int(options.gb * 1e9 - 32 * width * width) // layer_bytes))
    config = transformers.LlamaConfig(num_hidden_layers=count, **shape)
    with torch.device("meta"):
        model = transformers.LlamaForCausalLM(config)
    model = filled(model, torch.bfloat16)
    model.model.rotary_emb = type(model.model.rotary_emb)(config)  # a computed table, not a weight
    size, ids = (
        size_of(model),
        torch.randint(0, 8 * width, (1, 512), generator=torch.Generator().manual_seed(1)).to(device),
    )
    with torch.inference_mode():
        model.to(device)
        want = model(ids).logits.cpu()
        model.to("cpu")
        if on_gpu:
            torch.cuda.empty_cache()
        with opened(size // 4) as where, st.stream(model, where) as streamed:
            equal = [torch.equal(model(ids).logits.cpu(), want) for _ in range(3)]
            stats, peak = streamed.stats(), where.memory().peak_bytes
    if not all(equal) or peak > size // 4:
        sys.exit(f"check failed: equal logits: {equal}; peak: {peak} bytes, of {size // 4} allowed")
    tell(
        what="check",
        model="LlamaForCausalLM",
        weights_gb=size / 1e9,
        peak_gb=peak / 1e9,
        copied_gb=stats.bytes_to_device / 1e9,
        equal=True,
    )


@contextmanager
def opened(budget):
    with sh.Device("host" if device.type == "cpu" else str(device), budget_bytes=budget) as where:
        yield where


def measure(name, run, x, want, weights_peak=lambda: 0):
    """Returns the median time of a step, the peak device memory, and whether each checked output equals the output of
    the resident model.
    """
    if on_gpu:
        torch.cuda.empty_cache()
        torch.cuda.reset_peak_memory_stats(device)
    with torch.inference_mode():
        for _ in range(3):
            out = run(x)
        equal = torch.equal(out.cpu(), want)
        times = []
        for _ in range(options.steps):
            synchronize()
            begin = time.perf_counter()
            run(x)
            run(x)
            synchronize()
            times.append((time.perf_counter() - begin) / 2)
        equal = equal and torch.equal(run(x).cpu(), want)
    peak = (torch.cuda.max_memory_allocated(device) if on_gpu else 0) + weights_peak()
    if not equal and name in ("resident", "libstagehand"):
        sys.exit(f"{name}: the output differs from the output of the resident model")
    return statistics.median(times), peak, equal


def give_back():
    gc.collect()
    if on_gpu:
        torch.cuda.empty_cache()


def link_speed():
    """Returns the rate of one copy from pinned memory to the device, in bytes per second."""
    if not on_gpu:
        return 1e10
    host, there = (
        torch.empty(1 << 30, dtype=torch.uint8, pin_memory=True),
        torch.empty(1 << 30, dtype=torch.uint8, device=device),
    )
    best = 1e9
    for _ in range(5):
        synchronize()
        begin = time.perf_counter()
        there.copy_(host, non_blocking=True)
        synchronize()
        best = min(best, time.perf_counter() - begin)
    return (1 << 30) / best


def graph_check(make, model, x, want, budget, case):
    """Compares a captured forward with an eager one."""
    if not on_gpu:
        print("graph: skipped, because it needs a GPU")
        return
    made = alike(make, model)
    with opened(budget) as where, st.stream(made, where) as streamed:
        eager, *_ = measure("libstagehand", made, x, want)
        with streamed.graph(x) as graph:
            replayed, *_ = measure("libstagehand graph", graph, x, want)
            other = x.roll(1, 1)
            with torch.inference_mode():
                equal = torch.equal(graph(other).cpu(), made(other).cpu())
    give_back()
    tell(
        what="graph",
        **case,
        budget_gb=budget / 1e9,
        eager_ms=eager * 1e3,
        graph_ms=replayed * 1e3,
        graph_by_eager=replayed / eager,
        equal=equal,
    )


def with_group_offload(make, model, blocks):
    from diffusers.hooks import apply_group_offloading

    made = alike(make, model)
    # With streams the copies run ahead of the use. The memory is pinned before.
    apply_group_offloading(
        made,
        onload_device=device,
        offload_device=torch.device("cpu"),
        offload_type="block_level",
        num_blocks_per_group=blocks,
        use_stream=True,
        record_stream=True,
        non_blocking=True,
    )
    return made


def with_accelerate(make, model, resident):
    from accelerate import dispatch_model

    made = alike(make, model)
    places = {f"layers.{i}": device.index if i < resident else "cpu" for i in range(len(made.layers))}
    return dispatch_model(made, device_map=places, main_device=device.index, force_hooks=True)


def stream_row(make, model, x, want, budget, bound, beside, case):
    made = alike(make, model)
    with opened(budget) as where, st.stream(made, where) as streamed:
        step, peak, _ = measure("libstagehand", made, x, want, lambda: where.memory().peak_bytes)
        stats = streamed.stats()
    give_back()
    tell(
        what="bench",
        **case,
        package="libstagehand",
        beside=beside,
        budget_gb=budget / 1e9,
        step_ms=step * 1e3,
        bound_ms=bound * 1e3,
        step_by_bound=step / bound,
        peak_gb=peak / 1e9,
        copied_gb_per_step=stats.bytes_to_device / max(1, stats.steps) / 1e9,
        equal=True,
    )
    return step, peak


WIDTH = 3072 if options.gb >= 1 else 256  # layers of 300 MB


def stack():
    """Returns how to make the model, the model, its size and its number of layers."""
    count = max(8, int(options.gb * 1e9) // (2 * 16 * WIDTH * WIDTH))

    def make():
        return Stack(WIDTH, count)

    with torch.device("meta"):
        model = make()
    model = filled(model, torch.bfloat16)
    return make, model, size_of(model), count


def input_of(tokens):
    return torch.randn(1, tokens, WIDTH, generator=torch.Generator().manual_seed(3)).to(torch.bfloat16).to(device)


def measure_loop(run, inputs, wants, rounds=3):
    """Returns the time of a round, in which each input has its steps, and whether all outputs are right."""
    equal, times = True, []
    with torch.inference_mode():
        for number in range(2 + rounds):
            synchronize()
            begin = time.perf_counter()
            outputs = [[run(x) for _ in range(options.steps)][-1] for x in inputs]
            synchronize()
            times.append(time.perf_counter() - begin)
            if number in (0, 1 + rounds):
                equal = equal and all(torch.equal(out.cpu(), want) for out, want in zip(outputs, wants))
            del outputs
    return statistics.median(times[2:]), equal


def loop():
    make, model, size, count = stack()
    link, inputs = link_speed(), [input_of(tokens) for tokens in options.tokens]
    resident = alike(make, model).to(device)
    with torch.inference_mode():
        wants = [resident(x).cpu() for x in inputs]
    computes = [measure("resident", resident, x, want)[0] for x, want in zip(inputs, wants)]
    if on_gpu:
        torch.cuda.reset_peak_memory_stats(device)
    plain, _ = measure_loop(resident, inputs, wants)
    activations = max(0, torch.cuda.max_memory_allocated(device) - size) if on_gpu else 0
    tell(what="loop", package="resident", tokens=str(options.tokens), steps_each=options.steps, round_ms=plain * 1e3)
    del resident
    give_back()

    def stream(budget, beside):
        bound = options.steps * sum(max(compute, (size - budget) / link) for compute in computes)
        made = alike(make, model)
        with opened(budget) as where, st.stream(made, where):
            took, equal = measure_loop(made, inputs, wants)
        give_back()
        tell(
            what="loop",
            package="libstagehand beside " + beside,
            budget_gb=budget / 1e9,
            round_ms=took * 1e3,
            by_bound=took / bound,
            equal=equal,
        )
        return took

    def beside(name, made):
        if on_gpu:
            torch.cuda.reset_peak_memory_stats(device)
        took, equal = measure_loop(made, inputs, wants)
        peak = torch.cuda.max_memory_allocated(device) if on_gpu else size
        tell(what="loop", package=name, round_ms=took * 1e3, peak_gb=peak / 1e9, equal=equal)
        del made
        give_back()
        budget = max(int(peak - activations), max(p.numel() * p.element_size() for p in model.parameters()) + (4 << 20))
        tell(what="loop versus", other=name, time_ratio=stream(budget, name) / took)

    for part in (0.25, 0.5, 0.75):
        stream(int(part * size), f"{part:.0%} of the model")
    if on_gpu and there("diffusers"):
        beside("diffusers", with_group_offload(make, model, 1))
    if on_gpu and there("accelerate"):
        beside("accelerate", with_accelerate(make, model, count // 2 - 1))


def bench():
    make, model, size, count = stack()
    link = link_speed()
    tell(
        what="machine",
        device=torch.cuda.get_device_name(device) if on_gpu else "cpu",
        torch=torch.__version__,
        weights_gb=size / 1e9,
        layers=count,
        link_gbs=link / 1e9,
    )
    for tokens in options.tokens:
        x = input_of(tokens)
        case = {"tokens": tokens}
        resident = alike(make, model).to(device)
        with torch.inference_mode():
            want = resident(x).cpu()
        compute, peak, _ = measure("resident", resident, x, want)
        activations = max(0, peak - size) if on_gpu else 0
        tell(what="bench", **case, package="resident", step_ms=compute * 1e3, peak_gb=peak / 1e9, equal=True)
        if options.profile:
            profile(resident, make, model, x, size, case)
        del resident
        give_back()

        def bound_of(budget, compute=compute):
            return max(compute, (size - budget) / link)

        # One budget is half of the model. The others are the peaks of the other packages.
        stream_row(make, model, x, want, size // 2, bound_of(size // 2), "half of the model", case)
        graph_check(make, model, x, want, size // 2, case)
        for blocks in sorted({1, max(1, count // 4)}):
            if not on_gpu or not there("diffusers"):
                print("bench: diffusers is skipped:", "it needs a GPU" if not on_gpu else "it is not installed")
                break
            made = with_group_offload(make, model, blocks)
            step, peak, equal = measure("diffusers", made, x, want)
            tell(
                what="bench",
                **case,
                package="diffusers group offload",
                blocks_per_group=blocks,
                step_ms=step * 1e3,
                peak_gb=peak / 1e9,
                equal=equal,
            )
            del made
            give_back()
            versus(make, model, x, want, step, peak, activations, bound_of, "diffusers group offload", case)
        for held in sorted({0, count // 2 - 1}):
            if not on_gpu or not there("accelerate"):
                print("bench: accelerate is skipped:", "it needs a GPU" if not on_gpu else "it is not installed")
                break
            made = with_accelerate(make, model, held)
            step, peak, equal = measure("accelerate", made, x, want)
            tell(
                what="bench",
                **case,
                package="accelerate",
                resident_layers=held,
                step_ms=step * 1e3,
                peak_gb=peak / 1e9,
                equal=equal,
            )
            del made
            give_back()
            versus(make, model, x, want, step, peak, activations, bound_of, "accelerate", case)


def versus(make, model, x, want, other_step, other_peak, activations, bound_of, name, case):
    """Measures libstagehand with the same peak device memory as another package. The budget for weights is the other
    package's peak less the memory of the layers' own work.
    """
    # The budget must hold the largest weight. So the reported peak may be above the other package's peak.
    budget = max(
        int(other_peak - activations), max(one.numel() * one.element_size() for one in model.parameters()) + (4 << 20)
    )
    try:
        step, peak = stream_row(make, model, x, want, budget, bound_of(budget), name, case)
    except sh.BudgetError as error:
        print(f"bench: libstagehand cannot stream within {budget} bytes: {error}")
        return
    tell(
        what="versus",
        **case,
        other=name,
        time_ratio=step / other_step,
        peak_ratio=peak / other_peak,
        no_slower=step <= other_step,
    )


def profile(resident, make, model, x, size, case):
    """Measures the cost of the hooks when nothing is copied."""
    small = x[:, :16]
    with torch.inference_mode():
        want = resident(small).cpu()
    before, *_ = measure("resident", resident, small, want)
    made = alike(make, model)
    with opened(size + (1 << 30)) as where, st.stream(made, where):
        after, *_ = measure("libstagehand", made, small, want)
    give_back()
    tell(what="hooks", **case, resident_ms=before * 1e3, all_on_device_ms=after * 1e3)


if options.only in (None, "check"):
    llama_check()
    give_back()
if options.only in (None, "bench"):
    bench()
if options.only == "loop":
    loop()
if options.json == "-":
    print(json.dumps(results))
elif options.json:
    with open(options.json, "w") as file:
        json.dump(results, file, indent=1)
