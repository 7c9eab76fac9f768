"""Reads of weights outside their block: copies, state dicts and pickles are served from the source, where the weights always are."""
# mypy: disable-error-code="import-not-found,misc,no-untyped-call,unused-ignore"
from __future__ import annotations

import copy
from collections import OrderedDict
from typing import Any

import torch
from torch import nn

from ._hooks import Hook
from ._reads import Reads
from ._subclasses import ENTRY
from ._weights import Entry, Weight, _data, entry_of

# What a module calls while its block is held works on the device as ever.
_METHODS = (
    "cpu", "cuda", "to", "type", "float", "double", "half", "bfloat16", "int", "long", "bool", "numpy", "tolist", "item", "clone", "detach", "__array__",
    "as_subclass", "__repr__", "__format__",
)  # fmt: skip
_NUMPY = ("numpy", "__array__")
# What gives a tensor's memory away, where nobody sees what reads it.
_MEMORY = ("untyped_storage", "storage", "_typed_storage", "__dlpack__", "__dlpack_device__")
_ALWAYS = ("__reduce_ex__",)


class Source:
    """The source of the model's weights as tensors."""

    def current(self, entry: Entry) -> torch.Tensor:
        """A parameter or buffer of the host, over the source, with what was trained written back."""
        raise NotImplementedError


def _method(source: Source, kind: type, name: str) -> Any:
    of_class = getattr(kind, name)

    def call(self: torch.Tensor, *args: Any, **named: Any) -> Any:
        entry: Entry | None = self.__dict__.get(ENTRY)
        if entry is None or (name not in _ALWAYS and entry.held()):
            return of_class(self, *args, **named)
        made = of_class(source.current(entry), *args, **named)
        if name in _NUMPY:
            made.flags.writeable = False  # nobody would see that it is written to
        return made

    return call


def _is_over(tensor: torch.Tensor, other: torch.Tensor) -> bool:
    with torch._C.DisableTorchFunctionSubclass():
        return tensor.data_ptr() == other.data_ptr() and (tensor.dtype, tensor.shape, tensor.stride()) == (other.dtype, other.shape, other.stride())


class ServedTensors:
    """The classes that a model's parameters and buffers have while they are streamed. While no module runs they look at every function.

    What others make of the class of a weight, as of `type(weight)`, is no weight: it has the class that weights had before, or is as if it had.
    Those of special tensors have their own class while modules run, since functions may be told by the class.
    """

    def __init__(self, source: Source, weights: dict[int, Weight]) -> None:
        self._source = source
        self._mode = Reads(weights, views=True)
        self._classes: dict[type, type] = {}
        self._special: list[tuple[torch.Tensor, type, type]] = []  # with the classes that it has while modules run, and while none does
        self._special_classes: dict[type, type] = {}
        self._guarded = True

    def serve(self, tensor: torch.Tensor, entry: Entry) -> None:
        kind = type(tensor)
        classes = self._special_classes if entry.special else self._classes
        if kind not in classes:
            classes[kind] = self._make(kind)
        if entry.special:
            self._special.append((tensor, kind, classes[kind]))
        tensor.__dict__[ENTRY] = entry
        tensor.__class__ = classes[kind]

    @staticmethod
    def unserve(tensor: torch.Tensor, kind: type) -> None:
        tensor.__class__ = kind
        tensor.__dict__.pop(ENTRY, None)

    def _make(self, kind: type) -> type:
        source = self._source

        def new(cls: type, *args: Any, **named: Any) -> torch.Tensor:
            made: torch.Tensor = kind(*args, **named)
            return made

        def get(tensor: torch.Tensor) -> torch.Tensor:
            entry: Entry | None = tensor.__dict__.get(ENTRY)
            with torch._C.DisableTorchFunctionSubclass():
                if entry is None:
                    data: torch.Tensor = _data.__get__(tensor)
                    return data
                # Not what `data` is: that it is changed in place has to be seen.
                return torch.Tensor.detach(tensor if entry.held() else source.current(entry))

        def put(tensor: torch.Tensor, value: torch.Tensor) -> None:
            entry: Entry | None = tensor.__dict__.get(ENTRY)
            if entry is None:
                _data.__set__(tensor, value)
                return
            place = entry.places[0]
            if not (_is_over(value, place.host()) or _is_over(value, place.on_device())):  # `tensor.data += 1` puts what it got
                raise RuntimeError(f"{entry.name} is streamed: its data cannot be replaced. Change it in place, by load_state_dict(), or before streaming")

        def deepcopy(tensor: torch.Tensor, memo: Any) -> torch.Tensor:
            entry: Entry | None = tensor.__dict__.get(ENTRY)
            if entry is None:
                return kind.__deepcopy__(tensor, memo)  # type: ignore[attr-defined, no-any-return]
            kept = source.current(entry)
            if entry.special:
                memo.setdefault(id(memo), []).append(kept)  # or its id would soon be another's
                return copy.deepcopy(kept, memo)
            # Not by the host's tensor, a new one each time: the memo would know it by an id that is soon another's.
            with torch.no_grad():
                made = kept.detach().clone(memory_format=torch.preserve_format)
            return nn.Parameter(made, requires_grad=kept.requires_grad) if isinstance(kept, nn.Parameter) else made

        methods: dict[str, Any] = {name: _method(source, kind, name) for name in (*_METHODS, *_ALWAYS)}
        methods.update({"__new__": new, "__deepcopy__": deepcopy, "data": property(get, put), "__module__": kind.__module__})
        made = type(kind)(kind.__name__, (kind,), methods)
        self._look(made)
        return made

    def _look(self, kind: Any) -> None:
        mode, source = self._mode, self._source

        def served(value: Any) -> Any:
            entry: Entry | None = value.__dict__.get(ENTRY) if isinstance(value, torch.Tensor) else None
            return value if entry is None or entry.held() else source.current(entry)

        def check(cls: type, func: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
            if getattr(func, "__name__", "") in _MEMORY:
                args = tuple(map(served, args))
            with torch._C.DisableTorchFunctionSubclass(), mode:
                return func(*args, **kwargs or {})

        kind.__torch_function__ = classmethod(check)

    def unguard(self) -> None:
        if self._guarded:
            self._guarded = False
            for kind in self._classes.values():
                kind.__torch_function__ = torch._C._disabled_torch_function_impl  # type: ignore[attr-defined]
            for tensor, own, _ in self._special:
                tensor.__class__ = own

    def guard(self) -> None:
        if not self._guarded:
            self._guarded = True
            for kind in self._classes.values():
                self._look(kind)
            for tensor, _, served in self._special:
                tensor.__class__ = served


def is_served(tensor: torch.Tensor) -> bool:
    return ENTRY in tensor.__dict__


def refuse_ties(entries: list[Entry]) -> None:
    """A module that was given another one's weight would hold its own block, and read that of the other one."""
    for entry in entries:
        for module, key in entry.keys:
            tensor = entry_of(module, key)
            if tensor is not entry.has and tensor is not None and is_served(tensor):
                other = tensor.__dict__[ENTRY].name
                raise RuntimeError(f"{entry.name} was tied to {other} while both are streamed: end streaming, tie them, and begin again")


class ServedState(Hook):
    """A state dict has the sources' tensors."""

    def __init__(self, source: Source, entries: dict[str, Entry]) -> None:
        self.source = source
        self.entries = entries

    def __call__(self, module: nn.Module, state: dict[str, Any], prefix: str, metadata: Any) -> None:
        for key, entry in self.entries.items():
            if prefix + key in state and entry.is_of(module, key):
                kept = self.source.current(entry)
                # keep_vars=True wants parameters.
                state[prefix + key] = kept if state[prefix + key] is entry.tensor else kept.detach()
            if entry.special:
                self._serve_parts(state, prefix + key + ".")

    def _serve_parts(self, state: dict[str, Any], prefix: str) -> None:
        """What modules write beside a weight of theirs: the tensors in its attributes."""
        for key, value in state.items():
            if key.startswith(prefix) and isinstance(value, torch.Tensor) and is_served(value):
                state[key] = self.source.current(value.__dict__[ENTRY])


class WithoutHooks:
    """How a module that is streamed is copied and pickled: as if it were not."""

    __slots__ = ("module",)

    def __init__(self, module: nn.Module) -> None:
        self.module = module

    def __call__(self, protocol: Any) -> Any:
        module = self.module
        kind: Any = type(module)
        made = list(kind.__reduce_ex__(module, protocol))
        if len(made) > 2 and isinstance(made[2], dict):
            made[2] = {key: _cleaned(value) for key, value in made[2].items() if not isinstance(value, (WithoutHooks, Refusal))}
        return tuple(made)


class Refusal:
    """What a module does instead of something that it cannot do while it is streamed."""

    __slots__ = ()


def _is_ours(hook: Any) -> bool:
    return isinstance(getattr(hook, "hook", hook), Hook)  # PyTorch wraps some


def _cleaned(value: Any) -> Any:
    if isinstance(value, OrderedDict) and any(map(_is_ours, value.values())):
        return OrderedDict((id, hook) for id, hook in value.items() if not _is_ours(hook))
    return value


class RefuseConversion(Refusal):
    """module.to(), half(), cuda() and the like: not of streamed weights. What changes nothing of them is let through, for the others."""

    __slots__ = ("module", "streamed")

    def __init__(self, module: nn.Module, streamed: dict[int, Entry]) -> None:
        self.module = module
        self.streamed = streamed

    def __call__(self, convert: Any, recurse: bool = True) -> nn.Module:
        module = self.module
        seen = set()
        for part in module.modules():
            for tensor in [*part._parameters.values(), *part._buffers.values()]:
                entry = self.streamed.get(id(tensor))
                if entry is None or (entry.tensor.dtype, entry.tensor.device) in seen:
                    continue
                probe = torch.empty(0, dtype=entry.tensor.dtype, device=entry.tensor.device)
                after = convert(probe)
                if (after.dtype, after.device) != (probe.dtype, probe.device):
                    raise RuntimeError(
                        f"{entry.name} is streamed as {str(probe.dtype)[6:]} on {probe.device} and cannot be made {str(after.dtype)[6:]} on "
                        f"{after.device}: convert the model before it is streamed, or end streaming first"
                    )
                seen.add((probe.dtype, probe.device))
        dicts: list[dict[str, Any]] = [module._parameters, module._buffers]
        before = [dict(one) for one in dicts]
        for one in dicts:
            for key in [key for key, tensor in one.items() if id(tensor) in self.streamed]:
                one[key] = None
        try:
            type(module)._apply(module, convert, recurse)
        finally:
            for one, entries in zip(dicts, before):
                for key, tensor in entries.items():
                    if id(tensor) in self.streamed:
                        one[key] = tensor
        return module


