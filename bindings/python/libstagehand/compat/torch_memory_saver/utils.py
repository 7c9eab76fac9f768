"""The libraries of the package, variables of the environment, and the kind of GPU."""

# mypy: disable-error-code="import-not-found,misc,no-untyped-call,unused-ignore"
from __future__ import annotations

import os
import pathlib
from collections.abc import Iterator
from contextlib import contextmanager

BOOLEANS = {"1": True, "true": True, "yes": True, "0": False, "false": False, "no": False}


def get_binary_path_from_package(stem: str) -> pathlib.Path:
    """Returns the path of a library by its name, without its ending. One for the CUDA version of PyTorch goes first."""
    import torch

    major = str(getattr(torch.version, "cuda", None) or "").split(".")[0]
    names = [f"{stem}_cu{major}.abi3.so", f"{stem}.abi3.so"]
    folders = [pathlib.Path(__file__).parent, pathlib.Path(__file__).parent.parent]
    for path in (folder / name for name in names for folder in folders):
        if path.exists():
            return path
    raise RuntimeError(f"there is no {' or '.join(names)} in {' or '.join(map(str, folders))}")


@contextmanager
def change_env(key: str, value: str) -> Iterator[None]:
    """Sets a variable of the environment until the end of a `with`."""
    before = os.environ.get(key)
    os.environ[key] = value
    try:
        yield
    finally:
        if before is None:
            os.environ.pop(key, None)
        else:
            os.environ[key] = before


def is_xpu() -> bool:
    return False


def boolean(variable: str) -> bool:
    """Returns the value of a variable of the environment. torch_memory_saver ends the process for a wrong value."""
    value = os.environ.get(variable, "0")
    if value.lower() not in BOOLEANS:
        raise ValueError(f"{variable}={value!r} is none of {', '.join(BOOLEANS)}")
    return BOOLEANS[value.lower()]
