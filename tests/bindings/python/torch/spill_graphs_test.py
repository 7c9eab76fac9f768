"""Graphs that are used twice, never, in parts, or again, and compiled ones: retain_graph, double backward, checkpoints,
exceptions, threads.
"""

import functools
import gc
import inspect
import threading

import pytest
import torch
from models import equal
from spilling import Mlp, check_model, made, nothing_is_left, spilling, step
from torch import nn
from torch.utils import checkpoint as checkpoints
from torch.utils.checkpoint import checkpoint

import libstagehand as sh


def test_trap_13_graphs_that_are_never_used_or_in_part(device):
    model, x = made("mlp")
    with spilling(model, device) as spilled:
        model(x)
        assert nothing_is_left(spilled)
        outs = [model(x) for _ in range(2)]
        assert not nothing_is_left(spilled)
        want = step(model, x)
        outs.pop().sum().backward()
        assert spilled.stats().away_bytes + spilled.stats().leaving_bytes
        thread = threading.Thread(target=outs.clear)  # the last tensor dies there
        thread.start()
        thread.join()
        assert nothing_is_left(spilled) and equal(step(model, x), want)


class Fails(torch.autograd.Function):
    @staticmethod
    def forward(ctx, x, at):
        if at == "forward":
            raise ValueError("as planned")
        return x.clone()

    @staticmethod
    def backward(ctx, grad):
        raise ValueError("as planned")


@pytest.mark.parametrize("options", [{}, {"recompute": True}, {"peak": "10KB"}], ids=str)
@pytest.mark.parametrize("at", ["forward", "backward"])
def test_trap_22_an_exception(device, at, options):
    model, x = made("mlp")
    want = step(model, x)
    with spilling(model, device, **options) as spilled:
        for fails in (True, False, True, True, False, False):
            if not fails:
                assert equal(step(model, x), want) and nothing_is_left(spilled)
                continue
            with pytest.raises(ValueError, match="as planned"):
                model(Fails.apply(model(x), at)).sum().backward()
            gc.collect()
            for one in spilled._devices.values():
                one.forget_restored()
            assert options or nothing_is_left(spilled)
    with pytest.raises(ValueError, match="as planned"), spilled:
        Fails.apply(model(x), "forward")
    assert torch._C._autograd._top_saved_tensors_default_hooks(False) is None
    assert not torch._C._len_torch_dispatch_stack()
    assert equal(step(model, x), want)


class Checkpointed(nn.Module):
    def __init__(self, **options):
        super().__init__()
        self.layers = Mlp().layers
        self.options = options

    def forward(self, x):
        x = x * 1.0
        if self.options.get("use_reentrant"):
            x.requires_grad_()
        for layer in self.layers:
            x = x + checkpoint(layer, x, **self.options)
        return x


@pytest.mark.parametrize("options", [{}, {"recompute": True}], ids=str)
@pytest.mark.parametrize("reentrant", [False, True])
def test_trap_14_checkpoints(device, reentrant, options):
    model, x = Checkpointed(use_reentrant=reentrant), torch.randn(16, 64)
    saved = check_model(device, model, x, steps=1, **options).stats().saved
    # The inputs of the checkpoints, and what is around them: nothing of what a backward computes again.
    assert options or 5 <= saved <= 9


def test_a_checkpoint_around_the_scope(device):
    model, x = made("mlp")

    def inside(x):
        with spilling(model, device):
            return model(x)

    want = step(model, x)
    model.zero_grad()
    loss = checkpoint(inside, x, use_reentrant=False).square().mean()
    loss.backward()
    assert equal([loss.detach(), *(one.grad for one in model.parameters())], want)


def test_selective_checkpoints(device):
    context = functools.partial(checkpoints.create_selective_checkpoint_contexts, [torch.ops.aten.addmm.default])
    shown = "respect_saved_tensors_hooks" in inspect.signature(checkpoint).parameters
    options = {"use_reentrant": False, "context_fn": context} | ({"respect_saved_tensors_hooks": True} if shown else {})
    spilled = check_model(device, Checkpointed(**options), torch.randn(16, 64))
    # Outputs of products that the checkpoints keep leave, if this PyTorch shows them to hooks.
    assert not shown or spilled.stats().saved >= 2 * (5 + 6)


def test_hooks_of_the_user_and_scopes_within_scopes(device):
    """PyTorch applies the innermost pair only."""
    model, x = made("mlp")
    want = step(model, x)
    with spilling(model, device) as spilled:
        with torch.autograd.graph.save_on_cpu():
            assert equal(step(model, x), want)
        assert spilled.stats().saved == 0
        with spilled, spilled.managed_forward():
            assert equal(step(model, x), want)
        assert equal(step(model, x), want)
    with torch.autograd.graph.save_on_cpu(), spilling(model, device) as outer, spilling(model, device) as inner:
        assert equal(step(model, x), want)
        assert inner.stats().saved and not outer.stats().saved


def test_functional_transforms_are_refused(device):
    with spilling(None, device), pytest.raises(RuntimeError, match="saved tensor hooks"):
        torch.func.grad(lambda x: x.exp().sum())(torch.randn(10))


# Compiled models. PyTorch packs what a compiled part saves after all of that part has run.


class Compiled(nn.Module):
    def __init__(self, backend, whole):
        super().__init__()
        torch._dynamo.reset()
        self.model = Mlp()
        self.call = torch.compile(self.model, backend=backend, fullgraph=True) if whole else self.model
        for layer in () if whole else self.model.layers:
            layer.compile(backend=backend, fullgraph=True)

    def forward(self, x):
        return self.call(x)


@pytest.mark.parametrize("recompute", [False, True])
@pytest.mark.parametrize(
    ("backend", "whole"),
    [
        *((backend, whole) for backend in ("eager", "aot_eager") for whole in (False, True)),
        ("inductor", True),
        pytest.param("inductor", False, marks=pytest.mark.long),
    ],
)
@torch._dynamo.config.patch(recompile_limit=64)  # the layers share their code, and may be compiled again in the scope
def test_trap_19_compiled_models(device, backend, whole, recompute):
    model, x = Compiled(backend, whole), torch.randn(16, 64)
    step(model, x)
    frames = torch._dynamo.utils.counters["frames"]["ok"]
    assert check_model(device, model, x, recompute=recompute).stats().spilled
    assert not recompute or whole or torch._dynamo.utils.counters["frames"]["ok"] - frames <= 5  # it stays compiled


@pytest.mark.parametrize("backend", ["eager", "aot_eager"])
def test_compiled_within_the_scope(device, backend):
    model, x, plain = Compiled(backend, True), torch.randn(16, 64), Mlp()
    plain.load_state_dict(model.model.state_dict())
    want = step(plain, x)
    with spilling(model, device) as spilled:
        for _ in range(3):
            got = step(model, x)
            assert all(torch.allclose(one, other, atol=1e-6) for one, other in zip(got, want))
            assert nothing_is_left(spilled)


def test_a_scope_in_compiled_code(device):
    """The scope breaks the graph, and works."""
    torch._dynamo.reset()
    model, x = made("mlp")
    want, spilled = step(model, x), spilling(model, device)

    @torch.compile(backend="eager")
    def call(x):
        with spilled:
            return model(x)

    model.zero_grad(set_to_none=True)
    loss = call(x).square().mean()
    loss.backward()
    assert equal([loss.detach(), *(one.grad for one in model.parameters())], want)
    assert spilled.stats().saved


# The end.


def test_a_device_closes_with_the_last_tensor():
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


def test_the_end(device):
    model, x = made("mlp")
    config = {"pinned_pool_classes_mb": [1], "slabs_per_class": 3, "telemetry_enabled": False}
    with spilling(model, device, config=config) as spilled:
        with pytest.raises(sh.UsageError, match="with"):
            spilled.close()
        step(model, x)
        assert spilled.trim() >= 3 << 20
    with spilling(model, device) as left:
        out = model(x)
    for one in (spilled, spilled, left):
        one.close()
    with pytest.raises(sh.UsageError, match="closed|handle|HANDLE"):
        out.sum().backward()
    with pytest.raises(sh.UsageError, match="close"):
        spilled.__enter__()
    with pytest.raises(sh.UsageError):
        spilled.stats()
