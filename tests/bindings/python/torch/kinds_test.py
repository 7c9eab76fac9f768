"""Which calls of a model are of one kind."""

import torch
from torch import nn

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
