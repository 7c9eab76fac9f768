"""Tensors that were made from weights before streaming, like state dicts and flat buffers, and are changed meanwhile:
steps compute with the change, and it is there at the end.
"""

import copy
import gc
import pickle
from multiprocessing.reduction import ForkingPickler

import pytest
import torch
import torch.multiprocessing
from models import Net, size_of
from torch import nn

import libstagehand.torch as st

NAME = "layers.4.up.weight"


def flat(net):
    """Puts all weights into one buffer, as some optimizers do."""
    weights = list(net.parameters())
    buffer = torch.cat([one.detach().flatten() for one in weights])
    for one, part in zip(weights, buffer.split([one.numel() for one in weights])):
        one.data = part.view(one.shape)
    return buffer


# What is made before streaming, and how it is changed.
EARLIER = {
    "state dict": (lambda net: net.state_dict(), lambda state: state[NAME].mul_(2)),
    "small weights of a state dict": (lambda net: net.state_dict(), lambda state: state["layers.4.norm.bias"].add_(1)),
    "view": (lambda net: net.get_parameter(NAME)[3:60], lambda view: view.mul_(2)),
    "view of the data": (lambda net: net.get_parameter(NAME).data[3:60], lambda view: view.mul_(2)),
    "detached": (lambda net: net.get_parameter(NAME).detach(), lambda one: one.mul_(2)),
    "flat buffer": (flat, lambda buffer: buffer.mul_(1.5)),
    "part of a flat buffer": (lambda net: flat(net).view(-1)[:-3], lambda part: part.view(-1)[7:900].mul_(1.5)),
}


@pytest.mark.parametrize("make, change", EARLIER.values(), ids=EARLIER)
@pytest.mark.parametrize("budget", ["60%", "100%"])
@pytest.mark.parametrize("trained", [False, True])
def test_changes_are_computed_with(device, tokens, make, change, budget, trained):
    net = Net().requires_grad_(trained)
    other = copy.deepcopy(net)
    with torch.no_grad():
        held, wanted = make(net), make(other)
        optimizer = {"optimizer": lambda parameters: torch.optim.SGD(parameters, lr=0)} if trained else {}
        with st.stream(net, device, budget=budget, **optimizer):
            net(tokens), net(tokens)
            for _ in range(2):
                change(held), change(wanted)
                for _ in range(2):
                    assert torch.equal(net(tokens)["logits"], other(tokens)["logits"])
                assert torch.equal(net.state_dict()[NAME], other.get_parameter(NAME))
            change(held), change(wanted)
        for one, want in zip(net.parameters(), other.parameters()):
            assert torch.equal(one, want)
        change(held), change(wanted)  # they share memory as before
        assert torch.equal(net(tokens)["logits"], other(tokens)["logits"])


def test_what_no_step_can_see_is_an_error(device, net, tokens):
    held = net.state_dict()
    want = net(tokens)["logits"]
    with torch.no_grad(), st.stream(net, device, pack=True):
        net(tokens)
        held[NAME].mul_(2)
        with pytest.raises(RuntimeError, match=rf"{NAME} is packed .*made from it was changed.*before streaming"):
            net(tokens)
        assert torch.equal(net(tokens)["logits"], want)
        held[NAME].mul_(0.5)
        with pytest.raises(RuntimeError, match=rf"{NAME} is packed"):
            net(tokens)


def test_a_change_that_steps_of_the_optimizer_overwrite_is_an_error(device, tokens):
    net = Net()
    held = net.state_dict()
    with st.stream(net, device, optimizer=lambda parameters: torch.optim.SGD(parameters, lr=0.1)):
        for _ in range(2):
            net(tokens)["logits"].square().mean().backward()  # the steps of the optimizer are no such change
        held[NAME].mul_(2)
        with pytest.raises(RuntimeError, match=rf"{NAME} was changed in place, by a tensor"):
            net(tokens)


def test_a_change_before_the_end_only(device, net, tokens):
    held = net.state_dict()
    with torch.no_grad():
        with st.stream(net, device):
            net(tokens)
            for one in held.values():
                one.mul_(2)
        assert all(torch.equal(net.state_dict()[name], one) for name, one in held.items())


def test_tensors_that_are_gone_are_not_searched(device, net, tokens, monkeypatch):
    """Only a storage with more tensors than those of the model has the objects of Python looked through."""
    monkeypatch.setattr("libstagehand.torch._aliases.gc.get_objects", lambda *_: pytest.fail("it is searched"))
    net.state_dict()
    with torch.no_grad(), st.stream(net, device):
        net(tokens)


class Shared(nn.Module):
    def __init__(self):
        super().__init__()
        self.weight = nn.Parameter(torch.randn(64, 64), requires_grad=False)
        self.register_buffer("rows", self.weight.data[:4])  # small, so that it stays outside

    def forward(self, x):
        return x @ self.weight


def test_tensors_of_the_model_are_its_own(device, monkeypatch):
    monkeypatch.setattr("libstagehand.torch._aliases.gc.get_objects", lambda *_: pytest.fail("it is searched"))
    with torch.no_grad(), st.stream(Shared(), device):
        pass


def test_tensors_that_are_not_found_are_logged(device, net, tokens, caplog):
    held = net.state_dict()
    gc.freeze()
    try:
        with torch.no_grad(), st.stream(net, device):
            net(tokens)
    finally:
        gc.unfreeze()
    (message,) = [one.getMessage() for one in caplog.records]
    assert "over the memory of embed.weight, and of 50 other weights, is not seen" in message and len(held) == 51


def first_of(net):
    return {NAME: net.get_parameter(NAME).data[3:].T.detach()}


def conjugate(net):
    """Of a weight that is complex."""
    net.layers[4].up.weight.data = net.layers[4].up.weight.data.clone()
    return {NAME: torch.view_as_complex(net.get_parameter(NAME).data.view(128, 32, 2)).conj()}


def everything(net):
    parts = {f"part {index}": one for index, one in enumerate(flat(net).split(999))}
    with torch.inference_mode():
        return {NAME: net.get_parameter(NAME).data[3:], **parts}


# What moves the memory of tensors that were made before streaming.
MOVES = {
    "to another process": lambda state: pickle.loads(ForkingPickler.dumps(state)),
    "shared": lambda state: {name: one.share_memory_() for name, one in state.items()},
    "shared storage": lambda state: [one.untyped_storage().share_memory_() for one in state.values()] and state,
}


@pytest.mark.parametrize("small", [0, 1 << 20], ids=["in place", "copied"])
@pytest.mark.parametrize("move", MOVES.values(), ids=MOVES)
@pytest.mark.parametrize("make", [nn.Module.state_dict, first_of, conjugate, everything])
def test_the_sources_stay_where_they_are(device, tokens, monkeypatch, make, move, small):
    """A state dict of before streaming that goes to another process, or to shared memory."""
    monkeypatch.setattr("libstagehand.torch._weights.SMALL_SOURCE", small)
    net = Net().requires_grad_(False)
    with torch.no_grad():
        held = make(net)
        other = copy.deepcopy(net)
        want = {name: one.clone() for name, one in held.items()}
        with st.stream(net, device, budget="60%"):
            net(tokens)
            move(held)
            assert all(torch.equal(one, want[name]) for name, one in held.items())
            for model in (net, other):
                model.get_parameter(NAME).mul_(2)
            for _ in range(2):
                assert torch.equal(net(tokens)["logits"], other(tokens)["logits"])
        assert torch.equal(net(tokens)["logits"], other(tokens)["logits"])
        assert torch.equal(net.get_parameter(NAME), other.get_parameter(NAME))


@pytest.mark.parametrize("when", ["step", "end"])
def test_a_change_of_what_has_moved_is_an_error(device, net, tokens, when):
    held = net.state_dict()
    with torch.no_grad():
        want = net(tokens)["logits"]
        with pytest.raises(RuntimeError, match=rf"{NAME} is streamed, and a tensor .* was moved to shared memory"):
            with st.stream(net, device):
                ForkingPickler.dumps(held)
                assert torch.equal(net(tokens)["logits"], want)
                held[NAME].mul_(2)
                if when == "step":
                    net(tokens)
        assert torch.equal(net(tokens)["logits"], want)


@pytest.mark.parametrize("make", [nn.Module.state_dict, first_of, conjugate, everything])
def test_memory_is_shared_and_moved_as_before_at_the_end(device, net, tokens, make):
    held = make(net)
    with torch.no_grad():
        with st.stream(net, device):
            net(tokens)
        before = held[NAME].untyped_storage().data_ptr()
        assert before == net.get_parameter(NAME).untyped_storage().data_ptr()
        net.share_memory()
        assert net.get_parameter(NAME).untyped_storage().data_ptr() != before  # the memory before is free now
        net.get_parameter(NAME).zero_()
        assert held[NAME].abs().sum() == 0


def test_data_that_is_replaced_leaves_earlier_tensors_alone(device, net):
    with torch.inference_mode():
        inference = net.get_parameter(NAME).data[2:]
    held = [*net.state_dict().values(), net.get_parameter(NAME).data[3:].T, inference]
    want = [one.clone() for one in held]
    with torch.no_grad(), st.stream(net, device):
        net.get_parameter(NAME).data = torch.full((128, 64), 3.0)
        assert all(map(torch.equal, held, want))
    assert all(map(torch.equal, held, want)) and (net.get_parameter(NAME) == 3).all()
