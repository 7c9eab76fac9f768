"""Small models for the tests, devices, and comparisons."""

import re

import pytest
import torch
from torch import nn

import libstagehand as sh
import libstagehand.torch as st

PAGE = 4096
NAME = "layers.4.up.weight"  # of a Net: 128 x 64


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
    for arg in args:
        if arg is not None:
            arg.grad = None
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


def sgd(parameters):
    return torch.optim.SGD(parameters, lr=0.1)


def adamw(parameters):
    return torch.optim.AdamW(parameters, lr=0.01)


def still(parameters):
    """An optimizer that changes nothing."""
    return torch.optim.SGD(parameters, lr=0)


def same(net, other, tokens):
    """Whether two nets compute the same, and then have the same state."""
    return torch.equal(net(tokens)["logits"], other(tokens)["logits"]) and same_state(net, other)


def same_state(net, other):
    """Whether two nets have the same state."""
    state, wanted = net.state_dict(), other.state_dict()
    return state.keys() == wanted.keys() and all(torch.equal(state[name].cpu(), wanted[name].cpu()) for name in wanted)


def on_meta(kind=Net, **options):
    with torch.device("meta"):
        return kind(**options).requires_grad_(False)


def host(budget=0, **options):
    options = {"page_bytes": PAGE, "backend_options": "poison=1"} | options
    return sh.Device("host", budget_bytes=budget, **options)


def told(error):
    """The bytes of the smallest budget that a message tells."""
    found = re.search(r"the model needs at least (?:[^()]*?\()?(\d+) bytes", str(error))
    assert found, f"no number is told: {error}"
    return int(found[1])


def smallest(model, run, device=None, begin=PAGE):
    """The smallest budget that the library tells, or this one if the model runs in it."""
    try:
        if device is None:
            with host(begin) as opened, st.stream(model, opened):
                run()
        else:
            with st.stream(model, device, budget=begin):
                run()
    except sh.BudgetError as error:
        return told(error)
    return begin


def refused(match, error=RuntimeError):
    return pytest.raises(error, match=match)


def check_streamed(device, model, call, times=3, **options):
    """Compares what a call gives before, while and after the model is streamed. Returns what stream() has returned."""
    want = call()
    with st.stream(model, device, **options) as streamed:
        for _ in range(times):
            assert equal(call(), want) and nothing_is_held(streamed)
    assert equal(call(), want)
    return streamed
