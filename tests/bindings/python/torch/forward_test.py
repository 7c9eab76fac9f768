"""Forward passes: bit-equal to those of the module in host memory, in a quarter of its bytes."""

import copy

import pytest
import torch
from models import PAGE, Layer, Net, check_streamed, host, refused, size_of
from torch import nn

import libstagehand as sh
import libstagehand.torch as st


def equal(one, other):
    return all(torch.equal(one[key], other[key]) for key in one)


@pytest.mark.parametrize("blocks", [None, "layers.*", ["layers.*", "head"]])
@pytest.mark.parametrize("mode", [torch.no_grad, torch.inference_mode, torch.enable_grad])
def test_bit_equal_in_a_quarter(device, net, tokens, quarter, blocks, mode):
    with mode():
        want = net(tokens)
        with st.stream(net, device, budget=quarter, blocks=blocks) as streamed:
            for _ in range(4):
                assert equal(net(tokens), want)
            stats = streamed.stats()
            assert stats.steps == 4 and stats.held_bytes <= quarter
            assert stats.bytes_to_device >= 3 * (size_of(net) - quarter)  # it was not all there
        assert equal(net(tokens), want)


def test_memory_of_the_device_stays_below_its_budget(net, tokens, quarter):
    with host(quarter) as device:
        check_streamed(device, net, lambda: outputs(net, tokens))
        assert 0 < device.memory().peak_bytes <= quarter


def test_layers_are_blocks_and_what_is_too_large_is_divided(device, net):
    with st.stream(net, device) as streamed:
        names = streamed.blocks()
    assert list(names) == ["embed", *(f"layers.{i}" for i in range(8)), "head"]
    assert names["layers.3"] == [
        f"layers.3.{name}" for name in ("norm.weight", "norm.bias", "up.weight", "up.bias", "down.weight", "down.bias")
    ]
    with st.stream(net, device, budget=size_of(net) // 4) as streamed:
        assert "layers.3.up" in streamed.blocks()


def test_patterns_and_modules_choose_blocks(device, net):
    with st.stream(net, device, blocks=["layers.*", net.embed]) as streamed:
        assert list(streamed.blocks()) == ["embed", *(f"layers.{i}" for i in range(8)), "head"]
    with pytest.raises(ValueError, match="layer.*named_modules"):
        st.stream(net, device, blocks="layer.*")
    assert not net._forward_hooks and net.head.weight.device.type == "cpu"


class Owner(nn.Module):
    """Uses a parameter of its own, a list of such, and a child's weight without calling the child."""

    def __init__(self):
        super().__init__()
        self.scale = nn.Parameter(torch.randn(64))
        self.list = nn.ParameterList(torch.randn(64) for _ in range(3))
        self.layers = nn.ModuleList(Layer(64) for _ in range(6))
        self.attention = nn.MultiheadAttention(64, 4, batch_first=True)

    def forward(self, x):
        for layer, shift in zip(self.layers, [*self.list, *self.list]):
            x = layer(x * self.scale) + shift
        return self.attention(x, x, x)[0]


def test_parameters_that_a_module_has_beside_its_layers(device):
    model, x = Owner().requires_grad_(False), torch.randn(2, 5, 64)
    blocks = check_streamed(device, model, lambda: [model(x)], budget=size_of(model) // 2).blocks()
    assert blocks["Owner"] == ["scale", "list.0", "list.1", "list.2"] and "attention" in blocks


def outputs(net, tokens):
    return list(net(tokens).values())


def test_tied_weights_are_a_block_that_both_users_acquire(device, net, tokens):
    net.head.weight = net.embed.weight
    streamed = check_streamed(device, net, lambda: outputs(net, tokens), budget=size_of(net) // 4)
    assert "embed and head" in streamed.blocks() and streamed.blocks()["embed and head"] == ["embed.weight"]
    assert net.head.weight is net.embed.weight


def test_parameters_over_one_storage(device):
    flat = torch.randn(4 * 64 * 64)
    model = nn.Sequential(*(nn.Linear(64, 64, bias=False) for _ in range(4))).requires_grad_(False)
    for i, layer in enumerate(model):
        layer.weight.data = flat[i * 4096 : (i + 1) * 4096].view(64, 64).t()  # not contiguous
    half = flat[2048 : 2048 + 64].view(64)
    model.register_parameter("overlap", nn.Parameter(half, requires_grad=False))
    x = torch.randn(3, 64)
    want = model(x) + model.overlap

    with st.stream(model, device, blocks=["0", "1", "2", "3"]) as streamed:
        assert streamed.blocks()["Sequential and 0"] == ["0.weight", "overlap"]
        for _ in range(3):
            assert torch.equal(model(x), want - half)
        assert model[1].weight.stride() == (1, 64)
    assert torch.equal(
        model[2].weight.untyped_storage().data_ptr() == flat.untyped_storage().data_ptr() and model.overlap, half
    )


def test_one_step_around_several_calls(device, net, tokens, quarter):
    want = net(tokens)
    with st.stream(net, device, budget=quarter) as streamed:
        for _ in range(3):
            with streamed.managed_forward():
                assert equal(net(tokens), want) and equal(net(tokens), want)
        assert streamed.stats().steps == 3


def test_parts_that_are_called_without_the_whole(device, net, tokens, quarter):
    want = net(tokens)["hidden"]
    with st.stream(net, device, budget=quarter) as streamed:
        for _ in range(4):
            x = net.embed(tokens)
            for layer in net.layers:
                x = layer(x)
            assert torch.equal(x, want)
        assert streamed.stats().steps == 3  # the fourth is under way
        assert torch.equal(net(tokens)["hidden"], want)


def test_two_models_on_a_device(tokens):
    one, other = Net().requires_grad_(False), Net(layers=5).requires_grad_(False)
    wants = one(tokens), other(tokens)
    with host(size_of(one) // 2) as device:
        with st.stream(one, device) as first, st.stream(other, device) as second:
            for _ in range(3):
                assert equal(one(tokens), wants[0]) and equal(other(tokens), wants[1])
            with first.keep_resident(), first.as_guest(second, shrink=True):
                assert equal(other(tokens), wants[1])
            with first.reserve(bytes=8 * PAGE, priority=sh.ResidentPriority.SECONDARY):
                assert first.stats().reserved_bytes == 8 * PAGE
            assert first.stats().reserved_bytes == 0


def test_a_failed_beginning_leaves_the_module_as_it_was(device, net, tokens):
    want = net(tokens)
    net.layers[2].up.weight.grad = torch.zeros_like(net.layers[2].up.weight)
    with pytest.raises(ValueError, match=r"layers\.2\.up\.weight has a gradient"):
        st.stream(net, device)
    assert equal(net(tokens), want) and not net.embed.weight.__dict__


class Statistics(nn.Module):
    """Buffers: small ones that it writes, and a large one that it reads."""

    def __init__(self):
        super().__init__()
        self.layers = nn.ModuleList(nn.Sequential(nn.Linear(64, 64), nn.BatchNorm1d(64)) for _ in range(6))
        self.register_buffer("table", torch.randn(512, 64), persistent=False)

    def forward(self, x):
        for layer in self.layers:
            x = layer(x)
        return x + self.table[: len(x)]


def test_buffers(device):
    model, other = Statistics().requires_grad_(False), Statistics().requires_grad_(False)
    other.load_state_dict(model.state_dict())
    other.table.copy_(model.table)
    x = torch.randn(9, 64)
    with st.stream(model, device) as streamed:
        assert streamed.blocks()["Statistics"] == ["table"]
        for _ in range(3):
            assert torch.equal(model(x), other(x))
    for name, buffer in model.named_buffers():
        assert torch.equal(buffer, dict(other.named_buffers())[name]), name


class Writes(nn.Module):
    def __init__(self):
        super().__init__()
        self.linear = nn.Linear(8, 8)
        self.register_buffer("cache", torch.zeros(256, 128))

    def forward(self, x):
        self.cache[0, 0] += 1
        return self.linear(x)


def test_a_large_buffer_that_is_written_is_refused_by_name(device):
    model = nn.Sequential(Writes()).requires_grad_(False)
    with st.stream(model, device):
        with pytest.raises(RuntimeError, match=r"0\.cache is streamed, and was changed in place.*outside="):
            model(torch.randn(2, 8))
    with st.stream(model, device, outside="*.cache") as streamed:
        assert "0.cache" not in sum(streamed.blocks().values(), [])
        before = model[0].cache[0, 0].item()
        model(torch.randn(2, 8))
        assert model[0].cache[0, 0].item() == before + 1


def test_a_change_in_place_between_steps_is_told(device, net, tokens, quarter):
    """Trap 1."""
    with st.stream(net, device, budget=quarter):
        net(tokens)
        weight = net.layers[2].up.weight
        with torch.no_grad():
            torch._C._autograd._unsafe_set_version_counter((weight,), (weight._version + 1,))  # as weight.add_(1) does
        with pytest.raises(RuntimeError, match=r"layers\.2\.up\.weight is streamed, and was changed in place"):
            net(tokens)


def test_gradients_of_streamed_weights_are_refused(device, tokens):
    model = Net()
    with st.stream(model, device):
        with refused(r"embed\.weight is streamed and requires a gradient.*no_grad.*optimizer="):
            model(tokens)
        with torch.no_grad():
            model(tokens)


def test_graphs_need_a_gpu(device, net, tokens):
    with st.stream(net, device) as streamed:
        with pytest.raises(sh.UsageError, match="host:0 has no graphs"):
            streamed.graph(tokens)


@pytest.mark.parametrize("small", [0, 1 << 20])
@pytest.mark.parametrize("pin", [False, True])
def test_where_the_sources_are(device, net, tokens, quarter, monkeypatch, small, pin):
    monkeypatch.setattr("libstagehand.torch._weights.SMALL_SOURCE", small)
    other = Net().requires_grad_(False)
    before = {name: weight.data_ptr() for name, weight in net.state_dict().items()}
    with st.stream(net, device, budget=quarter, pin=pin):
        want = net(tokens)
        net.load_state_dict(other.state_dict())
        assert not equal(net(tokens), want) and equal(net(tokens), other(tokens))
        copied = any(weight.data_ptr() != before[name] for name, weight in net.state_dict().items())
        assert copied == (pin and small > 0)
    assert equal(net(tokens), other(tokens))  # what has become of it is in the original's memory
    assert all(weight.data_ptr() == before[name] for name, weight in net.state_dict().items())


def special(kind):
    plain = torch.randn(8, 8)
    if kind == "quantised":
        return torch.quantize_per_tensor(plain, 0.1, 0, torch.qint8)
    if kind == "sparse":
        return plain.to_sparse()
    return plain.to(torch.complex64).conj()


@pytest.mark.filterwarnings("ignore")
@pytest.mark.parametrize(
    "kind, why",
    [
        ("quantised", "is quantised .torch.qint8.: its scales.*torchao"),
        ("sparse", "has the layout torch.sparse_coo"),
        ("conjugated", "is conjugated"),
    ],
)
def test_tensors_that_are_more_than_their_bytes_are_refused_by_name(device, net, tokens, kind, why):
    """Trap 18."""
    net.layers[3].register_buffer("special", special(kind))
    want = net(tokens)
    with pytest.raises(TypeError, match=rf"layers\.3\.special {why}.*outside='layers\.3\.special'"):
        st.stream(net, device)
    with st.stream(net, device, outside="*.special"):
        assert equal(net(tokens), want)


# Where weights lie.


class Addresses(nn.Module):
    """Two weights in one storage, at odd offsets."""

    def __init__(self, first, second, device="cpu"):
        super().__init__()
        storage = torch.randn(300 * 200 + 64, device=device)
        self.one = nn.Parameter(storage[first:][: 100 * 200].view(100, 200), requires_grad=False)
        self.two = nn.Parameter(storage[100 * 200 + second :][: 200 * 200].view(200, 200), requires_grad=False)
        self.seen = []

    def forward(self, x):
        self.seen.append((self.one.data_ptr(), self.two.data_ptr()))
        return torch.mv(self.one, x), torch.mv(self.two, x)


@pytest.mark.parametrize("offsets", [(0, 0), (1, 2), (5, 16), (3, 63)])
@pytest.mark.parametrize("options", [{}, {"pack": True}, {"pin": False}, {"begun": "cuda"}], ids=str)
def test_weights_are_aligned_as_without_streaming(place, there, offsets, options):
    """Kernels may sum up in another order where a tensor begins elsewhere. Models of host memory are aligned as `.to()`
    aligns them on a GPU.
    """
    begun, options = options.get("begun", "cpu"), {name: one for name, one in options.items() if name != "begun"}
    if begun == "cuda" and place == "cpu":
        return
    model, x = Addresses(*offsets, device=begun), torch.randn(200, device=place)
    plain, bytes = Addresses(*offsets, device=begun), 64 if place == "cpu" else 256
    plain.load_state_dict(model.state_dict())
    with torch.no_grad():
        want = plain.to(place)(x)
        with st.stream(model, there, **options):
            for _ in range(3):
                assert all(map(torch.equal, model(x), want))
    assert [address % bytes for address in model.seen[-1]] == [address % bytes for address in plain.seen[0]]


class Speech(nn.Module):
    """It flattens its weights in each forward, as many models for DataParallel do."""

    def __init__(self, kind):
        super().__init__()
        self.layers = nn.ModuleList(kind(32, 32, num_layers=2, batch_first=True) for _ in range(3))

    def forward(self, x):
        for layer in self.layers:
            layer.flatten_parameters()
            x = x + layer(x)[0]
        return x


@pytest.mark.parametrize("kind", [nn.LSTM, nn.GRU, nn.RNN])
def test_flatten_parameters_does_nothing_while_streamed(device, monkeypatch, kind):
    model, x = Speech(kind).requires_grad_(False).eval(), torch.randn(2, 5, 32)
    want, calls = model(x), []

    def flatten(module):
        calls.append(module)
        for weight in module._flat_weights:  # as PyTorch does for a GPU
            weight.view(-1)[:1].clone()

    monkeypatch.setattr(nn.RNNBase, "flatten_parameters", flatten)
    with st.stream(model, device, budget="50%", debug=True):
        for layer in model.layers:
            layer.flatten_parameters()
        for _ in range(3):
            assert torch.equal(model(x), want)
        made = copy.deepcopy(model)
        assert not calls
    made.layers[1].flatten_parameters()
    model.layers[0].flatten_parameters()
    assert calls == [made.layers[1], model.layers[0]]
    assert torch.equal(model(x), want) and torch.equal(made(x), want)
