"""Backward passes that run a forward again: activation checkpoints around streamed blocks, over several and inside."""

import pytest
import torch
from models import Layer, Net, equal, gradients, nothing_is_held, size_of, with_lora
from torch import nn
from torch.utils.checkpoint import checkpoint

import libstagehand.torch as st


class Checkpointed(nn.Module):
    """Layers under a checkpoint each, or a part of each layer."""

    def __init__(self, net, reentrant, inside):
        super().__init__()
        self.net, self.reentrant, self.inside = net, reentrant, inside

    def forward(self, tokens, hidden=None):
        x = self.net.embed(tokens) if hidden is None else hidden
        if self.reentrant:
            x.requires_grad_(True)
        for layer in self.net.layers:
            x = layer(x) if self.inside else checkpoint(layer, x, use_reentrant=self.reentrant)
        return {"logits": self.net.head(x), "hidden": x}


class CheckpointInside(Layer):
    reentrant = False

    def forward(self, x):
        h = self.norm(x)
        h = checkpoint(self.up, h, use_reentrant=self.reentrant)
        return x + checkpoint(lambda h: self.down(torch.relu(h)), h, use_reentrant=self.reentrant)


@pytest.mark.parametrize("reentrant", [False, True])
@pytest.mark.parametrize("inside", [False, True])
def test_trap_39_checkpoints(device, tokens, reentrant, inside):
    """The non-reentrant kind fires a forward's first hook twice, and ends the second call by an exception, which the
    last hook has to see.
    """
    net = with_lora(Net(layer=CheckpointInside if inside else Layer))
    for layer in net.layers:
        layer.reentrant = reentrant
    model = Checkpointed(net, reentrant, inside)
    hidden = torch.randn(3, 7, 64, requires_grad=True)  # reentrant ones need an input with a gradient
    want = gradients(model, tokens, hidden)
    with st.stream(model, device, budget=size_of(net) // 4, blocks="net.layers.*") as streamed:
        for _ in range(3):
            hidden.grad = None
            assert equal(gradients(model, tokens, hidden), want)
            assert nothing_is_held(streamed)
        assert streamed.stats().steps == 3


class WeightFirst(torch.autograd.Function):
    look = staticmethod(lambda weight: None)

    @staticmethod
    def forward(ctx, x, weight):
        ctx.save_for_backward(weight, x)
        return x @ weight * x.mean()

    @staticmethod
    def backward(ctx, grad):
        weight, x = ctx.saved_tensors
        WeightFirst.look(weight)
        return (grad * x.mean()) @ weight.t(), None


class WeightFirstLayer(Layer):
    def forward(self, x):
        return super().forward(x) + WeightFirst.apply(x, self.up.base.weight.t()[:, :64])


@pytest.mark.parametrize("reentrant", [False, True])
def test_trap_39_a_checkpoint_over_several_blocks(device, tokens, reentrant, monkeypatch):
    """A node that has its weight already may have to wait for its input, which several blocks compute again."""
    net = with_lora(Net(layer=WeightFirstLayer))
    hidden = torch.randn(3, 7, 64, requires_grad=True)

    class Segments(nn.Module):
        def __init__(self):
            super().__init__()
            self.net = net

        def forward(self, tokens, hidden):
            for i in range(0, 8, 4):
                hidden = checkpoint(nn.Sequential(*net.layers[i : i + 4]), hidden, use_reentrant=reentrant)
            return {"logits": net.head(hidden), "hidden": hidden}

    model = Segments()
    want = gradients(model, tokens, hidden)
    held = []
    with st.stream(model, device, budget=size_of(net) // 4, blocks="net.layers.*") as streamed:
        monkeypatch.setattr(
            WeightFirst,
            "look",
            lambda weight: held.append(streamed._by_storage[weight.untyped_storage().data_ptr()].block.held()),
        )
        for _ in range(3):
            hidden.grad = None
            assert equal(gradients(model, tokens, hidden), want)
            assert nothing_is_held(streamed)
    assert held == [True] * 24
