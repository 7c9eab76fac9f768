"""What keeps a device open, so that an error can name it.

A device closes with the last object that needs it. That object may be one that the user does not think of, like a
tensor over pinned memory. So each handle is noted here with what it is, until it is gone.
"""

from __future__ import annotations

import weakref
from collections.abc import Callable
from typing import Any

Told = Callable[[], "str | None"]
"""Returns the description of a holder, or None if another holder stands for it."""

_noted: dict[int, tuple[weakref.ref[Any], str, Told]] = {}


def note(holder: Any, device: str, told: Told) -> None:
    """Notes an object that keeps a device open as long as it lives. Another note of the same object replaces the first.
    `told` must not keep the object alive.
    """
    key = id(holder)

    def gone(reference: weakref.ref[Any]) -> None:
        if key in _noted and _noted[key][0] is reference:  # another object may have got the id
            del _noted[key]

    _noted[key] = weakref.ref(holder, gone), device, told


def holders_of(device: str) -> list[str]:
    """Returns descriptions of what keeps a device open, each one once."""
    found: dict[str, None] = {}
    for reference, name, told in list(_noted.values()):
        if name == device and reference() is not None and (text := told()) is not None:
            found[text] = None
    return list(found)
