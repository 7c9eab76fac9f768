"""peak=: a first step is recorded, the library plans, and the next steps carry the plan out."""

import logging

import pytest
import torch
from models import equal
from spilling import Gated, away, chain, made, nothing_is_left, spilling, step
from torch import nn

from libstagehand import Fate
from libstagehand._native import lib
from libstagehand.torch._spill_device import Others, SpilledDevice
from libstagehand.torch._spill_plan import foreseen


def peak_of(model, x, device, **options):
    """Returns the most saved bytes at the end of a forward, in the fourth step."""
    with spilling(model, device, **options) as spilled:
        for _ in range(3):
            step(model, x)
        seen = []
        step(model, x, between=lambda: (away(spilled), seen.append(spilled.stats().kept_bytes)))
        return seen[0], spilled


def test_a_plan_meets_a_peak(device):
    model, x = chain(Gated, 4), torch.randn(64, 64)
    whole, _ = peak_of(model, x, device, keep="1GiB")
    for part in (2, 3):
        kept, spilled = peak_of(model, x, device, peak=whole // part)
        plan = spilled.plan
        assert kept <= whole // part
        assert plan.kept_bytes + plan.spilled_bytes + plan.recomputed_bytes == pytest.approx(whole, rel=0.1)
        assert plan.recomputed_bytes + plan.spilled_bytes >= whole - whole // part


def test_the_library_hears_of_the_plan(device, monkeypatch):
    """It is told for each tensor whether it stays or leaves."""
    seen = []

    def save(self, tensor, flags=0, save=SpilledDevice.save):
        seen.append(flags)
        return save(self, tensor, flags)

    monkeypatch.setattr(SpilledDevice, "save", save)
    model, x = chain(Gated, 4), torch.randn(64, 64)
    with spilling(model, device, peak="200KB") as spilled:
        step(model, x)
        assert set(seen) == {0}
        seen.clear()
        step(model, x)
        fates = [fate for fate in spilled._pack.planner._fates.saved if fate != Fate.RECOMPUTE]
        assert seen == [lib.SH_SPILL_KEEP if fate == Fate.KEEP else lib.SH_SPILL_NOW for fate in fates]
        assert set(fates) == {Fate.KEEP, Fate.SPILL}


def test_a_plan_keeps_all_where_there_is_room(device):
    model, x = chain(Gated, 4), torch.randn(64, 64)
    want = step(model, x)
    with spilling(model, device, peak="1GiB") as spilled:
        assert equal(step(model, x), want)
        before = spilled.recompute_stats().tensors
        assert before  # the first step computes again what it can
        for _ in range(3):
            assert equal(step(model, x), want)
        assert spilled.recompute_stats().tensors == before and not spilled.stats().spilled
        assert spilled.plan.meets_target and spilled.plan.kept_bytes == spilled.plan.plain_peak_bytes


def test_without_recompute(device):
    model, x = chain(Gated, 4), torch.randn(64, 64)
    want = step(model, x)
    with spilling(model, device, peak="64KB", recompute=False) as spilled:
        for _ in range(3):
            assert equal(step(model, x), want)
        assert spilled.recompute_stats() is None
        assert spilled.plan.spilled_bytes and not spilled.plan.recomputed_bytes
        assert spilled.stats().spilled


def test_steps_that_differ(device, caplog):
    """A step of another length is recorded anew, and each of them has the right gradients."""
    model = chain(Gated, 4)
    inputs = [torch.randn(rows, 64) for rows in (64, 32, 32, 64, 48, 48, 48)]
    want = [step(model, x) for x in inputs]
    caplog.set_level(logging.INFO, "libstagehand.torch")
    with spilling(model, device, peak="100KB") as spilled:
        planner = spilled._pack.planner
        for x, one in zip(inputs, want):
            assert equal(step(model, x), one)
            assert nothing_is_left(spilled)
        assert planner.plans >= 2
    told = [one.message for one in caplog.records if "given up" in one.message]
    assert told and all("is another one: (torch.Size(" in one for one in told)


def test_a_step_that_is_shorter(device):
    model, x = nn.ModuleList(Gated() for _ in range(4)), torch.randn(64, 64)

    def grads(layers):
        model.zero_grad(set_to_none=True)
        y = x
        for layer in model[:layers]:
            y = layer(y)
        y.square().mean().backward()
        return [one.grad for one in model[:layers].parameters()]

    lengths = (4, 4, 2, 2, 2, 4)
    want = [grads(layers) for layers in lengths]
    with spilling(model, device, peak="100KB") as spilled:
        for layers, one in zip(lengths, want):
            assert equal(grads(layers), one)
        assert spilled._pack.planner.plans >= 2


def test_a_result_that_is_not_cheap_any_more(device):
    """In the third step the program changes in place what the plan computes again."""
    first, last, x = nn.Linear(64, 64), nn.Linear(64, 64), torch.randn(64, 64)

    def grads(changes):
        for one in (first, last):
            one.zero_grad(set_to_none=True)
        y = torch.sin(first(x))
        if changes:
            y.detach().mul_(2)
        last(y).square().mean().backward()
        return [first.weight.grad, last.weight.grad]

    changes = (False, False, True, False, False)
    want = [grads(one) for one in changes]
    with spilling(None, device, peak="1KB") as spilled:
        for change, one in zip(changes, want):
            assert equal(grads(change), one)
        assert spilled._pack.planner.plans >= 1


def test_the_use_until_the_next_place_is_foreseen():
    keep, recompute = Fate.KEEP, Fate.RECOMPUTE
    in_use, most = [10, 20, 30, 35, 30], [25, 22, 50, 40, 31]
    assert foreseen(in_use, most, [keep, keep, keep]) == ([15, 2, 20], 5)
    assert foreseen(in_use, most, [keep, recompute, keep]) == ([15, 2, 20], 5)
    assert foreseen(in_use, most, [recompute, keep, recompute]) == ([15, 30, 20], 5), "until the library hears again"
    assert foreseen([], [], [keep, keep]) == ([0, 0], 0)


def test_the_library_hears_of_the_use_that_is_foreseen(device, monkeypatch):
    """An allocator that counts is not there, so this one says what it would say."""
    model, x = made("mlp")
    told = []
    used = SpilledDevice._used

    def note(on, *arguments, **named):
        told.append((on.coming, on.coming_back))
        return used(on, *arguments, **named)

    monkeypatch.setattr(SpilledDevice, "_used", note)
    monkeypatch.setattr(SpilledDevice, "others", lambda _: Others(0, 1000, 100))
    want = step(model, x)
    with spilling(model, device, peak="1KB") as spilled:
        assert equal(step(model, x), want) and set(told) == {(0, 0)}
        told.clear()
        assert equal(step(model, x), want)
        assert spilled._pack.planner.plans == 1 and (900, 900) in told
