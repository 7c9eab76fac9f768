"""The units of a model with their blocks."""

# mypy: disable-error-code="import-not-found,misc,no-untyped-call,unused-ignore"
from __future__ import annotations

from torch import nn

from ._division import Chosen, Division, Unit
from ._weights import Entry, HeldBlock, Weight, make_blocks, weights_by_tensor


def make_units(
    model: nn.Module, weights: list[Weight], entries: list[Entry], chosen: Chosen | None, largest: int
) -> dict[Unit, list[HeldBlock]]:
    """Divides a model into the chosen modules, or into modules of at most `largest` bytes."""
    of_tensor = weights_by_tensor(entries)
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
        return unit.name or type(model).__name__

    division = Division(bytes_of, largest)
    units = division.automatic(model) if chosen is None else division.chosen(model, chosen)
    return make_blocks(units, weights, entries, describe)
