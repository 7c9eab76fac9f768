"""The interface of torch_memory_saver on a GPU, where there is one. Each test is a process of its own, because the hook
mode is chosen once.
"""

import os
import subprocess
import sys
import textwrap

import pytest

from libstagehand.compat import torch_memory_saver as package

pytestmark = pytest.mark.gpu
BEGIN = """
import torch
import libstagehand as sh
from libstagehand.compat.torch_memory_saver import torch_memory_saver as saver
if MODE == "torch":
    saver.hook_mode = "torch"
GIB = 1 << 30

def free():
    torch.cuda.synchronize()
    return torch.cuda.mem_get_info()[0]
"""


@pytest.fixture(params=["torch", "preload"])
def mode(request):
    return request.param


def run(mode, text, **variables):
    environment = {**os.environ, **variables}
    if mode == "preload":
        with package.configure_subprocess():
            environment = {**os.environ, **variables}
    program = f"MODE = {mode!r}\n{BEGIN}\n{textwrap.dedent(text)}\nprint('done')\n"
    done = subprocess.run([sys.executable, "-c", program], env=environment, capture_output=True, text=True, timeout=600)
    assert done.returncode == 0 and done.stdout.split()[-1] == "done", done.stdout + done.stderr


def test_contents_and_addresses(mode):
    run(
        mode,
        """
    outside = torch.arange(1000, device="cuda")
    with saver.region(enable_cpu_backup=True):
        kept = torch.randn(GIB // 4, device="cuda")
        small = torch.arange(100, device="cuda")
    with saver.region("kv_cache"):
        lost = torch.ones(GIB // 4, device="cuda")
    want, address = kept.cpu(), (kept.data_ptr(), small.data_ptr(), lost.data_ptr())
    for _ in range(3):
        before = free()
        saver.pause()
        assert free() - before >= 0.97 * 2 * GIB, free() - before
        assert outside.sum().item() == 499500
        saver.resume()
        assert (kept.data_ptr(), small.data_ptr(), lost.data_ptr()) == address
        assert torch.equal(kept.cpu(), want) and small.sum().item() == 4950
        lost.fill_(2)
        assert lost[::1000].eq(2).all().item()
    """,
    )


def test_disabled_allocations_stay(mode):
    run(
        mode,
        """
    with saver.region("weights", enable_cpu_backup=True):
        weights = torch.ones(GIB // 4, device="cuda")
        with saver.disable():
            stays = torch.full((1 << 20,), 5.0, device="cuda")
        more = torch.ones(1 << 20, device="cuda")
    saver.pause()
    assert stays.sum().item() == 5 * 2**20
    saver.resume()
    assert weights[::1000].eq(1).all().item() and more.sum().item() == 2**20
    """,
    )


def test_too_little_memory_is_an_error_and_not_the_end(mode):
    run(
        mode,
        """
    with saver.region("weights", enable_cpu_backup=True):
        weights = torch.full((GIB // 2,), 3.0, device="cuda")
    saver.pause("weights")
    others = []
    try:
        while True:
            others.append(torch.empty(GIB // 2, dtype=torch.uint8, device="cuda"))
    except torch.OutOfMemoryError:
        pass
    try:
        saver.resume("weights")
    except sh.Error as error:
        print(error)
    else:
        raise AssertionError("there was memory left")
    others.clear()
    torch.cuda.empty_cache()
    saver.resume("weights")
    assert weights[::1000].eq(3).all().item()
    """,
    )


def test_a_graph_whose_memory_left_replays():
    run(
        "preload",
        """
    torch.manual_seed(1)
    model = torch.nn.Sequential(torch.nn.Linear(512, 4096), torch.nn.GELU(), torch.nn.Linear(4096, 512)).cuda()
    x = torch.randn(4096, 512, device="cuda")
    with torch.inference_mode():
        side = torch.cuda.Stream()
        with torch.cuda.stream(side):
            for _ in range(3):
                model(x)
        torch.cuda.synchronize()
        graph = torch.cuda.CUDAGraph()
        with saver.cuda_graph(graph, tag="graph", enable_cpu_backup=True):
            out = model(x)
        graph.replay()
        want = out.cpu()
        before = free()
        saver.pause("graph")
        assert free() > before
        saver.resume("graph")
        graph.replay()
        assert torch.equal(out.cpu(), want)
    """,
    )


def test_a_backup_can_be_read_while_the_memory_is_away(mode):
    run(
        mode,
        """
    with saver.region("weights", enable_cpu_backup=True):
        weights = torch.randn(1000, 1000, device="cuda")
        typed = torch.full((10, 20, 30), 1.5, device="cuda", dtype=torch.bfloat16)
    with saver.region("cache"):
        cache = torch.ones(1 << 22, device="cuda")
    want = weights.cpu()
    assert saver.get_cpu_backup(weights) is None
    saver.pause()
    assert torch.equal(saver.get_cpu_backup(weights, zero_copy=True), want)
    assert saver.get_cpu_backup(typed).eq(1.5).all() and saver.get_cpu_backup(typed).shape == (10, 20, 30)
    try:
        saver.get_cpu_backup(cache)
    except sh.UsageError as error:
        assert "cache" in str(error)
    else:
        raise AssertionError("there was a backup")
    saver.resume()
    assert torch.equal(weights.cpu(), want)
    """,
    )


def test_the_drivers_allocations_are_taken():
    """However a program finds the driver's functions, here by ctypes and by asking the driver."""
    run(
        "preload",
        """
    import ctypes
    torch.ones(1, device="cuda")  # the context is current
    driver, found = ctypes.CDLL("libcuda.so.1"), ctypes.c_void_p()
    driver.cuMemFree_v2.argtypes = [ctypes.c_uint64]
    assert driver.cuGetProcAddress_v2(b"cuMemAlloc", ctypes.byref(found), 12000, ctypes.c_uint64(0), None) == 0
    asked = ctypes.CFUNCTYPE(ctypes.c_int, ctypes.c_void_p, ctypes.c_size_t)(found.value)
    saver._ensure_initialized()
    cdll = saver._impl._binary_wrapper.cdll
    for alloc in (driver.cuMemAlloc_v2, asked):
        inside, outside = ctypes.c_uint64(), ctypes.c_uint64()
        assert alloc(ctypes.byref(outside), ctypes.c_size_t(GIB)) == 0
        cdll.tms_set_current_tag(b"driver")
        cdll.tms_set_interesting_region(True)
        assert alloc(ctypes.byref(inside), ctypes.c_size_t(GIB)) == 0
        cdll.tms_set_interesting_region(False)
        before = free()
        saver.pause("driver")
        assert free() - before >= 0.97 * GIB
        saver.resume("driver")
        assert driver.cuMemFree_v2(inside) == 0 and driver.cuMemFree_v2(outside) == 0
    """,
        TMS_STAGEHAND_DRIVER="1",
    )


def test_the_margin():
    run(
        "torch",
        """
    torch.ones(1, device="cuda")
    saver.memory_margin_bytes = free() - GIB
    with saver.region("weights"):
        weights = torch.ones(GIB // 8, device="cuda")
        try:
            torch.ones(GIB // 2, device="cuda")
        except torch.OutOfMemoryError:
            pass
        else:
            raise AssertionError("the margin was not kept")
    """,
    )


def test_everything_by_the_environment():
    with package.configure_subprocess():
        environment = dict(os.environ, TMS_INIT_ENABLE="1", TMS_INIT_ENABLE_CPU_BACKUP="1")
    program = (
        "import torch\n"
        "from libstagehand.compat.torch_memory_saver import torch_memory_saver as saver\n"
        "tensor = torch.full((1 << 28,), 2.0, device='cuda')\n"
        "before = torch.cuda.mem_get_info()[0]\n"
        "saver.pause()\n"
        "assert torch.cuda.mem_get_info()[0] - before >= 0.97 * (1 << 30)\n"
        "saver.resume()\n"
        "assert tensor[::1000].eq(2).all().item()\n"
    )
    done = subprocess.run([sys.executable, "-c", program], env=environment, capture_output=True, text=True, timeout=600)
    assert done.returncode == 0, done.stderr
