"""Budgets and devices as users write them, and the errors about them."""

import re

import numpy
import pytest
import torch
from models import PAGE, Net, size_of
from torch import nn

import libstagehand as sh
import libstagehand.torch as st
from libstagehand.torch._budget import bytes_of
from libstagehand.torch._device_names import library_name
from libstagehand.torch._together import in_pages

WORDS = r"runtime|max_bytes|unordered|\bheld\b|\bview\b"


@pytest.mark.parametrize(
    ("budget", "bytes"),
    [
        (None, None),
        (1, 1),
        (8 << 30, 8 << 30),
        (numpy.int64(5000), 5000),
        (8e9, 8 * 10**9),
        ("8GiB", 8 << 30),
        ("1.5 GiB", 3 << 29),
        ("500MB", 500 * 10**6),
        ("500mb", 500 * 10**6),
        (" 64 KiB ", 64 << 10),
        ("4096", 4096),
        ("4096B", 4096),
        ("25%", 250),
        ("12.5 %", 125),
        ("150%", 1500),
    ],
)
def test_budgets_as_they_are_written(budget, bytes):
    assert bytes_of(budget, 1000) == bytes


@pytest.mark.parametrize(
    ("budget", "error"),
    [
        (0, "less than one byte"),
        (0.25, "less than one byte"),
        ("0%", "less than one byte"),
        (-1, "negative"),
        (-2.5, "negative"),
        ("-8GiB", "negative"),
        (float("-inf"), "negative"),
        (1e30, "more than any device has"),
        (float("inf"), "more than any device has"),
        ("9" * 400, "more than any device has"),
        (1 << 80, "more than any device has"),
        (float("nan"), "not a number"),
        ("25 %%", "not a size"),
        ("8G", "not a size"),
        ("8 GiBs", "not a size"),
        ("", "not a size"),
        ("much", "not a size"),
        (True, "not a size"),
        ([8], "a list, not a size"),
        (b"8GiB", "a bytes, not a size"),
    ],
)
def test_budgets_that_are_none(device, net, budget, error):
    before = dict(net.named_parameters())
    with pytest.raises((ValueError, TypeError), match=f"^{re.escape(f'budget={budget!r}')} is .*{error}.*8GiB"):
        st.stream(net, device, budget=budget)
    assert all(type(one) is nn.Parameter and one is before[name] for name, one in net.named_parameters())


@pytest.mark.parametrize("budget", ["25%", "0.125MiB", 131072.0])
def test_a_budget_bounds_the_memory(device, net, tokens, budget):
    want = net(tokens)["logits"]
    with st.stream(net, device, budget=budget, blocks="layers.*") as streamed:
        most = pages_of(streamed) // 4 if budget == "25%" else 1 << 17
        for _ in range(3):
            assert torch.equal(net(tokens)["logits"], want)
        stats = streamed.stats()
        assert 0 < stats.resident_bytes + stats.ring_bytes + stats.unordered_bytes <= most


def pages_of(streamed):
    """The bytes of the pages that all blocks take, of which a budget may be a part."""
    return in_pages(streamed._blocks, streamed.device.memory().page_bytes)


def smallest(error):
    """The least budget that an error tells."""
    return int(re.search(r"needs at least .*?(\d+) bytes", str(error.value))[1])


@pytest.mark.parametrize("given", [PAGE, "4KiB", "1%"])
def test_too_small_a_budget_tells_what_was_given_and_what_is_needed(device, net, tokens, given):
    want = net(tokens)["logits"]
    with st.stream(net, device, budget=given, blocks="layers.*"), pytest.raises(sh.BudgetError) as error:
        net(tokens)
    text = str(error.value)
    assert f"Net does not fit into budget={given!r}, which is " in text
    assert "KiB" in text and "larger budget=" in text and "blocks=" in text and "outside=" in text
    assert not re.search(WORDS, text)
    with st.stream(net, device, budget=smallest(error), blocks="layers.*"):
        assert torch.equal(net(tokens)["logits"], want)


class Around(nn.Module):
    """A weight of its own beside the layers, which is in use while they run."""

    def __init__(self):
        super().__init__()
        self.own = nn.Parameter(torch.ones(100, 100))
        self.layers = nn.Sequential(*(nn.Linear(64, 64) for _ in range(8)))

    def forward(self, x):
        return self.layers(x) + self.own.sum()


def test_a_block_that_does_not_fit_beside_another_is_told_so(device):
    model, x = Around().requires_grad_(False), torch.randn(2, 64)
    want = model(x)
    with st.stream(model, device, budget=48 << 10), pytest.raises(sh.BudgetError) as error:
        model(x)
    text = str(error.value)
    assert "which the block 'Around' asks for, beside " in text and "of weights that are used with it" in text
    assert "larger budget=" in text and not re.search(WORDS, text)
    with st.stream(model, device, budget=smallest(error)):
        assert torch.equal(model(x), want)


def test_the_budget_of_a_device_is_named(net, tokens):
    with sh.Device("host", page_bytes=PAGE, budget_bytes=2 * PAGE) as device:
        with st.stream(net, device, blocks="layers.*"), pytest.raises(sh.BudgetError) as error:
            net(tokens)
    text = str(error.value)
    assert "Net does not fit into the budget of host:0, which is 8 KiB (8192 bytes): the model needs at least" in text
    assert not re.search(WORDS, text)


def test_a_device_with_a_smaller_budget_is_named(net, tokens):
    with sh.Device("host", page_bytes=PAGE, budget_bytes=2 * PAGE) as device:
        with st.stream(net, device, budget="1GiB", blocks="layers.*"), pytest.raises(sh.BudgetError) as error:
            net(tokens)
    assert "the budget of host:0, which is 8 KiB (8192 bytes), though budget='1GiB' was given" in str(error.value)
    assert "Give a libstagehand.Device with a larger budget_bytes=" in str(error.value)


def test_what_other_models_leave_is_named(net, tokens):
    other = Net().requires_grad_(False)
    with sh.Device("host", page_bytes=PAGE, budget_bytes=64 * PAGE) as device:
        with st.stream(other, device, name="first") as first, st.stream(net, device, budget="1GiB") as second:
            with first.reserve(bytes=62 * PAGE):
                with pytest.raises(
                    sh.BudgetError, match=r"into what other models \('first'\) leave of the budget of host:0"
                ) as error:
                    net(tokens)
                assert not re.search(WORDS, str(error.value))
                with pytest.raises(
                    sh.BudgetError, match="the model 'Net': .* cannot be reserved.*the model 'first'"
                ) as error:
                    second.reserve(bytes=8 * PAGE).__enter__()
                assert not re.search(WORDS, str(error.value))
            with pytest.raises(sh.BudgetError, match="'Net' cannot run as a guest with 4096 bytes") as error:
                with first.as_guest(second, bytes=PAGE):
                    net(tokens)


@pytest.mark.parametrize(
    ("device", "name"),
    [
        ("cuda:1", "cuda:1"),
        ("gpu:1", "cuda:1"),
        (0, "cuda:0"),
        (torch.device("cuda", 2), "cuda:2"),
        (torch.device("cpu"), "host"),
        ("CPU", "host"),
        ("host", "host"),
        ("hip:0", "hip:0"),
    ],
)
def test_devices_as_they_are_written(monkeypatch, device, name):
    monkeypatch.setattr(torch.version, "hip", None)
    assert library_name(device) == name


@pytest.mark.parametrize("device", ["gpu", "cuda", torch.device("cuda")])
def test_the_current_gpu(monkeypatch, device):
    monkeypatch.setattr(torch.version, "hip", None)
    monkeypatch.setattr(torch.cuda, "current_device", lambda: 3)
    assert library_name(device) == "cuda:3"


@pytest.mark.parametrize("device", ["tpu", "cuda:", "cuda:x", "", "meta", -1, True, 1.5, None, torch.device("meta")])
def test_devices_that_are_none(net, device):
    with pytest.raises((ValueError, TypeError), match=rf'^device={re.escape(repr(device))} is .*"cuda:0" or 0'):
        st.stream(net, device)


@pytest.mark.parametrize("device", ["gpu", "cuda:0", 0])
def test_no_gpu_is_told(monkeypatch, net, device):
    def refuse():
        raise AssertionError("Torch not compiled with CUDA enabled")

    monkeypatch.setattr(torch.cuda, "current_device", refuse)
    monkeypatch.setattr(torch.cuda, "init", refuse)
    with pytest.raises(RuntimeError, match=rf"device={device!r} needs a GPU.*not compiled.*\"host\""):
        st.stream(net, device)


# A device of one's own measures its link before the first step, and plans anew in the next ones.
@pytest.mark.parametrize("budget", ["25%", "60%", "100%"])
def test_the_device_never_holds_more_than_the_budget(budget):
    net = nn.Sequential(*(nn.Linear(600, 600) for _ in range(8))).requires_grad_(False)
    x = torch.randn(2, 600)
    with torch.no_grad():
        want = net(x)
        with st.stream(net, "host", budget=budget) as streamed:
            for _ in range(4):
                assert torch.equal(net(x), want)
            assert 0 < streamed.device.memory().peak_bytes <= bytes_of(budget, pages_of(streamed))


def test_a_part_of_the_model_counts_its_pages():
    """A weight that does not begin at a multiple of the alignment may need a page more than it has bytes."""
    net = nn.Linear(PAGE, 8, bias=False).requires_grad_(False)
    net.weight.data = torch.randn(8 * PAGE + 1)[1:].view(8, PAGE)
    x = torch.randn(2, PAGE)
    want = net(x)
    with st.stream(net, "host", budget="100%") as streamed:
        assert torch.equal(net(x), want)
        assert streamed.device.memory().peak_bytes <= size_of(net) + streamed.device.memory().page_bytes
