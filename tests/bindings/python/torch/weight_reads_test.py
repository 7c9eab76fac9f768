"""Reads of weights whose block is not held, by any operation, past PyTorch's dispatcher, by views and by other modules:
they get the source, or are refused, and never get what lies in the memory of the weight by then. Trap 41.
"""

import copy
import ctypes
import io
import pickle
from multiprocessing.reduction import ForkingPickler

import numpy
import pytest
import torch
import torch.multiprocessing  # which tells multiprocessing about tensors
import torch.utils.dlpack
from models import NAME, Net, refused, same, same_state, size_of, still
from torch import nn
from torch.autograd import forward_ad
from torch.utils.checkpoint import checkpoint
from weights import Sub

import libstagehand.torch as st


def saved(tensors):
    file = io.BytesIO()
    torch.save(tensors, file)
    file.seek(0)
    return torch.load(file)


def by_address(view):
    numbers = (ctypes.c_float * view.numel()).from_address(view.data_ptr())
    return torch.tensor(list(numbers)).view(view.shape)


def in_another_way(view):
    """As code of PyTorch takes a tensor apart and puts it together again."""
    return torch.empty(0).set_(view.untyped_storage(), view.storage_offset(), view.shape, view.stride())


def dual(view):
    with forward_ad.dual_level():
        made = forward_ad.make_dual(view, torch.ones(view.shape))
        return forward_ad.unpack_dual(made * made).tangent


def out_of(view):
    return torch.mm(view[:2], view.t(), out=torch.empty(2, len(view)))


def other_data(view):
    other = torch.zeros(1)
    other.data = view
    return other + 1


READS = {
    "operations": lambda view: torch.stack([view + 1, view * 2]),
    "einsum": lambda view: torch.einsum("ij,kj->ik", view, view),
    "views": lambda view: view.t().contiguous().view(-1)[3:] * 2,
    "cat": lambda view: torch.cat([view, view * 2]),
    "clone": lambda view: view.detach().clone(),
    "cpu": lambda view: view.data.cpu(),
    "to": lambda view: view.to(torch.float64),
    "half": lambda view: view.half(),
    "float": lambda view: view.float() + 0,
    "item": lambda view: torch.tensor(view[0, 0].item()),
    "copy_": lambda view: torch.zeros(view.shape).copy_(view),
    "out": out_of,
    "dropout": lambda view: nn.functional.dropout(view, 0.5, False),
    "vmap": lambda view: torch.vmap(lambda row: row * 2)(view),
    "asarray": lambda view: torch.asarray(view, copy=True),
    "data of another": other_data,
    "pickle": lambda view: pickle.loads(pickle.dumps(view)),
    "pickle for another process": lambda view: pickle.loads(ForkingPickler.dumps(view)),
    "copy": copy.copy,
    "deepcopy": copy.deepcopy,
    "torch.save": lambda view: saved([view, view.detach()])[1],
    "torch.from_dlpack": torch.from_dlpack,
    "numpy.from_dlpack": lambda view: torch.tensor(numpy.from_dlpack(view)),
    "numpy": lambda view: torch.tensor(view.numpy()),
    "numpy.asarray": lambda view: torch.tensor(numpy.asarray(view)),
    "tolist": lambda view: torch.tensor(view.tolist()),
    "storage": lambda view: torch.tensor(view.untyped_storage()[100]),
    "typed storage": lambda view: torch.tensor(view.storage()[100]),
    "storage and offset": in_another_way,
    "data_ptr": lambda view: by_address(view.contiguous()),
    "data of data": lambda view: in_another_way(view.data.data),
    "base": lambda view: torch.tensor(0 if view._base is None else view._base.numpy()),
    "subclass": lambda view: copy.copy(view.as_subclass(Sub)).as_subclass(torch.Tensor),
    "repr": lambda view: torch.tensor([hash(f"{view[1, 1]:.3f}"), len(f"{view.data}")]),
    "row": lambda view: torch.tensor(next(iter(view)).numpy()),
    "new": lambda view: torch.cat([view.new(3).zero_(), view.new_tensor([1.0]), view.new_ones(2)]),
    "type": lambda view: view.type(torch.float64),
    "jvp": lambda view: torch.func.jvp(torch.square, (view,), (torch.ones(view.shape),))[1],
    "dual": lambda view: dual(view.data),
    "hessian": lambda view: torch.func.hessian(lambda part: (part**3).sum())(view[:2, :2]),
}
# While modules run, they get a copy of the view, without what lies around it, or are refused.
IDLE = ["storage", "typed storage", "data_ptr", "subclass", "repr", "jvp"]
VIEWS = {
    "weight": lambda weight: weight,
    "data": lambda weight: weight.data,
    "rows": lambda weight: weight[3:90].detach(),
    "transposed": lambda weight: weight.data.T[5:, 2:70],
    "chunk": lambda weight: weight.data.chunk(4)[1],
    "parameter": lambda weight: nn.Parameter(weight.data, requires_grad=False).data,
    "detached parameter": lambda weight: nn.Parameter(weight.data[2:], requires_grad=False),
    "parameter of the weight": lambda weight: nn.Parameter(weight, requires_grad=False),
    "parameter of a parameter": lambda weight: nn.Parameter(nn.Parameter(weight.data, False), requires_grad=False),
}


@pytest.fixture
def other(net):
    return copy.deepcopy(net)


@pytest.fixture(params=[1 << 20, 0], ids=["copied", "in place"])
def streamed(request, device, net, other, tokens, quarter, monkeypatch):
    monkeypatch.setattr("libstagehand.torch._weights.SMALL_SOURCE", request.param)
    with torch.no_grad(), st.stream(net, device, budget=2 * quarter, blocks="layers.*") as streamed:
        net(tokens)
        yield streamed


@pytest.mark.filterwarnings("ignore:TypedStorage is deprecated")
@pytest.mark.parametrize("name", READS)
def test_reads(streamed, net, other, tokens, name):
    """While no module runs, in the call of another module, and after another step."""
    got, want, read = [], [], READS[name]
    for model, found in ((net, got), (other, want)):

        def look(*_, model=model, found=found):
            found += [read(view(model.get_parameter(NAME))) for view in VIEWS.values()]

        look()
        hook = model.layers[0].register_forward_hook(look if name not in IDLE else lambda *_: None)
        model(tokens)
        hook.remove()
        look()
    assert len(got) == len(want) == (2 if name in IDLE else 3) * len(VIEWS)
    assert all(one.dtype == like.dtype and torch.equal(one, like) for one, like in zip(got, want))
    assert same(net, other, tokens)


def test_what_a_weight_tells_of_itself(streamed, net, other, tokens):
    weight, want = net.get_parameter(NAME), other.get_parameter(NAME)
    assert repr(weight) == repr(want) and str(want[0, 0].item())[:5] in f"{weight}"
    assert weight.shape == (128, 64) and weight.numel() == 8192 and weight.device.type == "cpu"
    assert weight.is_contiguous() and isinstance(weight, nn.Parameter) and weight._is_param
    assert type(nn.Parameter(weight)) is not nn.Parameter and type(weight).__name__ == "Parameter"
    assert not isinstance(net.head.weight.detach(), nn.Parameter)
    kind = type(weight)
    made, plain = kind(torch.zeros(3), requires_grad=False), torch.Tensor._make_subclass(kind, torch.ones(3))
    assert type(made) is nn.Parameter and not made.requires_grad
    plain.data = torch.zeros(3)
    for one in (made, plain, copy.deepcopy(plain)):
        assert torch.equal(one.detach() + one.data + one.clone() + one, torch.zeros(3)) and "0., 0., 0." in repr(one)
    assert same(net, other, tokens)


# What is made of a weight by itself, with the gradient that the weight gets.
DIFFERENTIATED = {
    "clone": lambda w: w.clone(),
    "clone in a format": lambda w: w.clone(memory_format=torch.contiguous_format),
    "to": lambda w: w.to(torch.float64),
    "to nothing else": lambda w: w.to(torch.float32),
    "to a copy": lambda w: w.to("cpu", copy=True),
    "half": lambda w: w.half(),
    "type": lambda w: w.type(torch.float64),
    "cpu": lambda w: w.cpu(),
    "subclass": lambda w: w.as_subclass(torch.Tensor) * 2,
    "clone of a view": lambda w: w[3:].clone(),
    "checkpoint": lambda w: checkpoint(lambda v: v.clone().sin(), w, use_reentrant=False),
    "vmap": lambda w: torch.vmap(torch.square)(w),
    "vmap of clones": lambda w: torch.vmap(lambda row: row.clone())(w),
    "vmap of a view": lambda w: torch.vmap(lambda row: row[3:] * 2)(w[1:]),
    "vmap beside": lambda w: torch.vmap(lambda x: (w.clone() * x).sum(0))(torch.arange(3.0)),
    "vmap of grad": lambda w: torch.vmap(torch.func.grad(lambda row: (row.clone() ** 3).sum()))(w),
    "grad of vmap": lambda w: torch.func.grad(lambda v: torch.vmap(lambda row: row.clone() ** 3)(v).sum())(w),
    "grad": lambda w: torch.func.grad(lambda v: (v.clone() ** 3).sum())(w),
    "grad beside": lambda w: torch.func.grad(lambda x: ((w.clone() * x) ** 2).sum())(torch.ones(64)),
    "jvp": lambda w: torch.func.jvp(lambda v: v.to(torch.float64) ** 2, (w,), (torch.ones(128, 64),))[1],
    "jvp beside": lambda w: torch.func.jvp(lambda x: (w.clone() * x) ** 2, (torch.ones(64),), (torch.ones(64),))[1],
    "hessian": lambda w: torch.func.hessian(lambda v: (v.clone() ** 3).sum())(w[:2, :2]),
}


@pytest.mark.parametrize("make", DIFFERENTIATED.values(), ids=DIFFERENTIATED)
def test_gradients_reach_the_weight(device, tokens, make):
    net = Net()
    plain = copy.deepcopy(net)

    def gradient(weight):
        (found,) = torch.autograd.grad(make(weight).double().square().sum(), weight)
        return found

    with st.stream(net, device, budget="50%", optimizer=still):
        for _ in range(2):
            assert torch.equal(gradient(net.get_parameter(NAME)), gradient(plain.get_parameter(NAME)))
            with torch.no_grad():
                assert same(net, plain, tokens)


def test_a_clone_within_a_transform_leaves_the_source_alone(streamed, net, other):
    weight = net.get_parameter(NAME)
    for read in (
        torch.clone,
        torch.Tensor.cpu,
        copy.deepcopy,
        lambda weight: weight.data[3:].as_subclass(torch.Tensor),
    ):
        torch.func.grad(lambda x, read=read: (read(weight)[:, :3] * x).sum())(torch.ones(3))
        torch.vmap(lambda x, read=read: read(weight)[:, :3] * x)(torch.ones(2, 3))
        assert same_state(net, other)
    streamed.close()
    assert same_state(net, other)


# Reads that nothing serves, because they go past the class of a tensor too. They do not end the process.
UNSERVED = {
    "to_dlpack": torch.utils.dlpack.to_dlpack,
    "unbound to_dlpack": torch.Tensor.__dlpack__,
    "unbound data_ptr": torch.Tensor.data_ptr,
    "unbound storage": lambda tensor: torch.Tensor.untyped_storage(tensor)[0],
    "fill of an unbound storage": lambda tensor: torch.Tensor.untyped_storage(tensor).fill_(0),
}
UNHELD = rf"device memory of {NAME} is read by a view of it"


@pytest.mark.parametrize("read", UNSERVED.values(), ids=UNSERVED)
@pytest.mark.parametrize("of", ["weight", "data", "rows", "parameter of the weight"])
def test_reads_that_are_not_served_are_errors(streamed, net, other, tokens, of, read):
    """While no module runs, and while another module does."""
    view, why = VIEWS[of](net.get_parameter(NAME)), UNHELD + ", or by its address, but its block layers.4 is not held"
    with refused(why):
        read(view)
    hook = net.layers[1].register_forward_hook(lambda *_: read(view))
    with refused(why):
        net(tokens)
    hook.remove()
    for then in (lambda: None, streamed.close):
        then()
        assert same(net, other, tokens)


def test_views_of_a_held_weight_are_errors_later(streamed, net, other, tokens):
    """Also between calls, and after the end."""
    kept = []
    hook = net.layers[4].up.register_forward_hook(lambda up, *_: kept.append(nn.Parameter(up.weight[3:].data)))
    net(tokens)
    hook.remove()
    for then in (lambda: None, streamed.close):
        then()
        for use in (torch.clone, torch.Tensor.numpy, lambda view: view.add_(1), repr):
            with refused(UNHELD):
                use(kept[0].detach())
        assert same(net, other, tokens)


ENDED = "not streamed any more: read the weight anew"


def test_reads_after_the_end_are_errors(device, streamed, net, tokens):
    """The next model may have the same addresses."""
    views = [one.data for one in net.parameters()]
    streamed.close()
    net.get_parameter(NAME).mul_(2)
    with st.stream(net, device, budget=size_of(net) // 2):
        net(tokens)
        want = net.state_dict()[NAME].clone()
        reads = (pickle.dumps, copy.copy, copy.deepcopy, numpy.asarray, repr, torch.Tensor.untyped_storage)
        for use in (*reads[:-1], lambda view: view.untyped_storage(), torch.clone, torch.Tensor.zero_):
            for view in views:
                with refused(ENDED):
                    use(view)
        assert torch.equal(net.state_dict()[NAME], want)


@pytest.mark.parametrize("read", ["pickle", "storage and offset", "numpy", "data_ptr"])
def test_reads_of_views_of_a_flat_buffer(device, net, other, tokens, read):
    """The weights do not begin where their storage does."""
    for model in (net, other):
        weights = list(model.parameters())
        flat = torch.cat([one.detach().flatten() for one in weights])
        for one, part in zip(weights, flat.split([one.numel() for one in weights])):
            one.data = part.view(one.shape)
    with torch.no_grad(), st.stream(net, device, budget=size_of(net) // 2):
        net(tokens)
        for of, like in zip(net.parameters(), other.parameters()):
            assert torch.equal(READS[read](of.data[1:].flatten()[:101]), READS[read](like.data[1:].flatten()[:101]))
            of.data = like.data = torch.full(like.shape, 0.01)
        assert same(net, other, tokens)
