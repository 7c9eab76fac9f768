"""The class of views of weights that no module holds. PyTorch tells of the operations on them by their key. What reads
the memory of a tensor past the dispatcher gets the source, as it does for the weights themselves.
"""

# mypy: disable-error-code="import-not-found,misc,no-untyped-call,unused-ignore"
from __future__ import annotations

from collections.abc import Callable
from typing import Any, Protocol

import torch
from torch import nn

from ._key import has_key, owner_of
from ._serving import CLASS, NUMPY, ON_HOST, PAST_DISPATCHER, detached, reduced, unshareable
from ._weights import Weight, _data

# They get the source of a block that is held, too.
_ALWAYS = ("__reduce_ex__", "__deepcopy__", "__copy__")
_READERS = (*PAST_DISPATCHER, *ON_HOST, "__reduce_ex__", "__repr__", "__format__", "as_subclass")


class Owner(Protocol):
    """Makes the operations on the idle views of one model."""

    def __call__(self, operation: Any, args: Any, kwargs: Any) -> Any: ...

    def readable(self, view: torch.Tensor, always: bool, copied: bool) -> torch.Tensor:
        """Returns the view if its block is held, unless `always`, and the same view of the source otherwise. While
        modules run, it is a copy, if one is asked for.
        """

    def weights_in(self, value: Any) -> tuple[Weight, ...]: ...

    tie: Callable[[torch.Tensor], None]


def _owner(view: torch.Tensor, name: str) -> Owner:
    owner: Any = owner_of(view)
    if owner is None:
        raise RuntimeError(f"{name}() reads a weight of a model that is not streamed any more: read the weight anew")
    return owner  # type: ignore[no-any-return]


def _readable(view: torch.Tensor, name: str) -> torch.Tensor:
    if not has_key(view) or (name in ON_HOST and view.device.type != "cpu"):  # without the key it has got other data
        return view
    made = _owner(view, name).readable(view, name in _ALWAYS, name in PAST_DISPATCHER)
    if isinstance(view, nn.Parameter) and made is not view:
        return nn.Parameter(made.detach(), requires_grad=view.requires_grad)
    return made


def _method(kind: type, name: str) -> Any:
    of_class = getattr(kind, name)

    def call(self: torch.Tensor, *args: Any, **named: Any) -> Any:
        readable = _readable(self, name)
        made = of_class(readable, *args, **named)
        if name in NUMPY and readable is not self:
            made.flags.writeable = False  # because a write to the array could not be seen
        return made

    return call


def _copy(self: torch.Tensor) -> torch.Tensor:
    """Returns another tensor over the same memory, like copy.copy() of a plain tensor. A change of it is seen."""
    return _readable(self, "__copy__") if has_key(self) else reduced(self)


def _deepcopy(self: torch.Tensor, memo: dict[int, Any]) -> torch.Tensor:
    readable = _readable(self, "__deepcopy__")
    kind: Any = nn.Parameter if isinstance(self, nn.Parameter) else torch.Tensor
    # The memo notes its id, which another object must not get.
    memo.setdefault(id(memo), []).append(readable)
    return kind.__deepcopy__(readable, memo)  # type: ignore[no-any-return]


def _like(kind: type, name: str) -> Any:
    """The methods that make new tensors by the key of a tensor."""
    of_class = getattr(kind, name)

    def call(self: torch.Tensor, *args: Any, **named: Any) -> Any:
        return of_class(torch.empty(0, dtype=self.dtype, device=self.device), *args, **named)

    return call


def _get_data(self: torch.Tensor) -> torch.Tensor:
    # detach() and not `data`, because a change in place must be seen.
    data: torch.Tensor = torch.Tensor.detach(self) if has_key(self) else _data.__get__(self)
    return data


def _share_memory(self: torch.Tensor) -> torch.Tensor:
    if not has_key(self):
        torch.Tensor.share_memory_(self)
        return self
    for weight in _owner(self, "share_memory_").weights_in(self):
        if self.device.type == "cpu" and not weight.places[0].original.is_shared():
            raise unshareable(weight.places[0].name)
    return self


def _is_parameter(self: torch.Tensor) -> bool:
    return isinstance(self, IdleParameter)


def _make_parameter(self: torch.Tensor, is_parameter: bool) -> None:
    """nn.Parameter() sets this of a tensor that it has made of a view."""
    self.__dict__.pop(CLASS, None)
    if has_key(self):
        _owner(self, "Parameter").tie(self)
    self.__class__ = IdleParameter if is_parameter else IdleView


def _class(kind: type) -> type:
    return type(kind)(
        kind.__name__,
        (kind,),
        {
            **{name: _method(kind, name) for name in _READERS},
            **{name: _like(kind, name) for name in ("new", "new_tensor")},
            "detach": detached(torch.Tensor.detach),
            "__copy__": _copy,
            "__deepcopy__": _deepcopy,
            "share_memory_": _share_memory,
            "data": property(_get_data, _data.__set__),
            "_is_param": property(_is_parameter, _make_parameter),
            "__torch_function__": torch._C._disabled_torch_function_impl,  # type: ignore[attr-defined]
            "__module__": kind.__module__,
        },
    )


IdleView = _class(torch.Tensor)
IdleParameter = _class(nn.Parameter)


def as_view(made: Any) -> Any:
    """Gives a result the class, if it is a view of a weight that is not held."""
    if type(made) is torch.Tensor and has_key(made):
        made.__class__ = IdleView
    return made
