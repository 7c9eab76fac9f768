"""Has torch.optim choose the same implementation for streamed parameters as for others.

torch.optim updates many tensors by one call (foreach) or one kernel (fused) only if their classes are on a list. The
class of a streamed parameter is a subclass of one on the list. Its tensors are ordinary while their block is held.
"""

# mypy: disable-error-code="import-not-found,misc,no-untyped-call,unused-ignore"
from __future__ import annotations

from collections.abc import Iterable
from typing import Any

import torch.optim.optimizer as _optimizer


class OptimTypes:
    """Classes of streamed parameters on the list of torch.optim, until remove(). A PyTorch without the list is left as
    it is.
    """

    def __init__(self, parameters: Iterable[Any]) -> None:
        self._list: list[type] = getattr(_optimizer, "_foreach_supported_types", [])
        kinds = dict.fromkeys(type(parameter) for parameter in parameters)
        self._added = [kind for kind in kinds if kind not in self._list and kind.__base__ in self._list]
        self._list.extend(self._added)

    def remove(self) -> None:
        for kind in self._added:
            self._list.remove(kind)
        self._added = []
