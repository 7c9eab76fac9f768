"""torch.compile of a streamed model, of its layers, before and after streaming begins: trap 19."""

import itertools
import os
import shutil

import pytest
import torch
from models import Layer, Net, size_of, with_lora
from torch import nn

import libstagehand.torch as st
from libstagehand.torch._uncompiled import uncompiled


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
@pytest.mark.parametrize("mode", ["default", "reduce-overhead"])
def test_the_default_compiler(device, tmp_path, monkeypatch, mode):
    """Its programs have the addresses of weights by the tensors, not in them. On the CPU no mode makes graphs. The
    search of the first step would run without the compiler, which may round otherwise.
    """
    monkeypatch.setenv("TORCHINDUCTOR_CACHE_DIR", str(tmp_path))
    layers = nn.Sequential(*(nn.Linear(64, 64) for _ in range(4))).requires_grad_(False)
    x = torch.randn(3, 64, requires_grad=True)

    def step():
        out = layers(x).square()
        return [out.detach(), *torch.autograd.grad(out.sum(), x)]

    for layer in layers:
        layer.compile(mode=mode)
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


# Functions that the compiler passes over: their calls break a graph, and their code is never compiled.

compiling = torch._C._dynamo.eval_frame.get_eval_frame_callback
seen = []


def noted(x):
    seen.append((torch.compiler.is_dynamo_compiling(), type(x), compiling()))
    return inner(x)


def inner(x):
    seen.append((torch.compiler.is_dynamo_compiling(), type(x), compiling()))
    return x + 1


class Called:
    def __call__(self, x):
        return noted(x)


def with_calls(call):
    """Returns a function that calls `call` between operations, and what a compiler of it counts."""
    graphs = []

    def backend(graph, inputs):
        graphs.append([node.target for node in graph.graph.nodes if node.op == "call_function"])
        return graph.forward

    return torch.compile(lambda x: call(x * 2) * 3, backend=backend), graphs


def test_calls_outside_of_compiled_code():
    seen.clear()
    made = uncompiled(noted)
    assert torch.equal(made(torch.ones(2)), torch.full((2,), 2.0))
    assert made.__name__ == "noted" and made._torchdynamo_disable
    assert [one[0] for one in seen] == [False, False]


@with_compiler
def test_compiled_code_does_not_contain_it():
    kind = type("Kind", (Called,), {"__call__": uncompiled(Called.__call__)})
    for call in (uncompiled(noted), kind()):
        torch.compiler.reset()
        seen.clear()
        compiled, graphs = with_calls(call)
        for _ in range(3):
            assert torch.equal(compiled(torch.ones(2)), torch.full((2,), 9.0))
        # Each call ran by itself, with the compiler off for all that it called.
        assert seen == [(False, torch.Tensor, None)] * 6
        assert len(graphs) == 2  # before the call, and after it
    torch.compiler.reset()
