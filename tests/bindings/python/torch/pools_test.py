"""Pools whose memory leaves the device. PyTorch has pools for GPUs only. So the tests call the pools' functions on the
host, and a stand-in does PyTorch's part. gpu_pools_test.py has PyTorch's own.
"""

import ctypes
import random
import threading
import weakref

import pytest
import torch
from pools_on_host import MIB, Functions, current, device, is_all  # noqa: F401

import libstagehand as sh
import libstagehand.torch as st
from libstagehand._segments import unused_ranges
from libstagehand.torch import _pool_hooks, _pools

BUDGET = 192 * MIB


def functions_of(hooks):
    functions = Functions(str(_pool_hooks.PATH), hooks.alloc_name, hooks.free_name)
    functions.take_error, functions.close = hooks.take_error, hooks.close
    return functions


@pytest.fixture
def functions(device):
    made = []

    def make(tag, contents=sh.Contents.STAGE, format=0):
        made.append(functions_of(_pool_hooks.PoolHooks("host", 0, tag, contents, format)))
        return made[-1]

    yield make
    for one in made:
        one.close()


def test_memory_of_a_pool_leaves_and_comes_back(device, functions):
    weights, cache = functions("weights"), functions("cache", sh.Contents.ZERO)
    data = random.Random(1).randbytes(4 * MIB)
    first, second = weights.alloc(4 * MIB), cache.alloc(2 * MIB)
    ctypes.memmove(first, data, len(data))
    ctypes.memset(second, 1, 2 * MIB)
    assert [(info.tag, info.bytes) for info in device.occupancies()] == [("cache", 2 * MIB), ("weights", 4 * MIB)]
    assert device.pause().copied_bytes == 4 * MIB
    device.resume()
    assert ctypes.string_at(first, 4 * MIB) == data and not any(ctypes.string_at(second, 2 * MIB))
    weights.free(first)
    cache.free(second)
    assert device.occupancy().allocations == 0 and not weights.take_error()


def test_contents_of_a_format_cross_the_link_packed(device, functions):
    weights = functions("weights", format=sh.WeightFormat.BF16)
    data = random.Random(1).randbytes(4 * MIB)
    memory = weights.alloc(4 * MIB)
    ctypes.memmove(memory, data, len(data))
    assert device.pause().packed_bytes == device.resume().packed_bytes == 4 * MIB
    assert ctypes.string_at(memory, 4 * MIB) == data
    weights.free(memory)
    with pytest.raises(ValueError, match=r"format=torch\.int8 cannot be packed"):
        st.pausable("weights", format=torch.int8)


def test_failures_have_a_text(device, functions):
    pool = functions("weights")
    assert pool.alloc(1 << 40) is None
    assert "1.00 TiB" in pool.take_error() and pool.take_error() == ""
    assert pool.alloc(0) is None and pool.alloc(-1) is None
    assert pool.alloc(100, device=3) is None and "device 3" in pool.take_error()
    memory = pool.alloc(2 * MIB)
    device.pause("weights")
    assert pool.alloc(100) is None and "weights" in pool.take_error()
    pool.free(memory)
    assert pool.take_error() == "" and device.occupancy("weights").allocations == 0
    pool.free(memory)
    assert "begins at address" in pool.take_error()


def test_a_pool_keeps_its_device_while_it_has_memory():
    hooks = _pool_hooks.PoolHooks("host", 0, "weights", sh.Contents.STAGE)
    pool = functions_of(hooks)
    with sh.Device("host") as device:
        budget = device.memory().budget_bytes
    first, second = pool.alloc(100), pool.alloc(100)
    pool.close()
    assert pool.alloc(100) is None and "closed" in pool.take_error()
    pool.free(first)
    with pytest.raises(sh.UsageError, match="is open"):
        sh.Device("host", budget_bytes=budget // 2)
    thread = threading.Thread(target=pool.free, args=(second,))
    thread.start()
    thread.join()
    sh.Device("host", budget_bytes=budget // 2).close()


def test_the_number_of_pools_is_limited_and_each_has_its_tag(device, functions):
    pools = [functions(f"tag {i}") for i in range(_pool_hooks.MOST_POOLS)]
    with pytest.raises(sh.UsageError, match="at most 64 pools"):
        functions("one more")
    memory = [pool.alloc(100) for pool in pools]
    assert sorted(info.tag for info in device.occupancies()) == sorted(f"tag {i}" for i in range(64))
    pools[7].free(memory[7])
    pools[7].close()
    again = functions("again")
    pools[9].close()
    with pytest.raises(sh.UsageError, match="at most 64 pools"):
        functions("one more")
    memory[7] = again.alloc(100)
    assert device.occupancy("again").allocations == 1
    for pool, address in zip([*pools[:7], again, *pools[8:]], memory):
        pool.free(address)


def test_tags_are_checked():
    for tag in ("", "x" * 64, "a\0b"):
        with pytest.raises(ValueError, match="1 to 63 bytes"):
            _pool_hooks.PoolHooks("host", 0, tag, sh.Contents.STAGE)
    with pytest.raises(sh.UsageError):
        _pool_hooks.PoolHooks("nothing", 0, "tag", sh.Contents.STAGE)


def test_a_pool_of_pytorch(device, current):
    pool = st.pausable("weights", device)
    assert pool.pause().tag_count == pool.resume().tag_count == 0
    with pool as entered:
        assert entered is pool and current == [pool._pool]
        address = current[-1].segment((MIB, "active_allocated"), (MIB, "inactive"))
        with st.pausable("cache", device, contents="drop") as other:
            assert current == [pool._pool, other._pool]
            other._pool.segment((2 * MIB, "active_allocated"))
    assert current == [] and "'weights' on host:0" in repr(pool)
    assert pool.memory() == st.PoolMemory(2 * MIB, MIB)
    ctypes.memset(address, 5, 2 * MIB)
    assert pool.pause().copied_bytes == 2 * MIB
    assert device.occupancy("cache").state is sh.OccupancyState.RUNNING and other.pause().copied_bytes == 0
    with pytest.raises(sh.UsageError, match="'weights' is released: resume it"), pool:
        pass
    assert current == []
    assert pool.resume().tag_count == 1 and pool.resume(repeat=True).tag_count == 0
    assert is_all(address, 5, 2 * MIB)


def test_a_pause_copies_what_tensors_use(device, current):
    pool = st.pausable("weights", device)
    with pool:
        address = current[-1].segment((3 * MIB, "active_allocated"), (5 * MIB, "inactive"))
    ctypes.memset(address, 5, 8 * MIB)
    gone = pool.pause()
    assert gone.device_bytes == 8 * MIB and gone.copied_bytes == 4 * MIB
    assert device.occupancy("weights").host_bytes == 4 * MIB
    pool.resume()
    assert is_all(address, 5, 3 * MIB)


def test_pools_are_kept_by_device_tag_and_contents(device, current):
    pool = st.pausable("weights", device)
    assert st.pausable("weights", device, contents=sh.Contents.DEFAULT) is pool
    assert st.pausable("weights", device, contents="zero") is not pool
    assert st.pausable("cache", device) is not pool and len(_pools._pools) == 3
    with pytest.raises(KeyError):
        st.pausable("weights", device, contents="nothing")


def test_a_trim_lets_pytorch_give_segments_back(device, current, monkeypatch):
    pool = st.pausable("weights", device)
    with pool:
        current[-1].segment((2 * MIB, "active_allocated"))
        unused = current[-1].segment((4 * MIB, "inactive"))
    first = weakref.ref(pool._pool)

    def empty_cache():
        """Gives unused segments of pools back that are gone, as PyTorch does."""
        assert first() is None
        segments = pool._ids[0]
        pool._pool.functions.free(unused)
        segments[:] = [segment for segment in segments if segment["address"] != unused]

    monkeypatch.setattr(torch.cuda, "empty_cache", empty_cache)
    assert pool.memory() == st.PoolMemory(6 * MIB, 2 * MIB)
    pool.trim()
    assert pool.memory() == st.PoolMemory(2 * MIB, 2 * MIB) and pool.pause().copied_bytes == 2 * MIB
    pool.resume()
    with pool:
        current[-1].segment((2 * MIB, "active_allocated"))
    assert pool.memory().live_bytes == 4 * MIB
    monkeypatch.setattr(torch.cuda, "empty_cache", lambda: None)
    pool.trim()
    pool.trim()
    assert len(pool._ids) == 3  # pools without segments are forgotten
    pool.close()
    with pytest.raises(sh.UsageError, match="closed"):
        pool.trim()
    for segment in [segment for id in pool._ids for segment in id]:
        pool._allocator.free(segment["address"])


def test_a_pool_in_use_is_destroyed_at_the_end_of_its_last_use(device, current, monkeypatch):
    """PyTorch ends the process if it destroys a pool while any is in use."""
    emptied = []
    monkeypatch.setattr(torch.cuda, "empty_cache", lambda: emptied.append(first() is None))
    pool, other = st.pausable("weights", device), st.pausable("cache", device)
    first = weakref.ref(pool._pool)
    with other, other:
        pool.trim()
        with pool:
            pass
        assert first() is not None and emptied == []
    assert emptied == [True]
    first = weakref.ref(pool._pool)
    with pool:
        pool.close()
        assert first() is not None and len(emptied) == 1
    assert emptied == [True, True]
    monkeypatch.setattr(torch.cuda, "is_current_stream_capturing", lambda: True)
    first = weakref.ref(other._pool)
    other.close()
    assert first() is not None and len(emptied) == 2
    monkeypatch.setattr(torch.cuda, "is_current_stream_capturing", lambda: False)
    with st.pausable("more", device) as more:
        pass
    assert emptied == [True] * 3
    more.close()


def test_a_closed_pool_keeps_its_tensors(device, current, monkeypatch):
    freed = []
    monkeypatch.setattr(torch.cuda, "empty_cache", lambda: freed.append(1))
    pool = st.pausable("weights", device)
    with pool:
        address = current[-1].segment((2 * MIB, "active_allocated"))
    ctypes.memset(address, 5, 2 * MIB)
    functions, budget = pool._pool.functions, device.memory().budget_bytes
    pool.close()
    pool.close()
    assert freed == [1] and _pools._pools == {}
    device.pause("weights")
    device.resume()
    assert is_all(address, 5, 2 * MIB)
    with pytest.raises(sh.UsageError, match="the pool is closed"), pool:
        pass
    assert functions.alloc(2 * MIB) is None
    device.close()
    with pytest.raises(sh.UsageError, match="is open"):
        sh.Device("host", budget_bytes=budget // 2)
    functions.free(address)
    sh.Device("host", budget_bytes=budget // 2).close()


def test_a_pool_closes_only_a_device_that_it_has_opened(device, current, monkeypatch):
    monkeypatch.setattr(torch.cuda, "empty_cache", lambda: None)
    opened = sh.Device("host")
    monkeypatch.setattr(_pools, "_gpu", lambda given: opened if given == "cuda:0" else given)
    st.pausable("a", device).close()
    st.pausable("b", "cuda:0").close()
    assert device.memory().budget_bytes
    with pytest.raises(sh.UsageError):
        opened.memory()


def test_an_error_of_pytorch_says_why(device, current):
    with pytest.raises(torch.OutOfMemoryError) as raised, st.pausable("weights", device) as pool:
        pool._pool.segment((1 << 40, "active_allocated"))
    assert "'weights'" in raised.value.__notes__[0] and "1.00 TiB" in raised.value.__notes__[0]
    with pytest.raises(torch.OutOfMemoryError) as raised, pool:
        raise torch.OutOfMemoryError("of another allocator")
    assert not hasattr(raised.value, "__notes__")


def test_what_no_tensor_uses():
    def segment(address, *blocks):
        return {"address": address, "blocks": [{"size": size, "state": state} for size, state in blocks]}

    live, dead = "active_allocated", "inactive"
    assert unused_ranges([]) == []
    assert unused_ranges([segment(100, (10, live))]) == []
    one = segment(100, (10, dead), (20, live), (5, "active_pending_free"), (5, dead))
    assert unused_ranges([one]) == [(100, 10), (130, 10)]
    assert unused_ranges([segment(140, (7, dead)), one]) == [(100, 10), (130, 17)]


def test_only_gpus_have_pools(monkeypatch):
    for device in ("cpu", "host", "sim", torch.device("cpu")):
        with pytest.raises(ValueError, match="is not a GPU"):
            st.pausable("weights", device)
    with sh.Device("host") as host, pytest.raises(ValueError, match="host:0 is not a GPU"):
        st.pausable("weights", host)
    if not torch.cuda.is_available():
        with pytest.raises(RuntimeError, match="needs a GPU"):
            st.pausable("weights", "cuda:0")


@pytest.mark.parametrize("name", ["PYTORCH_CUDA_ALLOC_CONF", "PYTORCH_ALLOC_CONF"])
def test_expandable_segments_are_refused(monkeypatch, name):
    class Gpu(sh.Device):
        def __init__(self):
            self.kind, self.flags, self.name = sh.DeviceKind.CUDA, sh.DeviceFlag.FIXED_ADDRESSES, "cuda:0"

    begun = []
    monkeypatch.setattr(_pools, "begin_gpu", begun.append)
    assert isinstance(_pools._gpu(Gpu()), Gpu) and begun == ["cuda:0"]
    monkeypatch.setenv(name, "max_split_size_mb:64, expandable_segments: True")
    with pytest.raises(RuntimeError, match=f"{name} has expandable_segments"):
        _pools._gpu(Gpu())
    monkeypatch.delenv(name)
    device = Gpu()
    device.flags = sh.DeviceFlag(0)
    with pytest.raises(ValueError, match="by pages"):
        _pools._gpu(device)
