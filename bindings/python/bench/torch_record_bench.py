"""The host's time that recording adds to an operation (recompute=True), on small tensors, where nothing else counts.

The numbers are medians of rounds in turns with and without the mode. A forward saves nothing that leaves.
"""

# mypy: disable-error-code="import-not-found,misc,no-untyped-call,unused-ignore"
from __future__ import annotations

import argparse
import gc
import statistics
import time
from collections.abc import Callable

import torch
from torch.nn import functional as F

from libstagehand.torch import _spill_record

Operation = Callable[[torch.Tensor, torch.Tensor], torch.Tensor]
OPERATIONS: dict[str, Operation] = {
    "matmul (not cheap)": torch.mm,
    "view (not cheap)": lambda x, weight: x.view(-1).view(8, 8),
    "add": torch.add,
    "gelu": lambda x, weight: F.gelu(x),
    "layer_norm": lambda x, weight: F.layer_norm(x, (8, 8), weight, weight),
}


def seconds(operation: Operation, x: torch.Tensor, weight: torch.Tensor, count: int, recorded: bool) -> float:
    begin = time.perf_counter()
    if recorded:
        _spill_record.push(_spill_record.Record())
    try:
        for _ in range(count):
            x = operation(x, weight)
    finally:
        if recorded:
            _spill_record.pop()
    return (time.perf_counter() - begin) / count


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--device", default="cpu")
    parser.add_argument("--operations", type=int, default=1000)
    parser.add_argument("--rounds", type=int, default=20)
    options = parser.parse_args()
    torch.set_num_threads(1)
    x = torch.rand(8, 8, device=options.device, requires_grad=True)
    weight = torch.rand(8, 8, device=options.device, requires_grad=True)
    # The first operation in a mode imports the compiler. A search of all objects for garbage is not of an operation.
    seconds(torch.add, x, weight, 10, True)
    gc.collect()
    gc.freeze()
    for name, operation in OPERATIONS.items():
        pairs = [
            [seconds(operation, x, weight, options.operations, recorded) for recorded in (False, True)]
            for _ in range(options.rounds)
        ]
        without, with_ = (statistics.median(column) * 1e6 for column in zip(*pairs))
        print(f"{name:20} {without:6.2f} us without the mode, {with_:6.2f} with it, {with_ - without:6.2f} more")


if __name__ == "__main__":
    main()
