"""A device is opened anew after its first use has ended, and an error names what keeps it open."""

import gc

import pytest
import torch
from models import PAGE, Net, size_of
from torch import nn

import libstagehand as sh
import libstagehand.torch as st


@pytest.fixture(autouse=True)
def closed():
    gc.collect()
    yield
    gc.collect()


def open_again(budget=1 << 22):
    with sh.Device("host", page_bytes=PAGE, budget_bytes=budget) as device:
        return device.memory().budget_bytes == budget


def first_use(net, tokens, **named):
    """Streams on a device with another budget. Returns what a program may keep."""
    with sh.Device("host", page_bytes=PAGE, budget_bytes=1 << 20) as device:
        with st.stream(net, device, **named) as streamed, torch.no_grad():
            net(tokens)
    return streamed


def test_a_closed_streamed_object_keeps_no_device(net, tokens):
    kept = first_use(net, tokens)
    assert open_again() and kept.module is net


def fail(*arguments):
    del arguments  # because the error keeps what a function of the tests still has
    raise ZeroDivisionError


FAILURES = {
    "no block": ({"blocks": "nothing"}, None),
    "no optimizer": ({"optimizer": fail}, None),
    "no registration": ({}, "libstagehand.torch._streamed.Runtime.register_blocks"),
    "no copy": ({}, "libstagehand.torch._pinned_copies.PinnedCopies.allocate"),
    "no place": ({}, "libstagehand.torch._streamed.memory_tensor"),
    "no hooks": ({}, "libstagehand.torch._streamed.StepHooks"),
}


@pytest.mark.parametrize("how", FAILURES)
def test_a_begin_that_failed_keeps_no_device_and_no_change(monkeypatch, tokens, how):
    net = Net().requires_grad_("optimizer" in FAILURES[how][0])
    before, want = {name: one.clone() for name, one in net.state_dict().items()}, net(tokens)["logits"]
    named, broken = FAILURES[how]
    with monkeypatch.context() as patch:
        if broken:
            patch.setattr(broken, fail)
        with pytest.raises((ZeroDivisionError, ValueError)) as kept:
            first_use(net, tokens, **named)
    gc.collect()  # what has failed may be garbage in a cycle, which the error does not keep
    assert open_again()
    assert kept.value.__traceback__ is not None
    assert all(torch.equal(one, before[name]) for name, one in net.state_dict().items())
    assert torch.equal(net(tokens)["logits"], want)
    first_use(net, tokens)


def test_the_users_functions_keep_their_variables(net, tokens):
    def optimizer(parameters):
        count = len(parameters)
        return fail(count)

    with pytest.raises(ZeroDivisionError) as kept:
        first_use(net.requires_grad_(True), tokens, optimizer=optimizer)
    frames = {one.frame.code.name: one.frame.f_locals for one in kept.traceback}
    assert frames["optimizer"]["count"] > 0


def test_a_step_that_failed_keeps_no_device(net, tokens):
    with pytest.raises(sh.BudgetError) as kept:
        first_use(net, tokens, budget=PAGE)
    assert open_again() and kept.value.__traceback__ is not None


def test_a_kept_state_dict_over_the_users_memory_keeps_no_device(monkeypatch, net, tokens):
    monkeypatch.setattr("libstagehand.torch._weights.SMALL_SOURCE", 0)
    with sh.Device("host", page_bytes=PAGE, budget_bytes=1 << 20) as device, st.stream(net, device):
        kept = net.state_dict()
    assert open_again()
    assert all(torch.equal(one, kept[name]) for name, one in net.state_dict().items())


def test_what_keeps_a_device_open_is_named(net, tokens):
    with sh.Device("host", page_bytes=PAGE, budget_bytes=1 << 20) as device, st.stream(net, device):
        kept = net.state_dict()
    with pytest.raises(sh.UsageError, match=r"keep host:0 open: tensors of a state_dict\(\) of Net.*clone\(\)"):
        open_again()
    del kept
    assert open_again()
    streamed = st.stream(net, "host", budget=size_of(net) // 2)
    with pytest.raises(sh.UsageError, match="keep host:0 open: the Streamed object of Net, which is not closed$"):
        open_again()
    streamed.close()
    assert open_again()


def test_what_keeps_a_device_open_without_pytorch_is_named():
    first = sh.Device("host", page_bytes=PAGE, budget_bytes=1 << 20)
    runtime, stream, memory = sh.Runtime(first, name="left"), sh.Stream(first), sh.PinnedMemory(first, 100)
    with pytest.raises(
        sh.UsageError, match="keep host:0 open: a Device that is not closed; the runtime left, which"
    ) as e:
        open_again()
    assert "a Stream that is not closed" in str(e.value) and "pinned memory of 100 bytes" in str(e.value)
    first.close()
    for one, told in ((runtime, "the runtime left"), (stream, "a Stream"), (memory, "pinned memory")):
        with pytest.raises(sh.UsageError, match=told):
            open_again()
        one.close()
    assert open_again()


def test_a_second_stream_with_another_budget_begins(tokens):
    net, other = Net().requires_grad_(False), nn.Linear(64, 64).requires_grad_(False)
    for budget in (size_of(net) // 4, "50%", None):
        with pytest.raises(ValueError, match="matches no module"):
            st.stream(other, "host", budget=budget, blocks="nothing")
        with st.stream(net, "host", budget=budget):
            net(tokens)
    assert open_again()


def test_the_budget_of_an_ended_use_is_forgotten(net, tokens):
    want = net(tokens)["logits"]
    with sh.Device("host", page_bytes=PAGE, budget_bytes=2 * PAGE) as device, st.stream(net, device):
        kept = net.state_dict()
    with st.stream(net, "host", budget="100%") as streamed:
        assert streamed.device.memory().budget_bytes > size_of(net)
        assert torch.equal(net(tokens)["logits"], want)
    assert all(torch.equal(one, kept[name]) for name, one in net.state_dict().items())


def test_the_budget_of_an_open_device_stays(net):
    with sh.Device("host", page_bytes=PAGE, budget_bytes=2 * PAGE):
        memory = sh.PinnedMemory(sh.Device("host"), 100)
        with st.stream(net, "host", budget="100%") as streamed:
            assert streamed.device.memory().budget_bytes == 2 * PAGE
        memory.close()
