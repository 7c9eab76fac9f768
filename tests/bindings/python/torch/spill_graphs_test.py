"""Graphs that are used twice, never, in parts, or again: retain_graph, double backward, checkpoints, exceptions."""

import functools
import gc
import inspect
import threading

import pytest
import torch
from models import equal
from spilling import Mlp, away, made, nothing_is_left, spilling, step
from torch import nn
from torch.utils import checkpoint as checkpoints
from torch.utils.checkpoint import checkpoint


@pytest.mark.parametrize("options", [{}, {"keep": "10KB"}])
def test_trap_12_a_graph_that_is_used_twice(device, options):
    model, x = made("blocks")

    def grads():
        torch.manual_seed(1)
        loss = model(x).square().mean()
        if spilled is not None:
            away(spilled)
        results = []
        for retain in (True, True, False):
            model.zero_grad(set_to_none=True)
            loss.backward(retain_graph=retain)
            results += [one.grad.clone() for one in model.parameters()]
        return results

    spilled = None
    want = grads()
    with spilling(model, device, **options) as spilled:
        for _ in range(2):
            assert equal(grads(), want)
            assert nothing_is_left(spilled)


@pytest.mark.parametrize("options", [{}, {"keep": "1KB"}])
def test_double_backward(device, options):
    model, x = made("mlp")

    def grads():
        model.zero_grad(set_to_none=True)
        leaf = x.clone().requires_grad_()
        out = model(leaf)
        if spilled is not None:
            away(spilled)
        (slope,) = torch.autograd.grad(out.square().sum(), leaf, create_graph=True)
        (slope.square().sum() + model(leaf).sum()).backward()
        return [leaf.grad, *(one.grad.clone() for one in model.parameters())]

    spilled = None
    want = grads()
    with spilling(model, device, **options) as spilled:
        for _ in range(2):
            assert equal(grads(), want)
            assert nothing_is_left(spilled)


def test_trap_13_a_graph_that_is_never_used(device):
    model, x = made("mlp")
    with spilling(model, device) as spilled:
        model(x)
        assert nothing_is_left(spilled)
        outs = [model(x) for _ in range(2)]
        assert not nothing_is_left(spilled)
        want = step(model, x)
        outs.pop().sum().backward()
        outs.clear()
        assert nothing_is_left(spilled)
        assert equal(step(model, x), want)


def test_a_branch_that_is_not_taken(device):
    model, x = made("mlp")
    with spilling(model, device) as spilled:
        first, second = model(x), model(2 * x)
        first.sum().backward()
        assert spilled.stats().away_bytes + spilled.stats().leaving_bytes
        del first, second
        assert nothing_is_left(spilled)


def test_the_last_tensor_dies_on_another_thread(device):
    model, x = made("mlp")
    with spilling(model, device) as spilled:
        outs = [model(x)]
        thread = threading.Thread(target=outs.clear)
        thread.start()
        thread.join()
        assert nothing_is_left(spilled)


def test_trap_22_an_exception_in_the_forward(device):
    class Fails(nn.Module):
        def forward(self, x):
            raise ValueError("as planned")

    model, x = made("mlp")
    failing = nn.Sequential(model, Fails())
    want = step(model, x)
    with spilling(model, device) as spilled:
        for _ in range(3):
            with pytest.raises(ValueError, match="as planned"):
                step(failing, x)
            gc.collect()
            assert nothing_is_left(spilled)
            assert equal(step(model, x), want)
    with pytest.raises(ValueError, match="as planned"), spilled:
        step(failing, x)
    assert torch._C._autograd._top_saved_tensors_default_hooks(False) is None
    assert equal(step(model, x), want)


def test_an_exception_in_the_backward(device):
    class Fails(torch.autograd.Function):
        @staticmethod
        def forward(ctx, x):
            return x.clone()

        @staticmethod
        def backward(ctx, grad):
            raise ValueError("as planned")

    model, x = made("mlp")
    want = step(model, x)
    with spilling(model, device) as spilled:
        for _ in range(3):
            with pytest.raises(ValueError, match="as planned"):
                model(Fails.apply(model(x))).sum().backward()
            gc.collect()
            for one in spilled._devices.values():
                one.forget_restored()
            assert nothing_is_left(spilled)
            assert equal(step(model, x), want)


class Checkpointed(nn.Module):
    def __init__(self, **options):
        super().__init__()
        self.layers = Mlp().layers
        self.options = options

    def forward(self, x):
        x = x * 1.0
        if self.options.get("use_reentrant"):
            x.requires_grad_()
        for layer in self.layers:
            x = x + checkpoint(layer, x, **self.options)
        return x


@pytest.mark.parametrize("reentrant", [False, True])
def test_trap_14_checkpoints(device, reentrant):
    model, x = Checkpointed(use_reentrant=reentrant), torch.randn(16, 64)
    want = step(model, x)
    with spilling(model, device) as spilled:
        for _ in range(3):
            before = spilled.stats().saved
            assert equal(step(model, x, between=lambda: away(spilled)), want)
            assert nothing_is_left(spilled)
        # The inputs of the checkpoints, and what is around them: nothing of what a backward computes again.
        assert 5 <= spilled.stats().saved - before <= 9


def test_a_checkpoint_around_the_scope(device):
    model, x = made("mlp")

    def inside(x):
        with spilling(model, device):
            return model(x)

    want = step(model, x)
    model.zero_grad()
    loss = checkpoint(inside, x, use_reentrant=False).square().mean()
    loss.backward()
    assert equal([loss.detach(), *(one.grad for one in model.parameters())], want)


def test_selective_checkpoints(device):
    policy = checkpoints.create_selective_checkpoint_contexts
    options = {
        "use_reentrant": False,
        "context_fn": functools.partial(policy, [torch.ops.aten.addmm.default]),
    }
    if "respect_saved_tensors_hooks" in inspect.signature(checkpoint).parameters:
        options["respect_saved_tensors_hooks"] = True
    model, x = Checkpointed(**options), torch.randn(16, 64)
    want = step(model, x)
    with spilling(model, device) as spilled:
        for _ in range(2):
            assert equal(step(model, x, between=lambda: away(spilled)), want)
            assert nothing_is_left(spilled)
        # Outputs of products that the checkpoints keep leave, if this PyTorch shows them to hooks.
        if "respect_saved_tensors_hooks" in options:
            assert spilled.stats().saved >= 2 * (5 + 6)


def test_hooks_of_the_user(device):
    """PyTorch applies the innermost pair only."""
    model, x = made("mlp")
    want = step(model, x)
    with spilling(model, device) as spilled:
        with torch.autograd.graph.save_on_cpu():
            assert equal(step(model, x), want)
        assert spilled.stats().saved == 0
    with torch.autograd.graph.save_on_cpu(), spilling(model, device) as spilled:
        assert equal(step(model, x), want)
        assert spilled.stats().saved


def test_scopes_within_scopes(device):
    model, x = made("mlp")
    want = step(model, x)
    with spilling(model, device) as spilled:
        with spilled, spilled.managed_forward():
            assert equal(step(model, x), want)
        assert equal(step(model, x), want)
    with spilling(model, device) as outer, spilling(model, device) as inner:
        assert equal(step(model, x), want)
        assert inner.stats().saved and not outer.stats().saved


def test_a_look_at_what_a_node_has_saved(device):
    with spilling(None, device) as spilled:
        x = torch.randn(1000, requires_grad=True)
        out = x.exp()
        away(spilled)
        assert torch.equal(out.grad_fn._saved_result, out)
        out.sum().backward()
        assert torch.equal(x.grad, out)


def test_functional_transforms_are_refused(device):
    with spilling(None, device), pytest.raises(RuntimeError, match="saved tensor hooks"):
        torch.func.grad(lambda x: x.exp().sum())(torch.randn(10))
