"""Results of cheap operations that a backward computes again: which ones, with the same bits, and fewer bytes leave."""

import gc

import pytest
import torch
from models import Layer, Net, equal, gradients, nothing_is_held, size_of, with_lora
from spilling import (
    Attention,
    Calls,
    Gated,
    Norm,
    chain,
    check,
    check_model,
    nothing_is_left,
    spilling,
    step,
)  # fmt: skip
from torch import nn
from torch.nn import functional as F
from torch.utils.checkpoint import checkpoint

import libstagehand.torch as st


def again(device, model, x, **options):
    """Returns the counters of three steps with the same gradients."""
    spilled = check_model(device, model, x, steps=3, recompute=True, **options)
    assert not torch._C._len_torch_dispatch_stack()
    return spilled.recompute_stats()


def bytes_spared(device, model, x):
    """By a step."""
    spilled = [check_model(device, model, x, recompute=recompute) for recompute in (False, True)]
    return (spilled[0].stats().spill_bytes - spilled[1].stats().spill_bytes) // 2


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


def used(function):
    """A result that several layers save, also by views."""

    def forward(self, x):
        y = function(self.one(x))
        return self.two(y) + self.two(y.view(-1, 64)).view_as(y) + self.two(y.transpose(0, 1)).transpose(0, 1)

    return Calls(forward)


@pytest.mark.parametrize("dtype", [torch.float32, torch.bfloat16])
@pytest.mark.parametrize("name", FUNCTIONS)
def test_functions(device, name, dtype):
    x = torch.randn(5, 7, 64, dtype=dtype)
    assert bytes_spared(device, used(FUNCTIONS[name]).to(dtype), x) >= x.nbytes


@pytest.mark.parametrize("dtype", [torch.float32, torch.bfloat16])
@pytest.mark.parametrize("options", [{}, {"keep": "1GiB"}], ids=str)
def test_a_norm_of_single_operations(device, dtype, options):
    model, x = chain(Gated, 3).to(dtype), torch.randn(64, 64, dtype=dtype)
    found = again(device, model, x, **options)
    # The two wide results of a layer, and its norm with what the norm saves. The first input has no gradient.
    least = 3 * 2 * 4 * x.nbytes + 5 * x.nbytes
    assert found.bytes >= 3 * least and found.tensors and found.computed >= 3 * 3 * 3
    if dtype == torch.bfloat16:  # the input of a norm in another type is saved in its own one
        assert 0 < found.argument_bytes <= 3 * 3 * x.nbytes
    assert bytes_spared(device, model, x) >= least - 3 * x.nbytes


def test_norms_of_modules(device):
    model, x = nn.Sequential(*(Gated(64, 64, nn.LayerNorm) for _ in range(3))), torch.randn(8, 64)
    # In each layer the norm, the activation and the product.
    assert bytes_spared(device, model, x) >= 3 * 3 * x.nbytes - x.nbytes
    check(device, lambda between: step(model, x, between=between), recompute=True)  # norms need the model


def native_dropout(x, rate):
    return torch.native_dropout(x, rate, True)[0]


@pytest.mark.parametrize("function", [F.dropout, native_dropout])
@pytest.mark.parametrize("dtype", [torch.float32, torch.bfloat16])
def test_dropout_is_computed_from_its_mask(device, dtype, function):
    model, x = Attention(function=function).to(dtype), torch.randn(4, 32, 64, dtype=dtype)
    step(model, x)
    state = torch.get_rng_state()
    # The result of the first dropout is the argument of a product of matrices.
    assert again(device, model, x).bytes >= 3 * 4 * 32 * 32 * x.element_size()
    assert equal([torch.get_rng_state()], [state])


def epsilons(self, x):
    y = F.layer_norm(self.one(x), (64,), eps=1e-3)
    return self.two(F.layer_norm(self.one(y), (64,), self.one.bias, self.two.bias, 0.5))


def changed_in_place(self, x):
    return self.two(torch.sin(self.one(x)).add_(1))


def changed_by_its_data(self, x):  # this has no version
    h = torch.sin(self.one(x))
    h.data.add_(1)
    return self.two(h)


def changed_by_a_view(self, x):
    h = torch.sin(self.one(x))
    h.detach()[2:3].zero_()
    return self.two(h)


def changed_activations(self, x):
    return self.two(F.gelu(self.one(x)).mul_(3)) + self.two(F.silu(self.one(x), inplace=True))


def reduces(self, x):
    """A reduction reads much more than it writes, so its result is kept."""
    return self.one(x).square().mean(-1).exp()


def scales(self, x):
    """A tensor of inference mode has no versions, so nothing is computed from it."""
    return self.two(self.one(x) + SCALE)


def halves(self, x):
    """The argument is saved whole, and the operation has a part of it."""
    h = self.one(x)
    y, (a, b) = h.sin(), h.chunk(2, -1)
    return self.two(F.silu(a)) + self.two((b * 2).cos()) + y[..., :64] + self.two(torch.cat((b, a), -1)[:, 5:69])


class Doubled(torch.autograd.Function):
    """Unknown code may write to memory by kernels that PyTorch does not know."""

    @staticmethod
    def forward(ctx, x):
        y = x.clone()
        y.numpy()[:] *= 2
        ctx.save_for_backward(y)
        return x.view_as(x)

    @staticmethod
    def backward(ctx, gradient):
        return gradient * ctx.saved_tensors[0]


def doubled(self, x):
    return Doubled.apply(torch.tanh(self.one(x)))


with torch.inference_mode():
    SCALE = torch.rand(64)

# The function between two layers, the width of the first, and how many tensors a step computes again.
CASES = [
    (epsilons, 64, 2),
    (changed_in_place, 64, 0),
    (changed_by_its_data, 64, 0),
    (changed_by_a_view, 64, 0),
    (changed_activations, 64, 0),
    (reduces, 512, 0),
    (scales, 64, 0),
    (halves, 128, 4),
    (doubled, 64, 0),
]


@pytest.mark.parametrize("function, width, tensors", CASES)
def test_what_is_computed_again(device, function, width, tensors):
    assert again(device, Calls(function, width), torch.randn(8, 64)).tensors == 3 * tensors


def test_an_input_that_is_changed_in_place(device):
    """A copy of the input is saved for the result in another type."""
    norm, x = Norm().bfloat16(), torch.randn(8, 64, dtype=torch.bfloat16)

    def forward(self, x):
        h = self.one(x)
        out = self.two(norm(h))
        h += 1
        return out + self.two(h)

    assert again(device, Calls(forward).bfloat16(), x).argument_bytes == 3 * x.nbytes


def test_an_argument_that_was_changed_is_an_error(device):
    weight = torch.randn(64, 64, requires_grad=True)
    with spilling(None, device, keep="1GiB", recompute=True):
        h = torch.randn(8, 64) @ weight
        y = F.gelu(h) @ weight
        with torch.no_grad():
            h.add_(1)
        with pytest.raises(RuntimeError, match="modified by an inplace operation"):
            y.sum().backward()


# Graphs.


def test_graphs_used_twice_in_parts_and_never(device):
    model, x = used(F.gelu), torch.randn(5, 7, 64)

    def program(between):
        model.zero_grad(set_to_none=True)
        y = F.gelu(model.one(x))
        one, two = model.two(y), model.two(y * 2)
        between()
        one.sum().backward(retain_graph=True)
        results = [part.grad.clone() for part in model.parameters()]
        one.sum().backward()
        # The node of gelu has let go of what it saved, and this gradient does not need that node.
        return [*results, *torch.autograd.grad(two.sum(), [model.two.bias])]

    spilled = check(device, program, model, recompute=True)
    with spilled:
        model(x)
        gc.collect()
        assert nothing_is_left(spilled)


def test_autocast_and_double_backward_and_checkpoints(device):
    model, x = nn.Sequential(Gated(), used(F.gelu)), torch.randn(5, 7, 64)

    def program(_):
        model.zero_grad(set_to_none=True)
        leaf = x.clone().requires_grad_()
        with torch.autocast("cpu", torch.bfloat16):
            out = checkpoint(model, leaf, use_reentrant=False).float() + model(leaf).float()
        plain = model(leaf).square().sum()
        plain.backward(retain_graph=True)
        (slope,) = torch.autograd.grad(plain, leaf, create_graph=True)
        (out.sum() + slope.square().sum()).backward()
        return [leaf.grad, *(one.grad.clone() for one in model.parameters())]

    assert check(device, program, model, recompute=True).recompute_stats().tensors


@pytest.mark.parametrize("kind", ["rotary", "exponential"])
def test_a_result_that_is_read_as_another_type(device, kind):
    """A view of a result has another type, as the rotary embedding of Llama has it."""
    frequencies = torch.polar(torch.ones(4), torch.arange(4.0))

    def program(_):
        x = torch.randn(8, 4, 2, requires_grad=True)
        z = torch.view_as_complex(x.exp() * 0.25)
        z = z * frequencies if kind == "rotary" else z.exp()
        (z * z).abs().sum().backward()
        return [x.grad]

    check(device, program, recompute=True)


def test_a_result_that_the_program_keeps(device):
    with spilling(None, device, recompute=True) as spilled:
        weight = torch.randn(64, 64, requires_grad=True)
        y = F.gelu(torch.randn(8, 64) @ weight)
        kept = y.detach()
        (y @ weight).sum().backward()
        del y
        assert nothing_is_left(spilled) and kept.numel()


class Smooth(Layer):
    def __init__(self, width):
        super().__init__(width)
        self.scale = nn.Parameter(torch.rand(7, 8 * width)[:, :width].clone())

    def forward(self, x):
        return x + self.down(F.gelu(self.up(self.norm(x) * self.scale)))


@pytest.mark.parametrize("outside", [False, True])
def test_streamed_weights(device, tokens, outside):
    """The memory of a streamed weight goes, so nothing is computed from it."""
    lora = with_lora(Net(layer=Smooth))
    want = gradients(lora, tokens)
    streamed, spilled = st.stream(lora, device, budget=size_of(lora) // 4), spilling(lora, device, recompute=True)
    with spilled if outside else streamed, streamed if outside else spilled:
        for _ in range(3):
            assert equal(gradients(lora, tokens), want)
            assert nothing_is_held(streamed) and nothing_is_left(spilled)
    assert spilled.recompute_stats().tensors
