"""Measures the hot path, which is the acquire and release of a resident block, and an empty `with` to compare.

acquire_bench.py [COUNT]
"""

import sys
import time
from contextlib import nullcontext

import libstagehand as sh
from libstagehand._native import ffi, lib

count = int(sys.argv[1]) if len(sys.argv) > 1 else 100_000


def nanoseconds(work):
    """Returns the nanoseconds of one call of `count`. It takes the least of nine runs, because other work on the
    machine can only add time.
    """
    times = []
    for _ in range(9):
        begin = time.perf_counter_ns()
        work()
        times.append((time.perf_counter_ns() - begin) / count)
    return min(times)


with sh.Device("host", budget_bytes=1 << 20, page_bytes=4096) as device, sh.Runtime(device) as runtime:
    block = runtime.register_block(bytes(4096))
    with runtime.step(), runtime.acquire(block):
        pass
    view, nothing = ffi.new("sh_py_view *"), nullcontext()

    def package():
        for _ in range(count):
            with runtime.acquire(block):
                pass

    def calls():
        handle, number, stream = runtime._core, block.id, sh.STREAM_HOST
        for _ in range(count):
            lib.sh_py_acquire(handle, number, stream, 0, view)
            lib.sh_py_release(view)

    def python():
        for _ in range(count):
            with nothing:
                pass

    for name, work in (
        ("with runtime.acquire(block)", package),
        ("the two calls alone", calls),
        ("an empty with", python),
    ):
        print(f"{name:30}{nanoseconds(work):8.0f} ns")
