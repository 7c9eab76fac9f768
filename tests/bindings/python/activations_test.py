"""Plans for saved storages: the arguments reach the planner, and its answer comes back."""

from dataclasses import replace

import pytest

import libstagehand as sh
from libstagehand import Activation, Fate

SECOND = 1_000_000_000
MEGABYTE = 1_000_000


def storages(layers=4):
    """Each layer takes a second, forward and then backward. It saves 100 MB and, from it, 50 MB that are cheap."""
    for layer in range(layers):
        use = (2 * layers - 1 - layer) * SECOND
        yield Activation(100 * MEGABYTE, layer * SECOND, use, use + SECOND)
        yield Activation(
            50 * MEGABYTE, layer * SECOND, use, use + SECOND, recompute_ns=SECOND // 100, inputs=[2 * layer]
        )


def plan(saved=None, **options):
    wanted = dict(forward_end_ns=4 * SECOND, end_ns=8 * SECOND)
    wanted |= dict(to_host_bytes_per_second=100 * MEGABYTE, to_device_bytes_per_second=100 * MEGABYTE)
    return sh.plan_activations(storages() if saved is None else saved, **(wanted | options))


def test_everything_stays_without_pressure():
    result = plan(target_peak_bytes=1 << 40)
    assert result.fates == (Fate.KEEP,) * 8 and result.meets_target is True
    assert result.peak_bytes == result.plain_peak_bytes == result.kept_bytes == 600 * MEGABYTE
    assert result.step_ns == result.least_step_ns == 8 * SECOND


def test_a_target_for_the_peak():
    result = plan(target_peak_bytes=350 * MEGABYTE)
    assert result.meets_target and result.peak_bytes <= 350 * MEGABYTE
    bytes_of = {fate: 0 for fate in Fate}
    for storage, fate in zip(storages(), result.fates, strict=True):
        bytes_of[fate] += storage.bytes
        assert fate is not Fate.RECOMPUTE or storage.recompute_ns
    assert bytes_of == {
        Fate.KEEP: result.kept_bytes,
        Fate.SPILL: result.spilled_bytes,
        Fate.RECOMPUTE: result.recomputed_bytes,
    }
    assert result.spilled_bytes and 8 * SECOND <= result.least_step_ns <= result.step_ns


def test_a_target_for_the_time():
    result = plan(target_step_ns=9 * SECOND)
    assert result.meets_target and result.step_ns <= 9 * SECOND
    assert 0 < result.least_peak_bytes <= result.peak_bytes < result.plain_peak_bytes


def test_a_target_that_cannot_be_met():
    result = plan(target_peak_bytes=MEGABYTE)
    assert result.meets_target is False and result.peak_bytes > MEGABYTE
    assert result.least_step_ns == (1 << 64) - 1, "no choice has so low a peak"


def test_every_argument_reaches_the_planner():
    lean = dict(target_peak_bytes=350 * MEGABYTE)
    assert plan(**lean, to_host_bytes_per_second=0).spilled_bytes == 0
    assert plan(**lean, to_device_bytes_per_second=0).spilled_bytes == 0
    assert plan(**lean, other_to_host_bytes_per_second=100 * MEGABYTE).spilled_bytes == 0
    assert plan(**lean, other_to_device_bytes_per_second=100 * MEGABYTE).spilled_bytes == 0
    assert plan(**lean, least_bytes=200 * MEGABYTE).spilled_bytes == 0
    plain = plan(**lean)
    assert plan(**lean, copy_latency_ns=SECOND).step_ns > plain.step_ns
    uses = [7 * SECOND - layer * SECOND // 10 for layer in range(4)]
    late = [Activation(100 * MEGABYTE, layer * SECOND, use, use) for layer, use in enumerate(uses)]
    full = dict(others=[(0, 300 * MEGABYTE), (4 * SECOND, 0)], target_peak_bytes=500 * MEGABYTE)
    freely = plan(late, **full, to_host_bytes=1 << 40, to_device_bytes=1 << 40).step_ns
    assert plan(late, **full, to_host_bytes=1 << 40, to_device_bytes=1).step_ns > freely
    slow = dict(target_peak_bytes=250 * MEGABYTE, to_host_bytes_per_second=60 * MEGABYTE)
    freely = plan(late, **slow, to_host_bytes=1 << 40).step_ns
    assert plan(late, **slow, to_host_bytes=1).step_ns > freely
    others = [(0, 300 * MEGABYTE), (4 * SECOND, 500 * MEGABYTE)]
    assert plan(target_peak_bytes=1 << 40, others=others).plain_peak_bytes >= 1000 * MEGABYTE
    used = [replace(storage, released_ns=4 * SECOND) for storage in storages()]
    assert plan(used, **lean).peak_bytes == 600 * MEGABYTE, "the forward uses everything until its end"


def test_impossible_steps_are_named():
    with pytest.raises(sh.UsageError, match="exactly one of them"):
        plan()
    with pytest.raises(sh.UsageError, match="forward_end_ns is after end_ns"):
        plan(target_peak_bytes=1, forward_end_ns=9 * SECOND)
    first, *rest = storages()
    with pytest.raises(sh.UsageError, match=r"activations\[0\]\.inputs names activation 99 of 8"):
        plan([replace(first, recompute_ns=1, inputs=[99]), *rest], target_peak_bytes=1)
    with pytest.raises(OverflowError):
        plan([replace(first, bytes=-1), *rest], target_peak_bytes=1)


def test_a_step_that_saves_nothing():
    result = plan([], target_peak_bytes=1)
    assert result.fates == () and result.peak_bytes == 0 and result.meets_target


def test_a_choice_is_simulated():
    step = dict(forward_end_ns=4 * SECOND, end_ns=8 * SECOND)
    kept = sh.simulate_activations(storages(), **step)
    assert kept.memory == tuple(
        (at * SECOND, 150 * MEGABYTE * left) for at, left in zip(range(4), range(1, 5))
    ) + tuple((at * SECOND, 150 * MEGABYTE * left) for at, left in zip(range(5, 9), (3, 2, 1, 0)))
    assert kept.meets_target and kept.peak_bytes == kept.plain_peak_bytes == 600 * MEGABYTE
    planned = plan(target_peak_bytes=350 * MEGABYTE)
    link = dict(to_host_bytes_per_second=100 * MEGABYTE, to_device_bytes_per_second=100 * MEGABYTE)
    simulated = sh.simulate_activations(storages(), planned.fates, **step, **link, target_peak_bytes=350 * MEGABYTE)
    assert (simulated.step_ns, simulated.peak_bytes) == (planned.step_ns, planned.peak_bytes)
    assert max(size for _, size in simulated.memory) == planned.peak_bytes
    others = [(0, 7), (SECOND, 9)]
    assert sh.simulate_activations([], [], **step, others=others).memory == ((0, 7), (SECOND, 9))


def test_impossible_choices_are_named():
    step = dict(forward_end_ns=4 * SECOND, end_ns=8 * SECOND)
    with pytest.raises(ValueError, match="3 fates do not fit 8 storages"):
        sh.simulate_activations(storages(), [Fate.KEEP] * 3, **step)
    with pytest.raises(sh.UsageError, match=r"fates\[0\] is SH_FATE_RECOMPUTE, but"):
        sh.simulate_activations(storages(), [Fate.RECOMPUTE] * 8, **step)
    with pytest.raises(sh.UsageError, match=r"fates\[0\] is SH_FATE_SPILL, but"):
        sh.simulate_activations(storages(), [Fate.SPILL] * 8, **step)
