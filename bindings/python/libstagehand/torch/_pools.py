"""Pools of PyTorch's allocator whose memory leaves the device and comes back at the same addresses."""

# mypy: disable-error-code="import-not-found,misc,no-untyped-call,unused-ignore"
from __future__ import annotations

import os
import threading
from contextlib import AbstractContextManager
from dataclasses import dataclass
from types import TracebackType
from typing import Any

import torch

from .._device import Device
from .._errors import UsageError, closed
from .._generated import Contents, DeviceFlag, DeviceKind, OccupancyChange, OccupancyInfo, OccupancyState, Status
from .._segments import unused_ranges
from ._device_names import begin_gpu, library_name
from ._devices import AnyDevice
from ._formats import FORMATS
from ._pool_hooks import PATH, PoolHooks
from ._pool_uses import PoolUses

_SETTINGS = ("PYTORCH_CUDA_ALLOC_CONF", "PYTORCH_ALLOC_CONF")


@dataclass(frozen=True)
class PoolMemory:
    """Memory of a pool, in bytes."""

    reserved_bytes: int
    """What PyTorch's allocator has taken from the library."""
    live_bytes: int
    """What tensors use of it."""


class PausablePool:
    """Memory for tensors that leaves the device and comes back. Tensors that are made inside `with pool:` lie in it.

    The tensors keep their addresses in a pause, so CUDA graphs that use them stay valid. Nothing may use them until
    resume(). Threads that the `with` starts, such as those of a backward, do not use the pool.
    """

    def __init__(self, tag: str, device: Device, contents: Contents, format: int = 0, opened: bool = False) -> None:
        self.tag, self.device, self.contents, self.format = tag, device, contents, format
        self._opened = opened  # the device, for this pool
        self._hooks = PoolHooks(device.name, device.ordinal, tag, contents, format)
        self._allocator = torch.cuda.memory.CUDAPluggableAllocator(
            str(PATH), self._hooks.alloc_name, self._hooks.free_name
        )
        self._pool: Any = torch.cuda.MemPool(self._allocator.allocator())
        self._ids = [self._pool.id]  # of all pools of PyTorch that this one has had
        self._entered = threading.local()
        _allocators.append(self._allocator)

    def __repr__(self) -> str:
        return f"<libstagehand.torch.PausablePool {self.tag!r} on {self.device.name}>"

    def close(self) -> None:
        """Ends the pool. Tensors in it stay, and can still be paused by Device.pause(). The pool keeps its device open
        until they are gone and torch.cuda.empty_cache() has given their memory back.
        """
        if self._pool is None:
            return
        with _making:
            _pools.pop((self.device.name, self.tag, self.contents, self.format), None)
        retired, self._pool = [self._pool], None
        _uses.retire(retired)
        self._hooks.close()
        if self._opened:
            self.device.close()

    def __enter__(self) -> PausablePool:
        if self._pool is None:
            raise closed("pool")
        info = self._info()
        if info is not None and info.state != OccupancyState.RUNNING:
            raise UsageError(
                Status.ERROR_INVALID_STATE, f"the tag {self.tag!r} is {info.state.name.lower()}: resume it"
            )
        use: AbstractContextManager[None] = torch.cuda.use_mem_pool(self._pool, self.device.ordinal)
        _uses.begin()
        try:
            use.__enter__()
        except BaseException:
            _uses.end()
            raise
        self._entered.uses = [*getattr(self._entered, "uses", ()), use]
        return self

    def __exit__(
        self, kind: type[BaseException] | None, exception: BaseException | None, trace: TracebackType | None
    ) -> None:
        try:
            self._entered.uses.pop().__exit__(kind, exception, trace)
        finally:
            _uses.end()
        if isinstance(exception, torch.OutOfMemoryError) and (text := self._hooks.take_error()):
            exception.add_note(f"libstagehand, for the tag {self.tag!r}: {text}")

    def trim(self) -> None:
        """Gives segments back that no tensor uses. Tensors that are made later take none of the free space in segments
        that are partly in use. The segments go at the end of the last `with pool:` if any pool is in use.
        """
        if self._pool is None:
            raise closed("pool")
        # PyTorch gives no memory of a pool back as long as the pool can be used.
        retired, self._pool = [self._pool], torch.cuda.MemPool(self._allocator.allocator())
        self._ids = [id for id in self._ids if torch.cuda.memory_snapshot(id)] + [self._pool.id]
        _uses.retire(retired)

    def pause(self, *, contents: Contents = Contents.DEFAULT, repeat: bool = False) -> OccupancyChange:
        """Releases the memory of the tag, like Device.pause(). Does nothing if nothing was ever allocated. What no
        tensor uses is not copied, as far as it fills pages of 2 MiB.
        """
        tags = self.tag if self._info() else []
        return self.device.pause(tags, contents=contents, repeat=repeat, unused=self.unused())

    def resume(self, *, repeat: bool = False) -> OccupancyChange:
        """Brings the memory of the tag back, like Device.resume()."""
        return self.device.resume(self.tag if self._info() else [], repeat=repeat)

    def memory(self) -> PoolMemory:
        """Returns how much memory the pool has, and how much of it tensors use."""
        segments = self._segments()
        reserved = sum(int(segment["total_size"]) for segment in segments)
        return PoolMemory(reserved, reserved - sum(size for _, size in unused_ranges(segments)))

    def unused(self) -> list[tuple[int, int]]:
        """Returns the addresses and sizes of the parts of the pool that no tensor uses, for Device.pause()."""
        return unused_ranges(self._segments())

    def _segments(self) -> list[dict[str, Any]]:
        return [segment for id in self._ids for segment in torch.cuda.memory_snapshot(id)]

    def _info(self) -> OccupancyInfo | None:
        """Returns the figures of the tag, or None if nothing was ever allocated with it."""
        return next((info for info in self.device.occupancies() if info.tag == self.tag), None)


# Of all pools that were ever made: PyTorch may call them as long as there are tensors.
_allocators: list[Any] = []
_pools: dict[tuple[str, str, Contents, int], PausablePool] = {}
_making = threading.Lock()
_uses = PoolUses()


def pausable(
    tag: str = "default",
    device: AnyDevice = "cuda",
    *,
    contents: Contents | str = Contents.STAGE,
    format: torch.dtype | None = None,
) -> PausablePool:
    """Returns the pool of a GPU for a tag and for what becomes of the contents in a pause: "stage", "drop" or "zero".
    With `format`, the type of most of the tensors, they cross the link packed in pauses, without loss. There is one
    pool for each combination, until it is closed.

        with libstagehand.torch.pausable("weights"):
            model = Model().cuda()
    """
    kind = Contents[contents.upper()] if isinstance(contents, str) else Contents(contents)
    kind = Contents.STAGE if kind == Contents.DEFAULT else kind
    if format is not None and format not in FORMATS:
        raise ValueError(f"format={format} cannot be packed: the types are {', '.join(map(str, FORMATS))}")
    packed = int(FORMATS[format]) if format is not None else 0
    gpu = _gpu(device)
    with _making:
        key = (gpu.name, tag, kind, packed)
        if key not in _pools:
            _pools[key] = PausablePool(tag, gpu, kind, packed, opened=gpu is not device)
        return _pools[key]


def _gpu(device: AnyDevice) -> Device:
    """Returns the library's device. A device or a setting that cannot have such pools is refused by name."""
    if not isinstance(device, Device):
        name = library_name(device)
        if not name.startswith(("cuda", "hip")):
            raise ValueError(f"device={device!r} is not a GPU, and PyTorch has memory pools for GPUs only")
        begin_gpu(device)
        device = Device(name)
    if device.kind not in (DeviceKind.CUDA, DeviceKind.ROCM):
        raise ValueError(f"{device.name} is not a GPU, and PyTorch has memory pools for GPUs only")
    if not device.flags & DeviceFlag.FIXED_ADDRESSES:
        raise ValueError(f"{device.name} cannot map memory by pages, so tensors would not keep their addresses")
    for setting in _SETTINGS:
        if "expandable_segments:true" in os.environ.get(setting, "").lower().replace(" ", ""):
            raise RuntimeError(
                f"{setting} has expandable_segments:True, with which PyTorch takes no memory from other allocators: "
                "set expandable_segments:False"
            )
    begin_gpu(device.name)  # PyTorch has no pools before
    return device
