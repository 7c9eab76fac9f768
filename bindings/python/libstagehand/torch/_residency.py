"""The residency calls for several models on one device: keep memory, reserve it, or let a guest have it for a time."""

# mypy: disable-error-code="import-not-found,misc,no-untyped-call,unused-ignore"
from __future__ import annotations

from contextlib import AbstractContextManager

from .._generated import ResidentPriority
from .._runtime import Runtime


class Residency:
    """The residency calls of a streamed model. Another model is given as the object that stream() returned, or as a
    Runtime.
    """

    runtime: Runtime

    def keep_resident(self, target: Residency | Runtime | None = None) -> AbstractContextManager[None]:
        """The target keeps the device memory that it has in `with streamed.keep_resident():`. The target is this model
        by default.
        """
        return self.runtime.keep_resident(_runtime(target))

    def reserve(
        self,
        target: Residency | Runtime | None = None,
        *,
        priority: ResidentPriority = ResidentPriority.PRIMARY,
        bytes: int = 0,
    ) -> AbstractContextManager[None]:
        """The target's share of the device memory is never less than `bytes` in `with streamed.reserve():`. 0 is the
        memory that its plan uses. The target is this model by default.
        """
        return self.runtime.reserve(_runtime(target), priority=priority, bytes=bytes)

    def as_guest(
        self,
        guest: Residency | Runtime,
        *,
        bytes: int = 0,
        workspace_bytes: int = 0,
        shrink: bool = False,
        wait: float = 0,
    ) -> AbstractContextManager[None]:
        """The other model is a guest in `with streamed.as_guest(other):`. It gets memory that no model has reserved.
        The begin raises BudgetError if that memory does not suffice, or if other models do not give it up within
        `wait` seconds.
        """
        return self.runtime.as_guest(
            guest.runtime if isinstance(guest, Residency) else guest,
            bytes=bytes,
            workspace_bytes=workspace_bytes,
            shrink=shrink,
            wait=wait,
        )


def _runtime(target: Residency | Runtime | None) -> Runtime | None:
    return target.runtime if isinstance(target, Residency) else target
