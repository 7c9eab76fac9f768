"""What a mode records of cheap operations: which results the backward computes again, and with the same bits."""

import threading

import pytest
import torch
from models import Layer, Net, equal, gradients, nothing_is_held, size_of, with_lora
from spilling import MODELS, away, made, nothing_is_left, spilling, step
from torch import nn
from torch.nn import functional as F
from torch.utils.checkpoint import checkpoint

import libstagehand.torch as st
from libstagehand.torch._spill_record import _written


class Norm(nn.Module):
    """As the Llama of transformers has it."""

    def __init__(self, width=64):
        super().__init__()
        self.weight = nn.Parameter(torch.rand(width))

    def forward(self, x):
        dtype = x.dtype
        x = x.to(torch.float32)
        x = x * torch.rsqrt(x.pow(2).mean(-1, keepdim=True) + 1e-5)
        return self.weight * x.to(dtype)


class Gated(nn.Module):
    """The layer of a Llama without its attention."""

    def __init__(self, width=64, wide=256):
        super().__init__()
        self.norm = Norm(width)
        self.gate, self.up, self.down = nn.Linear(width, wide), nn.Linear(width, wide), nn.Linear(wide, width)

    def forward(self, x):
        h = self.norm(x)
        return x + self.down(F.silu(self.gate(h)) * self.up(h))


class Attention(nn.Module):
    """Attention as products of matrices, with dropout."""

    def __init__(self, width=64, function=F.dropout):
        super().__init__()
        self.norm, self.qkv, self.out = nn.GroupNorm(4, width), nn.Linear(width, 3 * width), nn.Linear(width, width)
        self.dropout = function

    def forward(self, x):
        q, k, v = self.qkv(self.norm(x.transpose(1, 2)).transpose(1, 2)).chunk(3, -1)
        weights = self.dropout((q @ k.transpose(1, 2) / 8).float().softmax(-1).to(x.dtype), 0.1)
        return x + self.dropout(self.out(weights @ v), 0.1)


def steps(model, x, device, want, **options):
    """Returns the counters after three steps with the same gradients."""
    with spilling(model, device, recompute=True, **options) as spilled:
        for _ in range(3):
            assert equal(step(model, x, between=lambda: away(spilled)), want)
            assert nothing_is_left(spilled) and not spilled._pack.recompute._recent
    assert not torch._C._len_torch_dispatch_stack()
    return spilled.stats(), spilled.recompute_stats()


@pytest.mark.parametrize("dtype", [torch.float32, torch.bfloat16])
@pytest.mark.parametrize("options", [{}, {"keep": "1GiB"}])
def test_a_norm_of_single_operations(device, dtype, options):
    model, x = nn.Sequential(*(Gated() for _ in range(3))).to(dtype), torch.randn(64, 64, dtype=dtype)
    saved = steps(model, x, device, step(model, x), **options)
    # The two wide results of a layer, and its norm with what the norm saves. The first input has no gradient.
    wide, narrow = 4 * x.nbytes, x.nbytes
    least = 3 * 2 * wide + 5 * narrow
    assert saved[1].bytes >= 3 * least
    if dtype == torch.bfloat16:  # the input of a norm in another type is saved in its own one
        assert 0 < saved[1].argument_bytes <= 3 * 3 * narrow
    assert saved[1].tensors and saved[1].computed >= 3 * 3 * 3
    with spilling(model, device) as plain:
        step(model, x)
    assert saved[0].spill_bytes <= 3 * (plain.stats().spill_bytes - least + 3 * narrow)


def native_dropout(x, rate):
    return torch.native_dropout(x, rate, True)[0]


@pytest.mark.parametrize("function", [F.dropout, native_dropout])
@pytest.mark.parametrize("dtype", [torch.float32, torch.bfloat16])
def test_dropout_is_computed_from_its_mask(device, dtype, function):
    model, x = Attention(function=function).to(dtype), torch.randn(4, 32, 64, dtype=dtype)
    want = step(model, x)
    state = torch.get_rng_state()
    _, again = steps(model, x, device, want)
    # The result of the first dropout is the argument of a product of matrices.
    assert again.bytes >= 3 * 4 * 32 * 32 * x.element_size()
    assert equal([torch.get_rng_state()], [state])


# oneDNN's LSTM has no bfloat16 on processors without AVX-512.
@pytest.mark.parametrize("name", sorted({*MODELS} - {"recurrent"}))
def test_autocast(device, name):
    """The operations run again with the types of the forward, also in a backward within autocast."""
    model, x = made(name)

    def grads():
        torch.manual_seed(3)
        model.zero_grad(set_to_none=True)
        with torch.autocast("cpu", torch.bfloat16):
            loss = model(x).float().square().mean()
            loss.backward()
        return [loss.detach(), *(one.grad for one in model.parameters())]

    want = grads()
    with spilling(model, device, recompute=True) as spilled:
        for _ in range(2):
            assert equal(grads(), want)
            assert nothing_is_left(spilled)
    assert spilled.recompute_stats().tensors


def test_an_epsilon_of_each_call(device):
    class Twice(nn.Module):
        def __init__(self):
            super().__init__()
            self.norm, self.one, self.two = nn.LayerNorm(64), nn.Linear(64, 64), nn.Linear(64, 64)

        def forward(self, x):
            y = self.one(self.norm(x))
            return self.two(F.layer_norm(y, (64,), self.norm.weight, self.norm.bias, 0.5))

    model, x = Twice(), torch.randn(8, 64)
    assert steps(model, x, device, step(model, x))[1].tensors == 3 * 2


def test_an_input_that_is_changed_in_place(device):
    """A copy of the input is saved for the result in another type."""
    model, other = nn.Sequential(nn.Linear(64, 64), Norm(), nn.Linear(64, 64)).bfloat16(), nn.Linear(64, 64).bfloat16()

    class Adds(nn.Module):
        def __init__(self):
            super().__init__()
            self.parts = nn.ModuleList([model, other])

        def forward(self, x):
            h = model[0](x)
            out = model[2](model[1](h))
            h += 1
            return out + other(h)

    adds, x = Adds(), torch.randn(8, 64, dtype=torch.bfloat16)
    assert steps(adds, x, device, step(adds, x))[1].argument_bytes == 3 * x.nbytes


@pytest.mark.parametrize("change", ["in place", "data", "view"])
def test_a_result_that_is_changed_in_place(device, change):
    class Changes(nn.Module):
        def __init__(self):
            super().__init__()
            self.one, self.two = nn.Linear(64, 64), nn.Linear(64, 64)

        def forward(self, x):
            h = torch.sin(self.one(x))
            if change == "in place":
                h.add_(1)
            elif change == "data":  # this has no version
                h.data.add_(1)
            else:
                h.detach()[2:3].zero_()
            return self.two(h)

    model, x = Changes(), torch.randn(8, 64)
    assert steps(model, x, device, step(model, x))[1].tensors == 0


def test_the_allocator_hears_of_a_stream_and_nothing_is_written():
    assert _written(torch.ops.aten.record_stream.default) == ()
    assert _written(torch.ops.aten.add_.Tensor) == ((0, "self"),)


def test_memory_that_unknown_code_writes_to(device):
    """A function of the program may write to memory by kernels that PyTorch does not know."""

    class Double(torch.autograd.Function):
        @staticmethod
        def forward(ctx, x):
            y = x.clone()
            y.numpy()[:] *= 2
            ctx.save_for_backward(y)
            return x.view_as(x)

        @staticmethod
        def backward(ctx, gradient):
            return gradient * ctx.saved_tensors[0]

    class Doubles(nn.Module):
        def __init__(self):
            super().__init__()
            self.one = nn.Linear(64, 64)

        def forward(self, x):
            return Double.apply(torch.tanh(self.one(x)))

    model, x = Doubles(), torch.randn(8, 64)
    steps(model, x, device, step(model, x))


def test_what_costs_much_for_few_bytes_is_kept(device):
    """A reduction reads much more than it writes."""

    class Reduces(nn.Module):
        def __init__(self):
            super().__init__()
            self.one = nn.Linear(64, 512)

        def forward(self, x):
            y = self.one(x)
            return y.square().mean(-1).exp()

    model, x = Reduces(), torch.randn(8, 64)
    assert steps(model, x, device, step(model, x))[1].tensors == 0


def test_an_argument_of_inference_mode(device):
    """It has no versions, so nothing is computed from it."""
    with torch.inference_mode():
        scale = torch.rand(64)

    class Scales(nn.Module):
        def __init__(self):
            super().__init__()
            self.one, self.two = nn.Linear(64, 64), nn.Linear(64, 64)

        def forward(self, x):
            return self.two(self.one(x) + scale)

    model, x = Scales(), torch.randn(8, 64)
    assert steps(model, x, device, step(model, x))[1].tensors == 0


def test_views_of_an_argument(device):
    """The argument is saved whole, and the operation has a part of it."""

    class Halves(nn.Module):
        def __init__(self):
            super().__init__()
            self.one, self.two = nn.Linear(64, 128), nn.Linear(64, 64)

        def forward(self, x):
            h = self.one(x)
            y = h.sin()
            a, b = h.chunk(2, -1)
            return (
                self.two(F.silu(a)) + self.two((b * 2).cos()) + y[..., :64] + self.two(torch.cat((b, a), -1)[:, 5:69])
            )

    model, x = Halves(), torch.randn(8, 64)
    assert steps(model, x, device, step(model, x))[1].tensors >= 3 * 2


def test_graphs_used_twice_and_differentiated_twice(device):
    model, x = nn.Sequential(Gated(), Gated()), torch.randn(8, 64)

    def grads():
        model.zero_grad(set_to_none=True)
        leaf = x.clone().requires_grad_()
        loss = model(leaf).square().mean()
        loss.backward(retain_graph=True)
        loss.backward(retain_graph=True)
        (slope,) = torch.autograd.grad(loss, leaf, create_graph=True)
        slope.square().sum().backward()
        return [leaf.grad, *(one.grad.clone() for one in model.parameters())]

    want = grads()
    with spilling(model, device, recompute=True) as spilled:
        for _ in range(2):
            assert equal(grads(), want)
            assert nothing_is_left(spilled)
    assert spilled.recompute_stats().tensors


@pytest.mark.parametrize("reentrant", [False, True])
def test_checkpoints(device, reentrant):
    model, x = nn.Sequential(Gated(), Gated(), Gated()), torch.randn(8, 64, requires_grad=True)

    class Checkpointed(nn.Module):
        def __init__(self):
            super().__init__()
            self.model = model

        def forward(self, x):
            return model[2](checkpoint(model[1], model[0](x), use_reentrant=reentrant))

    whole = Checkpointed()
    assert steps(whole, x, device, step(whole, x))[1].tensors


@pytest.mark.parametrize("backend", ["eager", "aot_eager", pytest.param("inductor", marks=pytest.mark.long)])
def test_compiled_layers(device, backend):
    torch._dynamo.reset()
    model, x = nn.Sequential(Gated(), Gated(), Gated()), torch.randn(8, 64)
    model[1].compile(backend=backend, fullgraph=True)
    want = step(model, x)
    frames = torch._dynamo.utils.counters["frames"]["ok"]
    assert steps(model, x, device, want)[1].tensors
    assert torch._dynamo.utils.counters["frames"]["ok"] - frames <= 1  # it stays compiled


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


def test_threads_that_share_the_scope(device):
    model, x = nn.Sequential(Gated(), Gated()), torch.randn(8, 64)
    want = [one.clone() for one in torch.autograd.grad(model(x).square().mean(), list(model.parameters()))]
    results = []

    def forward_and_backward():
        with spilled:
            for _ in range(20):
                loss = model(x).square().mean()
                results.append(torch.autograd.grad(loss, list(model.parameters())))

    spilled = spilling(model, device, recompute=True)
    threads = [threading.Thread(target=forward_and_backward) for _ in range(3)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    assert len(results) == 60 and all(equal(one, want) for one in results)
    assert nothing_is_left(spilled) and spilled.recompute_stats().tensors


def test_a_backward_on_another_thread(device):
    model, x = nn.Sequential(Gated(), Gated()), torch.randn(8, 64)
    want = step(model, x)
    model.zero_grad(set_to_none=True)
    with spilling(model, device, recompute=True) as spilled:
        loss = model(x).square().mean()
    away(spilled)
    thread = threading.Thread(target=loss.backward)
    thread.start()
    thread.join()
    assert equal([loss.detach(), *(one.grad for one in model.parameters())], want)


def test_an_exception_in_the_scope(device):
    with pytest.raises(ZeroDivisionError), spilling(None, device, recompute=True):
        raise ZeroDivisionError
    assert not torch._C._len_torch_dispatch_stack()
