"""Captured steps, over a backend that has a driver's graphs and needs no GPU: tests/graphs."""

import ctypes
import gc
import os
import weakref

import pytest
from conftest import PAGE, Model

import libstagehand as sh

PLUGIN = os.environ.get("CAPTURE_BACKEND", "")


class Driver:
    """What an engine would call of its driver."""

    def __init__(self):
        self.library = ctypes.CDLL(PLUGIN)

    def begin(self, stream):
        assert self.library.sh_test_capture_begin(ctypes.c_uint64(int(stream.handle))) == 0

    def end(self, stream):
        native = ctypes.c_void_p()
        assert self.library.sh_test_capture_end(ctypes.c_uint64(stream.handle), ctypes.byref(native)) == 0
        return native

    def follow(self, stream, other):
        assert self.library.sh_test_follow(ctypes.c_uint64(stream.handle), ctypes.c_uint64(other.handle)) == 0

    def launch(self, native, stream):
        assert self.library.sh_test_graph_launch(native, ctypes.c_uint64(stream.handle)) == 0

    def destroy(self, native):
        self.library.sh_test_graph_destroy(native)


class PinnedModel(Model):
    """One whose sources a graph may read."""

    def __init__(self, device, count=8, size=9 * PAGE):
        super().__init__(device, 0)
        self.memory = [sh.PinnedMemory(device, size) for _ in range(count)]
        self.compared = []
        for i, memory in enumerate(self.memory):
            memory.buffer[:] = bytes([i + 1]) * size
        self.blocks = self.runtime.register_blocks(
            sh.BlockDesc(memory, name=f"layer {i}") for i, memory in enumerate(self.memory)
        )
        self.runtime.set_schedule(self.blocks)

    def forward(self, stream):
        """The engine's work: the stream compares every byte with what the source has then."""
        for block, memory in zip(self.blocks, self.memory):
            with self.runtime.acquire(block, stream) as view:
                there, wanted = view.buffer, memory.buffer
                stream.launch(lambda there=there, wanted=wanted: self.compared.append(there == wanted[:]))


@pytest.fixture
def driver():
    if not PLUGIN:
        pytest.skip("CAPTURE_BACKEND does not name the plugin with graphs")
    return Driver()


@pytest.fixture
def device(driver):
    options = {"budget_bytes": 32 * PAGE, "page_bytes": PAGE, "backend_options": "poison=1", "backend_path": PLUGIN}
    with sh.Device("capture", **options) as device:
        yield device
    gc.collect()


@pytest.fixture
def model(device):
    model = PinnedModel(device)
    model.runtime.plan()
    yield model
    model.runtime.close()


@pytest.fixture
def stream(device):
    with sh.Stream(device) as stream:
        yield stream


def captured(driver, model, stream):
    driver.begin(stream)
    with model.runtime.capture(stream) as capture:
        model.forward(stream)
    return capture.graph, driver.end(stream)


def status_of(call):
    with pytest.raises(sh.Error) as caught:
        call()
    return caught.value.status


def test_each_launch_streams_a_model_larger_than_the_budget(driver, device, model, stream):
    with sh.Stream(device) as other:
        graph, native = captured(driver, model, stream)
        assert model.compared == [] and "Graph" in repr(graph)
        for turn in range(4):
            with graph.launch(stream if turn % 2 else other):
                driver.launch(native, stream if turn % 2 else other)
        stream.synchronize()
        other.synchronize()
        assert model.compared == [True] * 32
        for i, memory in enumerate(model.memory):
            with model.runtime.update_sources([model.blocks[i]]):
                assert status_of(graph.launch(stream).__enter__) is sh.Status.ERROR_INVALID_STATE
                memory.buffer[:] = bytes([100 + i]) * len(memory)
        with graph.launch(stream):
            driver.launch(native, stream)
        with model.runtime.step(), model.runtime.acquire(model.blocks[7]) as view:  # what it left is found
            assert view.buffer == bytes([107]) * len(view)
        stream.synchronize()
        assert model.compared == [True] * 40 and device.memory().peak_bytes <= 32 * PAGE
        with graph:
            pass
        driver.destroy(native)
        assert "closed" in repr(graph) and status_of(graph.launch(stream).__enter__) is sh.Status.ERROR_INVALID_HANDLE


def test_a_graph_holds_the_plan_until_it_goes(driver, device, model, stream):
    graph, native = captured(driver, model, stream)
    device.set_budget(24 * PAGE)
    assert status_of(model.runtime.plan) is sh.Status.ERROR_INVALID_STATE
    assert status_of(model.blocks[0].unregister) is sh.Status.ERROR_INVALID_STATE
    with graph.launch(stream):
        driver.launch(native, stream)
        assert status_of(graph.launch(stream).__enter__) is sh.Status.ERROR_INVALID_STATE
    model.runtime.plan(drop_graphs=True)
    assert status_of(graph.launch(stream).__enter__) is sh.Status.ERROR_STALE
    driver.destroy(native)
    again, native = captured(driver, model, stream)
    device.set_budget(20 * PAGE)
    assert status_of(model.runtime.plan) is sh.Status.ERROR_INVALID_STATE
    del again  # garbage
    gc.collect()
    driver.destroy(native)
    assert model.runtime.plan().budget_bytes <= 20 * PAGE


def test_what_is_refused(driver, device, stream):
    model = PinnedModel(device)
    runtime = model.runtime

    def begin(on=stream):
        runtime.capture(on).__enter__()

    assert status_of(lambda: begin(sh.STREAM_HOST)) is sh.Status.ERROR_INVALID_ARGUMENT
    driver.begin(stream)
    assert status_of(begin) is sh.Status.ERROR_INVALID_STATE  # no plan
    driver.destroy(driver.end(stream))
    runtime.plan()
    assert status_of(begin) is sh.Status.ERROR_INVALID_STATE  # the stream does not capture
    with pytest.raises(TypeError):
        runtime.capture(None)
    driver.begin(stream)
    with runtime.capture(stream) as capture:
        assert status_of(begin) is sh.Status.ERROR_INVALID_STATE
        assert status_of(lambda: capture.graph) is sh.Status.ERROR_INVALID_STATE
        assert status_of(runtime.step().__enter__) is sh.Status.ERROR_INVALID_STATE
        assert status_of(lambda: runtime.acquire(model.blocks[0])) is sh.Status.ERROR_INVALID_STATE
        view = runtime.acquire(model.blocks[0], stream)
        assert status_of(capture.end) is sh.Status.ERROR_INVALID_STATE  # it is held; the capture goes on
        view.release()
        graph = capture.end()
    assert capture.graph is graph and capture.end() is graph
    driver.destroy(driver.end(stream))
    graph.close()
    graph.close()
    driver.begin(stream)
    with runtime.capture(stream) as capture:
        view = runtime.acquire(model.blocks[0], stream)
        capture.cancel()  # whatever is held
        assert status_of(lambda: view.address) is sh.Status.ERROR_INVALID_STATE
    view.release()  # it was, by that
    driver.destroy(driver.end(stream))
    runtime.close()
    assert status_of(capture.__enter__) is sh.Status.ERROR_INVALID_HANDLE


def test_an_exception_cancels_the_capture(driver, model, stream):
    driver.begin(stream)
    with pytest.raises(ZeroDivisionError):
        with model.runtime.capture(stream) as capture, model.runtime.acquire(model.blocks[0], stream):
            1 / 0
    assert status_of(lambda: capture.graph) is sh.Status.ERROR_INVALID_STATE
    driver.destroy(driver.end(stream))
    assert model.runtime.plan().model_bytes == sum(map(len, model.memory))  # nothing holds the plan
    graph, native = captured(driver, model, stream)
    with pytest.raises(ZeroDivisionError):
        with graph.launch(stream):
            1 / 0  # nothing was launched, and the graph was left
    with graph.launch(stream):
        driver.launch(native, stream)
    stream.synchronize()
    assert model.compared == [True] * 8
    graph.close()
    driver.destroy(native)


def test_a_view_of_a_cancelled_capture_releases_nobody_elses(driver, model, stream):
    block = model.blocks[0]
    driver.begin(stream)
    with pytest.raises(ZeroDivisionError):
        with model.runtime.capture(stream):
            left = model.runtime.acquire_many([block, block], stream)
            other = model.runtime.acquire(block, stream)
            1 / 0
    driver.destroy(driver.end(stream))
    with model.runtime.acquire(block) as view:
        left.release()
        del other
        gc.collect()
        assert block.info().held == 1 and view.buffer == model.memory[0].buffer[:]
    assert block.info().held == 0


def test_a_capture_ends_as_garbage(driver, model, stream):
    driver.begin(stream)
    capture = model.runtime.capture(stream).__enter__()
    view = model.runtime.acquire(model.blocks[0], stream)
    del capture
    gc.collect()
    driver.destroy(driver.end(stream))
    view.release()
    with model.runtime.step(), model.runtime.acquire(model.blocks[0]) as view:
        assert view.buffer == model.memory[0].buffer[:]


def test_a_capture_that_is_interrupted_as_it_begins(driver, model, stream, monkeypatch):
    driver.begin(stream)
    with monkeypatch.context() as patched:

        def interrupted(status):
            raise KeyboardInterrupt

        patched.setattr(model.runtime, "_check", interrupted)
        with pytest.raises(KeyboardInterrupt):
            model.runtime.capture(stream).__enter__()
    driver.destroy(driver.end(stream))
    graph, native = captured(driver, model, stream)  # nothing is under way
    graph.close()
    driver.destroy(native)


def test_functions_live_as_long_as_the_graph_that_calls_them(driver, device, model, stream):
    side, plain, ran = sh.Stream(device), sh.Stream(device), []

    def function(where):
        return lambda: ran.append(where)

    functions = [function(where) for where in ("main", "side", "plain")]
    alive = [weakref.ref(one) for one in functions]
    driver.begin(stream)
    with model.runtime.capture(stream) as capture:
        for on, one in zip((stream, side, plain), functions):
            if on is side:
                driver.follow(side, stream)
            on.launch(one)
        driver.follow(stream, side)
        with model.runtime.acquire(model.blocks[0], stream):
            pass
    graph, native = capture.graph, driver.end(stream)
    del functions, one, capture
    plain.synchronize()
    gc.collect()
    assert ran == ["plain"] and alive[0]() and alive[1]()
    for _ in range(3):
        with graph.launch(stream):
            driver.launch(native, stream)
    stream.synchronize()
    assert sorted(ran) == ["main"] * 3 + ["plain"] + ["side"] * 3
    graph.close()
    driver.destroy(native)
    gc.collect()
    assert [one() for one in alive] == [None] * 3


def test_a_runtime_that_goes_before_its_graph(driver, device, stream):
    model = PinnedModel(device)
    model.runtime.plan()
    graph, native = captured(driver, model, stream)
    with pytest.raises(sh.UsageError):  # the launch cannot be left any more; it was waited for
        with graph.launch(stream):
            stream.launch(None, 20_000_000)
            driver.launch(native, stream)
            model.runtime.close()
            assert model.compared == [True] * 8
    assert status_of(graph.launch(stream).__enter__) is sh.Status.ERROR_INVALID_HANDLE
    graph.close()
    driver.destroy(native)


@pytest.mark.parametrize(
    "end",
    [
        "",
        "del runtime, device, graph, stream, capture",
        "runtime.close()",
        "launch.__enter__()",
        "sys.excepthook = lambda *what: print(what[1]); stale(); stream.synchronize()",
    ],
)
def test_exit_with_a_graph(driver, program, end):
    out = program(f"""
import ctypes, sys
import libstagehand as sh
device = sh.Device("capture", budget_bytes=1 << 20, page_bytes=4096, backend_path={PLUGIN!r})
driver = ctypes.CDLL({PLUGIN!r})
runtime, stream, native = sh.Runtime(device), sh.Stream(device), ctypes.c_void_p()
block = runtime.register_block(sh.PinnedMemory(device, 1 << 16))
runtime.set_schedule([block])
runtime.plan()
on = ctypes.c_uint64(stream.handle)
driver.sh_test_capture_begin(on)
with runtime.capture(stream) as capture, runtime.acquire(block, stream):
    stream.launch(lambda: None)
graph = capture.graph
driver.sh_test_capture_end(on, ctypes.byref(native))
def stale():
    global graph, capture
    graph.close()
    graph = capture = None
    driver.sh_test_graph_launch(native, on)
with graph.launch(stream):
    driver.sh_test_graph_launch(native, on)
launch = graph.launch(stream)
{end}
""")
    assert ("a Python function that is gone" in out) == ("stale" in end)


def test_devices_without_graphs(program):
    """Those of the host, for one."""
    program("""
import libstagehand as sh
with sh.Device("host") as device, sh.Runtime(device) as runtime, sh.Stream(device) as stream:
    block = runtime.register_block(b"x")
    runtime.set_schedule([block])
    runtime.plan()
    try:
        runtime.capture(stream).__enter__()
    except sh.UsageError as error:
        assert error.status is sh.Status.ERROR_UNSUPPORTED and "graphs" in str(error)
    else:
        raise SystemExit("it has graphs")
""")
