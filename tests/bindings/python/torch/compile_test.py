"""torch.compile of a streamed model, of its layers, before and after streaming begins: trap 19."""

import itertools
import os
import shutil

import pytest
import torch
from models import Layer, Net, size_of, with_lora
from torch import nn

import libstagehand.torch as st


@pytest.fixture(autouse=True)
def reset():
    yield
    torch.compiler.reset()


def compiled(net, whole):
    if whole:
        return torch.compile(net, backend="aot_eager")
    for layer in net.layers:
        layer.compile(backend="aot_eager")
    return net


@pytest.mark.parametrize(
    ("grad", "whole", "before"),
    [
        (False, True, False),
        (True, False, True),
        *(
            pytest.param(*options, marks=pytest.mark.long)
            for options in itertools.product((False, True), repeat=3)
            if options not in ((False, True, False), (True, False, True))
        ),
    ],
)
def test_trap_19_bit_equal(device, tokens, whole, grad, before):
    net = with_lora(Net(layers=4)) if grad else Net(layers=4).requires_grad_(False)

    def step(model):
        if not grad:
            with torch.no_grad():
                return [model(tokens)["logits"]]
        net.zero_grad(set_to_none=True)
        loss = model(tokens)["logits"].square().mean()
        loss.backward()
        return [loss.detach(), *(one.grad for one in net.parameters() if one.requires_grad)]

    want = step(net)
    if before:
        model = compiled(net, whole)
        step(model)
    with st.stream(net, device, budget=size_of(net) // 2, blocks="layers.*", debug=False) as streamed:
        if not before:
            model = compiled(net, whole)
        for _ in range(3):
            assert all(torch.equal(one, other) for one, other in zip(step(model), want))
        stats = streamed.stats()
        assert stats.steps == 3 and stats.acquires >= 3 * (6 + 5 * grad) and stats.bytes_to_device > size_of(net)
    assert all(torch.equal(one, other) for one, other in zip(step(model), want))


with_compiler = pytest.mark.skipif(
    shutil.which(os.environ.get("CXX", "g++")) is None,
    reason="there is no C++ compiler, which PyTorch's own compiler asks for",
)


@with_compiler
def test_the_default_compiler(device, tokens, tmp_path, monkeypatch):
    """Its programs have the addresses of weights by the tensors, not in them."""
    monkeypatch.setenv("TORCHINDUCTOR_CACHE_DIR", str(tmp_path))
    layers = nn.Sequential(*(nn.Linear(64, 64) for _ in range(4))).requires_grad_(False)
    x = torch.randn(3, 64, requires_grad=True)

    def step():
        out = layers(x).square()
        return [out.detach(), *torch.autograd.grad(out.sum(), x)]

    for layer in layers:
        layer.compile()
    want = step()
    with st.stream(layers, device, budget=size_of(layers) * 3 // 4, blocks="?", debug=False) as streamed:
        for _ in range(3):
            assert all(torch.equal(one, other) for one, other in zip(step(), want))
        assert streamed.stats().steps == 3 and streamed.stats().bytes_to_device > size_of(layers)


class Reads(nn.Module):
    """Reads weights of its layers between and after their calls, by a view too."""

    def __init__(self):
        super().__init__()
        self.layers = nn.ModuleList(Layer(64) for _ in range(6))

    def forward(self, x):
        for layer in self.layers:
            x = layer(x) + self.layers[0].up.weight[3]
        return x + torch.relu(self.layers[2].up.weight.sum(0)) * 2 + self.layers[1].down.weight[:, 0]


@pytest.mark.parametrize(
    "backend", ["eager", "aot_eager", pytest.param("inductor", marks=[with_compiler, pytest.mark.long])]
)
def test_weights_that_other_modules_read(device, backend, tmp_path, monkeypatch):
    monkeypatch.setenv("TORCHINDUCTOR_CACHE_DIR", str(tmp_path))
    model, x = Reads().requires_grad_(False), torch.randn(2, 64)
    with torch.no_grad():
        want = torch.compile(model, backend=backend)(x)
        torch.compiler.reset()
        with st.stream(model, device, budget=size_of(model) // 3, blocks="layers.*"):
            made = torch.compile(model, backend=backend)
            for _ in range(4):
                torch.testing.assert_close(made(x), want)
        torch.testing.assert_close(model(x), want)
