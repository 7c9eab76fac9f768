"""Tells how many bytes of a model are ready to be streamed, while the others are copied to host memory or pinned."""

# mypy: disable-error-code="import-not-found,misc,no-untyped-call,unused-ignore"
from __future__ import annotations

import importlib
import logging
import time
from collections.abc import Callable, Iterable, Iterator
from typing import Any, TypeAlias, Union

from .._runtime import Block, Runtime
from .._sources import BlockDesc

Progress: TypeAlias = Union[bool, Callable[[int, int], object], None]
"""A function of the bytes that are done and of all bytes; or True, for a bar; or None or False."""
_log = logging.getLogger("libstagehand.torch")
# Blocks of so many bytes together are registered by one call, which pins them. A call pins some GB in a second.
_GROUP = 256 << 20
# Seconds between two lines of the log.
_PAUSE = 5.0


def register(runtime: Runtime, descs: Iterable[BlockDesc], total: int, progress: Progress) -> list[Block]:
    """Registers blocks, and tells the progress. `descs` makes the sources of the blocks on the way."""
    if progress is None or progress is False:
        return runtime.register_blocks(descs)
    tell = teller(total) if progress is True else progress
    done, made = 0, []
    tell(done, total)
    for group in _groups(descs):
        made += runtime.register_blocks(group)
        done += sum(desc.bytes or 0 for desc in group)
        tell(done, total)
    return made


def _groups(descs: Iterable[BlockDesc]) -> Iterator[list[BlockDesc]]:
    group: list[BlockDesc] = []
    for desc in descs:
        group.append(desc)
        if sum(one.bytes or 0 for one in group) >= _GROUP:
            yield group
            group = []
    if group:
        yield group


def teller(total: int) -> Callable[[int, int], None]:
    """Returns a function that shows a bar of tqdm, or writes lines to the log if tqdm is not installed."""
    try:
        tqdm: Any = importlib.import_module("tqdm.auto").tqdm
    except ImportError:
        return _Lines()
    bar = tqdm(total=total, unit="B", unit_scale=True, unit_divisor=1024, desc="Streaming")

    def show(done: int, total: int) -> None:
        bar.update(done - bar.n)
        if done >= total:
            bar.close()

    return show


class _Lines:
    def __init__(self) -> None:
        self._last = time.monotonic()

    def __call__(self, done: int, total: int) -> None:
        now = time.monotonic()
        if done >= total or now - self._last >= _PAUSE:
            self._last = now
            _log.info("%d of %d bytes are ready to be streamed", done, total)


class Parts:
    """The progress of several models as one."""

    def __init__(self, total: int, progress: Progress) -> None:
        self._total = total
        self._tell = teller(total) if progress is True else progress
        self._before = 0

    def of(self, size: int) -> Progress:
        """Returns the progress of the next model, which has so many bytes."""
        tell = self._tell
        if tell is None or tell is False:
            return None
        before, self._before = self._before, self._before + size

        def told(done: int, total: int) -> None:
            # The bytes of a model are counted in another way than the sizes of its tensors: blocks have gaps.
            tell(before + (done * size // total if total else size), self._total)

        return told
