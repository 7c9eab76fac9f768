"""A package torch_memory_saver that gives libstagehand.compat.torch_memory_saver, for programs that import that name:

    pip install --no-deps --force-reinstall "$(python -m libstagehand.compat.alias)"

The command writes a wheel and prints its path. An argument names the folder for it.
"""

from __future__ import annotations

import base64
import hashlib
import pathlib
import sys
import sysconfig
import tempfile
import zipfile

_VERSION = "0.0.10+libstagehand"
_MODULE = '''"""The interface of torch_memory_saver, on libstagehand."""

from libstagehand.compat.torch_memory_saver import (
    TorchMemorySaver,
    alias_modules,
    configure_subprocess,
    torch_memory_saver,
)

is_alias_of_libstagehand = True
alias_modules()

from . import binary_wrapper, entrypoint, hooks, testing_utils, utils
'''
_LIBRARIES = ("torch_memory_saver_hook_mode_preload", "torch_memory_saver_hook_mode_torch")
# One library serves all versions of CUDA. Programs look for files of these names.
_SUFFIXES = ("", "_cu12", "_cu13")
_INFO = f"torch_memory_saver-{_VERSION}.dist-info"
_TAG = f"py3-none-{sysconfig.get_platform().replace('-', '_').replace('.', '_')}"


def _files() -> dict[str, bytes]:
    """Returns the files of the wheel but for its list of files."""
    files = {
        "torch_memory_saver/__init__.py": _MODULE.encode(),
        f"{_INFO}/METADATA": (
            f"Metadata-Version: 2.1\nName: torch_memory_saver\nVersion: {_VERSION}\n"
            "Summary: The interface of torch_memory_saver, on libstagehand\nRequires-Dist: libstagehand\n"
        ).encode(),
        f"{_INFO}/WHEEL": (
            f"Wheel-Version: 1.0\nGenerator: libstagehand\nRoot-Is-Purelib: false\nTag: {_TAG}\n"
        ).encode(),
    }
    for library in _LIBRARIES:
        contents = (pathlib.Path(__file__).parent / f"{library}.abi3.so").read_bytes()
        files |= {f"{library}{suffix}.abi3.so": contents for suffix in _SUFFIXES}
    return files


def write_wheel(folder: pathlib.Path) -> pathlib.Path:
    """Writes the wheel into a folder, and returns its path."""
    files = _files()
    path, record = folder / f"torch_memory_saver-{_VERSION}-{_TAG}.whl", f"{_INFO}/RECORD"
    lines = []
    for name, contents in files.items():
        digest = base64.urlsafe_b64encode(hashlib.sha256(contents).digest()).rstrip(b"=").decode()
        lines.append(f"{name},sha256={digest},{len(contents)}\n")
    files[record] = "".join([*lines, f"{record},,\n"]).encode()
    with zipfile.ZipFile(path, "w", zipfile.ZIP_DEFLATED) as wheel:
        for name, contents in files.items():
            wheel.writestr(name, contents)
    return path


def main() -> None:
    folder = pathlib.Path(sys.argv[1]) if len(sys.argv) > 1 else pathlib.Path(tempfile.mkdtemp())
    print(write_wheel(folder))


if __name__ == "__main__":
    main()
