"""The units of a model with their blocks, as large as is good for the budget."""

# mypy: disable-error-code="import-not-found,misc,no-untyped-call,unused-ignore"
from __future__ import annotations

from collections.abc import Callable

from torch import nn

from ._division import Chosen, Division, Unit, largest_block
from ._together import Units, least_bytes, most_held
from ._weights import Entry, Weight, make_blocks, weights_by_tensor


class Divider:
    """Divides one model. The blocks of an earlier division are void.

    :param chosen: The modules that make a block each, or None for the layers of the model.
    :param max_held: The most blocks that are held at the same time, or None for what the division needs.
    :param alone: Tells the modules that are units of their own, if the model is divided automatically, and if there is
        room for what these need `beside` the blocks, in bytes.
    """

    def __init__(
        self,
        model: nn.Module,
        weights: list[Weight],
        entries: list[Entry],
        chosen: Chosen | None,
        max_held: int | None,
        alone: Callable[[nn.Module], bool],
        beside: Callable[[Units], int],
    ) -> None:
        self._model = model
        self._weights = weights
        self._entries = entries
        self._chosen = chosen
        self._max_held = max_held
        self._alone = alone
        self._beside = beside
        self.divides_alone = True
        self._total = sum(weight.bytes for weight in weights)

    def budget_of_pages(self, budget: int | None) -> int | None:
        """Returns the budget that decides the pages of a new device. It is the same for all budgets that are too small,
        so that the smallest budget that works is the same too.
        """
        return None if budget is None else max(budget, 2 * self._smallest(1)[1])

    def fitting(self, budget: int, page: int) -> Units:
        """Divides the model for a budget. The blocks get smaller if only one such model could run on the device."""
        made, needed = self._division(budget, page)
        if self.divides_alone and needed + self._beside(made) > budget:
            self.divides_alone = False
            return self.fitting(budget, page)
        if needed <= (budget if self._total <= budget else budget // 2):
            return made
        smallest, least = self._smallest(page)
        return self._division(budget, page)[0] if needed <= min(budget, least) else smallest

    def _smallest(self, page: int) -> tuple[Units, int]:
        """Divides the model for the smallest budget that works. Also returns this budget. Larger blocks are made for
        larger budgets, so a budget must also suffice for the blocks that are made for it.
        """
        budget = 0
        while True:
            made, needed = self._division(budget, page)
            if needed <= budget or self._chosen is not None:
                return made, needed
            budget = needed

    def _division(self, budget: int, page: int) -> tuple[Units, int]:
        """Divides the model into blocks as large as is good for the budget. Also returns the budget that they need."""
        made = self._make(largest_block(budget, self._total))
        return made, least_bytes(self._model, made, self._max_held or most_held(made), budget, page)

    def _make(self, largest: int) -> Units:
        of_tensor = weights_by_tensor(self._entries)
        known: dict[int, int] = {}

        def bytes_of(module: nn.Module) -> int:
            if id(module) not in known:
                inside = {
                    weight
                    for part in module.modules()
                    for tensor in [*part._parameters.values(), *part._buffers.values()]
                    for weight in of_tensor.get(id(tensor), ())
                }
                known[id(module)] = sum(weight.bytes for weight in inside)
            return known[id(module)]

        def describe(unit: Unit) -> str:
            return unit.name or type(self._model).__name__

        division = Division(bytes_of, largest, lambda module: self.divides_alone and self._alone(module))
        chosen = self._chosen
        units = division.automatic(self._model) if chosen is None else division.chosen(self._model, chosen)
        return make_blocks(units, self._weights, self._entries, describe)
