"""Reads of weights that are not held, and that nothing serves: past the class of a tensor, or by a view that was made
during the call of a module. They are errors, and do not end the process.
"""

import copy

import pytest
import torch
import torch.utils.dlpack
from models import size_of
from torch import nn

import libstagehand.torch as st

NAME = "layers.4.up.weight"
OF = {
    "weight": lambda weight: weight,
    "data": lambda weight: weight.data,
    "rows": lambda weight: weight[3:90].detach(),
    "parameter": lambda weight: nn.Parameter(weight, requires_grad=False),
}


@pytest.fixture
def other(net):
    return copy.deepcopy(net)


@pytest.fixture
def streamed(device, net, other, tokens):
    with torch.no_grad(), st.stream(net, device, budget=size_of(net) // 2) as streamed:
        net(tokens)
        yield streamed


def same(net, other, tokens):
    return torch.equal(net(tokens)["logits"], other(tokens)["logits"])


# Reads that are not served, because they go past the class of a tensor too.
UNSERVED = {
    "to_dlpack": torch.utils.dlpack.to_dlpack,
    "unbound to_dlpack": torch.Tensor.__dlpack__,
    "unbound data_ptr": torch.Tensor.data_ptr,
    "unbound storage": lambda tensor: torch.Tensor.untyped_storage(tensor)[0],
    "fill of an unbound storage": lambda tensor: torch.Tensor.untyped_storage(tensor).fill_(0),
}


@pytest.mark.parametrize("read", UNSERVED.values(), ids=UNSERVED)
@pytest.mark.parametrize("of", OF.values(), ids=OF)
def test_reads_that_are_not_served_are_errors(streamed, net, other, tokens, of, read):
    """While no module runs, and while another module does."""
    unheld = rf"device memory of {NAME} is read by a view of it, or by its address, but its block layers.4 is not held"
    with pytest.raises(RuntimeError, match=unheld):
        read(of(net.get_parameter(NAME)))
    view = of(net.get_parameter(NAME))
    hook = net.layers[1].register_forward_hook(lambda *_: read(view))
    with pytest.raises(RuntimeError, match=unheld):
        net(tokens)
    hook.remove()
    assert same(net, other, tokens)
    streamed.close()
    assert same(net, other, tokens)


def test_views_of_a_held_weight_are_errors_later(streamed, net, other, tokens):
    """Also between calls, and after the end."""
    kept = []
    hook = net.layers[4].up.register_forward_hook(lambda up, *_: kept.append(nn.Parameter(up.weight[3:].data)))
    net(tokens)
    hook.remove()
    for then in (lambda: None, streamed.close):
        then()
        for use in (torch.clone, torch.Tensor.numpy, lambda view: view.add_(1), repr):
            with pytest.raises(RuntimeError, match=rf"device memory of {NAME} is read by a view of it"):
                use(kept[0].detach())
        assert same(net, other, tokens)
