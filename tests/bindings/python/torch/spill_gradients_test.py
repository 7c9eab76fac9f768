"""Gradients with spilled activations are those without, bit for bit: of all ways, types, modes and threads."""

import json
import sys
import threading
import time

import pytest
import torch
from models import PAGE, equal
from spilling import MODELS, Gated, away, chain, check, check_model, made, nothing, nothing_is_left, spilling, step
from torch import nn

import libstagehand as sh
import libstagehand.torch as st
from libstagehand.torch import _spill_device
from libstagehand.torch._spill_device import SpilledDevice

WAYS = {
    "everything": {},
    "peak of nothing": {"peak": 0},
    "some bytes": {"keep": "20KB"},
    "all bytes": {"keep": "8GiB"},
    "watermarks": {"watermarks": (30 << 10, 10 << 10)},
    "checksums": {"keep": 0, "checksums": True},
    "computed again": {"recompute": True},
    "some computed again": {"recompute": True, "keep": "20KB"},
    "computed again, all bytes": {"recompute": True, "keep": "1GiB"},
    "planned for nothing": {"peak": "1KB"},
    "planned": {"peak": 40 << 10},
    "planned with room": {"peak": "100KB"},
    "planned, all bytes": {"peak": "1GiB"},
}


@pytest.mark.parametrize("way", WAYS)
@pytest.mark.parametrize("name", MODELS)
def test_models(there, place, deterministic, name, way):
    (model, x), planned = made(name, place), "planned" in way
    want = [step(model, x, seed) for seed in range(4)]
    with spilling(model, there, **WAYS[way]) as spilled:
        for seed in range(4):
            between = nothing if seed % 2 or planned else lambda: away(spilled)
            assert equal(step(model, x, seed, between), want[seed]) and nothing_is_left(spilled)
    stats, again = spilled.stats(), spilled.recompute_stats()
    assert stats.steps == 4 and stats.saved
    assert not planned or spilled.plan.plain_peak_bytes and (place == "cuda" or spilled._pack.planner.plans == 1)
    if place == "cpu" and not planned:
        assert bool(stats.spilled) == bool(stats.restored) == ("all bytes" not in way)
    assert way != "everything" or stats.spilled == stats.saved
    assert way != "computed again" or place == "cpu" or name == "recurrent" or again.tensors


def test_packed_tensors(device):
    torch.manual_seed(1)
    model = nn.Sequential(*(nn.Sequential(nn.Linear(256, 256), nn.Tanh()) for _ in range(4)))
    x = torch.randn(512, 256)
    want = step(model, x)
    with spilling(model, device, keep=0, pack=True) as spilled:
        for _ in range(4):
            assert equal(step(model, x), want)
            time.sleep(0.05)  # a thread of the library pins what was missing
    assert nothing_is_left(spilled) and spilled.stats().packed_bytes > 0


@pytest.mark.parametrize("dtype", [torch.bfloat16, torch.float16, torch.float64])
def test_trap_17_types(device, dtype):
    model, x = made("mlp")
    assert check_model(device, model.to(dtype), x.to(dtype)).stats().restored


# oneDNN's LSTM has no bfloat16 on processors without AVX-512.
@pytest.mark.parametrize("options", [{}, {"recompute": True}], ids=str)
@pytest.mark.parametrize("name", sorted({*MODELS} - {"recurrent"}))
def test_autocast(device, name, options):
    """Operations that run again have the types of the forward, also in a backward within autocast."""
    model, x = made(name)

    def program(between):
        model.zero_grad(set_to_none=True)
        with torch.autocast("cpu", torch.bfloat16):
            loss = model(x).float().square().mean()
            between()
            loss.backward()
        return [loss.detach(), *(one.grad.clone() for one in model.parameters())]

    spilled = check(device, program, model, **options)
    assert spilled.stats().saved and (not options or spilled.recompute_stats().tensors)


def test_autocast_keeps_the_casts_of_weights(device):
    with torch.autocast("cpu", torch.bfloat16), spilling(None, device) as spilled:
        weight = nn.Linear(64, 64)
        out = weight(torch.ones(3, 64))
        assert spilled.stats().saved == 1  # the cast of the input
        del out


@pytest.mark.parametrize("peak", [None, "50KB"])
def test_accumulation_and_validation(device, peak):
    model, x = (nn.Sequential(Gated(), Gated()), torch.randn(64, 64)) if peak else made("blocks")

    def program(_):
        model.zero_grad(set_to_none=True)
        for part in x.chunk(2):
            model(part).square().mean().backward()
            with torch.no_grad():
                model(x)
        return [one.grad.clone() for one in model.parameters()]

    spilled = check(device, program, model, steps=3, peak=peak)
    want = program(nothing)
    with spilled:
        for number in range(3):  # two forwards in a step have no plan
            spilled.begin_step(number)
            assert equal(program(nothing), want) or not peak  # with dropout
            spilled.end_step()
        assert nothing_is_left(spilled) and spilled.plan is None


def test_backward_after_the_scope(device):
    """The object may be gone by then."""
    model, x = made("blocks")
    want = step(model, x)
    for gone in (False, True):
        torch.manual_seed(3)
        model.zero_grad()
        with spilling(model, device) as spilled:
            loss = model(x).square().mean()
        assert spilled.stats().spilled and spilled.stats().steps == 0
        if gone:
            del spilled
        loss.backward()
        assert equal([loss.detach(), *(one.grad for one in model.parameters())], want)
        assert gone or nothing_is_left(spilled) and spilled.stats().steps == 1


def test_steps_of_the_program_and_telemetry(tmp_path):
    model, x = made("mlp")
    want, path = step(model, x), tmp_path / "steps.jsonl"
    with st.spill_activations(model, device="cpu", least=1, telemetry=path) as spilled:
        for number in (7, 8):
            spilled.begin_step(number)
            with spilled.managed_forward(), spilled.managed_backward():
                assert equal(step(model, x), want)
            spilled.end_step()
    spilled.step_begin(9)
    with spilled.managed_forward(), spilled.managed_backward():
        assert equal(step(model, x), want)
    spilled.step_end()
    with pytest.raises(sh.UsageError, match="no step"):
        spilled.end_step()
    spilled.begin_step()
    with pytest.raises(sh.UsageError, match="under way"):
        spilled.begin_step()
    spilled.close()
    lines = [json.loads(line) for line in path.read_text().splitlines()]
    assert [line["step"] for line in lines[:3]] == [7, 8, 9]
    assert all(line["activations_spilled"] == line["activations_saved"] > 0 for line in lines[:3])


class Tiny(nn.Module):
    def __init__(self):
        super().__init__()
        self.layers = nn.ModuleList(nn.Linear(32, 32) for _ in range(4))

    def forward(self, x):
        for layer in self.layers:
            x = x + nn.functional.dropout(torch.tanh(layer(x)), 0.1)
        return x


@pytest.mark.parametrize(
    ("steps", "options"),
    [
        (300, {}),
        pytest.param(3000, {}, marks=pytest.mark.long),
        (300, {"keep": 900}),
        (300, {"watermarks": (3000, 1000)}),
        (300, {"recompute": True}),
        (300, {"peak": 3000}),
    ],
    ids=str,
)
def test_trap_26_random_delays_never_change_what_is_trained(steps, options):
    def train(scope, wait=nothing):
        torch.manual_seed(11)
        model = Tiny()
        optimizer = torch.optim.SGD(model.parameters(), lr=0.05)
        with scope(model):
            for number in range(steps):
                torch.manual_seed(number)
                optimizer.zero_grad(set_to_none=True)
                loss = model(torch.randn(1 + number % 7, 32)).square().mean()
                if number % 3:
                    wait()
                loss.backward()
                optimizer.step()
        return torch.cat([one.detach().flatten() for one in model.parameters()])

    want, kept = train(lambda model: torch.enable_grad()), []
    with sh.Device("host", page_bytes=PAGE, backend_options="poison=1;jitter_us=60;jitter_seed=5") as device:
        got = train(lambda model: kept.append(spilling(model, device, **options)) or kept[0], lambda: away(kept[0]))
        assert torch.equal(got, want) and nothing_is_left(kept[0]) and kept[0].stats().restored
        kept.clear()


# Threads.


@pytest.fixture
def short_turns():
    """Threads take turns so often that they meet between any two steps of a call."""
    before = sys.getswitchinterval()
    sys.setswitchinterval(1e-5)
    yield
    sys.setswitchinterval(before)


@pytest.mark.parametrize("options", [{"keep": "5KB"}, {"recompute": True}, {"peak": "50KB"}], ids=str)
def test_one_object_serves_several_threads(device, short_turns, options):
    """Each thread has hooks of its own."""
    model, x = chain(Gated, 2), torch.randn(64, 64)
    parameters = list(model.parameters())
    want, results = torch.autograd.grad(model(x).square().mean(), parameters), []

    def work():
        with spilled:
            for _ in range(20):
                results.append(torch.autograd.grad(model(x).square().mean(), parameters))

    spilled = spilling(model, device, **options)
    threads = [threading.Thread(target=work) for _ in range(4)]
    [thread.start() for thread in threads]
    [thread.join() for thread in threads]
    assert len(results) == 80 and all(equal(one, want) for one in results)
    assert "peak" in options or nothing_is_left(spilled)
    assert spilled.plan is None or not spilled._pack.planner._several
    assert "recompute" not in options or spilled.recompute_stats().tensors


def test_a_backward_on_another_thread(device):
    model, x = chain(Gated, 2), torch.randn(8, 64)

    def program(between):
        model.zero_grad(set_to_none=True)
        loss = model(x).square().mean()
        between()
        thread = threading.Thread(target=loss.backward)
        thread.start()
        thread.join()
        return [loss.detach(), *(one.grad.clone() for one in model.parameters())]

    check(device, program, model, recompute=True)


def test_no_restore_takes_memory_of_a_prefetch_that_has_not_begun(device, monkeypatch):
    """A thread names tensors of other threads for its prefetch, and these threads may restore the tensors first. The
    copy of the prefetch writes to its memory even then.
    """
    model, x = made("mlp")
    want = step(model, x)
    devices, restored, taken = set(), [], []

    class Library:
        def __getattr__(self, name):
            return getattr(library, name)

        def sh_prefetch_spilled(self, handle, tickets, addresses, count, stream):
            (on,) = devices
            for ticket in tickets:
                restored.append(on._returned(on.saved[ticket](), stream))
                taken.append(restored[-1].untyped_storage().data_ptr() in addresses)
            return library.sh_prefetch_spilled(handle, tickets, addresses, count, stream)

    library, prefetch = _spill_device.lib, SpilledDevice._prefetch
    monkeypatch.setattr(_spill_device, "lib", Library())
    monkeypatch.setattr(SpilledDevice, "_prefetch", lambda on, stream: devices.add(on) or prefetch(on, stream))
    with spilling(model, device) as spilled:
        for _ in range(2):
            assert equal(step(model, x, between=lambda: away(spilled)), want)
        assert taken and not any(taken)
        restored.clear()
        assert nothing_is_left(spilled)


def test_traps_6_and_7_the_stream_is_asked_for_at_each_call(device, monkeypatch):
    model, x = made("mlp")
    asked, stream = [], SpilledDevice.stream
    monkeypatch.setattr(SpilledDevice, "stream", lambda self: asked.append(1) or stream(self))
    with spilling(model, device) as spilled:
        for _ in range(2):
            before = spilled.stats().saved
            asked.clear()
            step(model, x)
            assert len(asked) == 2 * (spilled.stats().saved - before)
        assert nothing_is_left(spilled)
