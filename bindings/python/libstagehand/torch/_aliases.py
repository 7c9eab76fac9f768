"""The tensors that other code has over the memory of a weight: its data, views of it, flat buffers, and the tensors of
state dicts.

Storages count the tensors over them. Python's garbage collector knows these tensors, because each tensor of Python is
one of its objects, except for those that gc.freeze() has taken from it. Autograd may also have saved a view that Python
does not know. The count tells that there are such tensors.
"""

# mypy: disable-error-code="import-not-found,misc,no-untyped-call,unused-ignore"
from __future__ import annotations

import gc
import logging
from collections import Counter
from collections.abc import Callable, Iterable, Iterator
from weakref import ref

import torch

from ._arrays import find_arrays
from ._memory import byte_tensor, lazily, sealed, span_of, strided
from ._subclasses import plain_parts
from ._weights import Place, Weight, _data

_storage = torch.Tensor.untyped_storage
_log = logging.getLogger("libstagehand.torch")


def use_count(storage: torch.UntypedStorage) -> int:
    """Returns the number of tensors over a storage, also of those that only PyTorch knows."""
    return int(torch._C._storage_Use_Count(storage._cdata)) - 1  # type: ignore[attr-defined]  # `storage` is a use


def tensors_over(storages: Iterable[torch.UntypedStorage], wanted: int | None = None) -> Iterator[torch.Tensor]:
    """Yields the tensors over these storages, those made last first. The search ends after the generation of objects
    in which it has found the wanted number of tensors.
    """
    known = {storage._cdata for storage in storages}
    seen: set[int] = set()
    for generation in range(3):
        for one in gc.get_objects(generation):
            tensor = one if issubclass(type(one), torch.Tensor) else None
            while tensor is not None and id(tensor) not in seen and _is_over(tensor, known):
                seen.add(id(tensor))
                yield tensor
                tensor = tensor._base  # which may have had no object of Python so far
        if wanted is not None and len(seen) >= wanted:
            return


def _is_over(tensor: torch.Tensor, storages: set[int]) -> bool:
    try:
        return _storage(tensor)._cdata in storages
    except (NotImplementedError, RuntimeError):  # the tensor has no storage
        return False


class _Seal:
    """Another storage over the memory of a storage, which other code may move, as multiprocessing does."""

    def __init__(self, storage: torch.UntypedStorage) -> None:
        self.memory = byte_tensor(storage, 0, storage.nbytes())
        self.sealed = sealed(self.memory)

    def is_moved(self) -> bool:
        return bool(self.sealed.data_ptr() != self.memory.data_ptr())


def _version(tensor: torch.Tensor) -> int:
    return -1 if tensor.is_inference() else tensor._version


class Earlier:
    """A tensor that was made over a weight before streaming, like a flat buffer of all weights.

    :param place: The tensor of the model whose versions it shares, or None.
    :param seal: The storage that it has got, or None.
    """

    __slots__ = ("_tensor", "_place", "_version", "seal")

    def __init__(self, tensor: torch.Tensor, place: Place | None, seal: _Seal | None) -> None:
        self._tensor = ref(tensor)
        self._place = place
        self._version = _version(tensor)
        self.seal = seal

    def is_moved(self) -> bool:
        """Whether other code has moved the memory of the tensor, which is a copy then."""
        return self._tensor() is not None and self.seal is not None and self.seal.is_moved()

    def changed(self) -> bool:
        tensor = self._tensor()
        before = self._version if self._place is None else self._place.version
        return tensor is not None and _version(tensor) != before

    def note(self) -> None:
        if self._place is not None:
            self._place.note_version()
        elif (tensor := self._tensor()) is not None:
            self._version = _version(tensor)


def find_earlier(weights: list[Weight], model: Iterable[torch.Tensor]) -> Callable[[], None]:
    """Finds the tensors and arrays over the weights that other code has made before. Weights from files are made by
    streaming. The tensors get storages of their own until the function is called that is returned.
    """
    own = [place.original for weight in weights for place in weight.places]
    own += [part for tensor in model for part in plain_parts(tensor)]
    ours = {id(one): one for tensor in own for one in (tensor, tensor._base) if one is not None}
    counts = Counter(_storage(tensor)._cdata for tensor in ours.values())
    storages = {weight.storage._cdata: weight.storage for weight in weights if not weight.from_file}
    shared = [storage for key, storage in storages.items() if use_count(storage) > counts[key]]
    found: dict[int, list[torch.Tensor]] = {storage._cdata: [] for storage in shared}
    for tensor in tensors_over(shared) if shared else ():
        if id(tensor) not in ours:
            found[_storage(tensor)._cdata].append(tensor)
    hidden = {key for key, tensors in found.items() if use_count(storages[key]) > counts[key] + len(tensors)}
    for name in [weight.places[0].name for weight in weights if weight.storage._cdata in hidden][:1]:
        _log.warning(
            "a change in place of some tensor over the memory of %s, and of %d other weights, is not seen: "
            "Python's garbage collector does not know the tensor (gc.freeze(), or autograd has saved it). "
            "Call gc.unfreeze() before the model is streamed if such changes are to be seen",
            name,
            len([weight for weight in weights if weight.storage._cdata in hidden]) - 1,
        )
    seals = {
        key: _Seal(storages[key])
        for key, tensors in found.items()
        if tensors and storages[key].device.type == "cpu" and not storages[key].is_shared()
    }
    for key, seal in seals.items():
        for tensor in found[key]:
            _put_over(tensor, seal.sealed, span_of(tensor)[0])
    for weight in weights:
        for tensor in found.get(weight.storage._cdata, ()):
            begin, end = span_of(tensor)
            if begin < weight.storage_offset + weight.bytes and end > weight.storage_offset:
                place = next((place for place in weight.places if _share_versions(place, tensor)), None)
                weight.earlier.append(Earlier(tensor, place, seals.get(weight.storage._cdata)))
    find_arrays(weights)
    return lambda: _put_back([(seal.sealed, seal.memory) for seal in seals.values() if not seal.is_moved()])


def _share_versions(place: Place, tensor: torch.Tensor) -> bool:
    if not place.counted or place.tensor._version != _version(tensor):
        return False
    with torch.autograd._unsafe_preserve_version_counter(place.tensor):  # type: ignore[attr-defined]
        torch.autograd.graph.increment_version(place.tensor)
        return bool(place.tensor._version == tensor._version)


def others_over(weight: Weight, weights: Iterable[Weight]) -> list[torch.Tensor]:
    """Returns the tensors over a weight that other code has. `weights` are those of its model."""
    with torch._C.DisableTorchFunctionSubclass():
        own = [weight.memory, weight.host, weight.given, weight.copied]
        for place in weight.places:
            own += [place.tensor, place.original, place.given, place.open, place.closed]
        seals = _seals(weight)
        for seal in seals:
            own += [seal.memory, seal.sealed]
        ours = {id(tensor) for tensor in own}
        storages = {_storage(memory)._cdata: _storage(memory) for memory in _memories(weight)}
        count = sum(map(use_count, storages.values()))
        known = len({id(tensor) for tensor in own if tensor is not None and _is_over(tensor, set(storages))})
        # Storages for other code keep the one of the source.
        known += sum(_is_given(one) and _storage(one.host)._cdata in storages for one in weights)
        known += sum(_storage(seal.memory)._cdata in storages for seal in seals)
        if count == known:
            return []
        found = [tensor for tensor in tensors_over(storages.values(), count) if id(tensor) not in ours]
        if count > known + len(found):
            name = weight.places[0].name
            raise RuntimeError(
                f"{name} cannot get other contents: a tensor over its memory has to keep what it has, but Python's "
                "garbage collector does not know the tensor, because of gc.freeze(), or because autograd has saved it. "
                f"Call gc.unfreeze() before, or change {name} in place by copy_()"
            )
        return found


def _is_given(weight: Weight) -> bool:
    """Whether other code may have tensors over the source."""
    return weight.given is not None and weight.given.data_ptr() == weight.host.data_ptr()


def _seals(weight: Weight) -> list[_Seal]:
    """Returns the storages for earlier tensors that are over the source."""
    seals = {id(one.seal): one.seal for one in weight.earlier if one.seal is not None and not one.seal.is_moved()}
    return list(seals.values())


def _memories(weight: Weight) -> list[torch.Tensor]:
    given = [weight.given] if weight.given is not None and _is_given(weight) else []
    sealed = [byte_tensor(_storage(one.sealed), weight.storage_offset, weight.bytes) for one in _seals(weight)]
    return [weight.memory, weight.host, *given, *sealed]


def leave(weight: Weight, others: list[torch.Tensor]) -> None:
    """Gives the tensors over a weight a copy of its contents, before the weight gets others."""
    with torch._C.DisableTorchFunctionSubclass():
        memories = {_storage(memory)._cdata: memory for memory in _memories(weight)}
        copies: dict[torch.device, torch.Tensor] = {}
        for tensor in others:
            begin, end = span_of(tensor)
            first = int(memories[_storage(tensor)._cdata].storage_offset())
            if end <= first or begin >= first + weight.bytes:
                continue  # the source of another weight
            if tensor.device not in copies:
                copies[tensor.device] = weight.source().to(tensor.device, copy=True)
            _put_over(tensor, copies[tensor.device], begin - first)


def _put_over(tensor: torch.Tensor, memory: torch.Tensor, offset: int) -> None:
    with torch.inference_mode(tensor.is_inference()), torch.no_grad():
        _data.__set__(tensor, lazily(strided(memory, offset, tensor), tensor))


def _put_back(pairs: list[tuple[torch.Tensor, torch.Tensor]]) -> None:
    """Puts the tensors over the storage of the first tensor of bytes of each pair over that of the second."""
    storages = [_storage(one) for one, _ in pairs]
    over = {_storage(one)._cdata: (int(one.storage_offset()), memory) for one, memory in pairs}
    with torch._C.DisableTorchFunctionSubclass():
        for tensor in tensors_over(storages) if storages else ():
            first, memory = over[_storage(tensor)._cdata]
            _put_over(tensor, memory, span_of(tensor)[0] - first)


def rejoin(weights: Iterable[Weight]) -> None:
    """Puts the tensors over sources that other code has got over the storages of the sources, as streaming ends. Arrays
    and the like that were made of these tensors keep pointing to the same bytes.
    """
    pairs = []
    for weight in weights:
        own = {id(one) for one in (weight.given, *(place.given for place in weight.places)) if one is not None}
        if weight.given is not None and _is_given(weight) and use_count(_storage(weight.given)) > len(own):
            pairs.append((weight.given, weight.host))
    _put_back(pairs)
