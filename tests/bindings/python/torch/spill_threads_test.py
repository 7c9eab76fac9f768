"""Backwards of several threads on one object."""

import sys
import threading

import pytest
from models import equal
from spilling import Mlp, away, made, nothing_is_left, spilling, step

from libstagehand.torch import _spill_device
from libstagehand.torch._spill_device import SpilledDevice


@pytest.fixture
def short_turns():
    """Threads take turns so often that they meet between any two steps of a call."""
    before = sys.getswitchinterval()
    sys.setswitchinterval(1e-5)
    yield
    sys.setswitchinterval(before)


def test_threads(device, short_turns):
    """Each thread has hooks of its own. One object may serve several threads."""
    model, x = made("mlp")
    want = step(model, x)
    results = []

    def work(spilled):
        copy = Mlp()
        copy.load_state_dict(model.state_dict())
        with spilled:
            for _ in range(20):
                loss = copy(x).square().mean()
                copy.zero_grad()
                loss.backward()
                results.append([loss.detach(), *(one.grad.clone() for one in copy.parameters())])

    with spilling(model, device, keep="5KB") as spilled:
        threads = [threading.Thread(target=work, args=[spilled]) for _ in range(4)]
        for thread in threads:
            thread.start()
        for thread in threads:
            thread.join()
    assert len(results) == 80 and all(equal(one, want) for one in results)
    assert nothing_is_left(spilled)


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
