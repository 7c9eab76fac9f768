"""Structs and texts of the C interface, and the Python classes for what the library fills in."""

from __future__ import annotations

import os
from dataclasses import fields
from typing import Any, TypeVar

from ._native import ffi

T = TypeVar("T")


def struct(name: str) -> Any:
    """Returns a new struct of the C interface with its defaults."""
    made = ffi.new(f"sh_{name} *")
    made.struct_size = ffi.sizeof(made[0])
    return made


def result(kind: type[T], source: Any) -> T:
    """Converts a struct that a call has filled in to its Python class."""
    values: dict[str, Any] = {}
    for field in fields(kind):  # type: ignore[arg-type]
        value = getattr(source, field.name)
        if isinstance(value, ffi.CData):
            pointer = ffi.typeof(value).kind == "pointer"
            value = int(ffi.cast("uintptr_t", value)) if pointer else ffi.string(value).decode(errors="replace")
        convert: Any = field.type  # which is the class itself in _generated.py
        values[field.name] = convert(value)
    return kind(**values)


def text(value: str | bytes | os.PathLike[str] | None) -> Any:
    """Returns a C string, or NULL for None. The caller keeps the string until the call that uses it has returned."""
    if value is None:
        return ffi.NULL
    encoded = os.fsencode(value)
    if b"\0" in encoded:
        raise ValueError(f"embedded null character in {value!r}")
    return ffi.new("char[]", encoded)
