"""Gradients with spilled activations are those without, bit for bit."""

import json
import time

import pytest
import torch
from models import equal
from spilling import MODELS, away, made, nothing_is_left, spilling, step
from torch import nn

import libstagehand as sh
import libstagehand.torch as st

WAYS = {
    "everything": {},
    "keep nothing": {"keep": 0},
    "peak of nothing": {"peak": 0},
    "some bytes": {"keep": "20KB"},
    "all bytes": {"keep": "8GiB"},
    "watermarks": {"watermarks": (30 << 10, 10 << 10)},
    "peak": {"peak": 40 << 10},
    "checksums": {"keep": 0, "checksums": True},
}


@pytest.mark.parametrize("way", WAYS)
@pytest.mark.parametrize("name", MODELS)
def test_gradients(device, name, way):
    model, x = made(name)
    want = [step(model, x, seed) for seed in range(3)]
    with spilling(model, device, **WAYS[way]) as spilled:
        for seed in range(3):
            assert equal(step(model, x, seed, lambda: away(spilled)), want[seed])
            assert nothing_is_left(spilled)
            assert equal(step(model, x, seed), want[seed])
            assert nothing_is_left(spilled)
    stats = spilled.stats()
    assert stats.steps == 6 and stats.saved
    assert bool(stats.spilled) == (way != "all bytes") and bool(stats.restored) == (way != "all bytes")
    if way == "everything":
        assert stats.spilled == stats.saved


def test_packed_tensors(device):
    torch.manual_seed(1)
    model = nn.Sequential(*(nn.Sequential(nn.Linear(256, 256), nn.Tanh()) for _ in range(4)))
    x = torch.randn(512, 256)
    want = [step(model, x, seed) for seed in range(4)]
    with spilling(model, device, keep=0, pack=True) as spilled:
        for seed in range(4):
            assert equal(step(model, x, seed), want[seed])
            time.sleep(0.05)  # a thread of the library pins what was missing
    assert nothing_is_left(spilled)
    assert spilled.stats().packed_bytes > 0


def test_a_model_of_transformers(device):
    transformers = pytest.importorskip("transformers")
    config = transformers.LlamaConfig(
        vocab_size=64, hidden_size=64, intermediate_size=128, num_hidden_layers=2, num_attention_heads=4
    )
    model = transformers.LlamaForCausalLM(config).train()
    tokens = torch.randint(0, 64, (2, 12))

    def grads():
        model.zero_grad(set_to_none=True)
        loss = model(tokens, labels=tokens).loss
        if spilled is not None:
            away(spilled)
        loss.backward()
        return [one.grad.clone() for one in model.parameters()]

    spilled = None
    want = grads()
    with spilling(model, device) as spilled:
        for _ in range(3):
            assert equal(grads(), want)
            assert nothing_is_left(spilled)
    assert spilled.stats().restored > 40 and spilled.stats().prefetched


@pytest.mark.parametrize("dtype", [torch.bfloat16, torch.float16, torch.float64])
def test_trap_17_types(device, dtype):
    model, x = made("mlp")
    model, x = model.to(dtype), x.to(dtype)
    want = step(model, x)
    with spilling(model, device) as spilled:
        assert equal(step(model, x, between=lambda: away(spilled)), want)
        assert spilled.stats().restored


@pytest.mark.parametrize("name", ["mlp", "blocks"])
def test_autocast(device, name):
    model, x = made(name)

    def grads():
        torch.manual_seed(1)
        model.zero_grad(set_to_none=True)
        with torch.autocast("cpu", torch.bfloat16):
            loss = model(x).float().square().mean()
        loss.backward()
        return [one.grad.clone() for one in model.parameters()]

    want = grads()
    with spilling(model, device) as spilled:
        assert equal(grads(), want)
        saved = spilled.stats().saved
    assert saved
    with torch.autocast("cpu", torch.bfloat16), spilling(None, device) as spilled:
        weight = nn.Linear(64, 64)
        out = weight(x.new_ones(3, 64))
        assert spilled.stats().saved == 1  # the cast of the input: autocast keeps the cast of the weight
        del out


def test_complex_tensors(device):
    def grads():
        x = torch.linspace(0, 1, 64, dtype=torch.complex64).requires_grad_()
        y = (x * x.conj()).exp() * x
        if spilled is not None:
            away(spilled)
        (torch.view_as_real(y.conj().resolve_conj()).square().sum() + (y * y.imag).abs().sum()).backward()
        return [x.grad]

    spilled = None
    want = grads()
    with spilling(None, device) as spilled:
        assert equal(grads(), want)
        assert nothing_is_left(spilled) and spilled.stats().restored


def test_accumulation_and_validation(device):
    model, x = made("blocks")
    others = [torch.randn_like(x) for _ in range(3)]

    def grads():
        torch.manual_seed(1)
        model.zero_grad(set_to_none=True)
        for other in others:
            model(other).square().mean().backward()
            with torch.no_grad():
                model(x)
        return [one.grad.clone() for one in model.parameters()]

    want = grads()
    with spilling(model, device) as spilled:
        for _ in range(2):
            assert equal(grads(), want)
            assert nothing_is_left(spilled)


def test_an_optimizer_in_between(device):
    results = []
    for way in (None, {"keep": "10KB"}):
        torch.manual_seed(5)
        model, x = made("mlp")
        optimizer = torch.optim.AdamW(model.parameters(), lr=0.01)
        with spilling(model, device, **way) if way else torch.enable_grad():
            for seed in range(10):
                step(model, x, seed)
                optimizer.step()
        results.append([one.detach().clone() for one in model.parameters()])
    assert equal(*results)


def test_backward_after_the_scope(device):
    model, x = made("blocks")
    want = step(model, x)
    torch.manual_seed(3)
    model.zero_grad()
    with spilling(model, device) as spilled:
        loss = model(x).square().mean()
    assert spilled.stats().spilled and spilled.stats().steps == 0
    loss.backward()
    assert equal([loss.detach(), *(one.grad for one in model.parameters())], want)
    assert nothing_is_left(spilled) and spilled.stats().steps == 1


def test_the_object_may_be_gone_before_the_backward(device):
    model, x = made("mlp")
    want = step(model, x)
    model.zero_grad()
    with spilling(model, device) as spilled:
        loss = model(x).square().mean()
    del spilled
    loss.backward()
    assert equal([loss.detach(), *(one.grad for one in model.parameters())], want)


def test_the_host_by_its_name_and_telemetry(tmp_path):
    model, x = made("mlp")
    want = step(model, x)
    path = tmp_path / "steps.jsonl"
    with st.spill_activations(model, device="cpu", least=1, telemetry=path) as spilled:
        for number in (7, 8):
            spilled.begin_step(number)
            with spilled.managed_forward(), spilled.managed_backward():
                assert equal(step(model, x), want)
            spilled.end_step()
    spilled.close()
    lines = [json.loads(line) for line in path.read_text().splitlines()]
    assert [line["step"] for line in lines] == [7, 8]
    assert all(line["activations_spilled"] == line["activations_saved"] > 0 for line in lines)


def test_the_nesting_of_the_two_managers(device):
    model, x = made("mlp")
    want = step(model, x)
    spilled = spilling(model, device)
    for number in range(3):
        spilled.step_begin(number)
        with spilled.managed_forward(), spilled.managed_backward():
            assert equal(step(model, x), want)
        spilled.step_end()
    assert spilled.stats().steps == 3
    with pytest.raises(sh.UsageError, match="no step"):
        spilled.end_step()
    spilled.begin_step()
    with pytest.raises(sh.UsageError, match="under way"):
        spilled.begin_step()


def test_the_end(device):
    model, x = made("mlp")
    config = {"pinned_pool_classes_mb": [1], "slabs_per_class": 3, "telemetry_enabled": False}
    with spilling(model, device, config=config) as spilled:
        with pytest.raises(sh.UsageError, match="with"):
            spilled.close()
        step(model, x)
        assert spilled.trim() >= 3 << 20
    spilled.close()
    spilled.close()
    with pytest.raises(sh.UsageError, match="close"):
        spilled.__enter__()
    with pytest.raises(sh.UsageError):
        spilled.stats()
