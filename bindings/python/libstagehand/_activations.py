"""Plans for what a training step saves: what stays on the device, what is spilled, and what is computed again."""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from typing import Any

from ._errors import check
from ._generated import ActivationFigures, Fate
from ._native import ffi, lib
from ._structs import result, struct


@dataclass(frozen=True)
class Activation:
    """A storage that the step saves for its backward. Times are nanoseconds since the step began, in a step that
    neither spills nor computes anything again.
    """

    bytes: int
    produced_ns: int
    """The storage takes memory from here on, and its copy to the host can begin."""
    first_use_ns: int
    """Beginning of its first use in the backward."""
    last_use_ns: int
    """End of its last use in the backward, which frees the memory."""
    released_ns: int = 0
    """End of its last use in the forward. 0: produced_ns."""
    recompute_ns: int | None = None
    """How long it takes to compute the storage again. None: it is never computed again."""
    inputs: Sequence[int] = ()
    """The places, in the list of all storages, of those that it is computed from. The others that it is computed from
    are on the device anyway.
    """


@dataclass(frozen=True)
class ActivationPlan(ActivationFigures):
    """A plan for saved storages, its cost by a simulation of the step, and what no choice can beat."""

    fates: tuple[Fate, ...]
    """One for each storage."""


@dataclass(frozen=True)
class SimulatedStep(ActivationFigures):
    """What a choice of fates costs. There are no bounds: least_step_ns and least_peak_bytes are 0."""

    memory: tuple[tuple[int, int], ...]
    """Pairs of a time and the bytes in use from then on."""


def plan_activations(
    activations: Iterable[Activation],
    *,
    forward_end_ns: int,
    end_ns: int,
    target_peak_bytes: int = 0,
    target_step_ns: int = 0,
    others: Iterable[tuple[int, int]] = (),
    to_host_bytes_per_second: int = 0,
    to_device_bytes_per_second: int = 0,
    other_to_host_bytes_per_second: int = 0,
    other_to_device_bytes_per_second: int = 0,
    copy_latency_ns: int = 0,
    to_host_bytes: int = 0,
    to_device_bytes: int = 0,
    least_bytes: int = 0,
) -> ActivationPlan:
    """Chooses for each saved storage of a recorded step whether it is kept, spilled or computed again. One of the two
    targets is given. `others` are pairs of a time and the bytes in use besides the storages from then on. The C header
    activations.h describes the arguments, and says what the figures of the plan mean.
    """
    saved = list(activations)
    step, kept = _step(
        saved,
        others,
        forward_end_ns=forward_end_ns,
        end_ns=end_ns,
        target_peak_bytes=target_peak_bytes,
        target_step_ns=target_step_ns,
        to_host_bytes_per_second=to_host_bytes_per_second,
        to_device_bytes_per_second=to_device_bytes_per_second,
        other_to_host_bytes_per_second=other_to_host_bytes_per_second,
        other_to_device_bytes_per_second=other_to_device_bytes_per_second,
        copy_latency_ns=copy_latency_ns,
        to_host_bytes=to_host_bytes,
        to_device_bytes=to_device_bytes,
        least_bytes=least_bytes,
    )
    fates, plan = ffi.new("uint32_t[]", len(saved)), struct("activation_plan")
    check(lib.sh_plan_activations(step, fates, plan))
    del kept  # the call has read what `step` points to
    return ActivationPlan(**vars(result(ActivationFigures, plan)), fates=tuple(map(Fate, fates)))


def simulate_activations(
    activations: Iterable[Activation],
    fates: Iterable[Fate] | None = None,
    *,
    forward_end_ns: int,
    end_ns: int,
    target_peak_bytes: int = 0,
    others: Iterable[tuple[int, int]] = (),
    to_host_bytes_per_second: int = 0,
    to_device_bytes_per_second: int = 0,
    other_to_host_bytes_per_second: int = 0,
    other_to_device_bytes_per_second: int = 0,
    copy_latency_ns: int = 0,
    to_host_bytes: int = 0,
    to_device_bytes: int = 0,
    least_bytes: int = 0,
) -> SimulatedStep:
    """Simulates a step in which each saved storage has a given fate. Without `fates` everything is kept. The arguments
    are those of plan_activations(). More memory than `target_peak_bytes` makes the compute and the restores wait.
    """
    saved = list(activations)
    step, kept = _step(
        saved,
        others,
        forward_end_ns=forward_end_ns,
        end_ns=end_ns,
        target_peak_bytes=target_peak_bytes,
        to_host_bytes_per_second=to_host_bytes_per_second,
        to_device_bytes_per_second=to_device_bytes_per_second,
        other_to_host_bytes_per_second=other_to_host_bytes_per_second,
        other_to_device_bytes_per_second=other_to_device_bytes_per_second,
        copy_latency_ns=copy_latency_ns,
        to_host_bytes=to_host_bytes,
        to_device_bytes=to_device_bytes,
        least_bytes=least_bytes,
    )
    chosen = ffi.NULL
    if fates is not None:
        chosen = ffi.new("uint32_t[]", [int(fate) for fate in fates])
        if len(chosen) != len(saved):
            raise ValueError(f"{len(chosen)} fates do not fit {len(saved)} storages")
    capacity = 8 * len(saved) + 2 * int(step.other_count)
    points, count, figures = ffi.new("sh_memory_point[]", capacity), ffi.new("uint64_t *"), struct("activation_plan")
    for point in points:
        point.struct_size = ffi.sizeof("sh_memory_point")
    check(lib.sh_simulate_activations(step, chosen, figures, points if capacity else ffi.NULL, capacity, count))
    del kept  # the call has read what `step` points to
    memory = tuple((int(point.ns), int(point.bytes)) for point in points[0 : min(capacity, count[0])])
    return SimulatedStep(**vars(result(ActivationFigures, figures)), memory=memory)


def _step(saved: Sequence[Activation], others: Iterable[tuple[int, int]], **fields: int) -> tuple[Any, object]:
    """Returns a step for the C interface, and what must live as long as it."""
    step = struct("training_step")
    storages, inputs = _storages(saved)
    points = list(others)
    memory = ffi.new("sh_memory_point[]", len(points))
    for point, (ns, size) in zip(memory, points):
        point.struct_size, point.ns, point.bytes = ffi.sizeof("sh_memory_point"), ns, size
    step.activations, step.activation_count = storages if saved else ffi.NULL, len(saved)
    step.others, step.other_count = memory if points else ffi.NULL, len(points)
    for name, value in fields.items():
        setattr(step, name, value)
    return step, (storages, inputs, memory)


def _storages(saved: Sequence[Activation]) -> tuple[Any, list[Any]]:
    """Returns the storages for the C interface, and the arrays that they point to."""
    storages = ffi.new("sh_activation[]", len(saved))
    kept: list[Any] = []
    for to, activation in zip(storages, saved):
        to.struct_size, to.bytes = ffi.sizeof("sh_activation"), activation.bytes
        to.produced_ns, to.released_ns = activation.produced_ns, activation.released_ns
        to.first_use_ns, to.last_use_ns = activation.first_use_ns, activation.last_use_ns
        if activation.recompute_ns is not None:
            to.flags, to.recompute_ns = lib.SH_ACTIVATION_CHEAP, activation.recompute_ns
        if activation.inputs:
            kept.append(ffi.new("uint32_t[]", list(activation.inputs)))
            to.inputs, to.input_count = kept[-1], len(activation.inputs)
    return storages, kept
