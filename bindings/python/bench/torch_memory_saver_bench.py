"""Pauses and resumes of tensors with copies on the host: by the package torch_memory_saver, and by the drop-in for it.

    torch_memory_saver_bench.py [--device cuda:0] [--json FILE]

Each package and each shape has a process of its own. All contents change before each pause, and are compared after each
resume. Figures are all bytes / time, as a part of the speed of the pinned link of the same process.
"""

# mypy: disable-error-code="import-not-found,misc,no-untyped-call,unused-ignore"
from __future__ import annotations

import argparse
import importlib
import json
import os
import statistics
import subprocess
import sys
import time
from typing import Any

import torch

PACKAGES = {"torch_memory_saver": "torch_memory_saver", "libstagehand": "libstagehand.compat.torch_memory_saver"}
MIB = 1 << 20


def shapes(scale: float) -> dict[str, list[int]]:
    """Returns the bytes of the tensors of each shape."""
    layer = [4096 * 4096 * 2] * 2 + [1024 * 4096 * 2] * 2 + [14336 * 4096 * 2] * 3 + [4096 * 2] * 2
    model = [128256 * 4096 * 2] + layer * 32 + [4096 * 2, 128256 * 4096 * 2]
    large = {"8 x 2 GiB": [2048 * MIB] * 8, "291 tensors": model, "16,384 x 1 MiB": [MIB] * 16384}
    return {name: [max(int(size * scale), 512) // 4 * 4 for size in sizes] for name, sizes in large.items()}


def link(device: str) -> tuple[float, float]:
    """Returns the bytes per second of pinned copies to the device and from it."""
    host = torch.empty(512 * MIB, dtype=torch.uint8, pin_memory=True)
    memory = torch.empty(512 * MIB, dtype=torch.uint8, device=device)
    speeds = []
    for to, of in ((memory, host), (host, memory)):
        times = []
        for _ in range(5):
            torch.cuda.synchronize()
            begin = time.perf_counter()
            to.copy_(of, non_blocking=True)
            torch.cuda.synchronize()
            times.append(time.perf_counter() - begin)
        speeds.append(host.numel() / statistics.median(times))
    return speeds[0], speeds[1]


def measure(package: str, sizes: list[int], device: str, cycles: int) -> dict[str, Any]:
    saver = importlib.import_module(PACKAGES[package]).torch_memory_saver
    saver.hook_mode = "torch"
    to_device, from_device = link(device)
    with saver.region(tag="all", enable_cpu_backup=True):
        tensors = [torch.full((size // 4,), i, dtype=torch.int32, device=device) for i, size in enumerate(sizes)]
    total = sum(sizes)
    result: dict[str, Any] = {"bytes": total, "to_device": to_device, "from_device": from_device, "cycles": []}
    for cycle in range(cycles):
        for tensor in tensors:
            tensor += 1
        torch.cuda.synchronize()
        free = torch.cuda.mem_get_info(device)[0]
        begin = time.perf_counter()
        saver.pause("all")
        middle = time.perf_counter()
        freed = torch.cuda.mem_get_info(device)[0] - free
        between = time.perf_counter()
        saver.resume("all")
        torch.cuda.synchronize()
        end = time.perf_counter()
        for i, tensor in enumerate(tensors):
            if not bool((tensor == i + 1 + cycle).all()):
                raise SystemExit(f"{package}: tensor {i} has other contents after cycle {cycle}")
        release, resume = total / (middle - begin) / from_device, total / (end - between) / to_device
        result["cycles"].append({"release": release, "resume": resume, "freed": freed / total})
    return result


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--device", default="cuda:0")
    parser.add_argument("--packages", default=",".join(PACKAGES), help="separated by commas (both)")
    parser.add_argument("--cycles", type=int, default=3)
    parser.add_argument("--scale", type=float, default=1, help="of the bytes of each tensor (1)")
    parser.add_argument("--json", help="write the results to this file")
    parser.add_argument("--one", nargs=2, help=argparse.SUPPRESS)
    options = parser.parse_args()
    if options.one:
        package, shape = options.one
        print(json.dumps(measure(package, shapes(options.scale)[shape], options.device, options.cycles)), flush=True)
        os._exit(0)  # torch_memory_saver ends the process with an error if tensors of a region are freed outside it
    rows = []
    for shape in shapes(options.scale):
        for package in options.packages.split(","):
            command = [sys.executable, __file__, "--device", options.device, "--cycles", str(options.cycles)]
            command += ["--scale", str(options.scale), "--one", package, shape]
            done = subprocess.run(command, capture_output=True, text=True)
            if done.returncode:
                print(f"{shape:16} {package:20} {(done.stderr.strip().splitlines() or ['failed'])[-1]}", flush=True)
                continue
            row = json.loads(done.stdout.splitlines()[-1])
            rows.append({"shape": shape, "package": package} | row)
            cycles = "  ".join(f"{c['release']:.3f} {c['resume']:.3f}" for c in row["cycles"])
            print(f"{shape:16} {package:20} {cycles}  freed {row['cycles'][-1]['freed']:.3f}", flush=True)
    if options.json:
        with open(options.json, "w") as file:
            json.dump(rows, file)


if __name__ == "__main__":
    main()
