"""Serves reads of weights whose block is not held: copies, state dicts and pickles get the bytes of the source."""

# mypy: disable-error-code="import-not-found,misc,no-untyped-call,unused-ignore"
from __future__ import annotations

import copy
import sys
from collections import OrderedDict
from collections.abc import Callable
from typing import Any

import torch
from torch import nn
from torch.utils._python_dispatch import TorchDispatchMode

from ._hooks import Hook
from ._key import Operation, has_key
from ._subclasses import ENTRY, is_wrapper
from ._tracked import is_seen, tracked
from ._weights import Entry, Place, _data, entry_of

# The methods that read the source, unless the block is held. They work on the device as usual while it is held.
_METHODS = (
    "cpu",
    "cuda",
    "to",
    "type",
    "new",
    "new_tensor",
    "float",
    "double",
    "half",
    "bfloat16",
    "int",
    "long",
    "bool",
    "numpy",
    "tolist",
    "item",
    "clone",
    "__array__",
    "as_subclass",
    "__repr__",
    "__format__",
    # These return the tensor's memory.
    "untyped_storage",
    "storage",
    "_typed_storage",
    "__dlpack__",
    "__dlpack_device__",
)
NUMPY = ("numpy", "__array__")
# The methods that read memory past the dispatcher. They get a copy while modules run.
PAST_DISPATCHER = (
    *NUMPY,
    "tolist",
    "__dlpack__",
    "__dlpack_device__",
    "untyped_storage",
    "storage",
    "_typed_storage",
)
# The address of the source is for code that reads host memory by it. A device has no use for it.
ON_HOST = ("data_ptr",)
# The methods that ask for the key of a tensor, and read no memory.
KEYED = ("new", "new_tensor", "type")
_ALWAYS = ("__reduce_ex__",)
# The methods whose results autograd takes for results of the weight.
_DIFFERENTIABLE = ("cpu", "cuda", "to", "type", "float", "double", "half", "bfloat16", "clone", "as_subclass")
_clone = torch.Tensor.clone
_MAKE_PARAMETER = nn.Parameter.__new__.__code__
# The attribute of a tensor that nn.Parameter() makes of a weight, with the class that it had.
CLASS = "_stagehand_class"


class Source:
    """Gives the source of a model's weights as tensors."""

    def current(self, entry: Entry) -> torch.Tensor:
        """Returns a parameter or buffer over the source in host memory. Trained weights are written back before."""
        raise NotImplementedError

    def computes(self) -> bool:
        """Whether this thread runs a module of the model. Then functions get tensors on the device."""
        raise NotImplementedError


def _method(source: Source, kind: type, name: str) -> Any:
    of_class = getattr(kind, name)

    def call(self: torch.Tensor, *args: Any, **named: Any) -> Any:
        entry: Entry | None = self.__dict__.get(ENTRY)
        if entry is None or (name not in _ALWAYS and entry.held()):
            return of_class(self, *args, **named)
        if name in ON_HOST and self.device.type != "cpu":
            return of_class(self, *args, **named)
        if name in KEYED and not entry.special and (name != "type" or not (args or named)):
            return of_class(entry.places[0].open, *args, **named)
        if name not in _ALWAYS and source.computes():
            return of_class(_clone(self) if name in PAST_DISPATCHER else self, *args, **named)
        current = source.current(entry)
        if name in _DIFFERENTIABLE and not entry.special and is_seen(self):
            current = tracked(self, current.detach())
        made = of_class(current, *args, **named)
        if name in NUMPY:
            made.flags.writeable = False  # because a write to the array could not be seen
        return made

    return call


def detached(otherwise: Callable[[torch.Tensor], torch.Tensor]) -> Any:
    """Returns a method detach(). nn.Parameter() takes what it gets if that has the class of the weight, and then sets
    `_is_param`. So the parameter shares memory with the weight, as one of `weight.data` does.
    """

    def detach(self: torch.Tensor) -> torch.Tensor:
        if sys._getframe(1).f_code is not _MAKE_PARAMETER:
            return otherwise(self)
        made = self.data
        made.__dict__[CLASS] = type(made)
        made.__class__ = type(self)
        return made

    return detach


def _is_parameter(kind: type) -> property:
    def get(self: torch.Tensor) -> bool:
        return bool(self.__dict__.get("_is_param", issubclass(kind, nn.Parameter)))

    def put(self: torch.Tensor, is_parameter: bool) -> None:
        own = self.__dict__.pop(CLASS, None)
        if own is None:
            self.__dict__["_is_param"] = is_parameter
        elif own is torch.Tensor:
            self.__class__ = nn.Parameter
        else:
            self.__class__ = own
            self._is_param = is_parameter  # type: ignore[attr-defined]

    return property(get, put)


def _is_over(tensor: torch.Tensor, other: torch.Tensor, address: Callable[[torch.Tensor], object]) -> bool:
    with torch._C.DisableTorchFunctionSubclass():
        return (tensor.dtype, tensor.shape, tensor.stride(), address(tensor)) == (
            other.dtype,
            other.shape,
            other.stride(),
            address(other),
        )


def _address(tensor: torch.Tensor) -> int:
    return int(tensor.data_ptr())


def _place_in_storage(tensor: torch.Tensor) -> tuple[int, int]:
    """Where a tensor begins, also if its address is not given."""
    return torch.Tensor.untyped_storage(tensor)._cdata, int(tensor.storage_offset())


class _WrapperReads(TorchDispatchMode):
    """Sees the operations on wrappers that are not held, because the dispatcher ignores the key of their parts."""

    def __init__(self, unheld: Operation) -> None:
        super().__init__()
        self._unheld = unheld

    def __torch_dispatch__(self, func: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
        return self._unheld(func, args, kwargs or {})


class ServedTensors:
    """The classes that a model's parameters and buffers have while they are streamed.

    An object that other code makes from such a class, for example by `type(weight)(...)`, is not a streamed weight. It
    has the class that the weight had before, or behaves like it. Special tensors have their own class while modules
    run, because functions may depend on the class.
    """

    def __init__(self, source: Source) -> None:
        self._source = source
        self._classes: dict[type, type] = {}
        # Makes the operations on wrappers that are not held.
        self.unheld: Operation = None  # type: ignore[assignment]
        # Gives a weight other contents. The last argument tells whether they are in the source already.
        self.replace: Callable[[Place, torch.Tensor, bool], None] = None  # type: ignore[assignment]
        # Each special tensor, with the class that it has while modules run, and the class that it has otherwise.
        self._special: list[tuple[torch.Tensor, type, type]] = []
        self._special_classes: dict[type, type] = {}
        self._guarded = True

    def serve(self, tensor: torch.Tensor, entry: Entry) -> None:
        kind = type(tensor)
        classes = self._special_classes if entry.special else self._classes
        if kind not in classes:
            classes[kind] = self._make(kind)
        if is_wrapper(tensor):
            for block in entry.blocks():
                block.wrappers.append((entry, kind, classes[kind]))
        elif entry.special:
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
                # detach() and not `data`, because a change in place must be seen. The result has the key of weights
                # that are not held, as the weight itself, and is on the device for functions that compute with it.
                is_here = entry.held() or source.computes() or not entry.special
                return torch.Tensor.detach(tensor if is_here else source.current(entry))

        def put(tensor: torch.Tensor, value: torch.Tensor) -> None:
            entry: Entry | None = tensor.__dict__.get(ENTRY)
            if entry is None:
                _data.__set__(tensor, value)
                return
            place = entry.places[0]
            # `tensor.data += 1` assigns the tensor that it got before.
            if _is_over(value, place.open, _place_in_storage):
                return
            if _is_over(value, place.host(), _address):
                if not (entry.special or entry.held() or place.weight.fixed):
                    self.replace(place, value, True)
                return
            if entry.special or entry.held() or (value.dtype, value.shape) != (tensor.dtype, tensor.shape):
                raise RuntimeError(
                    f"{entry.name} is streamed, so its data cannot be replaced: "
                    "change the data in place, or by load_state_dict(), or before streaming"
                )
            self.replace(place, value, False)  # the weight keeps its memory, and its source gets the values

        def deepcopy(tensor: torch.Tensor, memo: Any) -> torch.Tensor:
            entry: Entry | None = tensor.__dict__.get(ENTRY)
            if entry is None:
                return kind.__deepcopy__(tensor, memo)  # type: ignore[attr-defined, no-any-return]
            kept = source.current(entry)
            if entry.special:
                memo.setdefault(id(memo), []).append(kept)  # kept alive, because another object could get its id
                return copy.deepcopy(kept, memo)
            # `kept` is a new object each time. It is not copied by deepcopy, because the memo would note an id that
            # another object gets soon.
            with torch.no_grad():
                made = kept.detach().clone(memory_format=torch.preserve_format)
            return nn.Parameter(made, requires_grad=kept.requires_grad) if isinstance(kept, nn.Parameter) else made

        def shallow_copy(tensor: torch.Tensor) -> torch.Tensor:
            entry: Entry | None = tensor.__dict__.get(ENTRY)
            if entry is None or entry.special:
                return reduced(tensor)
            return source.current(entry)  # a change of it is seen

        methods: dict[str, Any] = {
            **{name: _method(source, kind, name) for name in (*_METHODS, *ON_HOST, *_ALWAYS)},
            "detach": detached(_method(source, kind, "detach")),
            "_is_param": _is_parameter(kind),
            "__new__": new,
            "__copy__": shallow_copy,
            "__deepcopy__": deepcopy,
            "data": property(get, put),
            "_use_count": _use_count,
            "share_memory_": _share_memory,
            "__module__": kind.__module__,
        }
        # Functions of plain tensors need not look: PyTorch tells of operations on tensors with the key.
        methods["__torch_function__"] = torch._C._disabled_torch_function_impl  # type: ignore[attr-defined]
        if hasattr(kind, "__tensor_flatten__"):
            methods["__torch_function__"] = classmethod(self._look)
        return type(kind)(kind.__name__, (kind,), methods)

    def _look(self, kind: type, func: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
        with torch._C.DisableTorchFunctionSubclass(), _WrapperReads(self.unheld):
            return func(*args, **kwargs or {})

    def unguard(self) -> None:
        if self._guarded:
            self._guarded = False
            for tensor, own, _ in self._special:
                tensor.__class__ = own

    def guard(self) -> None:
        if not self._guarded:
            self._guarded = True
            for tensor, _, served in self._special:
                tensor.__class__ = served


def reduced(tensor: torch.Tensor) -> torch.Tensor:
    """Does what copy.copy() does for a class without a method for it."""
    made: Any = tensor.__reduce_ex__(4)  # type: ignore[no-untyped-call]
    return made[0](*made[1])  # type: ignore[no-any-return]


def _use_count(tensor: torch.Tensor) -> int:
    """PyTorch asks for it before it swaps the memory of two tensors."""
    entry: Entry | None = tensor.__dict__.get(ENTRY)
    if entry is not None:
        raise RuntimeError(
            f"{entry.name} is streamed, so it cannot be swapped with another tensor (swap_tensors(), or "
            "set_swap_module_params_on_conversion()): exchange the data, or end streaming first"
        )
    return int(torch.Tensor._use_count(tensor))  # type: ignore[attr-defined]


def _share_memory(tensor: torch.Tensor) -> torch.Tensor:
    entry: Entry | None = tensor.__dict__.get(ENTRY)
    if entry is not None and tensor.device.type == "cpu" and not entry.places[0].original.is_shared():
        raise unshareable(entry.name)
    return tensor if entry is not None else torch.Tensor.share_memory_(tensor)


def unshareable(name: str) -> RuntimeError:
    return RuntimeError(
        f"{name} is streamed, so its memory cannot be moved to shared memory: call share_memory() before streaming"
    )


def is_served(tensor: torch.Tensor) -> bool:
    return ENTRY in tensor.__dict__


def refuse_ties(entries: list[Entry]) -> None:
    """Refuses weights that were tied while they are streamed. The module would hold its own block, but read the block
    of the other weight.
    """
    for entry in entries:
        has = entry.has
        for module, key in entry.keys:
            if module._parameters.get(key) is has:
                continue
            tensor = entry_of(module, key)
            if tensor is not has and tensor is not None and is_served(tensor):
                other = tensor.__dict__[ENTRY].name
                raise RuntimeError(
                    f"{entry.name} was tied to {other} while both are streamed: "
                    "end streaming, tie the weights, and begin streaming again"
                )


class WithoutHooks:
    """The __reduce_ex__ of a streamed module: its copies and pickles are those of a module that is not streamed."""

    __slots__ = ("module",)

    def __init__(self, module: nn.Module) -> None:
        self.module = module

    def __call__(self, protocol: Any) -> Any:
        module = self.module
        kind: Any = type(module)
        made = list(kind.__reduce_ex__(module, protocol))
        if len(made) > 2 and isinstance(made[2], dict):
            made[2] = {
                key: _cleaned(value) for key, value in made[2].items() if not isinstance(value, (WithoutHooks, Refusal))
            }
        return tuple(made)


class Refusal:
    """The base of functions that refuse an operation of a streamed module, or do it in another way."""

    __slots__ = ()


class SaveSources(Refusal):
    """The _save_to_state_dict() of a streamed module. It runs for a module that has the tensors over the sources in
    place of the streamed ones: some modules and wrappers write parts of their weights by functions of their own.
    """

    __slots__ = ("module", "source", "entries")

    def __init__(self, module: nn.Module, source: Source, entries: dict[str, Entry]) -> None:
        self.module = module
        self.source = source
        self.entries = entries

    def __call__(self, destination: Any, prefix: str, keep_vars: bool) -> None:
        module, kind = self.module, type(self.module)
        saved = object.__new__(kind)
        saved.__dict__.update(module.__dict__)
        for name in ("_parameters", "_buffers"):
            saved.__dict__[name] = {key: self._current(key, one) for key, one in module.__dict__[name].items()}
        kind._save_to_state_dict(saved, destination, prefix, keep_vars)

    def _current(self, key: str, tensor: torch.Tensor | None) -> torch.Tensor | None:
        entry = self.entries.get(key)
        if entry is not None and entry.is_of(self.module, key):
            return self.source.current(entry)
        return copy.copy(tensor) if tensor is not None and has_key(tensor) else tensor  # it was made of a view


def _is_ours(hook: Any) -> bool:
    return isinstance(getattr(hook, "hook", hook), Hook)  # PyTorch wraps some hooks


def _cleaned(value: Any) -> Any:
    if isinstance(value, OrderedDict) and any(map(_is_ours, value.values())):
        return OrderedDict((id, hook) for id, hook in value.items() if not _is_ours(hook))
    return value
