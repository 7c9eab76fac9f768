"""The bytes of views for others: memoryview, NumPy, DLPack, CUDA arrays."""

import gc
import sys

import numpy as np
import pytest
from conftest import PAGE

import libstagehand as sh


@pytest.fixture
def runtime(device):
    runtime = sh.Runtime(device)
    yield runtime
    runtime.close()


def test_garbage_with_a_memoryview(runtime):
    """Python crashes if it collects a memoryview together with a buffer of cffi over it."""
    calls = (
        lambda: runtime.register_block(sh.Packed(memoryview(bytes(1000))[1:], 100)),
        lambda: sh.unpack(memoryview(bytes(1000))[1:], memoryview(bytearray(100))[1:]),
    )
    for call in calls:
        for _ in range(3):
            with pytest.raises(sh.Error) as raised:
                call()
            raised.value.itself = raised.value
            del raised
            gc.collect()


def test_host_memory_is_seen_where_it_is(runtime):
    data = np.arange(PAGE, dtype=np.float32)
    block = runtime.register_block(data)
    with runtime.step(), runtime.acquire(block) as view:
        array = np.asarray(view)
        assert array.dtype == np.uint8 and array.ctypes.data == view.address and (array.view(np.float32) == data).all()
        assert not array.flags.writeable and view.buffer.readonly
        assert np.frombuffer(view.buffer, np.float32)[17] == 17


@pytest.mark.parametrize("versions", [None, (1, 0)])
def test_dlpack(runtime, versions):
    block = runtime.register_block(b"dlpack" * PAGE)
    with runtime.step():
        view = runtime.acquire(block)
        assert view.__dlpack_device__() == (1, 0)
        before = sys.getrefcount(view)
        capsule = view.__dlpack__(max_version=versions)
        assert sys.getrefcount(view) == before + 1
        del capsule  # nobody took it
        assert sys.getrefcount(view) == before
        if versions:
            array = np.from_dlpack(view)
            assert array.ctypes.data == view.address and array[:6].tobytes() == b"dlpack" and not array.flags.writeable
            assert sys.getrefcount(view) == before + 1
            del array
            assert sys.getrefcount(view) == before
        for wrong in ({"copy": True}, {"dl_device": (2, 0)}):
            with pytest.raises(BufferError):
                view.__dlpack__(**wrong)
        view.release()
        with pytest.raises(sh.UsageError):
            view.__dlpack__()


def test_an_array_keeps_the_view(runtime):
    """A view that nobody has released is held as long as an array of it is there."""
    block = runtime.register_block(b"a" * PAGE)
    with runtime.step():
        array = np.from_dlpack(runtime.acquire(block))
        gc.collect()
        assert block.info().held == 1 and array[0] == ord("a")
        del array
        assert block.info().held == 0


def test_what_the_host_cannot_address():
    with sh.Device("sim", budget_bytes=64 << 20) as device:
        runtime = sh.Runtime(device)
        block = runtime.register_block(b"s" * PAGE)
        with runtime.step(), runtime.acquire(block) as view:
            assert view.address and not hasattr(view, "__cuda_array_interface__")
            for look in (lambda: view.buffer, lambda: np.asarray(view), view.__dlpack_device__):
                with pytest.raises(BufferError, match="sim"):
                    look()
        runtime.close()


def test_cuda_array():
    try:
        device = sh.Device("cuda", budget_bytes=64 << 20)
    except sh.Error as error:
        pytest.skip(str(error))
    runtime = sh.Runtime(device)
    block = runtime.register_block(b"c" * PAGE)
    with runtime.step(), runtime.acquire(block, 0) as view:
        interface = view.__cuda_array_interface__
        assert interface["data"] == (view.address, False) and interface["stream"] == 1 and interface["shape"] == (PAGE,)
        assert view.__dlpack_device__() == (2, 0) and view.read(0, 4) == b"cccc"
        with pytest.raises(BufferError):
            view.__dlpack__(stream=1234)
    runtime.close()


def test_pinned_memory(device):
    memory = sh.PinnedMemory(device, 2 * PAGE)
    assert len(memory) == memory.bytes == 2 * PAGE and memory.pinned
    array, buffer = np.asarray(memory), memoryview(memory.buffer)
    array[5] = 6
    assert buffer[5] == 6 and not any(buffer[6:])
    memory.close()
    memory.close()
    device.close()
    gc.collect()
    assert array[5] == buffer[5] == 6  # freed with the last of them
    with pytest.raises(sh.UsageError):
        memory.buffer
    with pytest.raises(sh.UsageError):
        np.asarray(memory)
