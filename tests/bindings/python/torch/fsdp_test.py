"""Activations of models that PyTorch's fully_shard() has divided, over a process group of one rank."""

import pytest
import torch
from models import PAGE, equal, refused
from spilling import away, made, nothing_is_left, spilling
from torch import nn

import libstagehand as sh
import libstagehand.torch as st

if not torch.distributed.is_available():
    pytest.skip("this PyTorch has no torch.distributed", allow_module_level=True)

from torch.distributed.device_mesh import init_device_mesh
from torch.distributed.fsdp import CPUOffloadPolicy, MixedPrecisionPolicy, fully_shard

POLICIES = {
    "given up after each layer": {},
    "kept until the backward": {"reshard_after_forward": False},
    "computes in bf16": {"mp_policy": MixedPrecisionPolicy(param_dtype=torch.bfloat16, reduce_dtype=torch.float32)},
    "weights on the host": {"offload_policy": CPUOffloadPolicy(pin_memory=False)},
}
OPTIONS = {
    "all": {"keep": 0},
    "some": {"keep": "20KiB"},
    "computed again": {"keep": 0, "recompute": True},
    "planned": {"peak": "20KiB"},
    "planned without recomputation": {"peak": "20KiB", "recompute": False},
}


@pytest.fixture(scope="module")
def mesh(tmp_path_factory):
    name = f"file://{tmp_path_factory.mktemp('group') / 'rendezvous'}"
    torch.distributed.init_process_group("gloo", init_method=name, rank=0, world_size=1)
    yield init_device_mesh("cpu", (1,))
    torch.distributed.destroy_process_group()


def sharded(model, mesh, **policy):
    """Divides the layers of a model, and then what is left of it."""
    for part in [one for one in model.modules() if isinstance(one, nn.ModuleList)]:
        for layer in part:
            fully_shard(layer, mesh=mesh, **policy)
    return fully_shard(model, mesh=mesh, **policy)


def step(model, x, between=lambda: None):
    """Returns the loss and the gradients of one step."""
    torch.manual_seed(3)
    model.zero_grad(set_to_none=True)
    loss = model(x).float().square().mean()
    between()
    loss.backward()
    return [loss.detach(), *(one.grad.full_tensor().clone() for one in model.parameters())]


@pytest.mark.parametrize("options", OPTIONS)
@pytest.mark.parametrize("policy", POLICIES)
@pytest.mark.parametrize("name", ["mlp", "blocks"])
def test_gradients(device, mesh, name, policy, options):
    model, x = made(name)
    model = sharded(model, mesh, **POLICIES[policy])
    want = step(model, x)
    with spilling(model, device, **OPTIONS[options]) as spilled:
        for _ in range(5):
            assert equal(step(model, x, lambda: away(spilled)), want)
            assert nothing_is_left(spilled)
    assert spilled.stats().spilled > 0
    assert (spilled.plan is not None) == ("peak" in OPTIONS[options])


class Normed(nn.Module):
    """A norm inside of a layer, and one at its end, whose result the next layer saves."""

    def __init__(self):
        super().__init__()
        self.inner, self.last = nn.LayerNorm(64), nn.LayerNorm(64)
        self.up, self.down = nn.Linear(64, 64), nn.Linear(64, 64)

    def forward(self, x):
        return self.last(x + self.down(self.up(self.inner(x))))


@pytest.mark.parametrize("known", [True, False])
def test_results_of_weights_that_go_are_computed_from_copies(device, mesh, known):
    model, x = nn.Sequential(nn.ModuleList(Normed() for _ in range(3)).extend([])), torch.randn(8, 64)
    model.forward = lambda x: model[0][2](model[0][1](model[0][0](x)))
    want = step(sharded(model, mesh), x)
    bytes = []
    for recompute in (False, True):
        with spilling(model if known else None, device, recompute=recompute) as spilled:
            for _ in range(2):
                assert equal(step(model, x, lambda: away(spilled)), want)
        bytes.append(spilled.stats().spill_bytes // 2)
    # The inner norm of each layer. The weights and the mean are what it is computed from.
    assert bytes[0] - bytes[1] >= 2 * x.nbytes
    assert spilled.recompute_stats().argument_bytes >= 2 * 3 * 2 * 64 * 4


def test_optimizers_and_gradients_that_add_up(device, mesh):
    finals = []
    for options in (None, {"keep": 0}, {"keep": 0, "recompute": True}):
        torch.manual_seed(7)
        model, x = made("blocks")
        sharded(model, mesh)
        optimizer = torch.optim.AdamW(model.parameters(), lr=1e-2)
        spilled = None if options is None else spilling(model, device, **options)
        for seed in range(3):
            for last in (False, True):
                model.set_requires_gradient_sync(last)
                torch.manual_seed(seed)
                if spilled is None:
                    model(x).square().mean().backward()
                else:
                    with spilled:
                        loss = model(x).square().mean()
                    loss.backward()
            optimizer.step()
            optimizer.zero_grad()
        finals.append([one.full_tensor().detach().clone() for one in model.parameters()])
    assert equal(finals[1], finals[0]) and equal(finals[2], finals[0])


def test_gradients_do_not_leave(mesh):
    model, _ = made("mlp")
    sharded(model, mesh)
    with sh.Device("host", page_bytes=PAGE) as device, pytest.raises(TypeError, match=r"layers\.0\.0\.weight.*CPUOff"):
        spilling(model, device, keep=0, offload_gradients=True)


def test_weights_that_fsdp_has_divided_are_not_streamed(device, mesh):
    model, x = made("mlp")
    model = sharded(model.requires_grad_(False), mesh)
    want = model(x)
    with refused(r"weight is a DTensor, as fully_shard\(\).*CPUOffloadPolicy.*outside='.*weight'", TypeError):
        st.stream(model, device, budget="50%")
    assert torch.equal(model(x), want)
