"""Small models for the tests."""
import torch
from torch import nn

PAGE = 4096


class Layer(nn.Module):
    def __init__(self, width, bias=True):
        super().__init__()
        self.norm = nn.LayerNorm(width)
        self.up = nn.Linear(width, 2 * width, bias=bias)
        self.down = nn.Linear(2 * width, width, bias=bias)

    def forward(self, x):
        return x + self.down(torch.relu(self.up(self.norm(x))))


class Net(nn.Module):
    """An embedding, layers, and a head; a dict comes out. Each layer is a 9th of it or so."""

    def __init__(self, width=64, layers=8, layer=Layer):
        super().__init__()
        self.embed = nn.Embedding(50, width)
        self.layers = nn.ModuleList(layer(width) for _ in range(layers))
        self.head = nn.Linear(width, 50)

    def forward(self, tokens, hidden=None):
        x = self.embed(tokens) if hidden is None else hidden
        for layer in self.layers:
            x = layer(x)
        return {"logits": self.head(x), "hidden": x}


def size_of(module):
    return sum(one.numel() * one.element_size() for one in {id(p): p for p in module.parameters()}.values())
