"""The library of a hook mode."""

from __future__ import annotations

import ctypes
import os
from collections.abc import Sequence

from ..._errors import error_with

_SETTERS = {
    "tms_set_interesting_region": ctypes.c_bool,
    "tms_set_current_tag": ctypes.c_char_p,
    "tms_set_enable_cpu_backup": ctypes.c_bool,
    "tms_set_cpu_backup_backend": ctypes.c_char_p,
    "tms_set_enable_disk_backup": ctypes.c_bool,
    "tms_set_retain_cpu_backup": ctypes.c_bool,
    "tms_set_disk_backup_dir": ctypes.c_char_p,
    "tms_stagehand_set_backend": ctypes.c_char_p,
    "set_memory_margin_bytes": ctypes.c_uint64,
}
_GETTERS = {
    "tms_get_interesting_region": ctypes.c_bool,
    "tms_get_current_tag": ctypes.c_char_p,
    "tms_get_enable_cpu_backup": ctypes.c_bool,
    "tms_get_cpu_backup_backend": ctypes.c_char_p,
    "tms_get_enable_disk_backup": ctypes.c_bool,
    "tms_get_retain_cpu_backup": ctypes.c_bool,
}


class _Range(ctypes.Structure):
    """sh_memory_range."""

    _fields_ = (("address", ctypes.c_uint64), ("bytes", ctypes.c_uint64))


_RANGES, _BYTES = ctypes.POINTER(_Range), ctypes.POINTER(ctypes.c_uint8)
# Arguments and results of the other functions.
_OTHERS = {
    "tms_pause": ([ctypes.c_char_p], ctypes.c_int),
    "tms_resume": ([ctypes.c_char_p], ctypes.c_int),
    "tms_get_cpu_backup_pointer": ([_BYTES, ctypes.c_uint64], _BYTES),
    "tms_stagehand_pause": ([ctypes.c_char_p, _RANGES, ctypes.c_uint64], ctypes.c_int),
    "tms_stagehand_read": ([ctypes.c_void_p, ctypes.c_uint64, ctypes.c_void_p], ctypes.c_int),
    "tms_stagehand_last_error": ([ctypes.c_char_p, ctypes.c_uint64], ctypes.c_uint64),
}


class BinaryWrapper:
    """`cdll` has the C functions. Their configuration is that of the calling thread."""

    def __init__(self, path_binary: str | os.PathLike[str]) -> None:
        self.cdll = ctypes.CDLL(os.fspath(path_binary))
        if not hasattr(self.cdll, "tms_stagehand_pause"):
            raise RuntimeError(f"{os.fspath(path_binary)} is not libstagehand's library of this name")
        for name, kind in _SETTERS.items():
            getattr(self.cdll, name).argtypes, getattr(self.cdll, name).restype = [kind], None
        for name, kind in _GETTERS.items():
            getattr(self.cdll, name).argtypes, getattr(self.cdll, name).restype = [], kind
        for name, (arguments, result) in _OTHERS.items():
            getattr(self.cdll, name).argtypes, getattr(self.cdll, name).restype = arguments, result

    def pause(self, tag: str | None, unused: Sequence[tuple[int, int]]) -> None:
        """Pauses a tag, or all for None and "". What lies in the ranges is not copied."""
        ranges = (_Range * len(unused))(*(_Range(*one) for one in unused))
        self._check(self.cdll.tms_stagehand_pause(_name(tag), ranges, len(unused)))

    def resume(self, tag: str | None) -> None:
        self._check(self.cdll.tms_resume(_name(tag)))

    def read(self, address: int, bytes: int, to: int) -> bool:
        """Copies contents that are away to host memory. Returns False if they are on the device, or of others."""
        return self._check(self.cdll.tms_stagehand_read(address, bytes, to)) == 0

    def _check(self, status: int) -> int:
        if status >= 0:
            return status
        text = ctypes.create_string_buffer(int(self.cdll.tms_stagehand_last_error(None, 0)) + 1)
        self.cdll.tms_stagehand_last_error(text, len(text))
        raise error_with(status, text.value.decode(errors="replace"))

    def set_config(
        self,
        *,
        tag: str,
        interesting_region: bool,
        enable_cpu_backup: bool,
        cpu_backup_backend: str | None = None,
        enable_disk_backup: bool = False,
    ) -> None:
        encoded = tag.encode()
        if not 1 <= len(encoded) <= 63 or b"\0" in encoded:
            raise ValueError(f"the tag {tag!r} does not have 1 to 63 bytes")
        self.cdll.tms_set_current_tag(encoded)
        self.cdll.tms_set_interesting_region(interesting_region)
        self.cdll.tms_set_enable_cpu_backup(enable_cpu_backup)
        self.cdll.tms_set_cpu_backup_backend((cpu_backup_backend or "").encode())
        self.cdll.tms_set_enable_disk_backup(enable_disk_backup)


def _name(tag: str | None) -> bytes | None:
    return tag.encode() if tag else None
