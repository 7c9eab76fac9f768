"""Finds names in files that are similar to names that no file has. Models and files often differ by a prefix."""

from __future__ import annotations

import difflib
from collections.abc import Iterable

# A comparison with every name of a large model takes too long for more names than these.
_COMPARED = 8


def beside_similar(missing: list[str], present: Iterable[str]) -> str:
    """Returns the first missing names, each with the most similar name that is present."""
    names = sorted(present)
    told = ", ".join(_beside_similar(name, names) for name in missing[:_COMPARED])
    return f"{told}{', ...' if len(missing) > _COMPARED else ''}"


def _beside_similar(name: str, names: list[str]) -> str:
    similar = _similar(name, names)
    return name if similar is None else f"{name} (the files have {similar})"


def _similar(name: str, names: list[str]) -> str | None:
    with_prefix = [one for one in names if one.endswith(f".{name}") or name.endswith(f".{one}")]
    if with_prefix:
        return min(with_prefix, key=len)
    # A parameter is rarely stored under the name of another kind of parameter, and all layers have similar names.
    kind = name.rpartition(".")[2]
    same_kind = [one for one in names if one.rpartition(".")[2] == kind]
    close = difflib.get_close_matches(name, same_kind, n=1) or difflib.get_close_matches(name, names, n=1)
    return close[0] if close else None
