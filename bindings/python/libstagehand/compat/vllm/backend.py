"""The backend itself, and the pools in which its worker allocates."""

# mypy: disable-error-code="import-not-found,misc,no-untyped-call,unused-ignore"
from __future__ import annotations

import gc
from collections.abc import Iterable

import torch
from vllm.device_allocator.sleep_mode_backend import SleepModeBackend

from ..._device import Device
from ..._generated import Contents, OccupancyState
from ...torch import PausablePool, pausable

_WEIGHTS = "weights"
_pools: dict[str, PausablePool] = {}  # of the worker of this process, by tag


def pool_of(tag: str) -> PausablePool:
    """Returns the pool for a tag on the current GPU. Contents other than weights are lost in a sleep."""
    contents = Contents.STAGE if tag == _WEIGHTS else Contents.DROP
    return _pools.setdefault(tag, pausable(tag, torch.cuda.current_device(), contents=contents))


def _by_device(tags: Iterable[str]) -> list[tuple[Device, list[str]]]:
    """Returns the devices of pools, each with those of the tags that have memory there or had some."""
    found: dict[str, tuple[Device, list[str]]] = {}
    for tag in tags:
        pool = _pools.get(tag)
        if pool is not None and any(info.tag == tag for info in pool.device.occupancies()):
            found.setdefault(pool.device.name, (pool.device, []))[1].append(tag)
    return list(found.values())


def _pause(tags: Iterable[str], contents: Contents) -> None:
    gc.collect()
    weights = _pools.get(_WEIGHTS)
    if weights is not None and contents == Contents.DEFAULT:
        weights.trim()  # segments that no tensor uses go, and their device memory is not taken again
    for device, names in _by_device(tags):
        unused = [one for name in names for one in _pools[name].unused()]
        device.pause(names, contents=contents, repeat=True, unused=unused)


class StagehandSleepBackend(SleepModeBackend):
    """A sleep keeps the weights in pinned host memory, or loses them (level 2). Addresses stay, so that graphs stay
    valid. A call that fails leaves each tag awake or asleep, with all its contents, and may be repeated.
    """

    def suspend(self, level: int = 1) -> None:
        """Puts all tags to sleep that are awake."""
        if level not in (1, 2):
            raise ValueError(f"level {level} is neither 1 nor 2")
        _pause(_pools, Contents.DEFAULT if level == 1 else Contents.DROP)

    def resume(self, tags: list[str] | None = None) -> None:
        """Wakes tags that are asleep. Tags without memory are left out."""
        for device, names in _by_device(_pools if tags is None else tags):
            device.resume(names, repeat=True)

    def discard(self, tags: tuple[str, ...]) -> None:
        """Puts tags to sleep that are awake, and loses their contents."""
        _pause(tags, Contents.DROP)

    def state(self) -> str:
        """Returns SUSPENDED as long as a tag is asleep."""
        states = {info.state for device, names in _by_device(_pools) for info in map(device.occupancy, names)}
        if states <= {OccupancyState.RUNNING}:
            return "RUNNING"
        return "RESUMING" if OccupancyState.RESUMING in states else "SUSPENDED"

    @classmethod
    def is_supported(cls) -> bool:
        return bool(torch.cuda.is_available())

    @classmethod
    def preserves_communicators(cls) -> bool:
        return True

    @classmethod
    def preserves_compiled_artifacts(cls) -> bool:
        return True

    @classmethod
    def preserves_graphs_with_communicators(cls) -> bool:
        """Returns False, because communicators may have registered memory that a sleep replaces."""
        return False

    @classmethod
    def supports_durable_storage(cls) -> bool:
        return False
