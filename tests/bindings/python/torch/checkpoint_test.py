"""Backward passes that run a forward again: activation checkpoints around streamed blocks, over several and inside."""

from functools import partial

import pytest
import torch
from models import Layer, Net, check_streamed, equal, gradients, nothing_is_held, size_of, with_lora
from torch import nn
from torch.utils.checkpoint import CheckpointPolicy, checkpoint, create_selective_checkpoint_contexts

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
    options = {"budget": size_of(net) // 4, "blocks": "net.layers.*"}
    assert check_streamed(device, model, lambda: gradients(model, tokens, hidden), **options).stats().steps == 3


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
            assert equal(gradients(model, tokens, hidden), want)
            assert nothing_is_held(streamed)
    assert held == [True] * 24


def keeping(*operations):
    """A selective checkpoint that keeps the results of some operations, or of all."""

    def policy(context, operation, *args, **kwargs):
        is_kept = not operations or operation in operations
        return CheckpointPolicy.MUST_SAVE if is_kept else CheckpointPolicy.PREFER_RECOMPUTE

    contexts = partial(create_selective_checkpoint_contexts, policy, allow_cache_entry_mutation=True)
    return partial(checkpoint, use_reentrant=False, context_fn=contexts)


CHECKPOINTS = {
    "plain": partial(checkpoint, use_reentrant=False),
    "reentrant": partial(checkpoint, use_reentrant=True),
    "keeps products": keeping(torch.ops.aten.mm.default, torch.ops.aten.addmm.default),
    "keeps all": keeping(),
}


class ReadsOthers(nn.Module):
    """Checkpoints within checkpoints, whose functions read the weights of layers that are not called."""

    def __init__(self, net, outer, inner):
        super().__init__()
        self.net, self.outer, self.inner = net, outer, inner

    def part(self, one, other, x):
        h = torch.relu(nn.functional.linear(x, one.up.weight))
        h = self.inner(lambda h: nn.functional.linear(h, other.down.weight).sin() @ one.down.weight, h)
        return x + nn.functional.linear(h, one.down.weight * other.down.weight)

    def forward(self, tokens, hidden):
        layers = self.net.layers
        for one, other in zip(layers, layers[1:]):
            hidden = self.outer(partial(self.part, one, other), hidden)
        return {"logits": self.net.head(hidden), "hidden": hidden}


@pytest.mark.parametrize("trained", [False, True])
@pytest.mark.parametrize("inner", CHECKPOINTS.values(), ids=CHECKPOINTS)
@pytest.mark.parametrize("outer", CHECKPOINTS.values(), ids=CHECKPOINTS)
def test_checkpoints_whose_functions_read_weights_of_several_blocks(device, tokens, outer, inner, trained):
    net = Net().requires_grad_(trained)
    model, hidden = ReadsOthers(net, outer, inner), torch.randn(3, 7, 64, requires_grad=True)

    def step():
        return [*gradients(model, tokens, hidden)[:1], hidden.grad, *(layer.up.weight.grad for layer in net.layers)]

    want = step()
    net.zero_grad(set_to_none=True)
    options = {"optimizer": lambda some: torch.optim.SGD(some, lr=0)} if trained else {}
    with st.stream(model, device, budget=size_of(net) // 3, blocks="net.layers.*", **options) as streamed:
        for _ in range(3):
            if trained:
                with streamed.accumulate():
                    got = step()
                streamed.optimize()
            else:
                got = step()
            assert all(one is other or torch.equal(one, other) for one, other in zip(got, want, strict=True))
            assert nothing_is_held(streamed)


@pytest.mark.parametrize("kind", CHECKPOINTS.values(), ids=CHECKPOINTS)
def test_checkpoints_while_no_module_runs(device, net, kind):
    """Their functions read trained weights of several blocks."""
    net.requires_grad_(True)
    weights = [layer.up.weight for layer in net.layers]

    def part(x):
        for one, other in zip(weights, weights[1:]):
            x = (x * one).sin() + nn.functional.linear(x, other[:64]) * other.clone()
        return x

    def found():
        x = torch.ones(128, 64, requires_grad=True)
        kind(part, x).square().mean().backward()
        return [x.grad, *(one.grad.clone() for one in weights)]

    want = found()
    net.zero_grad(set_to_none=True)
    make = partial(torch.optim.SGD, lr=0)
    with st.stream(net, device, budget=size_of(net) // 3, blocks="layers.*", optimizer=make) as streamed:
        for _ in range(2):
            with streamed.accumulate():
                assert equal(found(), want)
            streamed.optimize()
            assert nothing_is_held(streamed)
