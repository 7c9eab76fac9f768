"""Weights whose block is not held, and that modules read in their calls: those of other modules, now and then, in
checkpoints, and in terms of a loss. Steps of a new kind are searched for views that outlive their block.
"""

import copy
from functools import partial

import pytest
import torch
from models import NAME, Layer, equal, refused, same, same_state, sgd, size_of
from torch import nn
from torch.utils.checkpoint import checkpoint

import libstagehand.torch as st


class Borrows(nn.Module):
    """Reads a layer's weight by `way` after all layers have been called."""

    def __init__(self, way=None):
        super().__init__()
        self.layers, self.way = nn.ModuleList(Layer(64) for _ in range(6)), way

    def forward(self, x):
        for index, layer in enumerate(self.layers):
            x = layer(x)
            if index == 2 and self.way is not None:
                assert len(self.layers[2].up.weight[0]) == 64
        return x if self.way is None else self.way(self, x)


def up(model):
    return model.layers[2].up.weight


WAYS = {
    "linear": lambda model, x: nn.functional.linear(x, up(model)),
    "view of a view": lambda model, x: x @ up(model).view(2, -1).t().reshape(64, -1),
    "data": lambda model, x: x @ up(model).data.t(),
    "numpy": lambda model, x: x + torch.from_numpy(up(model).detach().numpy()[0].copy()),
    "out": lambda model, x: x + torch.mm(x.detach(), up(model).t(), out=torch.empty(2, 128))[:, :64],
    "two layers": lambda model, x: x @ torch.cat([up(model), model.layers[4].up.weight]).t(),
}


@pytest.mark.parametrize("way", WAYS.values(), ids=WAYS)
@pytest.mark.parametrize("layers", ["layers.*", ["layers.?.up", "layers.?.down"]], ids=str)
def test_a_weight_that_another_module_reads_now_and_then(device, way, layers):
    model, x = Borrows().requires_grad_(False), torch.randn(2, 64, requires_grad=True)

    def result(way):
        model.way, x.grad = way, None
        y = model(x)
        y.sum().backward()
        return [y.detach(), x.grad]

    plain, want = result(None), result(way)
    with st.stream(model, device, budget=size_of(model) // 3, blocks=layers, debug=True):
        for way_now, expected in ((None, plain), (way, want), (None, plain), (way, want), (way, want)):
            assert equal(result(way_now), expected)
    assert equal(result(way), want)


def test_a_saved_view_is_read_outside_a_backward(device):
    model, x = Borrows(lambda model, x: x @ up(model).t()).requires_grad_(False), torch.randn(2, 64, requires_grad=True)
    want = up(model).detach().clone().t()
    with st.stream(model, device, budget=size_of(model) // 3, blocks="layers.*"):
        for _ in range(2):
            assert torch.equal(model(x).grad_fn._saved_mat2, want)


def test_an_operation_on_weights_of_two_models(device):
    """Each of the models holds its own weights only."""
    one, two = (Borrows().requires_grad_(False) for _ in range(2))
    x = torch.randn(2, 64)
    one.way = lambda model, x: x + (up(model) * up(two))[0] + torch.cat([up(two)[1:3], up(model)[1:3]]).sum(0)
    want, other = one(x), two(x)
    stream = partial(st.stream, device=device, blocks="layers.*", budget=size_of(one) // 3)
    with stream(one), stream(two):
        for _ in range(3):
            assert torch.equal(one(x), want) and torch.equal(two(x), other)
        assert torch.equal(up(one) - up(two), up(one).clone() - up(two).clone())


def test_trained_weights_that_are_read_beside_their_module(device):
    """By another module, and by a term of the loss that is computed from the weight by itself."""

    def train(model, optimizer=None):
        losses = []
        for _ in range(4):
            loss = model(torch.ones(2, 64)).square().mean() + up(model).square().sum() / 100
            losses.append(loss.item())
            loss.backward()
            if optimizer is not None:
                optimizer.step()
                optimizer.zero_grad()
        return losses

    model = Borrows(lambda model, x: x + up(model)[0])
    plain = copy.deepcopy(model)
    want = train(plain, sgd(plain.parameters()))
    with st.stream(model, device, budget=size_of(model) // 2, optimizer=sgd):
        assert train(model) == want
    assert same_state(model, plain)
    with st.stream(model, device, blocks="layers.*"), refused(r"is streamed and requires a gradient"):
        model(torch.randn(2, 64))


def test_a_parameter_of_a_weight_is_trained(device, net, tokens):
    other = copy.deepcopy(net)
    with st.stream(net, device, budget=size_of(net) // 2):
        net(tokens)
        for model in (net, other):
            head = nn.Linear(64, 128)
            head.weight, head.bias = nn.Parameter(model.get_parameter(NAME).data), None
            optimizer = sgd(head.parameters())
            for _ in range(2):
                head(model(tokens)["hidden"]).square().mean().backward()
                optimizer.step()
                optimizer.zero_grad()
            model.head_of_test = head
        assert same(net, other, tokens)
    assert same(net, other, tokens)


# The search for views in the first step of each kind.
VIEW = r"reads layers\.2\.up\.weight by a view of it, but its block layers\.2.* is not held any more"


class KeepsView(Borrows):
    """Keeps a view that a module has made of its own weight, and uses the view after that module has returned."""

    def __init__(self):
        super().__init__()
        self.layers[2].register_forward_hook(lambda layer, *_: setattr(self, "kept", layer.up.weight[0]))

    def forward(self, x, use=True):
        x = super().forward(x)
        return x + self.kept if use else x


def test_the_first_step_of_each_kind_is_searched_for_views(device):
    model, x = KeepsView().requires_grad_(False), torch.randn(2, 64)
    with st.stream(model, device, budget=size_of(model) // 3, blocks="layers.*"):
        for _ in range(3):  # as long as no step of this kind has passed
            with refused(VIEW):
                model(x)
        for _ in range(2):
            model(x, False)
            model(x, use=False)
        for made in (lambda: model(x, 7), lambda: model(x[:1], use=3), lambda: model(x[None], True)):
            with refused(VIEW):
                made()
        model.train(False)
        model(x, False)
        with torch.inference_mode(), refused(VIEW):
            model(x, True)


@pytest.mark.parametrize("explicit", [False, True])
def test_debug_searches_every_step(device, explicit):
    model, x = KeepsView().requires_grad_(False), torch.randn(2, 64)
    want = model(x, False)
    with st.stream(model, device, budget=size_of(model) // 3, blocks="layers.*", debug=True) as streamed:
        for _ in range(3):
            assert torch.equal(model(x, use=False), want)
        with refused(VIEW):
            if explicit:
                with streamed.step():
                    model(x)
            else:
                model(x)
        assert torch.equal(model(x, use=False), want)


def test_a_view_of_an_unheld_weight_outlives_its_reader(device):
    """A view that is made while the block is not held finds the contents whenever it is used in a call."""
    model, x = Borrows(lambda model, x: x + up(model)[0]).requires_grad_(False), torch.randn(2, 64)
    want = model(x)
    with st.stream(model, device, budget=size_of(model) // 3, blocks="layers.*", debug=True):
        model.way = lambda model, x: x + model.__dict__.setdefault("kept", up(model).view(128, 64))[0]
        for _ in range(2):
            assert torch.equal(model(x), want)
        assert torch.equal(model.kept + 1, up(model).clone() + 1)
    with refused("not streamed any more"):
        model.kept + 1


def test_without_the_search_nothing_is_looked_at(device):
    model, seen = Borrows().requires_grad_(False), []
    with st.stream(model, device, debug=False):
        for layer in model.layers:
            layer.register_forward_hook(
                lambda *_: seen.append(torch.utils._python_dispatch._get_current_dispatch_mode())
            )
        model(torch.randn(2, 64))
    assert seen == [None] * 6


class ReadsInCheckpoint(Layer):
    """The checkpoint's function reads a weight by itself, without calling a module, when it runs again."""

    def forward(self, x):
        def part(x):
            return torch.tanh(x @ self.up.weight.t()) @ self.up.weight

        return super().forward(x) + checkpoint(part, x, use_reentrant=self.reentrant)


class Wrapped(torch.Tensor):
    """A tensor without memory of its own, which does not name its parts."""

    @staticmethod
    def __new__(cls, inner):
        made = torch.Tensor._make_wrapper_subclass(cls, inner.size(), dtype=inner.dtype)
        made.inner = inner
        return made

    @classmethod
    def __torch_dispatch__(cls, operation, types, args=(), kwargs=None):
        args = [one.inner if isinstance(one, cls) else one for one in args]
        return cls(operation(*args, **(kwargs or {})))


class Wraps(Layer):
    def forward(self, x):
        return super().forward(x) + Wrapped(x.detach()).sum(0).inner


@pytest.mark.parametrize("kind, reentrant", [(ReadsInCheckpoint, False), (ReadsInCheckpoint, True), (Wraps, False)])
def test_layers_in_the_first_step(device, kind, reentrant):
    model = nn.Sequential(*(kind(64) for _ in range(6))).requires_grad_(False)
    for layer in model:
        layer.reentrant = reentrant
    x = torch.randn(2, 64, requires_grad=True)

    def result():
        x.grad = None
        out = model(x)
        out.sum().backward()
        return [out.detach(), x.grad]

    want = result()
    with st.stream(model, device, budget=size_of(model) // 2, blocks=["?"]):
        for _ in range(3):
            assert equal(result(), want)
