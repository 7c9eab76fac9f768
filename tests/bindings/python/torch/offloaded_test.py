"""Models that accelerate or diffusers moves are refused by name, with the call that undoes it; other hooks are not."""

import pytest
import torch
from models import Net, size_of
from torch import nn

import libstagehand.torch as st

accelerate = pytest.importorskip("accelerate")
hooks = pytest.importorskip("accelerate.hooks")


def streams_after(net, device, tokens, want):
    with st.stream(net, device, budget=size_of(net) // 4):
        return torch.equal(net(tokens)["logits"], want)


def test_offloaded_to_host_memory_by_accelerate(device, net, tokens):
    want = net(tokens)["logits"]
    accelerate.cpu_offload(net, torch.device("cpu"))
    with pytest.raises(ValueError, match=r"Net\.embed is offloaded.*AlignDevicesHook.*remove_hook_from_module\(model"):
        st.stream(net, device)
    hooks.remove_hook_from_module(net, recurse=True)
    assert streams_after(net, device, tokens, want)


def test_offloaded_as_a_whole_by_accelerate(device, net, tokens):
    want = net(tokens)["logits"]
    accelerate.cpu_offload_with_hook(net, torch.device("cpu"))
    with pytest.raises(ValueError, match=r"Net is offloaded.*CpuOffload.*remove_hook_from_module"):
        st.stream(net, device)
    hooks.remove_hook_from_module(net, recurse=True)
    assert streams_after(net, device, tokens, want)


def test_offloaded_to_the_disk_by_accelerate(device, net, tmp_path):
    state = net.state_dict()
    with torch.device("meta"):
        meta = Net().requires_grad_(False)
    from accelerate.utils import offload_state_dict

    offload_state_dict(tmp_path, state)
    accelerate.disk_offload(meta, tmp_path, torch.device("cpu"))
    with pytest.raises(ValueError, match=r"Net\.embed is offloaded to the disk.*without device_map="):
        st.stream(meta, device)


def test_dispatched_to_several_devices(device, net, tmp_path):
    places = {"embed": "cpu", "layers": "cpu", "head": "disk"}
    accelerate.dispatch_model(net, places, main_device="cpu", offload_dir=tmp_path)
    with pytest.raises(ValueError, match="is offloaded"):
        st.stream(net, device)


def test_a_hook_that_places_inputs_on_the_same_device_is_innocent(device, net, tokens):
    want = net(tokens)["logits"]
    hooks.add_hook_to_module(net, hooks.AlignDevicesHook(execution_device="cpu", io_same_device=True))
    hooks.add_hook_to_module(net.layers[0], hooks.AlignDevicesHook(io_same_device=True))
    assert streams_after(net, device, tokens, want)


def test_hooks_that_move_no_weights_are_innocent(device, net, tokens):
    want = net(tokens)["logits"]
    hooks.add_hook_to_module(net.head, hooks.SequentialHook(hooks.ModelHook(), hooks.ModelHook()))
    assert streams_after(net, device, tokens, want)


def test_a_hook_for_another_device_is_refused(device, net):
    hook = hooks.AlignDevicesHook()
    hooks.add_hook_to_module(net.head, hooks.SequentialHook(hooks.ModelHook(), hook))
    hook.execution_device = 3
    with pytest.raises(ValueError, match=r"Net\.head is offloaded or placed by accelerate"):
        st.stream(net, device)


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
