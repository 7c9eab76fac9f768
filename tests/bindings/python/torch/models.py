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


class Pipeline:
    """What diffusers calls a pipeline, in short."""

    def __init__(self, **components):
        self.components = components


def size_of(module):
    return sum(one.numel() * one.element_size() for one in {id(p): p for p in module.parameters()}.values())


class Lora(nn.Module):
    """A frozen linear layer with a trained correction of rank 4."""

    def __init__(self, base):
        super().__init__()
        self.base = base.requires_grad_(False)
        self.down = nn.Parameter(torch.randn(4, base.in_features) / 8)
        self.up = nn.Parameter(torch.randn(base.out_features, 4) / 8)

    def forward(self, x):
        return self.base(x) + x @ self.down.t() @ self.up.t()


def with_lora(net):
    """A net whose layers are frozen, but for their corrections."""
    net.requires_grad_(False)
    for layer in net.layers:
        layer.up, layer.down = Lora(layer.up), Lora(layer.down)
    return net


def loss_of(out):
    return out["logits"].square().mean() + out["hidden"].abs().mean()


def gradients(net, *args, call=None):
    """Of one step."""
    net.zero_grad(set_to_none=True)
    loss = loss_of((call or net)(*args))
    loss.backward()
    return [
        loss.detach(),
        *(one.grad for one in net.parameters() if one.requires_grad),
        *(arg.grad for arg in args if arg is not None and arg.requires_grad),
    ]


def equal(got, want):
    return len(got) == len(want) and all(torch.equal(one, other) for one, other in zip(got, want))


def nothing_is_held(streamed):
    """Whether no block of a streamed model is held, by a view or by the package."""
    return not streamed._running.frames and all(
        not streamed.runtime.block_info(block.block).held and not block.forward and not block.backward
        for block in streamed._blocks
    )
