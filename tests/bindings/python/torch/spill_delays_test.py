"""Copies and events that are late at random never change a result."""

import pytest
import torch
from models import PAGE
from spilling import away, nothing_is_left, spilling
from torch import nn

import libstagehand as sh


class Tiny(nn.Module):
    def __init__(self):
        super().__init__()
        self.layers = nn.ModuleList(nn.Linear(32, 32) for _ in range(4))

    def forward(self, x):
        for layer in self.layers:
            x = x + nn.functional.dropout(torch.tanh(layer(x)), 0.1)
        return x


def train(steps, around, kept=()):
    torch.manual_seed(11)
    model = Tiny()
    optimizer = torch.optim.SGD(model.parameters(), lr=0.05)
    with around(model):
        for number in range(steps):
            torch.manual_seed(number)
            x = torch.randn(1 + number % 7, 32)
            optimizer.zero_grad(set_to_none=True)
            loss = model(x).square().mean()
            if number % 3 and kept:
                away(kept[0])
            loss.backward()
            optimizer.step()
    return torch.cat([one.detach().flatten() for one in model.parameters()])


@pytest.mark.parametrize(
    ("steps", "options"),
    [
        (300, {}),
        pytest.param(3000, {}, marks=pytest.mark.long),
        (300, {"keep": 900}),
        (300, {"watermarks": (3000, 1000)}),
        (300, {"recompute": True}),
        (300, {"peak": 3000}),
    ],
)
def test_trap_26_random_delays(steps, options):
    want = train(steps, lambda model: torch.enable_grad())
    with sh.Device("host", page_bytes=PAGE, backend_options="poison=1;jitter_us=60;jitter_seed=5") as device:
        kept = []

        def around(model):
            kept.append(spilling(model, device, **options))
            return kept[0]

        assert torch.equal(train(steps, around, kept), want)
        assert nothing_is_left(kept[0]) and kept[0].stats().restored
        kept.clear()
