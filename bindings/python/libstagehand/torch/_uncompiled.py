"""Functions that torch.compile passes over, at little cost where no compiled code runs.

What `torch.compiler.disable()` returns takes the host about a microsecond for each call, compiler or not.
"""

# mypy: disable-error-code="import-not-found,misc,no-untyped-call,unused-ignore"
from __future__ import annotations

import functools
from collections.abc import Callable
from typing import Any

import torch


def uncompiled(function: Callable[..., Any]) -> Callable[..., Any]:
    """Returns a function that the compiler makes no part of a program. It imports the compiler."""
    disabled: Any = torch.compiler.disable(function)
    frames: Any = torch._C._dynamo.eval_frame  # type: ignore[attr-defined]
    compiling = getattr(frames, "get_eval_frame_callback", None)
    skip = getattr(torch._dynamo.eval_frame, "skip_code", None)
    if compiling is None or skip is None:
        return disabled  # type: ignore[no-any-return]

    @functools.wraps(function)
    def called(*args: Any) -> Any:
        return function(*args) if compiling() is None else disabled(*args)

    # The compiler knows the function by these, and stops before its call.
    vars(called).update({name: one for name, one in vars(disabled).items() if name.startswith("_torchdynamo_")})
    vars(called)["_torchdynamo_wrapper_id"] = id(called)
    skip(called.__code__)  # type: ignore[attr-defined]
    return called
