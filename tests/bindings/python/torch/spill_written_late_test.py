"""Tensors that autograd saves before the kernel that fills them runs. No version tells of such a write. With checksums
the spiller waits for each copy, so that a copy that begins too early always has the wrong bytes. `operators_test.py`
does so with all operators.
"""

import threading

import pytest
import torch
import torch.nn.functional as F
from models import equal
from spilling import away, nothing_is_left, spilling

OPTIONS = [
    {},
    {"recompute": True},
    {"peak": 0},
    {"peak": "64KiB"},
    {"keep": "8KiB"},
    {"pack": True},
    {"watermarks": ["8KiB", "4KiB"]},
]


def gone(spilled):
    """The bytes that have left, without those that wait for a node."""
    (one,) = spilled._devices.values()
    one.collect(one.stream(), all=True)
    return one.spiller.stats().away_bytes


def noisy(kind):
    x = torch.linspace(-3, 3, 2048).reshape(16, 128).requires_grad_()
    if kind == "plain":
        y = F.rrelu(x * 2, 0.1, 0.9, training=True)
    elif kind == "leaf":
        y = F.rrelu(x, 0.1, 0.9, training=True)
    elif kind == "in place":
        y = F.rrelu_(x * 2, 0.1, 0.9, training=True)
    elif kind == "between":
        y = F.gelu(F.rrelu(F.gelu(x * 2), 0.1, 0.9, training=True)) * x
    else:  # the noise lies in memory that a cheap operation has made
        made = x.exp()
        y = torch.ops.aten.rrelu_with_noise(x, made.detach(), 0.1, 0.9, True)
    return x, y


@pytest.mark.parametrize("options", OPTIONS)
@pytest.mark.parametrize("checksums", [True, False])
@pytest.mark.parametrize("kind", ["plain", "leaf", "in place", "between", "computed"])
def test_the_noise_of_rrelu(device, kind, checksums, options):
    torch.manual_seed(1)
    x, y = noisy(kind)
    y.square().sum().backward()
    spilled = spilling(None, device, checksums=checksums, **options)
    for inside in (False, True, False):
        torch.manual_seed(1)
        with spilled:
            again, y = noisy(kind)
            loss = y.square().sum()
            if inside:
                loss.backward()
        if not inside:
            away(spilled)
            loss.backward()
        assert equal([again.grad], [x.grad])
    del again, y, loss
    assert nothing_is_left(spilled)


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


def test_memory_that_the_program_frees_before_it_leaves(device):
    """Nothing reads it: the tensor has no bytes any more, as without spilling."""
    x, mask = torch.randn(4, 8, requires_grad=True), torch.ones(4, 8)
    with spilling(None, device) as spilled:
        y = x * mask
        mask.untyped_storage().resize_(0)
    assert not gone(spilled)
    mask.untyped_storage().resize_(mask.nbytes)
    mask.data.fill_(2)
    y.sum().backward()
    assert equal([x.grad], [torch.full((4, 8), 2.0)])


def test_an_exception_while_a_tensor_waits(device):
    x, mask = torch.randn(4, 8, requires_grad=True), torch.full((4, 8), 2.0)
    spilled = spilling(None, device)
    with pytest.raises(ValueError, match="as planned"), spilled:
        y = x * mask
        raise ValueError("as planned")
    y.sum().backward()
    assert equal([x.grad], [mask])
    del y
    assert nothing_is_left(spilled)


def test_each_thread_waits_for_its_own_nodes(device):
    """The nodes of another thread tell nothing of the kernels of this one."""
    x, mask = torch.randn(4, 8, requires_grad=True), torch.full((4, 8), 2.0)
    spilled = spilling(None, device)

    def work():
        with spilled:
            (torch.randn(4, 8, requires_grad=True).exp() * 2).sum()

    with spilled:
        y = x * mask
        thread = threading.Thread(target=work)
        thread.start()
        thread.join()
        assert not gone(spilled)
    assert gone(spilled) == mask.nbytes
    y.sum().backward()
    assert equal([x.grad], [mask])


def test_a_tensor_that_waits_and_is_changed(device):
    x, mask = torch.randn(4, 8, requires_grad=True), torch.full((4, 8), 2.0)
    spilled = spilling(None, device)
    with spilled:
        y = x * mask
        mask.add_(1)
    away(spilled)
    with pytest.raises(RuntimeError, match="modified by an inplace operation"):
        y.sum().backward()
