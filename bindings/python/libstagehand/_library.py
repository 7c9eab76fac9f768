"""Loads the library that is in the package, before the extension module asks for it.

The extension module names the library as `libstagehand.so.0`. The dynamic linker looks for that name in LD_LIBRARY_PATH
before it looks in the folder of the package, and would take another version that it finds there. A library that the
process has loaded under that name is taken first of all.
"""

from __future__ import annotations

import ctypes
import pathlib


def load_packaged(folder: pathlib.Path) -> None:
    """Loads the library from a folder. Does nothing if the folder has none: the package then uses the library of the
    system, which the dynamic linker finds.
    """
    library = folder / "libstagehand.so.0"
    if library.exists():
        try:
            ctypes.CDLL(str(library))
        except OSError as error:
            raise ImportError(f"the library in the package cannot be loaded: {error}", path=str(library)) from error


load_packaged(pathlib.Path(__file__).parent)
