"""Which calls of a model are of one kind."""

import torch
from torch import nn

import libstagehand.torch as st
from libstagehand.torch._kinds import StepKinds


class Loaded(nn.Linear):
    """Has the method that the models of transformers and diffusers have."""

    def active_adapters(self):
        raise ValueError("no adapter is loaded")

    def __repr__(self):
        raise AssertionError("the text of a whole model takes milliseconds")


class Adapted(nn.Linear):
    """A layer with an adapter, as peft has it."""

    active = "first"

    @property
    def active_adapters(self):
        return [self.active]


def test_a_method_is_no_adapter():
    kinds, x = StepKinds(nn.Sequential(Loaded(4, 4), Loaded(4, 4))), torch.ones(2, 4)
    assert kinds.kind((x,), {}) == kinds.kind((x,), {})


def test_the_adapter_that_is_active():
    model, x = nn.Sequential(Adapted(4, 4)), torch.ones(2, 4)
    kinds = StepKinds(model)
    first = kinds.kind((x,), {})
    model[0].active = "second"
    assert kinds.kind((x,), {}) != first


def test_sizes_gradients_and_training():
    model = nn.Linear(4, 4)
    kinds = StepKinds(model)
    one, two, three = (kinds.kind((torch.ones(size, 4),), {}) for size in (1, 2, 3))
    assert one != two and two == three
    with torch.no_grad():
        assert kinds.kind((torch.ones(2, 4),), {}) != two
    model.eval()
    assert kinds.kind((torch.ones(2, 4),), {}) != two


def test_contents_of_strings_are_no_kinds_of_steps():
    kinds = StepKinds(nn.Linear(1, 1))
    assert kinds.kind(("a" * 99,), {}) == kinds.kind(("b" * 98,), {})
    assert kinds.kind(("encode",), {}) != kinds.kind(("decode",), {})
    assert kinds.kind((torch.zeros(3, 7),), {}) == kinds.kind((torch.zeros(2, 9),), {})
    assert kinds.kind((torch.zeros(3, 7),), {}) != kinds.kind((torch.zeros(3, 1),), {})
    assert kinds.kind((2,), {}) == kinds.kind((9,), {}) != kinds.kind((0,), {})


def test_kinds_have_names_as_long_as_there_are_few():
    kinds = StepKinds(nn.Linear(4, 4))
    assert kinds.name("prefill") == kinds.name("prefill") != kinds.name("decode")
    names = [kinds.name(number) for number in range(100)]
    assert names[-1] is None and len(set(names) - {None}) == 62
    assert kinds.name("decode") == "kind 2"


def test_the_runtime_gets_the_kinds_by_name():
    model = nn.Sequential(*(nn.Linear(64, 64) for _ in range(8)))
    with st.stream(model, "cpu", budget="50%") as streamed, torch.no_grad():
        for size in (5, 1, 1, 7, 1, 1):
            model(torch.ones(size, 64))
        kinds = {kind.name: kind.steps for kind in streamed.runtime.kinds()}
    assert kinds == {"kind 1": 2, "kind 2": 4}
