"""On a GPU, where there is one: what is written to idle weights, and tensors from before streaming, as on the host."""

import copy

import pytest
import torch
from earlier_tensors_test import EARLIER
from idle_views_test import LOADERS, NAME
from models import Net
from replaced_test import CHANGES, swap, swap_backwards

import libstagehand as sh
import libstagehand.torch as st

pytestmark = [
    pytest.mark.xdist_group("gpu"),
    pytest.mark.skipif(not torch.cuda.is_available(), reason="there is no GPU that PyTorch can use"),
]


@pytest.fixture(params=["cpu", "cuda"])
def nets(request):
    """A net that is streamed to the GPU from there, and one that is on the GPU."""
    with torch.device("cuda"):
        net = Net(width=64).requires_grad_(False)
        return copy.deepcopy(net).to(request.param), net


@pytest.fixture
def streamed(nets):
    net, other = nets
    with sh.Device("cuda:0", budget_bytes=64 << 20) as device, torch.no_grad(), torch.device("cuda"):
        with st.stream(net, device) as streamed:
            yield streamed


@pytest.fixture
def tokens():
    return torch.randint(0, 50, (3, 7), device="cuda")


def equal(net, other, tokens):
    state, wanted = net.state_dict(), other.state_dict()
    return torch.equal(net(tokens)["logits"], other(tokens)["logits"]) and all(
        torch.equal(state[key].cpu(), wanted[key].cpu()) for key in wanted
    )


@pytest.mark.parametrize("load", LOADERS.values(), ids=LOADERS)
def test_loaders_of_shards(streamed, nets, tokens, load):
    new = torch.randn(32, 64)
    for _ in range(2):
        for model in nets:
            load(model.get_parameter(NAME), new)
        assert equal(*nets, tokens)


# A plain weight takes the strides too, by which kernels round.
ROUNDED = "set_ with other strides"


@pytest.mark.parametrize("name", [name for name in CHANGES if name != ROUNDED])
def test_changes_that_are_served(streamed, nets, tokens, name):
    for _ in range(2):
        for model in nets:
            CHANGES[name](model.get_parameter(NAME))
        assert equal(*nets, tokens)


@pytest.mark.parametrize("exchange", [swap, swap_backwards], ids=lambda one: one.__name__)
def test_swaps_with_averages(streamed, nets, tokens, exchange):
    averages = [[torch.full_like(one, 0.01) for one in nets[1].parameters()] for _ in nets]
    for _ in range(2):
        for model, of_model in zip(nets, averages):
            for weight, average in zip(model.parameters(), of_model):
                exchange(weight, average)
        assert equal(*nets, tokens)
        assert all(torch.equal(one.cpu(), want.cpu()) for one, want in zip(*averages))


@pytest.mark.parametrize("make, change", EARLIER.values(), ids=EARLIER)
def test_earlier_tensors(nets, tokens, make, change):
    net, other = nets
    copied = next(
        net.parameters()
    ).is_cuda  # the source of a model on the GPU is a copy, which such tensors are not over
    with torch.no_grad(), sh.Device("cuda:0", budget_bytes=64 << 20) as device:
        held, wanted = make(net), make(other)
        with st.stream(net, device):
            assert equal(net, other, tokens)
            change(held)
            if copied:
                with pytest.raises(RuntimeError, match="streamed from a copy of its memory.*Change the weight itself"):
                    net(tokens)
            else:
                change(wanted)
            assert equal(net, other, tokens)
        assert equal(net.cuda(), other, tokens)
