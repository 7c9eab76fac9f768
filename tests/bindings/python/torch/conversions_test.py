"""Conversions that the model's own code makes while it runs: to(float32) in a forward, and layerwise casting."""

import copy
import logging

import pytest
import torch
from models import Layer, check_streamed, size_of
from torch import nn

import libstagehand.torch as st


class Router(nn.Module):
    """Converts a part of itself in its forward, as the router of Switch Transformers does."""

    def __init__(self):
        super().__init__()
        self.classifier = nn.Linear(64, 64, bias=False)

    def forward(self, x):
        self.classifier = self.classifier.to(torch.float32)
        return self.classifier(x.float()).to(x.dtype)


class Routed(nn.Module):
    def __init__(self):
        super().__init__()
        self.layers = nn.ModuleList(nn.Sequential(Layer(64), Router()) for _ in range(6))

    def forward(self, x):
        for layer in self.layers:
            x = layer(x)
        return x


@pytest.mark.parametrize("blocks", [None, "layers.*", ["layers.?.0", "layers.?.1.classifier"]])
def test_a_part_that_the_forward_converts_stays_on_the_device(device, caplog, blocks):
    model, x = Routed().bfloat16().requires_grad_(False), torch.randn(2, 64).bfloat16()
    want = copy.deepcopy(model)(x)
    weight = model.layers[3][1].classifier.weight
    with caplog.at_level(logging.INFO, "libstagehand.torch"):
        with st.stream(model, device, budget=size_of(model) // 3, blocks=blocks):
            for _ in range(3):
                assert torch.equal(model(x), want)
            assert model.layers[3][1].classifier.weight.dtype == torch.float32
            with pytest.raises(RuntimeError, match="is streamed as bfloat16 on cpu and cannot be made float16"):
                model.half()
    told = [record.message for record in caplog.records if "the model converts" in record.message]
    assert len(told) == 6 and "layers.3.1.classifier.weight to float32" in told[3] and "16384 bytes" in told[3]
    assert model.layers[3][1].classifier.weight is weight and weight.dtype == torch.bfloat16
    assert torch.equal(model(x), want)


@pytest.mark.parametrize("by", ["diffusers", "accelerate"])
@pytest.mark.parametrize("storage", [torch.bfloat16, torch.float8_e4m3fn])
def test_layerwise_casting(device, by, storage):
    model, x = Routed().requires_grad_(False), torch.randn(2, 64)
    for layer in model.layers:
        layer[1] = Layer(64).requires_grad_(False)
    if by == "diffusers":
        pytest.importorskip("diffusers.hooks").apply_layerwise_casting(model, storage, torch.float32)
    else:
        big = pytest.importorskip("accelerate.big_modeling")
        big.attach_layerwise_casting_hooks(model, storage, torch.float32)

    def call():
        out = model(x)
        assert model.layers[2][0].up.weight.dtype == storage  # the streamed weight again
        return [out]

    check_streamed(device, model, call, budget=size_of(model) // 3)


class Narrows(nn.Module):
    """Converts to a smaller type and back, which loses bits."""

    def __init__(self):
        super().__init__()
        self.layers = nn.ModuleList(Layer(64) for _ in range(6))

    def forward(self, x):
        for layer in self.layers:
            layer.to(torch.bfloat16).to(torch.float32)
            x = layer(x)
        return x


def test_bits_that_a_conversion_loses_are_lost(device):
    model, x = Narrows().requires_grad_(False), torch.randn(2, 64)
    want = copy.deepcopy(model)(x)
    assert not torch.equal(want, nn.Sequential(*model.layers)(x))
    with st.stream(model, device, budget=size_of(model) // 3):
        for _ in range(3):
            assert torch.equal(model(x), want)


def test_a_conversion_to_another_device_is_refused(device):
    model, x = Routed().requires_grad_(False), torch.randn(2, 64)
    model.layers[2].register_forward_pre_hook(lambda module, args: module.to("meta") and None)
    with st.stream(model, device):
        with pytest.raises(RuntimeError, match="cannot be made float32 on meta"):
            model(x)


def test_the_weights_of_a_state_dict_are_those_of_the_model(device):
    model, x = Routed().bfloat16().requires_grad_(False), torch.randn(2, 64).bfloat16()
    resident = copy.deepcopy(model)
    resident(x)
    with st.stream(model, device, budget=size_of(model) // 3):
        model(x)
        state = model.state_dict()
        for name, tensor in resident.state_dict().items():
            assert state[name].dtype == tensor.dtype and torch.equal(state[name], tensor)
