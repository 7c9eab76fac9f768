"""Frees what a failed begin of streaming has left in the frames of its error.

Programs and shells keep errors, and an error keeps the local variables of the functions that it came through. Among
them are sources in pinned memory, which would keep the device open.
"""

from __future__ import annotations

import os
import pathlib
from types import TracebackType

_PACKAGE = str(pathlib.Path(__file__).parent.parent) + os.sep


def forget_locals(error: BaseException | None) -> None:
    """Clears the local variables of this package's functions that have failed. Functions of the user keep theirs, for
    debuggers.
    """
    seen: set[int] = set()
    left = [error]
    while left:
        one = left.pop()
        if one is not None and id(one) not in seen:
            seen.add(id(one))
            left += [one.__cause__, one.__context__]
            _clear(one.__traceback__)


def _clear(trace: TracebackType | None) -> None:
    while trace is not None:
        if trace.tb_frame.f_code.co_filename.startswith(_PACKAGE):
            try:
                trace.tb_frame.clear()
            except RuntimeError:
                pass  # the function still runs
        trace = trace.tb_next
