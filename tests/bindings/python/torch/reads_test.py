"""Reads of weights whose block is not held fail, in the first step or in all."""

import pytest
import torch
from models import Layer, size_of
from torch import nn

import libstagehand.torch as st


class Borrows(nn.Module):
    """Reads a layer's weight, now and then, without calling the layer."""

    def __init__(self):
        super().__init__()
        self.layers = nn.ModuleList(Layer(64) for _ in range(6))
        self.borrow = True

    def forward(self, x):
        for layer in self.layers:
            x = layer(x)
        return x + self.layers[2].up.weight[0] if self.borrow else x


@pytest.fixture
def model():
    return Borrows().requires_grad_(False)


ERROR = r"reads layers\.2\.up\.weight, but its block layers\.2 is not held.*blocks="


def test_the_first_step_is_searched(device, model):
    x = torch.randn(2, 64)
    with st.stream(model, device):
        for _ in range(3):  # as long as no step has passed
            with pytest.raises(RuntimeError, match=ERROR):
                model(x)
    with st.stream(model, device, outside="layers.2.up.weight"):
        assert torch.equal(model(x), model(x))


@pytest.mark.parametrize("explicit", [False, True])
def test_debug_searches_every_step(device, model, explicit):
    x = torch.randn(2, 64)
    model.borrow = False
    want = model(x)
    with st.stream(model, device, budget=size_of(model) // 3, blocks="layers.*", debug=True) as streamed:
        for _ in range(3):
            assert torch.equal(model(x), want)
        model.borrow = True
        with pytest.raises(RuntimeError, match=ERROR):
            if explicit:
                with streamed.step():
                    model(x)
            else:
                model(x)
        model.borrow = False
        assert torch.equal(model(x), want)


def test_without_the_search_nothing_is_looked_at(device, model):
    model.borrow = False
    x = torch.randn(2, 64)
    with st.stream(model, device, debug=False):
        for layer in model.layers:
            layer.register_forward_hook(
                lambda *_: seen.append(torch.utils._python_dispatch._get_current_dispatch_mode())
            )
        seen = []
        model(x)
        assert seen == [None] * 6


class ReadsInCheckpoint(Layer):
    """The checkpoint's function reads a weight by itself, without calling a module, when it runs again."""

    reentrant = False

    def forward(self, x):
        def part(x):
            return torch.tanh(x @ self.up.weight.t()) @ self.up.weight

        return super().forward(x) + torch.utils.checkpoint.checkpoint(part, x, use_reentrant=self.reentrant)


@pytest.mark.parametrize("reentrant", [False, True])
def test_a_weight_that_is_read_when_a_checkpoint_runs_again(device, reentrant):
    model = nn.Sequential(*(ReadsInCheckpoint(64) for _ in range(6))).requires_grad_(False)
    for layer in model:
        layer.reentrant = reentrant
    x = torch.randn(2, 64, requires_grad=True)
    (want,) = torch.autograd.grad(model(x).sum(), x) if not reentrant else (None,)
    if reentrant:
        model(x).sum().backward()
        want, x.grad = x.grad, None
    with st.stream(model, device, budget=size_of(model) // 2, blocks=["?"]):
        for _ in range(3):
            x.grad = None
            try:
                model(x).sum().backward()
            except RuntimeError as error:
                assert "up.weight, but its block" in str(error)
            else:
                assert torch.equal(x.grad, want)  # it was there for another node
