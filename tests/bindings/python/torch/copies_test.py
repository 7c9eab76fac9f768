"""Copies of streamed modules with a __deepcopy__ of their own, and exports, which are refused."""

import copy

import pytest
import torch
from torch import nn
from torch.fx.experimental.proxy_tensor import make_fx
from torch.nn.utils import parametrize
from torch.nn.utils.parametrizations import weight_norm

import libstagehand.torch as st


def parametrized():
    return nn.Sequential(
        nn.Linear(64, 64), weight_norm(nn.Linear(64, 64)), nn.Sequential(weight_norm(nn.Linear(64, 64)), nn.ReLU())
    ).requires_grad_(False)


def test_a_parametrized_part_is_copied(device):
    model, x = parametrized(), torch.randn(2, 64)
    want = model(x)
    with st.stream(model, device) as streamed:
        for made in (copy.deepcopy(model), nn.Sequential(model[0], copy.deepcopy(model[1]), model[2])[1]):
            for part in made.modules():
                assert not {"_apply", "__reduce_ex__", "__deepcopy__"} & part.__dict__.keys()
                assert not part._forward_hooks and not part._forward_pre_hooks
                assert all(type(one) is nn.Parameter for one in part._parameters.values() if one is not None)
        made = copy.deepcopy(model)
        assert torch.equal(made(x), want) and parametrize.is_parametrized(made[1])
        assert torch.equal(model(x), want)
        assert len(streamed.blocks()) > 1
    assert torch.equal(model(x), want) and torch.equal(made(x), want)
    assert "__deepcopy__" not in model[1].__dict__
    made[1].parametrizations.weight.original0.mul_(2)
    assert torch.equal(model(x), want)


class Fails(nn.Linear):
    def __deepcopy__(self, memo):
        raise ZeroDivisionError


def test_a_copy_that_fails_leaves_the_module_streamed(device):
    model, x = nn.Sequential(nn.Linear(64, 64), Fails(64, 64)).requires_grad_(False), torch.randn(2, 64)
    want = model(x)
    with st.stream(model, device):
        with pytest.raises(ZeroDivisionError):
            copy.deepcopy(model)
        assert torch.equal(model(x), want)


@pytest.mark.parametrize("part", [False, True])
def test_an_export_is_refused(device, part):
    model, x = parametrized(), torch.randn(2, 64)
    want = model(x)
    with st.stream(model, device):
        with pytest.raises(RuntimeError, match="cannot be traced or exported"):
            torch.export.export(model[0] if part else model, (x,))
        assert torch.equal(model(x), want)
    assert torch.equal(torch.export.export(model, (x,)).module()(x), want)


@pytest.mark.filterwarnings("ignore")
@pytest.mark.parametrize("part", [False, True])
def test_a_linearization_is_refused(device, part):
    """It traces the model."""
    model, x = nn.Sequential(*(nn.Linear(64, 64) for _ in range(3))).requires_grad_(False), torch.randn(2, 64)
    want, one = model(x), model[0] if part else model
    with st.stream(model, device):
        for trace in (lambda: torch.func.linearize(one, x), lambda: make_fx(one)(x)):
            with pytest.raises(
                RuntimeError, match=r"cannot be traced.*linearize\(\) traces, too: use torch.func.jvp\(\)"
            ):
                trace()
            assert torch.equal(model(x), want)
    result, linear = torch.func.linearize(one, x)
    assert torch.equal(result, one(x)) and torch.equal(linear(x), torch.func.jvp(one, (x,), (x,))[1])
