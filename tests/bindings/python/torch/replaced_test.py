"""Weights that get other contents while they are streamed: other data, set_(), out=, lists of tensors, functions over a
module, and swaps with averages. Tensors that were made from a weight before keep what they had, as in PyTorch.
"""

import copy
import gc

import pytest
import torch
import torch.nn.utils as utils
from models import Net, size_of
from torch import nn

import libstagehand as sh
import libstagehand.torch as st

NAME = "layers.4.up.weight"  # 128 x 64


@pytest.fixture
def other(net):
    return copy.deepcopy(net)


@pytest.fixture
def streamed(device, net, other, tokens, quarter):
    with torch.no_grad(), st.stream(net, device, budget=2 * quarter) as streamed:
        net(tokens)
        yield streamed


def same(net, other, tokens):
    state, wanted = net.state_dict(), other.state_dict()
    return torch.equal(net(tokens)["logits"], other(tokens)["logits"]) and all(
        torch.equal(state[key], wanted[key]) for key in wanted
    )


def values(*shape):
    return torch.arange(float(torch.Size(shape).numel())).reshape(shape) / 1000


# A change for each, made to the streamed and to the plain model.
CHANGES = {
    "set_": lambda weight: weight.set_(values(128, 64)),
    "set_ of the data, which changes no weight": lambda weight: weight.data.set_(values(128, 64)),
    "set_ to a part of a storage": lambda weight: weight.set_(values(128 * 64 + 8).untyped_storage(), 8, (128, 64)),
    "set_ with other strides": lambda weight: weight.set_(values(64, 128).t()),
    "set_ to itself": lambda weight: weight.set_(weight.data * 2),
    "resize_ to its shape": lambda weight: weight.resize_(128, 64),
    "data": lambda weight: setattr(weight, "data", values(128, 64)),
    "data of a view of itself": lambda weight: setattr(weight, "data", weight.data.flip(0)),
    "t_ of the data": lambda weight: weight.data.t_().mul_(2),
    "foreach": lambda weight: torch._foreach_add_([weight, values(4)], 1.0),
    "foreach over parts": lambda weight: torch._foreach_mul_(list(weight.chunk(2)), [2.0, 3.0]),
    "foreach with lists": lambda weight: torch._foreach_lerp_([weight], [values(128, 64)], 0.25),
    "out": lambda weight: torch.add(values(128, 64), 1, out=weight),
    "two results": lambda weight: torch.sort(values(128, 64).flip(1), out=(weight, torch.empty(0, dtype=torch.long))),
    "out that is a view": lambda weight: torch.add(values(64, 64), 1, out=weight[:64]),
}


@pytest.mark.parametrize("change", CHANGES.values(), ids=CHANGES)
def test_changes_that_are_served(streamed, net, other, tokens, change):
    for _ in range(2):
        for model in (net, other):
            change(model.get_parameter(NAME))
        assert same(net, other, tokens)
    streamed.close()
    assert same(net, other, tokens)


def test_a_result_is_the_tensor_that_was_given(streamed, net):
    weight = net.get_parameter(NAME)
    assert torch.add(values(128, 64), 1, out=weight) is weight and weight.mul_(2) is weight
    made = torch.sort(values(128, 64), out=(weight, torch.empty(0, dtype=torch.long)))
    assert made[0] is weight and made[1].shape == (128, 64)
    assert torch._foreach_add_([weight], 1.0)[0] is weight and weight.set_(values(128, 64)) is weight


REFUSED = {
    "set_": (lambda weight: weight.set_(values(64, 128)), "shape"),
    "resize_": (lambda weight: weight.resize_(256, 64), "shape"),
    "t_": (lambda weight: weight.t_(), "shape"),
    "out": (lambda weight: torch.add(values(64, 64), 1, out=weight), "shape"),
    "type": (lambda weight: weight.set_(values(128, 64).double()), "type|dtype"),
    "data": (lambda weight: setattr(weight, "data", values(64, 128)), "data cannot be replaced"),
}


@pytest.mark.filterwarnings("ignore:An output with one or more elements was resized")
@pytest.mark.parametrize("change, why", REFUSED.values(), ids=REFUSED)
def test_other_shapes_are_refused_and_nothing_is_lost(streamed, net, other, tokens, change, why):
    with pytest.raises((RuntimeError, TypeError), match=why):
        change(net.get_parameter(NAME))
    assert same(net, other, tokens)


def test_a_module_that_sets_its_weight_is_refused_and_nothing_is_lost(streamed, net, other, tokens):
    hook = net.layers[4].register_forward_pre_hook(lambda *_: net.get_parameter(NAME).set_(values(128, 64)))
    with pytest.raises(RuntimeError, match=rf"{NAME} is streamed, and was changed in place"):
        net(tokens)
    hook.remove()
    assert same(net, other, tokens)


@pytest.mark.parametrize("kind", ["spectral_norm", "orthogonal", "weight_norm"])
def test_parametrizations_that_are_removed(device, tokens, kind):
    models = []
    for _ in range(2):
        torch.manual_seed(3)
        net = Net()
        getattr(utils.parametrizations, kind)(net.layers[4].up)
        models.append(net.eval().requires_grad_(False))
    net, other = models
    with torch.no_grad(), st.stream(net, device, budget=size_of(net) // 2):
        assert torch.equal(net(tokens)["logits"], other(tokens)["logits"])
        for model in models:
            utils.parametrize.remove_parametrizations(model.layers[4].up, "weight")
        assert torch.equal(net.layers[4].up.weight.cpu(), other.layers[4].up.weight)
        assert torch.equal(net(tokens)["logits"], other(tokens)["logits"])
    assert same(net, other, tokens)


def test_a_function_over_the_module(streamed, net, other, tokens):
    for model in (net, other):
        model._apply(lambda tensor: tensor * 2)
        model.layers[2]._apply(torch.neg)
    assert same(net, other, tokens)
    with pytest.raises(RuntimeError, match="cannot be made float16"):
        net._apply(torch.Tensor.half)
    assert same(net, other, tokens)


def test_a_conversion_that_converts_nothing_has_nothing_loaded_again(device, net, tokens):
    with torch.no_grad(), st.stream(net, device) as streamed:
        net(tokens)
        before = streamed.stats().bytes_to_device
        net.float(), net.to("cpu"), net.cpu()
        net(tokens)
        assert streamed.stats().bytes_to_device == before > 0


# Swaps with averages, as code for exponential moving averages has them.


def swap(weight, average):
    weight.data, average.data = average.data, weight.data


def swap_backwards(weight, average):
    average.data, weight.data = weight.data, average.data


def swap_by_name(weight, average):
    before = weight.data
    weight.data = average.data
    average.data = before


def swap_by_view(weight, average):
    before = weight.data.view(-1).view(weight.shape)
    weight.data = average.data
    average.data = before


def swap_detached(weight, average):
    before = weight.detach()
    weight.data = average.data
    average.data = before


def swap_copies(weight, average):
    before = weight.data.clone()
    weight.data.copy_(average)
    average.copy_(before)


@pytest.mark.parametrize(
    "exchange",
    [swap, swap_backwards, swap_by_name, swap_by_view, swap_detached, swap_copies],
    ids=lambda one: one.__name__,
)
@pytest.mark.parametrize("trained", [False, True])
def test_swaps_with_averages(device, tokens, exchange, trained):
    net = Net().requires_grad_(trained)
    other = copy.deepcopy(net)
    optimizer = {"optimizer": lambda parameters: torch.optim.SGD(parameters, lr=0)} if trained else {}
    averages = [
        [torch.full_like(one, 0.01, requires_grad=False) for one in model.parameters()] for model in (net, other)
    ]
    with st.stream(net, device, budget=size_of(net) // 2, **optimizer) as streamed, torch.no_grad():
        net(tokens)
        for _ in range(2):
            for model, of_model in zip((net, other), averages):
                for weight, average in zip(model.parameters(), of_model):
                    exchange(weight, average)
            assert same(net, other, tokens)
            assert all(torch.equal(one, want) for one, want in zip(*averages))
        streamed.close()
    assert same(net, other, tokens) and all(torch.equal(one, want) for one, want in zip(*averages))


def test_a_swap_of_two_streamed_models(device, net, other, tokens):
    averages = [Net(), Net()]
    averages[1].load_state_dict(averages[0].state_dict())
    [model.requires_grad_(False) for model in averages]
    with (
        torch.no_grad(),
        st.stream(net, device, budget=size_of(net) // 2),
        st.stream(averages[0], device, budget=size_of(net) // 2),
    ):
        for _ in range(3):
            for model, average in zip((net, other), averages):
                for one, mean in zip(model.parameters(), average.parameters()):
                    swap(one, mean)
            assert same(net, other, tokens) and same(*averages, tokens)
    assert same(net, other, tokens) and same(*averages, tokens)


def test_lists_of_two_models(device, net, other, tokens):
    seconds = [copy.deepcopy(net), copy.deepcopy(net)]
    with (
        torch.no_grad(),
        st.stream(net, device, budget=size_of(net) // 2),
        st.stream(seconds[0], device, budget=size_of(net) // 2),
    ):
        for model, second in zip((net, other), seconds):
            torch._foreach_mul_([model.get_parameter(NAME), second.get_parameter(NAME)], 2.0)
        assert same(net, other, tokens) and same(*seconds, tokens)
        with pytest.raises(RuntimeError, match="weights of several streamed models: call it once for each"):
            torch.sort(values(128, 64), out=(net.get_parameter(NAME), seconds[0].get_parameter(NAME).view(torch.int32)))


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


def test_a_weight_that_shares_memory_is_refused(device, net, tokens):
    net.layers[2].up.weight = nn.Parameter(net.get_parameter(NAME).data[:], requires_grad=False)
    with torch.no_grad(), st.stream(net, device):
        want = net(tokens)["logits"]
        with pytest.raises(RuntimeError, match="shares memory with layers.*so its data cannot be replaced"):
            net.get_parameter(NAME).data = values(128, 64)
        assert torch.equal(net(tokens)["logits"], want)


@pytest.fixture
def frozen():
    yield gc.freeze
    gc.unfreeze()


def test_a_tensor_that_cannot_be_found_is_not_passed_over(streamed, net, other, tokens, frozen):
    kept = net.state_dict()[NAME]
    frozen()
    with pytest.raises(RuntimeError, match=rf"{NAME} cannot get other contents: .*Call gc.unfreeze\(\) before"):
        net.get_parameter(NAME).data = values(128, 64)
    assert same(net, other, tokens) and torch.equal(kept, other.get_parameter(NAME))
    gc.unfreeze()
    for model in (net, other):
        model.get_parameter(NAME).data = values(128, 64)
    assert same(net, other, tokens) and not torch.equal(kept, other.get_parameter(NAME))
