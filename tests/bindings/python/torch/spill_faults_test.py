"""A driver that fails at any call: a clean error, or a tensor that stays. No gradient is wrong, and nothing is left."""

import ctypes
import gc
import os

import pytest
import torch
from models import PAGE, equal
from spilling import Mlp, away, nothing_is_left, spilling, step

import libstagehand as sh

PLUGIN = os.environ.get("FAULT_BACKEND", "")
pytestmark = pytest.mark.skipif(not PLUGIN, reason="FAULT_BACKEND names no plugin")
CALLS = [
    "copy_to_host",
    "copy_to_device",
    "event_record",
    "event_create",
    "stream_wait_event",
    "event_query",
    "event_synchronize",
    "host_register",
    "stream_create",
    None,
]


class Plan(ctypes.Structure):
    _fields_ = [
        ("struct_size", ctypes.c_uint32),
        ("status", ctypes.c_int32),
        ("call", ctypes.c_char_p),
        ("at", ctypes.c_uint64),
        ("count", ctypes.c_uint64),
    ]


class Counters(ctypes.Structure):
    _fields_ = [
        ("struct_size", ctypes.c_uint32),
        ("open", ctypes.c_uint32),
        ("calls", ctypes.c_uint64),
        ("failures", ctypes.c_uint64),
    ]


@pytest.fixture
def faulty():
    with sh.Device("fault", page_bytes=PAGE, backend_path=PLUGIN, backend_options="wrap=host;poison=1") as device:
        yield device
    gc.collect()


def arm(call, at, count):
    plan = Plan(ctypes.sizeof(Plan), 0, call and call.encode(), at, count)
    return ctypes.CDLL(PLUGIN).sh_fault_arm(ctypes.byref(plan)) == 0


def failures():
    counters = Counters(ctypes.sizeof(Counters))
    assert ctypes.CDLL(PLUGIN).sh_fault_counters(ctypes.byref(counters)) == 0
    return counters.failures


def disarm():
    ctypes.CDLL(PLUGIN).sh_fault_disarm()


@pytest.mark.parametrize(
    ("count", "options"),
    [(1, {}), (0, {"keep": "10KB"}), (1, {"recompute": True}), (0, {"peak": "10KB"})],
)
@pytest.mark.parametrize("call", CALLS)
def test_every_call_fails_once_or_from_then_on(faulty, call, count, options):
    model, x = Mlp(), torch.randn(16, 64)
    want = step(model, x)
    at, failed, errors = 1, 0, 0
    while True:
        with spilling(model, faulty, **options) as spilled:
            assert arm(call, at, count), f"no call is named {call}"
            before = failures()
            try:
                got = step(model, x, between=lambda: away(spilled))
            except sh.Error:
                errors += 1
            else:
                assert equal(got, want)
            fired = failures() > before
            disarm()
            gc.collect()
            spilled._steps._forget()  # a backward that failed did not
            assert nothing_is_left(spilled), (call, at)
            assert equal(step(model, x), want)
            assert nothing_is_left(spilled)
        spilled.close()
        failed += fired
        if not fired:
            break
        at += 1 + at // 3
    # What cannot be saved stays, so that only what cannot come back is an error.
    assert not (call == "copy_to_host" and errors)
