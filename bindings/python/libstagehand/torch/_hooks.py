"""The hooks of modules: a block is held while a module runs that uses it, and a call of the whole model is a step.

They are objects, not functions, so that copies of a module can be made without them.
"""
# mypy: disable-error-code="import-not-found,misc,no-untyped-call,unused-ignore"
from __future__ import annotations

import sys
from collections.abc import Callable
from typing import Any

import torch
from torch import nn

from ._division import Unit
from ._holding import Holding, refuse_changes
from ._reads import ReadCheck
from ._saved import SavedTensors
from ._weights import HeldBlock

_graph_task = torch._C._current_graph_task_id


class Hook:
    """What is ours of a module's hooks."""

    __slots__ = ()


class Running:
    """The modules that run, the innermost last, and what each of them has to undo."""

    def __init__(self, holding: Holding, saved: SavedTensors, reads: ReadCheck) -> None:
        self.holding = holding
        self.saved = saved
        self.reads = reads
        self.frames: list[tuple[UnitHooks, bool, bool]] = []  # with: blocks acquired, hooks of autograd put in force
        self.with_grad: Callable[[], None] | None = None  # called once, before gradients are wanted for the first time

    def grad_enabled(self) -> bool:
        if not torch.is_grad_enabled():
            return False
        if self.with_grad is not None:
            begin, self.with_grad = self.with_grad, None
            begin()
        return True

    def abandon(self) -> None:
        """Undoes what an exception that no hook sees has left."""
        self.frames.clear()
        self.saved.pop_left()
        self.reads.leave()
        self.holding.running = self.holding.modules = 0
        self.holding.guard()
        self.holding.release_all()


class UnitHooks:
    """A module that holds blocks while it runs. An `inner` one is part of a larger one, whose blocks are held already, as a rule: not
    where it is called by itself, or where a checkpoint inside the larger one runs it again."""

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
        running = hooks.running
        refuse_tracing()
        if running.holding.calls.enter():
            running.abandon()
        acquired = not (hooks.inner and all(block.forward for block in hooks.blocks))
        if acquired:
            running.holding.enter(hooks.unit, hooks.blocks)
        pushed = False
        if running.grad_enabled():
            try:
                running.holding.trained_forward()
                refuse_untold_training(hooks.blocks)
                pushed = running.saved.push()
            except BaseException:
                if acquired:
                    running.holding.leave(hooks.blocks)
                raise
        running.frames.append((hooks, acquired, pushed))
        running.holding.modules += 1
        running.holding.unguard()


class _Leave(Hook):
    __slots__ = ("hooks",)

    def __init__(self, hooks: UnitHooks) -> None:
        self.hooks = hooks

    def __call__(self, module: nn.Module, args: Any, output: Any) -> None:
        hooks = self.hooks
        frames = hooks.running.frames
        holding = hooks.running.holding
        # It is called also where another hook failed before ours had entered.
        if not frames or frames[-1][0] is not hooks or not holding.calls.mine():
            return
        _, acquired, pushed = frames.pop()
        holding.modules -= 1
        holding.guard_outside()
        if pushed:
            hooks.running.saved.pop()
        if not acquired:
            return
        try:
            for block in hooks.blocks:
                refuse_changes(block.places())
        finally:
            holding.leave(hooks.blocks)
            if not holding.modules and not holding.running:
                holding.calls.leave()
            if torch.is_autocast_cache_enabled():
                torch.clear_autocast_cache()  # else casts of all weights would stay on the device


class StepHooks:
    """The whole model: each call of it is a step, unless a step is under way. One that autograd kept weights in lasts to the end of the
    backward."""

    def __init__(self, running: Running) -> None:
        self.running = running

    def attach(self, module: nn.Module) -> list[Any]:
        return [
            module.register_forward_hook(_LeaveStep(self.running), always_call=True),
            module.register_forward_pre_hook(_EnterStep(self.running), prepend=True),
        ]


class _EnterStep(Hook):
    __slots__ = ("running",)

    def __init__(self, running: Running) -> None:
        self.running = running

    def __call__(self, module: nn.Module, args: Any) -> None:
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
            holding.begin_step()
            running.reads.enter()
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
    """What was compiled without the hooks, or with them, does not see all of a change: PyTorch does not guard hooks."""
    if "torch._dynamo" in sys.modules:
        torch.compiler.reset()


def run_uncompiled() -> None:
    """Has torch.compile pass over the hooks. Not when this module is imported: it imports the compiler."""
    forget_compiled()
    kinds: list[Any] = Hook.__subclasses__()
    for kind in kinds:
        if not hasattr(kind.__call__, "_torchdynamo_disable"):
            kind.__call__ = torch.compiler.disable(kind.__call__)


def _is_running(module: nn.Module) -> bool:
    """Whether a call of the module, other than the one whose hooks run now, is under way: not, where an interrupt ended it."""
    calls = 0
    frame = sys._getframe()
    while (before := frame.f_back) is not None:
        frame = before
        calls += frame.f_code.co_name == "_call_impl" and frame.f_locals.get("self") is module
    return calls > 1


def refuse_tracing() -> None:
    """What TorchScript traces has the weights' addresses, and no hooks."""
    if torch._C._get_tracing_state() is not None:
        raise RuntimeError("a module that is streamed cannot be traced: trace it before it is streamed, or end streaming first")


def refuse_untold_training(blocks: list[HeldBlock]) -> None:
    """Gradients of streamed weights would be there, and an optimizer would then write to memory that is not the weights' any more."""
    for block in blocks:
        if not block.mutable:
            for entry in block.entries:
                if entry.tensor.requires_grad:
                    raise RuntimeError(
                        f"{entry.name} is streamed and requires a gradient. Without training: run the model in torch.no_grad() or "
                        "inference_mode(). To train other parameters: requires_grad_(False) on this one. To train this one: "
                        "stream(..., optimizer=lambda parameters: torch.optim.SGD(parameters, lr=...)), or outside= to have it stay on the device"
                    )


def refuse_replica(module: nn.Module) -> None:
    if "_former_parameters" in module.__dict__:
        raise RuntimeError("DataParallel copies the model to several devices: a streamed model is on one. Use DistributedDataParallel, or one of device_ids=")
