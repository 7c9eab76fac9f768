"""Streams the models of a pipeline, as diffusers has them: several modules that one object calls in turn."""

# mypy: disable-error-code="import-not-found,misc,no-untyped-call,unused-ignore"
from __future__ import annotations

from collections.abc import Iterable, Iterator, Mapping
from contextlib import ExitStack, contextmanager
from typing import Any, Protocol

import torch
from torch import nn

from .._device import Device
from .._errors import UsageError
from .._generated import RuntimeStats, Status
from .._lifetime import Closing
from ._budget import Budget, bytes_of
from ._devices import AnyDevice, device_of
from ._offloaded import refuse_offloaded
from ._outside import put_outside
from ._plainly import plainly
from ._progress import Parts, Progress
from ._streamed import Streamed
from ._units import Divider
from ._weights import Found, find_tensors, put_into


class Pipeline(Protocol):
    """An object with models: a DiffusionPipeline of diffusers, or anything with a mapping of names to components."""

    @property
    def components(self) -> Mapping[str, Any]: ...


def is_pipeline(model: object) -> bool:
    return not isinstance(model, nn.Module) and isinstance(getattr(model, "components", None), Mapping)


class StreamedPipeline(Closing):
    """A pipeline whose models are streamed to one device, until close() or the end of the `with`. The models share the
    budget: each of them gets the memory while it runs. No parameter of the streamed models requires a gradient
    meanwhile.

    :param pipe: A pipeline of diffusers, or another object whose `components` maps names to modules and other objects.
    :param device: "cuda:0", "cpu" or "host" (for tests), or a Device. A Device has a budget of its own.
    :param budget: The most bytes of device memory for the weights of all streamed models together. None is the budget
        of the device.
    :param parts: The names of the components that are streamed. None streams all modules. The modules that are not
        streamed are moved to the device, outside the budget, and are moved back at the end.
    :param mapped: Whether tensors in host memory that is mapped from files are streamed from there, as for a single
        model.
    :param pin: Whether to pin the host memory, as for a single model.
    :param pack: Whether to pack floating-point weights, as for a single model.
    :param debug: Whether to check steps for reads of weights whose block is not held, as for a single model.
    :param share_wait: The most seconds that a step waits for steps of other threads, as for a single model.
    :param progress: A function that is called as progress(done, total), or True, as for a single model. It counts the
        bytes of all streamed models.
    """

    def __init__(
        self,
        pipe: Pipeline,
        device: AnyDevice = "cuda",
        *,
        budget: Budget | None = None,
        parts: Iterable[str] | None = None,
        mapped: bool = False,
        pin: bool = True,
        pack: bool = False,
        debug: bool | None = None,
        share_wait: float = 10.0,
        progress: Progress = None,
    ) -> None:
        self.pipe = pipe
        self.parts: dict[str, Streamed] = {}
        self._closed = False
        self._undo = ExitStack()
        try:
            modules = _modules(pipe)
            chosen = _choose(modules, parts)
            self.device, torch_device = self._open(
                device, bytes_of(budget, sum(_size(modules[name]) for name in set(chosen)))
            )
            for name, module in modules.items():
                refuse_offloaded(module, torch_device, name, _remedy(pipe))
            models = {id(modules[name]): name for name in chosen}
            for name, module in modules.items():
                if id(module) not in models:
                    self._move(name, module, torch_device)
            share = self.device.memory().budget_bytes // max(1, len(models))
            told = Parts(sum(_size(modules[name]) for name in models.values()), progress)
            for id_, name in models.items():
                with _named(name):
                    self._freeze(modules[name])
                    made = _Part(
                        modules[name],
                        self.device,
                        share,
                        mapped=mapped,
                        pin=pin,
                        pack=pack,
                        debug=debug,
                        name=name,
                        share_wait=share_wait,
                        progress=told.of(_size(modules[name])),
                    )
                self._undo.callback(made.close)
                self.parts.update({other: made for other in chosen if id(modules[other]) == id_})
        except BaseException:
            self._closed = True
            self._undo.close()
            raise

    def _open(self, device: AnyDevice, budget: int | None) -> tuple[Device, torch.device]:
        if isinstance(device, Device) and budget is not None:
            raise ValueError(
                "the models of a pipeline share the budget of the Device: call device.set_budget() instead"
            )
        made, torch_device, opened = device_of(device, budget)
        if opened:
            self._undo.callback(made.close)
        if budget is not None:
            before = made.memory()
            if before.runtime_count:
                raise UsageError(
                    Status.ERROR_INVALID_STATE,
                    f"other models are streamed to {made.name}, and budget= would change their budget too: "
                    "pass the Device that they share, without budget=",
                )
            made.set_budget(budget)
            self._undo.callback(made.set_budget, before.budget_bytes)
        return made, torch_device

    def _freeze(self, module: nn.Module) -> None:
        """Has no parameter require a gradient until the end. Pipelines compute without gradients. But if only some
        parameters were frozen, as in the safety checker of diffusers, the others would be taken for trained ones, and
        would not be streamed.
        """
        trained = [parameter for parameter in module.parameters() if parameter.requires_grad]
        for parameter in trained:
            parameter.requires_grad_(False)
            self._undo.callback(parameter.requires_grad_, True)

    def _move(self, name: str, module: nn.Module, device: torch.device) -> None:
        """Moves a module that is not streamed to the device."""
        found = find_tensors(module)
        for one in found:
            if one.tensor.is_meta:
                raise ValueError(f"{name}.{one.names[0]} is on the meta device, without contents: load it before")
        with plainly():
            put_outside(found, device, self._undo, self._replace)

    def _replace(self, one: Found, made: torch.Tensor) -> None:
        put_into(one.keys, one.tensor, made)
        self._undo.callback(put_into, one.keys, made, one.tensor)

    def close(self) -> None:
        """Ends streaming. The models are then what they were before, and where they were."""
        if self._closed:
            return
        for part in self.parts.values():
            part.refuse_within()
        self._closed = True
        self._undo.close()

    def stats(self) -> dict[str, RuntimeStats]:
        """Returns the counters of the copies of each streamed model."""
        return {name: part.stats() for name, part in self.parts.items()}

    def __repr__(self) -> str:
        where = f"{self.device.name}{' (closed)' if self._closed else ''}"
        return f"<libstagehand.torch.StreamedPipeline {type(self.pipe).__name__}: {', '.join(self.parts)} on {where}>"

    def __reduce_ex__(self, protocol: object) -> Any:
        raise TypeError("the object that stream() returned cannot be copied or pickled: copy or pickle the pipeline")


class _Part(Streamed):
    """A model that shares the device with the other models of its pipeline."""

    def __init__(self, module: nn.Module, device: Device, share: int, **options: Any) -> None:
        self._share = share
        super().__init__(module, device, **options)

    def _divide(self, divider: Divider, budget: int | None, trained: bool) -> None:
        # Each model keeps room for a block or two, also while another one runs. So blocks are as small as if the models
        # had a part of the budget each, although each of them gets more of it.
        super()._divide(divider, self._share, trained)


def _modules(pipe: Pipeline) -> dict[str, nn.Module]:
    """The modules of a pipeline that have something to move, by name."""
    modules = {name: one for name, one in pipe.components.items() if isinstance(one, nn.Module)}
    return {name: module for name, module in modules.items() if find_tensors(module)}


@contextmanager
def _named(name: str) -> Iterator[None]:
    """Adds to an error which model of the pipeline it is about."""
    try:
        yield
    except Exception as error:
        error.add_note(f"The model is {name!r} of the pipeline.")
        raise


def _size(module: nn.Module) -> int:
    return sum(one.tensor.numel() * one.tensor.element_size() for one in find_tensors(module))


def _choose(modules: dict[str, nn.Module], parts: Iterable[str] | None) -> list[str]:
    if parts is None:
        # A module that has only small buffers, such as a table of times, has nothing to stream.
        chosen = [name for name, module in modules.items() if any(one.numel() for one in module.parameters())]
    else:
        chosen = [parts] if isinstance(parts, str) else list(parts)
    if unknown := [name for name in chosen if name not in modules]:
        raise ValueError(f"parts={unknown} are no modules of the pipeline, which has {', '.join(modules)}")
    if not chosen:
        raise ValueError("the pipeline has no part to stream")
    return chosen


def _remedy(pipe: Pipeline) -> str:
    names = [name for name in ("reset_device_map", "remove_all_hooks") if hasattr(pipe, name)]
    if names and getattr(pipe, "hf_device_map", None) is None:
        names = names[-1:]
    return f"pipe.{names[0]}()" if names else ""
