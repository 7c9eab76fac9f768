"""Gradients that leave the device during the backward, as soon as they are final.

A copy of each parameter's gradient is in host memory. The device's gradient is given up when its copy has been queued:
a stream of its own copies, and the stream of the backward waits for the oldest copies beyond a bound. A backward that
adds to a gradient adds on the host, where the sum is rounded as on the device.
"""

# mypy: disable-error-code="import-not-found,misc,no-untyped-call,unused-ignore"
from __future__ import annotations

import threading
from collections import deque
from collections.abc import Callable
from typing import Any

import torch
from torch import nn

from .._errors import UsageError
from .._generated import Status
from ._subclasses import ENTRY

_IN_FLIGHT = 256 << 20
_SAVES = 8  # tensors that a forward saves for each gradient that it waits for


class _Host:
    """The gradient of one parameter in host memory."""

    __slots__ = ("sum", "arrived", "used")

    def __init__(self) -> None:
        self.sum: torch.Tensor | None = None  # what the program gets
        self.arrived: torch.Tensor | None = None  # what the last copy brings, if it has to be added
        self.used = False  # whether `sum` has a gradient


class OffloadedGradients:
    """The gradients of a model's parameters on some devices."""

    def __init__(self, model: nn.Module, devices: set[torch.device]) -> None:
        self._parameters = {
            name: one
            for name, one in model.named_parameters()
            if one.requires_grad and one.device in devices and one.layout == torch.strided
        }
        self._hosts = {name: _Host() for name in self._parameters}
        self._own: dict[str, nn.Parameter] = {}  # copies of the parameters in host memory
        self._streams: dict[torch.device, Any] = {}
        self._flight: deque[tuple[str, torch.Tensor, Any]] = deque()
        self._bytes = 0  # in flight
        self._lock = threading.RLock()
        self._handles: list[Any] = []
        self._saves = 0
        self.copied_bytes = 0

    # Scopes.

    def begin(self) -> None:
        """Has gradients leave from now on."""
        if self._handles:
            return
        for name, parameter in self._parameters.items():
            self._handles.append(parameter.register_post_accumulate_grad_hook(self._hook(name)))

    def end(self) -> None:
        for handle in self._handles:
            handle.remove()
        self._handles.clear()

    def _hook(self, name: str) -> Callable[[torch.Tensor], None]:
        return lambda parameter: self._leave(name, parameter)

    # Leaving.

    def _leave(self, name: str, parameter: torch.Tensor) -> None:
        gradient = parameter.grad
        # Sparse gradients stay, those that are differentiated again, and those of streamed weights.
        if (
            gradient is None
            or gradient.layout != torch.strided
            or gradient.requires_grad
            or ENTRY in parameter.__dict__
        ):
            return
        with self._lock, torch.no_grad():
            host = self._hosts[name]
            if host.arrived is not None:
                self._synchronize()
                self._add(host)
            to = self._memory(host, gradient)
            if gradient.is_cuda:
                self._copy(name, to, gradient)
            else:
                to.copy_(gradient)
                self._add(host)
            self.copied_bytes += gradient.nbytes
            parameter.grad = None

    def _memory(self, host: _Host, gradient: torch.Tensor) -> torch.Tensor:
        """Returns the host memory that a gradient is copied to."""
        memory = None if host.used else host.sum
        if memory is None or memory.stride() != gradient.stride() or memory.size() != gradient.size():
            memory = None
        if memory is None or memory.dtype != gradient.dtype:
            memory = torch.empty_like(gradient, device="cpu", pin_memory=gradient.is_cuda)
        if host.used:
            host.arrived = memory
        else:
            host.sum, host.used = memory, True
        return memory

    def _copy(self, name: str, to: torch.Tensor, gradient: torch.Tensor) -> None:
        stream = self._streams.get(gradient.device)
        if stream is None:
            stream = self._streams[gradient.device] = torch.cuda.Stream(gradient.device)
        current = torch.cuda.current_stream(gradient.device)
        stream.wait_stream(current)
        with torch.cuda.stream(stream):
            to.copy_(gradient, non_blocking=True)
            done = stream.record_event()
        self._flight.append((name, gradient, done))
        self._bytes += gradient.nbytes
        while self._flight and (self._bytes > _IN_FLIGHT or self._flight[0][2].query()):
            # The memory goes back to the allocator in the order of this stream.
            current.wait_event(self._flight[0][2])
            self._landed()

    def _landed(self) -> None:
        _, gradient, _ = self._flight.popleft()
        self._bytes -= gradient.nbytes

    def _add(self, host: _Host) -> None:
        if host.arrived is not None:
            assert host.sum is not None
            host.sum.add_(host.arrived)
            host.arrived = None

    def _synchronize(self) -> None:
        for stream in self._streams.values():
            stream.synchronize()
        while self._flight:
            self._landed()

    # Use.

    def gradients(self) -> dict[str, torch.Tensor]:
        """Waits for the copies. Returns the gradients in host memory, by the names of the parameters."""
        with self._lock, torch.no_grad():
            self._synchronize()
            for host in self._hosts.values():
                self._add(host)
            found = {name: host.sum for name, host in self._hosts.items() if host.used and host.sum is not None}
        for name, own in self._own.items():
            own.grad = found.get(name)
        return found

    def host_parameters(self) -> dict[str, nn.Parameter]:
        """Returns copies of the parameters in host memory, for an optimizer. The first call makes them."""
        for name, parameter in self._parameters.items():
            if name not in self._own:
                memory = torch.empty(parameter.size(), dtype=parameter.dtype, pin_memory=parameter.is_cuda)
                self._own[name] = nn.Parameter(memory.copy_(parameter.detach()))
        return dict(self._own)

    def update(self) -> None:
        """Copies the parameters in host memory to the device, and forgets the gradients."""
        with torch.no_grad():
            for name, own in self._own.items():
                self._parameters[name].copy_(own, non_blocking=True)
                own.grad = None
        # The next change of the host's parameters must not be seen by these copies.
        for device in {one.device for one in self._parameters.values() if one.is_cuda}:
            torch.cuda.current_stream(device).synchronize()
        self.zero()

    def zero(self) -> None:
        """Forgets the gradients. Their host memory is used again, by copies in the same order."""
        with self._lock:
            for host in self._hosts.values():
                host.used, host.arrived = False, None

    def saves(self) -> None:
        """A forward saves a tensor. Gradients of the last backward that were under way at its end have left by now."""
        if not self._flight:
            return
        self._saves += 1
        if self._saves % _SAVES == 0:
            with self._lock:
                if self._flight:
                    gradient = self._flight[0][1]
                    torch.cuda.current_stream(gradient.device).wait_event(self._flight[0][2])
                    self._landed()

    def give_back(self) -> None:
        """Puts the gradients into `grad` of the parameters, on their devices, and forgets them here."""
        with torch.no_grad():
            for name, gradient in self.gradients().items():
                parameter = self._parameters[name]
                if parameter.grad is not None:
                    raise UsageError(Status.ERROR_INVALID_STATE, f"{name} has a gradient on its device already")
                parameter.grad = gradient.to(parameter.device, copy=True)
        self.zero()
