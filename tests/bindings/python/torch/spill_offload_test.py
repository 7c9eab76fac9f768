"""Gradients that leave the device during the backward (offload_gradients=True)."""

import copy
import gc
import weakref

import pytest
import torch
from models import Net, adamw, equal, loss_of, same_state, sgd, size_of
from spilling import MODELS, Mlp, made, nothing_is_left, spilling, step
from torch import nn

import libstagehand as sh
import libstagehand.torch as st


def grads_of(model):
    return {name: one.grad.clone() for name, one in model.named_parameters() if one.grad is not None}


def same(got, want):
    return set(got) == set(want) and equal(list(got.values()), [want[name] for name in got])


def step_of(model, x):
    step(model, x)
    return grads_of(model)


@pytest.mark.parametrize("dtype", [torch.float32, torch.bfloat16])
@pytest.mark.parametrize("name", MODELS)
def test_gradients(device, name, dtype):
    model, x = made(name)
    model, x = model.to(dtype), x.to(dtype)
    want = step_of(model, x)
    with spilling(model, device, offload_gradients=True) as spilled:
        for _ in range(3):
            spilled.zero_gradients()
            step(model, x)
            assert all(one.grad is None for one in model.parameters())
            assert same(spilled.gradients(), want) and nothing_is_left(spilled)


@pytest.mark.parametrize("dtype", [torch.float32, torch.bfloat16])
def test_several_backwards_are_added(device, dtype):
    model, inputs = Mlp().to(dtype), [torch.randn(16, 64, dtype=dtype) for _ in range(5)]

    def backwards():
        for x in inputs:
            model(x).square().mean().backward()

    backwards()
    want = grads_of(model)
    model.zero_grad(set_to_none=True)
    with spilling(model, device, offload_gradients=True) as spilled:
        for _ in range(2):
            backwards()
            assert same(spilled.gradients(), want)
            spilled.zero_gradients()
            assert not spilled.gradients()


def test_gradients_that_are_handed_back(device):
    model, x = made("mlp")
    want = step_of(model, x)
    with spilling(model, device, offload_gradients=True) as spilled:
        step(model, x)
        spilled.restore_gradients()
        assert same(grads_of(model), want) and not spilled.gradients()
        # A gradient on the device is not overwritten.
        spilled._gradients.end()
        kept = grads_of(model)
        spilled._gradients.begin()
        first = next(model.parameters())
        first.grad = None
        model(x).sum().backward()
        first.grad = kept[next(iter(kept))]
        with pytest.raises(sh.UsageError, match="has a gradient on its device"):
            spilled.restore_gradients()


@pytest.mark.parametrize("make", [sgd, adamw])
def test_an_optimizer_on_the_host(device, make):
    plain, x = Mlp(), torch.randn(16, 64)
    other, optimizer = copy.deepcopy(plain), make(plain.parameters())
    for _ in range(4):
        step(plain, x)
        optimizer.step()
    with spilling(other, device, offload_gradients=True) as spilled:
        optimizer = make(spilled.host_parameters().values())
        for _ in range(4):
            step(other, x)
            spilled.gradients()
            optimizer.step()
            spilled.update_parameters()
    assert same_state(other, plain)


def test_parameters_without_gradients(device):
    model, x = nn.ModuleList(nn.Linear(64, 64) for _ in range(3)), torch.randn(8, 64)
    model[2].requires_grad_(False)
    with spilling(model, device, offload_gradients=True) as spilled:
        own = spilled.host_parameters()
        assert set(own) == {"0.weight", "0.bias", "1.weight", "1.bias"}
        model[2](model[0](x)).sum().backward()
        assert set(spilled.gradients()) == {"0.weight", "0.bias"}
        assert own["0.weight"].grad is not None and own["1.weight"].grad is None


def test_a_backward_that_fails(device):
    model, x = nn.Sequential(nn.Linear(64, 64), nn.Linear(64, 64)), torch.randn(8, 64)
    want = step_of(model, x)

    def broken(gradient):
        raise ZeroDivisionError

    with spilling(model, device, offload_gradients=True) as spilled:
        y = model[0](x)
        y.register_hook(broken)
        with pytest.raises(ZeroDivisionError):
            model[1](y).square().mean().backward()
        assert set(spilled.gradients()) == {"1.weight", "1.bias"}
        spilled.zero_gradients()
        step(model, x)
        assert same(spilled.gradients(), want)


def test_sparse_and_differentiated_gradients_stay(device):
    embed, x = nn.Embedding(10, 64, sparse=True), torch.tensor([1, 2, 1])
    with spilling(embed, device, offload_gradients=True) as spilled:
        embed(x).sum().backward()
        assert embed.weight.grad.is_sparse and not spilled.gradients()
    linear = nn.Linear(64, 64)
    with spilling(linear, device, offload_gradients=True) as spilled:
        linear(torch.randn(8, 64)).square().sum().backward(create_graph=True)
        assert linear.weight.grad.requires_grad and "weight" not in spilled.gradients()
        linear.zero_grad()


def test_streamed_weights_keep_their_optimizer(device, tokens):
    """The gradients of a streamed weight are the stream's."""
    models = [Net()]
    models.append(copy.deepcopy(models[0]))
    for offloads, model in enumerate(models):
        with st.stream(model, device, budget=size_of(model) // 3, optimizer=sgd):
            with spilling(model, device, offload_gradients=bool(offloads)):
                for _ in range(3):
                    loss_of(model(tokens)).backward()
    assert same_state(*models)


def test_the_end(device):
    """Gradients stay on the device after close(), and when the object is garbage."""
    model, x = made("mlp")
    for close in (True, False):
        spilled = spilling(model, device, offload_gradients=True)
        step(model, x)
        assert spilled.gradients()
        if close:
            spilled.close()
        gone = weakref.ref(spilled)
        del spilled
        gc.collect()
        assert gone() is None
        step(model, x)
        assert len(grads_of(model)) == len(list(model.parameters()))
        model.zero_grad(set_to_none=True)


def test_misuse(device):
    with pytest.raises(ValueError, match="needs the model"):
        spilling(None, device, offload_gradients=True)
    with spilling(Mlp(), device) as spilled, pytest.raises(sh.UsageError, match="offload_gradients=True"):
        spilled.gradients()
