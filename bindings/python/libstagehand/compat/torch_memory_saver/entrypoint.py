"""TorchMemorySaver: regions whose memory leaves the device, and what brings it back."""

# mypy: disable-error-code="import-not-found,misc,no-untyped-call,unused-ignore"
from __future__ import annotations

import os
from collections.abc import Iterator
from contextlib import contextmanager
from typing import Any

import torch

from ..._segments import unused_ranges
from .binary_wrapper import BinaryWrapper
from .hooks.base import HookMode, HookUtilBase
from .utils import boolean

_DISABLED = None  # in the place of the tag of a pool: the pool is that of disable()
_BACKENDS = (None, "pinned", "mmap")
_BOOLEANS = (
    "TMS_INIT_ENABLE",
    "TMS_INIT_ENABLE_CPU_BACKUP",
    "TMS_INIT_ENABLE_DISK_BACKUP",
    "TMS_RETAIN_CPU_BACKUP",
    "TMS_STAGEHAND_DRIVER",
)


class TorchMemorySaver:
    """Tensors that are made in a region leave the GPU with pause(), and come back with resume() at the same addresses.
    The first use chooses the hook mode for good.
    """

    def __init__(self) -> None:
        self._impl: _TorchMemorySaverImpl | None = None
        self._impl_ctor_kwargs: dict[str, HookMode] = {}

    @contextmanager
    def region(
        self,
        tag: str = "default",
        enable_cpu_backup: bool = False,
        enable_disk_backup: bool = False,
        cpu_backup_backend: str | None = None,
    ) -> Iterator[None]:
        """Tensors that this thread makes inside of the `with` can leave. Without a backup their contents are lost."""
        with self._ensure_initialized().region(tag, enable_cpu_backup, enable_disk_backup, cpu_backup_backend):
            yield

    @contextmanager
    def cuda_graph(
        self,
        cuda_graph: Any,
        pool: Any = None,
        stream: Any = None,
        capture_error_mode: str = "global",
        tag: str = "default",
        enable_cpu_backup: bool = False,
        cpu_backup_backend: str | None = None,
    ) -> Iterator[None]:
        """Captures a graph whose memory can leave. The hook mode has to be "preload"."""
        impl = self._ensure_initialized()
        with impl.cuda_graph(cuda_graph, pool, stream, capture_error_mode, tag, enable_cpu_backup, cpu_backup_backend):
            yield

    @contextmanager
    def disable(self) -> Iterator[None]:
        """Tensors that are made inside of the `with` stay, although it lies in a region."""
        with self._ensure_initialized().disable():
            yield

    def pause(self, tag: str | None = None) -> None:
        """Releases the memory of a tag, or of all tags. A failure is an error, and leaves the tag as it was."""
        self._ensure_initialized().pause(tag)

    def resume(self, tag: str | None = None) -> None:
        """Brings the memory of a tag back, or that of all tags. After a failure it may be tried again."""
        self._ensure_initialized().resume(tag)

    @property
    def enabled(self) -> bool:
        return True

    def _set_hook_mode(self, hook_mode: HookMode) -> None:
        if self._impl is not None:
            raise AssertionError("hook_mode has to be set before the first use")
        HookUtilBase.create(hook_mode)
        self._impl_ctor_kwargs["hook_mode"] = hook_mode

    hook_mode = property(None, _set_hook_mode, doc='"preload" or "torch". It is set before the first use.')

    @property
    def memory_margin_bytes(self) -> int:
        """Memory that allocations in regions leave free on their GPU."""
        raise NotImplementedError("memory_margin_bytes can only be set")

    @memory_margin_bytes.setter
    def memory_margin_bytes(self, value: int) -> None:
        self._ensure_initialized()._binary_wrapper.cdll.set_memory_margin_bytes(value)

    @property
    def retain_cpu_backup(self) -> bool:
        """Whether host memory is kept after resume(). The library keeps it in any case, for the next pause()."""
        return bool(self._ensure_initialized()._binary_wrapper.cdll.tms_get_retain_cpu_backup())

    @retain_cpu_backup.setter
    def retain_cpu_backup(self, value: bool) -> None:
        self._ensure_initialized()._binary_wrapper.cdll.tms_set_retain_cpu_backup(value)

    def get_cpu_backup(self, x: torch.Tensor, zero_copy: bool = False) -> torch.Tensor | None:
        """Returns the contents of a tensor whose memory is away, in a tensor of its own. `zero_copy` changes nothing.
        None: the memory is on the device, or it is not of a region. Contents without a backup are an error.
        """
        return self._ensure_initialized().get_cpu_backup(x)

    def set_disk_backup_dir(self, path: str | os.PathLike[str]) -> None:
        self._ensure_initialized()._binary_wrapper.cdll.tms_set_disk_backup_dir(os.fsencode(path))
        os.environ["TMS_DISK_BACKUP_DIR"] = os.fspath(path)  # Python has read the environment at its start

    def _ensure_initialized(self) -> _TorchMemorySaverImpl:
        if self._impl is None:
            self._impl = _TorchMemorySaverImpl(**self._impl_ctor_kwargs)
        return self._impl


class _TorchMemorySaverImpl:
    """What exists from the first use on. Other packages use `_binary_wrapper.cdll`, `_mem_pools` and `_hook_mode`."""

    def __init__(self, hook_mode: HookMode = "preload") -> None:
        _check_environment()
        self._hook_mode = hook_mode
        self._hook_util = HookUtilBase.create(hook_mode)
        self._binary_wrapper = BinaryWrapper(self._hook_util.get_path_binary())
        self._mem_pools: dict[tuple[Any, ...], Any] = {}
        self._cdll = self._binary_wrapper.cdll
        if torch.version.hip:
            self._cdll.tms_stagehand_set_backend(b"hip")

    @contextmanager
    def region(
        self, tag: str, enable_cpu_backup: bool, enable_disk_backup: bool, cpu_backup_backend: str | None
    ) -> Iterator[None]:
        _check_backups(enable_cpu_backup, enable_disk_backup, cpu_backup_backend)
        key = (tag, enable_cpu_backup, enable_disk_backup, cpu_backup_backend, torch.cuda.current_device())
        with self._configured(tag, enable_cpu_backup, enable_disk_backup, cpu_backup_backend):
            if key not in self._mem_pools:
                self._mem_pools[key] = torch.cuda.MemPool(self._hook_util.get_allocator())
            with torch.cuda.use_mem_pool(self._mem_pools[key]):
                yield

    @contextmanager
    def cuda_graph(
        self,
        cuda_graph: Any,
        pool: Any,
        stream: Any,
        capture_error_mode: str,
        tag: str,
        enable_cpu_backup: bool,
        cpu_backup_backend: str | None,
    ) -> Iterator[None]:
        if self._hook_mode != "preload":
            raise AssertionError(f"cuda_graph() needs hook_mode='preload', and it is {self._hook_mode!r}")
        _check_backups(enable_cpu_backup, False, cpu_backup_backend)
        with (
            torch.cuda.graph(cuda_graph, pool=pool, stream=stream, capture_error_mode=capture_error_mode),
            self._configured(tag, enable_cpu_backup, False, cpu_backup_backend),
        ):
            yield

    @contextmanager
    def disable(self) -> Iterator[None]:
        if not self._cdll.tms_get_interesting_region():
            raise AssertionError("disable() was called outside of a region")
        # The pool is kept: PyTorch ends the process if a pool is destroyed while another one, like the region's, is
        # in use.
        key = (_DISABLED, torch.cuda.current_device())
        if key not in self._mem_pools:
            self._mem_pools[key] = torch.cuda.MemPool()
        self._cdll.tms_set_interesting_region(False)
        try:
            with torch.cuda.use_mem_pool(self._mem_pools[key]):
                yield
        finally:
            self._cdll.tms_set_interesting_region(True)

    @contextmanager
    def _configured(
        self, tag: str, enable_cpu_backup: bool, enable_disk_backup: bool, cpu_backup_backend: str | None
    ) -> Iterator[None]:
        before = self._config()
        wanted: dict[str, Any] = {
            "tag": tag,
            "interesting_region": True,
            "enable_cpu_backup": enable_cpu_backup,
            "cpu_backup_backend": cpu_backup_backend,
            "enable_disk_backup": enable_disk_backup,
        }
        self._binary_wrapper.set_config(**wanted)
        try:
            yield
            if self._config() != wanted:
                raise AssertionError(f"the region had {wanted}, and now this thread has {self._config()}")
        finally:
            self._binary_wrapper.set_config(**before)

    def _config(self) -> dict[str, Any]:
        """Returns what this thread has set."""
        return {
            "tag": self._cdll.tms_get_current_tag().decode(),
            "interesting_region": self._cdll.tms_get_interesting_region(),
            "enable_cpu_backup": self._cdll.tms_get_enable_cpu_backup(),
            "cpu_backup_backend": self._cdll.tms_get_cpu_backup_backend().decode() or None,
            "enable_disk_backup": self._cdll.tms_get_enable_disk_backup(),
        }

    def pause(self, tag: str | None) -> None:
        self._binary_wrapper.pause(tag, self._unused())

    def resume(self, tag: str | None) -> None:
        self._binary_wrapper.resume(tag)

    def _unused(self) -> list[tuple[int, int]]:
        """Returns what no tensor uses in the pools of regions. Those of captured graphs are left out: replays may hand
        contents to each other in memory that no tensor has any more.
        """
        pools = [pool.id for key, pool in self._mem_pools.items() if key[0] != _DISABLED]
        segments = [segment for id in pools for segment in torch.cuda.memory_snapshot(id)]
        if boolean("TMS_INIT_ENABLE") and torch.cuda.is_initialized():
            segments += [one for one in torch.cuda.memory_snapshot() if tuple(one["segment_pool_id"]) == (0, 0)]
        return unused_ranges(segments)

    def get_cpu_backup(self, x: torch.Tensor) -> torch.Tensor | None:
        if not x.is_contiguous():
            raise AssertionError("get_cpu_backup() needs a contiguous tensor")
        contents = torch.empty(x.shape, dtype=x.dtype, device="cpu")
        return contents if self._binary_wrapper.read(x.data_ptr(), x.nbytes, contents.data_ptr()) else None


def _check_backups(enable_cpu_backup: bool, enable_disk_backup: bool, cpu_backup_backend: str | None) -> None:
    if enable_cpu_backup and enable_disk_backup:
        raise AssertionError("enable_cpu_backup and enable_disk_backup exclude each other")
    if cpu_backup_backend not in _BACKENDS:
        raise ValueError(f"cpu_backup_backend={cpu_backup_backend!r} is none of {_BACKENDS}")
    if cpu_backup_backend is not None and not enable_cpu_backup:
        raise ValueError(f"cpu_backup_backend={cpu_backup_backend!r} needs enable_cpu_backup=True")
    if cpu_backup_backend == "mmap" and torch.version.hip:
        raise ValueError("cpu_backup_backend='mmap' is not for ROCm")


def _check_environment() -> None:
    """Wrong variables are errors. torch_memory_saver ends the process for them."""
    for variable in _BOOLEANS:
        boolean(variable)
    backend = os.environ.get("TMS_INIT_CPU_BACKUP_BACKEND")
    if backend not in _BACKENDS:
        raise ValueError(f"TMS_INIT_CPU_BACKUP_BACKEND={backend!r} is neither 'pinned' nor 'mmap'")
    for variable in ("PYTORCH_CUDA_ALLOC_CONF", "PYTORCH_ALLOC_CONF"):
        if "expandable_segments:true" in os.environ.get(variable, "").lower().replace(" ", ""):
            raise RuntimeError(f"{variable} has expandable_segments:True, with which memory of regions cannot leave")
