"""What an interrupt (Ctrl-C) leaves: it is raised when the call that waited returns, and what that call has begun is
ended.
"""

import gc
import os
import signal
import threading
import weakref

import pytest
from conftest import PAGE

import libstagehand as sh
from libstagehand import _runtime, _scopes, _view


@pytest.fixture
def interrupting():
    """A source that runs on a thread of the library. The interrupt comes to the main thread while that thread waits for
    the source.
    """
    came, handled = os.pipe()
    os.set_blocking(handled, False)
    before = signal.set_wakeup_fd(handled)

    def fill(buffer, offset):
        signal.pthread_kill(threading.main_thread().ident, signal.SIGINT)
        os.read(came, 1)
        buffer[:] = b"i" * len(buffer)

    yield fill
    signal.set_wakeup_fd(before)
    os.close(came)
    os.close(handled)


@pytest.fixture
def runtime(device):
    runtime = sh.Runtime(device, unordered_bytes=2 * PAGE)
    yield runtime
    runtime.close()


@pytest.fixture
def block(runtime, interrupting):
    return runtime.register_block(sh.Fill(interrupting, PAGE), unordered=True)


@pytest.mark.parametrize(
    "acquire",
    [lambda runtime, block: runtime.acquire(block), lambda runtime, block: runtime.acquire_many([block, block])],
)
def test_an_acquire_that_is_interrupted_holds_nothing(runtime, block, acquire):
    with pytest.raises(KeyboardInterrupt) as kept:  # with the frames in it, as an interactive session keeps them
        acquire(runtime, block)
    assert block.info().held == 0 and kept.value is not None
    with runtime.step(), runtime.acquire(block) as view:  # what was loaded is there
        assert view.buffer == b"i" * PAGE


def test_an_interrupt_of_a_callback_is_no_failure_of_the_library(device, runtime):
    """One that comes while a callback runs on the main thread, as on_load does where sources are pinned."""

    def on_load(loaded):
        signal.raise_signal(signal.SIGINT)

    block = runtime.register_block(sh.PinnedMemory(device, PAGE), on_load=on_load, unordered=True)
    with pytest.raises(KeyboardInterrupt):
        runtime.acquire(block)
    assert block.info().held == 0


def test_a_release_that_is_interrupted_releases_all(monkeypatch, runtime):
    blocks = [runtime.register_block(bytes([i]) * PAGE, unordered=True) for i in range(2)]
    release = _view._release

    def interrupted(held):
        release(held)
        raise KeyboardInterrupt

    for end in (lambda views: views.release(), lambda views: views.__exit__(None, None, None)):
        views = runtime.acquire_many(blocks)
        with monkeypatch.context() as patched:
            patched.setattr(_view, "_release", interrupted)
            with pytest.raises(KeyboardInterrupt):
                end(views)
        assert [block.info().held for block in blocks] == [0, 0] and len(views) == 2


def after(monkeypatch, kind, name):
    """Has the interrupt raised where the interpreter would: when the call into the library has returned."""
    call = getattr(kind, name)

    def interrupted(self, *arguments):
        call(self, *arguments)
        raise KeyboardInterrupt

    monkeypatch.setattr(kind, name, interrupted)


# Each begins a scope of a runtime, a block, and another runtime.
BEGINS = {
    "step": lambda runtime, block, other: runtime.step(),
    "update": lambda runtime, block, other: runtime.update_sources([block]),
    "protection": lambda runtime, block, other: runtime.protect([block]),
    "residency": lambda runtime, block, other: runtime.keep_resident(),
    "reservation": lambda runtime, block, other: runtime.reserve(bytes=PAGE),
    "guest": lambda runtime, block, other: runtime.as_guest(other),
}


@pytest.mark.parametrize("name", BEGINS)
def test_what_has_begun_when_it_is_interrupted_ends(monkeypatch, device, runtime, name):
    other, block = sh.Runtime(device), runtime.register_block(b"b" * PAGE)
    other.register_block(b"o" * PAGE)

    def begin():
        return BEGINS[name](runtime, block, other)

    with monkeypatch.context() as patched:
        kind = type(begin())
        after(patched, kind, "_begin_scope" if kind is _scopes.Scope else "_begin")
        with pytest.raises(KeyboardInterrupt):
            with begin():
                raise AssertionError("it was interrupted before")
    assert block.info().protections == 0 and other.stats().guest_bytes == 0
    with begin():  # twice at once is refused of a step and an update
        pass
    with runtime.step(), runtime.acquire(block) as view:
        assert view.buffer == b"b" * PAGE
    other.close()


@pytest.mark.parametrize("when", ["before", "after"])
@pytest.mark.parametrize("name", BEGINS)
def test_what_is_interrupted_as_it_ends_has_ended_once(monkeypatch, device, runtime, name, when):
    other, block = sh.Runtime(device), runtime.register_block(b"b" * PAGE)
    other.register_block(b"o" * PAGE)

    def begin():
        return BEGINS[name](runtime, block, other)

    kind = type(begin())
    end, ended = kind._end, []

    def interrupted(self):
        if not ended:
            ended.append(True)
            if when == "after":
                end(self)
            raise KeyboardInterrupt
        return end(self)

    with runtime.protect([block]), runtime.keep_resident(), monkeypatch.context() as patched:
        patched.setattr(kind, "_end", interrupted)
        with pytest.raises(KeyboardInterrupt):
            with begin():
                pass
        gc.collect()
        assert ended and block.info().protections == 1 and other.stats().guest_bytes == 0
    assert block.info().protections == 0 and device.memory().protected_bytes == 0
    with begin():  # twice at once is refused of a step and an update
        pass
    other.close()


def test_what_is_left_open_ends_as_garbage(runtime):
    """So it is after an interrupt at the very beginning of the end."""
    block = runtime.register_block(b"b" * PAGE)
    step, protection = runtime.step(), runtime.protect([block])
    step.__enter__()
    protection.__enter__()
    protection.__enter__()
    assert block.info().protections == 2
    gone = weakref.ref(step)
    del step, protection
    assert gone() is None and block.info().protections == 0
    with runtime.step():
        pass


def test_sources_are_kept_when_registering_is_interrupted(monkeypatch, runtime):
    """The library has the block then, although nobody knows its number."""
    lib = _runtime.lib

    class Interrupted:
        def __getattr__(self, name):
            return getattr(lib, name)

        def sh_register_blocks(self, *arguments):
            assert lib.sh_register_blocks(*arguments) == 0
            raise KeyboardInterrupt

    data = bytearray(PAGE)
    with monkeypatch.context() as patched:
        patched.setattr(_runtime, "lib", Interrupted())
        with pytest.raises(KeyboardInterrupt):
            runtime.register_block(data)
    with pytest.raises(BufferError):
        data.append(1)
    runtime.close()
    data.append(1)


def test_interrupts_at_any_point_leave_nothing(program):
    """A program that streams is interrupted again and again, wherever it is just then."""
    out = program("""
import random, signal, sys, threading, time
import libstagehand as sh
# Python itself reports an interrupt that comes inside a destructor, because it cannot raise it there.
report = sys.unraisablehook
sys.unraisablehook = lambda told: None if told.exc_type is KeyboardInterrupt else report(told)
device = sh.Device("host", budget_bytes=64 * 4096, page_bytes=4096)
runtime, guest = sh.Runtime(device, max_held=4, unordered_bytes=16 * 4096), sh.Runtime(device)
visiting = guest.register_block(b"g" * 4096)
def fill(buffer, offset):
    time.sleep(0.0005)
    buffer[:] = bytes(len(buffer))
blocks = runtime.register_blocks(
    [sh.BlockDesc(sh.Fill(fill, 4096 * (1 + i % 3)), unordered=i % 2 == 0) for i in range(8)]
)
main, lock, armed = threading.main_thread().ident, threading.RLock(), [False]
def shoot():
    while True:
        time.sleep(random.random() * 0.004)
        with lock:
            if armed[0]: signal.pthread_kill(main, signal.SIGINT)
threading.Thread(target=shoot, daemon=True).start()
def views():
    with runtime.acquire_many(blocks[:3]), runtime.acquire(blocks[1]): pass
def steps():
    with runtime.step():
        for block in blocks[:3]: runtime.acquire(block).release()
def scopes():
    with runtime.protect(blocks[:2]), runtime.keep_resident(): pass
def updates():
    with runtime.update_sources(blocks[3:5]): pass
def guests():
    with runtime.as_guest(guest, bytes=4096), guest.acquire(visiting): pass
def work():
    for _ in range(500):
        random.choice([views, steps, scopes, updates, guests])()
def disarm():
    while True:
        try:
            with lock: armed[0] = False
            time.sleep(0)  # what was sent is raised by now
            return
        except KeyboardInterrupt:
            pass
for turn in range(40):
    try:
        try:
            armed[0] = True
            work()
        finally:
            disarm()
    except KeyboardInterrupt:
        pass
    assert all(block.info().held == block.info().protections == 0 for block in [*blocks, visiting]), turn
    assert guest.stats().guest_bytes == device.memory().protected_bytes == 0, turn
    scopes(), updates(), guests()
    with runtime.step():
        for block in blocks: runtime.acquire(block).release()
print("nothing is left")
""")
    assert out == "nothing is left\n"
