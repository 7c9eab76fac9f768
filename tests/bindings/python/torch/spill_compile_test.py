"""Compiled models. PyTorch packs what a compiled part saves after all of that part has run."""

import pytest
import torch
from models import equal
from spilling import Mlp, away, nothing_is_left, spilling, step
from torch import nn


class Layers(nn.Module):
    def __init__(self, backend, whole):
        super().__init__()
        self.model = Mlp()
        self.call = torch.compile(self.model, backend=backend, fullgraph=True) if whole else self.model
        if not whole:
            for layer in self.model.layers:
                layer.compile(backend=backend)

    def forward(self, x):
        return self.call(x)


@pytest.mark.parametrize(
    ("backend", "whole"),
    [
        *((backend, whole) for backend in ("eager", "aot_eager") for whole in (False, True)),
        ("inductor", True),
        pytest.param("inductor", False, marks=pytest.mark.long),
    ],
)
def test_trap_19_compiled_models(device, backend, whole):
    torch._dynamo.reset()
    model, x = Layers(backend, whole), torch.randn(16, 64)
    want = step(model, x)
    with spilling(model, device) as spilled:
        for _ in range(3):
            assert equal(step(model, x, between=lambda: away(spilled)), want)
            assert nothing_is_left(spilled)
    assert spilled.stats().spilled
    assert equal(step(model, x), want)


@pytest.mark.parametrize("backend", ["eager", "aot_eager"])
def test_compiled_within_the_scope(device, backend):
    torch._dynamo.reset()
    model, x = Layers(backend, True), torch.randn(16, 64)
    plain = Mlp()
    plain.load_state_dict(model.model.state_dict())
    want = step(plain, x)
    with spilling(model, device) as spilled:
        for _ in range(3):
            got = step(model, x)
            assert all(torch.allclose(one, other, atol=1e-6) for one, other in zip(got, want))
            assert nothing_is_left(spilled)


def test_a_scope_in_compiled_code(device):
    """The scope breaks the graph, and works."""
    torch._dynamo.reset()
    model, x = Mlp(), torch.randn(16, 64)
    want = step(model, x)
    spilled = spilling(model, device)

    @torch.compile(backend="eager")
    def call(x):
        with spilled:
            return model(x)

    torch.manual_seed(3)
    model.zero_grad(set_to_none=True)
    loss = call(x).square().mean()
    loss.backward()
    assert equal([loss.detach(), *(one.grad for one in model.parameters())], want)
    assert spilled.stats().saved
