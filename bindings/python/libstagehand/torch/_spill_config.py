"""What leaves the device, as a user writes it: sizes, watermarks, or the JSON of Stagehand's activation settings."""

from __future__ import annotations

import difflib
import json
import math
import os
import pathlib
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from operator import index
from typing import Any, TypeAlias, Union

from ._budget import _UNITS, _WRITTEN

Size: TypeAlias = Union[int, float, str]
"""A number of bytes, or a size ("8GiB", "500MB")."""

Config: TypeAlias = Union[Mapping[str, Any], str, "os.PathLike[str]"]

_MIB = 1 << 20
_MARGIN = 128 << 20
# The way from the outermost object of a file to the settings.
_NESTING = ("memory", "stagehand", "activation_stagehand")


@dataclass(frozen=True)
class SpillOptions:
    """The options of spillers, and what the hooks do."""

    enabled: bool = True
    keep_bytes: int | None = None
    high_bytes: int = 0
    low_bytes: int = 0
    peak_bytes: int = 0  # a plan meets it
    recompute_below: int = 0  # cheap results with fewer bytes are computed again. 0: this is not asked for
    classes: tuple[tuple[int, int], ...] = ()
    to_host_copies: int = 0
    to_device_copies: int = 0
    checksums: bool = False
    pack: bool = False
    telemetry: str | None = None


def bytes_of(name: str, value: object) -> int:
    """Returns a size in bytes. `name` is the argument, for errors."""
    how = 'give a number of bytes (8 << 30) or a size ("8GiB", "500MB")'
    if isinstance(value, str):
        found = _WRITTEN.fullmatch(value)
        if found is None or found[2].lower() not in _UNITS:
            raise ValueError(f"{name}={value!r} is not a size: {how}")
        return int(float(found[1]) * _UNITS[found[2].lower()])
    if isinstance(value, float) and math.isfinite(value) and value >= 0:
        return int(value)
    if isinstance(value, bool):
        raise TypeError(f"{name}={value!r} is not a size: {how}")
    try:
        size = index(value)  # type: ignore[arg-type]  # this also takes integers of NumPy
    except TypeError:
        raise TypeError(f"{name}={value!r} is not a size: {how}") from None
    if size < 0:
        raise ValueError(f"{name}={value!r} is negative: {how}")
    return size


def options_of(
    keep: Size | None,
    peak: Size | None,
    watermarks: Sequence[Size] | None,
    config: Config | None,
    checksums: bool,
    pack: bool,
    telemetry: str | os.PathLike[str] | None,
) -> SpillOptions:
    """Returns the options that the arguments of spill_activations() stand for."""
    given = [
        name
        for name, value in (("keep", keep), ("peak", peak), ("watermarks", watermarks), ("config", config))
        if value is not None
    ]
    if len(given) > 1:
        raise ValueError(f"{given[0]}= and {given[1]}= contradict each other: give one of them")
    path = None if telemetry is None else os.fspath(telemetry)
    if config is not None:
        read = read_config(config)
        return SpillOptions(
            **{
                **read.__dict__,
                "checksums": checksums or read.checksums,
                "pack": pack,
                "telemetry": path or read.telemetry,
            }
        )
    values: dict[str, Any] = {"checksums": checksums, "pack": pack, "telemetry": path}
    if watermarks is not None:
        values.update(_watermarks(watermarks))
    elif peak is not None and bytes_of("peak", peak):
        most = bytes_of("peak", peak)
        high = most - margin_of(most)
        values.update(high_bytes=high, low_bytes=high, peak_bytes=most)
    else:
        values["keep_bytes"] = 0 if keep is None else bytes_of("keep", keep)
    return SpillOptions(**values)


def margin_of(peak: int) -> int:
    """Returns the memory below a peak that is not planned for: the blocks of PyTorch's allocator are larger than
    tensors, and copies that are under way need room.
    """
    return min(_MARGIN, peak // 8)


def _watermarks(watermarks: Sequence[Size]) -> dict[str, int]:
    if isinstance(watermarks, str) or len(watermarks) != 2:
        raise ValueError(f"watermarks={watermarks!r} is not a pair: give (high, low)")
    high, low = (bytes_of("watermarks", one) for one in watermarks)
    if not 0 < low <= high:
        raise ValueError(f"watermarks={tuple(watermarks)!r}: the second must be above 0 and not above the first")
    return {"high_bytes": high, "low_bytes": low}


def read_config(config: Config) -> SpillOptions:
    """Reads Stagehand's settings: the object activation_stagehand, or an object around it, or a file with either."""
    if isinstance(config, Mapping):
        found: Any = config
    else:
        text = pathlib.Path(config).read_text()
        try:
            found = json.loads(text)
        except ValueError as error:
            raise ValueError(f"{os.fspath(config)} is not JSON: {error}") from None
    for name in _NESTING:
        if isinstance(found, Mapping) and name in found:
            found = found[name]
    if not isinstance(found, Mapping):
        raise ValueError(f"config: activation_stagehand is a {type(found).__name__}, and must be an object")
    around = [name for name in ("memory", "stagehand", "strategy") if name in found]
    if around:
        raise ValueError(f"config: {around[0]} has no activation_stagehand")
    values: dict[str, Any] = {}
    for name, value in found.items():
        if name not in _FIELDS:
            known = difflib.get_close_matches(str(name), _FIELDS, n=1)
            raise ValueError(f"config: {name} is unknown{f'; did you mean {known[0]}?' if known else ''}")
        values[name] = _FIELDS[name](name, value)
    return _options({**_DEFAULTS, **values})


def _options(values: dict[str, Any]) -> SpillOptions:
    sizes: list[int] = values["pinned_pool_classes_mb"]
    counts: list[int] = values["slabs_per_class"]
    if len(counts) == 1:
        counts = counts * len(sizes)
    if len(counts) != len(sizes):
        raise ValueError(
            f"config: slabs_per_class has {len(counts)} numbers, and pinned_pool_classes_mb has {len(sizes)} sizes"
        )
    if any(one >= other for one, other in zip(sizes, sizes[1:])):
        raise ValueError(f"config: pinned_pool_classes_mb={sizes!r} must grow")
    high, low = values["vram_high_watermark_mb"], values["vram_low_watermark_mb"]
    if low > high:
        raise ValueError(f"config: vram_low_watermark_mb={low} is above vram_high_watermark_mb={high}")
    return SpillOptions(
        enabled=values["enabled"],
        # A high watermark of 0 has all tensors leave. 0 means no watermarks to the library.
        keep_bytes=None if high else 0,
        high_bytes=high * _MIB,
        low_bytes=max(1, low * _MIB) if high else 0,
        classes=tuple((size * _MIB, count) for size, count in zip(sizes, counts)),
        to_host_copies=values["max_inflight_d2h"],
        to_device_copies=values["max_inflight_h2d"],
        recompute_below=values["recompute_threshold_bytes"],
        checksums=values["debug_checksums"],
        telemetry=values["telemetry_file"] if values["telemetry_enabled"] else None,
    )


def _flag(name: str, value: object) -> bool:
    if not isinstance(value, bool):
        raise TypeError(f"config: {name}={value!r} must be true or false")
    return value


def _count(least: int) -> Callable[[str, object], int]:
    def read(name: str, value: object) -> int:
        if isinstance(value, bool) or not isinstance(value, int):
            raise TypeError(f"config: {name}={value!r} must be an integer")
        if not least <= value < 1 << 40:
            raise ValueError(f"config: {name}={value!r} must be at least {least}")
        return value

    return read


def _counts(least: int) -> Callable[[str, object], list[int]]:
    def read(name: str, value: object) -> list[int]:
        values = list(value) if isinstance(value, (list, tuple)) else [value]
        if not values:
            raise ValueError(f"config: {name} is empty")
        return [_count(least)(name, one) for one in values]

    return read


def _text(name: str, value: object) -> str:
    if not isinstance(value, str) or not value:
        raise TypeError(f"config: {name}={value!r} must be the name of a file")
    return value


_FIELDS: dict[str, Callable[[str, object], Any]] = {
    "enabled": _flag,
    "vram_high_watermark_mb": _count(0),
    "vram_low_watermark_mb": _count(0),
    "pinned_pool_classes_mb": _counts(1),
    "slabs_per_class": _counts(0),
    "max_inflight_d2h": _count(1),
    "max_inflight_h2d": _count(1),
    "debug_checksums": _flag,
    "telemetry_enabled": _flag,
    "telemetry_file": _text,
    "recompute_threshold_bytes": _count(0),
}
_DEFAULTS: dict[str, Any] = {
    "enabled": True,
    "vram_high_watermark_mb": 20000,
    "vram_low_watermark_mb": 16000,
    "pinned_pool_classes_mb": [1, 4, 16, 64, 256],
    "slabs_per_class": [512, 2, 2, 2, 2],
    "max_inflight_d2h": 1,
    "max_inflight_h2d": 1,
    "debug_checksums": False,
    "telemetry_enabled": True,
    "telemetry_file": "activation_telemetry.jsonl",
    "recompute_threshold_bytes": 0,
}
