"""The hooks of modules. A block is held while a module that uses it runs, and a call of the whole model is a step.

The hooks are objects, not functions, so that a copy of a module can be made without them.
"""

# mypy: disable-error-code="import-not-found,misc,no-untyped-call,unused-ignore"
from __future__ import annotations

import sys
from collections.abc import Callable
from typing import Any

import torch
from torch import nn

from ._division import Unit
from ._guesses import Guesses
from ._holding import Holding, refuse_changes
from ._kinds import StepKinds
from ._once import once
from ._reads import ReadCheck
from ._saved import SavedTensors
from ._uncompiled import uncompiled
from ._weights import HeldBlock

_graph_task = torch._C._current_graph_task_id
_grad_enabled = torch.is_grad_enabled
_tracing: Callable[[], Any] = torch._C._get_tracing_state
_exporting: Callable[[], bool] = torch.compiler.is_exporting
_mode: Callable[[Any], Any] = torch._C._get_dispatch_mode  # type: ignore[attr-defined]
_PROXIES = torch._C._TorchDispatchModeKey.PROXY  # type: ignore[attr-defined]
_clear_autocast_cache = torch.clear_autocast_cache


class Hook:
    """The base of all hooks that this package registers."""

    __slots__ = ()


class Running:
    """The modules that run, the innermost last, and what each of them has to undo at its end."""

    def __init__(self, holding: Holding, saved: SavedTensors, reads: ReadCheck, kinds: StepKinds) -> None:
        self.holding = holding
        self.saved = saved
        self.reads = reads
        self.kinds = kinds
        # For each module: its hooks, whether they acquired its blocks, and whether they pushed hooks of autograd.
        self.frames: list[tuple[UnitHooks, bool, bool]] = []
        self.pooled: set[Unit] = set()  # the experts whose weights lie in a pool now
        self.with_grad: Callable[[], None] | None = None  # called once, before the first forward with gradients
        self.guesses: dict[str, Guesses] = {}  # of the experts of layers

    def grad_enabled(self) -> bool:
        if not _grad_enabled():
            return False
        if self.with_grad is not None:
            begin, self.with_grad = self.with_grad, None
            begin()
        return True

    def abandon(self) -> None:
        """Cleans up after an exception that no hook saw."""
        self.frames.clear()
        self.saved.pop_left()
        self.reads.leave()
        self.holding.running = self.holding.modules = 0
        self.holding.guard()
        self.holding.release_all()


class UnitHooks:
    """The hooks of a module that holds blocks while it runs.

    An `inner` module is part of a larger one. As a rule the larger one holds the blocks already. It does not if the
    inner module is called by itself, or if a checkpoint inside the larger one runs the inner module again.
    """

    def __init__(self, running: Running, unit: Unit, blocks: list[HeldBlock], inner: bool) -> None:
        self.running = running
        self.unit = unit
        self.blocks = blocks
        self.inner = inner

    def attach(self, module: nn.Module) -> list[Any]:
        return [
            module.register_forward_hook(_Leave(self), always_call=True),
            module.register_forward_pre_hook(_Enter(self), prepend=True),
        ]


class _Enter(Hook):
    __slots__ = ("hooks",)

    def __init__(self, hooks: UnitHooks) -> None:
        self.hooks = hooks

    def __call__(self, module: nn.Module, args: Any) -> None:
        hooks = self.hooks
        running, blocks = hooks.running, hooks.blocks
        holding = running.holding
        refuse_tracing()
        if holding.calls.enter():
            running.abandon()
        acquired = not (hooks.inner and (hooks.unit in running.pooled or all(block.forward for block in blocks)))
        if acquired:
            holding.enter(hooks.unit, blocks)
        pushed = False
        if running.grad_enabled():
            try:
                holding.trained_forward()
                refuse_untold_training(blocks)
                pushed = running.saved.push()
            except BaseException:
                if acquired:
                    holding.leave(blocks)
                raise
        running.frames.append((hooks, acquired, pushed))
        holding.modules += 1
        holding.unguard()


class _Leave(Hook):
    __slots__ = ("hooks",)

    def __init__(self, hooks: UnitHooks) -> None:
        self.hooks = hooks

    def __call__(self, module: nn.Module, args: Any, output: Any) -> None:
        hooks = self.hooks
        running, blocks = hooks.running, hooks.blocks
        frames, holding = running.frames, running.holding
        # PyTorch calls this hook also if another hook has failed before _Enter ran.
        if not frames or frames[-1][0] is not hooks or not holding.calls.mine():
            return
        _, acquired, pushed = frames.pop()
        holding.modules -= 1
        holding.guard_outside()
        if pushed:
            running.saved.pop()
        if not acquired:
            return
        try:
            for block in blocks:
                if changed := block.changed():
                    refuse_changes(changed)
        finally:
            holding.leave(blocks)
            if not holding.modules and not holding.running:
                holding.calls.leave()
            _clear_autocast_cache()  # otherwise casts of all weights would stay on the device


class StepHooks:
    """The hooks of the whole model. Each call of it is a step, unless a step is under way. The step lasts to the end of
    the backward if autograd has kept weights.
    """

    def __init__(self, running: Running) -> None:
        self.running = running

    def attach(self, module: nn.Module) -> list[Any]:
        return [
            module.register_forward_hook(_LeaveStep(self.running), always_call=True),
            module.register_forward_pre_hook(_EnterStep(self.running), prepend=True, with_kwargs=True),
        ]


class _EnterStep(Hook):
    __slots__ = ("running",)

    def __init__(self, running: Running) -> None:
        self.running = running

    def __call__(self, module: nn.Module, args: Any, kwargs: Any) -> None:
        running = self.running
        holding = running.holding
        refuse_replica(module)
        refuse_tracing()
        if holding.calls.enter():
            running.abandon()
        running.grad_enabled()
        if holding.running and not _is_running(module):
            running.abandon()
        if not holding.running and not holding.explicit and _graph_task() == -1:
            running.abandon()
            kind = running.kinds.kind(args, kwargs)
            holding.begin_step(kind=running.kinds.name(kind))
            running.reads.enter(kind if running.reads.wants() else None)
        holding.running += 1
        holding.unguard()


class _LeaveStep(Hook):
    __slots__ = ("running",)

    def __init__(self, running: Running) -> None:
        self.running = running

    def __call__(self, module: nn.Module, args: Any, output: Any) -> None:
        holding = self.running.holding
        if not holding.running or not holding.calls.mine():
            return
        holding.running -= 1
        holding.guard_outside()
        if not holding.running and not holding.modules:
            holding.calls.leave()
        if holding.running or holding.explicit or _graph_task() != -1:
            return
        self.running.reads.leave(passed=sys.exc_info()[0] is None)
        if not holding.saved and not holding.calls.elsewhere():
            holding.end_step()


def forget_compiled() -> None:
    """Has torch.compile forget what it has compiled. PyTorch does not guard hooks, so compiled code does not notice
    that hooks come or go.
    """
    if "torch._dynamo" in sys.modules:
        torch.compiler.reset()


def run_uncompiled() -> None:
    """Has torch.compile pass over the hooks. This is not done at the import of this module, because it imports the
    compiler.
    """
    forget_compiled()
    _pass_over_hooks()


@once
def _pass_over_hooks() -> None:
    kinds: list[Any] = Hook.__subclasses__()
    for kind in kinds:
        kind.__call__ = uncompiled(kind.__call__)


def _is_running(module: nn.Module) -> bool:
    """Whether another call of the module is under way than the call whose hooks run now. A call that an interrupt has
    ended is not under way.
    """
    calls = 0
    frame = sys._getframe()
    while (before := frame.f_back) is not None:
        frame = before
        calls += frame.f_code.co_name == "_call_impl" and frame.f_locals.get("self") is module
    return calls > 1


def refuse_tracing() -> None:
    """Refuses a trace by TorchScript, torch.export or torch.fx. Its result would have the weights, but no hooks that
    hold the blocks.
    """
    if _tracing() is not None or _exporting() or _mode(_PROXIES) is not None:
        raise RuntimeError(
            "a streamed module cannot be traced or exported: do that before it is streamed, or end streaming first. "
            "torch.func.linearize() traces, too: use torch.func.jvp()"
        )


def refuse_untold_training(blocks: list[HeldBlock]) -> None:
    """Refuses gradients for streamed weights that are not trained by stream(). An optimizer would later write to device
    memory that has other contents by then.
    """
    for block in blocks:
        if not block.mutable:
            for entry in block.entries:
                if entry.tensor.requires_grad:
                    raise RuntimeError(
                        f"{entry.name} is streamed and requires a gradient. "
                        "To run the model without training, use torch.no_grad() or torch.inference_mode(). "
                        "To train other parameters only, call requires_grad_(False) on this one. "
                        "To train this one, use "
                        "stream(..., optimizer=lambda parameters: torch.optim.SGD(parameters, lr=...)), "
                        "or keep it on the device by outside="
                    )


def refuse_replica(module: nn.Module) -> None:
    if "_former_parameters" in module.__dict__:
        raise RuntimeError(
            "DataParallel copies the model to several devices, but a streamed model is on one device. "
            "Use DistributedDataParallel, or one device in device_ids="
        )
