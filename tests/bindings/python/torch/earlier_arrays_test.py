"""Arrays of NumPy that share memory with weights since before streaming. PyTorch does not see writes to them."""

import array
import sys
import threading
import weakref

import numpy
import pytest
import torch
from models import Net
from torch import nn

import libstagehand.torch as st

NAME = "layers.4.up.weight"  # its source stays where it is
SMALL = "layers.4.norm.weight"  # its source is a copy of it, unless other code can write to it


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
    net, other = (Net().requires_grad_(False) for _ in range(2))
    other.load_state_dict(net.state_dict())
    held = make(net, name)
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
