"""The host's time that streaming adds to a module call: a model of many small layers, with and without it.

Prints one line for each number of tensors in a layer. Half of the calls are of the streamed model, in turns, and the
numbers are medians.
"""

# mypy: disable-error-code="import-not-found,misc,no-untyped-call,unused-ignore"
from __future__ import annotations

import argparse
import statistics
import time

import torch
from torch import nn

import libstagehand.torch as st


class Small(nn.Module):
    """A layer with so many tensors, which computes next to nothing."""

    def __init__(self, tensors: int) -> None:
        super().__init__()
        self.weights = nn.ParameterList(torch.randn(64, 64) for _ in range(tensors))

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        return x + self.weights[0][0]


def seconds(model: nn.Module, x: torch.Tensor) -> float:
    begin = time.perf_counter()
    model(x)
    return time.perf_counter() - begin


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--device", default="host")
    parser.add_argument("--layers", type=int, default=300)
    parser.add_argument("--rounds", type=int, default=50)
    options = parser.parse_args()
    on = "cpu" if options.device == "host" else options.device
    for tensors in (1, 2, 9):
        plain, streamed = (
            nn.Sequential(*(Small(tensors) for _ in range(options.layers))).requires_grad_(False) for _ in range(2)
        )
        plain.to(on)
        x = torch.randn(64, device=on)
        with torch.inference_mode(), st.stream(streamed, options.device, budget="200%", blocks=["*"]):
            for _ in range(5):
                seconds(streamed, x)
            pairs = [(seconds(plain, x), seconds(streamed, x)) for _ in range(options.rounds)]
        without, with_ = (statistics.median(column) for column in zip(*pairs))
        print(
            f"{tensors} tensors: {without / options.layers * 1e6:5.2f} us a call without streaming, "
            f"{with_ / options.layers * 1e6:5.2f} with it, {(with_ - without) / options.layers * 1e6:5.2f} more"
        )


if __name__ == "__main__":
    main()
