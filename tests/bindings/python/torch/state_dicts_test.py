"""State dicts, copies and pickles of streamed modules, parameters and buffers that are made of streamed weights, and
exports, which are refused.
"""

import copy
import gc
import io
import pickle
from multiprocessing.reduction import ForkingPickler

import pytest
import torch
import torch.nn.utils as utils
import torch.nn.utils.prune
from models import NAME, Net, adamw, equal, refused, same, same_state, size_of
from torch import nn
from torch.fx.experimental.proxy_tensor import make_fx
from torch.nn.utils import parametrize
from torch.nn.utils.parametrizations import weight_norm

import libstagehand.torch as st


@pytest.fixture
def other(net):
    return copy.deepcopy(net)


@pytest.fixture(params=[1 << 20, 0], ids=["copied", "in place"])
def streamed(request, device, net, other, tokens, quarter, monkeypatch):
    monkeypatch.setattr("libstagehand.torch._weights.SMALL_SOURCE", request.param)
    with torch.no_grad(), st.stream(net, device, budget=2 * quarter) as streamed:
        net(tokens)
        yield streamed


def through_file(one):
    file = io.BytesIO()
    torch.save(one, file)
    file.seek(0)
    return torch.load(file, weights_only=False)


def test_trap_41_state_dicts(streamed, net, other, tokens):
    seen, wanted = [net.state_dict(keep_vars=True)], other.state_dict()
    net.layers[4].register_forward_hook(lambda *_: seen.append(net.state_dict()))  # within a step
    net(tokens)
    part = net.layers[4].state_dict(prefix="layers.4.")
    assert part.keys() == {name for name in wanted if name.startswith("layers.4.")}
    assert len(seen) == 2 and seen[0].keys() == seen[1].keys() == wanted.keys()
    assert all(torch.equal(state[name], wanted[name]) for state in (part, *seen) for name in state)
    assert isinstance(seen[0]["head.weight"], nn.Parameter)
    for value in (net.head.bias.detach(), *net.state_dict().values()):  # stored without others
        assert value.untyped_storage().nbytes() == value.numel() * 4


def test_trap_41_copies_and_pickles(streamed, net, other, tokens):
    parameter = copy.deepcopy(net.head.weight)
    assert type(parameter) is nn.Parameter and torch.equal(parameter, other.head.weight)
    for make in (copy.deepcopy, lambda one: pickle.loads(pickle.dumps(one)), through_file):
        made = make(net)
        assert same(made, other, tokens)
        assert all(type(one) is nn.Parameter and not one.__dict__ for one in made.parameters())
        hooks = ("_forward_hooks", "_forward_pre_hooks", "_state_dict_hooks", "_load_state_dict_pre_hooks")
        assert not any(getattr(part, name) for part in made.modules() for name in hooks)
        made.double()
    assert torch.equal(copy.deepcopy(net.layers[2]).up.weight, other.layers[2].up.weight)
    # A deep copy tells objects apart by their ids, which must not be those of objects that are gone.
    models = [[part for one in model.parameters() for part in one.data.split(7)] for model in (net, other)]
    assert all(map(torch.equal, *copy.deepcopy(models)))
    net.trainer = [streamed]  # a plain attribute
    for copied in (copy.copy, copy.deepcopy, pickle.dumps, through_file, lambda _: copy.deepcopy(net)):
        with refused("cannot be copied or pickled: copy or pickle its module", TypeError):
            copied(streamed)
    assert same(net, other, tokens)


@pytest.mark.parametrize("mode", [torch.inference_mode, torch.no_grad, torch.enable_grad])
def test_load_state_dict_writes_the_sources(streamed, net, other, tokens, mode):
    third, fourth = (Net().requires_grad_(False) for _ in range(2))
    assert not same(net, third, tokens)
    with mode():
        net.load_state_dict(third.state_dict())
        for _ in range(2):
            assert same(net, third, tokens)
        for model in (net, third):
            model.layers[5].load_state_dict(fourth.layers[5].state_dict())
        assert same(net, third, tokens) and not same(net, other, tokens)
    assert same(net, third, tokens)
    streamed.close()
    assert same_state(net, third)


def test_trap_40_casts_of_weights_are_not_kept(streamed, net, tokens):
    """Autocast keeps casts of weights that require a gradient: not past their block, and not past a change."""
    other = Net()
    with torch.autocast("cpu", torch.bfloat16):
        want = other(tokens)["logits"]
        net.requires_grad_(True)
        net(tokens)
        net.load_state_dict(other.state_dict())
        assert torch.equal(net(tokens)["logits"], want)
        other.load_state_dict(Net().state_dict())
        net.load_state_dict(other.state_dict())
        torch.clear_autocast_cache()
        assert torch.equal(net(tokens)["logits"], other(tokens)["logits"])


def test_a_parameter_that_was_replaced(streamed, net, other, tokens):
    """A state dict has what the module has, and the end of streaming leaves it."""
    weight = net.layers[0].up.weight
    for model in (net, other):
        model.layers[0].up.weight = nn.Parameter(torch.full((128, 64), 0.01), requires_grad=False)
    assert net.state_dict(keep_vars=True)["layers.0.up.weight"] is net.layers[0].up.weight
    assert same(net, other, tokens)
    third = Net().requires_grad_(False)
    net.load_state_dict(third.state_dict())
    assert same(net, third, tokens) and not torch.equal(weight.cpu(), third.layers[0].up.weight)
    streamed.close()
    assert same_state(net, third)


def test_a_weight_that_is_tied_while_it_is_streamed_is_refused(streamed, net, tokens):
    want = net(tokens)["logits"]
    before, net.head.weight = net.head.weight, net.embed.weight
    for _ in range(2):
        with refused(r"head\.weight was tied to embed\.weight while both are streamed"):
            net(tokens)
    net.head.weight = before
    assert torch.equal(net(tokens)["logits"], want)


# What makes parameters and buffers of a weight. They share its memory, or a copy of it, also after streaming.


def share(net):
    net.layers[3].up.weight = nn.Parameter(net.get_parameter(NAME).data, requires_grad=False)


def buffers(net):
    net.layers[4].register_buffer("rows", net.get_parameter(NAME).data[3:9])
    net.layers[4].others = nn.Buffer(net.get_parameter(NAME).data.T[5:])


TIES = {
    "weight_norm": lambda net: utils.weight_norm(net.layers[4].up),
    "weight_norm, removed": lambda net: utils.remove_weight_norm(utils.weight_norm(net.layers[4].up)),
    "spectral_norm": lambda net: utils.spectral_norm(net.layers[4].up.eval()),
    "pruned": lambda net: utils.prune.l1_unstructured(net.layers[4].up, "weight", 0.3),
    "in another module": share,
    "of the weight": lambda net: setattr(net.layers[3].up, "weight", nn.Parameter(net.get_parameter(NAME), False)),
    "in its own module": lambda net: setattr(net.layers[4].up, "weight", nn.Parameter(net.get_parameter(NAME).data)),
    "buffers": buffers,
    "in another module, and buffers": lambda net: (share(net), buffers(net)),
}


@pytest.mark.filterwarnings("ignore:.*weight_norm. is deprecated", "ignore:.*weight_norm.* is deprecated")
@pytest.mark.parametrize("make", TIES.values(), ids=TIES)
def test_parameters_and_buffers_of_a_weight(streamed, net, other, tokens, make):
    states = []
    for model in (net, other):
        torch.manual_seed(3)
        make(model)
        states.append({name: one.clone() for name, one in model.state_dict().items()})
    for then in (lambda: None, streamed.close, lambda: None):
        then()
        assert same(net, other, tokens)
        for model in (net, other):
            for parameter in model.layers[4].up.parameters():
                parameter.data.mul_(1.5)
            for buffer in model.layers[4].buffers(recurse=False):
                buffer[1:].add_(1)
        assert same(net, other, tokens)
    for one, like in zip(net.parameters(), other.parameters(), strict=True):
        assert type(one) is type(like) and torch.equal(pickle.loads(pickle.dumps(one)), like)
    assert equal(list(states[0].values()), list(states[1].values()))
    gc.collect()


@pytest.mark.parametrize("when", ["idle", "in a call", "held"])
def test_a_parameter_of_the_weight_is_a_parameter(streamed, net, other, tokens, when):
    made = []
    for model in (net, other):
        where = {"idle": nn.Identity(), "in a call": model.layers[1], "held": model.layers[4].up}[when]

        def make(*_, model=model):
            made.append(nn.Parameter(model.get_parameter(NAME)))
            assert torch.equal(made[-1] * 2, other.get_parameter(NAME) * 2)

        hook = where.register_forward_hook(make)
        where(tokens) if when == "idle" else model(tokens)
        hook.remove()
    for one in made:
        assert isinstance(one, nn.Parameter) and one.requires_grad and one.is_leaf and not one.__dict__
    if when != "held":  # what is made of a held weight is a view of the device memory
        for one in made:
            one.mul_(2)
        assert same(net, other, tokens)


def test_what_was_read_is_ordinary_and_shares_memory_after_the_end(streamed, net, other, tokens, request):
    parameter = nn.Parameter(net.get_parameter(NAME).data, requires_grad=False)
    parameter.data = torch.ones(3)
    assert torch.equal(copy.deepcopy(parameter), torch.ones(3)) and parameter.numpy().sum() == 3
    kept = [
        [model.state_dict()[NAME], model.get_parameter(NAME).detach()[3:], copy.copy(model.get_parameter(NAME).data)]
        for model in (net, other)
    ]
    streamed.close()
    assert type(parameter) is nn.Parameter and torch.equal(pickle.loads(pickle.dumps(parameter)), torch.ones(3))
    if "in place" in request.node.name:
        for one in (*kept[0], *kept[1]):
            one.mul_(2)
        storages = {one.untyped_storage().data_ptr() for one in kept[0]}
        assert storages == {net.get_parameter(NAME).untyped_storage().data_ptr()}
    assert same(net, other, tokens)


@pytest.mark.parametrize("then", ["step", "read"])
def test_a_change_of_what_another_process_has_is_an_error(streamed, net, other, tokens, then):
    state = net.state_dict()
    ForkingPickler.dumps(state)
    state[NAME].mul_(2)
    with refused(rf"{NAME} is streamed, and a tensor .* was moved to shared memory"):
        net(tokens) if then == "step" else net.state_dict()
    assert same(net, other, tokens)


def test_memory_that_is_shared_before_may_be_shared_again(device, tokens):
    net = Net().requires_grad_(False).share_memory()
    with torch.no_grad(), st.stream(net, device):
        net.share_memory()
        assert net(tokens)["logits"].shape == (3, 7, 50)
    assert net.get_parameter(NAME).is_shared()


# Modules with functions of their own.


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
        through_file(state)
        assert torch.equal(model(x), out)
    assert "_save_to_state_dict" not in model[0].__dict__
    assert equal(list(model.state_dict().values()), list(want.values()))


def test_a_state_dict_while_a_module_fails_to_write_its_part(streamed, net, other, tokens):
    """The model stays as it is."""
    weight = net.layers[2].up.weight
    handle = net.layers[3].register_state_dict_pre_hook(lambda *_: 1 / 0)
    with pytest.raises(ZeroDivisionError):
        net.state_dict()
    handle.remove()
    assert net.layers[2].up.weight is weight and same(net, other, tokens)
    assert "_save_to_state_dict" not in copy.deepcopy(net.layers[2]).__dict__


class Empty(nn.Module):
    def __init__(self):
        super().__init__()
        self.e = nn.Parameter(torch.empty(0, 16))

    def forward(self, x):
        return x + self.e.sum()


def test_the_optimizers_state_of_parameters_without_elements(device):
    """It has the layout of PyTorch's own state of the whole model."""
    from torch.distributed.checkpoint.state_dict import get_optimizer_state_dict

    plain, x = nn.Sequential(nn.Linear(64, 64), Empty(), nn.Linear(64, 64), Empty()), torch.randn(4, 64)
    model, optimizer = copy.deepcopy(plain), adamw(plain.parameters())
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
    assert same_state(model, plain)


@pytest.mark.parametrize("budget", [1 << 16, "50%", None])
def test_a_model_of_nothing_but_parameters_without_elements(device, budget):
    model, x = nn.Sequential(Empty()).requires_grad_(False), torch.ones(3)
    with torch.no_grad(), st.stream(model, device, budget=budget):
        assert torch.equal(model(x), x) and model.state_dict()["0.e"].shape == (0, 16)
    assert torch.equal(model(x), x)


class Fails(nn.Linear):
    def __deepcopy__(self, memo):
        raise ZeroDivisionError


def parametrized(kind=nn.Linear):
    parts = nn.Sequential(weight_norm(nn.Linear(64, 64)), nn.ReLU())
    return nn.Sequential(kind(64, 64), weight_norm(nn.Linear(64, 64)), parts).requires_grad_(False)


def test_copies_of_parametrized_parts(device):
    model, x = parametrized(), torch.randn(2, 64)
    want = model(x)
    with st.stream(model, device) as streamed:
        for made in (copy.deepcopy(model), copy.deepcopy(model[1])):
            for part in made.modules():
                assert not {"_apply", "__reduce_ex__", "__deepcopy__"} & part.__dict__.keys()
                assert not part._forward_hooks and not part._forward_pre_hooks
                assert all(type(one) is nn.Parameter for one in part._parameters.values() if one is not None)
        made = copy.deepcopy(model)
        assert torch.equal(made(x), want) and parametrize.is_parametrized(made[1])
        assert torch.equal(model(x), want) and len(streamed.blocks()) > 1
    assert torch.equal(model(x), want) and torch.equal(made(x), want) and "__deepcopy__" not in model[1].__dict__
    made[1].parametrizations.weight.original0.mul_(2)
    assert torch.equal(model(x), want)
    model = parametrized(Fails)
    want = model(x)
    with st.stream(model, device):
        with pytest.raises(ZeroDivisionError):
            copy.deepcopy(model)
        assert torch.equal(model(x), want)


TRACES = {
    "export": lambda model, x: torch.export.export(model, (x,)),
    "jit": lambda model, x: torch.jit.trace(model, (x,), strict=False),
    "linearize": torch.func.linearize,
    "make_fx": lambda model, x: make_fx(model)(x),
}


@pytest.mark.filterwarnings("ignore")
@pytest.mark.parametrize("part", [False, True])
@pytest.mark.parametrize("name", TRACES)
def test_traces_are_refused(device, name, part):
    model, x = nn.Sequential(*(nn.Linear(64, 64) for _ in range(3))).requires_grad_(False), torch.randn(2, 64)
    want, one = model(x), model[0] if part else model
    with st.stream(model, device):
        with refused("cannot be traced or exported" if name == "export" else "cannot be traced"):
            TRACES[name](one, x)
        assert torch.equal(model(x), want)
    TRACES[name](one, x)
    assert torch.equal(model(x), want) and size_of(model)


def test_linearize_names_what_does_not_trace(device):
    model, x = nn.Linear(64, 64).requires_grad_(False), torch.randn(2, 64)
    with st.stream(model, device), refused(r"linearize\(\) traces, too: use torch.func.jvp\(\)"):
        torch.func.linearize(model, x)
    result, linear = torch.func.linearize(model, x)
    assert torch.equal(result, model(x)) and torch.equal(linear(x), torch.func.jvp(model, (x,), (x,))[1])
