"""The sleep backend for vLLM, on a stand-in for vLLM that has its interface as it was published, with the host for a
GPU.
"""

import abc
import ctypes
import importlib
import pathlib
import sys
import tomllib
import types

import pytest
import torch
from pools_on_host import MIB, current, device, is_all  # noqa: F401

import libstagehand as sh
from libstagehand.compat import vllm as plugin
from libstagehand.torch import _pools


class SleepModeBackend(abc.ABC):
    def __init__(self):
        self._state = "RUNNING"

    @abc.abstractmethod
    def suspend(self, level=1): ...

    @abc.abstractmethod
    def resume(self, tags=None): ...

    def state(self):
        return self._state

    def discard(self, tags):
        raise RuntimeError("no selective discard")

    @classmethod
    def is_supported(cls):
        return True


class Factory:
    def __init__(self):
        self.registry = {}

    def register_backend(self, name, module_path, class_name):
        if name in self.registry:
            raise ValueError(f"{name} is registered already")
        self.registry[name] = module_path, class_name

    def create_backend(self, config):
        module, name = self.registry[config.sleep_mode_backend]
        kind = getattr(importlib.import_module(module), name)
        assert issubclass(kind, SleepModeBackend) and kind.is_supported()
        return kind()


class WorkerBase:
    def __init__(self, vllm_config, local_rank=0):
        self.vllm_config, self.local_rank = vllm_config, local_rank


class Worker(WorkerBase):
    """What a worker does with the memory of its model."""

    def _maybe_get_memory_pool_context(self, tag):
        raise NotImplementedError("the pool of vLLM")

    def load(self, current, weights=4 * MIB, cache=6 * MIB):
        addresses = []
        for tag, size in (("weights", weights), ("kv_cache", cache)):
            with self._maybe_get_memory_pool_context(tag=tag):
                addresses.append(current[-1].segment((size, "active_allocated")))
                ctypes.memset(addresses[-1], len(tag), size)
        return addresses


def config(backend="stagehand", sleeps=True):
    model = types.SimpleNamespace(enable_sleep_mode=sleeps, sleep_mode_backend=backend)
    return types.SimpleNamespace(model_config=model)


@pytest.fixture
def vllm(monkeypatch):
    """Puts a stand-in in the place of vLLM. Returns its factory."""
    base = WorkerBase.__init__
    factory = Factory()
    parts = {
        "vllm": {},
        "vllm.device_allocator": {},
        "vllm.device_allocator.sleep_mode_backend": {
            "SleepModeBackend": SleepModeBackend,
            "SleepModeBackendFactory": factory,
        },
        "vllm.v1": {},
        "vllm.v1.worker": {},
        "vllm.v1.worker.worker_base": {"WorkerBase": WorkerBase},
    }
    for name, names in parts.items():
        module = types.ModuleType(name)
        module.__path__ = []
        module.__dict__.update(names)
        monkeypatch.setitem(sys.modules, name, module)
    plugin.register()
    plugin.register()  # vLLM may do so in each process more than once
    yield factory
    WorkerBase.__init__ = base
    sys.modules.pop("libstagehand.compat.vllm.backend", None)


@pytest.fixture
def backend(device, vllm, current, monkeypatch):
    """The sleep backend of a worker, with the host for the GPU."""
    monkeypatch.setattr(torch.cuda, "is_available", lambda: True)
    monkeypatch.setattr(torch.cuda, "empty_cache", lambda: None)
    return vllm.create_backend(config().model_config)


def test_level_1_keeps_the_weights(device, backend, current):
    weights, _ = Worker(config()).load(current)
    assert backend.state() == "RUNNING"
    backend.suspend(level=1)
    info = device.occupancy()
    assert (backend.state(), info.state, info.staged_bytes) == ("SUSPENDED", sh.OccupancyState.RELEASED, 4 * MIB)
    backend.suspend()  # a retry
    backend.resume()
    backend.resume()
    assert backend.state() == "RUNNING" and is_all(weights, len("weights"), 4 * MIB)


def test_unused_segments_are_given_back_before_a_sleep(device, backend, current, monkeypatch):
    trims = []
    monkeypatch.setattr(_pools.PausablePool, "trim", lambda pool: trims.append(pool.tag))
    backend.suspend()
    Worker(config()).load(current)
    backend.suspend(level=1)
    assert trims == ["weights"]
    backend.resume()
    backend.suspend(level=2)
    backend.resume()
    assert trims == ["weights"]


def test_a_sleep_copies_what_tensors_use(device, backend, current):
    worker = Worker(config())
    with worker._maybe_get_memory_pool_context(tag="weights"):
        address = current[-1].segment((3 * MIB, "active_allocated"), (5 * MIB, "inactive"))
    ctypes.memset(address, 5, 8 * MIB)
    backend.suspend(level=1)
    assert device.occupancy("weights").staged_bytes == 4 * MIB
    backend.resume()
    assert is_all(address, 5, 3 * MIB)


def test_level_2_keeps_nothing(device, backend, current):
    weights, _ = Worker(config()).load(current)
    backend.suspend(level=2)
    assert device.occupancy().staged_bytes == 0
    backend.resume()
    assert backend.state() == "RUNNING" and not is_all(weights, len("weights"), 4 * MIB)
    with pytest.raises(ValueError, match="level 3"):
        backend.suspend(3)
    assert backend.state() == "RUNNING"


def test_tags_wake_one_by_one(device, backend, current):
    weights, cache = Worker(config()).load(current)
    backend.suspend()
    backend.resume(["weights", "of no memory"])
    assert backend.state() == "SUSPENDED" and is_all(weights, len("weights"), 4 * MIB)
    assert device.occupancy("kv_cache").state is sh.OccupancyState.RELEASED
    backend.resume(tags=["weights", "kv_cache"])
    assert backend.state() == "RUNNING"
    ctypes.memset(cache, 1, 6 * MIB)
    backend.discard(("kv_cache",))
    assert backend.state() == "SUSPENDED" and device.occupancy("weights").state is sh.OccupancyState.RUNNING
    backend.suspend(1)  # the others
    assert device.occupancy().state is sh.OccupancyState.RELEASED
    backend.resume(None)
    assert is_all(weights, len("weights"), 4 * MIB)


def test_a_failed_wake_keeps_everything(device, backend, current):
    weights, _ = Worker(config()).load(current, weights=20 * MIB)
    backend.suspend()
    other = device.alloc(40 * MIB, tag="other")
    with pytest.raises(sh.BudgetError):
        backend.resume()
    assert backend.state() == "SUSPENDED"
    other.close()
    backend.resume()
    assert backend.state() == "RUNNING" and is_all(weights, len("weights"), 20 * MIB)


def test_memory_of_others_stays(device, backend, current):
    other = device.alloc(2 * MIB, tag="other")
    Worker(config()).load(current)
    backend.suspend()
    assert device.occupancy("other").state is sh.OccupancyState.RUNNING
    device.pause("other")
    backend.resume()
    assert device.occupancy("other").state is sh.OccupancyState.RELEASED and backend.state() == "RUNNING"
    other.close()


def test_a_backend_without_memory(device, backend, current):
    with Worker(config())._maybe_get_memory_pool_context("weights"):
        pass  # a pool of which no memory was taken
    backend.suspend()
    backend.resume()
    backend.discard(("weights",))
    assert backend.state() == "RUNNING" and device.occupancies() == []


def test_only_workers_with_this_backend_are_changed(vllm):
    for other in (config(backend="cumem"), config(sleeps=False)):
        with pytest.raises(NotImplementedError, match="pool of vLLM"):
            Worker(other)._maybe_get_memory_pool_context("weights")
    with pytest.raises(RuntimeError, match="WorkerBase of this vLLM"):
        WorkerBase(config())
    assert Worker(config(), local_rank=3).local_rank == 3
    assert list(vllm.registry) == ["stagehand"]


def test_what_the_backend_says_of_itself(vllm):
    from libstagehand.compat.vllm.backend import StagehandSleepBackend as Backend

    assert Backend.is_supported() == torch.cuda.is_available()
    assert Backend.preserves_communicators() and Backend.preserves_compiled_artifacts()
    assert not Backend.preserves_graphs_with_communicators() and not Backend.supports_durable_storage()


def test_a_vllm_without_backends_is_left_alone(monkeypatch):
    for name in [name for name in sys.modules if name.partition(".")[0] == "vllm"]:
        monkeypatch.delitem(sys.modules, name)
    monkeypatch.setattr(sys, "path", [])
    plugin.register()
    assert not any(name.partition(".")[0] == "vllm" for name in sys.modules)


def test_the_entry_point():
    project = next(
        (found for folder in pathlib.Path(__file__).parents if (found := folder / "pyproject.toml").exists()), None
    )
    if project is None:
        pytest.skip("the sources are not here")
    points = tomllib.loads(project.read_text())["project"]["entry-points"]["vllm.general_plugins"]
    module, _, name = points["stagehand"].partition(":")
    assert getattr(importlib.import_module(module), name) is plugin.register
