"""Models that accelerate or diffusers moves are refused by name, with the call that undoes it; other hooks are not."""

import pytest
import torch
from models import refused, size_of
from torch import nn

import libstagehand.torch as st

accelerate = pytest.importorskip("accelerate")
pytest.importorskip("accelerate.utils")
hooks = pytest.importorskip("accelerate.hooks")


def align(net, **options):
    hooks.add_hook_to_module(net, hooks.AlignDevicesHook(**options))


def to_the_disk(net, folder):
    accelerate.utils.offload_state_dict(folder, net.state_dict())
    accelerate.disk_offload(net.to("meta"), folder, torch.device("cpu"))


def to_several_devices(net, folder):
    places = {"embed": "cpu", "layers": "cpu", "head": "disk"}
    accelerate.dispatch_model(net, places, main_device="cpu", offload_dir=folder)


def to_another_device(net, _):
    hook = hooks.AlignDevicesHook()
    hooks.add_hook_to_module(net.head, hooks.SequentialHook(hooks.ModelHook(), hook))
    hook.execution_device = 3


REMEDY = r".*remove_hook_from_module\(model"
# How a model is placed, what the error says, and whether the model streams when its hooks have gone.
OFFLOADED = {
    "host": (
        lambda net, _: accelerate.cpu_offload(net, torch.device("cpu")),
        r"Net\.embed is .*AlignDevicesHook" + REMEDY,
    ),
    "whole": (
        lambda net, _: accelerate.cpu_offload_with_hook(net, torch.device("cpu")),
        r"Net is .*CpuOffload" + REMEDY,
    ),
    "disk": (to_the_disk, r"Net\.embed is offloaded to the disk.*without device_map="),
    "devices": (to_several_devices, "is offloaded"),
    "another device": (to_another_device, r"Net\.head is offloaded or placed by accelerate"),
    "the same device": (
        lambda net, _: (
            align(net, execution_device="cpu", io_same_device=True),
            align(net.layers[0], io_same_device=True),
        ),
        None,
    ),
    "nowhere": (
        lambda net, _: hooks.add_hook_to_module(net.head, hooks.SequentialHook(hooks.ModelHook(), hooks.ModelHook())),
        None,
    ),
}


@pytest.mark.parametrize("name", OFFLOADED)
def test_models_that_accelerate_places(device, net, tokens, tmp_path, name):
    place, why = OFFLOADED[name]
    want = net(tokens)["logits"]
    place(net, tmp_path)
    if why is not None:
        with refused(f"{why}", ValueError):
            st.stream(net, device)
        if name not in ("host", "whole"):
            return
        hooks.remove_hook_from_module(net, recurse=True)
    with st.stream(net, device, budget=size_of(net) // 4):
        assert torch.equal(net(tokens)["logits"], want)


class Wide(nn.Module):
    def __init__(self):
        super().__init__()
        self.blocks = nn.ModuleList(nn.Linear(64, 64) for _ in range(4))

    def forward(self, x):
        for block in self.blocks:
            x = block(x)
        return x


@pytest.mark.parametrize("by", ["leaf_level", "block_level"])
def test_the_group_offloading_of_diffusers(device, by):
    of = pytest.importorskip("diffusers.hooks")
    model, x = Wide().requires_grad_(False), torch.randn(2, 64)
    want = model(x)
    of.apply_group_offloading(model, torch.device("cpu"), torch.device("cpu"), offload_type=by, num_blocks_per_group=1)
    with pytest.raises(ValueError, match=r"Wide has the group offloading of diffusers.*'group_offloading'") as raised:
        st.stream(model, device)
    assert "HookRegistry.check_if_exists_or_initialize(model).remove_hook(name, recurse=True)" in str(raised.value)
    of.HookRegistry.check_if_exists_or_initialize(model).remove_hook("group_offloading", recurse=True)
    with st.stream(model, device):
        assert torch.equal(model(x), want)


def test_other_hooks_of_diffusers_are_innocent(device):
    of = pytest.importorskip("diffusers.hooks")
    model, x = Wide().requires_grad_(False), torch.randn(2, 64)
    want = model(x)
    of.HookRegistry.check_if_exists_or_initialize(model.blocks[0]).register_hook(of.ModelHook(), "mine")
    with st.stream(model, device):
        assert torch.equal(model(x), want)
