"""On a GPU, where there is one: every number as without streaming, eagerly, with adapters, trained, quantised,
compiled, and by a graph.

What needs no GPU runs on the host as well, smaller, so that these checks are known to find what they are for.
"""

import contextlib
import copy
import importlib.util

import pytest
import torch
from models import equal, gradients
from quantised_test import PackedLinear, bytes_of, quantised
from torch import nn

import libstagehand as sh
import libstagehand.torch as st

LAYERS = 12


@pytest.fixture
def kind(place):
    return place


@contextlib.contextmanager
def opened(kind, budget):
    """A device with that budget, for the models of a test."""
    options = {"page_bytes": 4096, "backend_options": "poison=1"} if kind == "cpu" else {}
    with sh.Device("host" if kind == "cpu" else "cuda:0", budget_bytes=budget, **options) as device:
        yield device


def width_of(kind):
    return 64 if kind == "cpu" else 1024


class Layer(nn.Module):
    def __init__(self, width):
        super().__init__()
        self.norm, self.up, self.down = nn.LayerNorm(width), nn.Linear(width, 4 * width), nn.Linear(4 * width, width)

    def forward(self, x):
        return x + self.down(torch.nn.functional.gelu(self.up(self.norm(x))))


def make(kind, where="cpu"):
    torch.manual_seed(5)
    return nn.Sequential(*(Layer(width_of(kind)) for _ in range(LAYERS))).to(where)


@pytest.fixture
def x(kind):
    return torch.randn(8, width_of(kind), generator=torch.Generator().manual_seed(6)).to(kind)


@pytest.mark.parametrize("on_device", [False, True])
def test_forward_is_equal(kind, x, on_device):
    want = make(kind, kind)(x)
    model = make(kind, kind if on_device else "cpu")
    budget = bytes_of(model) // 4
    with opened(kind, budget) as device, st.stream(model, device) as streamed, torch.inference_mode():
        for _ in range(4):
            assert torch.equal(model(x), want)
        if kind == "cuda":
            side = torch.cuda.Stream()
            side.wait_stream(torch.cuda.current_stream())
            with torch.cuda.stream(side):
                again = model(x)
            side.synchronize()
            assert torch.equal(again, want)
        assert device.memory().peak_bytes <= budget
        assert streamed.stats().bytes_to_device > bytes_of(model)
    assert torch.equal(model.to(kind)(x), want), "the module is what it was"


class Adapter(nn.Module):
    def __init__(self, base):
        super().__init__()
        self.base = base
        self.a, self.b = (
            nn.Parameter(torch.randn(shape) * 0.01) for shape in ((8, base.in_features), (base.out_features, 8))
        )

    def forward(self, x):
        return self.base(x) + x @ self.a.T @ self.b.T


def adapters(model):
    model.requires_grad_(False)
    torch.manual_seed(8)
    for layer in model:
        layer.up = Adapter(layer.up)
    return model


def test_gradients_of_adapters_are_equal(kind, x):
    def train(model, steps=3):
        trained = [one for one in model.parameters() if one.requires_grad]
        optimizer, losses = torch.optim.SGD(trained, lr=0.1), []
        for _ in range(steps):
            loss = model(x).square().mean()
            loss.backward()
            optimizer.step()
            optimizer.zero_grad()
            losses.append(loss.detach())
        return losses, [one.detach().cpu() for one in trained]

    want = train(adapters(make(kind)).to(kind))
    model = adapters(make(kind))
    with opened(kind, bytes_of(model) // 4) as device, st.stream(model, device):
        got = train(model)
    assert equal(got[0], want[0]) and equal(got[1], want[1])


def test_trained_weights_are_equal(kind, x):
    resident, model = make(kind, kind), make(kind)
    optimizer = torch.optim.SGD(resident.parameters(), lr=0.1)
    for _ in range(3):
        resident(x).square().mean().backward()
        optimizer.step()
        optimizer.zero_grad()
    with (
        opened(kind, bytes_of(model) // 3) as device,
        st.stream(model, device, optimizer=lambda parameters: torch.optim.SGD(parameters, lr=0.1)),
    ):
        for _ in range(3):
            model(x).square().mean().backward()
    assert equal(
        [one.detach().cpu() for one in model.parameters()], [one.detach().cpu() for one in resident.parameters()]
    )


def moved(model, where):
    """A quantised model on a device; tensors in attributes are nobody's to move."""
    model = copy.deepcopy(model).to(where)
    for module in model.modules():
        if isinstance(module, PackedLinear):
            module.state.scale, module.state.more = (
                module.state.scale.to(where),
                [one.to(where) for one in module.state.more],
            )
            module.weight.state = module.state
    return model


class Layers(nn.Module):
    def __init__(self, net):
        super().__init__()
        self.net = net

    def forward(self, hidden):
        return self.net(None, hidden)


@pytest.mark.parametrize("weights", ["wrapper", "nested", "saved", "attributes"])
@pytest.mark.parametrize("on_device", [False, True])
def test_quantised_weights_are_equal(kind, weights, on_device):
    made = Layers(quantised(weights, width=width_of(kind)))
    resident, model = moved(made, kind), moved(made, kind) if on_device else made
    hidden = torch.randn(3, 5, width_of(kind)).to(kind).requires_grad_()
    want = [one.clone() for one in gradients(resident, hidden)]
    with (
        opened(kind, bytes_of(model)) as device,
        st.stream(model, device, budget=bytes_of(model) // 2, blocks="net.layers.*"),
    ):
        assert model.net.layers[2].up.weight.device.type == kind
        for _ in range(3):
            hidden.grad = None
            assert equal(gradients(model, hidden), want)
    hidden.grad = None
    assert equal(gradients(model.to(kind) if on_device else moved(model, kind), hidden), want), (
        "the module is what it was"
    )


def test_torchao_is_equal(kind, x):
    quantization = pytest.importorskip("torchao.quantization")
    model = make(kind).requires_grad_(False)
    quantization.quantize_(model, quantization.Int8WeightOnlyConfig())
    with torch.no_grad():
        want = copy.deepcopy(model).to(kind)(x)
        with opened(kind, bytes_of(make(kind)) // 4) as device, st.stream(model, device):
            for _ in range(3):
                assert torch.equal(model(x), want)


@pytest.mark.gpu
@pytest.mark.skipif(
    importlib.util.find_spec("triton") is None, reason="there is no Triton, which PyTorch's compiler asks for"
)
def test_compiled_layers_are_equal(tmp_path, monkeypatch):
    monkeypatch.setenv("TORCHINDUCTOR_CACHE_DIR", str(tmp_path))
    x = torch.randn(8, width_of("cuda"), device="cuda")
    resident, model = make("cuda", "cuda"), make("cuda")
    with torch.no_grad():
        for layer in resident:
            layer.compile()
        want = resident(x)
        with opened("cuda", bytes_of(model) // 3) as device, st.stream(model, device):
            for layer in model:
                layer.compile()
            first = model(x)
            # Around what streams it may fuse other operations than in the resident model, which round differently.
            torch.testing.assert_close(first, want)
            for _ in range(3):
                assert torch.equal(model(x), first)
    torch.compiler.reset()


@pytest.mark.gpu
def test_a_graph_is_equal():
    x = torch.randn(8, width_of("cuda"), device="cuda")
    resident, model = make("cuda", "cuda"), make("cuda")
    with st.stream(model, "cuda:0", budget=bytes_of(model) // 3) as streamed, torch.inference_mode():
        graph = streamed.graph(x)
        for factor in (1, 2, 3):
            assert torch.equal(graph(x * factor), resident(x * factor))
        assert torch.equal(model(x), resident(x)), "eagerly between launches"
        assert torch.equal(graph(x), resident(x))
        model[3].up.weight.data.mul_(2)
        resident[3].up.weight.data.mul_(2)
        assert torch.equal(graph(x), resident(x)), "what was written to a source is launched with"
        graph.close()
