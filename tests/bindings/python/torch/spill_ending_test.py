"""The end of a process, and of objects in any order, with graphs that were never used."""

import gc
import subprocess
import sys

import pytest
from spilling import made, nothing_is_left, spilling, step

import libstagehand as sh

PROGRAM = """
import torch
import libstagehand as sh
import libstagehand.torch as st

device = sh.Device("host", backend_options="latency=3000000")
model = torch.nn.Sequential(*(torch.nn.Linear(64, 64) for _ in range(8)))
spilled = st.spill_activations(model, device=device, least=1)
with spilled:
    kept = [model(torch.randn(16, 64)) for _ in range(3)]
{rest}
"""


@pytest.mark.parametrize(
    "rest",
    [
        "",
        "import sys; sys.modules['kept'] = kept; sys.modules['spilled'] = spilled",
        pytest.param("kept.append(kept)\ndel spilled, device", marks=pytest.mark.long),
        pytest.param("import threading; threading.Thread(target=kept.clear).start()", marks=pytest.mark.long),
    ],
)
def test_trap_30_exit_with_copies_in_flight(rest):
    done = subprocess.run(
        [sys.executable, "-c", PROGRAM.format(rest=rest)], capture_output=True, text=True, timeout=120
    )
    assert (done.returncode, done.stderr) == (0, "")


FAILED_BACKWARD = """
import torch
import libstagehand as sh
import libstagehand.torch as st

class Fails(torch.autograd.Function):
    @staticmethod
    def forward(ctx, x):
        return x.clone()
    @staticmethod
    def backward(ctx, grad):
        raise ValueError("no gradient")

def run():
    device = sh.Device("host", budget_bytes=1 << 20)
    x = torch.randn(64, 64, requires_grad=True)
    model = torch.nn.Sequential(*(torch.nn.Linear(64, 64) for _ in range(4)))
    with {scope}:
        loss = model(x * x).sum() + Fails.apply(x * 3).sum()
        try:
            loss.backward()
        except ValueError as error:
            print(error)

run()
"""


@pytest.mark.parametrize(
    "scope",
    [
        "st.spill_activations(model, device=device, least=1)",
        pytest.param("st.spill_activations(model, device=device, least=1, recompute=True)", marks=pytest.mark.long),
        "st.stream(model.requires_grad_(False), device)",
    ],
)
def test_exit_after_a_failed_backward(scope):
    """PyTorch keeps nodes of that backward until the main thread ends, which is after the interpreter."""
    done = subprocess.run(
        [sys.executable, "-c", FAILED_BACKWARD.format(scope=scope)], capture_output=True, text=True, timeout=120
    )
    assert (done.returncode, done.stdout, done.stderr) == (0, "no gradient\n", "")


def test_the_device_closes_with_the_last_tensor():
    device = sh.Device("host", page_bytes=4096)
    model, x = made("mlp")
    with spilling(model, device) as spilled:
        out = model(x)
    device.close()
    del spilled
    with pytest.raises(sh.UsageError, match="a Spiller that is not closed"):
        sh.Device("host", page_bytes=8192)
    out.sum().backward()
    del out
    gc.collect()
    sh.Device("host", page_bytes=8192).close()


def test_a_backward_after_the_end_is_an_error(device):
    model, x = made("mlp")
    with spilling(model, device) as spilled:
        out = model(x)
    spilled.close()
    with pytest.raises(sh.UsageError, match="closed|handle|HANDLE"):
        out.sum().backward()
    del out


def test_traps_6_and_7_the_stream_is_asked_for_at_each_call(device, monkeypatch):
    from libstagehand.torch._spill_device import SpilledDevice

    model, x = made("mlp")
    asked = []
    stream = SpilledDevice.stream
    monkeypatch.setattr(SpilledDevice, "stream", lambda self: asked.append(1) or stream(self))
    with spilling(model, device) as spilled:
        for _ in range(2):
            before = spilled.stats().saved
            asked.clear()
            step(model, x)
            assert len(asked) == 2 * (spilled.stats().saved - before)
        assert nothing_is_left(spilled)
