"""What a model holds at once: a module holds the blocks of its own weights while the modules in it run."""

# mypy: disable-error-code="import-not-found,misc,no-untyped-call,unused-ignore"
from __future__ import annotations

from collections.abc import Iterable, Iterator

from torch import nn

from ._division import Unit
from ._weights import HeldBlock


def most_held(units: dict[Unit, list[HeldBlock]]) -> int:
    """Returns the most ordered blocks that are held at the same time."""
    return max(1, *(sum(not block.unordered for block in blocks) for blocks in units.values()))


def unordered_bytes(root: nn.Module, units: dict[Unit, list[HeldBlock]], page: int) -> int:
    """Returns the `unordered_bytes` of the runtime: the most bytes of unordered blocks that are held at the same time.
    0 if the largest of them alone needs as much, because the library then decides better.
    """
    outside = {unit.module: [block for block in blocks if block.unordered] for unit, blocks in units.items()}
    largest = max((_in_pages([block], page) for blocks in outside.values() for block in blocks), default=0)
    nested = max((_in_pages(blocks, page) for blocks in _nested(root, outside, ())), default=0)
    return nested if nested > largest else 0


def _nested(
    module: nn.Module, outside: dict[nn.Module, list[HeldBlock]], around: tuple[HeldBlock, ...]
) -> Iterator[tuple[HeldBlock, ...]]:
    """Yields the blocks that are held while a module runs, for each module that holds blocks. `around` are those of the
    modules around it.
    """
    if own := outside.get(module):
        around = tuple(dict.fromkeys((*around, *own)))
        yield around
    for child in module.children():
        yield from _nested(child, outside, around)


def _in_pages(blocks: Iterable[HeldBlock], page: int) -> int:
    return sum(-(-block.bytes // page) * page for block in blocks)
