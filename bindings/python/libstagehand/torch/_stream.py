"""stream(): the one call for models and for pipelines."""

# mypy: disable-error-code="import-not-found,misc,no-untyped-call,unused-ignore"
from __future__ import annotations

import inspect
from collections.abc import Callable, Iterable
from typing import Any, ParamSpec, Protocol, overload

from torch import nn

from ._budget import Budget
from ._devices import AnyDevice
from ._pipelines import Pipeline, StreamedPipeline, is_pipeline
from ._progress import Progress
from ._streamed import Streamed

_Arguments = ParamSpec("_Arguments")


class _Stream(Protocol[_Arguments]):
    """The type of stream(): it takes the arguments of Streamed, or those of StreamedPipeline."""

    @overload
    def __call__(self, *args: _Arguments.args, **kwargs: _Arguments.kwargs) -> Streamed: ...

    @overload
    def __call__(
        self,
        pipe: Pipeline,
        /,
        device: AnyDevice = "cuda",
        *,
        budget: Budget | None = None,
        parts: Iterable[str] | None = None,
        mapped: bool = False,
        pin: bool = True,
        pack: bool = False,
        debug: bool | None = None,
        share_wait: float = 10.0,
        progress: Progress = None,
    ) -> StreamedPipeline: ...


def _typed(like: Callable[_Arguments, Streamed], function: Callable[..., Any]) -> _Stream[_Arguments]:
    function.__doc__ = (
        f"{Streamed.__doc__}\n\n    A pipeline may stand in place of the module.\n\n    {StreamedPipeline.__doc__}"
    )
    function.__signature__ = inspect.signature(like)  # type: ignore[attr-defined]
    return function


def _stream(module: Any, *args: Any, **options: Any) -> Streamed | StreamedPipeline:
    if is_pipeline(module):
        return StreamedPipeline(module, *args, **options)
    if not isinstance(module, nn.Module):
        inside = (
            " Stream its model: stream(pipe.model, ...)"
            if isinstance(getattr(module, "model", None), nn.Module)
            else ""
        )
        raise TypeError(
            f"stream() takes a torch.nn.Module, or a pipeline whose `components` maps names to modules, "
            f"and not a {type(module).__qualname__}.{inside}"
        )
    return Streamed(module, *args, **options)


_stream.__name__ = _stream.__qualname__ = "stream"
stream = _typed(Streamed, _stream)
