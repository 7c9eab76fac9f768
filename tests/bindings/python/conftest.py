"""A small model on the host backend, and programs of their own for what ends a process."""

import gc
import pathlib
import random
import subprocess
import sys

import pytest

import libstagehand as sh

PAGE = 4096


class Model:
    """Blocks from bytes, in a quarter of their size."""

    def __init__(self, device, count=8, size=9 * PAGE):
        source = random.Random(7)
        self.contents = [source.randbytes(size + 111 * i) for i in range(count)]
        self.runtime = sh.Runtime(device, name="model")
        self.blocks = self.runtime.register_blocks(
            sh.BlockDesc(data, name=f"layer {i}") for i, data in enumerate(self.contents)
        )

    def step(self):
        """Compares every byte."""
        with self.runtime.step():
            for block, data in zip(self.blocks, self.contents):
                with self.runtime.acquire(block) as view:
                    assert view.buffer == data


@pytest.fixture
def device():
    with sh.Device("host", budget_bytes=32 * PAGE, page_bytes=PAGE, backend_options="poison=1") as device:
        yield device
    gc.collect()  # no test hands what it has left to the next one


@pytest.fixture
def model(device):
    model = Model(device)
    yield model
    model.runtime.close()


@pytest.fixture
def program(tmp_path):
    """Runs a program; returns its output. It has to end by itself, without a word on standard error, unless told
    otherwise.
    """

    def run(text, expect=0, stderr=""):
        path = tmp_path / "program.py"
        path.write_text(text)
        done = subprocess.run([sys.executable, str(path)], capture_output=True, text=True, timeout=60, cwd=tmp_path)
        assert (done.returncode, stderr in done.stderr if stderr else done.stderr == "") == (expect, True), (
            done.stderr + done.stdout
        )
        return done.stdout

    return run


@pytest.fixture
def weights(tmp_path) -> pathlib.Path:
    path = tmp_path / "weights.bin"
    path.write_bytes(random.Random(9).randbytes(40 * PAGE))
    return path
