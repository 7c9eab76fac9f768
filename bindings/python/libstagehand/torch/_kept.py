"""Tensors that autograd has saved and that stay as they are."""

# mypy: disable-error-code="import-not-found,misc,no-untyped-call,unused-ignore"
from __future__ import annotations

import torch

_detach = torch.Tensor.detach
_modes = torch._C._len_torch_dispatch_stack
_PLAIN = (torch.Tensor, torch.nn.Parameter)


def detached(tensor: torch.Tensor) -> torch.Tensor:
    """Returns tensor.detach(), unseen by modes: this is no operation of the program."""
    if not _modes() or type(tensor) not in _PLAIN:
        return _detach(tensor)
    unseen = torch._C._DisableTorchDispatch()  # type: ignore[attr-defined]
    made = _detach(tensor)
    del unseen
    return made


class Kept:
    """A saved tensor. PyTorch does not notice a change in place when hooks are in force, so the version is compared
    here. The tensor is detached, because it would keep itself alive otherwise.
    """

    __slots__ = ("tensor", "version")

    def __init__(self, tensor: torch.Tensor) -> None:
        self.tensor = detached(tensor)
        self.version = tensor._version

    def unpack(self) -> torch.Tensor:
        if self.tensor._version != self.version:
            raise modified(described(self.tensor), self.tensor._version, self.version)
        return self.tensor


def described(tensor: torch.Tensor) -> str:
    try:
        return f"a {list(tensor.shape)} tensor"
    except RuntimeError:  # nested tensors have no shape
        return "a nested tensor"


def modified(what: str, version: int, expected: int) -> RuntimeError:
    """Returns the error that PyTorch itself raises without hooks."""
    return RuntimeError(
        "one of the variables needed for gradient computation has been modified by an inplace operation: "
        f"{what} is at version {version}; expected version {expected} instead"
    )
