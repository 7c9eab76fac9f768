"""spill_activations(): tensors that autograd saves leave the device, and come back in the backward."""

# mypy: disable-error-code="import-not-found,misc,no-untyped-call,unused-ignore"
from __future__ import annotations

import os
import weakref
from collections.abc import Iterator, Sequence
from contextlib import AbstractContextManager, contextmanager
from types import TracebackType

import torch
from torch import nn

from .._activations import ActivationPlan
from .._errors import UsageError
from .._generated import SpillerStats, Status
from .._spiller import Spiller
from ._devices import AnyDevice, device_of
from ._sharded import is_sharded, refuse_distributed
from ._spill_config import Config, Size, SpillOptions, bytes_of, options_of
from ._spill_device import SpilledDevice
from ._spill_gradients import OffloadedGradients
from ._spill_hooks import PackBeside, PackSpilled, pop, push
from ._spill_pending import Pending
from ._spill_plan import Planner
from ._spill_recompute import Recompute, RecomputeStats
from ._spill_steps import SpillSteps
from ._spill_tensors import storages_of
from ._uncompiled import uncompiled


class SpilledActivations:
    """What spill_activations() returns. The hooks are in force inside a `with` of this object, or of managed_forward().

    A backward may run inside the `with`, or later.
    """

    def __init__(
        self,
        model: nn.Module | None,
        devices: Sequence[AnyDevice],
        options: SpillOptions,
        least_bytes: int,
        recompute: bool | None = None,
        offload_gradients: bool = False,
    ) -> None:
        _run_uncompiled()
        self.model = model
        self._enabled = options.enabled
        self._steps = SpillSteps()
        self._devices: dict[torch.device, SpilledDevice] = {}
        self._telemetry: list[AbstractContextManager[None]] = []
        self._pending = Pending()
        self._pack = PackSpilled(self._devices, self._steps, self._pending)
        self._plans = bool(options.peak_bytes) and len(devices) == 1 and options.enabled
        if self._plans or options.recompute_below > 0 if recompute is None else recompute:
            self._pack.recompute = Recompute(
                self._pack.argument, self._pack.save_argument, self._pack.stream, options.recompute_below
            )
            self._steps.at_backward_end = self._pack.recompute.forget
        for number, name in enumerate(devices if options.enabled else ()):
            self._open(name, options, least_bytes, number)
        if self._enabled and not self._devices:
            raise ValueError("device= names no device")
        self._gradients: OffloadedGradients | None = None
        if offload_gradients and self._enabled:
            if model is None:
                raise ValueError("offload_gradients=True needs the model whose gradients leave")
            refuse_distributed(model)
            self._gradients = OffloadedGradients(model, set(self._devices))
            self._pack.gradients = self._gradients
            self._gradients.begin()
            weakref.finalize(self, self._gradients.end).atexit = False

    def _open(self, name: AnyDevice, options: SpillOptions, least_bytes: int, number: int) -> None:
        device, place, _ = device_of(name, None)
        if place in self._devices:
            raise ValueError(f"device= names {device.name} twice")
        spiller = Spiller(
            device,
            keep_bytes=options.keep_bytes,
            high_watermark_bytes=options.high_bytes,
            low_watermark_bytes=options.low_bytes,
            least_bytes=least_bytes,
            to_host_copies=options.to_host_copies,
            to_device_copies=options.to_device_copies,
            classes=options.classes,
            checksums=options.checksums,
            pack=options.pack,
        )
        if options.telemetry is not None:
            lines = spiller.telemetry(f"{options.telemetry}.{device.name}" if number else options.telemetry)
            lines.__enter__()
            self._telemetry.append(lines)
        opened = SpilledDevice(spiller, place, self._pending, counts_used=bool(options.high_bytes), least=least_bytes)
        self._devices[place] = opened
        self._steps.devices.append(opened)
        if self._plans:
            self._plan(Planner(opened, self._pack.recompute, options.peak_bytes))

    def _plan(self, planner: Planner) -> None:
        self._pack.planner = planner
        forget = self._steps.at_backward_end

        def backward_ends() -> None:
            planner.backward_ends()
            forget()

        self._steps.at_begin, self._steps.at_backward_end, self._steps.at_end = (
            planner.begin,
            backward_ends,
            planner.end,
        )

    def __repr__(self) -> str:
        names = ", ".join(one.spiller.device.name for one in self._devices.values())
        return f"<libstagehand.torch.SpilledActivations on {names or 'no device'}>"

    # Scopes.

    def __enter__(self) -> SpilledActivations:
        if self._enabled:
            self._open_spillers()
            self._pack.weights = storages_of(self.model)
            if self._pack.recompute is not None:
                self._pack.recompute.weights_go = is_sharded(self.model)
                self._pack.recompute.enter()
            push(self._pack)
            self._steps.entered += 1
            for one in self._devices.values():
                one.begin_scope()
        return self

    def __exit__(
        self, kind: type[BaseException] | None, exception: BaseException | None, trace: TracebackType | None
    ) -> None:
        if not self._enabled:
            return
        pop()
        if self._pack.recompute is not None:
            self._pack.recompute.leave()
        self._steps.entered -= 1
        if kind is None:
            self._pending.forward_ends()
        else:
            self._pending.stay()
        if kind is None and not self._steps.entered:
            for one in self._devices.values():
                one.end_forward()
            self._steps.leave()

    @contextmanager
    def managed_forward(self) -> Iterator[None]:
        """Another name of the scope of this object, for programs that nest scopes of forwards and backwards."""
        with self:
            yield

    @contextmanager
    def managed_backward(self) -> Iterator[None]:
        """A scope that changes nothing: a backward needs no scope. It is for programs that nest scopes."""
        yield

    # Steps.

    def begin_step(self, step: int | None = None) -> None:
        """Begins a step: a forward and its backward, or several of them. Without this call a step begins with the first
        forward after a backward. Telemetry has the number of the step.
        """
        if self._enabled:
            self._open_spillers()
            self._steps.begin(step)

    def end_step(self) -> None:
        """Ends the step that begin_step() began, and writes its line of telemetry."""
        if self._enabled:
            self._steps.end()

    step_begin = begin_step
    step_end = end_step

    # Use.

    def stats(self, device: torch.device | None = None) -> SpillerStats:
        """Returns the counters of a device. None is the first device."""
        self._pending.forward_ends()  # the program is between two operations
        for place, one in self._devices.items():
            if device is None or place == device:
                return one.spiller.stats()
        raise ValueError(f"nothing is spilled from {device}")

    def recompute_stats(self) -> RecomputeStats | None:
        """Returns counters of what is computed again, or None if nothing is."""
        return None if self._pack.recompute is None else self._pack.recompute.stats

    @property
    def plan(self) -> ActivationPlan | None:
        """What the plan of peak= costs, or None while there is none."""
        return None if self._pack.planner is None else self._pack.planner.plan

    # Gradients.

    def gradients(self) -> dict[str, torch.Tensor]:
        """Waits for the gradients that leave (`offload_gradients`). Returns them in host memory, by the names of the
        parameters. They are sums over all backwards since zero_gradients().
        """
        return self._offloaded().gradients()

    def zero_gradients(self) -> None:
        """Forgets the gradients in host memory, as zero_grad() of an optimizer does."""
        self._offloaded().zero()

    def restore_gradients(self) -> None:
        """Puts the gradients into `grad` of the model's parameters, on the device, and forgets them in host memory."""
        self._offloaded().give_back()

    def host_parameters(self) -> dict[str, nn.Parameter]:
        """Returns copies of the model's parameters in host memory, by their names, for an optimizer that runs there.
        The first call makes them. gradients() sets their `grad`.
        """
        return self._offloaded().host_parameters()

    def update_parameters(self) -> None:
        """Copies the parameters of host_parameters() to the model, and forgets the gradients."""
        self._offloaded().update()

    def _offloaded(self) -> OffloadedGradients:
        if self._gradients is None:
            raise UsageError(Status.ERROR_INVALID_STATE, "gradients stay on the device: give offload_gradients=True")
        return self._gradients

    def trim(self) -> int:
        """Frees the pinned memory that no tensor is in. Returns its bytes."""
        return sum(one.spiller.trim() for one in self._devices.values())

    def close(self) -> None:
        """Ends spilling, and frees its host memory. Tensors that are away are lost, so the backwards must have run. An
        object that is garbage ends by itself, as soon as no graph needs it.
        """
        if self._steps.entered:
            raise UsageError(Status.ERROR_INVALID_STATE, "spilling cannot end inside its `with`")
        if self._gradients is not None:
            self._gradients.end()
        try:
            if any(one.spiller._handle for one in self._devices.values()):
                self._steps.end_open()
        finally:
            for one in self._devices.values():
                one.forget_restored()
                one.spiller.close()

    def _open_spillers(self) -> None:
        if not all(one.spiller._handle for one in self._devices.values()):
            raise UsageError(Status.ERROR_INVALID_HANDLE, "spilling has ended: close() was called")


_COMPILED_NEVER = ("__enter__", "__exit__", "begin_step", "end_step", "step_begin", "step_end", "close")


def _run_uncompiled() -> None:
    """Keeps the compiler from taking the scope for a part of the model. The hooks are called by autograd, which is no
    code of Python.
    """
    for name in _COMPILED_NEVER:
        method = getattr(SpilledActivations, name)
        if not hasattr(method, "_torchdynamo_disable"):
            setattr(SpilledActivations, name, torch.compiler.disable(method))
    for kind, name in ((PackSpilled, "__call__"), (PackSpilled, "unpack"), (PackBeside, "__call__")):
        method = getattr(kind, name)
        if not hasattr(method, "_torchdynamo_disable"):
            setattr(kind, name, uncompiled(method))


def spill_activations(
    model: nn.Module | None = None,
    *,
    device: AnyDevice | Sequence[AnyDevice] = "cuda",
    keep: Size | None = None,
    peak: Size | None = None,
    watermarks: Sequence[Size] | None = None,
    config: Config | None = None,
    checksums: bool = False,
    pack: bool = False,
    telemetry: str | os.PathLike[str] | None = None,
    least: Size = 4096,
    recompute: bool | None = None,
    offload_gradients: bool = False,
) -> SpilledActivations:
    """Moves tensors that autograd saves to pinned host memory, and back before the backward needs them.

        with libstagehand.torch.spill_activations(model, device="cuda:0", keep="8GiB"):
            loss(model(inputs)).backward()

    Give one of `keep`, `peak`, `watermarks` and `config`. Without them all tensors leave that may leave.

    :param model: Its parameters and buffers stay on the device. Parameters stay also without this argument, but not
        buffers, and not detached views of parameters.
    :param device: The device whose tensors leave, as stream() takes it, or several devices. Other tensors stay.
    :param keep: The most bytes of saved tensors on the device. The oldest tensors beyond that leave.
    :param peak: Device memory in use that a step should not exceed, with that of streamed weights. One of the first
        steps is recorded. The library plans from it what the next steps keep, move, and compute again. 0 has all
        tensors leave. With several devices there is no plan, and tensors leave from 128 MiB below the peak on.
    :param watermarks: Two sizes, the higher one first. Tensors leave from the moment when more device memory is in use
        than the first, until no more than the second is in use.
    :param config: The settings of Stagehand's activation spilling (`activation_stagehand`), also with the objects
        around them, or a JSON file with them. A megabyte (`_mb`) is 2^20 bytes there.
    :param checksums: Whether all restored bytes are compared with those that left. It is slow.
    :param pack: Whether tensors of 256 KiB or more cross the link packed, without loss, if the GPU can do it. For steps
        that wait for copies. Programs on the GPU pack and unpack, beside the model's.
    :param telemetry: A file that gets a line of JSON for each step.
    :param least: Tensors with fewer bytes stay.
    :param recompute: Whether results of cheap operations are computed again in the backward instead of being moved:
        casts, arithmetic element by element, activation functions, norms, softmax, and dropout from its mask. None: a
        plan may do so (`peak`), and `recompute_threshold_bytes` of `config` may ask for it. Otherwise nothing is
        computed again.
    :param offload_gradients: Whether gradients of `model` leave during the backward, as soon as they are final.
        `gradients()` of the object has them in host memory, and `grad` of the parameters is None.
    """
    options = options_of(keep, peak, watermarks, config, checksums, pack, telemetry)
    single = not isinstance(device, (list, tuple))
    devices: Sequence[AnyDevice] = [device] if single else device  # type: ignore[list-item,assignment]
    return SpilledActivations(model, devices, options, max(1, bytes_of("least", least)), recompute, offload_gradients)
