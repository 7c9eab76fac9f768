"""Views of weights that no module holds: they are views of the source, whatever operation has made them, and what is
written through them is computed with.
"""

import copy
import gc

import pytest
import torch
from models import Net, size_of
from operators import op_db
from torch import nn
from torch.utils._pytree import tree_leaves

import libstagehand.torch as st

NAME = "layers.4.up.weight"  # 128 x 64
# Reads past the dispatcher, like numpy(), begin with these, so that they give copies.
COPIES = ("resolve_conj", "resolve_neg")
# They cannot be called again with the same result.
RANDOM = ("cauchy", "exponential", "geometric", "log_normal", "normal", "uniform")


class One(nn.Module):
    def __init__(self, weight):
        super().__init__()
        self.weight = nn.Parameter(weight, requires_grad=False)

    def forward(self, x):
        return self.weight * x


def results(operation, sample, weight):
    made = operation.op(weight, *sample.args, **sample.kwargs)
    return [one for one in tree_leaves(made) if isinstance(one, torch.Tensor) and one.layout == torch.strided]


def views(operation, sample, weight):
    """The numbers of the results that are views of a plain weight, or the weight itself."""
    made = enumerate(results(operation, sample, weight))
    storage = weight.untyped_storage().data_ptr()
    return [index for index, one in made if one.numel() and one.untyped_storage().data_ptr() == storage]


def samples():
    """Operations of PyTorch's database that make views of their first argument, with arguments that they take."""
    for operation in op_db:
        kind = next((one for one in (torch.float32, torch.complex64) if one in operation.dtypes), None)
        if kind is None or operation.name in (*COPIES, *RANDOM):
            continue
        found = 0
        for sample in operation.sample_inputs_func(operation, "cpu", kind, False):
            weight = sample.input
            if found == 2 or not isinstance(weight, torch.Tensor) or weight.layout != torch.strided:
                break
            if not weight.numel():
                continue
            with torch.no_grad():
                try:
                    made = views(operation, sample, weight.detach().clone())
                except (RuntimeError, AssertionError):  # not for such a tensor, or not without a GPU
                    continue
            if not made:
                break
            found += 1
            yield operation, sample


@pytest.mark.filterwarnings("ignore")  # of operations that are deprecated
def test_every_view_of_the_operator_database(device):
    names = set()
    with torch.no_grad():
        for operation, sample in samples():
            plain = One(sample.input.detach().clone())
            model = copy.deepcopy(plain)
            ones = torch.ones((), dtype=plain.weight.dtype)
            with st.stream(model, device):
                model(ones)
                want, got = results(operation, sample, plain.weight), results(operation, sample, model.weight)
                for view, like in [(got[index], want[index]) for index in views(operation, sample, plain.weight)]:
                    assert (view.shape, view.stride(), view.dtype) == (like.shape, like.stride(), like.dtype)
                    assert like._base is None or view._base is not None, operation.name
                    before = model.weight._version
                    view.fill_(7), like.fill_(7)
                    assert model.weight._version == before + 1 or view._base is None, operation.name
                assert torch.equal(model(ones), plain(ones)), operation.name
                assert torch.equal(model.state_dict()["weight"], plain.weight), operation.name
            assert torch.equal(model.weight, plain.weight), operation.name
            names.add(operation.name)
    assert len(names) > 50 and {"narrow", "chunk", "tensor_split", "unsafe_split", "movedim", "view"} <= names


LAZY = {
    "conj": torch.conj,
    "conj of the data": lambda weight: weight.data.conj()[1:3],
    "mH": lambda weight: weight.mH[:, 1:],
    "neg": lambda weight: weight.conj().imag,
}


@pytest.mark.parametrize("made", LAZY.values(), ids=LAZY)
def test_views_that_are_conjugated_or_negated_lazily(device, made):
    plain = One(torch.randn(4, 4, dtype=torch.complex64))
    model, ones = copy.deepcopy(plain), torch.ones((), dtype=torch.complex64)
    with torch.no_grad(), st.stream(model, device):
        model(ones)
        view, want = made(model.weight), made(plain.weight)
        assert torch.equal(view * 2, want * 2) and torch.equal(view.clone(), want.clone())
        view.mul_(3).add_(1), want.mul_(3).add_(1)
        torch.mul(torch.ones_like(view[1:]), 2, out=view[1:]), torch.mul(torch.ones_like(want[1:]), 2, out=want[1:])
        model.weight.add_(model.weight.conj().clone()), plain.weight.add_(plain.weight.conj().clone())
        assert torch.equal(model(ones), plain(ones))
        assert torch.equal(model.state_dict()["weight"], plain.weight)
    assert torch.equal(model.weight, plain.weight)


# What loaders of sharded weights do, to weights of 128 x 64.
LOADERS = {
    "narrow of the data": lambda weight, new: weight.data.narrow(0, 32, 32).copy_(new),
    "narrow": lambda weight, new: weight.narrow(0, 32, 32).copy_(new),
    "chunk of the data": lambda weight, new: weight.data.chunk(4)[1].copy_(new),
    "tensor_split": lambda weight, new: weight.tensor_split(4)[2].copy_(new),
    "hsplit": lambda weight, new: weight.hsplit(2)[0][:32].copy_(new[:, :32]),
    "unsafe_chunk": lambda weight, new: weight.unsafe_chunk(4)[1].copy_(new),
    "T": lambda weight, new: weight.T[:, :32].copy_(new.T),
    "movedim of the data": lambda weight, new: weight.data.movedim(0, 1)[:, 5:37].copy_(new.T),
    "view of views": lambda weight, new: weight.data.view(4, 32, 64).unbind()[3].reshape(32, 64).copy_(new),
    "index": lambda weight, new: weight[32:64].copy_(new),
    "flat": lambda weight, new: weight.data.view(-1)[64 : 33 * 64].copy_(new.flatten()),
}


@pytest.mark.parametrize("load", LOADERS.values(), ids=LOADERS)
@pytest.mark.parametrize("mode", ["no_grad", "inference_mode", "autocast"])
def test_loaders_of_shards(device, net, tokens, load, mode):
    other, new = copy.deepcopy(net), torch.randn(32, 64)
    scope = torch.autocast("cpu") if mode == "autocast" else getattr(torch, mode)()
    with torch.no_grad(), st.stream(net, device, budget=size_of(net) // 2):
        for _ in range(2):
            with scope:
                for model in (net, other):
                    load(model.get_parameter(NAME), new)
            assert torch.equal(net.state_dict()[NAME], other.state_dict()[NAME])
            assert torch.equal(net(tokens)["logits"], other(tokens)["logits"])
            new = new * 2
    assert torch.equal(net.get_parameter(NAME), other.get_parameter(NAME))


def test_a_view_that_is_not_written_has_nothing_loaded_again(device, net, tokens):
    with torch.no_grad(), st.stream(net, device) as streamed:
        net(tokens)
        before = streamed.stats().bytes_to_device
        for look in (torch.Tensor.t, lambda weight: weight.narrow(0, 0, 4), lambda weight: weight.chunk(3)):
            look(net.get_parameter(NAME)), look(net.get_parameter(NAME).data)
        net(tokens)
        assert streamed.stats().bytes_to_device == before > 0


def made(net, weight):
    """Views that were made while no module holds the weight."""
    return weight.narrow(0, 32, 32), weight.data.chunk(4)[1], weight.data.T[:, 32:64].T


@pytest.fixture(params=["in place", "copied", "mapped", "packed", "trained"])
def case(request, device, tokens, tmp_path, monkeypatch):
    """A net whose weights are streamed from such sources, the same net without streaming, and whether the sources can
    be written.
    """
    monkeypatch.setattr("libstagehand.torch._weights.SMALL_SOURCE", (1 << 20) if request.param == "copied" else 0)
    net = Net().requires_grad_(request.param == "trained")
    other = copy.deepcopy(net)
    options = {}
    if request.param == "mapped":
        safetensors = pytest.importorskip("safetensors.torch")
        safetensors.save_file(net.state_dict(), tmp_path / "net.safetensors")
        net, options = net.to("meta"), {"files": tmp_path}
    elif request.param == "packed":
        options = {"pack": True}
    elif request.param == "trained":
        options = {"optimizer": lambda parameters: torch.optim.SGD(parameters, lr=0)}
    streamed = st.stream(net, device, budget=size_of(net) // 2 + 60_000, **options)
    with streamed:
        yield streamed, net, other, request.param not in ("mapped", "packed")
    if request.param != "mapped":
        assert torch.equal(net.get_parameter(NAME), other.get_parameter(NAME))
    gc.collect()


def step(net, tokens):
    return net(tokens)["logits"].detach()


def test_made_and_written_while_idle(case, tokens):
    streamed, net, other, writable = case
    for when in ("before the first step", "after a step"):
        for index, (view, want) in enumerate(
            zip(made(net, net.get_parameter(NAME)), made(other, other.get_parameter(NAME)))
        ):
            with torch.no_grad():
                if writable:
                    view.fill_(index), want.fill_(index)
                else:
                    with pytest.raises(RuntimeError, match=rf"{NAME} in place .*, and cannot change the source"):
                        view.fill_(index)
        assert torch.equal(net.state_dict()[NAME], other.state_dict()[NAME]), when
        assert torch.equal(step(net, tokens), step(other, tokens)), when


def test_made_while_idle_and_written_after_a_step(case, tokens):
    streamed, net, other, writable = case
    views, wanted = made(net, net.get_parameter(NAME)), made(other, other.get_parameter(NAME))
    step(net, tokens)
    with torch.no_grad():
        for view, want in zip(views, wanted):
            if writable:
                view.mul_(2), want.mul_(2)
            else:
                with pytest.raises(RuntimeError, match=rf"{NAME} in place .*, and cannot change the source"):
                    view.mul_(2)
    assert torch.equal(step(net, tokens), step(other, tokens))


@pytest.mark.parametrize("which", range(3))
def test_made_while_idle_and_written_in_a_call(case, tokens, which):
    """By the module that holds the weight: refused as any change of such a weight, and nothing is lost."""
    streamed, net, other, writable = case
    view = made(net, net.get_parameter(NAME))[which]

    def write(*_):
        with torch.no_grad():
            view.zero_()

    hook = net.layers[4].register_forward_pre_hook(write)
    with pytest.raises(RuntimeError, match=rf"{NAME} is streamed, and was changed in place"):
        step(net, tokens)
    hook.remove()
    assert torch.equal(step(net, tokens), step(other, tokens))


def test_made_while_idle_and_written_in_a_call_of_another_module(case, tokens):
    streamed, net, other, writable = case
    hooks = []
    for model in (net, other):
        view = model.get_parameter(NAME).data.chunk(4)[1]

        def write(*_, view=view):
            with torch.no_grad():
                view.zero_()

        hooks.append(model.layers[0].register_forward_hook(write))
    if writable:
        assert torch.equal(step(net, tokens), step(other, tokens))
    else:
        with pytest.raises(RuntimeError, match=rf"{NAME} in place .*, and cannot change the source"):
            step(net, tokens)
        hooks.pop().remove()
    for hook in hooks:
        hook.remove()
    assert torch.equal(step(net, tokens), step(other, tokens))


def test_made_while_idle_and_used_after_the_end(case, tokens):
    streamed, net, other, writable = case
    views = made(net, net.get_parameter(NAME))
    step(net, tokens)
    streamed.close()
    for view in views:
        with pytest.raises(RuntimeError, match="not streamed any more: read the weight anew"):
            view.zero_()
        with pytest.raises(RuntimeError, match="not streamed any more: read the weight anew"):
            view + 1


@pytest.mark.parametrize("backend", ["aot_eager", "inductor"])
@pytest.mark.parametrize("of", [lambda weight: weight, lambda weight: weight[:64]], ids=["weight", "view"])
def test_compiled_code_is_refused_by_name(device, net, tokens, backend, of):
    load = torch.compile(lambda weight, new: weight.narrow(0, 0, 32).copy_(new), backend=backend)
    with torch.no_grad(), st.stream(net, device):
        want = net(tokens)["logits"]
        with pytest.raises(Exception, match=rf"compiled code uses {NAME} while no module"):
            load(of(net.get_parameter(NAME)), torch.zeros(32, 64))
        assert torch.equal(net(tokens)["logits"], want)
