"""Tells of a budget that is too small in the words of stream(): the budget that was given, the budget that the model
needs, and the remedies.
"""

# mypy: disable-error-code="import-not-found,misc,no-untyped-call,unused-ignore"
from __future__ import annotations

import re

from .._callbacks import Exceptions
from .._device import Device
from .._errors import BudgetError, UsageError
from .._generated import Status
from ._budget import Budget, budget_text, size_text
from ._weights import HeldBlock

# The library's own text has the smallest budget, and the block that asks for it.
_SMALLEST = re.compile(r"the smallest that works is (?:[^()]*\()?(\d+) bytes\)?(?:, asked for by block \"(.*?)\" of )?")
# These texts are about a block that does not fit beside others. Other texts of the same statuses are not.
_NO_ROOM = ("are needed, but are not free", "needs memory that", "are there for blocks outside the order")


class BudgetErrors(Exceptions):
    """The errors of one model's calls. Errors about the budget get another text, all others stay as they are."""

    def __init__(
        self, model: str, device: Device, given: Budget | None, budget: int | None, blocks: list[HeldBlock]
    ) -> None:
        super().__init__()
        self._model = model
        self._device = device
        self._given = given
        self._budget = budget
        self._blocks = blocks
        self._page = device.memory().page_bytes

    def check(self, status: int, block: int = 0) -> int:
        try:
            return super().check(status, block)
        except BudgetError as error:
            text = self._text(error, block)
            if text is None:
                raise
            told = BudgetError(error.status, text)
        raise told

    def _text(self, error: BudgetError, block: int) -> str | None:
        if error.status == Status.ERROR_BUDGET and (found := _SMALLEST.search(error.text)):
            least = int(found[1])
            of = f", which the block {found[2]!r} asks for" if found[2] else ""
            return self._too_small(least, f"the model needs at least {size_text(least)}{of}")
        if error.status in (Status.ERROR_BUDGET, Status.ERROR_HELD) and any(text in error.text for text in _NO_ROOM):
            return self._no_room(block)
        return None

    def _no_room(self, id: int) -> str | None:
        """Returns the text for a block that does not fit beside the blocks that are in use."""
        wanted = next((one for one in self._blocks if getattr(one.block, "id", None) == id), None)
        if wanted is None:
            return None
        in_use = [one for one in self._blocks if one.held() and one is not wanted]
        least = self._on_device(wanted) + sum(map(self._on_device, in_use))
        names = ", ".join(repr(one.name) for one in in_use)
        beside = f" together with {names}" if names else ""
        return self._too_small(
            least,
            f"the block {wanted.name!r} has to be on the device{beside}, "
            f"so the model needs at least {size_text(least)}",
        )

    def _on_device(self, block: HeldBlock) -> int:
        return -(-block.bytes // self._page) * self._page

    def _too_small(self, least: int, needs: str) -> str:
        """Says which budget is too small: that of the model, or that of the device, which other models may share."""
        if self._budget is not None and self._budget < least:
            budget, larger = budget_text(self._given, self._budget), "a larger budget="
        else:
            budget, larger = self._of_device(least), "a libstagehand.Device with a larger budget_bytes="
        return (
            f"{self._model} does not fit into {budget}: {needs}. Give {larger}, make smaller blocks by blocks=, "
            "or keep weights on the device, outside the budget, by outside="
        )

    def _of_device(self, least: int) -> str:
        given = "" if self._given is None else f", though budget={self._given!r} was given"
        text = f"the budget of {self._device.name}"
        try:
            bytes = self._device.memory().budget_bytes
        except UsageError:  # the caller has closed the Device, and the model keeps the device open
            return text + given
        rest = "" if bytes < least else "what other models leave of "
        return f"{rest}{text}, which is {size_text(bytes)}{given}"
