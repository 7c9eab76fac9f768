"""Changes of weights while they are streamed: those of the source come to the device, and are there at the end,
whatever operation makes them; those that cannot be are errors, and nothing is lost.
"""

import copy
import gc
from functools import partial

import pytest
import torch
import torch.nn.utils as utils
from models import NAME, Layer, Net, on_meta, refused, same, same_state, sgd, size_of, still
from torch import nn
from weights import CHANGES, MOVES, SWAPS, swap, values

import libstagehand.torch as st

IN_PLACE = rf"{NAME} is streamed, and was changed in place"


@pytest.fixture
def other(net):
    return copy.deepcopy(net)


@pytest.fixture
def streamed(device, net, other, tokens, quarter):
    with torch.no_grad(), st.stream(net, device, budget=2 * quarter) as streamed:
        net(tokens)
        yield streamed


# How the sources lie, the mode of the program, and the budget.
CASES = {
    "in place": (0, torch.no_grad, "30%"),
    "copied": (1 << 20, torch.inference_mode, "100%"),
    "trained": (0, partial(torch.autocast, "cpu"), "50%"),
}
# A plain weight takes the strides too, by which kernels of a GPU round.
ROUNDED = "set_ with other strides"


@pytest.fixture(params=CASES)
def case(request, there, place, monkeypatch, tokens):
    """A streamed net, the same one without streaming, and tokens."""
    small, mode, budget = CASES[request.param]
    monkeypatch.setattr("libstagehand.torch._weights.SMALL_SOURCE", small)
    net = Net().requires_grad_(request.param == "trained")
    other, options = copy.deepcopy(net).to(place), {"optimizer": still} if request.param == "trained" else {}
    net = net.to(place) if request.param == "copied" else net
    tokens = tokens.to(place)
    with torch.no_grad(), mode(), st.stream(net, there, budget=budget, **options) as streamed:
        net(tokens), net(tokens)
        yield streamed, net, other, tokens


# They change the weight, and not its data, as an optimizer over all parameters does.
BY_ITSELF = [
    "the weight",
    "div_",
    "by a tensor",
    "copy_",
    "index_fill_",
    "another weight",
    "two results",
    "out",
    "set_",
]
BY_ITSELF += ["set_ to a part of a storage", "set_ with other strides", "set_ to itself", "resize_ to its shape"]
BY_ITSELF += ["foreach", "foreach with lists"]


@pytest.mark.parametrize("name", CHANGES)
def test_changes_are_computed_with(case, place, name):
    streamed, net, other, tokens = case
    if (place, name) == ("cuda", ROUNDED):
        return
    if net.embed.weight.requires_grad and name in BY_ITSELF:
        with refused("the weight is trained. Its data may be changed"):
            CHANGES[name](net)
        assert same(net, other, tokens)
        return
    for _ in range(2):
        for model in (net, other):
            CHANGES[name](model)
        assert same_state(net, other) and same(net, other, tokens)
    streamed.close()
    assert same(net.to(place), other, tokens)


@pytest.mark.parametrize("exchange", SWAPS.values(), ids=SWAPS)
def test_swaps_with_averages(case, exchange):
    streamed, net, other, tokens = case
    averages = [[torch.full_like(one, 0.01, requires_grad=False) for one in other.parameters()] for _ in range(2)]
    with torch.no_grad():
        for _ in range(2):
            for model, of_model in zip((net, other), averages):
                for weight, average in zip(model.parameters(), of_model):
                    exchange(weight, average)
            assert same_state(net, other) and same(net, other, tokens)
            assert all(torch.equal(one.cpu(), want.cpu()) for one, want in zip(*averages))
        streamed.close()
    assert same(net.to(tokens.device), other, tokens)


@pytest.mark.parametrize("move", MOVES.values(), ids=MOVES)
@pytest.mark.parametrize("small", [1 << 20, 0], ids=["copied", "in place"])
def test_the_sources_stay_where_they_are(device, net, other, tokens, monkeypatch, small, move):
    monkeypatch.setattr("libstagehand.torch._weights.SMALL_SOURCE", small)
    with torch.no_grad(), st.stream(net, device, budget="50%") as streamed:
        for model in (net, other):
            move(model)
        for then in (lambda: None, streamed.close, lambda: None):
            then()
            for _ in range(2):
                assert same(net, other, tokens)
                for model in (net, other):
                    model.get_parameter(NAME).mul_(2)


def test_a_result_is_the_tensor_that_was_given(streamed, net):
    weight = net.get_parameter(NAME)
    assert torch.add(values(128, 64), 1, out=weight) is weight and weight.mul_(2) is weight
    made = torch.sort(values(128, 64), out=(weight, torch.empty(0, dtype=torch.long)))
    assert made[0] is weight and made[1].shape == (128, 64)
    assert torch._foreach_add_([weight], 1.0)[0] is weight and weight.set_(values(128, 64)) is weight


def test_what_changes_nothing_has_nothing_loaded_again(device, net, tokens):
    with torch.no_grad(), st.stream(net, device) as streamed:
        net(tokens)
        before = streamed.stats().bytes_to_device
        for look in (torch.Tensor.t, lambda weight: weight.narrow(0, 0, 4), lambda weight: weight.chunk(3)):
            look(net.get_parameter(NAME)), look(net.get_parameter(NAME).data)
        net.float(), net.to("cpu"), net.cpu()
        net(tokens)
        assert streamed.stats().bytes_to_device == before > 0


def resized(net):
    net.get_parameter(NAME).untyped_storage().resize_(1 << 20)


def weight(change):
    return lambda net: change(net.get_parameter(NAME))


def assign(net):
    net.load_state_dict(copy.deepcopy(net.state_dict()), assign=True)


def load_what_does_not_fit(net):
    wrong = dict(net.state_dict(), **{"head.weight": torch.zeros(3, 3)})
    del wrong["embed.weight"]
    net.load_state_dict(wrong)


MADE = r"is streamed as float32 on cpu and cannot be made"
REFUSED = {
    "set_": (weight(lambda weight: weight.set_(values(64, 128))), "shape"),
    "resize_": (weight(lambda weight: weight.resize_(256, 64)), "shape"),
    "t_": (weight(lambda weight: weight.t_()), "shape"),
    "out": (weight(lambda weight: torch.add(values(64, 64), 1, out=weight)), "shape"),
    "type": (weight(lambda weight: weight.set_(values(128, 64).double())), "type|dtype"),
    "data": (weight(lambda weight: setattr(weight, "data", values(64, 128))), f"{NAME} is.*data cannot be replaced"),
    "data of a type": (weight(lambda weight: setattr(weight, "data", values(128, 64).half())), "cannot be replaced"),
    "array": (weight(lambda weight: weight.numpy().__setitem__((0, 0), 1)), "read-only"),
    "swapped": (weight(lambda one: torch.utils.swap_tensors(one, nn.Parameter(torch.ones(9)))), f"{NAME} is.*swap"),
    "swapped in": (weight(lambda one: torch.utils.swap_tensors(nn.Parameter(torch.ones(9)), one)), f"{NAME} is.*swap"),
    "shared": (weight(lambda weight: weight.share_memory_()), f"{NAME} is.*shared memory"),
    "view is shared": (weight(lambda weight: weight.data[3:].share_memory_()), f"{NAME} is.*shared memory"),
    "model is shared": (lambda net: net.layers[4].up.share_memory(), f"{NAME} is.*shared memory"),
    "overlap": (weight(lambda one: torch.add(one[1:], 1, out=one[:-1])), "refer to a single memory location"),
    "storage": (resized, "resize storage that is not resizable"),
    "larger": (weight(lambda weight: weight.detach().resize_(1000, 64)), "resize storage that is not resizable"),
    "half": (nn.Module.half, MADE),
    "double": (nn.Module.double, MADE),
    "to another device": (lambda net: net.to("meta"), MADE),
    "layer": (lambda net: net.layers[3].to(torch.bfloat16), MADE),
    "function": (lambda net: net._apply(torch.Tensor.half), "cannot be made float16"),
    "assign": (assign, "assign=True"),
    "state": (load_what_does_not_fit, r"(?s)Missing.*embed\.weight.*size mismatch for head\.weight"),
}


@pytest.mark.filterwarnings("ignore:An output with one or more elements was resized")
@pytest.mark.parametrize("call, why", REFUSED.values(), ids=REFUSED)
def test_refused_and_nothing_is_lost(streamed, net, other, tokens, call, why):
    net.register_buffer("small", torch.zeros(3)), other.register_buffer("small", torch.zeros(3))
    with pytest.raises((RuntimeError, TypeError, ValueError), match=why):
        call(net)
    assert net.small.dtype == torch.float32
    assert net.to("cpu") is net and net.float() is net and net.eval() is net
    assert same(net, other, tokens)
    streamed.close()
    assert same(net, other, tokens)


@pytest.mark.parametrize("name", ["data", "set_", "the weight", "row"])
@pytest.mark.parametrize("resident", [False, True])
def test_what_an_error_has_told_of_is_not_computed_with(device, net, other, tokens, resident, name):
    """A module changes its own weight in its call."""

    def write():
        return net.layers[4].register_forward_pre_hook(lambda *_: CHANGES[name](net))

    budget = size_of(net) * (4 if resident else 1) // 4
    with torch.no_grad(), st.stream(net, device, budget=budget, blocks="layers.*") as streamed:
        for _ in range(3):
            handle = write()
            with refused(IN_PLACE):
                net(tokens)
            handle.remove()
            assert same(net, other, tokens)
        with streamed.step():
            handle = write()
            with refused("was changed in place"):
                net(tokens)
            handle.remove()
            with refused("was changed in place"):  # in the same step it is there still
                net(tokens)
        assert same(net, other, tokens)
    assert same(net, other, tokens)


class Rescales(nn.Module):
    """Changes the weights of its layers in place in the first call, as RWKV does."""

    def __init__(self, change):
        super().__init__()
        self.layers, self.change = nn.ModuleList(Layer(64) for _ in range(6)), change

    def forward(self, x):
        change, self.change = self.change, None
        if change is not None:
            with torch.no_grad():
                for layer in self.layers:
                    change(layer.up.weight)
        for layer in self.layers:
            x = layer(x)
        return x


IN_CALLS = ["div_", "data", "by a tensor", "copy_", "row", "view of the data", "index_fill_", "chunk of the data", "T"]


@pytest.mark.parametrize("name", IN_CALLS)
def test_a_weight_that_another_module_changes(device, name):
    from weights import OF_WEIGHT

    model, x = Rescales(OF_WEIGHT[name]).requires_grad_(False), torch.randn(2, 64)
    plain = copy.deepcopy(model)
    want = plain(x)
    with st.stream(model, device, budget=size_of(model) // 3, blocks="layers.*"):
        for _ in range(3):
            assert torch.equal(model(x), want)
    assert torch.equal(model(x), want) and torch.equal(plain(x), want)


# Gradients, and weights that are trained.


def test_a_change_between_a_forward_and_its_backward_is_seen(device, net, tokens):
    with st.stream(net, device, budget=size_of(net) // 4):
        loss = (net.embed(tokens).requires_grad_() * net.layers[0].up.weight[0]).sum()
        with torch.no_grad():
            net.layers[0].up.weight.add_(1)
        loss.backward()  # the gradient does not need the weight
        loss = net.layers[0](torch.randn(3, 64, requires_grad=True)).sum()
        with torch.no_grad():
            net.layers[0].up.weight.add_(1)
        with refused("modified by an inplace operation"):
            loss.backward()
        assert same(net, copy.deepcopy(net), tokens)


def test_a_saved_weight_keeps_its_contents(device, net, other, tokens):
    gradients = []
    with st.stream(net, device):
        net(tokens)
        for model in (net, other):
            x = torch.ones(3, 64, requires_grad=True)
            made = nn.functional.linear(x, model.get_parameter(NAME)).sum()
            model.get_parameter(NAME).data = values(128, 64)
            made.backward()
            gradients.append(x.grad)
        assert torch.equal(*gradients) and same(net, other, tokens)


def test_weights_that_are_trained(device, tokens):
    def train(net):
        net(tokens)["logits"].square().mean().backward()

    net = Net()
    other = copy.deepcopy(net)
    optimizer = sgd(other.parameters())
    with st.stream(net, device, budget=size_of(net) // 2, blocks="layers.*", optimizer=sgd):
        for _ in range(3):
            train(net), train(other)
            optimizer.step()
            optimizer.zero_grad()
            for model in (net, other):
                model.get_parameter(NAME).data.mul_(0.5)
        assert same(net, other, tokens)
        old = net.get_parameter(NAME).detach()
        train(net)
        old.mul_(2)
        with refused(rf"{NAME} was changed in place, by a tensor that was read before steps"):
            net(tokens)


# Several models, what shares memory, and what was made before a change.


def test_swaps_and_lists_of_two_streamed_models(device, net, other, tokens):
    second = Net().requires_grad_(False)
    plain = copy.deepcopy(second)
    with torch.no_grad(), st.stream(net, device, budget="50%"), st.stream(second, device, budget="50%"):
        for _ in range(3):
            for model, average in ((net, second), (other, plain)):
                for one, mean in zip(model.parameters(), average.parameters()):
                    swap(one, mean)
                torch._foreach_mul_([model.get_parameter(NAME), average.get_parameter(NAME)], 2.0)
            assert same(net, other, tokens) and same(second, plain, tokens)
        with refused("weights of several streamed models: call it once for each"):
            torch.sort(values(128, 64), out=(net.get_parameter(NAME), second.get_parameter(NAME).view(torch.int32)))
    assert same(net, other, tokens) and same(second, plain, tokens)


def test_tensors_from_before_keep_their_contents(streamed, net, other, tokens):
    kept = []
    for model in (net, other):
        weight = model.get_parameter(NAME)
        state = model.state_dict()
        kept.append([state[NAME], weight.detach(), weight.data, weight.data[3:7].t(), weight.detach()[5]])
        weight.data = values(128, 64)
        weight.data.mul_(2)
    assert all(torch.equal(*pair) for pair in zip(*kept)) and same(net, other, tokens)
    for model, tensors in zip((net, other), kept):
        model.get_parameter(NAME).data = tensors[2]
    assert same(net, other, tokens)


def test_a_tensor_that_cannot_be_found_is_not_passed_over(streamed, net, other, tokens):
    kept = net.state_dict()[NAME]
    gc.freeze()
    with refused(rf"{NAME} cannot get other contents: .*Call gc.unfreeze\(\) before"):
        net.get_parameter(NAME).data = values(128, 64)
    assert same(net, other, tokens) and torch.equal(kept, other.get_parameter(NAME))
    gc.unfreeze()
    for model in (net, other):
        model.get_parameter(NAME).data = values(128, 64)
    assert same(net, other, tokens) and not torch.equal(kept, other.get_parameter(NAME))


def test_a_weight_that_shares_memory_is_refused(device, net, tokens):
    net.layers[2].up.weight = nn.Parameter(net.get_parameter(NAME).data[:], requires_grad=False)
    with torch.no_grad(), st.stream(net, device):
        want = net(tokens)["logits"]
        with refused("shares memory with layers.*so its data cannot be replaced"):
            net.get_parameter(NAME).data = values(128, 64)
        assert torch.equal(net(tokens)["logits"], want)


def test_what_is_read_of_a_mapped_file_is_not_changed(device, net, tokens, tmp_path):
    pytest.importorskip("safetensors.torch").save_file(net.state_dict(), tmp_path / "net.safetensors")
    meta = on_meta()
    with torch.no_grad(), st.stream(meta, device, files=tmp_path):
        meta(tokens)
        meta.state_dict()[NAME].mul_(2)
        with refused(rf"{NAME} is streamed from a mapped file, and .* that was made from it was changed"):
            meta(tokens)


@pytest.mark.parametrize("kind", ["spectral_norm", "orthogonal", "weight_norm"])
def test_parametrizations_that_are_removed(device, tokens, kind):
    models = []
    for _ in range(2):
        torch.manual_seed(3)
        net = Net()
        getattr(utils.parametrizations, kind)(net.layers[4].up)
        models.append(net.eval().requires_grad_(False))
    with torch.no_grad(), st.stream(models[0], device, budget="50%"):
        assert torch.equal(models[0](tokens)["logits"], models[1](tokens)["logits"])
        for model in models:
            utils.parametrize.remove_parametrizations(model.layers[4].up, "weight")
        assert same(*models, tokens)
    assert same(*models, tokens)


class Fails(nn.Module):
    def __init__(self):
        super().__init__()
        self.own, self.inner = nn.Parameter(torch.randn(64, 64)), nn.Linear(64, 64)

    def forward(self, x):
        return self.inner(x @ self.own)


def test_a_loading_that_fails(device):
    model = nn.Sequential(Fails(), Fails()).requires_grad_(False)
    other, x = copy.deepcopy(model), torch.randn(2, 64)
    with torch.no_grad(), st.stream(model, device):
        want = model(x)
        handle = model[0].inner._register_load_state_dict_pre_hook(lambda *_: 1 / 0)
        with pytest.raises(ZeroDivisionError):
            model.load_state_dict({name: value * 0 for name, value in other.state_dict().items()})
        handle.remove()
        other[0].own.data.zero_()  # what was loaded before it failed
        assert torch.equal(model(x), other(x)) and not torch.equal(model(x), want)
        model.load_state_dict({name: value + 1 for name, value in other.state_dict().items()})
        other.load_state_dict(model.state_dict())
        assert torch.equal(model(x), other(x))


@pytest.mark.parametrize("load", [False, True])
def test_a_model_that_was_made_in_inference_mode(device, tokens, load):
    with torch.inference_mode():
        net, other = Net(), Net()
        want = (other if load else net)(tokens)["logits"]
        with st.stream(net, device, budget=size_of(net) // 4):
            for _ in range(3):
                if load:
                    net.load_state_dict(other.state_dict())
                assert torch.equal(net(tokens)["logits"], want)
        assert torch.equal(net(tokens)["logits"], want) and all(one.is_inference() for one in net.parameters())


def test_what_asks_for_nothing_is_refused(device, net):
    for options, why in (
        ({"outside": ["lm_hed*", "embed.*"]}, r"outside=\['lm_hed\*'\] matches no parameter or buffer"),
        ({"optimizer": sgd}, "optimizer= was given, but no streamed weight requires a gradient"),
        ({"files": []}, "files= is empty"),
    ):
        with refused(why, ValueError):
            st.stream(net, device, **options)
