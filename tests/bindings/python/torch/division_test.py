"""How large the blocks are that a model is divided into by itself."""

import pytest
import torch
from torch import nn

from libstagehand.torch._division import Division, largest_block

MIB = 1 << 20


class Attention(nn.Module):
    def __init__(self, width, keys):
        super().__init__()
        self.q, self.o = nn.Linear(width, width, bias=False), nn.Linear(width, width, bias=False)
        self.k, self.v = nn.Linear(width, keys, bias=False), nn.Linear(width, keys, bias=False)

    def forward(self, x):
        return self.o(self.q(x) + self.k(x).sum() + self.v(x).sum())


class Products(nn.Module):
    def __init__(self, width, inner):
        super().__init__()
        self.up, self.gate = nn.Linear(width, inner, bias=False), nn.Linear(width, inner, bias=False)
        self.down = nn.Linear(inner, width, bias=False)

    def forward(self, x):
        return self.down(self.up(x) * self.gate(x))


class Layer(nn.Module):
    def __init__(self, width, keys, inner):
        super().__init__()
        self.attention, self.products = Attention(width, keys), Products(width, inner)

    def forward(self, x):
        return self.products(self.attention(x))


def bytes_of(module):
    return sum(weight.nbytes for weight in module.parameters())


def model_of_8b():
    with torch.device("meta"):
        return nn.Sequential(*(Layer(4096, 1024, 14336).bfloat16() for _ in range(32)))


@pytest.mark.parametrize(
    ("budget", "total", "want"),
    [
        (8 * MIB, 6 * MIB, 2 * MIB),  # the model fits
        (8 * MIB, 9 * MIB, 2 * MIB),
        (512 * MIB, 1024 * MIB, 64 * MIB),
        (1536 * MIB, 4096 * MIB, 96 * MIB),
        (4096 * MIB, 16384 * MIB, 128 * MIB),
        (16384 * MIB, 65536 * MIB, 256 * MIB),
    ],
)
def test_the_largest_block(budget, total, want):
    assert largest_block(budget, total) == want


@pytest.mark.parametrize("part", [0.25, 0.5, 0.75, 0.9])
def test_layers_of_an_8b_model_are_divided(part):
    """So that the copies for the next product begin when a product ends, and not when a layer does."""
    model = model_of_8b()
    total = bytes_of(model)
    units = Division(bytes_of, largest_block(int(part * total), total)).automatic(model)
    names = [unit.name for unit in units if not unit.own and unit.name.startswith("0.")]
    assert names == ["0.attention", "0.products.up", "0.products.gate", "0.products.down"]


def test_layers_of_a_model_that_fits_are_blocks():
    model = model_of_8b()
    total = bytes_of(model)
    units = Division(bytes_of, largest_block(total, total)).automatic(model)
    assert [unit.name for unit in units if unit.name.startswith("0")] == ["0"]
