"""Weights that are more than their bytes: wrappers of several tensors, and tensors with others in their attributes, as
of libraries that quantise.
"""

import copy
import io
import pickle
from contextlib import contextmanager

import pytest
import torch
from models import Net, equal, gradients, refused, sgd, size_of
from torch import nn
from torch.utils.checkpoint import checkpoint

import libstagehand.torch as st

aten = torch.ops.aten
WIDTH = 64


class Scaled(torch.Tensor):
    """Integers with a scale for each row, and an offset that may be a wrapper itself. Knows its functions by its class,
    as libraries do.
    """

    TABLE = {}

    @staticmethod
    def __new__(cls, data, scale, offset, note=""):
        return torch.Tensor._make_wrapper_subclass(
            cls, data.shape, strides=data.stride(), dtype=scale.dtype, device=data.device
        )

    def __init__(self, data, scale, offset, note=""):
        self.ints, self.scale, self.offset, self.note = data, scale, offset, note

    @classmethod
    def of(cls, weight, nested):
        scale = weight.detach().abs().amax(1, keepdim=True) / 127
        offset = torch.randn(weight.shape) / 100
        return cls(
            (weight.detach() / scale).round().to(torch.int8), scale, cls.of(offset, False) if nested else offset, "kept"
        )

    def __tensor_flatten__(self):
        return ["ints", "scale", "offset"], {"note": self.note}

    @classmethod
    def __tensor_unflatten__(cls, inner, context, size, stride):
        return cls(inner["ints"], inner["scale"], inner["offset"], context["note"])

    def plain(self):
        return self.ints * self.scale + (self.offset.plain() if isinstance(self.offset, Scaled) else self.offset)

    def apply(self, function):
        return type(self)(function(self.ints), function(self.scale), function(self.offset), self.note)

    def __repr__(self):
        return f"Scaled({self.plain()})"

    @classmethod
    def __torch_function__(cls, func, types, args=(), kwargs=None):
        if func is nn.functional.linear:
            func = linear
        with torch._C.DisableTorchFunctionSubclass():
            return func(*args, **(kwargs or {}))

    @classmethod
    def __torch_dispatch__(cls, func, types, args=(), kwargs=None):
        if cls is not Scaled:
            raise NotImplementedError(f"no {func} of {cls}")
        kwargs = kwargs or {}
        if func is aten.copy_.default:
            for name in ("ints", "scale", "offset"):
                getattr(args[0], name).copy_(getattr(args[1], name))
            return args[0]
        if func in (aten.detach.default, aten.clone.default, aten._to_copy.default, aten.alias.default):
            for word in ("dtype", "memory_format"):
                kwargs.pop(word, None)
            return args[0].apply(lambda tensor: func(tensor, **kwargs))
        plain = [arg.plain() if isinstance(arg, Scaled) else arg for arg in args]
        return func(*plain, **kwargs)


def linear(x, weight, bias=None):
    return nn.functional.linear(x, weight.plain(), bias)


class Saves(torch.autograd.Function):
    @staticmethod
    def forward(ctx, x, weight):
        ctx.save_for_backward(weight)
        return x @ weight.plain().t()

    @staticmethod
    def backward(ctx, gradient):
        return gradient @ ctx.saved_tensors[0].plain(), None


class SavingLinear(nn.Linear):
    """Has autograd keep the whole wrapper."""

    def forward(self, x):
        return Saves.apply(x, self.weight) + self.bias


class State:
    """What belongs to a weight."""

    def __init__(self, scale, more):
        self.scale, self.more = scale, more


class Packed(nn.Parameter):
    """Bytes, with what is needed to understand them in attributes; it tells functions by its class."""

    def __new__(cls, data, state=None, kind=None):
        made = torch.Tensor._make_subclass(cls, data, False)
        made.state, made.kind = state, kind
        return made

    @classmethod
    def __torch_function__(cls, func, types, args=(), kwargs=None):
        result = super().__torch_function__(func, types, args, kwargs or {})
        if isinstance(result, torch.Tensor):
            return Packed(result, kind=next(arg.kind for arg in args if isinstance(arg, Packed)))
        return result

    def __deepcopy__(self, memo):
        with torch._C.DisableTorchFunctionSubclass():
            return Packed(copy.deepcopy(self.data, memo), copy.deepcopy(self.state, memo), self.kind)

    def plain(self):
        assert type(self) is Packed and self.kind == "nibbles"
        raw = self.as_subclass(torch.Tensor)
        return torch.cat([raw & 15, raw >> 4], 1) * self.state.scale + self.state.more[0]


class Keeps(torch.autograd.Function):
    """Keeps the weight for its backward by itself."""

    @staticmethod
    def forward(ctx, x, weight):
        ctx.weight = weight
        return x @ weight.plain().t()

    @staticmethod
    def backward(ctx, gradient):
        return gradient @ ctx.weight.plain(), None


class PackedLinear(nn.Module):
    def __init__(self, base):
        super().__init__()
        raw = torch.randint(0, 256, (base.out_features, base.in_features // 2), dtype=torch.uint8)
        state = State(torch.rand(base.out_features, 1) / 100, [torch.tensor(-0.05)])
        self.weight, self.state = Packed(raw, state, "nibbles"), state
        self.bias = base.bias

    def forward(self, x):
        return Keeps.apply(x, self.weight) + self.bias

    def _save_to_state_dict(self, destination, prefix, keep_vars):
        super()._save_to_state_dict(destination, prefix, keep_vars)
        destination[prefix + "weight.scale"] = self.weight.state.scale


def scaled(base, nested=False, saving=False):
    made = SavingLinear(base.in_features, base.out_features) if saving else base
    made.weight, made.bias = nn.Parameter(Scaled.of(base.weight, nested), requires_grad=False), base.bias
    return made


CHANGES = {
    "wrapper": scaled,
    "nested": lambda base: scaled(base, nested=True),
    "saved": lambda base: scaled(base, nested=True, saving=True),
    "attributes": PackedLinear,
}


def quantised(kind, layers=12, width=WIDTH):
    net = Net(width, layers).requires_grad_(False)
    for layer in net.layers:
        layer.up, layer.down = CHANGES[kind](layer.up), CHANGES[kind](layer.down)
    return net


def raw(tensor):
    """All bytes of a weight."""
    if isinstance(tensor, Scaled):
        return [one for part in (tensor.ints, tensor.scale, tensor.offset) for one in raw(part)]
    beside = (
        [tensor.state.scale, tensor.state.more[0]] if isinstance(tensor, Packed) and tensor.state is not None else []
    )
    return [tensor.as_subclass(torch.Tensor), *beside]


def bytes_of(net):
    return sum(one.numel() * one.element_size() for parameter in net.parameters() for one in raw(parameter))


@pytest.fixture(params=CHANGES)
def model(request):
    return quantised(request.param)


@contextmanager
def streaming(model, device, tokens, **options):
    """Streams a model, which gives what it gives without streaming, before and after."""
    with torch.no_grad():
        want = model(tokens)["logits"]
        with st.stream(model, device, **options) as streamed:
            for _ in range(4):
                assert torch.equal(model(tokens)["logits"], want)
            yield streamed, want
            assert torch.equal(model(tokens)["logits"], want)
        assert torch.equal(model(tokens)["logits"], want)


def test_bit_equal_in_a_quarter(device, model, tokens):
    before = {
        name: (weight, type(weight), [one.clone() for one in raw(weight)], [one.data_ptr() for one in raw(weight)])
        for name, weight in model.named_parameters()
    }
    quarter, blocks = bytes_of(model) // 4, ["layers.*.up", "layers.*.down"]
    with streaming(model, device, tokens, budget=quarter, blocks=blocks) as (streamed, _):
        stats = streamed.stats()
        assert stats.held_bytes <= quarter and stats.bytes_to_device >= 3 * (bytes_of(model) * 3 // 4)
        inner = [name for name in sum(streamed.blocks().values(), []) if name.startswith("layers.2.up.weight")]
        assert len(inner) in (3, 5), inner
    for name, weight in model.named_parameters():
        was, kind, contents, addresses = before[name]
        assert weight is was and type(weight) is kind and not any(key.startswith("_stagehand") for key in vars(weight))
        assert equal(raw(weight), contents) and [one.data_ptr() for one in raw(weight)] == addresses
        assert all(type(one) in (torch.Tensor, nn.Parameter) for one in raw(weight))


@pytest.mark.parametrize("kept", ["step", "checkpoint"])
def test_gradients_through_them(device, model, kept):
    class Wrapped(nn.Module):
        def __init__(self):
            super().__init__()
            self.net = model

        def forward(self, hidden):
            for layer in self.net.layers:
                hidden = layer(hidden) if kept == "step" else checkpoint(layer, hidden, use_reentrant=False)
            return {"logits": self.net.head(hidden), "hidden": hidden}

    whole = Wrapped()
    hidden = torch.randn(3, 5, WIDTH, requires_grad=True)
    want = [one.clone() for one in gradients(whole, hidden)]
    with st.stream(whole, device, budget=bytes_of(model) // 4, blocks=["net.layers.*"]) as streamed:
        for _ in range(3):
            hidden.grad = None
            assert equal(gradients(whole, hidden), want)
            assert all(not block.held() for block in streamed._blocks)
        assert streamed.stats().steps == 3


def test_state_dicts_copies_and_pickles(device, model, tokens):
    contents = {name: [one.clone() for one in raw(weight)] for name, weight in model.state_dict().items()}
    kinds = {name: type(weight) for name, weight in model.state_dict().items()}
    with streaming(model, device, tokens, budget=bytes_of(model) // 4) as (_, want):
        state = model.state_dict()
        assert {name: type(weight) for name, weight in state.items()} == kinds
        assert all(equal(raw(state[name])[: len(one)], one) for name, one in contents.items())
        copies = [copy.deepcopy(model)]
        if not isinstance(state["layers.0.up.weight"], Packed):  # which PyTorch cannot pickle, streamed or not
            file = io.BytesIO()
            torch.save(state, file)
            file.seek(0)
            saved = torch.load(file, weights_only=False)
            assert all(equal(raw(saved[name]), one) for name, one in contents.items())
            copies.append(pickle.loads(pickle.dumps(model)))
        for made in copies:
            assert torch.equal(made(tokens)["logits"], want)
            assert type(made.layers[0].up.weight) is type(state["layers.0.up.weight"])


def test_reads_outside_their_block(device, model, tokens):
    weight = model.layers[4].up.weight
    contents = [one.clone() for one in raw(weight)]
    with torch.no_grad(), st.stream(model, device, budget=bytes_of(model) // 4, blocks="layers.*"):
        model(tokens)
        kept = model.layers[4].up.weight
        assert kept.shape == weight.shape and kept.dtype == weight.dtype
        for got in (kept.cpu(), kept.clone(), kept.detach()):
            assert torch.equal(raw(got)[0], contents[0])
        for of in {id(one): one for one in (kept, weight)}.values():
            with refused(r"reads layers\.4\.up\.weight.*, but its block layers\.4 is not held"):
                torch.nn.functional.linear(torch.ones(1, of.shape[1]), of)
            with pytest.raises(RuntimeError, match=r"reads layers\.4\.up\.weight"):
                of.scale + 1 if isinstance(of, Scaled) else of.state.scale + 1
        with pytest.raises(RuntimeError, match=r"layers\.\d\.\w+\.weight is streamed|is streamed as"):
            model.half()
        assert model.to("cpu") is model


class Borrows(nn.Module):
    def __init__(self, net):
        super().__init__()
        self.net = net

    def forward(self, tokens):
        return self.net(tokens)["hidden"] @ self.net.layers[3].up.weight.t()


@pytest.mark.parametrize("kind", ["wrapper", "nested"])
def test_a_weight_that_another_module_reads(device, tokens, kind):
    borrows = Borrows(quantised(kind))
    with torch.no_grad():
        want = borrows(tokens)
        with st.stream(borrows, device, budget=bytes_of(borrows) // 4, blocks="net.layers.*"):
            for _ in range(3):
                assert torch.equal(borrows(tokens), want)


@pytest.mark.parametrize("kind", ["wrapper", "nested"])
def test_load_state_dict(device, tokens, kind):
    model, other = quantised(kind), quantised(kind)
    with torch.no_grad():
        want = other(tokens)["logits"]
        assert not torch.equal(model(tokens)["logits"], want)
        with st.stream(model, device, budget=bytes_of(model) // 4) as streamed:
            model(tokens)
            model.load_state_dict(other.state_dict())
            for _ in range(2):
                assert torch.equal(model(tokens)["logits"], want)
            with pytest.raises(RuntimeError, match="assign=True"):
                model.load_state_dict(other.state_dict(), assign=True)
            streamed.close()
        assert torch.equal(model(tokens)["logits"], want)


def test_outside(device, tokens):
    with streaming(quantised("nested"), device, tokens, outside="layers.*.weight") as (streamed, _):
        assert not any("up.weight" in name for names in streamed.blocks().values() for name in names)


def test_what_is_trained_has_to_be_plain(device):
    model = quantised("wrapper").requires_grad_(True)
    with refused(
        r"layers\.0\.up\.weight is a .*Scaled that requires.*requires_grad_.False.*outside='layers\.0\.up\.weight'",
        TypeError,
    ):
        st.stream(model, device, optimizer=sgd)
    with st.stream(model, device):
        with pytest.raises(RuntimeError, match=r"requires a gradient"):
            model(torch.zeros(1, 1, dtype=torch.long))


def test_on_the_meta_device(device, tmp_path):
    model = quantised("wrapper")
    model.layers[2].up.weight = nn.Parameter(
        Scaled(*(torch.empty(2, 2, device="meta") for _ in range(3))), requires_grad=False
    )
    with pytest.raises(TypeError, match=r"layers\.2\.up\.weight is a Scaled on the meta device"):
        st.stream(model, device)


class Opaque(torch.Tensor):
    """Does not tell what it is made of."""

    @staticmethod
    def __new__(cls, data):
        return torch.Tensor._make_wrapper_subclass(cls, data.shape, dtype=data.dtype, device=data.device)

    @classmethod
    def __torch_dispatch__(cls, func, types, args=(), kwargs=None):
        raise NotImplementedError(str(func))


class Anew(Scaled):
    """Makes its parts when it is asked for them."""

    @property
    def scale(self):
        return self._scale.detach()

    @scale.setter
    def scale(self, value):
        self._scale = value


@pytest.mark.parametrize(
    "make, why",
    [
        (Opaque, "is a .*Opaque, which has no memory of its own, and no __tensor_flatten__"),
        (lambda data: Anew(data, data, data), r"is a .*Anew, which makes special\.scale anew each time"),
    ],
)
def test_what_cannot_be_taken_apart_is_refused(device, net, make, why):
    net.register_buffer("special", make(torch.randn(8, 8)))
    with pytest.raises(TypeError, match=rf"special {why}.*outside='special'"):
        st.stream(net, device)


def with_torchao(name):
    quantization = pytest.importorskip("torchao.quantization")
    model = Net(WIDTH, 6).requires_grad_(False)
    quantization.quantize_(model, getattr(quantization, name)())
    assert type(model.layers[1].up.weight) is not nn.Parameter
    return model


KINDS = ["Int8WeightOnlyConfig", "Int8DynamicActivationInt8WeightConfig", "Float8WeightOnlyConfig"]


@pytest.mark.parametrize("name", KINDS)
def test_torchao(device, tokens, name):
    model = with_torchao(name)
    with streaming(model, device, tokens, budget=size_of(model) // 4, blocks="layers.*") as (streamed, want):
        made, state = copy.deepcopy(model), model.state_dict()
        assert streamed.stats().bytes_to_device > size_of(model) // 4
    assert torch.equal(made(tokens)["logits"], want)
    other = Net(WIDTH, 6).requires_grad_(False)
    other.load_state_dict(state, assign=True)
    assert torch.equal(other(tokens)["logits"], want)


def test_compiled(device, tokens):
    model = with_torchao("Int8WeightOnlyConfig")
    for layer in model.layers:
        layer.compile(backend="aot_eager")
    with streaming(model, device, tokens, budget=size_of(model) // 4, blocks="layers.*"):
        pass
    torch.compiler.reset()


def test_gguf_of_diffusers(device, tokens):
    gguf = pytest.importorskip("gguf")
    utils = pytest.importorskip("diffusers.quantizers.gguf.utils")
    model, kind = Net(WIDTH, 6).requires_grad_(False), gguf.GGMLQuantizationType.Q8_0
    for layer in model.layers:
        for name in ("up", "down"):
            base = getattr(layer, name)
            made = utils.GGUFLinear(base.in_features, base.out_features, bias=True, compute_dtype=torch.float32)
            bytes = torch.from_numpy(gguf.quants.quantize(base.weight.numpy(), kind))
            made.weight = utils.GGUFParameter(bytes, quant_type=kind)
            setattr(layer, name, made.requires_grad_(False))
    with streaming(model, device, tokens, budget=size_of(model) // 4, blocks="layers.*"):
        assert type(model.state_dict()["layers.3.up.weight"]) is utils.GGUFParameter


@pytest.mark.parametrize("bits", [4, 8])
@pytest.mark.parametrize("used", [False, True])
def test_bitsandbytes(device, bits, used):
    bnb = pytest.importorskip("bitsandbytes")
    model = Net(WIDTH, 12).requires_grad_(False)
    for layer in model.layers:
        for name in ("up", "down"):
            base = getattr(layer, name)
            if bits == 4:
                made = bnb.nn.Linear4bit(base.in_features, base.out_features, compute_dtype=torch.float32)
                made.weight = bnb.nn.Params4bit(base.weight, requires_grad=False, quant_type="nf4", module=made)
                made.train()  # else the CPU packs it anew
            else:
                made = bnb.nn.Linear8bitLt(base.in_features, base.out_features, has_fp16_weights=False)
                made.weight = bnb.nn.Int8Params(base.weight, requires_grad=False, has_fp16_weights=False)
            made.bias = base.bias
            setattr(layer, name, made.to("cpu"))
    twin = copy.deepcopy(model)
    hidden = torch.randn(3, 5, WIDTH, requires_grad=True)

    def run(net):
        (x,) = [hidden.detach().clone().requires_grad_()]
        out = net(None, x)
        out["hidden"].square().sum().backward()
        return [out["hidden"].detach(), x.grad]

    if used:
        run(model)
    want = run(twin)
    state = {name: value.clone() for name, value in twin.state_dict().items() if isinstance(value, torch.Tensor)}
    with st.stream(model, device, budget=size_of(model) // 2, blocks="layers.*") as streamed:
        for _ in range(3):
            assert equal(run(model), want)
        got = model.state_dict()
        assert all(torch.equal(got[name], value) for name, value in state.items())
        assert streamed.stats().bytes_to_device > size_of(model)
    assert equal(run(model), want)
