"""The interface of torch_memory_saver, with the host for a GPU and stand-ins for PyTorch's pools.
gpu_memory_saver_test.py has PyTorch's own.
"""

import contextlib
import ctypes
import gc
import os
import subprocess
import sys
import textwrap
import threading
import weakref

import pytest
import torch
from pools_on_host import stand_in

import libstagehand as sh
from libstagehand.compat import torch_memory_saver as package
from libstagehand.compat.torch_memory_saver import hooks, utils
from libstagehand.compat.torch_memory_saver.binary_wrapper import BinaryWrapper

MIB = 1 << 20
TORCH_LIBRARY = utils.get_binary_path_from_package("torch_memory_saver_hook_mode_torch")
PRELOAD_LIBRARY = utils.get_binary_path_from_package("torch_memory_saver_hook_mode_preload")


@pytest.fixture
def device():
    with sh.Device("host", budget_bytes=48 * MIB, backend_options="capacity=64MiB;poison=1") as device:
        yield device
    gc.collect()


@pytest.fixture
def current(monkeypatch):
    return stand_in(monkeypatch)


@pytest.fixture
def saver(device, current):
    saver = package.TorchMemorySaver()
    saver.hook_mode = "torch"
    saver._ensure_initialized()._binary_wrapper.cdll.tms_stagehand_set_backend(b"host")
    yield saver
    saver.memory_margin_bytes = 0
    for pool in saver._impl._mem_pools.values():
        for segment in pool.id:
            pool.functions.free(segment["address"])


def segment(current, size=2 * MIB, value=None):
    address = current[-1].segment((size, "active_allocated"))
    if value is not None:
        ctypes.memset(address, value, size)
    return address


def is_all(address, value, size=2 * MIB):
    return ctypes.string_at(address, size) == bytes([value]) * size


def test_contents_come_back_with_a_backup(saver, device, current):
    with saver.region(enable_cpu_backup=True):
        kept = segment(current, value=7)
    with saver.region("cache"):
        lost = segment(current, value=8)
    saver.pause()
    info = device.occupancy()
    assert (info.state, info.staged_bytes) == (sh.OccupancyState.RELEASED, 2 * MIB)
    saver.resume()
    assert is_all(kept, 7) and not is_all(lost, 8)


def test_tags(saver, device, current):
    with saver.region("weights", enable_cpu_backup=True):
        weights = segment(current, value=1)
        with saver.region("inner"):
            segment(current)
        segment(current)
    assert {info.tag: info.allocations for info in device.occupancies()} == {"weights": 2, "inner": 1}
    saver.pause("weights")
    assert device.occupancy("inner").state is sh.OccupancyState.RUNNING
    saver.pause()  # the other
    assert device.occupancy().state is sh.OccupancyState.RELEASED
    saver.resume("inner")
    saver.resume("weights")
    assert is_all(weights, 1)
    saver.pause("of no allocation")
    saver.resume("of no allocation")


def test_failures_are_errors_and_not_the_end_of_the_process(saver, device, current):
    with saver.region("weights", enable_cpu_backup=True):
        weights = segment(current, size=20 * MIB, value=1)
    with pytest.raises(sh.UsageError, match="weights"):
        saver.resume("weights")
    saver.pause("weights")
    with pytest.raises(sh.UsageError, match="weights"):
        saver.pause("weights")
    with pytest.raises(torch.OutOfMemoryError), saver.region("weights"):
        segment(current)
    other = device.alloc(40 * MIB, tag="other")
    with pytest.raises(sh.BudgetError):
        saver.resume("weights")
    other.close()
    saver.resume("weights")
    assert is_all(weights, 1, 20 * MIB)


def test_memory_may_end_while_it_is_away(saver, device, current):
    with saver.region("weights", enable_cpu_backup=True):
        segment(current), segment(current)
    pool = next(iter(saver._impl._mem_pools.values()))
    saver.pause()
    pool.functions.free(pool.id.pop()["address"])
    saver.resume()
    assert device.occupancy("weights").allocations == 1


def test_pools_are_kept_by_what_they_are_for(saver, current):
    def pool(**options):
        with saver.region(**options):
            return current[-1]

    first = pool(tag="a")
    assert pool(tag="a") is first
    others = [
        pool(tag="b"),
        pool(tag="a", enable_cpu_backup=True),
        pool(tag="a", enable_cpu_backup=True, cpu_backup_backend="mmap"),
        pool(tag="a", enable_cpu_backup=True, cpu_backup_backend="pinned"),
    ]
    with pytest.warns(UserWarning, match="not on disk"):
        others.append(pool(tag="a", enable_disk_backup=True))
    assert len({id(one) for one in [first, *others]}) == 6 == len(saver._impl._mem_pools)


def test_a_region_is_of_one_thread(saver, device, current):
    cdll = saver._impl._binary_wrapper.cdll
    seen = []
    with saver.region("weights", enable_cpu_backup=True):
        assert cdll.tms_get_interesting_region() and cdll.tms_get_current_tag() == b"weights"
        thread = threading.Thread(
            target=lambda: seen.append((cdll.tms_get_interesting_region(), cdll.tms_get_current_tag()))
        )
        thread.start()
        thread.join()
    assert seen == [(False, b"default")]
    assert not cdll.tms_get_interesting_region() and cdll.tms_get_current_tag() == b"default"


def test_a_region_ends_as_it_began(saver, current):
    cdll = saver._impl._binary_wrapper.cdll
    with pytest.raises(AssertionError, match="other"), saver.region("weights"):
        cdll.tms_set_current_tag(b"other")
    assert cdll.tms_get_current_tag() == b"default" and not cdll.tms_get_interesting_region() and current == []
    with pytest.raises(ZeroDivisionError), saver.region("weights"):
        raise ZeroDivisionError
    assert cdll.tms_get_current_tag() == b"default" and not cdll.tms_get_interesting_region()


def test_disable(saver, device, current):
    cdll = saver._impl._binary_wrapper.cdll
    with saver.region("weights"):
        region = current[-1]
        with saver.disable():
            outside = weakref.ref(current[-1])
            assert outside() is not region and outside().functions is None
            assert not cdll.tms_get_interesting_region()
            assert region.functions.alloc(2 * MIB) is None  # no runtime of CUDA is here
        assert cdll.tms_get_interesting_region() and current == [region]
        assert outside() is not None  # PyTorch ends the process if it destroys a pool while another is in use
    assert device.occupancies() == []
    with pytest.raises(AssertionError, match="outside of a region"), saver.disable():
        pass


def test_backups_are_checked(saver):
    for options, error in (
        ({"enable_cpu_backup": True, "enable_disk_backup": True}, AssertionError),
        ({"cpu_backup_backend": "pinned"}, ValueError),
        ({"enable_cpu_backup": True, "cpu_backup_backend": "disk"}, ValueError),
        ({"tag": ""}, ValueError),
        ({"tag": "x" * 64}, ValueError),
    ):
        with pytest.raises(error), saver.region(**options):
            pass


def test_the_margin_is_left_free(saver, device, current):
    free = device.memory().free_bytes
    saver.memory_margin_bytes = free - 3 * MIB
    with saver.region("weights"):
        segment(current)
        with pytest.raises(torch.OutOfMemoryError):
            segment(current, 30 * MIB)
    saver.memory_margin_bytes = 0
    with saver.region("weights"):
        segment(current, 30 * MIB)
    with pytest.raises(NotImplementedError):
        print(saver.memory_margin_bytes)


def test_settings(saver, tmp_path, monkeypatch):
    assert saver.enabled and not saver.retain_cpu_backup
    saver.retain_cpu_backup = True
    assert saver.retain_cpu_backup
    saver.retain_cpu_backup = False
    monkeypatch.setenv("TMS_DISK_BACKUP_DIR", "/tmp")
    saver.set_disk_backup_dir(tmp_path)
    assert os.environ["TMS_DISK_BACKUP_DIR"] == str(tmp_path)
    with pytest.raises(AssertionError, match="before the first use"):
        saver.hook_mode = "preload"
    with pytest.raises(AttributeError):
        print(saver.hook_mode)
    with pytest.raises(ValueError, match="neither"):
        package.TorchMemorySaver().hook_mode = "other"


def test_a_backup_is_none_while_the_memory_runs(saver, current):
    with saver.region("weights", enable_cpu_backup=True):
        address = segment(current, value=1)

    class Tensor:
        def is_contiguous(self):
            return True

        def data_ptr(self):
            return address + MIB

    assert saver.get_cpu_backup(Tensor()) is None and saver.get_cpu_backup(torch.ones(4), zero_copy=True) is None
    saver.pause()
    with pytest.raises(sh.UsageError, match="resume"):
        saver.get_cpu_backup(Tensor())
    assert saver.get_cpu_backup(torch.ones(4)) is None
    saver.resume()
    with pytest.raises(AssertionError, match="contiguous"):
        saver.get_cpu_backup(torch.ones(4, 4).T)


def test_what_other_packages_look_for(saver, current, monkeypatch):
    assert package.TorchMemorySaver()._impl is None and package.torch_memory_saver._impl is None
    assert saver._impl._hook_mode == "torch" and saver._impl._mem_pools == {}
    with pytest.raises(AssertionError, match="preload"), saver.cuda_graph(None):
        pass
    for path in (TORCH_LIBRARY, PRELOAD_LIBRARY):
        assert b"TMS_INIT_ENABLE_DISK_BACKUP" in path.read_bytes() and "torch_memory_saver" in str(path)
    with pytest.raises(FileNotFoundError):
        utils.get_binary_path_from_package("nothing")
    names = [
        *(f"tms_{verb}_{what}" for verb in ("set", "get") for what in ("interesting_region", "current_tag")),
        *(f"tms_{verb}_enable_{what}_backup" for verb in ("set", "get") for what in ("cpu", "disk")),
        *(f"tms_{verb}_{what}" for verb in ("set", "get") for what in ("cpu_backup_backend", "retain_cpu_backup")),
        *("tms_set_disk_backup_dir", "set_memory_margin_bytes", "tms_pause", "tms_resume"),
        *("tms_get_cpu_backup_pointer", "tms_torch_malloc", "tms_torch_free"),
    ]
    library, preload = ctypes.CDLL(str(TORCH_LIBRARY)), ctypes.CDLL(str(PRELOAD_LIBRARY))
    assert [name for name in names if not hasattr(library, name)] == []
    assert all(hasattr(preload, name) for name in [*names, "cudaMalloc", "cudaFree", "hipMalloc", "hipFree"])
    assert not hasattr(library, "cudaMalloc")


def test_the_preload_mode_needs_its_library(current, monkeypatch):
    for preloaded in ("", "/other.so", f"{PRELOAD_LIBRARY}:/x/torch_memory_saver.so"):
        monkeypatch.setenv("LD_PRELOAD", preloaded)
        with pytest.raises(AssertionError, match="LD_PRELOAD"):
            package.TorchMemorySaver()._ensure_initialized()
    monkeypatch.setenv("LD_PRELOAD", "/before.so")
    with package.configure_subprocess():
        assert os.environ["LD_PRELOAD"] == f"{PRELOAD_LIBRARY}:/before.so"
        assert hooks.base.HookUtilBase.create("preload").get_path_binary() == str(PRELOAD_LIBRARY)
    assert os.environ["LD_PRELOAD"] == "/before.so"
    monkeypatch.delenv("LD_PRELOAD")
    with package.configure_subprocess():
        assert os.environ["LD_PRELOAD"] == str(PRELOAD_LIBRARY)
    assert "LD_PRELOAD" not in os.environ


@pytest.mark.parametrize(
    "variable, value, error",
    [
        ("TMS_INIT_ENABLE", "on", ValueError),
        ("TMS_RETAIN_CPU_BACKUP", "", ValueError),
        ("TMS_INIT_CPU_BACKUP_BACKEND", "disk", ValueError),
        ("PYTORCH_CUDA_ALLOC_CONF", "expandable_segments:True", RuntimeError),
    ],
)
def test_wrong_variables_are_errors(current, monkeypatch, variable, value, error):
    monkeypatch.setenv(variable, value)
    saver = package.TorchMemorySaver()
    saver.hook_mode = "torch"
    with pytest.raises(error, match=variable):
        saver._ensure_initialized()


def run(text, **variables):
    """Runs a program with the preloaded library, and the host in the place of the GPU."""
    with package.configure_subprocess():
        environment = {**os.environ, **variables}
    done = subprocess.run(
        [sys.executable, "-c", textwrap.dedent(text)], env=environment, capture_output=True, text=True, timeout=120
    )
    assert done.returncode == 0, done.stdout + done.stderr
    return done.stdout.split()


PROGRAM = """
    import ctypes
    runtime = ctypes.CDLL(None)
    runtime.tms_stagehand_set_backend(b"host")
    runtime.cudaFree.argtypes = [ctypes.c_void_p]
    def malloc(size):
        memory = ctypes.c_void_p()
        print(runtime.cudaMalloc(ctypes.byref(memory), ctypes.c_size_t(size)))
        return memory.value
"""


def test_a_preloaded_library_takes_allocations():
    told = run(
        PROGRAM
        + """
    import libstagehand as sh
    first = malloc(4 << 20)
    runtime.tms_set_interesting_region(True)
    runtime.tms_set_enable_cpu_backup(True)
    runtime.tms_set_current_tag(b"weights")
    device = sh.Device("host")
    memory, small = malloc(4 << 20), malloc(100)
    malloc(0), malloc(1 << 50)
    ctypes.memset(memory, 9, 4 << 20)
    print(runtime.tms_pause(None), device.occupancy("weights").state.name, runtime.tms_pause(b"weights"))
    print(runtime.tms_resume(None), ctypes.string_at(memory, 4 << 20) == b"\\x09" * (4 << 20))
    print(runtime.cudaFree(memory), runtime.cudaFree(small), device.occupancy("weights").allocations)
    """
    )
    # Without CUDA's runtime, an allocation outside of a region fails.
    assert told[0] == "999" and told[1:5] == ["0", "0", "0", "2"]
    assert told[5:] == ["0", "RELEASED", str(int(sh.Status.ERROR_INVALID_STATE)), "0", "True", "0", "0", "0"]


def test_the_environment_enables_a_preloaded_library():
    told = run(
        PROGRAM
        + """
    import libstagehand as sh
    device = sh.Device("host")
    memory = malloc(4 << 20)
    print(runtime.tms_pause(None), device.occupancy("default").staged_bytes)
    """,
        TMS_INIT_ENABLE="1",
        TMS_INIT_ENABLE_CPU_BACKUP="true",
    )
    assert told == ["0", "0", str(4 << 20)]


def test_an_import_of_torch_memory_saver_gives_this_package():
    told = run(
        """
    from libstagehand.compat import torch_memory_saver as ours
    ours.install()
    ours.install()
    import torch_memory_saver
    from torch_memory_saver import configure_subprocess, torch_memory_saver as saver
    from torch_memory_saver.utils import get_binary_path_from_package
    import torch_memory_saver.hooks.mode_preload, torch_memory_saver.binary_wrapper
    print(torch_memory_saver is ours, saver is ours.torch_memory_saver)
    mode = torch_memory_saver.hooks.mode_preload
    print(mode.configure_subprocess is configure_subprocess is ours.configure_subprocess)
    """
    )
    assert told == ["True"] * 3
    told = run(
        """
    import sys, types
    sys.modules["torch_memory_saver"] = types.ModuleType("torch_memory_saver")
    sys.modules["torch_memory_saver"].__file__ = "/other"
    from libstagehand.compat import torch_memory_saver as ours
    try:
        ours.install()
    except RuntimeError as error:
        print("/other" in str(error))
    """
    )
    assert told == ["True"]


def test_a_wrapper_of_its_own(device):
    wrapper = BinaryWrapper(TORCH_LIBRARY)
    wrapper.set_config(tag="mine", interesting_region=True, enable_cpu_backup=True, cpu_backup_backend="mmap")
    try:
        assert wrapper.cdll.tms_get_current_tag() == b"mine" and wrapper.cdll.tms_get_cpu_backup_backend() == b"mmap"
    finally:
        with contextlib.suppress(ValueError):
            wrapper.set_config(tag="default", interesting_region=False, enable_cpu_backup=False)
    assert not wrapper.cdll.tms_get_interesting_region() and wrapper.cdll.tms_get_cpu_backup_backend() == b""
