"""Writes that no version tells: by kernels of functions of the program, to statistics, through `data`, and by kernels
that fill a tensor after autograd has saved it. With checksums the spiller waits for each copy, so that a copy that
begins too early always has the wrong bytes. `operators_test.py` does so with all operators.
"""

import threading

import pytest
import torch
import torch.nn.functional as F
from models import equal
from spilling import away, check, nothing_is_left, spilling

from libstagehand.torch._spill_record import _written

OPTIONS = [{}, {"recompute": True}, {"recompute": True, "keep": "1GiB"}]


class Writes(torch.autograd.Function):
    """Writes to its input by a kernel that PyTorch does not know, as Triton's are."""

    @staticmethod
    def forward(ctx, x, kind):
        x.detach().numpy()[...] *= 1.5
        ctx.save_for_backward({"input": x, "detached": x.detach(), "returned": x.new_ones(())}[kind])
        return x if kind == "returned" else x.sum(-1, keepdim=True)

    @staticmethod
    def backward(ctx, gradient):
        return gradient * ctx.saved_tensors[0], None


def written_by(kind):
    def program(_):
        x = torch.randn(4, 8, requires_grad=True)
        Writes.apply(x.exp() * 30, kind).sin().sum().backward()
        return [x.grad]

    return program


def statistics_by(name):
    def program(_):
        x, mean, variance = torch.randn(4, 8, requires_grad=True), torch.zeros(8), torch.ones(8)
        y = x.exp()
        z = mean + y * 1.5
        if name == "native_batch_norm":
            torch.native_batch_norm(x, None, None, mean, variance, True, 0.1, 1e-5)
        else:
            torch.batch_norm_update_stats(x.detach(), mean, variance, 0.1)
        (z * y).sum().backward()
        return [x.grad]

    return program


def a_view_without_a_place_in_the_graph(_):
    """PyTorch refuses to tell the node of such a view, and computes from it without gradients."""
    x = torch.randn(4, 8, requires_grad=True)
    y = x * 2
    part = y.split(2)[1]
    part.detach().add_(1)
    with torch.no_grad():
        y.add_(1)
        other = part * 3
    (y * other.sum()).sum().backward()
    return [x.grad, other]


PROGRAMS = {
    **{f"a function that writes: {kind}": written_by(kind) for kind in ("input", "detached", "returned")},
    **{name: statistics_by(name) for name in ("native_batch_norm", "batch_norm_update_stats")},
    "a view without a place": a_view_without_a_place_in_the_graph,
}


@pytest.mark.parametrize("options", OPTIONS, ids=str)
@pytest.mark.parametrize("program", PROGRAMS.values(), ids=PROGRAMS)
def test_writes_without_a_version(device, program, options):
    check(device, program, **options)


@pytest.mark.parametrize("write", ["data", "part"])
def test_a_write_without_a_version_within_a_forward(device, write):
    """The mode that records operations sees it."""

    def program(between):
        x, w = torch.randn(4, 8), torch.randn(8, requires_grad=True)
        one, other = (x.data, x) if write == "data" else (x.unsafe_chunk(2)[0], x.unsafe_chunk(2)[0])
        first = other * w
        between()
        one.add_(1)
        (other * w).sum().backward()
        del first
        return [w.grad]

    check(device, program, recompute=True)


@pytest.mark.parametrize("options", OPTIONS, ids=str)
def test_an_input_that_is_written_between_two_forwards(device, options):
    """The first forward is alive, and is never differentiated."""
    x, w = torch.randn(4, 8), torch.randn(8, requires_grad=True)
    with spilling(None, device, **options) as spilled:
        first = (x * w).sin()
        away(spilled)
    x.numpy()[...] *= 2
    with spilled:
        second = (x * w).sum()
    second.backward()
    del first
    assert equal([w.grad], [x.sum(0)])


def test_the_written_arguments_of_an_operation():
    """The allocator hears of a stream, and nothing is written. The schemas of c10d do not tell what is."""
    assert _written(torch.ops.aten.record_stream.default) == ()
    assert _written(torch.ops.aten.add_.Tensor) == ((0, "self"),)
    torch.distributed.is_available() or pytest.skip("PyTorch has no collectives")
    assert (0, "tensors") in _written(torch.ops.c10d.allreduce_.default)
    assert (0, "output_tensors") in _written(torch.ops.c10d.allgather_.default)


def test_two_spillers_share_nothing(device):
    x, w = torch.randn(8, 8), torch.randn(8, 8, requires_grad=True)
    one, other = spilling(None, device), spilling(None, device)
    with one:
        loss = (x[:4] * w[:4]).sum()
    with other:
        loss = loss + (x[4:] * w[4:]).sum()
    away(one), away(other)
    loss.backward()
    assert equal([w.grad], [x]) and nothing_is_left(one) and nothing_is_left(other)


# Tensors that autograd saves before the kernel that fills them runs.


def gone(spilled):
    """The bytes that have left, without those that wait for a node."""
    (one,) = spilled._devices.values()
    one.collect(one.stream(), all=True)
    return one.spiller.stats().away_bytes


NOISY = {
    "plain": lambda x: F.rrelu(x * 2, 0.1, 0.9, training=True),
    "leaf": lambda x: F.rrelu(x, 0.1, 0.9, training=True),
    "in place": lambda x: F.rrelu_(x * 2, 0.1, 0.9, training=True),
    "between": lambda x: F.gelu(F.rrelu(F.gelu(x * 2), 0.1, 0.9, training=True)) * x,
    # The noise lies in memory that a cheap operation has made.
    "computed": lambda x: torch.ops.aten.rrelu_with_noise(x, x.exp().detach(), 0.1, 0.9, True),
}
LATE = [{}, {"recompute": True}, {"peak": 0}, {"peak": "64KiB"}, {"keep": "8KiB"}, {"pack": True}]
LATE += [{"watermarks": ["8KiB", "4KiB"]}]


@pytest.mark.parametrize("options", LATE, ids=str)
@pytest.mark.parametrize("checksums", [True, False])
@pytest.mark.parametrize("noisy", NOISY.values(), ids=NOISY)
def test_the_noise_of_rrelu(device, noisy, checksums, options):
    def program(_, scope=None):
        x = torch.linspace(-3, 3, 2048).reshape(16, 128).requires_grad_()
        if scope is None:
            noisy(x).square().sum().backward()
            return [x.grad]
        with scope:
            loss = noisy(x).square().sum()
        away(scope)
        loss.backward()
        return [x.grad]

    spilled = check(device, program, steps=3, seed=1, checksums=checksums, **options)
    torch.manual_seed(1)
    want = program(None)
    torch.manual_seed(1)
    assert equal(program(None, spilled), want) and nothing_is_left(spilled)


def test_a_tensor_that_waits_leaves_at_the_next_node_or_at_the_end(device):
    mask, other = torch.ones(4, 8), torch.full((4, 8), 2.0)
    x = torch.randn(4, 8, requires_grad=True)
    spilled = spilling(None, device)
    with spilled:
        y = x.detach() * 1 + x * mask
        assert gone(spilled) == 0
        z = y.cos() * other
        assert gone(spilled) == mask.nbytes + y.nbytes
    assert gone(spilled) == mask.nbytes + y.nbytes + other.nbytes
    z.sum().backward()
    assert equal([x.grad], [-(2 * x.detach()).sin() * 2])
    del y, z
    assert nothing_is_left(spilled)


def test_what_a_compiled_graph_saves_leaves_at_once(device):
    """A step of compiled blocks would have one more block's tensors on the device otherwise."""
    torch._dynamo.reset()
    run = torch.compile(lambda x: (x.exp() * 2).sin(), backend="aot_eager")
    x = torch.randn(4, 8, requires_grad=True)
    (want,) = torch.autograd.grad(run(x).sum(), x)
    with spilling(None, device) as spilled:
        y = run(x)
        assert gone(spilled) >= y.nbytes
        y.sum().backward()
    assert equal([x.grad], [want])


def an_exception(spilled, mask):
    raise ValueError("as planned")


def memory_that_is_freed(spilled, mask):
    """Nothing reads it: the tensor has no bytes any more, as without spilling."""
    mask.untyped_storage().resize_(0)


def a_change(spilled, mask):
    mask.add_(1)


def nodes_of_another_thread(spilled, mask):
    """They tell nothing of the kernels of this one."""

    def work():
        with spilled:
            (torch.randn(4, 8, requires_grad=True).exp() * 2).sum()

    thread = threading.Thread(target=work)
    thread.start()
    thread.join()
    assert not gone(spilled)


@pytest.mark.parametrize("event", [an_exception, memory_that_is_freed, a_change, nodes_of_another_thread])
def test_while_a_tensor_waits(device, event):
    x, mask = torch.randn(4, 8, requires_grad=True), torch.full((4, 8), 2.0)
    spilled = spilling(None, device)
    try:
        with spilled:
            y = x * mask
            event(spilled, mask)
    except ValueError:
        assert event is an_exception
    if event is memory_that_is_freed:
        assert not gone(spilled)
        mask.untyped_storage().resize_(mask.nbytes)
        mask.data.fill_(5)
    assert event is not nodes_of_another_thread or gone(spilled) == mask.nbytes
    away(spilled)
    if event is a_change:
        with pytest.raises(RuntimeError, match="modified by an inplace operation"):
            y.sum().backward()
        return
    y.sum().backward()
    assert equal([x.grad], [torch.full((4, 8), 5.0 if event is memory_that_is_freed else 2.0)])
    del y
    assert nothing_is_left(spilled)
