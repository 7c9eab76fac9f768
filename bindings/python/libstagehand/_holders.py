"""What keeps a device open, so that an error can name it.

A device closes with the last object that needs it. That object may be one that the user does not think of, like a
tensor over pinned memory. So each handle is noted here with what it is, until it is gone.
"""

from __future__ import annotations

import weakref
from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

Told = Callable[[], "str | None"]
"""Returns the description of a holder, or None if another holder stands for it."""


@dataclass(frozen=True)
class _Note:
    holder: weakref.ref[Any]
    device: str
    told: Told
    uses_budget: bool


_noted: dict[int, _Note] = {}


def note(holder: Any, device: str, told: Told, uses_budget: bool = True) -> None:
    """Notes an object that keeps a device open as long as it lives. Another note of the same object replaces the first.
    `told` must not keep the object alive. `uses_budget` is False for memory of the host, which has no part in the
    budget.
    """
    key = id(holder)

    # The names are bound here, because the module's own may be gone when the interpreter ends.
    def gone(reference: weakref.ref[Any], noted: dict[int, _Note] = _noted, key: int = key) -> None:
        found = noted.get(key)
        if found is not None and found.holder is reference:  # another object may have got the id
            del noted[key]

    _noted[key] = _Note(weakref.ref(holder, gone), device, told, uses_budget)


def holders_of(device: str) -> list[str]:
    """Returns descriptions of what keeps a device open, each one once."""
    found: dict[str, None] = {}
    for one in _of(device):
        if (text := one.told()) is not None:
            found[text] = None
    return list(found)


def only_memory_holds(device: str, besides: Any) -> bool:
    """Whether only host memory keeps a device open, besides one object, so that nothing depends on its budget."""
    others = [one for one in _of(device) if one.holder() is not besides]
    # A Device that is closed is still an object, but has no description.
    return bool(others) and not any(one.uses_budget and one.told() is not None for one in others)


def _of(device: str) -> list[_Note]:
    return [one for one in list(_noted.values()) if one.device == device and one.holder() is not None]
