"""Reads of weights whose block is not held: a module reads the weight of another module, now and then, without calling
that module."""

import pytest
import torch
from models import Layer, size_of
from torch import nn

import libstagehand.torch as st
from libstagehand.torch._kinds import StepKinds


class Borrows(nn.Module):
    """Reads a layer's weight by `way` after all layers have been called."""

    def __init__(self, way=None):
        super().__init__()
        self.layers = nn.ModuleList(Layer(64) for _ in range(6))
        self.way = way
        self.seen = None

    def forward(self, x):
        self.seen = None
        for index, layer in enumerate(self.layers):
            x = layer(x)
            if index == 2 and self.way is not None:
                self.seen = self.layers[2].up.weight[0]
        return x if self.way is None else self.way(self, x)


def up(model):
    return model.layers[2].up.weight


WAYS = {
    "add": lambda model, x: x + up(model).sum(0),
    "matmul": lambda model, x: x @ up(model).t(),
    "linear": lambda model, x: nn.functional.linear(x, up(model)),
    "view": lambda model, x: x + up(model)[0],
    "view_of_view": lambda model, x: x @ up(model).view(2, -1).t().reshape(64, -1),
    "einsum": lambda model, x: torch.einsum("bi,oi->bo", x, up(model)),
    "dropout": lambda model, x: x @ nn.functional.dropout(up(model), 0.5, False).t(),
    "data": lambda model, x: x @ up(model).data.t(),
    "detach": lambda model, x: x @ up(model).detach().t(),
    "float": lambda model, x: x @ up(model).float().t(),
    "double": lambda model, x: (x.double() @ up(model).double().t()).float(),
    "cat": lambda model, x: x @ torch.cat([up(model), model.layers[4].up.weight]).t(),
    "item": lambda model, x: x * up(model)[0, 0].item(),
    "numpy": lambda model, x: x + torch.from_numpy(up(model).detach().numpy()[0].copy()),
    "copy": lambda model, x: x + torch.empty(128, 64).copy_(up(model))[0],
    "out": lambda model, x: x + torch.mm(x.detach(), up(model).t(), out=torch.empty(2, 128))[:, :64],
    "vmap": lambda model, x: torch.vmap(lambda row: x @ row)(up(model)),
    "tensor": lambda model, x: x + up(model).new_tensor(up(model).tolist())[0],
}


@pytest.mark.parametrize("way", WAYS.values(), ids=WAYS)
@pytest.mark.parametrize("grad", [False, True])
def test_a_weight_that_another_module_reads(device, way, grad):
    model = Borrows().requires_grad_(False)
    x = torch.randn(2, 64, requires_grad=grad)

    def result():
        x.grad = None
        y = model(x)
        if y.requires_grad:
            y.sum().backward()
        return y.detach(), x.grad

    plain = result()
    model.way = way
    want = result()
    for layers in ("layers.*", ["layers.?.up", "layers.?.down"]):
        model.way = None
        with st.stream(model, device, budget=size_of(model) // 3, blocks=layers, debug=True):
            for way_now, expected in ((None, plain), (way, want), (None, plain), (way, want), (way, want)):
                model.way = way_now
                for got, one in zip(result(), expected):
                    assert got is one or torch.equal(got, one)
        assert torch.equal(result()[0], want[0])


def test_an_operation_on_weights_of_two_models(device):
    """Each of the models holds its own weights only."""
    one, two = (Borrows().requires_grad_(False) for _ in range(2))
    x = torch.randn(2, 64)
    one.way = lambda model, x: x + (up(model) * up(two))[0] + torch.cat([up(two)[1:3], up(model)[1:3]]).sum(0)
    want, other = one(x), two(x)
    with st.stream(one, device, blocks="layers.*", budget=size_of(one) // 3):
        with st.stream(two, device, blocks="layers.*", budget=size_of(two) // 3):
            for _ in range(3):
                assert torch.equal(one(x), want) and torch.equal(two(x), other)
            assert torch.equal(up(one) - up(two), up(one).clone() - up(two).clone())


def test_a_saved_view_is_read_outside_a_backward(device):
    model = Borrows(WAYS["matmul"]).requires_grad_(False)
    x = torch.randn(2, 64, requires_grad=True)
    want = model.layers[2].up.weight.detach().clone().t()
    with st.stream(model, device, budget=size_of(model) // 3, blocks="layers.*"):
        for _ in range(2):
            assert torch.equal(model(x).grad_fn._saved_mat2, want)


def test_contents_of_strings_are_no_kinds_of_steps():
    kinds = StepKinds(nn.Linear(1, 1))
    assert kinds.kind(("a" * 99,), {}) == kinds.kind(("b" * 98,), {})
    assert kinds.kind(("encode",), {}) != kinds.kind(("decode",), {})
    assert kinds.kind((torch.zeros(3, 7),), {}) == kinds.kind((torch.zeros(2, 9),), {})
    assert kinds.kind((torch.zeros(3, 7),), {}) != kinds.kind((torch.zeros(3, 1),), {})
    assert kinds.kind((2,), {}) == kinds.kind((9,), {}) != kinds.kind((0,), {})


def test_a_trained_weight_that_another_module_reads(device):
    def train(stream):
        torch.manual_seed(3)
        model = Borrows(WAYS["view"])
        losses = []
        if stream:
            scope = st.stream(
                model, device, budget=size_of(model) // 2, optimizer=lambda some: torch.optim.SGD(some, lr=0.1)
            )
        else:
            optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
        for _ in range(4):
            loss = model(torch.ones(2, 64)).square().mean()
            losses.append(loss.item())
            loss.backward()
            if not stream:
                optimizer.step()
                optimizer.zero_grad()
        if stream:
            scope.close()
        return losses, model.layers[2].up.weight.detach().clone()

    want, got = train(False), train(True)
    assert got[0] == want[0] and torch.equal(got[1], want[1])


def test_gradients_for_a_weight_that_is_read_need_an_optimizer(device):
    model = Borrows(WAYS["linear"])
    with st.stream(model, device, blocks="layers.*"):
        with pytest.raises(RuntimeError, match=r"is streamed and requires a gradient"):
            model(torch.randn(2, 64))


class Rescales(nn.Module):
    """Changes the weights of its layers in place in the first call, as RWKV does."""

    def __init__(self, change):
        super().__init__()
        self.layers = nn.ModuleList(Layer(64) for _ in range(6))
        self.change = change
        self.changed = False

    def forward(self, x):
        if not self.changed:
            with torch.no_grad():
                for layer in self.layers:
                    self.change(layer.up.weight)
            self.changed = True
        for layer in self.layers:
            x = layer(x)
        return x


CHANGES = {
    "div_": lambda weight: weight.div_(4),
    "data": lambda weight: weight.data.mul_(3),
    "tensor": lambda weight: weight.mul_(torch.full((64,), 2.0)),
    "copy_": lambda weight: weight.copy_(torch.ones(128, 64)),
    "view": lambda weight: weight[3].zero_(),
    "view of data": lambda weight: weight.data.t()[5].add_(7),
    "index": lambda weight: weight.index_fill_(0, torch.tensor([1, 2]), 5.0),
}


@pytest.mark.parametrize("change", CHANGES.values(), ids=CHANGES)
def test_a_weight_that_another_module_changes(device, change):
    torch.manual_seed(1)
    model = Rescales(change).requires_grad_(False)
    x = torch.randn(2, 64)
    with st.stream(model, device, budget=size_of(model) // 3, blocks="layers.*"):
        got = [model(x) for _ in range(3)]
    assert torch.equal(got[0], got[1]) and torch.equal(got[0], got[2])
    assert torch.equal(model(x), got[0])  # the change is in the source
    torch.manual_seed(1)
    model = Rescales(change).requires_grad_(False)
    torch.randn(2, 64)
    assert torch.equal(model(x), got[0])


VIEW = r"reads layers\.2\.up\.weight by a view of it, but its block layers\.2.* is not held any more"


class KeepsView(Borrows):
    """Keeps a view that a module has made of its own weight, and uses the view after that module has returned."""

    def __init__(self):
        super().__init__()
        self.layers[2].register_forward_hook(self.keep)
        self.kept = None

    def keep(self, layer, args, output):
        self.kept = layer.up.weight[0]

    def forward(self, x, use=True):
        x = super().forward(x)
        return x + self.kept if use else x


def test_the_first_step_of_each_kind_is_searched_for_views(device):
    model = KeepsView().requires_grad_(False)
    x = torch.randn(2, 64)
    with st.stream(model, device, budget=size_of(model) // 3, blocks="layers.*"):
        for _ in range(3):  # as long as no step of this kind has passed
            with pytest.raises(RuntimeError, match=VIEW):
                model(x)
        for _ in range(2):
            model(x, False)
            model(x, use=False)
        for made in (lambda: model(x, 7), lambda: model(x[:1], use=3), lambda: model(x[None], True)):
            with pytest.raises(RuntimeError, match=VIEW):
                made()
        model.train(False)
        model(x, False)
        with torch.inference_mode(), pytest.raises(RuntimeError, match=VIEW):
            model(x, True)


@pytest.mark.parametrize("explicit", [False, True])
def test_debug_searches_every_step(device, explicit):
    model = KeepsView().requires_grad_(False)
    x = torch.randn(2, 64)
    want = model(x, False)
    with st.stream(model, device, budget=size_of(model) // 3, blocks="layers.*", debug=True) as streamed:
        for _ in range(3):
            assert torch.equal(model(x, use=False), want)
        with pytest.raises(RuntimeError, match=VIEW):
            if explicit:
                with streamed.step():
                    model(x)
            else:
                model(x)
        assert torch.equal(model(x, use=False), want)


def test_a_view_of_an_unheld_weight_outlives_its_reader(device):
    """A view that is made while the block is not held finds the contents whenever it is used in a call."""
    model = Borrows().requires_grad_(False)
    x = torch.randn(2, 64)
    model.way = lambda model, x: x + (model.kept if hasattr(model, "kept") else up(model))[0]
    want = model(x)
    with st.stream(model, device, budget=size_of(model) // 3, blocks="layers.*", debug=True):
        keep = WAYS["view"]

        def way(model, x):
            model.kept = up(model).view(128, 64)
            return keep(model, x)

        model.way = way
        assert torch.equal(model(x), want)
        model.way = lambda model, x: x + model.kept[0]
        assert torch.equal(model(x), want)
        assert torch.equal(model.kept + 1, model.layers[2].up.weight.clone() + 1)
    with pytest.raises(RuntimeError, match="not streamed any more"):
        model.kept + 1


@pytest.fixture
def model():
    return Borrows().requires_grad_(False)


def test_without_the_search_nothing_is_looked_at(device, model):
    model.borrow = False
    x = torch.randn(2, 64)
    with st.stream(model, device, debug=False):
        for layer in model.layers:
            layer.register_forward_hook(
                lambda *_: seen.append(torch.utils._python_dispatch._get_current_dispatch_mode())
            )
        seen = []
        model(x)
        assert seen == [None] * 6


class ReadsInCheckpoint(Layer):
    """The checkpoint's function reads a weight by itself, without calling a module, when it runs again."""

    reentrant = False

    def forward(self, x):
        def part(x):
            return torch.tanh(x @ self.up.weight.t()) @ self.up.weight

        return super().forward(x) + torch.utils.checkpoint.checkpoint(part, x, use_reentrant=self.reentrant)


@pytest.mark.parametrize("reentrant", [False, True])
def test_a_weight_that_is_read_when_a_checkpoint_runs_again(device, reentrant):
    model = nn.Sequential(*(ReadsInCheckpoint(64) for _ in range(6))).requires_grad_(False)
    for layer in model:
        layer.reentrant = reentrant
    x = torch.randn(2, 64, requires_grad=True)
    (want,) = torch.autograd.grad(model(x).sum(), x) if not reentrant else (None,)
    if reentrant:
        model(x).sum().backward()
        want, x.grad = x.grad, None
    with st.stream(model, device, budget=size_of(model) // 2, blocks=["?"]):
        for _ in range(3):
            x.grad = None
            model(x).sum().backward()
            assert torch.equal(x.grad, want)


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
        return super().forward(x) + Wrapped(x).sum(0).inner


def test_tensors_without_memory_in_the_first_step(device):
    model, x = nn.Sequential(*(Wraps(64) for _ in range(6))).requires_grad_(False), torch.randn(2, 64)
    want = model(x)
    with st.stream(model, device, budget=size_of(model) // 2, blocks=["?"]):
        assert torch.equal(model(x), want)
