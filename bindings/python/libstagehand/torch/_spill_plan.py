"""Carrying out a plan: what of a step's saved tensors is kept, moved, or computed again, by their places in the step.

One of the first steps is recorded. Its cheap results are computed again, and tensors leave by the watermarks. Then the
library plans, and the next steps carry the plan out. On a GPU the first of them are compared with the peak. A step that
saves other tensors goes on by the watermarks from there, and the step after it is recorded anew. A plan never changes a
result.
"""

# mypy: disable-error-code="import-not-found,misc,no-untyped-call,unused-ignore"
from __future__ import annotations

import logging
import threading
from typing import Any

import torch

from .._activations import Activation, ActivationPlan, plan_activations
from .._errors import Error
from .._generated import Fate
from .._native import lib
from ._registry import loaded_bytes
from ._spill_clock import Clock, speeds_of
from ._spill_config import margin_of
from ._spill_device import SpilledDevice
from ._spill_recompute import Made, Part, Recompute, Recomputed
from ._spill_saved import Saved

_log = logging.getLogger("libstagehand.torch")
_FLAGS = {None: 0, Fate.KEEP: lib.SH_SPILL_KEEP, Fate.SPILL: lib.SH_SPILL_NOW, Fate.RECOMPUTE: 0}
_LAUNCH_NS = 10_000  # of an operation that runs again, besides its memory traffic
# A step of many operations does not read memory as fast as one large copy does.
_TRAFFIC = 0.7
# Copies of single tensors, beside computing, are not as fast as one large copy alone.
_COPIES = 0.85
# The steps that carry a plan out and are compared with the peak.
_CHECKS = 6
# The most of the link that streamed weights take in a plan. Copies divide the link, so that some is always left.
_MOST_WEIGHTS = 0.75
# The stream waits for copies where memory is short, so a plan has no other bound for the copies under way.
_IN_FLIGHT = 1 << 40

Signature = tuple[Any, ...]


class _Storage:
    """A storage that a step has saved. Several saved tensors may be views of it."""

    def __init__(self, place: int, mark: int, bytes: int, work: int | None = None) -> None:
        self.place = place  # the first place in the step that saves it
        self.bytes = bytes
        self.produced = mark
        self.uses: list[int] = []
        self.work_bytes = work  # memory traffic of computing it again
        self.operations = 1
        self.inputs: list[Any] = []  # keys of the storages that it is computed from
        self.copies: list[Any] = []  # keys of copies that are saved only for it
        self.users: list[Any] = []  # of a copy: what is computed from it


class _Recording:
    """One step: what it saves when, and when it uses it."""

    def __init__(self, on: SpilledDevice) -> None:
        self.clock = Clock(on.device)
        self._name = on.spiller.device.name
        self._loaded = loaded_bytes(self._name)
        self.weights = 0  # bytes of streamed weights that the step has loaded
        self.start = self.clock.mark(True)
        self.signatures: list[Signature] = []
        self.keys: list[Any] = []  # the storage of each place
        self.arguments: list[list[Any]] = []  # of each place: the keys of the copies that were saved for it
        self.storages: dict[Any, _Storage] = {}
        self.others: list[tuple[int, int]] = []
        # Memory in use at each tensor that is saved or used, and the most until the next one.
        self.in_use: list[int] = []
        self.most: list[int] = []
        self.forward_end = -1
        self.end = -1
        self.whole = True  # one forward, and one backward after it

    def ends(self) -> None:
        self.end = self.clock.mark(True)
        self.weights = max(0, loaded_bytes(self._name) - self._loaded)

    def add(self, place: int, mark: int, packed: Saved | Recomputed) -> None:
        key = _key(packed)
        self.keys.append(key)
        if key in self.storages:
            return
        if type(packed) is Saved:
            self.storages[key] = _Storage(place, mark, packed.contents.bytes)
            return
        made: Made = packed.made  # type: ignore[union-attr]
        storage = self.storages[key] = _Storage(place, mark, made.bytes, made.work_bytes)
        storage.inputs, storage.operations = _inputs(made)
        storage.copies = list(self.arguments[place])
        for copy in storage.copies:
            self.storages[copy].users.append(key)

    def plan(self, peak: int, device: torch.device) -> tuple[dict[Any, Fate], ActivationPlan]:
        """Asks the library what to do with each storage."""
        times, speeds = self.clock.times(), speeds_of(device)
        ordered = sorted(self.storages.items(), key=lambda one: one[1].produced)
        index = {key: number for number, (key, _) in enumerate(ordered)}
        end = times[self.end]
        activations = []
        for key, one in ordered:
            uses = one.uses or [use for user in one.users for use in self.storages[user].uses]
            # Memory is free when the work after the last use is over.
            first = max(times[min(uses)] if uses else end, times[self.forward_end])
            last = times[min(max(uses) + 1, len(times) - 1)] if uses else end
            recompute = None
            if one.work_bytes is not None:
                traffic = one.work_bytes * 1_000_000_000 / (speeds.within * 2 * _TRAFFIC)
                recompute = int(traffic) + _LAUNCH_NS * one.operations
            activations.append(
                Activation(
                    # A copy stays or leaves, and the result beyond its bytes is what can be saved.
                    max(1, one.bytes - sum(self.storages[copy].bytes for copy in one.copies)),
                    times[one.produced],
                    first,
                    max(first, last),
                    recompute_ns=recompute,
                    inputs=sorted({index[other] for other in one.inputs if index.get(other, len(index)) < index[key]}),
                )
            )
        end = max(end, *(one.last_use_ns for one in activations))
        plan = plan_activations(
            activations,
            forward_end_ns=times[self.forward_end],
            end_ns=end,
            target_peak_bytes=max(1, peak - margin_of(peak)),
            others=[(times[mark], bytes) for mark, bytes in self.others],
            to_host_bytes_per_second=int(speeds.to_host * _COPIES),
            to_device_bytes_per_second=int(speeds.to_device * _COPIES),
            other_to_device_bytes_per_second=min(
                self.weights * 1_000_000_000 // max(1, end), int(speeds.to_device * _COPIES * _MOST_WEIGHTS)
            ),
            to_host_bytes=_IN_FLIGHT,
        )
        return {key: fate for (key, _), fate in zip(ordered, plan.fates)}, plan


def _key(packed: Saved | Recomputed) -> Any:
    return packed.contents.key if type(packed) is Saved else ("made", packed.made.number)  # type: ignore[union-attr]


def _inputs(made: Made) -> tuple[list[Any], int]:
    """Returns the keys of the storages that a result is computed from, and the number of operations."""
    keys: list[Any] = []
    operations = 1
    parts = [one for value in made.arguments for one in (value if type(value) is list else [value])]
    for part in parts:
        if type(part) is not Part:
            continue
        if type(part.packed) is Saved:
            keys.append(_key(part.packed))
        elif type(part.packed) is Made:
            if part.packed.saved:
                keys.append(("made", part.packed.number))
            else:
                inner, more = _inputs(part.packed)
                keys, operations = keys + inner, operations + more
    return keys, operations


class _Fates:
    """A plan by the places of a step."""

    __slots__ = ("signatures", "saved", "arguments", "coming", "coming_back")

    def __init__(self, recording: _Recording, fates: dict[Any, Fate]) -> None:
        self.signatures = list(recording.signatures)
        keys, arguments = list(recording.keys), list(recording.arguments)
        if not len(self.signatures) == len(keys) == len(arguments) or not fates.keys() >= set(keys):
            raise RuntimeError("a thread was still saving a tensor in it")
        self.saved = [fates[key] for key in keys]
        self.coming, self.coming_back = foreseen(recording.in_use, recording.most, self.saved)
        self.arguments = [[fates[key] for key in of if key in fates] for of in arguments]


def foreseen(in_use: list[int], most: list[int], fates: list[Fate]) -> tuple[list[int], int]:
    """Returns how much more memory than at each saved tensor is used until the library hears of the next one, and the
    most that nodes of the backward take for themselves. `in_use` is the use at each place of a recorded step, and
    `most` the highest use from there to the next place. Both are empty where no allocator counts.
    """
    coming = [0] * len(fates)
    if len(in_use) < len(fates):
        return coming, 0
    for place in range(len(fates)):
        after = place
        while after + 1 < len(fates) and fates[after + 1] == Fate.RECOMPUTE:  # the library does not hear of these
            after += 1
        coming[place] = max(0, *(one - in_use[place] for one in most[place : after + 1]), 0)
    backward = [one - before for one, before in zip(most[len(fates) :], in_use[len(fates) :])]
    return coming, max(0, *backward, 0)


class Planner:
    """What a step's saved tensors become, on one device."""

    def __init__(self, on: SpilledDevice, recompute: Recompute | None, peak: int) -> None:
        self._on = on
        self._recompute = recompute
        self._peak = peak
        self._fates: _Fates | None = None  # of the plan in force
        self._recording: _Recording | None = None
        self._place = 0
        self._argument = 0
        self._mark = 0
        self._thread = 0  # the one that begins the step
        self._several = False  # whether another thread has saved tensors in the same step; there is no plan then
        self._lock = threading.RLock()
        self._follows = False  # whether this step carries the plan out
        self._warm = on.device.type != "cuda"  # the first step on a GPU also loads kernels, which takes its time
        self._planned_from: _Recording | None = None
        self._checks = 0  # steps that are still compared with the peak
        self._measured: int | None = None  # the peak of this step
        # Memory that the plan leaves free, because a step has used more than planned. May be negative.
        self._reserve = 0
        self.plan: ActivationPlan | None = None
        self.plans = 0

    # Steps.

    def begin(self) -> None:
        with self._lock:
            self._place = 0
            self._thread = threading.get_ident()
            fates = self._fates
            self._follows = fates is not None
            self._on.coming, self._on.coming_back = 0, 0 if fates is None else fates.coming_back
            records = self._warm and not self._follows and not self._several
            self._recording = _Recording(self._on) if records else None
            self._warm = True
            self._measured = None
            if self._recording is not None or self._checks:
                self._on.peak()  # what was before does not count

    def backward_ends(self) -> None:
        with self._lock:
            self._backward_ends()

    def _backward_ends(self) -> None:
        recording = self._recording
        if recording is not None and recording.forward_end >= 0:
            recording.ends()
        if self._follows and self._checks:
            self._measured = self._on.peak()

    def end(self) -> None:
        with self._lock:
            self._end()

    def _end(self) -> None:
        recording, self._recording = self._recording, None
        if recording is None:
            fates = self._fates
            if self._follows and (fates is None or self._place != len(fates.signatures)):
                self._forget(f"the step has saved {self._place} tensors")
            elif self._follows and self._measured is not None:
                self._check(self._measured)
            return
        if not recording.whole or recording.end < 0 or not recording.storages:
            return
        self._checks, self._reserve = (_CHECKS, 0) if self._on.device.type == "cuda" else (0, 0)
        self._plan(recording)

    def _check(self, measured: int) -> None:
        """Plans anew if a step that carried the plan out used more or less memory than it may: the recorded step was
        another one than those that follow, and its simulation leaves things out.
        """
        off = measured - self._peak
        self._checks -= 1
        recording = self._planned_from
        if off > 0 or (off < -2 * margin_of(self._peak) and self._checks):
            _log.info("a step used %d bytes, and peak=%d: its saved tensors are planned anew", measured, self._peak)
            # Less is corrected by half, so that the peaks of the next steps come from below. More is corrected by more
            # than it is: a tensor stays or goes as a whole, and a small correction changes nothing.
            self._reserve += off + margin_of(self._peak) // 2 if off > 0 else off // 2
            if recording is not None:
                self._plan(recording)
        if not self._checks:
            self._planned_from = None

    def _plan(self, recording: _Recording) -> None:
        try:
            fates, self.plan = recording.plan(max(1, self._peak - self._reserve), self._on.device)
            carried = _Fates(recording, fates)
        except (Error, RuntimeError) as error:
            _log.warning("the saved tensors of this step cannot be planned, and leave by the watermarks: %s", error)
            return
        self._fates = carried
        self._planned_from = recording if self._checks else None
        self.plans += 1
        if not self.plan.meets_target:
            _log.warning(
                "peak=%d cannot be met: the plan of the saved tensors has a peak of %d bytes",
                self._peak,
                self.plan.peak_bytes,
            )

    def _forget(self, why: str) -> None:
        """Gives up a plan that the program does not follow. The next step is recorded."""
        if self._fates is not None:
            _log.info("the plan of saved tensors is given up: %s", why)
        self._fates = self.plan = self._planned_from = None
        self._follows, self._checks = False, 0
        self._on.coming = self._on.coming_back = 0

    # Tensors.

    def save(self, tensor: torch.Tensor) -> Any:
        with self._lock:
            return self._save(tensor)

    def _save(self, tensor: torch.Tensor) -> Any:
        if threading.get_ident() != self._thread or self._several:
            return self._save_beside(tensor)
        place, self._place, self._argument = self._place, self._place + 1, 0
        operation = None if self._recompute is None else self._recompute.operation(tensor)
        signature = (tensor.size(), tensor.stride(), tensor.dtype, operation)
        fate = self._fate(place, signature)
        recording = self._recording
        if recording is not None:
            self._mark = self._before(recording)
            recording.whole &= recording.forward_end < 0
            recording.signatures.append(signature)
            recording.arguments.append([])
        if fate is not None and self._fates is not None:
            self._on.coming = self._fates.coming[place]
        packed: Any = None
        if self._recompute is not None and (fate is None or fate == Fate.RECOMPUTE):
            packed = self._recompute.pack(tensor)
        if packed is None:
            if fate == Fate.RECOMPUTE:
                self._forget(f"saved tensor {place}, a result of {operation}, cannot be computed again")
                fate = None
            packed = self._saved(tensor, fate)
        self._wait()
        if recording is not None:
            recording.add(place, self._mark, packed)
            recording.clock.mark(False)
        return packed

    def _saved(self, tensor: torch.Tensor, fate: Fate | None) -> Saved:
        saved = self._on.save(tensor, _FLAGS[fate])
        if self._recompute is not None:
            self._recompute.note(saved, tensor)
        return saved

    def _save_beside(self, tensor: torch.Tensor) -> Any:
        """Saves a tensor of another thread than the one that began the step. Such steps are not planned any more."""
        self._several = True
        self._recording = None
        self._forget("another thread saves tensors")
        packed = None if self._recompute is None else self._recompute.pack(tensor)
        return self._saved(tensor, None) if packed is None else packed

    def _fate(self, place: int, signature: Signature) -> Fate | None:
        fates = self._fates
        if not self._follows or fates is None:
            return None
        if place < len(fates.signatures) and fates.signatures[place] == signature:
            return fates.saved[place]
        self._forget(f"saved tensor {place} is another one: {signature}")
        return None

    def save_argument(self, tensor: torch.Tensor) -> Saved:
        """Saves a copy that a result is computed from."""
        number, self._argument = self._argument, self._argument + 1
        fate = None
        if self._several:
            return self._on.save(tensor)
        fates, place = self._fates, self._place - 1
        if self._follows and fates is not None and place < len(fates.arguments):
            known = fates.arguments[place]
            fate = known[number] if number < len(known) else None
        saved = self._on.save(tensor, _FLAGS[fate])
        recording = self._recording
        if recording is not None:
            key = _key(saved)
            recording.arguments[-1].append(key)
            recording.storages[key] = _Storage(self._place - 1, self._mark, tensor.nbytes)
        return saved

    def _wait(self) -> None:
        """Has the stream wait for the copies if more than the peak is in use, so that their memory is free."""
        # The library waits where a plan has tensors leave. To ask what is in use takes time.
        if not self._follows and self._on.in_use() > self._peak:
            self._on.collect(self._on.stream(), all=True)

    def _before(self, recording: _Recording) -> int:
        """Notes the time, and the memory that was in use besides saved tensors since the mark before."""
        mark = recording.clock.mark(True)
        others = self._on.others()
        if others is not None:
            recording.others.append((mark - 1, others.bytes))
            if recording.in_use:
                recording.most.append(others.most)
            recording.in_use.append(others.in_use)
        return mark

    def unpacks(self, packed: Saved | Recomputed) -> None:
        """A node is about to get a saved tensor."""
        if self._recording is not None:
            with self._lock:
                self._unpacks(packed)

    def _unpacks(self, packed: Saved | Recomputed) -> None:
        recording = self._recording
        if recording is None:
            return
        mark = self._before(recording)
        if recording.forward_end < 0:
            recording.forward_end = mark
        recording.end = mark
        found = recording.storages.get(_key(packed))
        if found is not None:
            found.uses.append(mark)

    def unpacked(self) -> None:
        recording = self._recording
        if recording is not None:
            with self._lock:
                recording.clock.mark(False)
