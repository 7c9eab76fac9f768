"""Spilled activations beside streamed weights: the weights never leave by way of the spiller."""

import copy
from contextlib import nullcontext

import pytest
import torch
from models import Net, equal, gradients, loss_of, nothing_is_held, same_state, sgd, size_of, with_lora
from spilling import nothing_is_left, spilling

import libstagehand.torch as st
from libstagehand.torch import _spill_plan


@pytest.fixture
def lora():
    return with_lora(Net())


@pytest.mark.parametrize("inside, outermost", [(False, False), (True, False), (False, True)])
@pytest.mark.parametrize("options", [{}, {"keep": "4KB"}, {"watermarks": (8000, 4000)}, {"peak": 8000}], ids=str)
def test_adapters_over_a_streamed_base(device, lora, tokens, options, inside, outermost):
    want = gradients(lora, tokens)
    streamed, spilled = st.stream(lora, device, budget=size_of(lora) // 4), spilling(lora, device, **options)
    with spilled if outermost else streamed, streamed if outermost else spilled:
        for number in range(3):
            if inside:
                with streamed.step():
                    assert equal(gradients(lora, tokens), want)
            else:
                assert equal(gradients(lora, tokens), want)
            assert nothing_is_held(streamed) and nothing_is_left(spilled)
    stats = spilled.stats()
    assert stats.spilled and stats.spill_bytes < 3 * sum(one.nbytes for one in lora.parameters())


def test_a_plan_knows_of_the_weights(device, lora, tokens, monkeypatch):
    """The plan is told how much of the link the weights take."""
    told = []

    def plan(*args, other_to_device_bytes_per_second, plan=_spill_plan.plan_activations, **kwargs):
        told.append(other_to_device_bytes_per_second)
        return plan(*args, other_to_device_bytes_per_second=other_to_device_bytes_per_second, **kwargs)

    monkeypatch.setattr(_spill_plan, "plan_activations", plan)
    gradients(lora, tokens)
    for streams in (True, False):
        with st.stream(lora, device, budget="25%") if streams else nullcontext():
            with spilling(lora, device, peak=8000):
                gradients(lora, tokens)
    with_weights, without = told
    assert with_weights > 0 and without == 0


def test_a_scope_inside_a_streamed_module(device, lora, tokens):
    """The hooks of the model are in force around it. A weight goes to them, and other tensors leave."""
    want = gradients(lora, tokens)
    plain = copy.deepcopy(lora)
    spilled = spilling(None, device)
    for model in (plain, lora):
        for layer in model.layers:
            layer.forward = within(spilled, type(layer).forward.__get__(layer))
    assert equal(gradients(plain, tokens), want)
    before = spilled.stats().saved
    with st.stream(lora, device, budget="25%") as streamed:
        for _ in range(2):
            assert equal(gradients(lora, tokens), want)
            assert nothing_is_held(streamed) and nothing_is_left(spilled)
    assert spilled.stats().saved == 3 * before


def within(spilled, forward):
    def call(x):
        with spilled:
            return forward(x)

    return call


def test_weights_that_are_trained(device, tokens):
    models = [Net()]
    models.append(copy.deepcopy(models[0]))
    for spills, model in enumerate(models):
        with (
            st.stream(model, device, budget="30%", optimizer=sgd),
            spilling(model, device) if spills else nullcontext(),
        ):
            for _ in range(5):
                loss_of(model(tokens)).backward()
    assert same_state(*models)


def test_a_weight_outside_its_module(device, lora, tokens):
    with st.stream(lora, device, budget="25%"), spilling(None, device) as spilled:
        weight = lora.head.weight
        x = torch.randn(64, requires_grad=True)
        (x * weight).sum().backward()
        want = x.grad
        assert torch.allclose(want, lora.head.weight.detach().sum(0), atol=1e-5)
        assert nothing_is_left(spilled)
