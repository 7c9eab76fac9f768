"""The end of a process with graphs that were never used, or whose backward has failed."""

import subprocess
import sys

import pytest

BEGIN = """
import torch
import libstagehand as sh
import libstagehand.torch as st
"""
NEVER_USED = """
device = sh.Device("host", backend_options="latency=3000000")
model = torch.nn.Sequential(*(torch.nn.Linear(64, 64) for _ in range(8)))
spilled = st.spill_activations(model, device=device, least=1)
with spilled:
    kept = [model(torch.randn(16, 64)) for _ in range(3)]
"""
FAILED_BACKWARD = """
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


def run(program):
    done = subprocess.run([sys.executable, "-c", BEGIN + program], capture_output=True, text=True, timeout=120)
    assert (done.returncode, done.stderr) == (0, "")
    return done.stdout


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
    run(NEVER_USED + rest)


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
    assert run(FAILED_BACKWARD.format(scope=scope)) == "no gradient\n"
