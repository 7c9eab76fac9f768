"""What must not be done is an exception that names it, never a crash: use after close, wrong order, wrong thread, exit,
fork, garbage.
"""

import random
import threading

import numpy as np
import pytest
from conftest import PAGE

import libstagehand as sh


def status_of(call):
    with pytest.raises(sh.Error) as caught:
        call()
    assert str(caught.value).startswith("SH_ERROR_") and isinstance(caught.value.status, sh.Status)
    return caught.value.status


def test_exceptions_are_one_class_for_each_hundred():
    from libstagehand._errors import error_of

    classes = {
        1: sh.UsageError,
        2: sh.BudgetError,
        3: sh.OperationError,
        4: sh.BackendError,
        5: sh.LostError,
        6: sh.InternalError,
    }
    for status in sh.Status:
        if status < 0:
            assert type(error_of(status)) is classes[-status // 100] and error_of(status).status is status
    assert (
        type(error_of(-699)) is sh.InternalError and error_of(-699).status == -699 and type(error_of(-901)) is sh.Error
    )
    itself = status_of(lambda: sh.Device("host:7", helpers=["host:6", "host:7"]))
    assert itself in (sh.Status.ERROR_INVALID_ARGUMENT, sh.Status.ERROR_UNSUPPORTED), "or a build without helpers"
    assert status_of(lambda: sh.Device("sim", helpers="auto")) is sh.Status.ERROR_UNSUPPORTED
    with sh.Device("host:7"), pytest.raises(sh.Error, match="SH_HELPS_OTHERS"):
        sh.Device("host:7", helps=True)


def test_use_after_close(device, model):
    runtime, block, stream = model.runtime, model.blocks[0], sh.Stream(device)
    other = sh.Runtime(device)
    stream.close()
    stream.close()
    with runtime.step():
        view = runtime.acquire(block)
    runtime.close()
    runtime.close()
    for call in (
        lambda: runtime.try_acquire(block),
        block.unregister,
        block.info,
        lambda: runtime.set_pressure(print),
        lambda: runtime.as_guest(other).__enter__(),
        lambda: other.as_guest(runtime).__enter__(),
        lambda: view.read(0, 1),
        lambda: view.address,
        lambda: view.buffer,
        lambda: view.__array_interface__,
        lambda: view.__cuda_array_interface__,
        view.__dlpack__,
        view.mark_dirty,
        view.release,
        stream.synchronize,
        lambda: stream.launch(print),
        lambda: stream.handle,
        lambda: other.acquire(block, stream),
    ):
        assert status_of(call) is sh.Status.ERROR_INVALID_HANDLE
    view.release()  # once is enough
    other.close()
    device.close()
    device.close()


def test_a_closed_target_is_not_taken_for_none(device, model):
    """To C, no target is the runtime itself."""
    other = sh.Runtime(device)
    other.close()
    for call in (
        lambda: model.runtime.reserve(other, bytes=PAGE).__enter__(),
        lambda: model.runtime.keep_resident(other).__enter__(),
        lambda: model.runtime.as_guest(other).__enter__(),
    ):
        assert status_of(call) is sh.Status.ERROR_INVALID_HANDLE
    assert device.memory().reserved_bytes == 0


def test_what_a_released_view_still_tells(model):
    with model.runtime.step():
        with model.runtime.acquire(model.blocks[0]) as view:
            pass
    assert view.bytes == len(model.contents[0]) and view.block == model.blocks[0].id
    for call in (
        lambda: view.address,
        lambda: view.buffer,
        lambda: np.asarray(view),
        lambda: view.read(0, 1),
        view.mark_dirty,
        lambda: view.__dlpack__(),
        lambda: view.__dlpack_device__(),
    ):
        assert status_of(call) is sh.Status.ERROR_INVALID_STATE


def test_wrong_order(model):
    runtime, block = model.runtime, model.blocks[0]
    step = runtime.step()
    assert status_of(lambda: step.__exit__(None, None, None)) is sh.Status.ERROR_INVALID_STATE
    with runtime.step():
        assert status_of(step.__enter__) is sh.Status.ERROR_INVALID_STATE
        with runtime.acquire(block):
            assert status_of(block.unregister) is sh.Status.ERROR_INVALID_STATE
    block.unregister()
    assert status_of(block.unregister) is sh.Status.ERROR_INVALID_HANDLE
    with pytest.raises(TypeError):
        runtime.acquire(block, "stream")
    with pytest.raises(AttributeError):
        runtime.acquire(None)
    with pytest.raises(TypeError):
        runtime.register_block("text is no bytes")
    with pytest.raises(FileNotFoundError):
        runtime.register_block(sh.FileRange("/nowhere/at/all", 0, 1))


def test_texts_with_a_null_character(device, model, tmp_path):
    """C would take what stands before it for the whole."""
    text = str(tmp_path / "before\0after")
    for call in (
        lambda: sh.Device("host\0"),
        lambda: sh.Device("host", backend_options="poison=1\0"),
        lambda: sh.Runtime(device, name=text),
        lambda: model.runtime.register_block(b"x", name=text),
        lambda: model.runtime.telemetry(text),
        lambda: sh.trace(text),
        lambda: sh.monitor(text),
    ):
        with pytest.raises(ValueError, match="null"):
            call()
    assert list(tmp_path.iterdir()) == []


def test_a_failure_inside_a_step_is_not_hidden(model):
    with pytest.raises(ZeroDivisionError):
        with model.runtime.step(), model.runtime.acquire(model.blocks[0]):
            model.runtime.close()
            1 / 0


def test_steps_do_not_overlap_on_any_thread(model):
    found = []

    def begin():
        try:
            model.runtime.step().__enter__()
        except sh.UsageError as error:
            found.append(error.status)

    with model.runtime.step():
        thread = threading.Thread(target=begin)
        thread.start()
        thread.join()
    assert found == [sh.Status.ERROR_INVALID_STATE]


def test_a_view_may_be_released_on_another_thread(model):
    with model.runtime.step():
        view = model.runtime.acquire(model.blocks[0])
        thread = threading.Thread(target=view.release)
        thread.start()
        thread.join()
        assert model.blocks[0].info().held == 0


def test_closing_while_others_wait(device):
    runtime, blocked, go = sh.Runtime(device), threading.Event(), threading.Event()
    found = []

    def fill(buffer, offset):
        blocked.set()
        go.wait(30)
        buffer[:] = bytes(len(buffer))

    def wait():
        try:
            runtime.acquire(block).release()
        except sh.Error as error:
            found.append(error.status)

    block = runtime.register_block(sh.Fill(fill, PAGE), unordered=True)
    thread = threading.Thread(target=wait)
    thread.start()
    assert blocked.wait(30)
    closer = threading.Thread(target=runtime.close)
    closer.start()
    thread.join(0.2)
    go.set()
    thread.join(30)
    closer.join(30)
    assert (
        not thread.is_alive()
        and not closer.is_alive()
        and found in ([], [sh.Status.ERROR_CANCELLED], [sh.Status.ERROR_INVALID_HANDLE])
    )


def test_threads_together(device, model):
    """Many threads over one runtime: right bytes, or an exception of the library."""
    problems = []

    def work(seed):
        choose = random.Random(seed)
        for _ in range(100):
            i = choose.randrange(len(model.blocks))
            try:
                with model.runtime.acquire(model.blocks[i]) as view:
                    if view.read() != model.contents[i]:
                        problems.append(i)
            except sh.BudgetError as error:
                if error.status is not sh.Status.ERROR_HELD:
                    problems.append(error)

    threads = [threading.Thread(target=work, args=(seed,)) for seed in range(4)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    assert not problems and all(block.info().held == 0 for block in model.blocks)


MADE = """
import sys
import libstagehand as sh
device = sh.Device("host", budget_bytes=1 << 20, page_bytes=4096)
runtime = sh.Runtime(device)
memory = sh.PinnedMemory(device, 1 << 16)
stream = sh.Stream(device)
block = runtime.register_block(memory)
step = runtime.step()
step.__enter__()
view = runtime.acquire(block, stream)
scope = runtime.keep_resident()
scope.__enter__()
names = ["device", "runtime", "memory", "stream", "block", "step", "view", "scope"]
"""


def test_given_up_in_any_order(program):
    """What is made goes in any order, by closing nothing."""
    orders = [["device", "runtime", "memory", "stream", "block", "step", "view", "scope"]]
    orders.append(orders[0][::-1])
    orders += [random.Random(seed).sample(orders[0], 8) for seed in range(12)]
    lines = MADE.split("device = ")
    text = (
        lines[0]
        + f"import gc\nfor order in {orders!r}:\n"
        + "".join(f"    {line}\n" for line in ("device = " + lines[1]).splitlines())
    )
    text += (
        "    names = None\n    for name in order:\n        del globals()[name]\n        gc.collect()\nprint('all gone')"
    )
    assert program(text) == "all gone\n"


def test_garbage_in_cycles(program):
    """All that is made is in one cycle: the collector chooses the order."""
    program(
        MADE
        + """
import gc
class Node: pass
for turn in range(20):
    node = Node()
    node.all = [sh.Device("host"), node]
    node.runtime = sh.Runtime(node.all[0]); node.runtime.back = node
    node.memory = sh.PinnedMemory(node.all[0], 5000); node.memory.back = node
    node.stream = sh.Stream(node.all[0]); node.stream.back = node
    def fill(buffer, offset, node=node): buffer[:] = bytes(len(buffer))
    node.block = node.runtime.register_block([node.memory, sh.Fill(fill, 5000)], unordered=True)
    node.view = node.runtime.acquire(node.block, node.stream)
    node.stream.launch(lambda node=node: None)
    node.scope = node.runtime.keep_resident(); node.scope.__enter__()
    del node, fill
    gc.collect()
stream.synchronize()
import time
for turn in range(250):   # what the collector met inside a callback goes with the next open or close
    gc.collect()
    sh.Stream(device).close()
    if device.memory().runtime_count == 1: break
    time.sleep(0.02)
assert device.memory().runtime_count == 1, device.memory()
"""
    )


@pytest.mark.parametrize(
    "end", ["pass", "sys.exit(0)", "import os; os._exit(0)", "view.release(); device.close()", "runtime.close()"]
)
def test_exit_with_everything_open(program, end):
    program(MADE + end)


COPIES = """
import threading, time, sys
import libstagehand as sh
device = sh.Device("host", budget_bytes=1 << 22, page_bytes=4096, backend_options="bandwidth=50MB/s;latency=100us")
runtime = sh.Runtime(device, unordered_bytes=1 << 21)
def fill(buffer, offset):
    time.sleep(0.001)
    buffer[:] = bytes(len(buffer))
blocks = [runtime.register_block(sh.Fill(fill, 1 << 18), unordered=True) for _ in range(8)]
stream = sh.Stream(device)
with runtime.step():
    runtime.prefetch(blocks)
    for block in blocks[:4]:
        runtime.try_acquire(block)
    for _ in range(20):
        stream.launch(lambda: time.sleep(0.002))
"""


@pytest.mark.parametrize(
    "end",
    [
        "",
        "sys.exit(0)",
        "del runtime",
        "del device, runtime, blocks, block, stream",
        "sh.set_log(4, lambda level, text: time.sleep(0.001))",
    ],
)
def test_exit_with_copies_in_flight(program, end):
    program(COPIES + end)


def test_exit_closes_all_in_order_whatever_is_raised(program):
    """An interrupt while the first is waited for, and classes of other names."""
    out = program(
        """
import atexit
atexit.register(lambda: print(*closed))  # before the package, so after it
import libstagehand as sh
closed = []
def telling(name, kind):
    def close(self):
        kind.close(self)
        closed.append(name)
        raise KeyboardInterrupt
    return type(name, (kind,), {"close": close})
device = sh.Device("host")
things = [telling(name, kind)(device) for name, kind in (("A", sh.Stream), ("B", sh.Stream), ("Y", sh.Runtime), ("Z",
sh.Runtime))]
""",
        stderr="KeyboardInterrupt",
    )
    first, last = out.split()[:2], out.split()[2:]
    assert (sorted(first), sorted(last)) == (["Y", "Z"], ["A", "B"]), out


def test_exit_while_a_daemon_thread_streams(program):
    program(
        COPIES
        + """
def forever():
    while True:
        for block in blocks:
            try:
                with runtime.acquire(block): pass
            except sh.Error:
                return
threading.Thread(target=forever, daemon=True).start()
time.sleep(0.05)
"""
    )


def test_no_log_after_the_package_has_ended(program):
    """What runs at exit after the package still may use the library; its threads could call Python no more."""
    out = program("""
import atexit, sys
def late():
    before = len(lines)
    sh.Device("sim").close()
    print("late", before > 0, len(lines) - before)
atexit.register(late)  # before the package, so after it
import libstagehand as sh
lines = []
sh.set_log(sh.LogLevel.DEBUG, lambda level, text: lines.append(text))
device = sh.Device("host")
""")
    assert out == "late True 0\n"


def test_exit_with_an_exception(program):
    program(COPIES + "raise KeyError('the end')", expect=1, stderr="KeyError: 'the end'")


def test_fork(program):
    """The child can do nothing with what the parent has made, and both end well."""
    out = program(
        MADE
        + """
import os, gc, warnings
warnings.simplefilter("ignore", DeprecationWarning)  # Python 3.12 warns of forks beside threads
stream.launch(None, 1000)
child = os.fork()
if child == 0:
    calls = (lambda: runtime.acquire(block), device.memory, lambda: sh.Device("host"), view.release, stream.synchronize)
    for call in calls:
        try:
            call()
            os._exit(1)
        except sh.UsageError as error:
            if error.status is not sh.Status.ERROR_FORKED:
                os._exit(2)
    del view, scope, step, block, stream, memory, runtime, device
    gc.collect()
    sys.exit(7)
assert os.waitstatus_to_exitcode(os.waitpid(child, 0)[1]) == 7
assert view.read(0, 4) == bytes(4)
print("parent goes on")
"""
    )
    assert out == "parent goes on\n"


def test_multiprocessing_by_spawn(program):
    program("""
import multiprocessing
import libstagehand as sh
def work(number):
    with sh.Device("host") as device, sh.Runtime(device) as runtime:
        block = runtime.register_block(bytes([number]) * 9)
        with runtime.step(), runtime.acquire(block) as view:
            return bytes(view.buffer)
if __name__ == "__main__":
    device = sh.Device("host")
    with multiprocessing.get_context("spawn").Pool(1) as pool:
        assert pool.map(work, [1, 2]) == [bytes([1]) * 9, bytes([2]) * 9]
""")
