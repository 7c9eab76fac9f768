"""A forward as a CUDA graph, with the streaming inside."""

# mypy: disable-error-code="import-not-found,misc,no-untyped-call,unused-ignore"
from __future__ import annotations

from typing import Any

import torch
from torch import nn
from torch.utils._pytree import tree_map

from .._errors import UsageError
from .._generated import Status
from .._lifetime import Closing
from .._runtime import Runtime
from ._holding import Holding


class ForwardGraph(Closing):
    """A captured forward. A call takes tensors of the shapes of the capture. The next call overwrites the tensors that
    this call returns.
    """

    def __init__(
        self,
        module: nn.Module,
        runtime: Runtime,
        holding: Holding,
        device: torch.device,
        warm_up: int,
        args: Any,
        kwargs: Any,
    ) -> None:
        if device.type != "cuda":
            raise UsageError(Status.ERROR_UNSUPPORTED, f"{runtime.device.name} has no graphs")
        self._device = device
        self._settle = holding.settle
        self._inputs = tree_map(
            lambda value: value.to(self._device, copy=True) if isinstance(value, torch.Tensor) else value,
            (args, kwargs),
        )
        self._native = torch.cuda.CUDAGraph()
        args, kwargs = self._inputs
        side = torch.cuda.Stream(self._device)
        side.wait_stream(torch.cuda.current_stream(self._device))
        with torch.no_grad():
            with torch.cuda.stream(side):
                for _ in range(warm_up):  # the runtime learns the order, and other libraries allocate their memory
                    module(*args, **kwargs)
            side.synchronize()
            runtime.plan()
            # "thread_local", because the library and autograd go on on other threads.
            with torch.cuda.graph(self._native, stream=side, capture_error_mode="thread_local"), holding.capture():
                with runtime.capture(side.cuda_stream) as capture:
                    self._outputs = module(*args, **kwargs)
        self._graph = capture.graph

    def __call__(self, *args: Any, **kwargs: Any) -> Any:
        self._settle()
        tree_map(self._copy_in, self._inputs, (args, kwargs))
        with self._graph.launch(torch.cuda.current_stream(self._device).cuda_stream):
            self._native.replay()
        return self._outputs

    @staticmethod
    def _copy_in(captured: Any, given: Any) -> None:
        if isinstance(captured, torch.Tensor):
            if captured.shape != given.shape or captured.dtype != given.dtype:
                raise ValueError(
                    f"the graph was captured with a {list(captured.shape)} tensor of {captured.dtype}, "
                    f"but is called with a {list(given.shape)} tensor of {given.dtype}"
                )
            captured.copy_(given, non_blocking=True)
        elif captured != given:
            raise ValueError(f"the graph was captured with {captured!r}, but is called with {given!r}")

    def close(self) -> None:
        """Waits for launches. After that the plan may change. It cannot change while the runtime has graphs."""
        self._graph.close()
        self._native.reset()
