"""The library of a hook mode."""

from __future__ import annotations

import ctypes
import os

_SETTERS = {
    "tms_set_interesting_region": ctypes.c_bool,
    "tms_set_current_tag": ctypes.c_char_p,
    "tms_set_enable_cpu_backup": ctypes.c_bool,
    "tms_set_cpu_backup_backend": ctypes.c_char_p,
    "tms_set_enable_disk_backup": ctypes.c_bool,
    "tms_set_retain_cpu_backup": ctypes.c_bool,
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


class BinaryWrapper:
    """`cdll` has the C functions. Their configuration is that of the calling thread."""

    def __init__(self, path_binary: str | os.PathLike[str]) -> None:
        self.cdll = ctypes.CDLL(os.fspath(path_binary))
        for name, kind in _SETTERS.items():
            getattr(self.cdll, name).argtypes, getattr(self.cdll, name).restype = [kind], None
        for name, kind in _GETTERS.items():
            getattr(self.cdll, name).argtypes, getattr(self.cdll, name).restype = [], kind
        for name in ("tms_pause", "tms_resume"):
            getattr(self.cdll, name).argtypes, getattr(self.cdll, name).restype = [ctypes.c_char_p], ctypes.c_int
        released = self.cdll.tms_stagehand_is_released
        released.argtypes, released.restype = [ctypes.c_void_p], ctypes.c_bool

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
