"""Spilled activations on a GPU, where there is one."""

import threading

import pytest
import torch
from models import equal
from spilling import Attention, Gated, chain, check, check_model, nothing_is_left, spilling, step
from torch import nn

import libstagehand as sh
import libstagehand.torch as st
from libstagehand.torch._spill_cheap import masked

pytestmark = [pytest.mark.gpu, pytest.mark.usefixtures("deterministic")]


class Layer(nn.Module):
    def __init__(self, width):
        super().__init__()
        self.norm, self.up, self.down = nn.LayerNorm(width), nn.Linear(width, 4 * width), nn.Linear(4 * width, width)

    def forward(self, x):
        return x + nn.functional.dropout(self.down(nn.functional.gelu(self.up(self.norm(x)))), 0.1)


def large(layers=8, width=1024):
    return nn.Sequential(*(Layer(width) for _ in range(layers))).cuda(), torch.randn(2048, width, device="cuda")


@pytest.mark.parametrize("options", [{}, {"keep": "64MiB"}, {"pack": True}, {"pack": True, "checksums": True}])
def test_larger_tensors_many_times(options):
    model, x = large()
    want = step(model, x)
    with spilling(model, "cuda:0", **options) as spilled:
        for _ in range(50):
            assert equal(step(model, x), want)
        torch.cuda.synchronize()
        assert nothing_is_left(spilled)
    assert spilled.stats().restored


def test_the_memory_of_streamed_weights_counts():
    model, x = large()
    model.requires_grad_(False).cpu()
    weights = sum(one.nbytes for one in model.parameters())
    with st.stream(model, "cuda:0", budget=weights // 2), spilling(model, "cuda:0", peak="1GiB") as spilled:
        (on,) = spilled._devices.values()
        for _ in range(2):
            model(x.requires_grad_()).sum().backward()
        assert weights // 4 < on._pages <= weights // 2
        assert on.in_use() == on._pages + torch.cuda.memory_allocated()
        assert on.peak() >= on._pages


def test_the_peak_is_lower():
    model, x = large(24)

    def peak(scope):
        torch.cuda.reset_peak_memory_stats()
        with scope:
            loss = model(x).square().mean()
        forward = torch.cuda.max_memory_allocated()
        loss.backward()
        return forward

    step(model, x)
    plain = peak(torch.enable_grad())
    spilled = peak(spilling(model, "cuda:0", keep=0))
    assert plain - spilled > 512 << 20


def test_streams_of_the_program():
    model, x = large()
    want = step(model, x)
    with spilling(model, "cuda:0") as spilled:
        for _ in range(20):
            stream = torch.cuda.Stream()
            stream.wait_stream(torch.cuda.current_stream())
            with torch.cuda.stream(stream):
                got = step(model, x)
            torch.cuda.current_stream().wait_stream(stream)
            torch.cuda.synchronize()
            assert equal(got, want)
    assert spilled.stats().restored


def test_two_threads():
    results = []

    def work():
        with torch.cuda.stream(torch.cuda.Stream()):
            torch.cuda.current_stream().wait_event(ready)
            with spilled:
                for _ in range(10):
                    results.append(step(models[threading.current_thread().name], x))
            torch.cuda.current_stream().synchronize()

    first, x = large(4)
    other, _ = large(4)
    other.load_state_dict(first.state_dict())
    for model in (first, other):
        for module in model:
            module.forward = Layer.forward.__get__(module)
    models = {"a": first.eval(), "b": other.eval()}
    want = [None]
    spilled = spilling(None, "cuda:0")
    ready = torch.cuda.current_stream().record_event()
    threads = [threading.Thread(target=work, name=name) for name in models]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    assert len(results) == 20 and want


def test_trap_16_two_devices():
    """A model that is partly on the host: tensors come back to where they were."""
    up, down = nn.Linear(64, 64).cuda(), nn.Linear(64, 64)

    def grads():
        for one in (up, down):
            one.zero_grad(set_to_none=True)
        y = down(torch.tanh(up(x)).cpu())
        torch.sin(y.cuda()).sum().backward()
        return [up.weight.grad, down.weight.grad]

    x = torch.randn(16, 64, device="cuda")
    want = grads()
    with st.spill_activations(device=["cuda:0", "host"], least=1) as spilled:
        for _ in range(3):
            assert equal(grads(), want)
    for place in ("cuda:0", "cpu"):
        assert spilled.stats(torch.device(place)).spilled


def test_trap_20_a_capture_is_refused():
    weight, x = torch.ones(1, device="cuda", requires_grad=True), torch.randn(4096, device="cuda")
    graph = torch.cuda.CUDAGraph()
    with spilling(None, "cuda:0"), pytest.raises(sh.Error, match="captures a graph"), torch.cuda.graph(graph):
        weight * x


@pytest.mark.parametrize("dtype", [torch.float32, torch.bfloat16, torch.float16, torch.float64])
@pytest.mark.parametrize("rate", [0.1, 0.3, 0.77])
def test_dropout_is_computed_from_its_mask(dtype, rate):
    x = torch.randn(1000, 77, device="cuda", dtype=dtype)
    want, mask = torch.native_dropout(x, rate, True)
    assert torch.equal(masked(x, mask, 1 - rate), want)


@pytest.mark.parametrize("dtype", [torch.float32, torch.bfloat16])
@pytest.mark.parametrize("function", [Gated, Attention, lambda: nn.Sequential(nn.RMSNorm(64), nn.Linear(64, 64))])
def test_norms_and_attention_of_single_operations(function, dtype):
    model, x = chain(function, 3).to("cuda", dtype), torch.randn(4, 32, 64).to("cuda", dtype)
    assert check_model("cuda:0", model, x, steps=4, recompute=True).recompute_stats().tensors


def test_a_plan_stays_in_force(caplog):
    """Tensors that the allocator is told about are no other tensors than in the recorded step."""
    model = chain(lambda: Gated(1024, 4096), 6).to("cuda", torch.bfloat16)
    x = torch.randn(2048, 1024, device="cuda", dtype=torch.bfloat16)
    step(model, x)
    torch.cuda.reset_peak_memory_stats()
    want = step(model, x)
    peak = torch.cuda.max_memory_allocated() * 3 // 4
    with caplog.at_level("INFO", "libstagehand.torch"), spilling(model, "cuda:0", peak=peak) as spilled:
        for _ in range(12):
            assert equal(step(model, x), want)
            assert nothing_is_left(spilled)
        assert spilled.plan is not None
    assert spilled.stats().spilled and spilled.recompute_stats().tensors
    assert "given up" not in caplog.text


class Powers(nn.Module):
    """Autocast would compute these powers in single precision."""

    def __init__(self, width=1024):
        super().__init__()
        self.one, self.two = nn.Linear(width, width), nn.Linear(width, width)

    def forward(self, x):
        h = self.one(x)
        with torch.autocast("cuda", enabled=False):
            h = h.pow(3)
        return self.two(h)


@pytest.mark.parametrize("powers", [False, True])
def test_autocast_computes_the_same_again(powers):
    model, x = large()
    model = Powers().cuda() if powers else model

    def program(_):
        model.zero_grad(set_to_none=True)
        with torch.autocast("cuda", torch.bfloat16):
            loss = model(x).float().square().mean()
            loss.backward()
        return [loss.detach(), *(one.grad.clone() for one in model.parameters())]

    assert check("cuda:0", program, model, steps=3, recompute=True).recompute_stats().tensors


def test_a_planned_peak():
    model, x = large(24)
    step(model, x)
    want = step(model, x)

    def peak(scope):
        torch.cuda.reset_peak_memory_stats()
        torch.manual_seed(3)
        model.zero_grad(set_to_none=True)
        with scope:
            loss = model(x).square().mean()
        loss.backward()
        assert equal([loss.detach(), *(one.grad for one in model.parameters())], want)
        return torch.cuda.max_memory_allocated()

    plain = peak(torch.enable_grad())
    wanted = plain - (400 << 20)
    with_plan = spilling(model, "cuda:0", peak=wanted)
    peaks = [peak(with_plan) for _ in range(10)]
    assert with_plan.plan is not None and with_plan.plan.meets_target
    # The first steps are recorded, and compared with the peak.
    assert max(peaks[6:]) <= wanted, (peaks, wanted, with_plan.plan.peak_bytes)


@pytest.mark.parametrize("backwards", [1, 3])
def test_gradients_that_leave(backwards):
    model, x = large(8)

    def grads():
        torch.manual_seed(3)
        for _ in range(backwards):
            model(x).square().mean().backward()
        return {name: one.grad for name, one in model.named_parameters()}

    want = {name: one.clone() for name, one in grads().items()}
    model.zero_grad(set_to_none=True)
    with spilling(model, "cuda:0", offload_gradients=True) as spilled:
        for _ in range(20):
            assert all(one is None for one in grads().values())
            got = spilled.gradients()
            assert got.keys() == want.keys() and all(torch.equal(got[name].cuda(), want[name]) for name in want)
            assert all(one.is_pinned() for one in got.values())
            spilled.zero_gradients()
        grads()
        spilled.restore_gradients()
        assert all(torch.equal(one.grad, want[name]) for name, one in model.named_parameters())
