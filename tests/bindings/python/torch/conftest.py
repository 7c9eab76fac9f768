"""A device whose memory is poisoned where it is new, so that what is read too early or too late gives other numbers."""

import gc
import pathlib
import sys

import pytest
import torch

import libstagehand as sh

sys.path.insert(0, str(pathlib.Path(__file__).parent))

from models import PAGE, Net, size_of

torch.set_num_threads(1)  # the same order of additions in every run


@pytest.fixture(autouse=True)
def seed():
    torch.manual_seed(7)


@pytest.fixture(autouse=True)
def sources(monkeypatch):
    """Of these models some are copied to pinned memory, and some are used where they lie."""
    monkeypatch.setattr("libstagehand.torch._weights.SMALL_SOURCE", 8 << 10)


@pytest.fixture
def device():
    with sh.Device("host", page_bytes=PAGE, backend_options="poison=1") as device:
        yield device
    gc.collect()


@pytest.fixture
def net():
    return Net().requires_grad_(False)


@pytest.fixture
def tokens():
    return torch.randint(0, 50, (3, 7))


@pytest.fixture
def quarter(net):
    return size_of(net) // 4
