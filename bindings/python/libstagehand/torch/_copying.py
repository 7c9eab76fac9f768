"""Copies of streamed modules whose class has a __deepcopy__ of its own, like parametrized modules (weight_norm). Such a
function copies all attributes of the module, so the hooks of this package are taken away while it runs.
"""

# mypy: disable-error-code="import-not-found,misc,no-untyped-call,unused-ignore"
from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager
from typing import Any

from torch import nn

from ._serving import Refusal, WithoutHooks, _cleaned


class CopyWithoutHooks(Refusal):
    """The __deepcopy__ of a streamed module: its copy is that of a module that is not streamed."""

    __slots__ = ("module",)

    def __init__(self, module: nn.Module) -> None:
        self.module = module

    def __call__(self, memo: Any) -> Any:
        kind: Any = type(self.module)
        with _without_hooks(self.module):
            return kind.__deepcopy__(self.module, memo)


@contextmanager
def _without_hooks(module: nn.Module) -> Iterator[None]:
    # The dictionary stays the same object, because other objects may refer to it.
    before = dict(module.__dict__)
    module.__dict__.clear()
    module.__dict__.update(
        (key, _cleaned(value)) for key, value in before.items() if not isinstance(value, (WithoutHooks, Refusal))
    )
    try:
        yield
    finally:
        module.__dict__.clear()
        module.__dict__.update(before)


def own_copy(module: nn.Module) -> dict[str, Any]:
    """Returns the __deepcopy__ of a module while it is streamed, if its class has one."""
    return {"__deepcopy__": CopyWithoutHooks(module)} if hasattr(type(module), "__deepcopy__") else {}
