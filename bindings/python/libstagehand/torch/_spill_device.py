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
from .._spiller import Spiller
from ._formats import FORMATS
from ._kept import described, modified
from ._spill_pending import Pending, may_be_written
from ._spill_saved import MOST_NAMED, Prefetched, Restored, Saved, lost
from ._spill_tensors import Contents, contents_of

_detach = torch.Tensor.detach
_INFO = ffi.typeof("sh_ticket_info *")
_INFO_BYTES = ffi.sizeof("sh_ticket_info")
_NUMBERS = ffi.typeof(f"uint64_t[{MOST_NAMED}]")
_UPCOMING = ffi.typeof(f"uint64_t[{3 * MOST_NAMED + 1}]")
_COUNT = ffi.typeof("uint64_t *")
_new, _unpack = ffi.new, ffi.unpack
_raw_stream = getattr(torch._C, "_cuda_getCurrentRawStream", None)
_modes = torch._C._len_torch_dispatch_stack
_spill = lib.sh_py_spill
_collect = lib.sh_spiller_collect
_restore = lib.sh_restore
_get_info = lib.sh_ticket_get_info
_get_upcoming = lib.sh_py_upcoming
_MOST_RESTORED = 3
# The library is asked for tensors to prefetch after so many restored bytes, as long as this number of tensors has come
# back ahead of use. Small tensors are then prefetched several at a time.
_PREFETCH_AFTER = 8 << 20
_LEAST_AHEAD = 4
# Bytes of restored tensors after which the use of memory is looked up again. It takes some ten microseconds.
_LOOK_AFTER = 64 << 20


class Others(NamedTuple):
    """Device memory between two places of a step."""

    bytes: int  # the most besides saved tensors
    most: int  # the most in all
    in_use: int  # at the second place


class SpilledDevice:
    """The saved tensors of one device."""

    def __init__(
        self, spiller: Spiller, device: torch.device, pending: Pending, *, counts_used: bool, least: int
    ) -> None:
        self.spiller = spiller
        self._pending = pending
        self.device = device
        self.saved: dict[int, weakref.ref[Saved]] = {}  # by ticket
        self.scope = object()  # saved tensors share copies within it
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
        self._since_prefetch = 0  # bytes that were restored since the library was asked for tensors to prefetch
        self._ahead = 0  # prefetched tensors that were not restored yet
        self._streams: dict[int, Any] = {}
        self._recent: deque[Contents] = deque()
        self._buffers: list[Any] = []  # those that no call uses now
        self._alignment = 64 if self._cuda is None else 512  # of memory that PyTorch allocates

    # Streams and memory.

    def stream(self) -> int:
        return STREAM_HOST if self._cuda is None else int(_raw_stream(self._cuda))  # type: ignore[misc]

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

    def _used(self, bytes: int, asked: bool = False, foreseen: int | None = None) -> int:
        """Device memory in use, for the watermarks, or where it is asked for, with what is foreseen."""
        if not self._counts_used and not asked:
            return 0
        if self._cuda is None:
            return max(1, self._on_host + bytes)
        return self.in_use() + (self.coming if foreseen is None else foreseen)

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
        saved_bytes = stats.kept_bytes + stats.leaving_bytes + self._pending.bytes(self)
        for found in list(self.saved.values()):
            if (saved := found()) is not None and saved.contents.prefetched:
                # Backwards of other threads may change the table meanwhile.
                saved_bytes += sum(one.memory.nbytes for one in list(saved.contents.prefetched.values()))
        # A backward frees saved tensors, and had them at its peak.
        before, self._saved_bytes = self._saved_bytes, saved_bytes
        return Others(max(0, used - max(before, saved_bytes)), used, self.in_use())

    def forget_used(self, tensor: torch.Tensor) -> None:
        """Notes that a saved tensor is not on the device any more, or not saved any more."""
        if self._cuda is None:
            self._on_host -= tensor.nbytes

    # Saving.

    def save(self, tensor: torch.Tensor, flags: int = 0, storage: torch.UntypedStorage | None = None) -> Saved:
        """Saves a tensor, and gives up the memory of the tensors that have left. `flags` are those of sh_spill()."""
        contents = contents_of(tensor, tensor.untyped_storage() if storage is None else storage, self.scope)
        saved = Saved(self, tensor, contents, self.stream())
        if may_be_written(tensor) and not self._captures():
            if self._cuda is not None:
                self._stream_object(saved.stream)  # another stream may be the current one later
            self._pending.add(saved, flags)
        else:
            self._spill(saved, flags, self._used(saved.bytes))
        return saved

    def written(self, saved: Saved, flags: int) -> None:
        """Has a tensor leave that waited for the kernel of its node."""
        tensor = saved.tensor
        if tensor is None or tensor.data_ptr() != saved.begin:
            return  # the program has freed its memory
        # What was foreseen when it was saved is in use by now.
        self._spill(saved, flags, self._used(saved.bytes, foreseen=0))

    def _captures(self) -> bool:
        """Whether the current stream captures a graph. The library refuses it, and can tell only while it does."""
        return self._cuda is not None and bool(torch._C._cuda_isCurrentStreamCapturing())

    def _spill(self, saved: Saved, flags: int, used: int) -> None:
        size, held, contents, stream = saved.size, saved.held, saved.contents, saved.stream
        status = _spill(
            self.spiller._handle,
            saved.begin,
            saved.dtype.itemsize,
            FORMATS.get(saved.dtype, 0),
            len(size),
            size,
            saved.stride,
            contents.address,
            contents.bytes,
            contents.key,
            used,
            stream,
            flags,
            held,
            MOST_NAMED,
        )
        if held[0]:
            self.saved[held[0]] = weakref.ref(saved)
            if self._cuda is None:
                self._on_host += saved.bytes
            elif saved.tensor is not None:
                # The allocator must not give the memory to another stream while this stream waits for the copy.
                self._used_on(saved.tensor, stream)
        count = held[1]
        if count:
            self._leave(held[2 : 2 + count], stream)
        if status < 0:
            if not held[0]:
                raise error_of(status)
        elif count == MOST_NAMED:
            self.collect(stream)

    def collect(self, stream: int, all: bool = False) -> None:
        """Gives up the memory of tensors that have left."""
        out, count = _new(_NUMBERS), _new(_COUNT)
        while True:
            status = _collect(self.spiller._handle, stream, lib.SH_COLLECT_ALL if all else 0, out, MOST_NAMED, count)
            self._leave(out[0 : count[0]], stream)
            # A copy that failed leaves its tensor on the device, and the library tells it in its log.
            if status < 0 or count[0] < MOST_NAMED:
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

    def begin_scope(self) -> None:
        """Has tensors that are saved from now on share no copies with those before."""
        self.scope = object()

    def begin_step(self, number: int) -> None:
        self._gone = 0
        self.begin_scope()
        # The library maps memory between the steps of a streamed model, and PyTorch's allocator does not count it.
        if self._cuda is not None:
            self._pages = self.spiller.device.memory().used_bytes
        self.spiller.begin_step(number)

    def end_forward(self) -> None:
        """Has the current stream wait for the copies, so that the memory of tensors that leave is free."""
        self.collect(self.stream(), all=True)
        self._since_look = _LOOK_AFTER
        self._ahead = 0
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
            if saved.held[0]:
                _restore(self.spiller._handle, saved.held[0], 0, stream)
        made = self._returned(saved, stream) if kept is None else kept
        if self._gone:
            self._since_look += saved.bytes
            self._since_prefetch += saved.bytes
            if self._since_prefetch >= _PREFETCH_AFTER or self._ahead < _LEAST_AHEAD:
                self._prefetch(stream)
        return made

    def _returned(self, saved: Saved, stream: int) -> torch.Tensor:
        if saved.changed is not None:
            raise modified(f"a {list(saved.size)} tensor", saved.changed, saved.version)
        handle, number = self.spiller._handle, saved.held[0]
        if (made := self._taken(saved, handle, number, stream)) is not None:
            return made
        info = _new(_INFO)
        info.struct_size = _INFO_BYTES
        check(_get_info(handle, number, info))
        contents = saved.contents
        restored: Restored | None = contents.restored
        if restored is not None and restored.copy == info.copy and restored.stream == stream:
            if restored.tensor._version == restored.version and restored.tensor.dtype == saved.dtype:
                if contents.count <= 1:
                    contents.restored = None
                return self._view(saved, restored, info.offset)
        found = self._claimed(contents, info.prefetched_address, stream)
        if found is not None:
            memory, shift = found.memory, found.shift
        else:
            memory, shift = self._allocated(saved, info.bytes, info.offset)
        address = memory.data_ptr() + shift
        status = _restore(handle, number, address, stream)
        if status < 0:
            if found is not None:
                contents.prefetched[address] = found  # a copy may still write there
            if status == Status.ERROR_DEVICE_LOST:
                lost.append(memory)
            raise error_of(status)
        if found is not None:
            self._ahead -= 1
        made = self._over(saved, memory, shift + info.offset)
        if contents.count > 1:
            contents.restored = Restored(made, info.copy, stream, shift)
            self._recent.append(contents)
            if len(self._recent) > _MOST_RESTORED:
                self._recent.popleft().restored = None
        return made

    def _taken(self, saved: Saved, handle: Any, number: int, stream: int) -> torch.Tensor | None:
        """Returns a prefetched tensor whose contents no other saved tensor shares. Returns None if it is none."""
        prefetched = saved.contents.prefetched
        if saved.contents.count != 1 or not prefetched:
            return None
        try:
            address, found = prefetched.popitem()
        except KeyError:  # another thread restores the same tensor
            return None
        right = found.has_begun and found.ticket == number and found.stream == stream
        if not right or _restore(handle, number, address, stream) < 0:
            prefetched[address] = found
            return None  # the caller tries again, and tells of a failure
        self._ahead -= 1
        return self._over(saved, found.memory, found.shift + found.offset)

    def _over(self, saved: Saved, memory: torch.Tensor, begin: int) -> torch.Tensor:
        """Makes the tensor that lies in memory from there on."""
        if not begin and memory.dtype is saved.dtype and memory.stride() == saved.stride:
            if memory.size() == saved.size:
                return memory
        made = torch.empty(0, dtype=saved.dtype, device=self.device)
        made.set_(memory.untyped_storage(), begin // saved.dtype.itemsize, saved.size, saved.stride)
        return made

    def _view(self, saved: Saved, restored: Restored, offset: int) -> torch.Tensor:
        """Makes a tensor over memory that has come back for another one. It shares its version."""
        tensor = _detach(restored.tensor)
        begin = restored.shift + offset
        return tensor.as_strided(saved.size, saved.stride, begin // saved.dtype.itemsize)

    def _claimed(self, contents: Contents, address: int, stream: int) -> Prefetched | None:
        """Takes the memory that a copy was prefetched to, so that no other restore takes it as well."""
        found: Prefetched | None = contents.prefetched.get(address)
        if found is None or not found.has_begun or found.stream != stream:
            return None
        found = contents.prefetched.pop(address, None)
        return found

    def _allocated(self, saved: Saved, bytes: int, offset: int) -> tuple[torch.Tensor, int]:
        """Returns memory that a tensor comes back to, and where it begins there. Kernels may depend on how memory is
        aligned, so it is aligned as the tensor was.
        """
        shift = (saved.begin - offset) % self._alignment
        if not shift and not offset and bytes == saved.bytes:
            return torch.empty_strided(saved.size, saved.stride, dtype=saved.dtype, device=self.device), 0
        return torch.empty(bytes + shift, dtype=torch.uint8, device=self.device), shift

    def _used_from_time_to_time(self) -> int:
        """Device memory in use, or 0 if little has changed since it was asked for."""
        if self._since_look < _LOOK_AFTER:
            return 0
        self._since_look = 0
        return self._used(0, asked=True)

    def _prefetch(self, stream: int) -> None:
        """Begins to bring back the tensors that the next nodes need."""
        handle = self.spiller._handle
        self._since_prefetch = 0
        # Making memory for results takes longer than the call. Backwards of several threads may be here at once.
        try:
            out = self._buffers.pop()
        except IndexError:
            out = _new(_UPCOMING)
        status = _get_upcoming(handle, self._used_from_time_to_time(), out, MOST_NAMED)
        upcoming = _unpack(out, 1 + 3 * out[0]) if status >= 0 and out[0] else ()
        self._buffers.append(out)
        begun: list[tuple[Saved, Prefetched]] = []
        addresses = []
        for at in range(1, len(upcoming), 3):
            number, bytes, offset = upcoming[at : at + 3]
            found = self.saved.get(number)
            saved = None if found is None else found()
            if saved is None:
                continue
            try:
                memory, shift = self._allocated(saved, bytes, offset)
            except torch.OutOfMemoryError:
                break  # the tensor comes back when it is needed, and other memory may be free by then
            address = memory.data_ptr() + shift
            # Noted before the copy begins, so that the memory outlives the copy whatever interrupts this call.
            one = saved.contents.prefetched[address] = Prefetched(memory, shift, stream, number, offset)
            begun.append((saved, one))
            addresses.append(address)
        if not begun:
            return
        self._ahead += len(begun)
        status = lib.sh_prefetch_spilled(handle, [one.ticket for _, one in begun], addresses, len(begun), stream)
        if status < 0:
            begun = self._forget_failed(status, begun, addresses)
        for _, one in begun:
            one.has_begun = True

    def _forget_failed(
        self, status: int, named: list[tuple[Saved, Prefetched]], addresses: list[int]
    ) -> list[tuple[Saved, Prefetched]]:
        """Gives up the memory of copies that did not begin, and returns the others. The restore that tries again tells
        of the failure.
        """
        begun = []
        info = _new(_INFO)
        info.struct_size = _INFO_BYTES
        for (saved, one), address in zip(named, addresses):
            if _get_info(self.spiller._handle, one.ticket, info) >= 0 and info.prefetched_address == address:
                begun.append((saved, one))
                continue
            self._ahead -= 1
            saved.contents.prefetched.pop(address, None)
            if status == Status.ERROR_DEVICE_LOST:
                lost.append(one)
        return begun

    def forget_restored(self) -> None:
        """Gives up tensors that have come back and are kept for other saved tensors. Called when a backward ends."""
        while self._recent:
            self._recent.popleft().restored = None
