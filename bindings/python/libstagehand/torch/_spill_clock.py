"""When a step reaches its saved tensors, in a time that leaves out the waits for copies and what is computed again; and
how fast a device copies.
"""

# mypy: disable-error-code="import-not-found,misc,no-untyped-call,unused-ignore"
from __future__ import annotations

import time
from typing import Any

import torch

_PROBE = 64 << 20
_PROBE_HOST = 4 << 20


class Clock:
    """Marks in the order of a device's work. The time between two marks counts, or not."""

    def __init__(self, device: torch.device) -> None:
        self._device = device
        self._cuda = device.type == "cuda"
        self._marks: list[Any] = []
        self._counts: list[bool] = []

    def mark(self, counts: bool) -> int:
        """Marks the end of the work that is queued now. `counts` is whether the time since the mark before counts.
        Returns the number of the mark.
        """
        mark: Any
        if self._cuda:
            mark = torch.cuda.Event(enable_timing=True)
            mark.record(torch.cuda.current_stream(self._device))
        else:
            mark = time.perf_counter_ns()
        self._marks.append(mark)
        self._counts.append(counts)
        return len(self._marks) - 1

    def times(self) -> list[int]:
        """Returns the times of the marks in nanoseconds. Waits for the work before the last one."""
        if self._cuda and self._marks:
            self._marks[-1].synchronize()
        now, found = 0, [0]
        for before, after, counts in zip(self._marks, self._marks[1:], self._counts[1:]):
            if counts:
                took = before.elapsed_time(after) * 1e6 if self._cuda else after - before
                now += max(0, int(took))
            found.append(now)
        return found


class Speeds:
    """Bytes per second of a device: to the host, from the host, and within the device."""

    def __init__(self, to_host: int, to_device: int, within: int) -> None:
        self.to_host = to_host
        self.to_device = to_device
        self.within = within


_known: dict[torch.device, Speeds] = {}


def speeds_of(device: torch.device) -> Speeds:
    """Measures a device once. It takes a few milliseconds, and 128 MiB of its memory meanwhile."""
    known = _known.get(device)
    if known is None:
        cuda = device.type == "cuda"
        bytes = _PROBE if cuda else _PROBE_HOST
        here = torch.empty(bytes, dtype=torch.uint8, device=device)
        there = torch.empty(bytes, dtype=torch.uint8, pin_memory=cuda)
        other = torch.empty_like(here)
        pairs = ((there, here), (here, there), (other, here))
        known = _known[device] = Speeds(*(_speed(to, source) for to, source in pairs))
    return known


def _speed(to: torch.Tensor, source: torch.Tensor) -> int:
    device = source.device if source.is_cuda else to.device
    best = 1 << 62
    for _ in range(4):
        clock = Clock(device)
        clock.mark(True)
        to.copy_(source, non_blocking=True)
        clock.mark(True)
        best = min(best, max(1, clock.times()[-1]))
    return max(1, int(to.nbytes) * 1_000_000_000 // best)
