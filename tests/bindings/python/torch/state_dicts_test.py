"""State dicts of streamed modules that write their part by functions of their own, and parameters without elements."""

import copy
import io

import pytest
import torch
from models import Net, equal, size_of
from torch import nn

import libstagehand.torch as st


class Packed(torch.Tensor):
    """A wrapper whose state dict has its parts, written by the wrapper itself, as quanto's are. Another class than this
    one has another layout.
    """

    @staticmethod
    def __new__(cls, ints, scale):
        return torch.Tensor._make_wrapper_subclass(cls, ints.shape, dtype=scale.dtype, device=ints.device)

    def __init__(self, ints, scale):
        self.ints, self.scale = ints, scale

    def __tensor_flatten__(self):
        return ["ints", "scale"], {}

    @classmethod
    def __tensor_unflatten__(cls, inner, context, size, stride):
        return cls(inner["ints"], inner["scale"])

    def save(self, destination, prefix, keep_vars):
        assert type(self) is Packed and type(self.ints) is torch.Tensor
        for name in self.__tensor_flatten__()[0]:
            part = getattr(self, name)
            destination[prefix + name] = part if keep_vars else part.detach()

    @classmethod
    def __torch_function__(cls, func, types, args=(), kwargs=None):
        with torch._C.DisableTorchFunctionSubclass():
            return func(*args, **(kwargs or {}))

    @classmethod
    def __torch_dispatch__(cls, func, types, args=(), kwargs=None):
        if func is torch.ops.aten.detach.default:
            return Packed(args[0].ints.detach(), args[0].scale.detach())
        raise NotImplementedError(str(func))


class PackedLinear(nn.Module):
    def __init__(self, width):
        super().__init__()
        packed = Packed(torch.randint(-127, 127, (width, width), dtype=torch.int8), torch.rand(width, 1))
        self.weight = nn.Parameter(packed, requires_grad=False)
        self.bias = nn.Parameter(torch.randn(width), requires_grad=False)

    def forward(self, x):
        return nn.functional.linear(x, self.weight.ints * self.weight.scale, self.bias)

    def _save_to_state_dict(self, destination, prefix, keep_vars):
        destination[prefix + "bias"] = self.bias if keep_vars else self.bias.detach()
        self.weight.save(destination, prefix + "weight.", keep_vars)


def test_a_wrapper_that_writes_its_parts_by_itself(device):
    model = nn.Sequential(*[PackedLinear(64) for _ in range(6)])
    want = {name: value.clone() for name, value in model.state_dict().items()}
    x = torch.randn(2, 64)
    with torch.no_grad(), st.stream(model, device, budget="50%"):
        out = model(x)
        for keep_vars in (False, True):
            state = model.state_dict(keep_vars=keep_vars)
            assert list(state) == list(want) and equal(list(state.values()), list(want.values()))
            assert all(type(value) in (torch.Tensor, nn.Parameter) for value in state.values())
            assert all((type(value) is nn.Parameter) == (keep_vars and "bias" in name) for name, value in state.items())
        torch.save(state, io.BytesIO())
        assert torch.equal(model(x), out)
    assert "_save_to_state_dict" not in model[0].__dict__
    assert equal(list(model.state_dict().values()), list(want.values()))


def test_a_state_dict_while_a_module_fails_to_write_its_part(device, tokens):
    """The model stays as it is."""
    net = Net().requires_grad_(False)
    with st.stream(net, device, budget=size_of(net) // 4, blocks="layers.*"), torch.no_grad():
        want = net(tokens)["logits"]
        weight = net.layers[2].up.weight
        handle = net.layers[3].register_state_dict_pre_hook(lambda *_: 1 / 0)
        with pytest.raises(ZeroDivisionError):
            net.state_dict()
        handle.remove()
        assert net.layers[2].up.weight is weight
        assert torch.equal(net(tokens)["logits"], want)
        assert "_save_to_state_dict" not in copy.deepcopy(net.layers[2]).__dict__


class Empty(nn.Module):
    def __init__(self):
        super().__init__()
        self.e = nn.Parameter(torch.empty(0, 16))

    def forward(self, x):
        return x + self.e.sum()


def adamw(parameters):
    return torch.optim.AdamW(parameters, lr=0.01)


def test_the_optimizers_state_of_parameters_without_elements(device):
    """It has the layout of PyTorch's own state of the whole model."""
    from torch.distributed.checkpoint.state_dict import get_optimizer_state_dict

    def made():
        torch.manual_seed(0)
        return nn.Sequential(nn.Linear(64, 64), Empty(), nn.Linear(64, 64), Empty())

    plain, model, x = made(), made(), torch.randn(4, 64)
    optimizer = adamw(plain.parameters())
    with st.stream(model, device, optimizer=adamw) as streamed:
        for _ in range(2):
            for one in (plain, model):
                one(x).square().sum().backward()
            optimizer.step()
            optimizer.zero_grad()
        want, got = get_optimizer_state_dict(plain, optimizer), streamed.optimizer_state()
        assert got["state"].keys() == want["state"].keys() and "1.e" in got["state"]
        for name, state in want["state"].items():
            assert equal([got["state"][name][key] for key in state], list(state.values()))
        assert sorted(got["param_groups"][0]["params"]) == sorted(want["param_groups"][0]["params"])
        streamed.load_optimizer_state(want)
        assert model[1].e.grad is None
    assert equal(list(model.state_dict().values()), list(plain.state_dict().values()))


@pytest.mark.parametrize("budget", [1 << 16, "50%", None])
def test_a_model_of_nothing_but_parameters_without_elements(device, budget):
    model, x = nn.Sequential(Empty()).requires_grad_(False), torch.ones(3)
    with torch.no_grad(), st.stream(model, device, budget=budget):
        assert torch.equal(model(x), x) and model.state_dict()["0.e"].shape == (0, 16)
    assert torch.equal(model(x), x)
