"""Tensors and arrays that were made from weights before streaming, like state dicts, flat buffers and arrays of NumPy,
and are changed meanwhile: steps compute with the change, or it is reported, and it is there at the end.
"""

import array
import copy
import gc
import pickle
import sys
import threading
import weakref
from multiprocessing.reduction import ForkingPickler

import numpy
import pytest
import torch
import torch.multiprocessing
from models import NAME, Net, refused, same, sgd, still
from torch import nn

import libstagehand.torch as st

SMALL = "layers.4.norm.weight"  # its source is a copy of it, unless other code can write to it


def flat(net):
    """Puts all weights into one buffer, as some optimizers do."""
    weights = list(net.parameters())
    buffer = torch.cat([one.detach().flatten() for one in weights])
    for one, part in zip(weights, buffer.split([one.numel() for one in weights])):
        one.data = part.view(one.shape)
    return buffer


# What is made before streaming, and how it is changed.
EARLIER = {
    "state dict": (lambda net: net.state_dict(), lambda state: state[NAME].mul_(2)),
    "small weights of a state dict": (lambda net: net.state_dict(), lambda state: state["layers.4.norm.bias"].add_(1)),
    "view": (lambda net: net.get_parameter(NAME)[3:60], lambda view: view.mul_(2)),
    "view of the data": (lambda net: net.get_parameter(NAME).data[3:60], lambda view: view.mul_(2)),
    "detached": (lambda net: net.get_parameter(NAME).detach(), lambda one: one.mul_(2)),
    "flat buffer": (flat, lambda buffer: buffer.mul_(1.5)),
    "part of a flat buffer": (lambda net: flat(net).view(-1)[:-3], lambda part: part.view(-1)[7:900].mul_(1.5)),
}


# Where a model begins, where it streams to, the budget, and whether it is trained.
CASES = [(budget, trained) for budget in ("60%", "100%") for trained in (False, True)]


@pytest.mark.parametrize("make, change", EARLIER.values(), ids=EARLIER)
@pytest.mark.parametrize("budget, trained", CASES)
def test_changes_are_computed_with(place, there, tokens, make, change, budget, trained):
    net, tokens = Net().requires_grad_(trained), tokens.to(place)
    other = copy.deepcopy(net).to(place)
    with torch.no_grad():
        held, wanted = make(net), make(other)
        with st.stream(net, there, budget=budget, **{"optimizer": still} if trained else {}):
            net(tokens), net(tokens)
            for _ in range(2):
                change(held), change(wanted)
                for _ in range(2):
                    assert same(net, other, tokens)
            change(held), change(wanted)
        if place == "cpu":
            assert same(net, other, tokens)
            change(held), change(wanted)  # they share memory as before
        assert same(net.to(place), other, tokens)


@pytest.mark.gpu
@pytest.mark.parametrize("make, change", EARLIER.values(), ids=EARLIER)
def test_the_source_of_a_model_on_a_gpu_is_a_copy(tokens, make, change):
    """Tensors of before are not over it."""
    net, tokens = Net().requires_grad_(False).cuda(), tokens.cuda()
    other = copy.deepcopy(net)
    with torch.no_grad():
        held = make(net)
        with st.stream(net, "cuda:0"):
            assert same(net, other, tokens)
            change(held)
            with refused("streamed from a copy of its memory.*Change the weight itself"):
                net(tokens)
            assert same(net, other, tokens)
        assert same(net.cuda(), other, tokens)


def test_what_no_step_can_see_is_an_error(device, net, tokens):
    held = net.state_dict()
    want = net(tokens)["logits"]
    with torch.no_grad(), st.stream(net, device, pack=True):
        net(tokens)
        held[NAME].mul_(2)
        with refused(rf"{NAME} is packed .*made from it was changed.*before streaming"):
            net(tokens)
        assert torch.equal(net(tokens)["logits"], want)
        held[NAME].mul_(0.5)
        with refused(rf"{NAME} is packed"):
            net(tokens)


def test_a_change_that_steps_of_the_optimizer_overwrite_is_an_error(device, tokens):
    net = Net()
    held = net.state_dict()
    with st.stream(net, device, optimizer=sgd):
        for _ in range(2):
            net(tokens)["logits"].square().mean().backward()  # the steps of the optimizer are no such change
        held[NAME].mul_(2)
        with refused(rf"{NAME} was changed in place, by a tensor"):
            net(tokens)


def test_tensors_that_are_gone_are_not_searched(device, net, tokens, monkeypatch):
    """Only a storage with more tensors than those of the model has the objects of Python looked through."""
    monkeypatch.setattr("libstagehand.torch._aliases.gc.get_objects", lambda *_: pytest.fail("it is searched"))
    net.state_dict()
    with torch.no_grad(), st.stream(net, device):
        net(tokens)


class Shared(nn.Module):
    def __init__(self):
        super().__init__()
        self.weight = nn.Parameter(torch.randn(64, 64), requires_grad=False)
        self.register_buffer("rows", self.weight.data[:4])  # small, so that it stays outside

    def forward(self, x):
        return x @ self.weight


def test_tensors_of_the_model_are_its_own(device, monkeypatch):
    monkeypatch.setattr("libstagehand.torch._aliases.gc.get_objects", lambda *_: pytest.fail("it is searched"))
    with torch.no_grad(), st.stream(Shared(), device):
        pass


def test_tensors_that_are_not_found_are_logged(device, net, tokens, caplog):
    held = net.state_dict()
    gc.freeze()
    try:
        with torch.no_grad(), st.stream(net, device):
            net(tokens)
    finally:
        gc.unfreeze()
    (message,) = [one.getMessage() for one in caplog.records]
    assert "over the memory of embed.weight, and of 50 other weights, is not seen" in message and len(held) == 51


def first_of(net):
    return {NAME: net.get_parameter(NAME).data[3:].T.detach()}


def conjugate(net):
    """Of a weight that is complex."""
    net.layers[4].up.weight.data = net.layers[4].up.weight.data.clone()
    return {NAME: torch.view_as_complex(net.get_parameter(NAME).data.view(128, 32, 2)).conj()}


def everything(net):
    parts = {f"part {index}": one for index, one in enumerate(flat(net).split(999))}
    with torch.inference_mode():
        return {NAME: net.get_parameter(NAME).data[3:], **parts}


# What moves the memory of tensors that were made before streaming.
MOVES = {
    "to another process": lambda state: pickle.loads(ForkingPickler.dumps(state)),
    "shared": lambda state: {name: one.share_memory_() for name, one in state.items()},
    "shared storage": lambda state: [one.untyped_storage().share_memory_() for one in state.values()] and state,
}


@pytest.mark.parametrize("small", [0, 1 << 20], ids=["in place", "copied"])
@pytest.mark.parametrize("move", MOVES.values(), ids=MOVES)
@pytest.mark.parametrize("make", [nn.Module.state_dict, first_of, conjugate, everything])
def test_the_sources_stay_where_they_are(device, tokens, monkeypatch, make, move, small):
    """A state dict of before streaming that goes to another process, or to shared memory."""
    monkeypatch.setattr("libstagehand.torch._weights.SMALL_SOURCE", small)
    net = Net().requires_grad_(False)
    with torch.no_grad():
        held = make(net)
        other = copy.deepcopy(net)
        want = {name: one.clone() for name, one in held.items()}
        with st.stream(net, device, budget="60%"):
            net(tokens)
            move(held)
            assert all(torch.equal(one, want[name]) for name, one in held.items())
            for model in (net, other):
                model.get_parameter(NAME).mul_(2)
            for _ in range(2):
                assert torch.equal(net(tokens)["logits"], other(tokens)["logits"])
        assert torch.equal(net(tokens)["logits"], other(tokens)["logits"])
        assert torch.equal(net.get_parameter(NAME), other.get_parameter(NAME))


@pytest.mark.parametrize("when", ["step", "end"])
def test_a_change_of_what_has_moved_is_an_error(device, net, tokens, when):
    held = net.state_dict()
    with torch.no_grad():
        want = net(tokens)["logits"]
        with refused(rf"{NAME} is streamed, and a tensor .* was moved to shared memory"):
            with st.stream(net, device):
                ForkingPickler.dumps(held)
                assert torch.equal(net(tokens)["logits"], want)
                held[NAME].mul_(2)
                if when == "step":
                    net(tokens)
        assert torch.equal(net(tokens)["logits"], want)


@pytest.mark.parametrize("make", [nn.Module.state_dict, first_of, conjugate, everything])
def test_memory_is_shared_and_moved_as_before_at_the_end(device, net, tokens, make):
    held = make(net)
    with torch.no_grad():
        with st.stream(net, device):
            net(tokens)
        before = held[NAME].untyped_storage().data_ptr()
        assert before == net.get_parameter(NAME).untyped_storage().data_ptr()
        net.share_memory()
        assert net.get_parameter(NAME).untyped_storage().data_ptr() != before  # the memory before is free now
        net.get_parameter(NAME).zero_()
        assert held[NAME].abs().sum() == 0


def test_data_that_is_replaced_leaves_earlier_tensors_alone(device, net):
    with torch.inference_mode():
        inference = net.get_parameter(NAME).data[2:]
    held = [*net.state_dict().values(), net.get_parameter(NAME).data[3:].T, inference]
    want = [one.clone() for one in held]
    with torch.no_grad(), st.stream(net, device):
        net.get_parameter(NAME).data = torch.full((128, 64), 3.0)
        assert all(map(torch.equal, held, want))
    assert all(map(torch.equal, held, want)) and (net.get_parameter(NAME) == 3).all()


# Arrays of NumPy. PyTorch does not see writes to them.


def made_of(net, name, values):
    """Gives a model a weight over an array, or over another buffer of Python."""
    place, _, key = name.rpartition(".")
    made = (
        torch.from_numpy(values) if isinstance(values, numpy.ndarray) else torch.frombuffer(values, dtype=torch.float32)
    )
    setattr(net.get_submodule(place), key, nn.Parameter(made.view(net.get_parameter(name).shape), requires_grad=False))
    return values


def bytes_of(net, name):
    return net.get_parameter(name).numpy().tobytes()


# How an array and a weight come to share memory.
SHARED = {
    "numpy": lambda net, name: net.get_parameter(name).numpy(),
    "numpy of the data": lambda net, name: net.get_parameter(name).data.numpy(),
    "numpy of a detached tensor": lambda net, name: net.get_parameter(name).detach().numpy(),
    "numpy.asarray": lambda net, name: numpy.asarray(net.get_parameter(name)),
    "numpy.from_dlpack": lambda net, name: numpy.from_dlpack(net.get_parameter(name)),
    "numpy.from_dlpack of a detached tensor": lambda net, name: numpy.from_dlpack(net.get_parameter(name).detach()),
    "a part": lambda net, name: net.get_parameter(name).numpy()[..., -1:],
    "a part backwards": lambda net, name: net.get_parameter(name).numpy()[..., ::-1][..., :1],
    "from_numpy": lambda net, name: made_of(net, name, net.get_parameter(name).numpy().copy()),
    "a read-only view": lambda net, name: numpy.broadcast_to(
        net.get_parameter(name).numpy()[..., -1:], (2, *net.get_parameter(name).shape)
    ),
    "bytearray": lambda net, name: made_of(net, name, bytearray(bytes_of(net, name))),
    "memoryview": lambda net, name: memoryview(made_of(net, name, bytearray(bytes_of(net, name)))),
    "array": lambda net, name: made_of(net, name, array.array("f", bytes_of(net, name))),
}
# Where the program has the array. The garbage collector does not track some of these.
HELD = {
    "variable": lambda one: one,
    "list": lambda one: [one],
    "dict": lambda one: {"one": one},
    "dicts": lambda one: {"one": {"two": (one, 3)}},
    "variable of a function": lambda one: lambda: one,
    "suspended function": lambda one: suspended(one),
    "attribute": lambda one: type("Holder", (), {"one": one}),
    "slot": lambda one: Slot(one),
}


class Slot:
    __slots__ = ("one",)

    def __init__(self, one):
        self.one = one


def suspended(one):
    def run():
        kept = one
        yield
        return kept

    made = run()
    next(made)
    return made


def warnings(caplog):
    return [one.getMessage() for one in caplog.records if "NumPy" in one.getMessage()]


@pytest.mark.parametrize("name", [NAME, SMALL])
@pytest.mark.parametrize("make", SHARED.values(), ids=SHARED)
def test_shared_memory_is_reported(device, net, tokens, caplog, make, name):
    held = make(net, name)
    with torch.no_grad(), st.stream(net, device):
        net(tokens)
    (message,) = warnings(caplog)
    assert f"do not see writes through NumPy to {name} and 0 other weights" in message and held is not None


@pytest.mark.parametrize("hold", HELD.values(), ids=HELD)
def test_wherever_the_array_is(device, net, caplog, hold):
    held = hold(made_of(net, NAME, net.get_parameter(NAME).numpy().copy()))
    with st.stream(net, device):
        pass
    assert len(warnings(caplog)) == 1 and held is not None


def test_in_a_function_of_another_thread(device, net, caplog):
    begun, end = threading.Event(), threading.Event()

    def run():
        kept = net.get_parameter(NAME).numpy()
        begun.set()
        end.wait()
        assert kept is not None

    thread = threading.Thread(target=run)
    thread.start()
    begun.wait()
    try:
        with st.stream(net, device):
            pass
    finally:
        end.set()
        thread.join()
    assert len(warnings(caplog)) == 1


@pytest.mark.parametrize("budget", ["60%", "100%"])
@pytest.mark.parametrize("name", [NAME, SMALL])
@pytest.mark.parametrize("make", [SHARED["numpy"], SHARED["numpy.from_dlpack"], SHARED["from_numpy"]])
def test_a_write_is_there_at_the_end_and_seen_as_the_warning_says(device, tokens, make, name, budget):
    net = Net().requires_grad_(False)
    other, held = copy.deepcopy(net), make(net, name)
    with torch.no_grad():
        with st.stream(net, device, budget=budget):
            net(tokens)
            for _ in range(2):
                held *= 2
                other.get_parameter(name).mul_(2)
                assert torch.equal(net.state_dict()[name], other.get_parameter(name))
                net.get_parameter(name).copy_(torch.from_numpy(held))
                for _ in range(2):
                    assert torch.equal(net(tokens)["logits"], other(tokens)["logits"])
            held *= 2
            other.get_parameter(name).mul_(2)
        assert numpy.array_equal(held, other.get_parameter(name).numpy())
        assert torch.equal(net(tokens)["logits"], other(tokens)["logits"])


def test_what_cannot_be_written_is_not_reported(device, net, caplog):
    gone = net.get_parameter(NAME).numpy()
    del gone
    made = made_of(net, SMALL, net.get_parameter(SMALL).numpy().copy())
    made.flags.writeable = False
    beside = net.get_parameter("head.weight").numpy()[:0]
    copied = net.get_parameter("head.weight").numpy().copy()
    outside = net.get_parameter("embed.weight").numpy()
    with st.stream(net, device, outside="embed.*"):
        pass
    assert not warnings(caplog) and beside is not None and copied is not None and outside is not None


def test_all_weights_are_counted(device, net, caplog):
    held = {name: one.numpy() for name, one in net.named_parameters()}
    with st.stream(net, device):
        pass
    (message,) = warnings(caplog)
    assert f"do not see writes through NumPy to embed.weight and {len(held) - 1} other weights" in message


@pytest.mark.skipif(sys.version_info >= (3, 13), reason="the variables of a function are not copied")
def test_the_search_keeps_no_variables(device, net):
    """The copy of a function's variables that the search asks for would live as long as the function."""
    held = net.get_parameter(NAME).numpy()
    kept, gone = Slot(1), Net()
    seen = weakref.ref(gone)
    with st.stream(net, device):
        pass
    del gone
    assert seen() is None and kept.one == 1 and held is not None


def test_the_variables_that_a_program_has_asked_for_stay(device, net):
    held, mine = net.get_parameter(NAME).numpy(), locals()
    with st.stream(net, device):
        pass
    assert mine["net"] is net and held is not None
