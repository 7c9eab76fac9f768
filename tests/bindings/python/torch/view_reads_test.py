"""Reads of idle views that PyTorch's dispatcher does not see get the source. Parameters and buffers of the views share
memory with the weight, also after streaming.
"""

import copy
import ctypes
import gc
import io
import pickle
from multiprocessing.reduction import ForkingPickler

import numpy
import pytest
import torch
import torch.multiprocessing  # which tells multiprocessing about tensors
import torch.nn.utils as utils
import torch.nn.utils.prune
from models import Net, size_of
from torch import nn
from torch.autograd import forward_ad

import libstagehand.torch as st

NAME = "layers.4.up.weight"  # 128 x 64


class Sub(torch.Tensor):
    pass


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


READS = {
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
    "base": lambda view: torch.tensor(view._base.numpy()),
    "subclass": lambda view: copy.copy(view.as_subclass(Sub)).as_subclass(torch.Tensor),
    "repr": lambda view: torch.tensor([len(repr(view)), len(f"{view}"), hash(f"{view[1, 1]:.3f}")]),
    "row": lambda view: torch.tensor(next(iter(view)).numpy()),
    "new": lambda view: torch.cat([view.new(3).zero_(), view.new_tensor([1.0]), view.new_ones(2)]),
    "type": lambda view: view.type(torch.float64),
    "jvp": lambda view: torch.func.jvp(torch.square, (view,), (torch.ones(view.shape),))[1],
    "hessian": lambda view: torch.func.hessian(lambda part: (part**3).sum())(view[:2, :2]),
}
VIEWS = {
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
    with torch.no_grad(), st.stream(net, device, budget=2 * quarter) as streamed:
        net(tokens)
        yield streamed


def same(net, other, tokens):
    pairs = zip(net.state_dict().values(), other.state_dict().values(), strict=True)
    return torch.equal(net(tokens)["logits"], other(tokens)["logits"]) and all(torch.equal(*pair) for pair in pairs)


@pytest.mark.filterwarnings("ignore:TypedStorage is deprecated")
@pytest.mark.parametrize("read", READS.values(), ids=READS)
@pytest.mark.parametrize("view", VIEWS.values(), ids=VIEWS)
def test_reads_past_the_dispatcher(streamed, net, other, tokens, view, read):
    for _ in range(2):
        of, like = view(net.get_parameter(NAME)), view(other.get_parameter(NAME))
        if of._base is None and read is READS["base"]:
            continue
        got, want = read(of), read(like)
        assert got.dtype == want.dtype and torch.equal(got, want)
        assert same(net, other, tokens)


@pytest.mark.parametrize("read", [lambda weight: weight.type(torch.float64), by_address], ids=["type", "data_ptr"])
def test_reads_of_the_weight_itself(streamed, net, other, read):
    assert torch.equal(read(net.get_parameter(NAME)), read(other.get_parameter(NAME)))


CHANGED = {
    "copy": lambda weight: copy.copy(weight.data[2:9]),
    "copy of the weight": copy.copy,
    "subclass": lambda weight: weight.data[2:9].as_subclass(Sub),
}


@pytest.mark.parametrize("read", CHANGED.values(), ids=CHANGED)
def test_a_change_of_what_was_read_is_computed_with(streamed, net, other, tokens, read):
    kept = [read(model.get_parameter(NAME)) for model in (net, other)]
    for _ in range(2):
        for one in kept:
            one.mul_(2)
        assert same(net, other, tokens)


def test_reads_in_a_call(streamed, net, other, tokens):
    """By another module, while the weight is not held, and by its own module, while it is."""
    for layer in (0, 4):
        got = []
        for model in (net, other):
            view = model.get_parameter(NAME).data[3:9]

            def look(*_, view=view, got=got):
                got.append(torch.tensor(view.numpy()))
                got.append(pickle.loads(pickle.dumps(view)))

            hook = model.layers[layer].register_forward_pre_hook(look)
            model(tokens)
            hook.remove()
        assert torch.equal(torch.stack(got[:2]), torch.stack(got[2:]))


def test_reads_after_the_end_are_errors(streamed, net):
    view = net.get_parameter(NAME).data
    streamed.close()
    for read in (pickle.dumps, copy.copy, copy.deepcopy, numpy.asarray, repr, lambda view: view.untyped_storage()):
        with pytest.raises(RuntimeError, match="not streamed any more: read the weight anew"):
            read(view)


def test_a_view_of_an_earlier_model_is_not_taken_for_one_of_the_next(device, net, tokens):
    """The next model may have the same addresses."""
    with torch.no_grad():
        with st.stream(net, device, budget=size_of(net) // 2):
            net(tokens)
            views = [one.data for one in net.parameters()]
        net.get_parameter(NAME).mul_(2)
        with st.stream(net, device, budget=size_of(net) // 2):
            net(tokens)
            want = net.state_dict()[NAME].clone()
            for view in views:
                for use in (torch.clone, torch.Tensor.zero_, pickle.dumps):
                    with pytest.raises(RuntimeError, match="not streamed any more: read the weight anew"):
                        use(view)
            assert torch.equal(net.state_dict()[NAME], want)


def test_derivatives_in_forward_mode(streamed, net, other):
    got = []
    for model in (net, other):
        with forward_ad.dual_level():
            dual = forward_ad.make_dual(model.get_parameter(NAME).data, torch.ones(128, 64))
            got.append(forward_ad.unpack_dual(dual * dual).tangent)
        got.append(torch.func.jvp(torch.square, (model.get_parameter(NAME),), (torch.ones(128, 64),))[1])
    assert torch.equal(got[0], got[2]) and torch.equal(got[1], got[3])


# What makes parameters and buffers of a weight. They share its memory, or a copy of it.


def share(net):
    net.layers[3].up.weight = nn.Parameter(net.get_parameter(NAME).data, requires_grad=False)


def buffers(net):
    net.layers[4].register_buffer("rows", net.get_parameter(NAME).data[3:9])
    net.layers[4].others = nn.Buffer(net.get_parameter(NAME).data.T[5:])


TIES = {
    "weight_norm": lambda net: utils.weight_norm(net.layers[4].up),
    "weight_norm, removed": lambda net: utils.remove_weight_norm(utils.weight_norm(net.layers[4].up)),
    "spectral_norm": lambda net: utils.spectral_norm(net.layers[4].up.eval()),
    "pruned": lambda net: utils.prune.l1_unstructured(net.layers[4].up, "weight", 0.3),
    "in another module": share,
    "of the weight itself": lambda net: setattr(
        net.layers[3].up, "weight", nn.Parameter(net.get_parameter(NAME), False)
    ),
    "in its own module": lambda net: setattr(net.layers[4].up, "weight", nn.Parameter(net.get_parameter(NAME).data)),
    "buffers": buffers,
}


@pytest.mark.filterwarnings("ignore:.*weight_norm. is deprecated", "ignore:.*weight_norm.* is deprecated")
@pytest.mark.parametrize("make", TIES.values(), ids=TIES)
def test_parameters_and_buffers_of_a_weight(streamed, net, other, tokens, make):
    for model in (net, other):
        torch.manual_seed(3)
        make(model)
    for then in (lambda: None, streamed.close, lambda: None):
        then()
        assert same(net, other, tokens)
        for model in (net, other):
            for parameter in model.layers[4].up.parameters():
                parameter.data.mul_(1.5)
            for buffer in model.layers[4].buffers(recurse=False):
                buffer[1:].add_(1)
        assert same(net, other, tokens)
    for one, like in zip(net.parameters(), other.parameters(), strict=True):
        assert type(one) is type(like) and torch.equal(pickle.loads(pickle.dumps(one)), like)
    gc.collect()


def test_state_dicts_with_parameters_and_buffers_of_a_weight(streamed, net, other):
    states = []
    for model in (net, other):
        share(model), buffers(model)
        states.append(model.state_dict())
    streamed.close()
    assert all(torch.equal(*pair) for pair in zip(states[0].values(), states[1].values(), strict=True))


@pytest.mark.parametrize("when", ["idle", "in a call", "held"])
def test_a_parameter_of_the_weight_is_a_parameter(streamed, net, other, tokens, when):
    made = []
    for model in (net, other):
        where = {"idle": nn.Identity(), "in a call": model.layers[1], "held": model.layers[4].up}[when]

        def make(*_, model=model):
            made.append(nn.Parameter(model.get_parameter(NAME)))
            assert torch.equal(made[-1] * 2, other.get_parameter(NAME) * 2)

        hook = where.register_forward_hook(make)
        where(tokens) if when == "idle" else model(tokens)
        hook.remove()
    for one in made:
        assert isinstance(one, nn.Parameter) and one.requires_grad and one.is_leaf and not one.__dict__
    if when != "held":  # what is made of a held weight is a view of the device memory
        for one in made:
            one.mul_(2)
        assert same(net, other, tokens)


def test_the_classes_of_weights_stay(streamed, net):
    assert isinstance(net.get_parameter(NAME), nn.Parameter) and net.get_parameter(NAME)._is_param
    nn.Parameter(net.get_parameter(NAME))
    assert type(net.get_parameter(NAME)).__name__ == "Parameter" and not isinstance(
        net.head.weight.detach(), nn.Parameter
    )


def test_a_parameter_that_gets_other_data_is_an_ordinary_one(streamed, net):
    parameter = nn.Parameter(net.get_parameter(NAME).data, requires_grad=False)
    parameter.data = torch.ones(3)
    assert torch.equal(copy.deepcopy(parameter), torch.ones(3)) and parameter.numpy().sum() == 3
    streamed.close()
    assert type(parameter) is nn.Parameter and torch.equal(pickle.loads(pickle.dumps(parameter)), torch.ones(3))


def test_copies_of_many_views_are_told_apart(streamed, net, other):
    """A deep copy tells objects apart by their ids, which must not be those of objects that are gone."""
    models = [[part for one in model.parameters() for part in one.data.split(7)] for model in (net, other)]
    copied, wanted = copy.deepcopy(models)
    assert len(copied) == len(wanted) and all(map(torch.equal, copied, wanted))


def test_a_parameter_of_a_weight_is_trained(device, net, other, tokens):
    with st.stream(net, device, budget=size_of(net) // 2):
        net(tokens)
        for model in (net, other):
            head = nn.Linear(64, 128)
            head.weight, head.bias = nn.Parameter(model.get_parameter(NAME).data), None
            optimizer = torch.optim.SGD(head.parameters(), lr=0.1)
            for _ in range(2):
                head(model(tokens)["hidden"]).square().mean().backward()
                optimizer.step()
                optimizer.zero_grad()
            model.head_of_test = head
        assert same(net, other, tokens)
    assert same(net, other, tokens)


@pytest.mark.parametrize("backend", ["aot_eager", "inductor"])
def test_compiled_code_that_gets_data_is_refused_by_name(device, net, tokens, backend):
    double = torch.compile(lambda weight: weight * 2, backend=backend)
    with torch.no_grad(), st.stream(net, device):
        net(tokens)
        assert torch.equal(double(torch.ones(128, 64)), torch.full((128, 64), 2.0))  # it is compiled for others before
        for view in (net.get_parameter(NAME).data, net.get_parameter(NAME)[1:], nn.Parameter(net.embed.weight.data)):
            with pytest.raises(Exception, match=r"compiled code uses (layers.4.up|embed).weight while no module"):
                double(view)


REFUSED = {
    "swapped": (lambda net: torch.utils.swap_tensors(net.get_parameter(NAME), nn.Parameter(torch.ones(9))), "swap"),
    "swapped in": (lambda net: torch.utils.swap_tensors(nn.Parameter(torch.ones(9)), net.get_parameter(NAME)), "swap"),
    "shared": (lambda net: net.get_parameter(NAME).share_memory_(), "shared memory"),
    "view is shared": (lambda net: net.get_parameter(NAME).data[3:].share_memory_(), "shared memory"),
    "model is shared": (lambda net: net.layers[4].up.share_memory(), "shared memory"),
    "overlap": (lambda net: torch.add(net.get_parameter(NAME)[1:], 1, out=net.get_parameter(NAME)[:-1]), None),
}


@pytest.mark.parametrize("call, why", REFUSED.values(), ids=REFUSED)
def test_refused_and_nothing_is_lost(streamed, net, other, tokens, call, why):
    with pytest.raises(
        RuntimeError, match=rf"{NAME} is streamed, .*{why}" if why else "refer to a single memory location"
    ):
        call(net)
    assert same(net, other, tokens)
    streamed.close()
    assert same(net, other, tokens)


def test_a_result_over_the_same_view_is_served(streamed, net, other, tokens):
    for model in (net, other):
        torch.add(model.get_parameter(NAME)[1:], 1, out=model.get_parameter(NAME)[1:])
    assert same(net, other, tokens)


def test_memory_that_is_shared_before_may_be_shared_again(device, tokens):
    net = Net().requires_grad_(False).share_memory()
    with torch.no_grad(), st.stream(net, device):
        net.share_memory()
        assert net(tokens)["logits"].shape == (3, 7, 50)
    assert net.get_parameter(NAME).is_shared()


# What moves or resizes the memory of tensors that were read.
MOVES = {
    "state dict to another process": lambda net: ForkingPickler.dumps(net.state_dict()),
    "model to another process": ForkingPickler.dumps,
    "weight to another process": lambda net: ForkingPickler.dumps(net.get_parameter(NAME)),
    "shared state dict": lambda net: [one.share_memory_() for one in net.state_dict().values()],
    "shared storage": lambda net: net.get_parameter(NAME).untyped_storage().share_memory_(),
    "shared storage of a view": lambda net: net.get_parameter(NAME).data[3:].untyped_storage().share_memory_(),
    "smaller": lambda net: net.get_parameter(NAME).detach().resize_(3, 64),
    "smaller view": lambda net: net.get_parameter(NAME).data.resize_(3, 64),
    "larger view": lambda net: net.get_parameter(NAME).data.resize_(1000, 64),
}


@pytest.mark.parametrize("move", MOVES.values(), ids=MOVES)
def test_the_sources_stay_where_they_are(streamed, net, other, tokens, move):
    for model in (net, other):
        move(model)
    for then in (lambda: None, streamed.close, lambda: None):
        then()
        for _ in range(2):
            assert same(net, other, tokens)
            for model in (net, other):
                model.get_parameter(NAME).mul_(2)


def test_a_source_is_not_resized(streamed, net, other, tokens):
    for resize in (
        lambda: net.get_parameter(NAME).untyped_storage().resize_(1 << 20),
        lambda: net.get_parameter(NAME).detach().resize_(1000, 64),
    ):
        with pytest.raises(RuntimeError, match="resize storage that is not resizable"):
            resize()
    assert same(net, other, tokens)


@pytest.mark.parametrize("then", ["step", "read"])
def test_a_change_of_what_another_process_has_is_an_error(streamed, net, other, tokens, then):
    state = net.state_dict()
    ForkingPickler.dumps(state)
    state[NAME].mul_(2)
    with pytest.raises(RuntimeError, match=rf"{NAME} is streamed, and a tensor .* was moved to shared memory"):
        net(tokens) if then == "step" else net.state_dict()
    assert same(net, other, tokens)


@pytest.mark.parametrize("streamed", [0], ids=["in place"], indirect=True)
def test_what_was_read_shares_memory_after_the_end(streamed, net, other, tokens):
    kept = [
        [model.state_dict()[NAME], model.get_parameter(NAME).detach()[3:], copy.copy(model.get_parameter(NAME).data)]
        for model in (net, other)
    ]
    streamed.close()
    for tensors in kept:
        for one in tensors:
            one.mul_(2)
    assert same(net, other, tokens)
    storages = [one.untyped_storage().data_ptr() for one in kept[0]]
    assert storages == [net.get_parameter(NAME).untyped_storage().data_ptr()] * 3


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
