"""The end of streaming: what the module is then, and what it leaves of PyTorch's state."""

import os

import pytest
import torch
from models import Net, loss_of, size_of, with_lora
from torch import nn
from torch.utils._python_dispatch import _get_current_dispatch_mode_stack

import libstagehand.torch as st


@pytest.mark.parametrize("debug", [None, True])
def test_after_an_interrupt_in_a_call(device, net, tokens, quarter, debug):
    want = net(tokens)["logits"]

    def interrupt(*_):
        raise KeyboardInterrupt

    handle = net.layers[3].register_forward_hook(interrupt)
    with pytest.raises(KeyboardInterrupt), st.stream(net, device, budget=quarter, debug=debug):
        net(tokens)
    handle.remove()
    assert not _get_current_dispatch_mode_stack()
    assert torch.equal(torch.ones(3) + 1, torch.full((3,), 2.0))
    assert torch.equal(net(tokens)["logits"], want)


@pytest.fixture
def stored(tmp_path):
    """Makes a net, stores it, and makes another one on the meta device."""
    safetensors = pytest.importorskip("safetensors.torch")

    def make(kind):
        net = kind()
        safetensors.save_file(net.state_dict(), tmp_path / "net.safetensors")
        with torch.device("meta"):
            meta = kind()
        for parameter, other in zip(meta.parameters(), net.parameters()):
            parameter.requires_grad_(other.requires_grad)
        return net, meta, tmp_path / "net.safetensors"

    return make


class Counts(Net):
    def __init__(self):
        super().__init__()
        self.norm = nn.BatchNorm1d(64)

    def forward(self, tokens):
        out = super().forward(tokens)
        return dict(out, logits=out["logits"] + self.norm(out["hidden"].mean(1)).sum())


def sgd(parameters):
    return torch.optim.SGD(parameters, lr=0.1)


def test_what_was_trained_from_files_stays(device, tokens, stored):
    net, meta, file = stored(Counts)
    for one in (net, meta):
        one.layers[2].up.weight.requires_grad_(False)
    want = [one.requires_grad for one in net.parameters()]
    optimizer = sgd([one for one in net.parameters() if one.requires_grad])
    with st.stream(meta, device, budget=size_of(net) // 4, files=file, optimizer=sgd):
        for _ in range(3):
            loss_of(meta(tokens)).backward()
            loss_of(net(tokens)).backward()
            optimizer.step()
            optimizer.zero_grad()
    os.truncate(file, 0)
    state = net.state_dict()
    assert [one.requires_grad for one in meta.parameters()] == want
    assert [name for name, value in meta.state_dict().items() if value.is_meta] == ["layers.2.up.weight"]
    assert all(value.is_meta or torch.equal(value, state[name]) for name, value in meta.state_dict().items())


def test_what_was_trained_beside_files_stays(device, tokens, stored):
    net, meta, file = stored(lambda: with_lora(Net()))
    trained = {name for name, one in net.named_parameters() if one.requires_grad}
    optimizer = sgd([one for one in net.parameters() if one.requires_grad])
    loss_of(net(tokens)).backward()
    optimizer.step()
    with st.stream(meta, device, budget=size_of(net) // 4, files=file):
        optimizer = sgd([one for one in meta.parameters() if one.requires_grad])
        loss_of(meta(tokens)).backward()
        optimizer.step()
    os.truncate(file, 0)
    assert {name for name, one in meta.named_parameters() if not one.is_meta} == trained
    assert all(torch.equal(one, net.get_parameter(name)) for name, one in meta.named_parameters() if not one.is_meta)


def test_what_could_not_begin_leaves_all_on_the_meta_device(device, stored):
    net, meta, file = stored(Net)
    before = dict(meta.named_parameters())
    with pytest.raises(ZeroDivisionError):
        st.stream(meta, device, budget=size_of(net) // 4, files=file, optimizer=lambda parameters: 1 / 0)
    assert all(parameter is before[name] and parameter.is_meta for name, parameter in meta.named_parameters())
