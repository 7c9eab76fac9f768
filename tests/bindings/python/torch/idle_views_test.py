"""Views of weights that were made while no module holds them: they are views of the source, of any kind, whatever
operator of PyTorch's has made them, and what is written through them is computed with.
"""

import copy
import gc

import pytest
import torch
from models import NAME, Net, refused, same, size_of, still
from operators import op_db
from torch import nn
from torch.utils._pytree import tree_leaves

import libstagehand.torch as st

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


# Sources of all kinds.

IN_PLACE = rf"{NAME} is streamed, and was changed in place"


@pytest.fixture(params=["in place", "copied", "mapped", "packed", "trained"])
def written(request, device, tmp_path, monkeypatch):
    """A streamed net, the same net without streaming, and whether the sources can be written."""
    monkeypatch.setattr("libstagehand.torch._weights.SMALL_SOURCE", (1 << 20) if request.param == "copied" else 0)
    net = Net().requires_grad_(request.param == "trained")
    other, options = copy.deepcopy(net), {}
    if request.param == "mapped":
        safetensors = pytest.importorskip("safetensors.torch")
        safetensors.save_file(net.state_dict(), tmp_path / "net.safetensors")
        net, options = net.to("meta"), {"files": tmp_path}
    elif request.param == "packed":
        options = {"pack": True}
    elif request.param == "trained":
        options = {"optimizer": still}
    with st.stream(net, device, budget=size_of(net) // 2 + 60_000, **options) as streamed:
        yield streamed, net, other, request.param not in ("mapped", "packed")
    assert request.param == "mapped" or torch.equal(net.get_parameter(NAME), other.get_parameter(NAME))
    gc.collect()


MAKE = [lambda one: one.narrow(0, 32, 32), lambda one: one.data.chunk(4)[1], lambda one: one.data.T[:, 32:64].T]
WHEN = ["idle", "after a step", "in a call of another module", "in its own call", "after the end"]


@pytest.mark.parametrize("make", MAKE)
@pytest.mark.parametrize("when", WHEN)
def test_views_that_were_made_while_idle(written, tokens, make, when):
    streamed, net, other, writable = written
    views = [make(model.get_parameter(NAME)) for model in (net, other)]
    fixed = refused(rf"{NAME} in place .*, and cannot change the source")

    def write(number):
        with torch.no_grad():
            views[number].mul_(2)

    if when != "idle":
        net(tokens)
    if when == "after the end":
        streamed.close()
        for use in (torch.Tensor.zero_, lambda view: view + 1):
            with refused("not streamed any more: read the weight anew"):
                use(views[0])
    elif "call" in when:
        layer = 4 if when == "in its own call" else 0
        hooks = [
            model.layers[layer].register_forward_pre_hook(lambda *_, number=number: write(number))
            for number, model in enumerate((net, other))
        ]
        if layer == 4:
            with refused(IN_PLACE):
                net(tokens)
        elif writable:
            assert torch.equal(net(tokens)["logits"], other(tokens)["logits"])
        else:
            with fixed:
                net(tokens)
        [hook.remove() for hook in hooks]
    elif writable:
        write(0), write(1)
    else:
        with fixed:
            write(0)
    if not net.state_dict()[NAME].is_meta:
        assert same(net, other, tokens)


@pytest.mark.parametrize("backend", ["aot_eager", "inductor"])
@pytest.mark.parametrize("of", [lambda one: one, lambda one: one[:64], lambda one: one.data])
def test_compiled_code_is_refused_by_name(device, net, tokens, backend, of):
    load = torch.compile(lambda weight, new: weight.narrow(0, 0, 32).copy_(new), backend=backend)
    with torch.no_grad(), st.stream(net, device):
        want = net(tokens)["logits"]
        with pytest.raises(Exception, match=rf"compiled code uses {NAME} while no module"):
            load(of(net.get_parameter(NAME)), torch.zeros(32, 64))
        assert torch.equal(net(tokens)["logits"], want)
