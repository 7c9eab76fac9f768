"""Any language that can call C: the library through Python's ctypes, on the host backend.

ctypes_stream.py PATH_OF_THE_LIBRARY
"""

import ctypes as c
import hashlib
import random
import sys

u32, i32, u64, i64 = c.c_uint32, c.c_int32, c.c_uint64, c.c_int64
STREAM_HOST = 0xFFFFFFFFFFFFFFFF
OK, INVALID_HANDLE, INVALID_STRUCT, INVALID_STATE, NOT_FOUND = 0, -102, -103, -104, -105
SOURCE_POINTER, SOURCE_FILL = 1, 4

FILL = c.CFUNCTYPE(i32, c.c_void_p, u64, u64, c.c_void_p)


class DeviceOptions(c.Structure):
    _fields_ = [
        ("struct_size", u32),
        ("reserved", u32),
        ("budget_bytes", u64),
        ("margin_bytes", u64),
        ("page_bytes", u64),
        ("link_bytes_per_second", u64),
        ("backend_options", c.c_char_p),
        ("backend_path", c.c_char_p),
        ("device_memory", c.c_void_p),
        ("device_memory_bytes", u64),
        ("host", c.c_void_p),
        ("helpers", c.c_void_p),
    ]


class HostOptions(c.Structure):
    _fields_ = [
        ("struct_size", u32),
        ("flags", u32),
        ("node", u32),
        ("staging_threads", u32),
        ("staging_bytes", u64),
        ("staging_cpus", c.c_char_p),
        ("alloc", c.c_void_p),
        ("free", c.c_void_p),
        ("user_data", c.c_void_p),
    ]


class MemoryInfo(c.Structure):
    _fields_ = [("struct_size", u32), ("runtime_count", u32)] + [
        (name, u64)
        for name in (
            "budget_bytes",
            "used_bytes",
            "peak_bytes",
            "free_bytes",
            "total_bytes",
            "page_bytes",
            "staging_bytes",
            "pinned_bytes",
            "reserved_bytes",
            "guest_bytes",
            "protected_bytes",
            "headroom_bytes",
        )
    ]


class Segment(c.Structure):
    _fields_ = [
        ("struct_size", u32),
        ("kind", u32),
        ("offset", u64),
        ("bytes", u64),
        ("pointer", c.c_void_p),
        ("file", i64),
        ("file_offset", u64),
        ("fill", FILL),
        ("user_data", c.c_void_p),
    ]


class BlockDesc(c.Structure):
    _fields_ = [
        ("struct_size", u32),
        ("flags", u32),
        ("bytes", u64),
        ("segments", c.POINTER(Segment)),
        ("segment_count", u64),
        ("on_load", c.c_void_p),
        ("user_data", c.c_void_p),
        ("name", c.c_char_p),
    ]


class View(c.Structure):
    _fields_ = [
        ("struct_size", u32),
        ("flags", u32),
        ("block", u64),
        ("address", c.c_void_p),
        ("bytes", u64),
        ("serial", u64),
    ]


class Library:
    """The functions used here, with their types, so that nothing is cut to 32 bits."""

    def __init__(self, path):
        self._library = c.CDLL(path)
        handle = c.c_void_p
        self._declare("sh_version", u32)
        self._declare("sh_status_string", c.c_char_p, i32)
        self._declare("sh_last_error", c.c_uint64, c.c_char_p, c.c_uint64)
        self._declare("sh_device_open", i32, c.c_char_p, c.POINTER(DeviceOptions), c.POINTER(handle))
        self._declare("sh_device_close", None, handle)
        self._declare("sh_device_get_memory", i32, handle, c.POINTER(MemoryInfo))
        self._declare("sh_runtime_create", i32, handle, c.c_void_p, c.POINTER(handle))
        self._declare("sh_runtime_destroy", None, handle)
        self._declare("sh_register_blocks", i32, handle, c.POINTER(BlockDesc), u64, c.POINTER(u64))
        self._declare("sh_step_begin", i32, handle, c.c_char_p)
        self._declare("sh_step_end", i32, handle)
        self._declare("sh_acquire", i32, handle, u64, u64, u32, c.POINTER(View))
        self._declare("sh_release", i32, handle, u64, u64)

    def _declare(self, name, result, *arguments):
        function = getattr(self._library, name)
        function.restype, function.argtypes = result, arguments
        setattr(self, name, function)

    def error(self):
        text = c.create_string_buffer(512)
        self.sh_last_error(text, len(text))
        return text.value.decode()

    def expect(self, status, wanted=OK):
        assert status == wanted, f"{self.sh_status_string(status).decode()}: {self.error()}"

    def new(self, kind):
        """Returns a struct with its defaults."""
        value = kind()
        value.struct_size = c.sizeof(kind)
        return value


def main():
    library = Library(sys.argv[1])
    random.seed(7)
    contents = [random.randbytes(90_000 + 11_111 * (i % 3)) for i in range(10)]

    options = library.new(DeviceOptions)
    options.page_bytes = 4096
    options.budget_bytes = sum(map(len, contents)) // 4 // 4096 * 4096
    device, runtime = c.c_void_p(), c.c_void_p()
    library.expect(library.sh_device_open(b"no-such-backend", options, c.byref(device)), NOT_FOUND)
    assert not device.value and library.error()
    library.expect(library.sh_device_open(b"host", options, c.byref(device)))
    library.expect(library.sh_runtime_create(device, None, c.byref(runtime)))

    # Half of the blocks come from memory and half from a callback, which runs on the library's threads.
    @FILL
    def fill(buffer, offset, size, which):
        c.memmove(buffer, contents[which or 0][offset : offset + size], size)
        return 0

    descs, blocks = (BlockDesc * len(contents))(), (u64 * len(contents))()
    segments = []
    for i, data in enumerate(contents):
        segment = library.new(Segment)
        segment.bytes = len(data)
        if i % 2:
            segment.kind, segment.fill, segment.user_data = SOURCE_FILL, fill, i
        else:
            segment.kind, segment.pointer = SOURCE_POINTER, c.cast(data, c.c_void_p)
        segments.append(segment)
        descs[i] = library.new(BlockDesc)
        descs[i].bytes, descs[i].segments, descs[i].segment_count = len(data), c.pointer(segment), 1
        descs[i].name = f"block {i}".encode()
    library.expect(library.sh_register_blocks(runtime, descs, len(descs), blocks))

    view = library.new(View)
    compared = 0
    for _ in range(3):
        library.expect(library.sh_step_begin(runtime, None))
        for i, data in enumerate(contents):
            library.expect(library.sh_acquire(runtime, blocks[i], STREAM_HOST, 0, view))
            assert view.bytes == len(data) and view.block == blocks[i]
            assert hashlib.sha256(c.string_at(view.address, view.bytes)).digest() == hashlib.sha256(data).digest(), i
            library.expect(library.sh_release(runtime, blocks[i], STREAM_HOST))
            compared += 1
        library.expect(library.sh_step_end(runtime))

    memory = library.new(MemoryInfo)
    library.expect(library.sh_device_get_memory(device, memory))
    assert 0 < memory.peak_bytes <= memory.budget_bytes == options.budget_bytes

    library.expect(library.sh_step_end(runtime), INVALID_STATE)
    library.expect(library.sh_acquire(runtime, 0, STREAM_HOST, 0, view), INVALID_HANDLE)
    view.struct_size = 1
    library.expect(library.sh_acquire(runtime, blocks[0], STREAM_HOST, 0, view), INVALID_STRUCT)
    library.expect(library.sh_step_begin(None, None), INVALID_HANDLE)
    library.sh_runtime_destroy(runtime)
    library.expect(library.sh_step_begin(runtime, None), INVALID_HANDLE)
    library.sh_device_close(device)
    library.expect(library.sh_device_get_memory(device, memory), INVALID_HANDLE)
    print(f"{compared} blocks compared")


if __name__ == "__main__":
    main()
