"""Trains adapters of rank 8 over a frozen model that streams through a quarter of its bytes. Compares the result with
training in full memory.

torch_lora.py [DEVICE]     the CPU if no device is given; cuda:0 is the first GPU
"""

# mypy: disable-error-code="import-not-found,misc"
from __future__ import annotations

import copy
import sys

import torch
from torch import nn

import libstagehand as sh
import libstagehand.torch as st


class Adapted(nn.Module):
    """A frozen layer with a trained correction."""

    def __init__(self, base: nn.Linear) -> None:
        super().__init__()
        self.base = base.requires_grad_(False)
        self.down = nn.Parameter(torch.randn(8, base.in_features) / base.in_features**0.5)
        self.up = nn.Parameter(torch.zeros(base.out_features, 8))

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        return self.base(x) + x @ self.down.t() @ self.up.t()


class Layer(nn.Module):
    def __init__(self, width: int) -> None:
        super().__init__()
        self.norm = nn.LayerNorm(width).requires_grad_(False)
        self.expand, self.reduce = Adapted(nn.Linear(width, 4 * width)), Adapted(nn.Linear(4 * width, width))

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        return x + self.reduce(torch.relu(self.expand(self.norm(x))))


def train(model: nn.Module, device: str, batches: list[torch.Tensor]) -> list[float]:
    """Trains the model and returns the losses."""
    optimizer = torch.optim.AdamW([one for one in model.parameters() if one.requires_grad], lr=1e-2)
    losses = []
    for batch in batches:
        batch = batch.to(device)
        loss = (model(batch) - batch.roll(1, -1)).square().mean()
        loss.backward()
        optimizer.step()
        optimizer.zero_grad()
        losses.append(loss.item())
    return losses


torch.manual_seed(1)
name = sys.argv[1] if len(sys.argv) > 1 else "cpu"
model = nn.Sequential(*(Layer(256) for _ in range(16)))
other = copy.deepcopy(model).to(name)
batches = [torch.randn(8, 16, 256) for _ in range(5)]
size = sum(one.numel() * one.element_size() for one in model.parameters() if not one.requires_grad)

with (
    sh.Device("host" if name == "cpu" else name, budget_bytes=size // 4) as device,
    st.stream(model, device) as streamed,
):
    losses = train(model, name, batches)
    stats, peak = streamed.stats(), device.memory().peak_bytes
wanted = train(other, name, batches)

print("loss ", " ".join(f"{loss:.4f}" for loss in losses))
print(
    f"frozen weights: {size} bytes, at most {peak} on device; {stats.bytes_to_device} bytes copied in {stats.steps} steps"
)
equal = losses == wanted and all(
    torch.equal(one, same.cpu()) for one, same in zip(model.state_dict().values(), other.state_dict().values())
)
print(
    "the trained weights are",
    "equal, bit by bit, to training in full memory" if equal else "DIFFERENT from training in full memory",
)
sys.exit(not equal)
