"""Measures how fast packed weights are registered, replaced, streamed, and streamed after the engine has changed them.

    torch_packed_updates_bench.py [--device cuda:0] [--blocks 16] [--mib 128] [--budget-mib 700]

All weights are BF16, normally distributed. Every byte is compared on the device after each phase, and in the engine's
memory at the end. A run on the host (--device host:0 --blocks 8 --mib 2 --budget-mib 20) only shows that the program
works.
"""

import argparse
import time

import torch

import libstagehand as sh

parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
parser.add_argument("--device", default="cuda:0")
parser.add_argument("--blocks", type=int, default=16)
parser.add_argument("--mib", type=int, default=128, help="of a block")
parser.add_argument("--budget-mib", type=int, default=700)
parser.add_argument("--steps", type=int, default=6, help="timed steps (6)")
options = parser.parse_args()
on_gpu = options.device.startswith("cuda")
BYTES = options.mib << 20
ALL = options.blocks * BYTES
stream = torch.cuda.Stream() if on_gpu else None
number = stream.cuda_stream if stream else None


def made(seed):
    """Weights of a block, as bytes."""
    generator = torch.Generator(device="cuda" if on_gpu else "cpu").manual_seed(seed)
    values = torch.randn(BYTES // 2, generator=generator, device=generator.device) * 0.02
    return values.to(torch.bfloat16).cpu().view(torch.uint8).numpy()


def finish():
    if stream:
        stream.synchronize()


def of(view):
    """The block on the device, as bytes."""
    return torch.as_tensor(view, device="cuda") if on_gpu else torch.from_dlpack(view)


def steps(runtime, blocks, count):
    """GB of weights a second."""
    finish()
    began = time.perf_counter()
    for _ in range(count):
        with runtime.step():
            for block in blocks:
                with runtime.acquire(block, number):
                    pass
    finish()
    return count * ALL / (time.perf_counter() - began) / 1e9


def compare(runtime, blocks, truth):
    with runtime.step():
        for block, bytes in zip(blocks, truth):
            with runtime.acquire(block, number) as view, torch.cuda.stream(stream):
                there = of(view).view(torch.uint8)
                assert torch.equal(there, torch.from_numpy(bytes).to(there.device)), "a byte is wrong"


def link():
    """GB a second of one copy from pinned memory."""
    if not on_gpu:
        return 0.0
    pinned = torch.empty(1 << 30, dtype=torch.uint8, pin_memory=True)
    there = torch.empty(1 << 30, dtype=torch.uint8, device="cuda")
    for _ in range(2):
        torch.cuda.synchronize()
        began = time.perf_counter()
        there.copy_(pinned, non_blocking=True)
        torch.cuda.synchronize()
        taken = time.perf_counter() - began
    return (1 << 30) / taken / 1e9


def rate(began):
    return f"{ALL / (time.perf_counter() - began) / 1e9:.2f} GB/s"


def change(runtime, blocks, truth):
    """Changes a byte of each page of all blocks on the device."""
    for index, (block, bytes) in enumerate(zip(blocks, truth)):
        with runtime.acquire(block, number) as view, torch.cuda.stream(stream):
            there = of(view).view(torch.uint8)
            there[index::4096] ^= 17
            view.mark_dirty()
        bytes[index::4096] ^= 17


def measure(device, mutable):
    print("mutable blocks" if mutable else "blocks whose memory the engine frees")
    with sh.Runtime(device) as runtime:
        first = [made(seed) for seed in range(options.blocks)]
        began = time.perf_counter()
        weights = [sh.Weights(bytes, sh.WeightFormat.BF16) for bytes in first]
        blocks = [runtime.register_block(one, mutable=mutable, pin=mutable) for one in weights]
        print("  registered at", rate(began))
        runtime.set_schedule([(block, 1) for block in blocks])
        steps(runtime, blocks, 3)
        print(f"  streamed packed at {steps(runtime, blocks, options.steps):.1f} GB/s")
        compare(runtime, blocks, first)
        fresh = [made(1000 + seed) for seed in range(options.blocks)]
        began = time.perf_counter()
        with runtime.update_sources(blocks):
            for block, bytes in zip(blocks, fresh):
                runtime.replace_source(block, sh.Weights(bytes, sh.WeightFormat.BF16))
        print("  replaced at", rate(began))
        truth = [bytes.copy() for bytes in fresh]
        steps(runtime, blocks, 3)
        print(f"  streamed packed again at {steps(runtime, blocks, options.steps):.1f} GB/s")
        compare(runtime, blocks, truth)
        if not mutable:
            return
        change(runtime, blocks, truth)
        steps(runtime, blocks, 3)
        print(f"  streamed plain after a change at {steps(runtime, blocks, options.steps):.1f} GB/s")
        compare(runtime, blocks, truth)
        runtime.write_back()
        assert all((there == bytes).all() for there, bytes in zip(fresh, truth)), "a byte is wrong in memory"


print(f"{torch.cuda.get_device_name() if on_gpu else 'host'}: a pinned copy {link():.1f} GB/s")
with sh.Device(options.device, budget_bytes=options.budget_mib << 20) as opened:
    for is_mutable in (False, True):
        measure(opened, is_mutable)
