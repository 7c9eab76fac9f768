"""Memory that leaves the device and comes back. The device's memory is memory of the process here."""

import ctypes
import gc
import random

import pytest

import libstagehand as sh
from libstagehand import _native

MIB = 1 << 20


@pytest.fixture
def device():
    with sh.Device("host", budget_bytes=48 * MIB, backend_options="capacity=64MiB;poison=1") as device:
        yield device
    gc.collect()


def fill(memory, seed):
    data = random.Random(seed).randbytes(memory.bytes)
    ctypes.memmove(memory.address, data, memory.bytes)
    return data


def read(memory):
    return ctypes.string_at(memory.address, memory.bytes)


def test_memory_leaves_and_comes_back(device):
    weights = device.alloc(4 * MIB, tag="weights")
    cache = device.alloc(2 * MIB, tag="cache", contents=sh.Contents.ZERO)
    address, data = weights.address, fill(weights, 1)
    fill(cache, 2)
    used = device.memory().used_bytes
    gone = device.pause()
    assert (gone.tag_count, gone.device_bytes, gone.copied_bytes) == (2, 6 * MIB, 4 * MIB)
    assert device.memory().used_bytes == used - 6 * MIB
    info = device.occupancy()
    assert (info.state, info.tag, info.staged_bytes) == (sh.OccupancyState.RELEASED, "", 4 * MIB)
    assert device.occupancy("cache").staged_bytes == 0
    assert device.resume().device_bytes == 6 * MIB
    assert weights.address == address and read(weights) == data and not any(read(cache))
    assert device.trim_occupancy() == 4 * MIB and device.trim_occupancy() == 0


def test_tags_one_by_one(device):
    weights, cache = device.alloc(2 * MIB, tag="weights"), device.alloc(100, tag="cache")
    fill(weights, 1)
    assert device.pause("weights", contents=sh.Contents.ZERO).copied_bytes == 0
    assert device.occupancy().state is sh.OccupancyState.MIXED
    assert device.occupancy("cache").state is sh.OccupancyState.RUNNING
    assert device.pause(["weights", "cache"], repeat=True, wait=False).tag_count == 1
    assert device.resume(("weights",)).tag_count == 1 and not any(read(weights))
    assert device.resume(repeat=True, wait=False).tag_count == 1
    assert device.pause([]).tag_count == device.resume([]).tag_count == 0
    assert [info.tag for info in device.occupancies()] == ["cache", "weights"]
    assert {info.state for info in device.occupancies()} == {sh.OccupancyState.RUNNING}
    assert [info.cycles for info in device.occupancies()] == [1, 1]
    assert (cache.tag, len(cache)) == ("cache", 100)


def cycle(device, **options):
    gone = device.pause(**options)
    device.resume()
    return gone.copied_bytes // MIB, gone.unchanged_bytes // MIB


def test_what_has_not_changed_is_not_copied_again(device):
    weights, fixed = device.alloc(6 * MIB, tag="weights"), device.alloc(2 * MIB, constant=True)
    data = fill(weights, 1)
    assert cycle(device) == (8, 0)
    assert cycle(device) == (0, 8)
    ctypes.memset(weights.address + 3 * MIB, data[3 * MIB] ^ 1, 1)
    ctypes.memset(fixed.address, 1, 2 * MIB)  # against the promise: nobody looks
    assert cycle(device) == (2, 6)
    assert read(weights)[: 3 * MIB] == data[: 3 * MIB] and read(weights)[3 * MIB] == data[3 * MIB] ^ 1
    assert cycle(device, copy_all=True) == (8, 0)
    assert cycle(device, unused=iter([(weights.address + 2 * MIB, 4 * MIB)])) == (2, 2)
    assert read(weights)[: 2 * MIB] == data[: 2 * MIB]


def test_contents_of_a_format_cross_the_link_packed(device):
    weights = device.alloc(4 * MIB, tag="weights", format=sh.WeightFormat.BF16)
    rest = device.alloc(2 * MIB)
    data, other = fill(weights, 1), fill(rest, 2)
    assert device.pause().packed_bytes == 4 * MIB
    assert device.resume().packed_bytes == 4 * MIB
    device.pause(format=sh.WeightFormat.F32, prepare=True)
    gone = device.pause(format=sh.WeightFormat.F32)
    assert (gone.copied_bytes, gone.packed_bytes) == (6 * MIB, 6 * MIB)
    assert device.read_released(weights.address, 100) == data[:100]
    device.resume()
    assert (read(weights), read(rest)) == (data, other)


def test_contents_go_to_files_and_to_memory_that_is_not_pinned(device, tmp_path):
    weights = device.alloc(4 * MIB, tag="weights", contents=sh.Contents.FILE)
    rest = device.alloc(2 * MIB)
    data, other = fill(weights, 1), fill(rest, 2)
    device.pause(folder=tmp_path, pinned=False)
    info = device.occupancy()
    assert (info.file_bytes, info.host_bytes, info.pinned_bytes) == (4 * MIB, 2 * MIB, 0)
    device.resume()
    device.pause(folder=tmp_path, host_bytes=1, contents=sh.Contents.STAGE)
    assert device.occupancy().file_bytes == 6 * MIB
    device.resume()
    assert (read(weights), read(rest)) == (data, other)
    device.trim_occupancy()


def test_contents_can_be_read_while_they_are_away(device):
    weights = device.alloc(4 * MIB, tag="weights")
    data = fill(weights, 1)
    device.pause()
    got = device.read_released(weights.address + MIB - 5, 2 * MIB)
    assert got == data[MIB - 5 : 3 * MIB - 5]
    device.resume()
    assert read(weights) == data


def test_functions_are_called_before_a_pause_and_after_a_resume(device):
    device.alloc(2 * MIB, tag="weights")
    calls = []
    first = device.on_pause(lambda tags: calls.append(("-1", tags)), lambda tags: calls.append(("+1", tags)))
    with device.on_pause(before=lambda tags: calls.append(("-2", tags))):
        device.pause()
    device.resume()
    assert calls == [("-1", ["weights"]), ("-2", ["weights"]), ("+1", ["weights"])]

    def refuse(tags):
        raise RuntimeError("a transfer is under way")

    del calls[:]
    with device.on_pause(before=refuse), pytest.raises(sh.OperationError, match="a transfer is under way") as raised:
        device.pause()
    assert raised.value.status is sh.Status.ERROR_CALLBACK
    assert calls == [("-1", ["weights"]), ("+1", ["weights"])]
    assert device.occupancy().state is sh.OccupancyState.RUNNING
    first.close()
    first.close()
    device.pause()
    assert len(calls) == 2
    device.resume()


def test_a_function_after_a_resume_that_raises_is_told(device, monkeypatch):
    device.alloc(2 * MIB)
    told = []
    monkeypatch.setattr("sys.excepthook", lambda kind, exception, trace: told.append(kind))

    def fail(tags):
        # The library refuses what would wait for its own call.
        with pytest.raises(sh.UsageError):
            device.pause()
        raise KeyError

    with device.on_pause(after=fail):
        device.pause()
        device.resume()
    assert told == [KeyError]
    assert device.occupancy().state is sh.OccupancyState.RUNNING


def test_allocations_end(device):
    with device.alloc(100) as memory:
        assert device.occupancy("default").bytes == 100 and "100 bytes" in repr(memory)
    assert device.occupancy().allocations == 0 and repr(memory).endswith("(closed)>")
    memory.close()
    memory = device.alloc(100)
    del memory
    gc.collect()
    assert device.occupancy().allocations == 0
    away = device.alloc(2 * MIB, tag="away")
    device.pause("away")
    away.close()
    assert device.occupancy("away").staged_bytes == device.occupancy("away").allocations == 0


def test_an_allocation_keeps_the_device():
    device = sh.Device("host", budget_bytes=48 * MIB)
    memory = device.alloc(2 * MIB)
    data = fill(memory, 1)
    device.close()
    assert read(memory) == data
    with pytest.raises(sh.UsageError, match="an Allocation of 2097152 bytes that is not closed"):
        sh.Device("host", budget_bytes=40 * MIB)
    memory.close()
    sh.Device("host", budget_bytes=40 * MIB).close()


def test_a_free_that_fails_says_so(device):
    memory = device.alloc(100)
    assert _native.lib.sh_free(device._handle, memory.address) == sh.Status.OK
    with pytest.raises(sh.UsageError, match="begins at address"):
        memory.close()
    memory.close()


def test_arguments_are_checked(device):
    with pytest.raises(sh.BudgetError, match="1.00 TiB"):
        device.alloc(1 << 40)
    with pytest.raises(ValueError, match="null character"):
        device.alloc(1, tag="a\0b")
    assert device.occupancies() == []


def test_exit_with_memory_that_is_away(program):
    program("""
import libstagehand as sh
device = sh.Device("host", backend_options="capacity=64MiB")
memory = [device.alloc(2 << 20, tag="weights") for _ in range(4)]
device.pause()
""")
