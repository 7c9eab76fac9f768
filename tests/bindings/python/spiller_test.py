"""Spillers: tensors leave device memory, which is host memory here, and come back."""

import ctypes
import gc
import json
import random
import threading

import numpy as np
import pytest

import libstagehand as sh

SIZE = 64 << 10


@pytest.fixture
def spiller(device):
    with sh.Spiller(device, keep_bytes=0) as spiller:
        yield spiller


def array(seed=1, size=SIZE):
    return np.frombuffer(bytearray(random.Random(seed).randbytes(size)), dtype=np.uint8)


def save(spiller, data, **options):
    return spiller.spill(data.ctypes.data, [data.size], **options)


def test_a_tensor_leaves_and_comes_back(spiller):
    data = array()
    want = data.copy()
    with spiller.step(), save(spiller, data) as ticket:
        assert ticket.left and int(ticket) in spiller.collect(all=True)
        assert ticket.state is sh.TicketState.AWAY
        info = ticket.info()
        assert (info.bytes, info.offset) == (SIZE, 0)
        data[:] = 0
        assert ticket.restore(data.ctypes.data)
        assert (data == want).all()
    stats = spiller.stats()
    assert (stats.steps, stats.saved, stats.spilled, stats.restored) == (1, 1, 1, 1)
    assert stats.spill_bytes == stats.restore_bytes == SIZE and stats.away_bytes == 0


def test_a_tensor_that_stays(device):
    with sh.Spiller(device, keep_bytes=1 << 30) as spiller:
        data = array()
        ticket = save(spiller, data)
        assert not ticket.left and spiller.collect(all=True) == []
        assert ticket.state is sh.TicketState.KEPT and not ticket.restore()
        now = save(spiller, array(2), now=True)
        assert now.left
    with sh.Spiller(device, keep_bytes=0) as spiller:
        assert not save(spiller, data, keep=True).left


def test_strides_and_shared_storage(spiller):
    base = np.arange(64 * 64, dtype=np.int32).reshape(64, 64)
    address, steps = base.ctypes.data, [1, 64]
    named = {"storage_address": address, "storage_bytes": base.nbytes, "storage_key": 7}
    first = spiller.spill(address, [64, 64], 4, **named)
    second = spiller.spill(address, [64, 64], 4, strides=steps, **named)
    spiller.collect(all=True)
    assert first.info().copy == second.info().copy and spiller.stats().shared == 1
    into = np.zeros_like(base)
    assert second.restore(into.ctypes.data) and (into == base).all()
    with pytest.raises(ValueError, match="1 strides"):
        spiller.spill(address, [64, 64], 4, strides=[1])


def test_a_prefetch(spiller):
    tensors = [array(seed) for seed in range(4)]
    tickets = [save(spiller, one) for one in tensors]
    spiller.collect(all=True)
    upcoming = spiller.upcoming()
    assert upcoming == [int(one) for one in reversed(tickets)]
    memory = {number: np.zeros(SIZE, dtype=np.uint8) for number in upcoming}
    spiller.prefetch(upcoming, [memory[number].ctypes.data for number in upcoming], None)
    assert all(one.state is sh.TicketState.PREFETCHED for one in tickets) and spiller.upcoming() == []
    for ticket, data in zip(tickets, tensors):
        into = memory[int(ticket)]
        assert ticket.info().prefetched_address == into.ctypes.data
        assert ticket.restore(into.ctypes.data) and (into == data).all()
    with pytest.raises(ValueError, match="addresses"):
        spiller.prefetch(tickets, [], None)


def test_tickets_end_with_their_objects(spiller):
    ticket = save(spiller, array())
    number = int(ticket)
    del ticket
    gc.collect()
    assert spiller.stats().away_bytes == 0 and spiller.stats().leaving_bytes == 0
    stale = sh.Ticket(spiller, ctypes.c_uint64)
    stale._held = [number]
    with pytest.raises(sh.UsageError):
        stale.release()


def test_garbage_on_another_thread(spiller):
    tickets = [save(spiller, array(seed)) for seed in range(20)]
    thread = threading.Thread(target=tickets.clear)
    thread.start()
    thread.join()
    gc.collect()
    assert spiller.stats().away_bytes == 0


def test_use_after_close(device):
    spiller = sh.Spiller(device, keep_bytes=0)
    data = array()
    ticket = save(spiller, data)
    spiller.close()
    spiller.close()
    ticket.release()
    other = sh.Spiller(device)
    left = save(other, data)
    other.close()
    for call in (
        left.info,
        left.restore,
        lambda: spiller.step().__enter__(),
        lambda: spiller.prefetch([], [], None),
    ):
        with pytest.raises(sh.UsageError):
            call()


def test_classes(device):
    with sh.Spiller(device, keep_bytes=0, classes=[(SIZE, 2)]) as spiller:
        assert spiller.stats().pool_bytes >= 2 * SIZE
        tickets = [save(spiller, array(seed)) for seed in range(2)]
        spiller.collect(all=True)
        assert spiller.stats().pool_hits == 2
        del tickets
        assert spiller.trim() >= 2 * SIZE and spiller.stats().pool_bytes == 0


def test_steps_and_telemetry(device, tmp_path):
    path = tmp_path / "steps.jsonl"
    with sh.Spiller(device, keep_bytes=0) as spiller:
        data = array()
        with spiller.telemetry(path):
            for number in (5, 6):
                with spiller.step(number), save(spiller, data) as ticket:
                    spiller.collect(all=True)
                    ticket.restore(data.ctypes.data)
    lines = [json.loads(line) for line in path.read_text().splitlines()]
    assert [line["step"] for line in lines] == [5, 6]
    assert all(line["activations_spilled"] == line["activations_restored"] == 1 for line in lines)


def test_a_checked_restore(device):
    with sh.Spiller(device, keep_bytes=0, checksums=True) as spiller:
        data = array()
        ticket = save(spiller, data)
        spiller.collect(all=True)
        assert ticket.restore(data.ctypes.data)


def test_packed_tensors(device):
    data = (np.random.default_rng(1).standard_normal(200_000, dtype=np.float32) * 0.02).view(np.uint8)
    want = data.copy()
    pinned = [(1 << 20, 1)]  # the first tensor finds a pinned buffer
    with sh.Spiller(device, keep_bytes=0, pack=True, classes=pinned) as spiller:
        for format in (sh.WeightFormat.F32, 0):
            ticket = spiller.spill(data.ctypes.data, [data.size // 4], 4, format=format)
            spiller.collect(all=True)
            data[:] = 0
            assert ticket.restore(data.ctypes.data)
            assert (data == want).all()
            ticket.release()
        assert spiller.stats().packed_bytes == data.size


def test_a_stream(device):
    with sh.Stream(device) as stream, sh.Spiller(device, keep_bytes=0) as spiller:
        data = array()
        want = data.copy()
        ticket = save(spiller, data, stream=stream)
        assert spiller.collect(stream, all=True) == [int(ticket)]
        stream.launch(lambda: data.fill(0))
        into = np.zeros(SIZE, dtype=np.uint8)
        assert ticket.restore(into.ctypes.data, stream)
        stream.synchronize()
        assert (into == want).all() and not data.any()
        ticket.release()


def test_exit_with_copies_in_flight(program):
    program("""
import numpy as np
import libstagehand as sh
device = sh.Device("host", backend_options="latency=2000000")
spiller = sh.Spiller(device, keep_bytes=0)
data = np.ones(1 << 20, dtype=np.uint8)
tickets = [spiller.spill(data.ctypes.data, [1 << 20], storage_key=n + 1) for n in range(20)]
""")
