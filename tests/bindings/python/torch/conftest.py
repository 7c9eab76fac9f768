"""A device whose memory is poisoned where it is new, so that what is read too early or too late gives other numbers."""

import gc
import os
import pathlib
import sys

# Before PyTorch is there, and for the programs that tests start: the tests run side by side, so that further threads
# would wait for a core, which OpenMP's threads do by computing.
os.environ.setdefault("OMP_NUM_THREADS", "1")
os.environ.setdefault("TORCHINDUCTOR_COMPILE_THREADS", "1")

import pytest
import torch

import libstagehand as sh

sys.path.insert(0, str(pathlib.Path(__file__).parent))
sys.path.append(str(pathlib.Path(__file__).parents[3] / "cli"))  # broken files, which the command refuses too

from models import Net, host, size_of

torch.set_num_threads(1)  # the same order of additions in every run


def pytest_configure(config):
    config.addinivalue_line("markers", "xdist_group(name): tests that run in one process, because they share the GPU")
    config.addinivalue_line("markers", "gpu: tests on a GPU, skipped where PyTorch can use none")
    config.addinivalue_line("markers", "long: tests that take long, and run if STAGEHAND_TEST_ALL is set")


def pytest_collection_modifyitems(items):
    no_gpu = pytest.mark.skip(reason="there is no GPU that PyTorch can use")
    for item in items:
        if item.get_closest_marker("long") and not os.environ.get("STAGEHAND_TEST_ALL"):
            item.add_marker(pytest.mark.skip(reason="it takes long: STAGEHAND_TEST_ALL=1 runs it"))
        if item.get_closest_marker("gpu"):
            item.add_marker(pytest.mark.xdist_group("gpu"))  # tests compare the free memory of the GPU
            if not torch.cuda.is_available():
                item.add_marker(no_gpu)


def pytest_collection_finish():
    gc.collect()
    gc.freeze()


before = "no test"  # the test before


@pytest.fixture(autouse=True)
def garbage(request):
    """Looks for garbage that the test before has left. What survives is not looked at again: modules and caches would
    take most of the time of each collection. This is no business of the end of a test, whose models still live then:
    nobody would look at them again, and they would keep their devices open. A test that leaves a device open is named.
    """
    global before
    sys.last_type = sys.last_value = sys.last_traceback = None  # pytest's: the frames of a test that has failed
    gc.collect()
    try:
        sh.Device("host", page_bytes=1 << 15).close()
    except sh.UsageError as error:
        pytest.fail(f"{before} has left the device open: {error}")
    finally:
        before = request.node.nodeid
    gc.freeze()


def pytest_sessionfinish():
    gc.unfreeze()


@pytest.fixture(autouse=True)
def seed():
    torch.manual_seed(7)


@pytest.fixture(autouse=True)
def sources(monkeypatch):
    """Of these models some are copied to pinned memory, and some are used where they lie."""
    monkeypatch.setattr("libstagehand.torch._weights.SMALL_SOURCE", 8 << 10)


@pytest.fixture
def device():
    with host() as device:
        yield device
    gc.collect()


@pytest.fixture(params=["cpu", pytest.param("cuda", marks=pytest.mark.gpu)])
def place(request):
    """Where a test computes. `there` is what it gives for device=."""
    return request.param


@pytest.fixture
def there(place, request):
    return request.getfixturevalue("device") if place == "cpu" else "cuda:0"


@pytest.fixture
def deterministic():
    before = torch.backends.cudnn.deterministic
    torch.backends.cudnn.deterministic = True
    yield
    torch.backends.cudnn.deterministic = before


@pytest.fixture
def net():
    return Net().requires_grad_(False)


@pytest.fixture
def tokens():
    return torch.randint(0, 50, (3, 7))


@pytest.fixture
def quarter(net):
    return size_of(net) // 4
