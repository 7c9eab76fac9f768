"""The hooks for saved tensors of spill_activations().

PyTorch applies only the innermost pair of hooks. The hooks of a streamed model hand all tensors but its weights to the
pair that was in force before, which may be this one. This pair hands weights of streamed models to their hooks.
"""

# mypy: disable-error-code="import-not-found,misc,no-untyped-call,unused-ignore"
from __future__ import annotations

from collections.abc import Callable
from typing import Any

import torch

from . import _saved
from ._exit import expect_hooks
from ._kept import Kept
from ._spill_device import SpilledDevice
from ._spill_gradients import OffloadedGradients
from ._spill_pending import Pending
from ._spill_plan import Planner
from ._spill_recompute import Recompute, Recomputed
from ._spill_saved import Saved
from ._spill_steps import SpillSteps
from ._spill_tensors import is_of_weight, is_plain, overlaps
from ._subclasses import found_in

_push = torch._C._autograd._push_saved_tensors_default_hooks
_pop = torch._C._autograd._pop_saved_tensors_default_hooks
_top = torch._C._autograd._top_saved_tensors_default_hooks
_graph_task: Callable[[], int] = torch._C._current_graph_task_id
_Tensor = torch.Tensor


class _Other:
    """A tensor that other hooks have packed."""

    __slots__ = ("packed", "function")

    def __init__(self, packed: Any, function: Callable[[Any], Any]) -> None:
        self.packed = packed
        self.function = function

    def unpack(self) -> Any:
        return self.function(self.packed)


class PackSpilled:
    """The function that autograd calls for each tensor that it saves."""

    def __init__(self, devices: dict[torch.device, SpilledDevice], steps: SpillSteps, pending: Pending) -> None:
        self.devices = devices
        self.steps = steps
        self.pending = pending
        self.weights: set[int] = set()  # the storages of the model's parameters and buffers
        self.recompute: Recompute | None = None
        self.planner: Planner | None = None
        self.gradients: OffloadedGradients | None = None

    def __call__(self, tensor: torch.Tensor) -> Any:
        self.pending.node_is_made()
        if type(tensor) is not _Tensor or not is_plain(tensor):
            return Kept(tensor)
        on = self.devices.get(tensor.device)
        # A backward runs a forward again for a checkpoint. These tensors are needed at once.
        if on is None or tensor.nbytes < on.least or _graph_task() != -1:
            return Kept(tensor)
        if is_of_weight(tensor) or overlaps(tensor):
            return Kept(tensor)
        storage = tensor.untyped_storage()
        if storage._cdata in self.weights:
            return Kept(tensor)
        if self.gradients is not None:
            self.gradients.saves()
        if self.planner is not None:
            self.steps.saves()
            return self.planner.save(tensor)
        if self.recompute is not None and (made := self.recompute.pack(tensor)) is not None:
            return made
        self.steps.saves()
        saved = on.save(tensor, 0, storage)
        if self.recompute is not None:
            self.recompute.note(saved, tensor)
        return saved

    def save_argument(self, tensor: torch.Tensor) -> Any:
        """Saves a tensor that other tensors are computed from."""
        on = self.devices.get(tensor.device)
        if on is None or tensor.nbytes < on.least:
            return Kept(tensor)
        if self.planner is not None:
            return self.planner.save_argument(tensor)  # the step has begun
        self.steps.saves()
        return on.save(tensor)

    def argument(self, packed: Any) -> Any:
        """Returns a tensor that others are computed from."""
        return packed.on.restore(packed) if type(packed) is Saved else packed.unpack()

    def stream(self, device: torch.device) -> int:
        """Returns the stream that reads a tensor next."""
        on = self.devices.get(device)
        return 0 if on is None else on.stream()

    def unpack(self, packed: Any) -> Any:
        if type(packed) is not Saved and type(packed) is not Recomputed:
            return packed.unpack()
        self.pending.forward_ends()
        self.steps.restores()
        planner = self.planner
        if planner is not None:
            planner.unpacks(packed)
        if type(packed) is Saved:
            tensor = packed.on.restore(packed)
        else:
            assert self.recompute is not None and type(packed) is Recomputed
            tensor = self.recompute.unpack(packed)
        if planner is not None:
            planner.unpacked()
        return tensor


class PackBeside:
    """The same function where hooks of a streamed model are in force around it."""

    def __init__(self, pack: PackSpilled, streamed: _saved.Pack, unpack: Callable[[Any], Any]) -> None:
        self.pack = pack
        self.streamed = streamed
        self.unpack = unpack

    def __call__(self, tensor: torch.Tensor) -> Any:
        if found_in(tensor, self.streamed.weights):
            return _Other(self.streamed(tensor), self.unpack)
        return self.pack(tensor)


def push(pack: PackSpilled) -> None:
    """Puts the hooks in force on this thread."""
    expect_hooks()
    before = _top(False)
    if before is not None and type(before[0]) is _saved.Pack:
        _push(PackBeside(pack, before[0], before[1]), pack.unpack)
    else:
        _push(pack, pack.unpack)


def pop() -> None:
    _pop()
