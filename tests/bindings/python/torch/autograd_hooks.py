"""Surroundings for tests of autograd that know nothing of this package: each of them calls a test while the package's
hooks for saved tensors are in force. Most call it within the forward of a streamed model, and then run the backward of
this model. The last one spills whatever the test saves.

`SURROUNDINGS` has them by name. A new kind of hooks gets a line there, and a list of what cannot pass under it in
`vendored/expected.py`.
"""

import os

import pytest
import torch
from models import PAGE, Lora
from torch import nn

import libstagehand as sh
import libstagehand.torch as st
from libstagehand.torch import _saved
from libstagehand.torch._spill_device import SpilledDevice


class Around(nn.Module):
    """A model with adapters over frozen layers, which calls a function in its forward. It holds a weight meanwhile."""

    def __init__(self, body):
        super().__init__()
        self.body = body
        self.scale = nn.Parameter(torch.rand(32), requires_grad=False)
        self.layers = nn.ModuleList(Lora(nn.Linear(32, 32)) for _ in range(3))

    def forward(self, x):
        x = self.layers[1](self.layers[0](x * self.scale))
        self.body()
        return self.layers[2](x) * self.scale


def gradients(model, x):
    model.zero_grad(set_to_none=True)
    model(x).square().sum().backward()
    return [one.grad for one in model.parameters() if one.requires_grad]


def in_a_streamed_forward(body, first=False):
    """The package keeps all tensors that the test saves. Its search of the first step for views is over, unless `first`
    is true.
    """

    def under_hooks():
        (pack, _) = torch._C._autograd._top_saved_tensors_default_hooks(False)
        assert type(pack) is _saved.Pack
        body()

    with torch.random.fork_rng(devices=[]):
        model, x = Around(lambda: None), torch.randn(4, 32)
        want = gradients(model, x)
    with sh.Device("host", page_bytes=PAGE, backend_options="poison=1") as device:
        with st.stream(model, device, budget=9 * PAGE, outside="*.bias"):
            if not first:
                gradients(model, x)
            model.body = under_hooks
            got = gradients(model, x)
    assert all(map(torch.equal, got, want))


def in_the_first_step(body):
    in_a_streamed_forward(body, first=True)


def with_all_saved_as_weights(body):
    """The package takes each plain tensor that the test saves for a weight of the last layer, so that the backward of
    the test acquires and releases this layer's block.
    """

    def pretended():
        with pytest.MonkeyPatch.context() as patch:
            patch.setattr(_saved, "found_in", found_in_last_layer)
            body()

    in_a_streamed_forward(pretended)


def found_in_last_layer(tensor, known, find=_saved.found_in):
    found = find(tensor, known)
    if found or type(tensor) not in (torch.Tensor, nn.Parameter) or tensor.layout != torch.strided:
        return found
    return (list(known.values())[-1],)


def with_all_spilled(body, recompute=None):
    """Each plain tensor that the test saves leaves, however small it is, before the test goes on. Otherwise
    what a test sees that changes a saved tensor would depend on how soon the copy ends.
    """
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(SpilledDevice, "save", save_and_wait)
        spilled = st.spill_activations(device="host", keep=0, least=1, recompute=recompute)
        try:
            with spilled:
                body()
        finally:
            spilled.close()  # what a failure keeps must not keep the device open for the tests that follow


def save_and_wait(on, tensor, *args, save=SpilledDevice.save):
    saved = save(on, tensor, *args)
    on.collect(on.stream(), all=True)
    return saved


def with_all_computed_again(body):
    """What the test saves is computed again if it is cheap, and leaves otherwise."""
    with_all_spilled(body, recompute=True)


SURROUNDINGS = {
    "first step": in_the_first_step,
    "kept": in_a_streamed_forward,
    "weights": with_all_saved_as_weights,
    "spilled": with_all_spilled,
}
# Not in each run, because it takes minutes.
if os.environ.get("STAGEHAND_TEST_COMPUTED_AGAIN"):
    SURROUNDINGS["computed again"] = with_all_computed_again
