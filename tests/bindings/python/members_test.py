"""Sets: members in slots that they share."""

import ctypes
import gc
import random
import weakref

import pytest
from conftest import PAGE

import libstagehand as sh

SIZE = PAGE + 100
STRIDE = (SIZE + 255) // 256 * 256


class Experts:
    """A set of members from bytes."""

    def __init__(self, device, count=8, **options):
        source = random.Random(8)
        self.contents = [source.randbytes(SIZE) for _ in range(count)]
        self.runtime = sh.Runtime(device, name="experts")
        descs = (sh.BlockDesc(data, name=f"expert {i}") for i, data in enumerate(self.contents))
        self.set = self.runtime.register_set(descs, name="experts", **options)

    def compare(self, held, members):
        """Compares every byte of each member at its slot."""
        assert len(held.slots) == len(members)
        for slot, member in zip(held.slots, members):
            assert 0 <= slot * self.set.stride <= held.bytes - SIZE
            assert ctypes.string_at(held.address + slot * self.set.stride, SIZE) == self.contents[member]

    def use(self, *members):
        with self.set.acquire(members) as held:
            self.compare(held, members)

    def held(self, member):
        return self.set.blocks[member].info().held


@pytest.fixture
def experts(device):
    experts = Experts(device, call_members=2, slots=3)
    yield experts
    experts.runtime.close()


def test_members_are_in_their_slots_whatever_came_before(experts):
    order = random.Random(9)
    uses = 0
    for _ in range(60):
        members = order.sample(range(8), order.randint(1, 3))
        experts.use(*members)
        uses += len(members)
    info = experts.set.info()
    assert (
        (info.members, info.slots, info.stride, info.uses) == (8, 3, STRIDE, uses) == (8, 3, experts.set.stride, uses)
    )
    assert info.hits > 0 and info.hits + info.evictions + 3 == uses and info.address
    assert "experts" in repr(experts.set) and "8 members" in repr(experts.set)


def test_slots_can_lie_further_apart(device):
    experts = Experts(device, count=4, stride=2 * PAGE, group_members=2)
    experts.use(0, 3)
    assert experts.set.stride == experts.set.info().stride == 2 * PAGE
    experts.runtime.close()


def test_members_are_released_once(experts):
    with experts.set.acquire([0, 1, 0]) as held:
        experts.compare(held, [0, 1, 0])
        assert (experts.held(0), experts.held(1)) == (2, 1)
        with pytest.raises(sh.BudgetError, match="all 3 slots"):
            experts.set.acquire([2, 3])
        held.release()
        assert (experts.held(0), experts.held(1)) == (0, 0)
        with experts.set.acquire([0]):
            held.release()  # does nothing
            assert experts.held(0) == 1
    assert experts.held(0) == 0
    with pytest.raises(ZeroDivisionError), experts.set.acquire([0]):
        1 / 0
    assert experts.held(0) == 0
    with experts.set.acquire([]) as none:
        assert none.slots == []


def test_members_that_are_garbage_are_released(experts):
    held = experts.set.acquire([4, 5])
    gone = weakref.ref(held)
    assert experts.held(4) == 1
    del held
    gc.collect()
    assert gone() is None and experts.held(4) == experts.held(5) == 0


def test_garbage_in_a_callback_is_released_after_it(device, experts):
    cycle = []

    def fill(buffer, offset):
        cycle.clear()
        gc.collect()
        buffer[:] = bytes(len(buffer))

    block = experts.runtime.register_block(sh.Fill(fill, 100))
    cycle.append(experts.set.acquire([1]))
    with experts.runtime.acquire(block) as view:
        assert view.read() == bytes(100)
    experts.use(2)
    assert experts.held(1) == 0


def test_a_stream_uses_members(device, experts):
    stream = sh.Stream(device)
    with experts.set.acquire([6, 7], stream) as held:
        stream.synchronize()
        experts.compare(held, [6, 7])
    stream.synchronize()
    experts.runtime.forget(stream)


def test_guesses_are_hits(experts):
    experts.use(0)
    experts.set.prefetch([1, 2], [0.5, 0.9])
    experts.use(1, 2)
    assert experts.set.info().hits == 2
    experts.set.prefetch([0])
    with pytest.raises(ValueError, match="1 chances for 2 members"):
        experts.set.prefetch([0, 1], [1.0])
    with pytest.raises(OverflowError):
        experts.set.prefetch([-1])


def test_members_are_blocks(experts):
    block = experts.set.blocks[3]
    assert block.info().flags & sh.BlockFlag.UNORDERED
    with experts.runtime.acquire(block) as view, experts.set.acquire([3]) as held:
        assert view.address == held.address + held.slots[0] * experts.set.stride
        assert view.read() == experts.contents[3]
    block.unregister()
    with pytest.raises(sh.UsageError, match="member 3"):
        experts.set.acquire([3])
    experts.use(2, 4)


def test_sources_live_as_long_as_their_set(device):
    class Kept(bytearray):
        pass

    source = Kept(SIZE)
    alive = weakref.ref(source)
    with sh.Runtime(device) as runtime:
        made = runtime.register_set([sh.BlockDesc(source), sh.BlockDesc(bytes(SIZE))])
        del source
        gc.collect()
        with made.acquire([0]):
            with pytest.raises(sh.UsageError, match="held"):
                made.unregister()
            assert alive() is not None
        made.unregister()
        gc.collect()
        assert alive() is None
        for call in (made.info, made.unregister, lambda: made.acquire([0]), lambda: made.prefetch([0])):
            with pytest.raises(sh.UsageError, match="no such set"):
                call()


def test_a_call_that_is_larger_than_the_pool(experts):
    with pytest.raises(sh.BudgetError, match="needs 4 members .* at once, but its pool has 3 slots"):
        experts.set.acquire([0, 1, 2, 3])
    experts.use(0, 1, 2)


def test_mistakes_are_errors(device, experts):
    same = [sh.BlockDesc(bytes(SIZE))] * 2
    for options, text in (
        (dict(call_members=3), "call_members is 3"),
        (dict(group_members=3), "group_members is 3"),
        (dict(stride=300), "stride is 300"),
    ):
        with pytest.raises(sh.UsageError, match=text):
            experts.runtime.register_set(same, **options)
    with pytest.raises(sh.UsageError, match="count is 0"):
        experts.runtime.register_set([])
    with pytest.raises(sh.UsageError, match="same size"):
        experts.runtime.register_set([*same, sh.BlockDesc(bytes(SIZE + 1))])
    with pytest.raises(OverflowError):
        experts.set.acquire([-1])
    with pytest.raises(TypeError):
        experts.set.acquire(["0"])
    with pytest.raises(TypeError):
        experts.set.acquire([0], "0")
    assert experts.held(0) == 0


def test_a_fill_that_fails_is_the_cause(device):
    def fill(buffer, offset):
        raise KeyError("what the fill looked for")

    with sh.Runtime(device) as runtime:
        made = runtime.register_set([sh.BlockDesc(bytes(100)), sh.BlockDesc(sh.Fill(fill, 100))])
        with pytest.raises(sh.OperationError) as caught:
            made.acquire([1])
        assert isinstance(caught.value.__cause__, KeyError)
        made.acquire([0]).release()


def test_use_after_the_end(device):
    experts = Experts(device)
    held = experts.set.acquire([0])
    experts.runtime.close()
    for call in (experts.set.info, lambda: experts.set.acquire([0]), experts.set.unregister, held.release):
        with pytest.raises(sh.UsageError):
            call()
    del held
    gc.collect()
