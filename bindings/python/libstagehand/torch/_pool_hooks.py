"""The allocation functions in C that PyTorch calls for a pool. Each pool has a pair of its own: for one device, tag,
kind of contents and format.
"""

from __future__ import annotations

import ctypes
import pathlib
from typing import Any

from .._errors import UsageError, error_of
from .._generated import Contents, Status
from ._once import once

MOST_POOLS = 64
PATH = pathlib.Path(__file__).parent / "libstagehand_pools.so"


@once
def library() -> Any:
    hooks = ctypes.CDLL(str(PATH))
    hooks.sh_pool_open.argtypes = [ctypes.c_char_p, ctypes.c_int32, ctypes.c_char_p]
    hooks.sh_pool_open.argtypes += [ctypes.c_uint32, ctypes.c_uint32]
    hooks.sh_pool_open.restype = ctypes.c_int32
    hooks.sh_pool_take_error.argtypes = [ctypes.c_int32, ctypes.c_char_p, ctypes.c_uint64]
    hooks.sh_pool_take_error.restype = None
    hooks.sh_pool_close.argtypes, hooks.sh_pool_close.restype = [ctypes.c_int32], None
    return hooks


class PoolHooks:
    """A pair of functions. It keeps its device open until it is closed and all its memory is freed."""

    def __init__(self, device: str, ordinal: int, tag: str, contents: Contents, format: int = 0) -> None:
        encoded = tag.encode()
        if not 1 <= len(encoded) <= 63 or b"\0" in encoded:
            raise ValueError(f"the tag {tag!r} does not have 1 to 63 bytes")
        slot = int(library().sh_pool_open(device.encode(), ordinal, encoded, contents, format))
        if slot == Status.ERROR_UNSUPPORTED:
            raise UsageError(slot, f"a process has at most {MOST_POOLS} pools of different tags and devices")
        if slot < 0:
            raise error_of(slot)
        self.slot = slot
        self.alloc_name = f"sh_pool_alloc_{slot:02o}"
        self.free_name = f"sh_pool_free_{slot:02o}"

    def take_error(self) -> str:
        """Returns why the last allocation or free has failed, once. It is empty if none has failed."""
        text = ctypes.create_string_buffer(1024)
        library().sh_pool_take_error(self.slot, text, len(text))
        return text.value.decode(errors="replace")

    def close(self) -> None:
        library().sh_pool_close(self.slot)
