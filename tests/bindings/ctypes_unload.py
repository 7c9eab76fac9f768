"""The library is closed and loaded again hundreds of times, and works as before: devices open each time and go on
meanwhile, and no round leaves anything behind.

    ctypes_unload.py PATH_OF_THE_LIBRARY
"""

import _ctypes
import ctypes
import os
import random
import sys
import threading
import time

from ctypes_stream import (
    INVALID_STATE,
    SOURCE_POINTER,
    STREAM_HOST,
    BlockDesc,
    DeviceOptions,
    HostOptions,
    Library,
    Segment,
    View,
)

WARM_UP, ROUNDS = 30, 300
M_ARENA_MAX = -8  # of mallopt()


def threads():
    return len(os.listdir("/proc/self/task"))


def wait_for_threads(count):
    """Waits, because a joined thread is listed for a moment longer."""
    until = time.monotonic() + 30
    while threads() != count and time.monotonic() < until:
        time.sleep(0.001)
    assert threads() == count, (threads(), count)


def mapped_bytes():
    with open("/proc/self/statm") as sizes:
        return int(sizes.read().split()[0]) * os.sysconf("SC_PAGE_SIZE")


def open_device(library):
    options, device = library.new(DeviceOptions), ctypes.c_void_p()
    options.page_bytes, options.budget_bytes = 4096, 64 << 10
    host = library.new(HostOptions)
    host.staging_threads = 2
    options.host = ctypes.addressof(host)
    library.expect(library.sh_device_open(b"host", options, ctypes.byref(device)))
    return device


class Model:
    """A block whose memory is not pinned, so that the device's workers start."""

    def __init__(self, library, device, data):
        self.runtime, self.block, self.data = ctypes.c_void_p(), ctypes.c_uint64(), data
        library.expect(library.sh_runtime_create(device, None, ctypes.byref(self.runtime)))
        segment, desc = library.new(Segment), library.new(BlockDesc)
        segment.kind, segment.bytes, segment.pointer = SOURCE_POINTER, len(data), ctypes.cast(data, ctypes.c_void_p)
        desc.bytes, desc.segments, desc.segment_count = len(data), ctypes.pointer(segment), 1
        library.expect(library.sh_register_blocks(self.runtime, ctypes.byref(desc), 1, ctypes.byref(self.block)))

    def use(self, library):
        view = library.new(View)
        library.expect(library.sh_acquire(self.runtime, self.block, STREAM_HOST, 0, view))
        assert ctypes.string_at(view.address, view.bytes) == self.data
        library.expect(library.sh_release(self.runtime, self.block, STREAM_HOST))
        library.expect(
            library.sh_release(self.runtime, self.block, STREAM_HOST), INVALID_STATE
        )  # this thread has a text now


def close(library):
    _ctypes.dlclose(library._library._handle)


def one_round(path, data):
    library = Library(path)
    device = open_device(library)
    model = Model(library, device, data)
    failures = []

    def use():
        try:
            model.use(library)
        except AssertionError as failure:
            failures.append(failure)

    user = threading.Thread(target=use)
    user.start()
    user.join()
    assert not failures, failures
    library.sh_runtime_destroy(model.runtime)
    library.sh_device_close(device)
    close(library)


def leaves_nothing(path, data):
    before = threads()
    for _ in range(WARM_UP):
        one_round(path, data)
    wait_for_threads(before)
    descriptors, mapped = len(os.listdir("/proc/self/fd")), mapped_bytes()
    for _ in range(ROUNDS):
        one_round(path, data)
    wait_for_threads(before)
    assert len(os.listdir("/proc/self/fd")) == descriptors
    # The allocator takes a little more now and then; a library, or what one keeps for good, would be far more than this
    # a round.
    assert mapped_bytes() - mapped < ROUNDS * 16384, mapped_bytes() - mapped


def goes_on_while_it_is_closed(path, data):
    library = Library(path)
    device = open_device(library)
    model = Model(library, device, data)
    model.use(library)
    close(library)
    library = Library(path)
    again = open_device(library)
    assert again.value == device.value, "the same device"
    model.use(library)
    library.sh_runtime_destroy(model.runtime)
    library.sh_device_close(again)
    library.sh_device_close(device)
    close(library)


def main():
    path, data = sys.argv[1], random.Random(3).randbytes(30_000)
    # A thread that waits for the allocator would get a heap of its own from glibc, of 64 MiB of addresses.
    ctypes.CDLL(None).mallopt(M_ARENA_MAX, 1)
    leaves_nothing(path, data)
    goes_on_while_it_is_closed(path, data)
    print(f"loaded {WARM_UP + ROUNDS} times")


if __name__ == "__main__":
    main()
