"""Forward passes: bit-equal to those of the module in host memory, in a quarter of its bytes."""

import dataclasses

import pytest
import torch
from models import PAGE, Layer, Net, size_of
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
    with sh.Device("host", page_bytes=PAGE, budget_bytes=quarter) as device:
        want = net(tokens)
        with st.stream(net, device):
            for _ in range(3):
                assert equal(net(tokens), want)
        assert 0 < device.memory().peak_bytes <= quarter


def test_too_small_a_budget_is_an_error_that_tells_what_is_needed(device, net, tokens):
    with st.stream(net, device, budget=PAGE, blocks="layers.*"):
        with pytest.raises(sh.BudgetError, match="needs at least"):
            net(tokens)


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
    model = Owner().requires_grad_(False)
    x = torch.randn(2, 5, 64)
    want = model(x)
    with st.stream(model, device, budget=size_of(model) // 2) as streamed:
        assert streamed.blocks()["Owner"] == ["scale", "list.0", "list.1", "list.2"]
        assert "attention" in streamed.blocks()
        for _ in range(3):
            assert torch.equal(model(x), want)


def test_tied_weights_are_a_block_that_both_users_acquire(device, net, tokens):
    net.head.weight = net.embed.weight
    want = net(tokens)
    with st.stream(net, device, budget=size_of(net) // 4) as streamed:
        assert "embed and head" in streamed.blocks() and streamed.blocks()["embed and head"] == ["embed.weight"]
        for _ in range(3):
            assert equal(net(tokens), want)
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

    class Both(nn.Module):
        def __init__(self):
            super().__init__()
            self.inner = model

        def forward(self, x):
            return self.inner(x)

    with st.stream(model, device, blocks=["0", "1", "2", "3"]) as streamed:
        assert streamed.blocks()["Sequential and 0"] == ["0.weight", "overlap"]
        for _ in range(3):
            assert torch.equal(model(x), want - half)
        assert model[1].weight.stride() == (1, 64)
    assert torch.equal(
        model[2].weight.untyped_storage().data_ptr() == flat.untyped_storage().data_ptr() and model.overlap, half
    )


def test_a_module_that_is_called_several_times_in_a_step(device, net, tokens):
    net.layers[3] = net.layers[1]
    want = net(tokens)
    with st.stream(net, device, budget=size_of(net) // 4):
        for _ in range(3):
            assert equal(net(tokens), want)


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


@dataclasses.dataclass
class Output:
    logits: torch.Tensor


def test_outputs_of_any_kind(device, net, tokens, quarter):
    class Wrapped(nn.Module):
        def __init__(self):
            super().__init__()
            self.net = net

        def forward(self, *, tokens):
            return Output(self.net(tokens)["logits"])

    model = Wrapped()
    want = model(tokens=tokens).logits
    with st.stream(model, device, budget=quarter):
        for _ in range(3):
            assert torch.equal(model(tokens=tokens).logits, want)


def test_two_models_on_a_device(tokens):
    one, other = Net().requires_grad_(False), Net(layers=5).requires_grad_(False)
    wants = one(tokens), other(tokens)
    with sh.Device("host", page_bytes=PAGE, budget_bytes=size_of(one) // 2, backend_options="poison=1") as device:
        with st.stream(one, device) as first, st.stream(other, device) as second:
            for _ in range(3):
                assert equal(one(tokens), wants[0]) and equal(other(tokens), wants[1])
            with first.keep_resident(), first.as_guest(second, shrink=True):
                assert equal(other(tokens), wants[1])
            first.reserve_for_resident(bytes=8 * PAGE, priority=sh.ResidentPriority.SECONDARY)
            assert first.stats().reserved_bytes == 8 * PAGE
            first.release_reservation()
            assert first.stats().reserved_bytes == 0


def test_an_exception_in_a_forward_releases_everything(device, net, tokens, quarter):
    """Trap 22."""
    want = net(tokens)
    fail = [True]

    def hook(module, args):
        if fail[0]:
            raise KeyError("here")

    with st.stream(net, device, budget=quarter) as streamed:
        for layer, kind in ((net.layers[3], KeyError), (net.layers[5].up, KeyError)):
            handle = layer.register_forward_pre_hook(hook)
            with pytest.raises(kind, match="here"):
                net(tokens)
            handle.remove()
            assert all(not streamed.runtime.block_info(block.block).held for block in streamed._blocks)
        assert equal(net(tokens), want)


def test_an_interrupt_that_no_hook_sees(device, net, tokens, quarter):
    want = net(tokens)

    def interrupt(module, args):
        raise KeyboardInterrupt

    with st.stream(net, device, budget=quarter) as streamed:
        net(tokens)
        handle = net.layers[3].register_forward_pre_hook(interrupt)
        with pytest.raises(KeyboardInterrupt):
            net(tokens)
        handle.remove()
        for _ in range(2):
            assert equal(net(tokens), want)
        assert all(not streamed.runtime.block_info(block.block).held for block in streamed._blocks)


def test_the_module_is_what_it_was(device, net, tokens, quarter):
    before = {name: (parameter, parameter.data_ptr(), parameter.clone()) for name, parameter in net.named_parameters()}
    attributes = {name: set(module.__dict__) for name, module in net.named_modules()}
    with st.stream(net, device, budget=quarter):
        assert dict(net.named_parameters()).keys() == before.keys()
        assert all(parameter is before[name][0] for name, parameter in net.named_parameters())
        net(tokens)
    for name, parameter in net.named_parameters():
        assert (
            parameter is before[name][0]
            and parameter.data_ptr() == before[name][1]
            and torch.equal(parameter, before[name][2])
        )
        assert not parameter.__dict__
    for name, module in net.named_modules():
        assert set(module.__dict__) == attributes[name] and not module._forward_hooks and not module._forward_pre_hooks


def test_a_failed_beginning_leaves_the_module_as_it_was(device, net, tokens):
    want = net(tokens)
    net.layers[2].up.weight.grad = torch.zeros_like(net.layers[2].up.weight)
    with pytest.raises(ValueError, match=r"layers\.2\.up\.weight has a gradient"):
        st.stream(net, device)
    assert equal(net(tokens), want) and not net.embed.weight.__dict__


def test_streaming_twice_and_after_the_end(device, net, tokens):
    streamed = st.stream(net, device)
    with pytest.raises(sh.UsageError, match="embed.weight is streamed already"):
        st.stream(net, device)
    streamed.close()
    streamed.close()
    with pytest.raises(sh.UsageError, match="streaming of the model has ended"):
        with streamed.step():
            pass
    with st.stream(net, device):
        net(tokens)


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
        with pytest.raises(
            RuntimeError, match=r"embed\.weight is streamed and requires a gradient.*no_grad.*optimizer="
        ):
            model(tokens)
        with torch.no_grad():
            model(tokens)


@pytest.mark.parametrize(
    "kind",
    [
        torch.float16,
        torch.bfloat16,
        torch.float64,
        torch.float8_e4m3fn,
        torch.int8,
        torch.uint8,
        torch.int32,
        torch.bool,
        torch.complex64,
    ],
)
def test_types_are_kept(device, kind):
    """Trap 17."""

    class Typed(nn.Module):
        def __init__(self):
            super().__init__()
            self.table = nn.Parameter((torch.randn(40, 30) * 9).to(kind), requires_grad=False)

        def forward(self):
            return self.table.clone()

    model = nn.Sequential(Typed())
    want = model[0].table.clone()
    with st.stream(model, device):
        got = model[0]()
        assert got.dtype == kind and torch.equal(got.view(torch.uint8), want.view(torch.uint8))


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
