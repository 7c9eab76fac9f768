"""The saved tensors of one device: what leaves, what comes back, and the memory for it.

PyTorch's allocator gives memory to streams. Memory that the library copies into is allocated on the stream that reads
it. The library has that stream wait for the copy. The current stream is asked for at each call, because it changes.
"""

# mypy: disable-error-code="import-not-found,misc,no-untyped-call,unused-ignore"
from __future__ import annotations

import weakref
from collections import deque
from typing import Any, NamedTuple

import torch

from .._errors import check, error_of
from .._generated import STREAM_HOST, Status
from .._native import ffi, lib
from .._spiller import Spiller, release_ticket
from ._kept import described, modified
from ._spill_tensors import Contents, contents_of

_detach = torch.Tensor.detach
_NAMED = 16  # the most tickets that one call collects
_OUT = ffi.typeof(f"uint64_t[{_NAMED + 2}]")
_INFO = ffi.typeof("sh_ticket_info *")
_INFO_BYTES = ffi.sizeof("sh_ticket_info")
_NUMBERS = ffi.typeof(f"uint64_t[{_NAMED}]")
_COUNT = ffi.typeof("uint64_t *")
_new = ffi.new
_modes = torch._C._len_torch_dispatch_stack
_spill = lib.sh_py_spill
_collect = lib.sh_spiller_collect
_restore = lib.sh_restore
_get_info = lib.sh_ticket_get_info
_get_upcoming = lib.sh_spiller_get_upcoming
_MOST_RESTORED = 3
# Bytes of restored tensors after which the use of memory is looked up again. It takes some ten microseconds.
_LOOK_AFTER = 64 << 20
# Memory that a copy may use for ever, because the driver has failed.
_lost: list[object] = []


class Saved:
    """A saved tensor with a ticket. `tensor` is None while host memory alone has the bytes."""

    __slots__ = (
        "on",
        "held",
        "tensor",
        "version",
        "changed",
        "size",
        "stride",
        "offset",
        "dtype",
        "begin",
        "contents",
        "stream",
        "__weakref__",
    )

    def __init__(self, on: SpilledDevice, tensor: torch.Tensor, contents: Contents) -> None:
        self.on = on
        self.held = _new(_OUT)  # the ticket is its first number
        self.tensor: torch.Tensor | None = _detach(tensor)
        self.version = contents.version
        self.changed: int | None = None  # the version of the tensor when it left, if it was changed while it left
        self.size = tensor.size()
        self.stride = tensor.stride()
        self.offset = tensor.storage_offset()
        self.dtype = tensor.dtype
        self.begin = 0  # the address of the first element
        self.contents = contents
        self.stream = 0
        contents.count += 1

    def __del__(self, release: Any = release_ticket) -> None:
        # Garbage may be collected on any thread, at any time, also when the interpreter ends.
        held = getattr(self, "held", None)
        if held is None:
            return
        on, number, contents = self.on, held[0], self.contents
        if number:
            on.saved.pop(number, None)
            if self.tensor is not None:
                on.forget_used(self.tensor)
            memory = self.tensor, *contents.prefetched.values()
            if not release(on.spiller, number, memory):  # before the memory goes
                _lost.append(memory)
        contents.unused()


class _Restored:
    """A tensor that has come back, for other saved tensors with the same contents."""

    __slots__ = ("tensor", "version", "copy", "stream", "shift")

    def __init__(self, tensor: torch.Tensor, copy: int, stream: int, shift: int) -> None:
        self.tensor = tensor
        self.version = tensor._version
        self.copy = copy
        self.stream = stream
        self.shift = shift  # where the copy begins in the storage of the tensor


class _Prefetched:
    """Memory that a copy was prefetched to. It is the copy's until a restore takes it, or until the copy's last ticket
    has ended.
    """

    __slots__ = ("memory", "shift", "stream")

    def __init__(self, memory: torch.Tensor, shift: int, stream: int) -> None:
        self.memory = memory
        self.shift = shift  # where the copy begins in the memory
        self.stream = stream


class Others(NamedTuple):
    """Device memory between two places of a step."""

    bytes: int  # the most besides saved tensors
    most: int  # the most in all
    in_use: int  # at the second place


class SpilledDevice:
    """The saved tensors of one device."""

    def __init__(self, spiller: Spiller, device: torch.device, *, counts_used: bool, least: int) -> None:
        self.spiller = spiller
        self.device = device
        self.saved: dict[int, weakref.ref[Saved]] = {}  # by ticket
        self._cuda = device.index if device.type == "cuda" else None
        self._counts_used = counts_used
        self.least = least  # tensors with fewer bytes stay
        self._on_host = 0  # bytes of saved tensors, for a device that has no allocator that counts
        self._pages = 0  # memory of the library at the beginning of the step: streamed weights
        self._saved_bytes = 0  # at the last call of others()
        # Memory that is foreseen to be used until the next tensor is saved or restored, and in a backward.
        self.coming = self.coming_back = 0
        self._gone = 0  # the tensors that have left in this step
        self._since_look = 0  # bytes that were restored since the use of memory was looked up
        self._streams: dict[int, Any] = {}
        self._recent: deque[Contents] = deque()
        self._buffers: list[tuple[Any, Any, Any]] = []  # those that no call uses now
        self._alignment = 64 if self._cuda is None else 512  # of memory that PyTorch allocates

    # Streams and memory.

    def stream(self) -> int:
        return STREAM_HOST if self._cuda is None else int(torch._C._cuda_getCurrentRawStream(self._cuda))

    def _stream_object(self, stream: int) -> Any:
        """Returns PyTorch's object for a stream that is the current one."""
        known = self._streams.get(stream)
        if known is None:
            known = self._streams[stream] = torch.cuda.current_stream(self._cuda)
        return known

    def _used_on(self, tensor: torch.Tensor, stream: int) -> None:
        """Tells PyTorch's allocator that a stream, the current one, uses a tensor."""
        unseen = torch._C._DisableTorchDispatch() if _modes() else None  # type: ignore[attr-defined]
        tensor.record_stream(self._stream_object(stream))
        del unseen

    def _used(self, bytes: int, asked: bool = False) -> int:
        """Device memory in use, for the watermarks, or where it is asked for."""
        if not self._counts_used and not asked:
            return 0
        return max(1, self._on_host + bytes) if self._cuda is None else self.in_use() + self.coming

    def in_use(self) -> int:
        """Device memory in use, or the bytes of saved tensors where no allocator counts."""
        if self._cuda is None:
            return self._on_host
        return self._pages + int(torch._C._cuda_memoryStats(self._cuda)["allocated_bytes"]["all"]["current"])

    def peak(self) -> int | None:
        """The most device memory in use since the last call, or None where no allocator counts. It begins the
        allocator's peak anew.
        """
        if self._cuda is None:
            return None
        used = int(torch._C._cuda_memoryStats(self._cuda)["allocated_bytes"]["all"]["peak"])
        torch._C._cuda_resetPeakMemoryStats(self._cuda)
        return self._pages + used

    def others(self) -> Others | None:
        """The device memory in use since the last call, or None where no allocator counts. It begins the allocator's
        peak anew.
        """
        used = self.peak()
        if used is None:
            return None
        stats = self.spiller.stats()
        saved_bytes = stats.kept_bytes + stats.leaving_bytes
        for found in list(self.saved.values()):
            if (saved := found()) is not None and saved.contents.prefetched:
                saved_bytes += sum(one.memory.nbytes for one in saved.contents.prefetched.values())
        # A backward frees saved tensors, and had them at its peak.
        before, self._saved_bytes = self._saved_bytes, saved_bytes
        return Others(max(0, used - max(before, saved_bytes)), used, self.in_use())

    def forget_used(self, tensor: torch.Tensor) -> None:
        """Notes that a saved tensor is not on the device any more, or not saved any more."""
        if self._cuda is None:
            self._on_host -= tensor.nbytes

    # Saving.

    def save(self, tensor: torch.Tensor, flags: int = 0) -> Saved:
        """Saves a tensor, and gives up the memory of the tensors that have left. `flags` are those of sh_spill()."""
        stream = self.stream()
        storage = tensor.untyped_storage()
        contents = contents_of(storage, tensor._version)
        saved = Saved(self, tensor, contents)
        size, held = saved.size, saved.held
        saved.begin, saved.stream = tensor.data_ptr(), stream
        status = _spill(
            self.spiller._handle,
            saved.begin,
            tensor.element_size(),
            len(size),
            size,
            saved.stride,
            contents.address,
            contents.bytes,
            contents.key,
            self._used(tensor.nbytes),
            stream,
            flags,
            held,
            _NAMED,
        )
        if held[0]:
            self.saved[held[0]] = weakref.ref(saved)
            if self._cuda is not None:
                # The allocator must not give the memory to another stream while this stream waits for the copy.
                self._used_on(tensor, stream)
            else:
                self._on_host += tensor.nbytes
        count = held[1]
        if count:
            self._leave(held[2 : 2 + count], stream)
        if status < 0:
            if not held[0]:
                raise error_of(status)
        elif count == _NAMED:
            self.collect(stream)
        return saved

    def collect(self, stream: int, all: bool = False) -> None:
        """Gives up the memory of tensors that have left."""
        out, count = _new(_NUMBERS), _new(_COUNT)
        while True:
            status = _collect(self.spiller._handle, stream, lib.SH_COLLECT_ALL if all else 0, out, _NAMED, count)
            self._leave(out[0 : count[0]], stream)
            # A copy that failed leaves its tensor on the device, and the library tells it in its log.
            if status < 0 or count[0] < _NAMED:
                return

    def _leave(self, numbers: Any, stream: int) -> None:
        for number in numbers:
            found = self.saved.get(number)
            saved = None if found is None else found()
            if saved is None or saved.tensor is None:
                continue
            tensor = saved.tensor
            if tensor._version != saved.version:
                saved.changed = tensor._version
            if self._cuda is not None:
                if saved.stream != stream:
                    self._used_on(tensor, stream)
            saved.tensor = None
            self._gone += 1
            self.forget_used(tensor)

    def begin_step(self, number: int) -> None:
        self._gone = 0
        # The library maps memory between the steps of a streamed model, and PyTorch's allocator does not count it.
        if self._cuda is not None:
            self._pages = self.spiller.device.memory().used_bytes
        self.spiller.begin_step(number)

    def end_forward(self) -> None:
        """Has the current stream wait for the copies, so that the memory of tensors that leave is free."""
        self.collect(self.stream(), all=True)
        self._since_look = _LOOK_AFTER
        self.coming = self.coming_back

    # Restoring.

    def restore(self, saved: Saved) -> torch.Tensor:
        """Returns a saved tensor, for work on the current stream."""
        stream = self.stream()
        kept = saved.tensor
        if kept is not None:
            if kept._version != saved.version:
                raise modified(described(kept), kept._version, saved.version)
            # The tensor stays from now on, because the library hears of its use.
            _restore(self.spiller._handle, saved.held[0], 0, stream)
        made = self._returned(saved, stream) if kept is None else kept
        if self._gone:
            self._prefetch(stream, saved)
        return made

    def _returned(self, saved: Saved, stream: int) -> torch.Tensor:
        if saved.changed is not None:
            raise modified(f"a {list(saved.size)} tensor", saved.changed, saved.version)
        handle, number = self.spiller._handle, saved.held[0]
        info = _new(_INFO)
        info.struct_size = _INFO_BYTES
        check(_get_info(handle, number, info))
        contents = saved.contents
        restored: _Restored | None = contents.restored
        if restored is not None and restored.copy == info.copy and restored.stream == stream:
            if restored.tensor._version == restored.version and restored.tensor.dtype == saved.dtype:
                if contents.count <= 1:
                    contents.restored = None
                return self._view(saved, restored, info.offset)
        memory, shift = self._memory(saved, info, stream)
        address = memory.data_ptr() + shift
        status = _restore(handle, number, address, stream)
        if status < 0:
            if status == Status.ERROR_DEVICE_LOST:
                _lost.append(memory)
            raise error_of(status)
        if address == info.prefetched_address:
            contents.prefetched.pop(address, None)
        made = torch.empty(0, dtype=saved.dtype, device=self.device)
        offset = (shift + info.offset) // saved.dtype.itemsize
        made.set_(memory.untyped_storage(), offset, saved.size, saved.stride)
        if contents.count > 1:
            contents.restored = _Restored(made, info.copy, stream, shift)
            self._recent.append(contents)
            if len(self._recent) > _MOST_RESTORED:
                self._recent.popleft().restored = None
        return made

    def _view(self, saved: Saved, restored: _Restored, offset: int) -> torch.Tensor:
        """Makes a tensor over memory that has come back for another one. It shares its version."""
        tensor = _detach(restored.tensor)
        begin = restored.shift + offset
        return tensor.as_strided(saved.size, saved.stride, begin // saved.dtype.itemsize)

    def _memory(self, saved: Saved, info: Any, stream: int) -> tuple[torch.Tensor, int]:
        """Returns memory that a tensor comes back to, and where it begins there. Kernels may depend on how memory is
        aligned, so it is aligned as the tensor was.
        """
        found: _Prefetched | None = saved.contents.prefetched.get(info.prefetched_address)
        if found is not None and found.stream == stream:
            return found.memory, found.shift
        return self._allocated(saved, info.bytes, info.offset)

    def _allocated(self, saved: Saved, bytes: int, offset: int) -> tuple[torch.Tensor, int]:
        shift = (saved.begin - offset) % self._alignment
        return torch.empty(bytes + shift, dtype=torch.uint8, device=self.device), shift

    def _used_from_time_to_time(self, restored: Saved) -> int:
        """Device memory in use, or 0 if little has changed since it was asked for."""
        self._since_look += restored.size.numel() * restored.dtype.itemsize
        if self._since_look < _LOOK_AFTER:
            return 0
        self._since_look = 0
        return self._used(0, asked=True)

    def _taken_buffers(self) -> tuple[Any, Any, Any]:
        """Returns memory for the results of calls, which nobody else uses until it is put back. To make it takes longer
        than the calls do. Backwards of several threads may restore tensors at the same time.
        """
        try:
            return self._buffers.pop()
        except IndexError:
            info = _new(_INFO)
            info.struct_size = _INFO_BYTES
            return _new(_NUMBERS), _new(_COUNT), info

    def _prefetch(self, stream: int, restored: Saved) -> None:
        """Begins to bring back the tensors that the next nodes need."""
        handle = self.spiller._handle
        buffers = self._taken_buffers()
        out, count, info = buffers
        if _get_upcoming(handle, self._used_from_time_to_time(restored), out, _NAMED, count) < 0 or not count[0]:
            self._buffers.append(buffers)
            return
        named, numbers, addresses = [], [], []
        for number in out[0 : count[0]]:
            found = self.saved.get(number)
            saved = None if found is None else found()
            if saved is None:
                continue
            if _get_info(handle, number, info) < 0:
                continue
            try:
                memory, shift = self._allocated(saved, info.bytes, info.offset)
            except torch.OutOfMemoryError:
                break  # the tensor comes back when it is needed, and other memory may be free by then
            address = memory.data_ptr() + shift
            saved.contents.prefetched[address] = _Prefetched(memory, shift, stream)
            named.append(saved)
            numbers.append(number)
            addresses.append(address)
        status = lib.sh_prefetch_spilled(handle, numbers, addresses, len(numbers), stream) if numbers else 0
        if status >= 0:
            self._buffers.append(buffers)
            return
        # The restore that tries the copy again tells of the failure.
        for saved, number, address in zip(named, numbers, addresses):
            if _get_info(handle, number, info) < 0 or info.prefetched_address != address:
                lost = saved.contents.prefetched.pop(address, None)
                if status == Status.ERROR_DEVICE_LOST:
                    _lost.append(lost)

    def forget_restored(self) -> None:
        """Gives up tensors that have come back and are kept for other saved tensors. Called when a backward ends."""
        while self._recent:
            self._recent.popleft().restored = None
