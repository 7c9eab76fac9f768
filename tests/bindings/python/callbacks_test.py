"""Python functions that the library calls: their exceptions, what they may not do, and when they go."""

import gc
import threading
import weakref

import pytest
from conftest import PAGE

import libstagehand as sh


class Broken(Exception):
    pass


def raising(text):
    def fill(buffer, offset):
        raise Broken(text)

    return fill


@pytest.fixture
def runtime(device):
    runtime = sh.Runtime(device)
    yield runtime
    runtime.close()


def test_an_exception_of_a_source_is_the_cause(runtime):
    fail = [True]

    def fill(buffer, offset):
        if fail[0]:
            raise Broken("no bytes today")
        buffer[:] = b"k" * len(buffer)

    block = runtime.register_block(sh.Fill(fill, PAGE), name="kernel", unordered=True)
    for _ in range(2):
        with pytest.raises(sh.OperationError, match="kernel") as caught:
            runtime.acquire(block)
        assert caught.value.status is sh.Status.ERROR_CALLBACK
        assert isinstance(caught.value.__cause__, Broken) and str(caught.value.__cause__) == "no bytes today"
    fail[0] = False
    with runtime.acquire(block) as view:
        assert view.buffer == b"k" * PAGE


def test_each_block_gets_its_own_exception(device):
    runtime = sh.Runtime(device, unordered_bytes=16 * PAGE)
    asked = []

    def raising(text):
        def fill(buffer, offset):
            asked.append(text)
            raise Broken(text)

        return fill

    blocks = [runtime.register_block(sh.Fill(raising(str(i)), PAGE), unordered=True) for i in range(6)]
    ordered = runtime.register_block(b"o" * PAGE)
    with runtime.step(), runtime.acquire(ordered):
        pass
    runtime.prefetch(blocks)
    runtime.synchronize()  # all have failed by then
    assert sorted(asked) == list("012345")
    told = []
    for i in (3, 0, 5, 1, 2, 4):
        with pytest.raises(sh.OperationError) as caught:
            runtime.acquire(blocks[i])
        told.append((str(caught.value.__cause__), str(i)))
    assert all(got == wanted for got, wanted in told), told
    runtime.close()


def test_all_threads_that_waited_for_a_load_are_told():
    from libstagehand._callbacks import Exceptions

    exceptions, first, second = Exceptions(), Broken("first"), Broken("second")
    assert exceptions.take() is None and exceptions.take(5) is None
    exceptions.add(5, first)
    exceptions.add(5, second)  # of another piece
    assert exceptions.take(5) is first and exceptions.take(5) is first
    assert exceptions.take() is None and exceptions.take(6) is None
    exceptions.add(5, second)
    assert exceptions.take(5) is second


def test_system_exit_does_not_end_a_worker(runtime):
    def fill(buffer, offset):
        raise SystemExit(3)

    with pytest.raises(sh.OperationError) as caught:
        runtime.acquire(runtime.register_block(sh.Fill(fill, PAGE)))
    assert isinstance(caught.value.__cause__, SystemExit)


def test_on_load(device, runtime):
    def on_load(loaded):
        raise Broken("dequantise")

    block = runtime.register_block(b"x" * PAGE, on_load=on_load)
    with pytest.raises(sh.OperationError) as caught:
        runtime.acquire(block)
    assert caught.value.status is sh.Status.ERROR_CALLBACK and isinstance(caught.value.__cause__, Broken)


def test_an_error_inside_a_callback_asks_the_library_for_nothing(device, runtime):
    stream, told = sh.Stream(device), []
    stream.close()

    def on_load(loaded):
        try:
            stream.launch(None)
        except sh.UsageError as error:
            told.append((error.status, str(error)))

    runtime.acquire(runtime.register_block(b"x" * PAGE, on_load=on_load)).release()
    assert told == [(sh.Status.ERROR_INVALID_HANDLE, "SH_ERROR_INVALID_HANDLE")]


def test_a_kept_buffer_is_an_error(runtime):
    kept = []

    def fill(buffer, offset):
        kept.append(memoryview(buffer))

    with pytest.raises(sh.OperationError) as caught:
        runtime.acquire(runtime.register_block(sh.Fill(fill, PAGE)))
    assert isinstance(caught.value.__cause__, BufferError)

    def keep(buffer, offset):
        kept.append(buffer)
        buffer[:] = bytes(len(buffer))

    runtime.acquire(runtime.register_block(sh.Fill(keep, PAGE))).release()
    with pytest.raises(ValueError, match="released"):
        kept[-1][0]


def test_launched_functions(device):
    stream = sh.Stream(device)

    def fail():
        raise Broken("on the stream")

    stream.launch(fail)
    with pytest.raises(sh.OperationError) as caught:
        stream.synchronize()
    assert caught.value.status == sh.Status.ERROR_CALLBACK and isinstance(caught.value.__cause__, Broken)
    stream.synchronize()  # told once
    function = weakref.ref(fail)
    del fail, caught
    stream.close()
    gc.collect()
    assert function() is None


def test_launched_functions_live_until_they_ran(device):
    go, ran = threading.Event(), []
    with sh.Stream(device) as stream:
        stream.launch(lambda: go.wait(30))
        for i in range(50):
            stream.launch(lambda i=i: ran.append(i))
        gc.collect()
        others = [object() for _ in range(10_000)]  # where something else would be, had they gone
        go.set()
        stream.synchronize()
    assert ran == list(range(50)) and len(others) == 10_000


def test_log(device):
    lines = []
    sh.set_log(sh.LogLevel.DEBUG, lambda level, text: lines.append((level, text)))
    runtime = sh.Runtime(device, name="talker")
    runtime.keep_resident().__enter__()  # of no blocks: a warning
    sh.set_log(0, None)
    count = len(lines)
    runtime.keep_resident().__enter__()
    assert any(level is sh.LogLevel.WARNING and "talker" in text for level, text in lines) and len(lines) == count
    with pytest.raises(sh.UsageError):
        sh.set_log(9, print)


def test_pressure(device, model):
    wanted = []
    model.runtime.set_pressure(wanted.append)
    with model.runtime.step():
        device.set_budget(16 * PAGE)
    assert wanted and all(isinstance(size, int) and size > 0 for size in wanted)
    model.runtime.set_pressure(None)
    told = len(wanted)
    with model.runtime.step():
        device.set_budget(12 * PAGE)
    assert len(wanted) == told


def test_nobody_else_hears_of_what_pressure_and_log_raise(device, model, monkeypatch):
    told = []
    monkeypatch.setattr("sys.excepthook", lambda kind, exception, trace: told.append(str(exception)))

    def pressure(size):
        raise Broken("pressure")

    def log(level, text):
        raise Broken("log")

    model.runtime.set_pressure(pressure)
    with model.runtime.step():
        device.set_budget(16 * PAGE)
    model.runtime.set_pressure(None)
    assert told and set(told) == {"pressure"}
    told.clear()
    sh.set_log(sh.LogLevel.DEBUG, log)
    model.step()
    model.runtime.keep_resident().__enter__()
    sh.Device("host").close()
    sh.set_log(0, None)
    assert told and set(told) == {"log"}
    model.step()


def test_sources_live_as_long_as_the_block(runtime):
    class Weights(bytearray):
        pass

    def fill(buffer, offset):
        buffer[:] = bytes(len(buffer))

    data, function = Weights(PAGE), weakref.ref(fill)
    block = runtime.register_block([data, sh.Fill(fill, PAGE)])
    weights = weakref.ref(data)
    del data, fill
    gc.collect()
    assert weights() is not None and function() is not None
    runtime.acquire(block).release()
    with pytest.raises(BufferError):
        weights().append(1)  # it is read where it is
    block.unregister()
    gc.collect()
    assert weights() is None and function() is None


def test_a_view_that_is_given_up_inside_a_callback(device):
    """It is released before the next acquire needs its room, or the next step begins."""
    runtime = sh.Runtime(device, unordered_bytes=2 * PAGE)
    blocks = [runtime.register_block(bytes([i]) * PAGE, unordered=True) for i in range(3)]
    for then in (
        lambda: runtime.acquire(blocks[2]).release(),
        lambda: runtime.acquire_many(blocks[2:]).release(),
        runtime.step,
    ):
        views = [runtime.acquire(blocks[0])]

        def fill(buffer, offset):
            views.clear()
            buffer[:] = bytes(len(buffer))

        filled = runtime.register_block(sh.Fill(fill, PAGE), unordered=True)
        with runtime.acquire(filled):
            assert blocks[0].info().held == 1
            if then == runtime.step:
                with then():
                    pass
            else:
                then()
        assert blocks[0].info().held == 0
        filled.unregister()
    runtime.close()


def test_garbage_that_uses_the_library_where_exceptions_are_told(program):
    """Its finalizers run at any point, also in the midst of what tells a callback's exception."""
    program("""
import gc
import libstagehand as sh
device = sh.Device("host", budget_bytes=1 << 20, page_bytes=4096)
runtime = sh.Runtime(device)
def fill(buffer, offset): raise KeyError("none")
block = runtime.register_block(sh.Fill(fill, 4096), unordered=True)
def fail():
    try:
        runtime.acquire(block)
    except sh.OperationError:
        return
    raise SystemExit("it did not fail")
class Garbage:
    busy = 0
    def __init__(self): self.itself = self
    def __del__(self):
        if not Garbage.busy:
            Garbage.busy = 1
            fail()
            Garbage.busy = 0
for _ in range(200):
    fail()
    for _ in range(20): Garbage()
    gc.set_threshold(1)
    fail()
    gc.set_threshold(700)
""")


@pytest.mark.parametrize("what", ["set_log", "set_pressure"])
def test_receivers_that_are_set_on_two_threads(program, what):
    """The one that the library calls is kept, whichever comes last."""
    out = program(f"""
import gc, threading
import libstagehand as sh
from libstagehand import _callbacks, _runtime
lib, first, second = _runtime.lib, [], threading.Event()
class Slow:
    def __getattr__(self, name):
        return getattr(lib, name)
    def sh_{what}(self, *arguments):
        status = lib.sh_{what}(*arguments)
        if not first:
            first.append(1)
            threads[1].start()
            second.wait(0.3)  # as long as it takes, unless it has to wait for this one
        return status
_runtime.lib = _callbacks.lib = Slow()
device = sh.Device("host", budget_bytes=32 * 4096, page_bytes=4096)
runtime, called = sh.Runtime(device), set()
blocks = [runtime.register_block(bytes(8 * 4096)) for _ in range(8)]
def change(number):
    if "{what}" == "set_log":
        sh.set_log(sh.LogLevel.DEBUG, lambda level, text: called.add(number))
    else:
        runtime.set_pressure(lambda size: called.add(number))
    if number: second.set()
threads = [threading.Thread(target=change, args=(i,)) for i in range(2)]
threads[0].start()
for thread in threads: thread.join()
gc.collect()
others = [[object() for _ in range(8)] for _ in range(10_000)]  # where something else would be, had it gone
with runtime.step():
    for block in blocks: runtime.acquire(block).release()
    device.set_budget(16 * 4096)
print(len(called))
""")
    assert out == "1\n"


def test_a_runtime_that_is_given_up_inside_a_callback(device, runtime):
    """Garbage may be collected in a callback, from which nothing may be destroyed."""
    other = [sh.Runtime(device, name="given up")]
    other[0].register_block(b"o" * PAGE)
    counts = []

    def fill(buffer, offset):
        while other:
            other.pop()
        counts.append(threading.current_thread() is threading.main_thread())
        buffer[:] = bytes(len(buffer))

    runtime.acquire(runtime.register_block(sh.Fill(fill, PAGE))).release()
    assert counts == [False] and device.memory().runtime_count == 2
    sh.Runtime(device).close()  # what was put off is done by the next that is opened or closed
    assert device.memory().runtime_count == 1
