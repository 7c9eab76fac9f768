"""Stand-ins for the memory pools of PyTorch, which are for GPUs only. They call the functions of the pools as PyTorch
does.
"""

import ctypes
import gc

import pytest
import torch

import libstagehand as sh
from libstagehand.torch import _pools

MIB = 1 << 20


class Functions:
    """The functions of a pool, as PyTorch has them."""

    def __init__(self, path, alloc, free):
        library = ctypes.CDLL(path)
        size, stream = ctypes.c_ssize_t, ctypes.c_void_p
        self._alloc, self._free = getattr(library, alloc), getattr(library, free)
        self._alloc.restype, self._alloc.argtypes = ctypes.c_void_p, [size, ctypes.c_int, stream]
        self._free.restype, self._free.argtypes = None, [ctypes.c_void_p, size, ctypes.c_int, stream]

    def allocator(self):
        return self

    def alloc(self, size, device=0):
        return self._alloc(size, device, None)

    def free(self, address):
        self._free(address, 0, 0, None)


class Pool:
    """A pool of PyTorch, which takes segments from its allocator."""

    current = []  # the pools that tensors are made in, the innermost last

    def __init__(self, allocator=None):
        self.functions, self.id = allocator, []

    def __enter__(self):
        Pool.current.append(self)

    def __exit__(self, *raised):
        assert Pool.current.pop() is self

    def segment(self, *blocks):
        size = sum(size for size, _ in blocks)
        address = self.functions.alloc(size)
        if address is None:
            raise torch.OutOfMemoryError("CUDA out of memory")
        blocks = [{"size": size, "state": state} for size, state in blocks]
        self.id.append({"address": address, "total_size": size, "blocks": blocks})
        return address


def stand_in(monkeypatch):
    """Puts the stand-ins in the place of PyTorch's pools. Returns the pools in use, the innermost last."""
    monkeypatch.setattr(torch.cuda.memory, "CUDAPluggableAllocator", Functions)
    monkeypatch.setattr(torch.cuda, "MemPool", Pool)
    monkeypatch.setattr(torch.cuda, "use_mem_pool", lambda pool, device=None: pool)
    monkeypatch.setattr(torch.cuda, "memory_snapshot", lambda id=(): id)
    monkeypatch.setattr(torch.cuda, "current_device", lambda: 0)
    monkeypatch.setattr(torch.cuda, "is_current_stream_capturing", lambda: False)
    return Pool.current


@pytest.fixture
def device(request):
    """A host with little memory: that of the module's BUDGET, and a third more outside the budget."""
    budget = getattr(request.module, "BUDGET", 48 * MIB)
    with sh.Device("host", budget_bytes=budget, backend_options=f"capacity={budget * 4 // 3};poison=1") as device:
        yield device
    gc.collect()


@pytest.fixture
def current(device, monkeypatch):
    """Takes the host for a GPU, also in pausable(). Returns the pools in use."""
    monkeypatch.setattr(_pools, "_gpu", lambda _: device)
    monkeypatch.setattr(_pools, "_pools", {})
    yield stand_in(monkeypatch)
    for pool in _pools._pools.values():
        for segment in [segment for id in pool._ids for segment in id]:
            pool._pool.functions.free(segment["address"])
        pool._hooks.close()


def is_all(address, value, size=2 * MIB):
    return ctypes.string_at(address, size) == bytes([value]) * size
