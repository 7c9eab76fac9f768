"""The ways in which libstagehand.torch runs a model, each of which gives the results of PyTorch alone, bit by bit."""

from contextlib import nullcontext
from functools import partial
from typing import Any, NamedTuple

import torch
from models import PAGE
from operators import Layer, results
from spilling import away, nothing_is_left, spilling
from torch import nn
from torch.utils.checkpoint import checkpoint

import libstagehand.torch as st


class Recorder(torch.optim.Optimizer):
    """Keeps the gradients, and changes no parameter."""

    def __init__(self, gradients, parameters):
        super().__init__(list(parameters), {})
        self.gradients = gradients

    def step(self):
        for one in self.param_groups[0]["params"]:
            if one.grad is not None:
                self.gradients[id(one)] = one.grad.clone()


class Model(nn.Module):
    """Layers that do not need each other's results."""

    def __init__(self, layers, call):
        super().__init__()
        self.layers = nn.ModuleList(layers)
        self.call = call

    def forward(self):
        return [self.call(layer) for layer in self.layers]


def spilled(layers, device, twice=False, **options):
    """The layers get copies of their inputs, which leave too."""
    scope = spilling(None, device, **options)
    for _ in range(3 if options.get("peak") else 2):  # a plan is made from the first steps
        with scope:
            outs = [layer() for layer in layers]
        away(scope)
        yield results(layers, outs, twice=twice)
        del outs
    assert nothing_is_left(scope)
    scope.close()


def called(layer):
    return layer()


def read(layer):
    """Without the hooks of the layer, so that its block is not held."""
    return layer.forward()


def checkpointed(layer):
    return checkpoint(layer, use_reentrant=False)


def streamed(layers, device, call=called, idle=False, spill=None, **options):
    """In a third of the pages, or in two layers' memory."""
    model, gradients = Model(layers, call), {}
    parameters = list(model.parameters())
    if any(one.requires_grad for one in parameters):
        options["optimizer"] = partial(Recorder, gradients)
    pages = [sum(-(-one.nbytes // PAGE) for one in layer.parameters()) for layer in layers]
    budget = PAGE * max(2 * max(pages), sum(pages) // 3)
    with st.stream(model, device, budget=budget, blocks="layers.*", **options):
        scope = nullcontext() if spill is None else spilling(model, device, **spill)
        for number in range(2):
            if idle and number:  # after a step, too
                layers[0]()
            with scope:
                outs = [read(layer) for layer in layers] if idle else model()
            yield results(layers, outs, gradients)
            gradients.clear()
            del outs


class Way(NamedTuple):
    """Which arguments are weights, whether they are trained, how a layer is called, and how the model runs."""

    run: Any
    weights: str = "none"
    trained: bool = False
    call: Any = called
    twice: bool = False

    def layers(self, calls):
        """Returns the layers for these calls that have a weight, if the way needs weights."""
        made = [Layer(call, call.weights(self.weights), self.trained) for call in calls]
        return [layer for layer in made if self.weights == "none" or any(True for _ in layer.parameters())]

    def plainly(self, layer):
        return results([layer], [self.call(layer)], twice=self.twice)[0]


WAYS = {
    "spilled": Way(partial(spilled, checksums=True), trained=True),
    "computed again": Way(partial(spilled, recompute=True), trained=True),
    "kept": Way(partial(spilled, keep="1GiB"), trained=True),
    "some leave": Way(partial(spilled, keep="4KiB"), trained=True),
    "planned": Way(partial(spilled, peak="64KiB"), trained=True),
    "differentiated twice": Way(partial(spilled, twice=True), trained=True, twice=True),
    "first streamed": Way(streamed, "first"),
    "others streamed": Way(streamed, "others"),
    "trained": Way(streamed, "all", trained=True),
    "read": Way(partial(streamed, call=read), "all"),
    "read and trained": Way(partial(streamed, call=read), "all", trained=True),
    "idle": Way(partial(streamed, idle=True), "all"),
    "idle and trained": Way(partial(streamed, idle=True), "all", trained=True),
    "checkpointed": Way(partial(streamed, call=checkpointed, spill={}), "all", trained=True, call=checkpointed),
    "packed": Way(partial(streamed, pack=True, spill={"recompute": True}), "others"),
}
