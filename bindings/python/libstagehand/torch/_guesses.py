"""Guesses: the experts that a layer will probably use, by its router on the hidden states of the layer before. Their
loads begin a layer earlier.
"""

# mypy: disable-error-code="import-not-found,misc,no-untyped-call,unused-ignore"
from __future__ import annotations

from itertools import pairwise
from typing import TYPE_CHECKING, Any

import torch
from torch import nn
from torch.nn.functional import linear

from ._memory import strided
from ._plainly import plainly
from ._weights import Place

if TYPE_CHECKING:
    from ._experts import Layer
    from ._hooks import Running

# A call of more tokens uses most experts, and the processor needs long for its guess.
_MOST_TOKENS = 16
# A wrong guess costs the time of a load, and a right one saves no more.
_LEAST_CHANCE = 0.5
# The share of what was seen that each call keeps: the last 64 or so count.
_KEPT = 63 / 64
# Guesses count once so many tokens were compared with them. While none is good enough, one call in this many compares.
_LEAST_SEEN = 8
_LOOK_ONE_IN = 16


class Router:
    """The weights of a layer's router, where the host has them."""

    def __init__(self, weight: Place, bias: torch.Tensor | Place | None, correction: torch.Tensor | None) -> None:
        self._weight, self._bias, self._correction = weight, bias, correction

    def takes(self, hidden: torch.Tensor) -> bool:
        width = self._weight.original.size(1)
        return bool(hidden.size(-1) == width and hidden.numel() <= _MOST_TOKENS * width)

    def choose(self, hidden: torch.Tensor, count: int) -> list[list[int]]:
        """Returns so many experts of each token, the most probable ones first."""
        weight = _in_host(self._weight)
        bias = None if self._bias is None else _in_host(self._bias).to(weight.dtype)
        scores = linear(hidden.to(weight.dtype), weight, bias)
        if self._correction is not None:
            scores = scores.float().sigmoid() + self._correction
        chosen: list[list[int]] = scores.topk(count).indices.tolist()
        return chosen


def _in_host(tensor: torch.Tensor | Place) -> torch.Tensor:
    if isinstance(tensor, Place):
        return strided(tensor.weight.source(), tensor.offset, tensor.original)
    return tensor


def router_of(parent: nn.Module, experts: nn.Module, count: int, places: dict[int, Place]) -> Router | None:
    """Returns the router beside a module of experts: the one module with a score for each of them. `places` are those
    of all weights, by the ids of their tensors.
    """
    found = None
    for module in parent.modules():
        if any(module is one for one in experts.modules()):
            continue
        weight = places.get(id(module._parameters.get("weight")))
        if weight is None or weight.special or weight.original.dim() != 2 or weight.original.size(0) != count:
            continue
        if found is not None:
            return None
        bias = module._parameters.get("bias")
        correction = module._buffers.get("e_score_correction_bias")
        found = Router(
            weight,
            None if bias is None else places.get(id(bias), bias.detach().cpu()),
            None if correction is None else correction.detach().float().cpu(),
        )
    return found


class Guesses:
    """The guesses of a layer's experts, and how often they were right."""

    def __init__(self, layer: Layer, router: Router) -> None:
        self.layer = layer
        self._router = router
        self._made: list[list[int]] = []  # of each token of the step under way
        self._right: list[float] = []  # by the place in a token's list: how often its expert was used
        self._seen = 0.0
        self._calls = 0

    @property
    def rates(self) -> list[float]:
        """How often a token's first guess was right, its second one, and so on. Empty: too few were seen."""
        return [right / self._seen for right in self._right] if self._seen >= _LEAST_SEEN else []

    def wants(self, hidden: Any) -> bool:
        """Whether a call of the layer before is worth a guess."""
        self._made = []
        self._calls += 1
        if self.rates and not self._is_good() and self._calls % _LOOK_ONE_IN:
            return False
        return isinstance(hidden, torch.Tensor) and self._router.takes(hidden)

    def _is_good(self) -> bool:
        return any(rate >= _LEAST_CHANCE for rate in self.rates)

    def guess(self, hidden: torch.Tensor, count: int) -> None:
        """Has so many experts loaded that each token will probably use, as the hidden states of the layer before show,
        which are in host memory.
        """
        with plainly():
            self._made = self._router.choose(hidden.flatten(0, -2), count)
        if self._is_good():
            self._load(self.rates)

    def _load(self, rates: list[float]) -> None:
        missing: dict[int, float] = {}  # how probable it is that no token uses an expert
        for token in self._made:
            for rate, expert in zip(rates, token):
                missing[expert] = missing.get(expert, 1.0) * (1 - rate)
        wanted = sorted((chance, expert) for expert, chance in missing.items() if 1 - chance >= _LEAST_CHANCE)
        if wanted:
            layer = self.layer
            layer.pool.set.prefetch(
                [layer.first + expert for _, expert in wanted], [1 - chance for chance, _ in wanted]
            )

    def compare(self, routes: torch.Tensor) -> None:
        """Compares the guesses with the experts that each token uses."""
        made, self._made = self._made, []
        if not made or len(made) != len(routes):
            return
        self._right += [0.0] * (len(made[0]) - len(self._right))
        for token, experts in zip(made, routes.tolist()):
            self._seen = self._seen * _KEPT + 1
            self._right = [right * _KEPT for right in self._right]
            for place, expert in enumerate(token):
                self._right[place] += expert in experts


def make_guesses(model: nn.Module, layers: list[Layer], places: dict[int, Place]) -> dict[str, Guesses]:
    """Gives layers that follow another one guesses of their experts. Returns them by the names of the layers."""
    made = {}
    for before, layer in pairwise(layers):
        parent = model.get_submodule(layer.name.rpartition(".")[0])
        router = router_of(parent, layer.module, layer.count, places)
        if router is not None:
            made[layer.name] = layer.guesses = Guesses(layer, router)
            before.next = layer
    return made


class Told:
    """What a layer's experts were told, in host memory, for the guesses. It is used once their work is queued."""

    __slots__ = ("layer", "hidden", "routes")

    def __init__(self, layer: Layer, hidden: Any, routes: torch.Tensor) -> None:
        self.layer, self.routes = layer, routes
        self.hidden: torch.Tensor | None = None
        following = layer.next and layer.next.guesses
        if following and following.wants(hidden):
            self.hidden = hidden.cpu()

    def use(self) -> None:
        layer = self.layer
        if layer.guesses:
            layer.guesses.compare(self.routes)
        if self.hidden is not None and layer.next and layer.next.guesses:
            layer.next.guesses.guess(self.hidden, self.routes.size(-1))


class GuessRates:
    """How often the guesses of a streamed model are right."""

    _running: Running

    def guess_rates(self) -> dict[str, list[float]]:
        """Returns how often the guesses were right that say which experts a layer will use, by the name of the layer's
        experts: the first guess of a token, the second one, and so on. A list is empty while too few were compared.
        Experts are loaded ahead that are used with a chance of a half or more.
        """
        return {name: guesses.rates for name, guesses in self._running.guesses.items()}
