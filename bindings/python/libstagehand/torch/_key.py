"""The key of weights whose block is not held.

PyTorch's dispatcher chooses the code of an operation by the keys of its tensors. A weight has one key more while its
block is not held. Views of the weight that are made meanwhile have the key too, and no other tensor has it. So PyTorch
calls this module for each operation on such a weight, also for operations in C++, and operations on all other tensors
cost nothing.
"""

# mypy: disable-error-code="import-not-found,misc,no-untyped-call,unused-ignore"
from __future__ import annotations

from collections.abc import Callable, Iterator
from functools import cache
from typing import Any

import torch
from torch.utils._pytree import tree_iter, tree_map

from ._once import once

_NAME = "TESTING_ONLY_GenericWrapper"  # PyTorch's own code never uses it
_Key: Any = torch._C._dispatch_key_parse(_NAME)
KEYS = torch._C.DispatchKeySet(_Key)
_KEYS_OF_WRAPPERS = KEYS | torch._C.DispatchKeySet(torch._C.DispatchKey.Python)
_data: Any = torch._C.TensorBase.data
_is_transformed: Callable[[torch.Tensor], bool] = torch._C._functorch.is_functorch_wrapped_tensor
_storage = torch.Tensor.untyped_storage
_fake_mode: Callable[[Any], object] = torch._C._get_dispatch_mode
_FAKE: Any = torch._C._TorchDispatchModeKey.FAKE
_clone = torch.Tensor.clone

Operation = Callable[..., Any]


class _Wrapper(torch.Tensor):
    """PyTorch gives keys to new wrappers only. A plain tensor gets the keys of a wrapper as its `data`."""

    @classmethod
    def __torch_dispatch__(cls, *call: Any) -> Any:  # type: ignore[override]
        raise NotImplementedError


def closed(tensor: torch.Tensor) -> torch.Tensor:
    """Returns a tensor over the same memory that has the key."""
    _register()
    make: Any = torch.Tensor._make_wrapper_subclass
    wrapper = make(
        _Wrapper,
        tensor.size(),
        strides=tensor.stride(),
        storage_offset=tensor.storage_offset(),
        dtype=tensor.dtype,
        device=tensor.device,
        _extra_dispatch_keys=KEYS,
    )
    with torch.no_grad(), torch._C._ExcludeDispatchKeyGuard(_KEYS_OF_WRAPPERS):
        without_python = torch._C._DisableTorchDispatch()  # type: ignore[attr-defined]
        wrapper.set_(tensor.untyped_storage(), tensor.storage_offset(), tensor.size(), tensor.stride())
        made = torch.empty(0, dtype=tensor.dtype, device=tensor.device)
        _data.__set__(made, wrapper)
        del without_python
    return made


# The functions that make operations on weights with the key, by the storage of the weight. Another model may get the
# same addresses later, while views of the weight still have the storage.
_owners: dict[int, Operation] = {}


def own(memory: torch.Tensor, owner: Operation) -> Callable[[], object]:
    """Has `owner` make the operations on a weight. Returns a function that ends this."""
    storage = memory.untyped_storage()._cdata
    _owners[storage] = owner
    return lambda: _owners.pop(storage, None)


def has_key(tensor: torch.Tensor) -> bool:
    return bool(torch._C._dispatch_keys(tensor).has(_Key))


def is_compiling() -> bool:
    """Whether torch.compile looks at tensors, which it then replaces by tensors without memory."""
    return _fake_mode(_FAKE) is not None


def compiled_use(name: str) -> RuntimeError:
    return RuntimeError(
        f"compiled code uses {name} while no module of its model runs: call the function without torch.compile"
    )


def without_key(operation: Any, args: Any, kwargs: Any) -> Any:
    """Makes an operation as if no tensor had the key. Views in the result have the key again."""
    with torch._C._ExcludeDispatchKeyGuard(KEYS):
        return operation(*args, **kwargs)


def _called(operation: Any, *args: Any, **kwargs: Any) -> Any:
    """PyTorch calls this function for each operation on a tensor with the key: a weight, or a view of a weight that
    was made while the weight had the key.
    """
    found = [value for value in tree_iter((args, kwargs)) if isinstance(value, torch.Tensor) and has_key(value)]
    plain = [value for value in found if not _is_transformed(value)]
    if not plain:  # vmap() and the like make the operation once more, on the tensors themselves
        return without_key(operation, args, kwargs)
    if is_compiling():
        raise compiled_use("a streamed weight")
    if _writes_lists(operation):  # it has code that changes tensor by tensor, and each comes here again
        return operation._op_dk(torch._C.DispatchKey.CompositeExplicitAutograd, *args, **kwargs)
    asked = list(dict.fromkeys(map(owner_of, plain)))
    if None in asked:
        raise RuntimeError(f"{operation} reads a weight of a model that is not streamed any more: read the weight anew")
    owner = asked[0]
    assert owner is not None
    if len(asked) > 1:
        if any(has_key(value) and owner_of(value) is not owner for value in written(operation, args, kwargs)):
            raise RuntimeError(f"{operation} changes weights of several streamed models: call it once for each model")
        # An owner holds its own weights only, so the operation gets copies of the weights of other models. The first
        # weight is the one that an operation in place changes.

        def copied(value: Any) -> Any:
            is_others = isinstance(value, torch.Tensor) and has_key(value) and owner_of(value) is not owner
            return _clone(value) if is_others else value

        args, kwargs = tree_map(copied, (args, kwargs))
    return owner(operation, args, kwargs)


def written(operation: Any, args: Any, kwargs: Any, results: bool = False) -> Iterator[torch.Tensor]:
    """Yields the tensors that an operation changes in place, or those of them that are for results (`out=`)."""
    schema = operation._schema
    if schema.is_mutable:
        arguments = dict(zip((argument.name for argument in schema.arguments), args)) | kwargs
        for argument in schema.arguments:
            is_written = argument.alias_info is not None and argument.alias_info.is_write
            if is_written and (argument.kwarg_only or not results):
                yield from (one for one in tree_iter(arguments.get(argument.name)) if isinstance(one, torch.Tensor))


@cache
def _writes_lists(operation: Any) -> bool:
    """Whether an operation changes lists of tensors, and is made of operations on a tensor each on request."""
    return any(
        argument.alias_info is not None and argument.alias_info.is_write and "List" in str(argument.type)
        for argument in operation._schema.arguments
    ) and operation.has_kernel_for_dispatch_key(torch._C.DispatchKey.CompositeExplicitAutograd)


def owner_of(tensor: torch.Tensor) -> Operation | None:
    return _owners.get(_storage(tensor)._cdata)


class _Operation:
    """Code for one operation, by its name like `aten::add.Tensor`."""

    __slots__ = ("name", "called", "operation")

    def __init__(self, name: str, called: Operation) -> None:
        self.name = name
        self.called = called
        self.operation: Any = None

    def __call__(self, *args: Any, **kwargs: Any) -> Any:
        if self.operation is None:
            space, _, name = self.name.partition("::")
            packet, _, overload = name.partition(".")
            self.operation = getattr(getattr(getattr(torch.ops, space), packet), overload or "default")
        return self.called(self.operation, *args, **kwargs)


@once
def _register() -> list[object]:
    """Registers the code for all operations. The registration ends with the objects that are returned.

    A fallback for all operations would suffice, but PyTorch does not find it while a mode of Python is in force
    (`TorchDispatchMode`). It is for the operations that other libraries add later.
    """
    called = torch.compiler.disable(_called)  # the compiler would take this code for a part of the model
    libraries: dict[str, Any] = {}
    for name in torch._C._dispatch_get_all_op_names():
        space, _, operation = name.partition("::")
        if space not in libraries:
            libraries[space] = torch.library.Library(space, "IMPL")
        # A weight gets and loses the key by these two.
        own = operation in ("set_data", "_has_compatible_shallow_copy_type")
        libraries[space].impl(operation, torch.library.fallthrough_kernel if own else _Operation(name, called), _NAME)
    libraries["_"] = torch.library.Library("_", "IMPL")
    libraries["_"].fallback(called, _NAME)
    return list(libraries.values())
