"""Results of cheap operations that a backward computes again: the same bits, and fewer bytes that leave."""

import gc

import pytest
import torch
from models import equal
from spilling import MODELS, away, made, nothing_is_left, spilling, step
from torch import nn
from torch.nn import functional as F
from torch.utils.checkpoint import checkpoint


@pytest.mark.parametrize("options", [{}, {"keep": "20KB"}, {"keep": "1GiB"}])
@pytest.mark.parametrize("name", MODELS)
def test_gradients(device, name, options):
    model, x = made(name)
    want = [step(model, x, seed) for seed in range(3)]
    with spilling(model, device, recompute=True, **options) as spilled:
        for seed in range(3):
            assert equal(step(model, x, seed, lambda: away(spilled)), want[seed])
            assert nothing_is_left(spilled) and not spilled._pack.recompute._recent


class Swiglu(nn.Module):
    """A layer of a Llama, without its attention."""

    def __init__(self, width=64):
        super().__init__()
        self.norm, self.last = nn.LayerNorm(width, eps=1e-3), nn.LayerNorm(width)
        self.gate, self.up, self.down = (nn.Linear(width, width) for _ in range(3))

    def forward(self, x):
        h = self.norm(x)
        return self.last(x + self.down(F.silu(self.gate(h)) * self.up(h)))


FUNCTIONS = {
    "gelu": F.gelu,
    "tanh gelu": lambda x: F.gelu(x, approximate="tanh"),
    "silu": F.silu,
    "mish": F.mish,
    "hardswish": F.hardswish,
    "sin": torch.sin,
    "cos": torch.cos,
    "square": lambda x: x * x,
    "log sigmoid": F.logsigmoid,
    "softplus": F.softplus,
    "glu": lambda x: F.glu(torch.cat((x, x), -1)),
    "clamp": lambda x: x.clamp(-1, 1) * 2 + 1,
    "where": lambda x: torch.where(x > 0, x.sin(), 0.5 * x),
    "lower": lambda x: (x - x.mean(-1, keepdim=True)).tril(),
}


class Chain(nn.Module):
    def __init__(self, function, width=64):
        super().__init__()
        self.first, self.second, self.third = (nn.Linear(width, width) for _ in range(3))
        self.function = function

    def forward(self, x):
        y = self.function(self.first(x))
        return self.second(y) + self.third(y.view(-1, 64)).view_as(y) + self.third(y.transpose(0, 1)).transpose(0, 1)


@pytest.mark.parametrize("dtype", [torch.float32, torch.bfloat16])
@pytest.mark.parametrize("name", FUNCTIONS)
def test_functions(device, name, dtype):
    model, x = Chain(FUNCTIONS[name]).to(dtype), torch.randn(5, 7, 64, dtype=dtype)
    want = step(model, x)
    bytes = []
    for recompute in (False, True):
        with spilling(model, device, recompute=recompute) as spilled:
            for _ in range(3):
                assert equal(step(model, x, between=lambda: away(spilled)), want)
                assert nothing_is_left(spilled)
        bytes.append(spilled.stats().spill_bytes)
    assert bytes[1] <= bytes[0] - 3 * x.nbytes


def test_norms_and_products(device):
    model, x = nn.Sequential(*(Swiglu() for _ in range(3))), torch.randn(8, 64)
    want = step(model, x)
    bytes = []
    for recompute in (False, True):
        with spilling(model, device, recompute=recompute) as spilled:
            for _ in range(2):
                assert equal(step(model, x, between=lambda: away(spilled)), want)
        bytes.append(spilled.stats().spill_bytes // 2 // x.nbytes)
    # In each layer the norm, the activation and the product, and the norm at the end.
    assert bytes[0] - bytes[1] >= 3 * 3


def test_norms_need_the_model(device):
    model, x = Swiglu(), torch.randn(8, 64)
    want = step(model, x)
    with spilling(None, device, recompute=True) as spilled:
        assert equal(step(model, x, between=lambda: away(spilled)), want)


def test_a_result_that_was_changed_is_not_computed_again(device):
    class Changes(nn.Module):
        def __init__(self):
            super().__init__()
            self.one, self.two = nn.Linear(64, 64), nn.Linear(64, 64)

        def forward(self, x):
            return self.two(F.gelu(self.one(x)).mul_(3)) + self.two(F.silu(self.one(x), inplace=True))

    model, x = Changes(), torch.randn(8, 64)
    want = step(model, x)
    with spilling(model, device, recompute=True) as spilled:
        assert equal(step(model, x, between=lambda: away(spilled)), want)


def test_an_argument_that_was_changed_is_an_error(device):
    weight = torch.randn(64, 64, requires_grad=True)
    with spilling(None, device, keep="1GiB", recompute=True):
        h = torch.randn(8, 64) @ weight
        y = F.gelu(h) @ weight
        with torch.no_grad():
            h.add_(1)
        with pytest.raises(RuntimeError, match="modified by an inplace operation"):
            y.sum().backward()


def test_graphs_used_twice_in_parts_and_never(device):
    model, x = Chain(F.gelu), torch.randn(5, 7, 64)

    def grads():
        results = []
        model.zero_grad(set_to_none=True)
        y = F.gelu(model.first(x))
        one, two = model.second(y), model.third(y)
        if spilled is not None:
            away(spilled)
        one.sum().backward(retain_graph=True)
        results += [part.grad.clone() for part in model.parameters() if part.grad is not None]
        one.sum().backward()
        # The node of gelu has let go of what it saved, and this gradient does not need that node.
        results += torch.autograd.grad(two.sum(), [model.third.weight])
        return results

    spilled = None
    want = grads()
    with spilling(model, device, recompute=True) as scope:
        spilled = scope
        for _ in range(2):
            assert equal(grads(), want)
            assert nothing_is_left(scope)
        model(x)
        gc.collect()
        assert nothing_is_left(scope)


def test_a_result_that_the_program_keeps(device):
    with spilling(None, device, recompute=True) as spilled:
        weight = torch.randn(64, 64, requires_grad=True)
        y = F.gelu(torch.randn(8, 64) @ weight)
        kept = y.detach()
        (y @ weight).sum().backward()
        del y
        assert nothing_is_left(spilled) and kept.numel()


def test_products_with_numbers(device):
    def grads():
        x = torch.ones(8, 64, requires_grad=True)
        scale = torch.tensor(3.0, requires_grad=True)
        y = (x * scale) * (x * 2)
        (y.exp() * y).sum().backward()
        return [x.grad, scale.grad]

    want = grads()
    with spilling(None, device, recompute=True):
        assert equal(grads(), want)


def test_autocast_and_double_backward_and_checkpoints(device):
    model, x = nn.Sequential(Swiglu(), Chain(F.gelu)), torch.randn(5, 7, 64)

    def grads():
        model.zero_grad(set_to_none=True)
        leaf = x.clone().requires_grad_()
        with torch.autocast("cpu", torch.bfloat16):
            out = checkpoint(model, leaf, use_reentrant=False).float() + model(leaf).float()
        plain = model(leaf)
        (slope,) = torch.autograd.grad(plain.square().sum(), leaf, create_graph=True)
        (out.sum() + slope.square().sum()).backward()
        return [leaf.grad, *(one.grad.clone() for one in model.parameters())]

    want = grads()
    with spilling(model, device, recompute=True) as spilled:
        for _ in range(2):
            assert equal(grads(), want)
            assert nothing_is_left(spilled)


@pytest.mark.parametrize("kind", ["rotary", "exponential"])
def test_a_result_that_is_read_as_another_type(device, kind):
    """A view of a result has another type, as the rotary embedding of Llama has it."""
    frequencies = torch.polar(torch.ones(4), torch.arange(4.0))

    def grads():
        torch.manual_seed(5)
        x = torch.randn(8, 4, 2, requires_grad=True)
        z = torch.view_as_complex(x.exp() * 0.25)
        z = z * frequencies if kind == "rotary" else z.exp()
        (z * z).abs().sum().backward()
        return [x.grad]

    want = grads()
    with spilling(None, device, recompute=True):
        assert equal(grads(), want)
