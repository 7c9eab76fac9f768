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
_BESIDE = re.compile(r", beside (?:[^()]*\()?(\d+) bytes\)? for blocks ")
_TOGETHER = re.compile(r"all runtimes of the device need (?:[^()]*\()?(\d+) bytes")
# The library's word for a model.
_MODEL = re.compile(r"runtime \"(.*?)\"")
_AS_GUEST = "as a guest with"
_OWN_BUDGET = "its max_bytes"
# These texts are about a block that does not fit beside others. Other texts of the same statuses are not.
_NO_ROOM = ("are needed, but are not free", "needs memory that", "are there for blocks outside the order")
_OTHER_REMEDIES = "make smaller blocks by blocks=, or keep weights on the device, outside the budget, by outside="


class BudgetErrors(Exceptions):
    """The errors of one model's calls. Errors about a budget that is too small get another text. Other errors about
    memory only name models instead of runtimes.
    """

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
            text = self._text(error, block) or _MODEL.sub(r"the model '\1'", error.text).replace("runtimes", "models")
            told = BudgetError(error.status, text)
        raise told

    def _text(self, error: BudgetError, block: int) -> str | None:
        if _AS_GUEST in error.text:
            return None  # the bytes that as_guest() was given are too few, not a budget
        if error.status == Status.ERROR_BUDGET and (found := _SMALLEST.search(error.text)):
            least = int(found[1])
            of = f", which the block {found[2]!r} asks for" if found[2] else ""
            if beside := _BESIDE.search(error.text):
                of += f", beside {size_text(int(beside[1]))} of weights that are used with it"
            if together := _TOGETHER.search(error.text):
                of += f", and all models of the device together need {size_text(int(together[1]))}"
            needs = f"the model needs at least {size_text(least)}{of}"
            if _OWN_BUDGET in error.text:
                return self._own_too_small(needs)
            others = _MODEL.findall(error.text)[1:]  # the first is this model, which may have the same name as others
            return self._devices_too_small(needs, least, others)
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
        needs = f"the block {wanted.name!r} has to be on the device{f' together with {names}' if names else ''}"
        limit = self._budget_of_device()
        own = self._budget is not None and (limit is None or self._budget <= limit)
        if self._budget is not None and own:
            limit = self._budget
        if limit is None or least > limit:  # otherwise the memory is there, but not in one piece
            needs += f", so the model needs at least {size_text(least)}"
        return self._own_too_small(needs) if own else self._devices_too_small(needs, least, [])

    def _on_device(self, block: HeldBlock) -> int:
        return -(-block.bytes // self._page) * self._page

    def _own_too_small(self, needs: str) -> str:
        budget = budget_text(self._given, self._budget or 0)
        return f"{self._model} does not fit into {budget}: {needs}. Give a larger budget=, {_OTHER_REMEDIES}"

    def _devices_too_small(self, needs: str, least: int, others: list[str]) -> str:
        """Tells of the budget of the device, which other models may share."""
        budget, bytes = f"the budget of {self._device.name}", self._budget_of_device()
        if bytes is not None:
            budget += f", which is {size_text(bytes)}"
        if others and (bytes is None or bytes >= least):
            budget = f"what other models ({', '.join(map(repr, others))}) leave of {budget}"
        given = "" if self._given is None else f", though budget={self._given!r} was given"
        return (
            f"{self._model} does not fit into {budget}{given}: {needs}. "
            f"Give a libstagehand.Device with a larger budget_bytes=, {_OTHER_REMEDIES}"
        )

    def _budget_of_device(self) -> int | None:
        try:
            return self._device.memory().budget_bytes
        except UsageError:  # the caller has closed the Device, and the model keeps the device open
            return None
