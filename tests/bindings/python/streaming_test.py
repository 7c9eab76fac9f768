"""Steps, sources, views and plans: what comes out is what went in."""

import ctypes
import gc
import mmap
import os
import pathlib
import threading
import weakref

import numpy as np
import pytest
from conftest import PAGE

import libstagehand as sh


def test_every_byte_through_a_small_budget(device, model):
    for _ in range(3):
        model.step()
    memory = device.memory()
    assert 0 < memory.peak_bytes <= memory.budget_bytes == 32 * PAGE < sum(map(len, model.contents))
    stats = model.runtime.stats()
    assert stats.steps == 3 and stats.acquires == 24 and stats.bytes_to_device > sum(map(len, model.contents))


def test_managed_forward_is_a_step(model):
    with model.runtime.managed_forward():
        model.runtime.acquire(model.blocks[0]).release()
    assert model.runtime.stats().steps == 1


def test_kinds_of_step_are_named_and_listed(model):
    for name in ("prefill", "decode", "prefill"):
        with model.runtime.step(name):
            model.runtime.acquire(model.blocks[0]).release()
    with model.runtime.managed_forward("decode"):
        model.runtime.acquire(model.blocks[0]).release()
    kinds = {kind.name: kind for kind in model.runtime.kinds()}
    assert set(kinds) == {"prefill", "decode"} and all(kind.steps == 2 for kind in kinds.values())


def test_host_memory_and_threads_can_be_placed():
    cpus = str(max(os.sched_getaffinity(0)))
    options = dict(budget_bytes=32 * PAGE, page_bytes=PAGE, staging_cpus=cpus, small_host_pages=True)
    for node in (-1, 0, None):
        with sh.Device("host", host_node=node, **options) as device, sh.Runtime(device) as runtime:
            block = runtime.register_block(bytes(1000))
            with runtime.acquire(block) as view:
                assert view.read() == bytes(1000)
    memory = np.zeros(1 << 20, np.uint8)
    address = (memory.ctypes.data + 255) // 256 * 256
    with sh.Device("host", page_bytes=PAGE, device_memory=(address, 1 << 19)) as device:
        assert device.memory().total_bytes == 1 << 19 and not device.flags & sh.DeviceFlag.FIXED_ADDRESSES


PACKED = pathlib.Path(__file__).resolve().parents[2] / "data/packed"


def test_packed_tensors_are_unpacked(device, tmp_path):
    contents, packed = (PACKED / "weights.bf16").read_bytes(), (PACKED / "weights.packed").read_bytes()
    path = tmp_path / "packed"
    path.write_bytes(b"before" + packed)
    with sh.Runtime(device) as runtime:
        block = runtime.register_block(
            [
                sh.Packed(packed, len(contents)),
                sh.Packed(sh.FileRange(path, 6, len(packed)), 100, offset=300),
                sh.Packed(sh.Mapped(packed), 7, offset=len(contents) - 7),
            ]
        )
        with runtime.acquire(block) as view:
            assert view.read() == contents + contents[300:400] + contents[-7:]
        with pytest.raises(sh.UsageError, match="packed_offset"):
            runtime.register_block(sh.Packed(packed, len(contents) + 1))
        with pytest.raises(sh.UsageError, match="not a packed tensor"):
            runtime.register_block(sh.Packed(contents, 10))
        with pytest.raises(sh.UsageError, match="mutable"):
            runtime.register_block(sh.Packed(bytearray(packed), 10), mutable=True)
        for empty in (b"", sh.FileRange(path, 6, 0)):
            with pytest.raises(ValueError, match="empty"):
                runtime.register_block(sh.Packed(empty, 10))
        with pytest.raises(TypeError, match="memory or a range"):
            runtime.register_block(sh.Packed(sh.Packed(packed, 10), 10))


def test_a_packed_tensor_is_unpacked_on_the_host():
    contents, packed = (PACKED / "weights.bf16").read_bytes(), (PACKED / "weights.packed").read_bytes()
    whole, some = bytearray(len(contents)), np.zeros(50, np.int16)
    sh.unpack(packed, whole)
    sh.unpack(sh.Mapped(packed), some, 300)
    assert whole == contents and some.tobytes() == contents[300:400]
    with pytest.raises(sh.UsageError, match="2 bytes from byte 17999 on end behind"):
        sh.unpack(packed, bytearray(2), 17_999)
    with pytest.raises(sh.OperationError, match="not a packed tensor"):
        sh.unpack(contents, whole)
    with pytest.raises(BufferError):
        sh.unpack(packed, bytes(2))


def test_weights_are_packed_when_they_are_registered(device):
    weights = bytearray(b"".join(bytes((i * 37 & 0xFF, 0x3C | i & 1)) for i in range(20_000)))
    contents = bytes(weights)
    with sh.Runtime(device) as runtime:
        block = runtime.register_block([sh.Weights(weights, sh.WeightFormat.BF16), contents])
        weights.clear()  # nothing holds the memory
        with runtime.acquire(block) as view:
            assert view.read() == contents + contents
            assert block.info().flags == sh.BlockFlag.PACK
            view.verify()
            ctypes.memset(view.address + 39_001, 0x77, 1)
            with pytest.raises(sh.OperationError, match="byte 39001 is 0x77 on the device and 0x3c in the source"):
                view.verify()
        odd = runtime.register_block(sh.Weights(b"odd", sh.WeightFormat.BF16))
        with runtime.acquire(odd) as view:
            assert view.read() == b"odd"
        with pytest.raises(TypeError, match="memory or a range"):
            runtime.register_block(sh.Packed(sh.Weights(contents, sh.WeightFormat.BF16), 10))
        with pytest.raises(BufferError):
            runtime.register_block(sh.Weights(contents, sh.WeightFormat.BF16), mutable=True)
        with pytest.raises(TypeError, match="is memory"):
            runtime.register_block(sh.Weights(sh.Mapped(contents), sh.WeightFormat.BF16))
        with pytest.raises(ValueError, match="WeightFormat"):
            runtime.register_block(sh.Weights(contents, 77))


def test_a_block_is_used_part_by_part(device):
    contents = os.urandom(10 * PAGE + 500)
    source = bytearray(contents)
    asked = []

    def fill(buffer, offset):
        asked.append(offset)
        buffer[:] = contents[offset : offset + len(buffer)]

    with sh.Runtime(device) as runtime:
        memory = runtime.register_parts(sh.BlockDesc(source, "head"), 1000, largest_bytes=3 * PAGE)
        callback = sh.BlockDesc(sh.Fill(fill, len(contents)))
        filled = runtime.register_parts(callback, PAGE, largest_bytes=PAGE, most=3)
        assert len(memory) >= 4 and len(filled) == 3
        del source
        gc.collect()
        for parts in (memory, filled):
            assert parts[0].offset == 0
            with runtime.step():
                for part in parts:
                    with runtime.acquire(part.block) as view:
                        assert view.read() == contents[part.offset : part.offset + part.block.bytes]
            assert sum(part.block.bytes for part in parts) == len(contents)
        assert max(asked) >= filled[1].offset and memory[1].block.info().name == memory[1].block.name
        memory[0].block.unregister()
        with runtime.acquire(memory[1].block) as view:
            assert view.read(0, 7) == contents[memory[1].offset : memory[1].offset + 7]
        with pytest.raises(sh.UsageError, match="unit_bytes"):
            runtime.register_parts(sh.BlockDesc(bytearray(10)), 0)


def test_a_view_tells_of_itself(model):
    with model.runtime.step(), model.runtime.acquire(model.blocks[2]) as view:
        assert len(view) == view.bytes == len(model.contents[2]) and view.block == model.blocks[2].id
        assert view.address == model.blocks[2].info().address and view.serial > 0
        assert view.flags & sh.ViewFlag.FIXED_ADDRESS
        assert view.read(5, 11) == model.contents[2][5:16] and view.read(len(view) - 3) == model.contents[2][-3:]
        copy = np.zeros(7, np.uint8)
        view.read_into(copy, 100)
        assert copy.tobytes() == model.contents[2][100:107]


def sources(path, device):
    data = path.read_bytes()
    file = path.open("rb")
    mapped = mmap.mmap(file.fileno(), 0, access=mmap.ACCESS_READ)
    pinned = sh.PinnedMemory(device, len(data))
    pinned.buffer[:] = data
    yield data, data
    yield bytearray(data), data
    yield memoryview(data)[100:5000], data[100:5000]
    yield np.frombuffer(data, np.float32).reshape(-1, 16), data
    yield np.memmap(path, np.uint8, "r"), data
    yield pinned, data
    yield np.asarray(pinned)[:PAGE], data[:PAGE]
    yield mapped, data
    yield sh.Mapped(memoryview(mapped)[PAGE : 3 * PAGE]), data[PAGE : 3 * PAGE]
    yield sh.Mapped(np.memmap(path, np.uint8, "r")), data
    yield sh.FileRange(path, 7, 9 * PAGE), data[7 : 7 + 9 * PAGE]
    yield sh.FileRange(str(path), 0, 10), data[:10]
    yield sh.FileRange(file, 3, 12), data[3:15]
    yield sh.FileRange(file.fileno(), 4, 12), data[4:16]
    yield (
        sh.Fill(lambda buffer, offset: buffer.__setitem__(slice(None), data[offset : offset + len(buffer)]), len(data)),
        data,
    )
    yield (
        [data[:9], sh.FileRange(path, 9, 100), sh.Segment(data[200:300], 200)],
        data[:109] + b"\xdb" * 91 + data[200:300],
    )
    yield [b"", b"a", b""], b"a"


def test_every_kind_of_source(device, weights):
    runtime = sh.Runtime(device)
    wanted = []
    blocks = []
    for source, data in sources(weights, device):
        blocks.append(runtime.register_block(source))
        wanted.append(data)
    del source  # from here on the sources live in the runtime
    gc.collect()
    device.set_budget(0)
    for block, data in zip(blocks, wanted):
        with runtime.acquire(block) as view:
            if len(data) == 300:  # what no source covers is undefined
                assert view.buffer[:109] == data[:109] and view.buffer[200:] == data[200:]
            else:
                assert view.buffer == data
    runtime.close()


def test_a_mapped_file_that_shrinks_is_an_error(program, weights):
    """Were the map read as memory is, this would be a signal."""
    program(f"""
import mmap, os
import libstagehand as sh
device = sh.Device("host", budget_bytes=1 << 20, page_bytes=4096)
runtime = sh.Runtime(device)
for wrap in (lambda mapped: mapped, sh.Mapped):
    file = open({str(weights)!r}, "r+b")
    block = runtime.register_block(wrap(mmap.mmap(file.fileno(), 16 * 4096, access=mmap.ACCESS_READ)))
    file.truncate(4096)
    try:
        runtime.acquire(block)
        raise SystemExit("it was read")
    except sh.OperationError as error:
        assert error.status is sh.Status.ERROR_SOURCE
    file.truncate(40 * 4096)
""")


def test_sets_and_asking_without_waiting(device):
    runtime = sh.Runtime(device, unordered_bytes=16 * PAGE)
    ready = threading.Event()

    def fill(buffer, offset):
        ready.wait(30)
        buffer[:] = b"f" * len(buffer)

    slow = runtime.register_block(sh.Fill(fill, PAGE), unordered=True)
    experts = [runtime.register_block(bytes([i]) * PAGE, unordered=True) for i in range(4)]
    with runtime.step():
        assert runtime.try_acquire(slow) is None and runtime.try_acquire_many([experts[0], slow]) is None
        ready.set()
        runtime.prefetch(experts)
        with runtime.acquire_many([*experts, slow]) as views:
            assert [view.buffer[0] for view in views] == [0, 1, 2, 3, ord("f")]
            again = runtime.try_acquire(slow)
            assert again is not None and again.read(0, 1) == b"f"
            again.release()
        assert runtime.acquire_many([]) == () and runtime.try_acquire_many([]) == ()
    assert all(block.info().held == 0 for block in [slow, *experts])


def test_plans_and_orders(model):
    model.runtime.set_schedule([(block, 1000) for block in model.blocks])
    dry = model.runtime.plan(dry_run=True, budget_bytes=64 * PAGE)
    plan = model.runtime.plan()
    assert dry.resident_bytes > plan.resident_bytes and plan.scheduled_blocks == 8 and plan.compute_ns == 8000
    assert plan.resident_bytes + plan.ring_bytes <= 32 * PAGE and plan.bound_bytes_per_step <= plan.bytes_per_step
    info = model.blocks[0].info()
    assert (
        info.name == "layer 0"
        and info.state is sh.BlockState.UNLOADED
        and info.resident_bytes + info.streamed_bytes == info.bytes
    )
    model.step()


def test_mutable_blocks_are_written_back(device):
    runtime = sh.Runtime(device)
    weights = np.zeros(PAGE, np.uint8)
    block = runtime.register_block(weights, mutable=True)
    assert block.info().flags == sh.BlockFlag.MUTABLE
    with runtime.step(), runtime.acquire(block) as view:
        np.asarray(view)[:] = 5
        view.buffer[0] = 7
        view.mark_dirty()
    runtime.write_back([])  # of no block
    assert weights[1] == 0
    runtime.write_back()
    assert weights[0] == 7 and (weights[1:] == 5).all()
    with runtime.update_sources([block]):
        weights[:] = 9
    with runtime.acquire(block) as view:
        assert (np.asarray(view) == 9).all()
    weights[:] = 10
    runtime.invalidate([block])
    with runtime.acquire(block) as view:
        assert (np.asarray(view) == 10).all()
    with pytest.raises(BufferError):
        runtime.register_block(b"read only", mutable=True)


class Memory(bytearray):
    """Memory that can be watched."""


def test_sources_are_replaced(device):
    loads = []
    with sh.Runtime(device) as runtime:
        first, second = Memory(b"1" * 40_000), Memory(bytes((0x40, 0x3F)) * 20_000)
        gone = [weakref.ref(first), weakref.ref(second)]
        block = runtime.register_block(first, name="head", on_load=lambda loaded: loads.append(loaded.bytes))
        del first
        with runtime.acquire(block) as view:
            assert view.read() == b"1" * 40_000
        with pytest.raises(sh.UsageError, match="head.*no update"):
            runtime.replace_source(block, second)
        with runtime.update_sources([block]):
            with pytest.raises(sh.UsageError, match="ends beyond"):
                runtime.replace_source(block, second + b"1")
            assert gone[0]() is not None, "the block still has it"
            runtime.replace_source(block, second)
            assert gone[0]() is None
        del second
        gc.collect()
        with runtime.acquire(block) as view:
            assert view.read() == bytes((0x40, 0x3F)) * 20_000
        with runtime.update_sources([block]):
            runtime.replace_source(block, [bytes(100), sh.Segment(sh.Fill(bytes_of_two, 50), 200)])
        with runtime.acquire(block) as view:
            assert view.read()[:100] == bytes(100) and view.read()[200:250] == b"2" * 50
        assert gone[1]() is None and sum(loads) > 80_000, "on_load stays"
        packed = runtime.register_block(sh.Weights(bytes((5, 0x3C)) * 20_000, sh.WeightFormat.BF16))
        for seed in range(3):
            with runtime.update_sources([packed]):
                runtime.replace_source(packed, sh.Weights(bytes((seed, 0x3C)) * 20_000, sh.WeightFormat.BF16))
            with runtime.acquire(packed) as view:
                assert view.read() == bytes((seed, 0x3C)) * 20_000
        with pytest.raises(sh.UsageError, match="sh_source_replace"), runtime.update_sources([packed]):
            pass


def bytes_of_two(buffer, offset):
    buffer[:] = b"2" * len(buffer)


def test_packed_blocks_are_mutable_until_they_are_written(device):
    weights = np.frombuffer(bytearray(bytes((5, 0x3C)) * 20_000), np.uint8)
    with sh.Runtime(device) as runtime:
        block = runtime.register_block(sh.Weights(weights, sh.WeightFormat.BF16), mutable=True)
        assert block.info().flags == sh.BlockFlag.MUTABLE | sh.BlockFlag.PACK
        for number in range(3):
            with runtime.acquire(block) as view:
                assert (np.asarray(view)[1:] == weights[1:]).all()
                np.asarray(view)[:] = number
                view.mark_dirty()
            runtime.write_back()
            assert (weights == number).all()
        with runtime.update_sources([block]):
            weights[:] = 9
        with runtime.acquire(block) as view:
            assert (np.asarray(view) == 9).all()


def test_streams(device, model):
    ran = []
    with sh.Stream(device) as stream:
        with model.runtime.step():
            for block, data in zip(model.blocks, model.contents):
                with model.runtime.acquire(block, stream) as view:
                    buffer = view.buffer
                    stream.launch(lambda buffer=buffer, data=data: ran.append(buffer == data))
            model.runtime.forget(stream)
        stream.launch(None, 1000)
        stream.synchronize()
    assert ran == [True] * 8


def test_on_load_changes_each_load_once(device):
    seen = []
    stream = sh.Stream(device)

    def on_load(loaded):
        assert isinstance(loaded, sh.LoadedRange)
        seen.append((loaded.block, loaded.offset, loaded.bytes))

    runtime = sh.Runtime(device)
    block = runtime.register_block(b"q" * (3 * PAGE), whole=True, on_load=on_load)
    for _ in range(2):
        with runtime.step(), runtime.acquire(block, stream) as view:
            assert view.read(0, 1) == b"q"
    assert seen == [(block.id, 0, 3 * PAGE)]
    runtime.close()


def test_questions_to_the_library(device, model, tmp_path):
    assert sh.__version__ == sh.version() and sh.version().count(".") == 2
    assert {"host", "sim"} <= {backend.name for backend in sh.backends() if backend.status == sh.Status.OK}
    caps = device.capabilities()
    assert (
        caps.name == "host:0" == device.name and caps.page_bytes == PAGE and caps.flags & sh.DeviceFlag.HOST_ADDRESSABLE
    )
    assert device.clock_ns() <= device.clock_ns()
    with model.runtime.telemetry(tmp_path / "steps.json"), sh.trace(tmp_path / "trace.json"):
        model.step()
    assert (
        len((tmp_path / "steps.json").read_text().splitlines()) == 1
        and "layer 0" in (tmp_path / "trace.json").read_text()
    )


def test_the_interpreter_runs_while_a_call_waits(device):
    runtime = sh.Runtime(device)
    counted = threading.Event()

    def fill(buffer, offset):
        assert counted.wait(30)  # set by the other thread, while the acquire below waits for this
        buffer[:] = bytes(len(buffer))

    block = runtime.register_block(sh.Fill(fill, PAGE))
    other = threading.Thread(target=counted.set)
    threading.Timer(0.05, other.start).start()
    with runtime.step(), runtime.acquire(block) as view:
        assert view.flags & sh.ViewFlag.WAITED
    runtime.close()


def test_files_are_open_only_while_they_are_registered(device, weights):
    """The library has a descriptor of its own until the block goes; no other is left."""

    def count():
        return len(os.listdir("/proc/self/fd"))

    runtime = sh.Runtime(device)
    before = count()
    block = runtime.register_block([sh.FileRange(weights, 0, PAGE), sh.FileRange(weights, PAGE, PAGE)])
    registered = count()
    assert registered <= before + 2
    with pytest.raises(sh.UsageError):
        runtime.register_block([sh.FileRange(weights, 0, PAGE), sh.Segment(b"overlaps", 0)])
    assert count() == registered
    block.unregister()
    assert count() == before
    runtime.close()
