"""Pools whose memory leaves a GPU, where there is one."""

import gc
import pathlib
import subprocess
import sys

import pytest
import torch
from torch import nn

import libstagehand as sh
import libstagehand.torch as st
from libstagehand.torch import _pools

pytestmark = pytest.mark.gpu


@pytest.fixture(autouse=True)
def closed_pools():
    """Lets no pool keep the GPU open for the tests that follow, which have other budgets."""
    yield
    gc.collect()
    for pool in list(_pools._pools.values()):
        pool.close()


def driver_free():
    torch.cuda.synchronize()
    return torch.cuda.mem_get_info()[0]


def test_tensors_leave_and_come_back():
    with st.pausable("leave", "cuda:0") as pool:
        tensors = [torch.randn(size, device="cuda:0") for size in (100, 30_000, 3_000_000, 20_000_000)]
    outside = torch.randn(1000, device="cuda:0")
    want, addresses = [one.cpu() for one in [*tensors, outside]], [one.data_ptr() for one in tensors]
    assert pool.memory().live_bytes >= sum(one.nbytes for one in tensors)
    pool.pause()  # the first pause loads the program that compares contents
    pool.resume()
    before = driver_free()
    change = pool.pause()
    assert (
        change.device_bytes >= sum(one.nbytes for one in tensors)
        and driver_free() - before >= 0.97 * change.device_bytes
    )
    assert torch.equal(outside.cpu(), want[-1])
    pool.resume()
    assert [one.data_ptr() for one in tensors] == addresses
    assert all(torch.equal(one.cpu(), data) for one, data in zip([*tensors, outside], want))
    with pool:
        more = torch.ones(5_000_000, device="cuda:0")
    assert float(more.sum()) == 5_000_000


def test_tensors_of_a_type_cross_the_link_packed():
    with st.pausable("packed", "cuda:0", format=torch.bfloat16) as pool:
        weights = torch.randn(8 << 20, device="cuda:0", dtype=torch.bfloat16)
    assert pool is st.pausable("packed", "cuda:0", format=torch.bfloat16)
    want = weights.cpu()
    gone = pool.pause()
    assert gone.packed_bytes == gone.copied_bytes >= weights.nbytes
    assert pool.resume().packed_bytes == gone.copied_bytes
    assert torch.equal(weights.cpu(), want)


def test_contents_by_pool():
    with st.pausable("zero", "cuda:0", contents="zero") as zero:
        cache = torch.ones(4_000_000, device="cuda:0")
    with st.pausable("stay", "cuda:0") as stay:
        weights = torch.ones(4_000_000, device="cuda:0")
    assert zero.pause().copied_bytes == 0 and zero.device.occupancy("stay").state is sh.OccupancyState.RUNNING
    assert float(weights.sum()) == 4_000_000
    with pytest.raises(sh.UsageError, match="'zero' is released"), zero:
        pass
    zero.resume()
    assert float(cache.sum()) == 0
    stay.pause(contents=sh.Contents.ZERO)
    stay.resume()
    assert float(weights.sum()) == 0


def test_tensors_may_end_while_their_memory_is_away():
    with st.pausable("ends", "cuda:0") as pool:
        tensors = [torch.ones(8_000_000, device="cuda:0") for _ in range(3)]
    pool.pause()
    del tensors[1]
    torch.cuda.empty_cache()
    pool.resume()
    assert all(float(one.sum()) == 8_000_000 for one in tensors)
    tensors.clear()
    torch.cuda.empty_cache()
    assert pool.memory().live_bytes == 0


def test_a_captured_graph_replays_after_a_pause():
    torch.manual_seed(1)
    with st.pausable("graph", "cuda:0") as pool:
        model = nn.Sequential(nn.Linear(512, 2048), nn.GELU(), nn.Linear(2048, 512)).cuda()
        x, out = torch.randn(64, 512, device="cuda:0"), torch.empty(64, 512, device="cuda:0")
    with torch.inference_mode():
        for _ in range(3):
            out.copy_(model(x))
        torch.cuda.synchronize()
        graph = torch.cuda.CUDAGraph()
        with torch.cuda.graph(graph):
            out.copy_(model(x))
        graph.replay()
        want = out.cpu()
        for _ in range(3):
            pool.pause()
            pool.resume()
            out.zero_()
            graph.replay()
            assert torch.equal(out.cpu(), want)


def test_too_much_memory_says_why():
    pool = st.pausable("much", "cuda:0")
    with pytest.raises(torch.OutOfMemoryError) as raised, pool:
        torch.empty(1 << 42, dtype=torch.uint8, device="cuda:0")
    assert "'much'" in "".join(raised.value.__notes__)


def test_a_trim_gives_unused_segments_back():
    with st.pausable("trims", "cuda:0") as pool:
        keeps, goes = (torch.ones(1 << 27, device="cuda:0") for _ in range(2))
    del goes
    assert pool.memory().reserved_bytes >= 2 << 29
    pool.trim()
    assert pool.memory().reserved_bytes <= (1 << 29) + (64 << 20)
    assert pool.pause().copied_bytes <= (1 << 29) + (64 << 20)
    pool.resume()
    with pool:
        more = torch.full((1 << 27,), 2.0, device="cuda:0")
    assert keeps[::1000].eq(1).all().item() and more[::1000].eq(2).all().item()


def test_a_pool_may_be_trimmed_and_closed_while_pools_are_in_use():
    """PyTorch ends the process if it destroys a pool while any is in use."""
    other = st.pausable("other", "cuda:0")
    with st.pausable("in use", "cuda:0") as pool:
        keeps = torch.ones(1 << 20, device="cuda:0")
        pool.trim()
        other.close()
        torch.ones(1 << 27, device="cuda:0")
        pool.trim()
    assert pool.memory().reserved_bytes <= 64 << 20
    assert keeps.sum().item() == 1 << 20
    pool.close()


def test_a_closed_pool_gives_its_memory_back():
    before = driver_free()
    with st.pausable("closes", "cuda:0") as pool:
        tensor = torch.ones(1 << 28, device="cuda:0")
    pool.close()
    assert float(tensor[::1000].sum()) == len(tensor[::1000])
    del tensor
    torch.cuda.empty_cache()
    assert before - driver_free() < 64 << 20
    with sh.Device("cuda:0", budget_bytes=1 << 30) as device:
        assert device.memory().budget_bytes == 1 << 30


def test_a_pause_copies_what_tensors_use():
    pool = st.pausable("live", "cuda:0")
    with pool:
        tensors = [torch.full((1 << 20,), float(i), device="cuda:0") for i in range(64)]  # 4 MiB each
    del tensors[::2]
    assert pool.memory().live_bytes <= 33 * (4 << 20)
    gone = pool.pause()
    assert gone.copied_bytes <= 40 * (4 << 20), gone
    pool.resume()
    assert all(one.eq(float(2 * i + 1)).all().item() for i, one in enumerate(tensors))


def test_a_server_and_a_trainer_take_turns():
    example = pathlib.Path(__file__).parents[4] / "examples/colocate/colocate.py"
    words = [sys.executable, str(example), "cuda:0", "--layers", "4", "--width", "1024", "--length", "64"]
    done = subprocess.run(words, capture_output=True, text=True, timeout=600)
    assert done.returncode == 0 and done.stdout.count("yes, bit by bit") == 3, done.stdout + done.stderr


def test_a_pool_of_a_device_that_is_open_already():
    """In a process of its own, in which PyTorch has not used the GPU before."""
    program = """
import torch
import libstagehand as sh
import libstagehand.torch as st
device = sh.Device("cuda:0")
with st.pausable("weights", device) as pool:
    tensor = torch.ones(1 << 22, device="cuda:0")
pool.pause()
pool.resume()
assert tensor.eq(1).all().item()
"""
    done = subprocess.run([sys.executable, "-c", program], capture_output=True, text=True, timeout=600)
    assert done.returncode == 0, done.stderr
