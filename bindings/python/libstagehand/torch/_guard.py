"""Refuses reads of weights past PyTorch's dispatcher while their block is not held."""

# mypy: disable-error-code="import-not-found,misc,no-untyped-call,unused-ignore"
from __future__ import annotations

from collections.abc import Callable
from typing import TYPE_CHECKING, Any

import torch

if TYPE_CHECKING:
    from ._weights import HeldBlock

# Functions of PyTorch 2.12 and later that refuse the address of a storage, with a text, and give it again.
_refuse: Callable[[int, str], None] | None = getattr(torch._C, "_set_storage_data_ptr_access_error_msg", None)
_give: Callable[[int], None] | None = getattr(torch._C, "_clear_storage_data_ptr_access_error_msg", None)


class Guard:
    """Refuses the addresses of a block's weights in host memory, where a read of memory that is not there ends the
    process, while the block is not held.
    """

    def __init__(self, block: HeldBlock) -> None:
        self._is_open = True
        self._texts: dict[int, str] = {}  # by storage
        for weight in block.weights:
            if weight.memory.device.type == "cpu" and _refuse is not None and _give is not None:
                name = weight.places[0].name
                storage: Any = weight.memory.untyped_storage()
                self._texts[storage._cdata] = (
                    f"the device memory of {name} is read by a view of it, or by its address, but its block {block.name} "
                    "is not held. Use the weight itself, or a clone() of a view that was made during the call of its "
                    f"module, or weight.detach() for other libraries, or keep the weight on the device by outside={name!r}"
                )

    def set(self, is_open: bool) -> None:
        if is_open is self._is_open:
            return
        self._is_open = is_open
        for storage, text in self._texts.items():
            if is_open:
                _give(storage)  # type: ignore[misc]
            else:
                _refuse(storage, text)  # type: ignore[misc]
