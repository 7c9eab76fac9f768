"""The interface of torch_memory_saver, with the host for a GPU and stand-ins for PyTorch's pools.
gpu_memory_saver_test.py has PyTorch's own.
"""

import contextlib
import ctypes
import importlib
import os
import pathlib
import threading
import weakref

import pytest
import torch
from pools_on_host import MIB, current, device, is_all  # noqa: F401

import libstagehand as sh
from libstagehand.compat import torch_memory_saver as package
from libstagehand.compat.torch_memory_saver import hooks, utils
from libstagehand.compat.torch_memory_saver.binary_wrapper import BinaryWrapper

TORCH_LIBRARY = utils.get_binary_path_from_package("torch_memory_saver_hook_mode_torch")
PRELOAD_LIBRARY = utils.get_binary_path_from_package("torch_memory_saver_hook_mode_preload")


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
            assert bool(region.functions.alloc(2 * MIB)) == torch.cuda.is_available()  # CUDA's own, where it is
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


def tensor_at(address, size, dtype=torch.uint8):
    """A tensor whose memory lies there. On a host that is memory of the process."""
    return torch.frombuffer((ctypes.c_uint8 * size).from_address(address), dtype=dtype)


def test_a_backup_on_disk_is_a_file(saver, device, current, tmp_path, monkeypatch):
    monkeypatch.setenv("TMS_DISK_BACKUP_DIR", "")
    saver.set_disk_backup_dir(tmp_path)
    with saver.region("weights", enable_disk_backup=True):
        address = segment(current)
    whole = tensor_at(address, 2 * MIB, torch.float32)
    whole.copy_(torch.arange(len(whole), dtype=torch.float32))
    want = whole.clone()
    for _ in range(2):
        saver.pause("weights")
        kept = device.occupancy("weights")
        assert kept.file_bytes >= 2 * MIB and kept.host_bytes == 0  # naming no tensor, whose memory is away
        backup = saver.get_cpu_backup(whole)
        saver.resume("weights")
        assert torch.equal(backup, want) and torch.equal(whole, want)
    saver.set_disk_backup_dir(tmp_path / "missing")
    want = whole.add_(1).clone()
    with pytest.raises(sh.Error, match="missing"):
        saver.pause("weights")
    assert torch.equal(whole, want)


def test_a_backup_can_be_read_while_the_memory_is_away(saver, current):
    with saver.region("weights", enable_cpu_backup=True):
        address = segment(current)
    with saver.region("cache"):
        lost = segment(current)
    whole = tensor_at(address, 2 * MIB, torch.float32)
    whole.copy_(torch.arange(len(whole), dtype=torch.float32))
    want = whole.clone().view(64, 8192)
    rows, part = whole.view(64, 8192), whole[1000:3000]
    assert saver.get_cpu_backup(rows) is None and saver.get_cpu_backup(torch.ones(4), zero_copy=True) is None
    saver.pause()
    backup = saver.get_cpu_backup(rows)
    assert backup.shape == (64, 8192) and backup.dtype == torch.float32 and torch.equal(backup, want)
    assert torch.equal(saver.get_cpu_backup(part, zero_copy=True), want.flatten()[1000:3000])
    assert saver.get_cpu_backup(whole[:0]) is None and saver.get_cpu_backup(torch.ones(4)) is None
    with pytest.raises(sh.UsageError, match="cache.*dropped"):
        saver.get_cpu_backup(tensor_at(lost, MIB))
    saver.resume()
    assert torch.equal(rows, want) and torch.equal(backup, want) and saver.get_cpu_backup(rows) is None
    with pytest.raises(AssertionError, match="contiguous"):
        saver.get_cpu_backup(torch.ones(4, 4).T)


def test_a_backup_by_pointer(saver, current):
    pointer_to = saver._impl._binary_wrapper.cdll.tms_get_cpu_backup_pointer
    with saver.region("weights", enable_cpu_backup=True):
        address = segment(current, value=3)
    where = ctypes.cast(address + MIB, ctypes.POINTER(ctypes.c_uint8))
    assert not pointer_to(where, 100)
    saver.pause("weights")
    first = pointer_to(where, 100)
    assert first[:100] == [3] * 100 and ctypes.addressof(pointer_to(where, 100).contents) == ctypes.addressof(
        first.contents
    )
    assert not pointer_to(where, 2 * MIB) and not pointer_to(ctypes.cast(8, ctypes.POINTER(ctypes.c_uint8)), 1)
    saver.resume("weights")
    assert not pointer_to(where, 100)


def test_a_pause_copies_what_tensors_use(saver, device, current, monkeypatch):
    with saver.region("weights", enable_cpu_backup=True):
        address = current[-1].segment((3 * MIB, "active_allocated"), (5 * MIB, "inactive"))
        with saver.disable():
            pass
    ctypes.memset(address, 5, 8 * MIB)
    saver.pause()
    info = device.occupancy("weights")
    assert info.staged_bytes == info.host_bytes == 4 * MIB
    saver.resume()
    assert is_all(address, 5, 3 * MIB)
    # With TMS_INIT_ENABLE, also in PyTorch's pool outside of regions, but not in those of captured graphs.
    monkeypatch.setenv("TMS_INIT_ENABLE", "1")
    monkeypatch.setattr(torch.cuda, "is_initialized", lambda: True)
    blocks = [{"size": 2 * MIB, "state": "inactive"}]
    parts = [
        {"address": address + offset * MIB, "blocks": blocks, "segment_pool_id": id}
        for offset, id in ((0, (0, 0)), (2, (7, 0)))
    ]
    monkeypatch.setattr(torch.cuda, "memory_snapshot", lambda id=None: parts if id is None else [])
    saver.pause()
    assert device.occupancy("weights").staged_bytes == 6 * MIB
    saver.resume()
    assert is_all(address + 2 * MIB, 5, MIB)


def test_what_other_packages_look_for(saver, current, monkeypatch):
    assert package.TorchMemorySaver()._impl is None and package.torch_memory_saver._impl is None
    assert saver._impl._hook_mode == "torch" and saver._impl._mem_pools == {}
    with pytest.raises(AssertionError, match="preload"), saver.cuda_graph(None):
        pass
    for path in (TORCH_LIBRARY, PRELOAD_LIBRARY):
        assert b"TMS_INIT_ENABLE_DISK_BACKUP" in path.read_bytes() and "torch_memory_saver" in str(path)
    with pytest.raises(RuntimeError, match="nothing_cu13.abi3.so or nothing.abi3.so"):
        monkeypatch.setattr(torch.version, "cuda", "13.1")
        utils.get_binary_path_from_package("nothing")
    # Programs look beside the package.
    assert TORCH_LIBRARY.parent == pathlib.Path(package.__file__).parent.parent
    names = [
        *(f"tms_{verb}_{what}" for verb in ("set", "get") for what in ("interesting_region", "current_tag")),
        *(f"tms_{verb}_enable_{what}_backup" for verb in ("set", "get") for what in ("cpu", "disk")),
        *(f"tms_{verb}_{what}" for verb in ("set", "get") for what in ("cpu_backup_backend", "retain_cpu_backup")),
        *("tms_set_disk_backup_dir", "set_memory_margin_bytes", "tms_pause", "tms_resume"),
        *("tms_get_cpu_backup_pointer", "tms_torch_malloc", "tms_torch_free"),
        *(f"tms_stagehand_{what}" for what in ("set_backend", "pause", "read", "last_error")),
    ]
    library, preload = ctypes.CDLL(str(TORCH_LIBRARY)), ctypes.CDLL(str(PRELOAD_LIBRARY))
    assert [name for name in names if not hasattr(library, name)] == []
    replaced = ["cudaMalloc", "cudaFree", "hipMalloc", "hipFree", "cuMemAlloc_v2", "cuMemFree_v2"]
    replaced += ["cuGetProcAddress", "cuGetProcAddress_v2"]
    assert [name for name in [*names, *replaced] if not hasattr(preload, name)] == []
    assert [name for name in replaced if hasattr(library, name)] == []
    for module, attributes in {
        "binary_wrapper": ["BinaryWrapper"],
        "entrypoint": ["TorchMemorySaver"],
        "hooks.base": ["HookMode", "HookUtilBase"],
        "hooks.mode_preload": ["HookUtilModePreload", "configure_subprocess"],
        "hooks.mode_torch": ["HookUtilModeTorch"],
        "testing_utils": ["empty_cache", "get_and_print_gpu_memory", "get_device"],
        "utils": ["change_env", "get_binary_path_from_package", "is_xpu"],
    }.items():
        found = importlib.import_module(f"{package.__name__}.{module}")
        assert [name for name in attributes if not hasattr(found, name)] == []


def test_a_library_for_another_version_of_cuda_goes_first(monkeypatch, tmp_path):
    """As torch_memory_saver looks for files."""
    (tmp_path / "package").mkdir()
    monkeypatch.setattr(utils, "__file__", str(tmp_path / "package" / "utils.py"))
    monkeypatch.setattr(torch.version, "cuda", "12.9")
    for path in (tmp_path / "stem.abi3.so", tmp_path / "package/stem.abi3.so", tmp_path / "stem_cu12.abi3.so"):
        path.touch()
        assert utils.get_binary_path_from_package("stem") == path
    monkeypatch.setattr(torch.version, "cuda", None)
    assert utils.get_binary_path_from_package("stem") == tmp_path / "package/stem.abi3.so"


def test_another_library_is_named(monkeypatch):
    with pytest.raises(RuntimeError, match="libc.so.6 is not libstagehand's"):
        BinaryWrapper("libc.so.6")


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
        ("TMS_STAGEHAND_DRIVER", "all", ValueError),
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


def test_a_wrapper_of_its_own(device):
    wrapper = BinaryWrapper(TORCH_LIBRARY)
    wrapper.set_config(tag="mine", interesting_region=True, enable_cpu_backup=True, cpu_backup_backend="mmap")
    try:
        assert wrapper.cdll.tms_get_current_tag() == b"mine" and wrapper.cdll.tms_get_cpu_backup_backend() == b"mmap"
    finally:
        with contextlib.suppress(ValueError):
            wrapper.set_config(tag="default", interesting_region=False, enable_cpu_backup=False)
    assert not wrapper.cdll.tms_get_interesting_region() and wrapper.cdll.tms_get_cpu_backup_backend() == b""
