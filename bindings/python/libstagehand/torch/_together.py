"""What a model holds at once: a module holds the blocks of its own weights while the modules in it run."""

# mypy: disable-error-code="import-not-found,misc,no-untyped-call,unused-ignore"
from __future__ import annotations

from collections.abc import Iterable, Iterator
from typing import TypeAlias

from torch import nn

from ._division import Unit
from ._weights import HeldBlock

Units: TypeAlias = "dict[Unit, list[HeldBlock]]"
"""The units of a model, each with the blocks that it holds."""

# The library packs ordered blocks of fewer pages into units of at most so many pages, and of at most a part of the
# budget.
_SMALL_PAGES, _PACK_PAGES, _PACKED_PART = 2, 8, 8


def most_held(units: Units) -> int:
    """Returns the most ordered blocks that are held at the same time."""
    return max([1, *(sum(not block.unordered for block in blocks) for blocks in units.values())])


def unordered_bytes(root: nn.Module, units: Units, page: int) -> int:
    """Returns the `unordered_bytes` of the runtime: the most bytes of unordered blocks that are held at the same time.
    0 if the largest of them alone needs as much, because the library then decides better.
    """
    nested = _most_nested(root, units, page)
    return nested if nested > _largest_unordered(units, page) else 0


def least_bytes(root: nn.Module, units: Units, max_held: int, budget: int, page: int) -> int:
    """Returns the smallest budget with which the library streams these units. It may be less by some pages if blocks
    share pages.
    """
    packed = min(max(budget // page // _PACKED_PART, 1), _PACK_PAGES) * page
    ordered = {block: None for blocks in units.values() for block in blocks if not block.unordered}
    sizes = (
        max(packed, in_pages([block], page)) if block.bytes < _SMALL_PAGES * page else in_pages([block], page)
        for block in ordered
    )
    return sum(sorted(sizes, reverse=True)[:max_held]) + _most_nested(root, units, page)


def _largest_unordered(units: Units, page: int) -> int:
    return max((in_pages([block], page) for blocks in units.values() for block in blocks if block.unordered), default=0)


def _most_nested(root: nn.Module, units: Units, page: int) -> int:
    outside = {unit.module: [block for block in blocks if block.unordered] for unit, blocks in units.items()}
    return max((in_pages(blocks, page) for blocks in _nested(root, outside, ())), default=0)


def _nested(
    module: nn.Module, outside: dict[nn.Module, list[HeldBlock]], around: tuple[HeldBlock, ...]
) -> Iterator[tuple[HeldBlock, ...]]:
    """Yields the unordered blocks that are held while a module runs, for each module that holds such blocks. `around`
    are those of the modules around it.
    """
    if own := outside.get(module):
        around = tuple(dict.fromkeys((*around, *own)))
        yield around
    for child in module.children():
        yield from _nested(child, outside, around)


def in_pages(blocks: Iterable[HeldBlock], page: int) -> int:
    """Returns the bytes of the pages that these blocks take on the device, if none shares a page."""
    return sum(-(-block.bytes // page) * page for block in blocks)
