"""The budget as a user writes it: bytes, a size with a unit, or a part of the model."""

from __future__ import annotations

import math
import re
from operator import index
from typing import TypeAlias, Union

Budget: TypeAlias = Union[int, float, str]
"""A number of bytes, a size ("8GiB", "500MB"), or a part of what the streamed weights take, in pages ("25%")."""

_UNITS = {
    "": 1,
    "b": 1,
    "kb": 10**3,
    "mb": 10**6,
    "gb": 10**9,
    "tb": 10**12,
    "kib": 1 << 10,
    "mib": 1 << 20,
    "gib": 1 << 30,
    "tib": 1 << 40,
}
_WRITTEN = re.compile(r"\s*(\d+(?:\.\d*)?|\.\d+)\s*(%|[a-z]*)\s*", re.ASCII | re.IGNORECASE)
# No machine has more memory. A larger number is a mistake, for example a budget that was multiplied twice.
_MOST = 1 << 60
_HOW = 'give a number of bytes (8 << 30), a size ("8GiB", "500MB"), a part of the model ("25%"), or None'


def bytes_of(budget: Budget | None, total: int) -> int | None:
    """Returns a budget in bytes. `total` is the bytes that are streamed, for a budget that is a part of them."""
    if budget is None:
        return None
    wanted = _bytes(budget, total)
    if wanted < 0:
        raise ValueError(f"budget={budget!r} is negative: {_HOW}")
    if wanted > _MOST:
        raise ValueError(f"budget={budget!r} is more than any device has: {_HOW}")
    if wanted < 1 and total:
        zero = "None is what the budget of the device leaves"
        raise ValueError(f"budget={budget!r} is less than one byte, so no weight fits into it ({zero}): {_HOW}")
    return int(wanted) or None  # a part of nothing


def _bytes(budget: object, total: int) -> int | float:
    if isinstance(budget, str):
        return _written(budget, total)
    if isinstance(budget, bool):
        raise TypeError(f"budget={budget!r} is not a size: {_HOW}")
    if isinstance(budget, float):
        if math.isnan(budget):
            raise ValueError(f"budget={budget!r} is not a number: {_HOW}")
        return budget
    try:
        return index(budget)  # type: ignore[arg-type]  # this also takes integers of NumPy
    except TypeError:
        raise TypeError(f"budget={budget!r} is a {type(budget).__name__}, not a size: {_HOW}") from None


def _written(text: str, total: int) -> int | float:
    found = _WRITTEN.fullmatch(text)
    unit = found[2].lower() if found else ""
    if found is None or unit not in (*_UNITS, "%"):
        negative = "negative" if text.lstrip().startswith("-") else "not a size"
        raise ValueError(f"budget={text!r} is {negative}: {_HOW}")
    return float(found[1]) * total / 100 if unit == "%" else float(found[1]) * _UNITS[unit]


def size_text(bytes: int) -> str:
    """Returns a size for people, with the exact bytes."""
    for unit in ("GiB", "MiB", "KiB"):
        if bytes >= _UNITS[unit.lower()]:
            return f"{bytes / _UNITS[unit.lower()]:.4g} {unit} ({bytes} bytes)"
    return f"{bytes} bytes"


def budget_text(budget: Budget | None, bytes: int) -> str:
    """Returns a budget as it was given, with its size."""
    return f"budget={budget!r}, which is {size_text(bytes)}"
