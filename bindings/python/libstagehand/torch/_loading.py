"""load_state_dict() into the sources of streamed weights."""

# mypy: disable-error-code="import-not-found,misc,no-untyped-call,unused-ignore"
from __future__ import annotations

from collections.abc import Iterable
from contextlib import ExitStack
from typing import Any

import torch
from torch import nn

from .._runtime import Block, Runtime
from ._calls import Calls
from ._hooks import Hook
from ._memory import strided
from ._movable import changed_elsewhere
from ._weights import Entry, HeldBlock, Place


class Updates:
    """The blocks whose sources are being written. They are counted, because a block may belong to several modules, and
    these are loaded one inside the other.
    """

    def __init__(self, runtime: Runtime, calls: Calls) -> None:
        self._runtime = runtime
        self._calls = calls
        self._open: dict[HeldBlock, tuple[int, ExitStack]] = {}

    def begin(self, block: HeldBlock) -> None:
        self._calls.check()
        count, scope = self._open.get(block, (0, ExitStack()))
        if not count:
            scope.enter_context(self._runtime.update_sources(_readers(block)))
        self._open[block] = count + 1, scope

    def end(self, block: HeldBlock) -> None:
        count, scope = self._open.pop(block)
        if count > 1:
            self._open[block] = count - 1, scope
        else:
            scope.close()

    def settle(self, entries: Iterable[Entry], places: Iterable[Place]) -> None:
        """Prepares a step: ends updates that an exception has left open, and has changed sources loaded again."""
        if self._open:
            loaded(entries, self)
            self.end_all()
        asked = [place for place in places if place.may_change()]
        if not asked:
            return
        overwritten = [place for place in asked if place.overwritten]
        for place in overwritten:
            place.overwritten = False
            place.note_version()
        changed = [place for place in asked if place.source_changed()]
        # Noted for all places before an error, and after the search, because places of a weight share tensors.
        for place in changed:
            place.note_source()
        self._load_anew(overwritten)
        _refuse_unseen(changed)
        for place in changed:
            if place.weight.block.trained != place.trained:
                raise RuntimeError(
                    f"{place.name} was changed in place, by a tensor that was read before steps of its optimizer. "
                    "The steps have overwritten that change: read the weight again before you change it"
                )
        self._load_anew(changed)
        _refuse_moved(changed)

    def _load_anew(self, places: list[Place]) -> None:
        blocks = {place.weight.block: None for place in places}
        packed = [block for block in blocks if any(weight.packed for weight in block.weights)]
        if packed:
            self._runtime.invalidate([block.block for block in packed])  # their sources are as they were
            blocks = {block: None for block in blocks if block not in packed}
        if blocks:
            with self._runtime.update_sources([reader for block in blocks for reader in _readers(block)]):
                pass

    def end_all(self) -> None:
        """Ends the updates that an exception has left open."""
        for block in list(self._open):
            _, scope = self._open.pop(block)
            scope.close()


def _readers(block: HeldBlock) -> list[Block]:
    return [block.block, *block.members]


def _refuse_moved(changed: Iterable[Place]) -> None:
    for place in changed:
        if any(tensor.is_moved() for tensor in place.weight.earlier):
            raise changed_elsewhere(place.name)


def refuse_lost(changed: Iterable[Place]) -> None:
    """Raises an error as streaming ends if tensors were changed whose changes the weights do not get."""
    places = list(changed)
    _refuse_unseen(places)
    _refuse_moved(places)


def _refuse_unseen(changed: Iterable[Place]) -> None:
    """Raises an error if tensors were changed from which a source cannot get the change."""
    for place in changed:
        weight = place.weight
        copied = weight.earlier and (weight.moved is not None or weight.copied is not None)
        if place.is_moved():
            raise changed_elsewhere(place.name)
        why = weight.fixed or ("streamed from a copy of its memory" if copied else "")
        if why:
            remedy = "Make the change before streaming" if weight.fixed else "Change the weight itself"
            raise RuntimeError(
                f"{place.name} is {why}. A tensor that was made from it was changed in place: steps do not see that "
                f"change. {remedy}"
            )


class LoadInto(Hook):
    """The hook before a module loads its own part of a state dict. It gives the module parameters over the sources."""

    __slots__ = ("entries", "updates")

    def __init__(self, entries: dict[str, Entry], updates: Updates) -> None:
        self.entries = entries
        self.updates = updates

    def __call__(self, module: nn.Module, state: Any, prefix: str, metadata: Any, *others: Any) -> None:
        entries = {key: entry for key, entry in self.entries.items() if entry.is_of(module, key)}
        for key, entry in entries.items():
            if prefix + key not in state:
                continue
            if metadata.get("assign_to_params_buffers"):
                raise RuntimeError(
                    f"{entry.name} is streamed: load_state_dict() can copy into it, "
                    "but cannot replace it by another tensor (assign=True)"
                )
            for place in entry.places:
                if place.weight.fixed:
                    raise RuntimeError(
                        f"{entry.name} is {place.weight.fixed}: "
                        "end streaming, and stream the model again with the other weights"
                    )
        for entry in entries.values():
            for place in entry.places:
                if not place.loading:
                    self.updates.begin(place.weight.block)
                    place.loading = True
                    with torch.inference_mode(place.inference):
                        place.put(strided(place.weight.source(), place.offset, place.original))
            if entry.tensor is not entry.original:
                entry.put(entry.host())


class LoadedInto(Hook):
    """The hook after a module has loaded its part. It gives the module its streamed parameters again."""

    __slots__ = ("entries", "updates")

    def __init__(self, entries: dict[str, Entry], updates: Updates) -> None:
        self.entries = entries
        self.updates = updates

    def __call__(self, module: nn.Module, incompatible: Any) -> None:
        loaded(self.entries.values(), self.updates)


def loaded(entries: Iterable[Entry], updates: Updates) -> None:
    for entry in entries:
        if entry.tensor is not entry.original:
            entry.put(entry.tensor)
        for place in entry.places:
            if place.loading:
                place.loading = False
                place.put_on_device()
                place.note_version()
                place.note_source()
                updates.end(place.weight.block)
    torch.clear_autocast_cache()
