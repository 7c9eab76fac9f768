"""Divides a model into modules that make a block each: its repeated layers, or the modules that the user names."""

# mypy: disable-error-code="import-not-found,misc,no-untyped-call,unused-ignore"
from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator
from dataclasses import dataclass
from fnmatch import fnmatchcase
from typing import TypeAlias, Union

import torch
from torch import nn

Chosen: TypeAlias = Union[str, "nn.Module", Iterable[Union[str, "nn.Module"]]]
"""The modules that make a block each. They are given as modules, names, or patterns of names (`*` also matches dots).
"""

# These modules do not call their children, but give the children's weights to one function.
_INDIVISIBLE = (nn.MultiheadAttention, nn.TransformerEncoderLayer, nn.TransformerDecoderLayer)
_LISTS = (nn.ModuleList, nn.ModuleDict, nn.Sequential)


@dataclass(eq=False)
class Unit:
    """A module that holds weights while its forward runs. With `own` it holds only its own weights, because its
    submodules are units themselves. Otherwise it holds the weights of its submodules too.
    """

    name: str
    module: nn.Module
    own: bool

    def modules(self) -> Iterator[nn.Module]:
        """The modules whose weights the unit holds."""
        return own_modules(self.module) if self.own else self.module.modules()


def is_called(module: nn.Module) -> bool:
    """Whether a module has a forward. A module without one (a list of modules or parameters) is used by its parent."""
    return getattr(type(module), "forward", None) is not nn.Module.forward or "forward" in module.__dict__


def own_modules(module: nn.Module) -> Iterator[nn.Module]:
    """The module, and the children that it uses without calling them."""
    yield module
    for child in module.children():
        if not is_called(child):
            yield from own_modules(child)


def own_tensors(module: nn.Module) -> Iterator[torch.Tensor | None]:
    """The parameters and buffers of these modules."""
    for part in own_modules(module):
        yield from part._parameters.values()
        yield from part._buffers.values()


def largest_block(budget: int, total: int) -> int:
    """Returns the most bytes of a block. A larger layer is divided.

    The device needs room for the block in use beside the resident blocks. So smaller blocks leave more room for
    resident blocks. The next copies also begin earlier, because they need the memory of a block that is released. But
    each block costs the host some microseconds in each step. Below 64 MiB this cost is more than the time of the copies
    that a smaller block saves. A model that needs no copies has nothing to save.
    """
    if total <= budget:
        return budget // 4
    least, most = min(budget // 4, 64 << 20), max(budget // 64, 128 << 20)
    return max(least, min(budget // 16, most))


class Division:
    """Divides a model into units. `bytes_of` returns the bytes of a module with its submodules. Modules without bytes
    are passed over. `alone` tells modules that are always units of their own.
    """

    def __init__(
        self,
        bytes_of: Callable[[nn.Module], int],
        largest: int,
        alone: Callable[[nn.Module], bool] = lambda module: False,
    ) -> None:
        self._bytes_of = bytes_of
        self._largest = largest
        self._alone = alone
        self._units: list[Unit] = []

    def automatic(self, root: nn.Module) -> list[Unit]:
        """Makes units of the layers, which are the children of lists, and of the modules between them. Units that are
        larger than `largest` are divided further.
        """
        self._divide(root, "", False)
        return self._units

    def chosen(self, root: nn.Module, blocks: Chosen) -> list[Unit]:
        """Makes units of the chosen modules, and of the modules between them. Of nested ones the outermost counts."""
        wanted = [blocks] if isinstance(blocks, (str, nn.Module)) else list(blocks)
        patterns = [one for one in wanted if isinstance(one, str)]
        modules = {id(one) for one in wanted if isinstance(one, nn.Module)}
        found: set[int] = set()
        used: set[str] = set()
        for name, module in root.named_modules():
            matching = [pattern for pattern in patterns if fnmatchcase(name, pattern)]
            if (matching and name) or id(module) in modules:
                found.add(id(module))
                used.update(matching)
        if unused := [pattern for pattern in patterns if pattern not in used] or modules - found:
            raise ValueError(
                f"blocks={unused} matches no module of {type(root).__name__}: use names of named_modules()"
            )
        self._take_chosen(root, "", found)
        return self._units

    def _take_chosen(self, module: nn.Module, name: str, found: set[int]) -> None:
        if not self._bytes_of(module):
            return
        if id(module) in found or not any(id(part) in found for part in module.modules()):
            self._whole(module, name)
            return
        self._own(module, name)
        for child_name, child in module.named_children():
            self._take_chosen(child, f"{name}.{child_name}" if name else child_name, found)

    def _divide(self, module: nn.Module, name: str, is_layer: bool) -> None:
        children = [(child_name, child) for child_name, child in module.named_children() if self._bytes_of(child)]
        expert = self._alone(module) and not module._parameters  # a module with experts has them as parameters
        if not children or expert or isinstance(module, _INDIVISIBLE):
            self._whole(module, name)
            return
        divided = any(map(self._alone, module.modules()))
        has_layers = any(
            isinstance(part, _LISTS) and sum(map(bool, map(self._bytes_of, part.children()))) > 1
            for part in module.modules()
        )
        small = self._bytes_of(module) <= self._largest and not divided
        if is_called(module) and small and (is_layer or not has_layers):
            self._whole(module, name)
            return
        self._own(module, name)
        for child_name, child in children:
            self._divide(
                child, f"{name}.{child_name}" if name else child_name, isinstance(module, _LISTS) and len(children) > 1
            )

    def _whole(self, module: nn.Module, name: str) -> None:
        if not self._bytes_of(module):
            return
        if is_called(module):
            self._units.append(Unit(name, module, False))
            return
        # A module that is not called belongs to its parent. Its children that are called are units of their own.
        for child_name, child in module.named_children():
            self._whole(child, f"{name}.{child_name}" if name else child_name)

    def _own(self, module: nn.Module, name: str) -> None:
        if is_called(module):
            self._units.append(Unit(name, module, True))


def check_modules(root: nn.Module) -> None:
    """Refuses modules that do not run hooks."""
    for name, module in root.named_modules():
        if isinstance(module, torch.jit.ScriptModule):
            raise TypeError(
                f"{name or 'the model'} is a TorchScript module, which runs no hooks: "
                "stream the Python module that it was made from"
            )


def matches(name: str, patterns: Iterable[str]) -> bool:
    return any(fnmatchcase(name, pattern) for pattern in patterns)
