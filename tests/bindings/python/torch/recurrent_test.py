"""Recurrent modules, which want their weights in one piece of memory."""

import copy

import pytest
import torch
from torch import nn

import libstagehand.torch as st


class Speech(nn.Module):
    """It flattens its weights in each forward, as many models for DataParallel do."""

    def __init__(self, kind):
        super().__init__()
        self.layers = nn.ModuleList(kind(32, 32, num_layers=2, batch_first=True) for _ in range(3))

    def forward(self, x):
        for layer in self.layers:
            layer.flatten_parameters()
            x = x + layer(x)[0]
        return x


@pytest.mark.parametrize("kind", [nn.LSTM, nn.GRU, nn.RNN])
def test_flatten_parameters_does_nothing_while_streamed(device, monkeypatch, kind):
    model, x = Speech(kind).requires_grad_(False).eval(), torch.randn(2, 5, 32)
    want = model(x)
    calls = []

    def flatten(module):
        calls.append(module)
        for weight in module._flat_weights:  # as PyTorch does for a GPU
            weight.view(-1)[:1].clone()

    monkeypatch.setattr(nn.RNNBase, "flatten_parameters", flatten)
    with st.stream(model, device, budget="50%", debug=True):
        for layer in model.layers:
            layer.flatten_parameters()
        for _ in range(3):
            assert torch.equal(model(x), want)
        made = copy.deepcopy(model)
        assert not calls
    made.layers[1].flatten_parameters()
    model.layers[0].flatten_parameters()
    assert calls == [made.layers[1], model.layers[0]]
    assert torch.equal(model(x), want) and torch.equal(made(x), want)
