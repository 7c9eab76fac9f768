"""On a GPU, where there is one: every number as without streaming, eagerly, with adapters, trained, and by a graph."""
import pytest
import torch
from torch import nn

import libstagehand as sh
import libstagehand.torch as st

pytestmark = pytest.mark.skipif(not torch.cuda.is_available(), reason="there is no GPU that PyTorch can use")

WIDTH, LAYERS = 1024, 12


class Layer(nn.Module):
    def __init__(self):
        super().__init__()
        self.norm, self.up, self.down = nn.LayerNorm(WIDTH), nn.Linear(WIDTH, 4 * WIDTH), nn.Linear(4 * WIDTH, WIDTH)

    def forward(self, x):
        return x + self.down(torch.nn.functional.gelu(self.up(self.norm(x))))


def make(where="cpu"):
    torch.manual_seed(5)
    return nn.Sequential(*(Layer() for _ in range(LAYERS))).to(where)


def bytes_of(model):
    return sum(one.numel() * one.element_size() for one in model.parameters())


@pytest.fixture
def x():
    return torch.randn(8, WIDTH, generator=torch.Generator().manual_seed(6)).cuda()


@pytest.mark.parametrize("where", ["cpu", "cuda"])
def test_forward_is_equal(x, where):
    want = make("cuda")(x)
    model = make(where)
    budget = bytes_of(model) // 4
    with sh.Device("cuda:0", budget_bytes=budget) as device, st.stream(model, device) as streamed, torch.inference_mode():
        for _ in range(4):
            assert torch.equal(model(x), want)
        side = torch.cuda.Stream()
        side.wait_stream(torch.cuda.current_stream())
        with torch.cuda.stream(side):
            again = model(x)
        side.synchronize()
        assert torch.equal(again, want)
        assert device.memory().peak_bytes <= budget
        assert streamed.stats().bytes_to_device > bytes_of(model)
    assert torch.equal(model.cuda()(x), want), "the module is what it was"


def adapters(model):
    for parameter in model.parameters():
        parameter.requires_grad_(False)
    torch.manual_seed(8)
    for layer in model:
        layer.up = Adapter(layer.up)
    return model


class Adapter(nn.Module):
    def __init__(self, base):
        super().__init__()
        self.base = base
        self.a, self.b = (nn.Parameter(torch.randn(shape) * 0.01) for shape in ((8, WIDTH), (4 * WIDTH, 8)))

    def forward(self, x):
        return self.base(x) + x @ self.a.T @ self.b.T


def test_gradients_of_adapters_are_equal(x):
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

    want = train(adapters(make()).cuda())
    model = adapters(make())
    with st.stream(model, "cuda:0", budget=bytes_of(model) // 4):
        got = train(model)
    assert all(map(torch.equal, want[0], got[0])) and all(map(torch.equal, want[1], got[1]))


def test_trained_weights_are_equal(x):
    resident, model = make("cuda"), make()
    optimizer = torch.optim.SGD(resident.parameters(), lr=0.1)
    for _ in range(3):
        resident(x).square().mean().backward()
        optimizer.step()
        optimizer.zero_grad()
    with st.stream(model, "cuda:0", budget=bytes_of(model) // 3, optimizer=lambda parameters: torch.optim.SGD(parameters, lr=0.1)):
        for _ in range(3):
            model(x).square().mean().backward()
    for want, got in zip(resident.parameters(), model.parameters()):
        assert torch.equal(want.detach().cpu(), got.detach().cpu())


def test_a_graph_is_equal(x):
    resident, model = make("cuda"), make()
    with st.stream(model, "cuda:0", budget=bytes_of(model) // 3) as streamed, torch.inference_mode():
        graph = streamed.graph(x)
        for factor in (1, 2, 3):
            assert torch.equal(graph(x * factor), resident(x * factor))
        assert torch.equal(model(x), resident(x)), "eagerly between launches"
        assert torch.equal(graph(x), resident(x))
        graph.close()
