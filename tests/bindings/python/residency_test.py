"""Several models on a device, by the names that the interface has for it."""

import time

import pytest
from conftest import PAGE, Model

import libstagehand as sh


@pytest.fixture
def other(device):
    other = Model(device, count=2, size=2 * PAGE)
    yield other
    other.runtime.close()


def test_blocks_are_protected_as_long_as_it_says(model):
    model.step()
    block = model.blocks[0]
    with model.runtime.protect([block]), model.runtime.protect([block, model.blocks[1]]):
        assert block.info().protections == 2 and model.blocks[1].info().protections == 1
    assert block.info().protections == 0
    with pytest.raises(ZeroDivisionError), model.runtime.protect([block]):
        1 / 0
    assert block.info().protections == 0


def test_keep_resident(device, model, other):
    for _ in range(2):
        other.step()
        model.step()
    with model.runtime.keep_resident():
        assert device.memory().protected_bytes == model.runtime.stats().protected_bytes > 0
        with model.runtime.keep_resident(other.runtime):
            other.step()
        model.step()
    assert device.memory().protected_bytes == 0


def test_reservations(device, model, other):
    with model.runtime.reserve(other.runtime, bytes=4 * PAGE, priority=sh.ResidentPriority.SECONDARY):
        assert device.memory().reserved_bytes == other.runtime.stats().reserved_bytes == 4 * PAGE
        with other.runtime.reserve(bytes=6 * PAGE):  # in the place of the first
            assert device.memory().reserved_bytes == 6 * PAGE
        assert device.memory().reserved_bytes == 0
    assert device.memory().reserved_bytes == 0
    model.step()
    with model.runtime.reserve(bytes=20 * PAGE), pytest.raises(sh.BudgetError) as caught:
        other.runtime.reserve(bytes=20 * PAGE).__enter__()
    assert caught.value.status is sh.Status.ERROR_BUDGET and "model" in str(caught.value)


def test_a_step_waits_for_its_share_as_long_as_it_says(device, model):
    model.step()
    with sh.Runtime(device, share_wait=0.05) as impatient:
        block = impatient.register_block(bytes(3 * PAGE))
        with model.runtime.step(), model.runtime.acquire(model.blocks[0]):
            began = time.monotonic()
            with pytest.raises(sh.BudgetError) as caught, impatient.step(), impatient.acquire(block):
                pass
            assert caught.value.status is sh.Status.ERROR_BUSY and time.monotonic() - began >= 0.05


def test_guests(device, model, other):
    model.step()
    reservation = model.runtime.reserve(bytes=16 * PAGE, priority=sh.ResidentPriority.PRIMARY)
    reservation.__enter__()
    with model.runtime.as_guest(other.runtime, workspace_bytes=PAGE):
        assert other.runtime.stats().guest_bytes > 0
        other.step()
    assert other.runtime.stats().guest_bytes == other.runtime.stats().held_bytes == 0
    with pytest.raises(sh.BudgetError):
        with model.runtime.as_guest(other.runtime, bytes=30 * PAGE):
            raise AssertionError("it was let in")
    with model.runtime.as_guest(other.runtime, bytes=30 * PAGE, shrink=True):
        other.step()
    model.step()


def test_trim(device, model):
    model.step()
    assert model.runtime.trim() == device.memory().used_bytes == 0
    model.step()
