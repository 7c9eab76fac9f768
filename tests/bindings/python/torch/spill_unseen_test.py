"""Writes that no version tells: by kernels of functions of the program, to statistics, and through `data`."""

import pytest
import torch
from models import equal
from spilling import away, nothing_is_left, spilling

OPTIONS = [{}, {"recompute": True}, {"recompute": True, "keep": "1GiB"}]


def check(device, program, options, model=None):
    """Compares what a program returns with and without spilling."""
    torch.manual_seed(5)
    want = program(lambda: None)
    torch.manual_seed(5)
    spilled = spilling(model, device, **options)
    with spilled:
        got = program(lambda: away(spilled))
    assert equal(got, want) and nothing_is_left(spilled)


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


@pytest.mark.parametrize("options", OPTIONS)
@pytest.mark.parametrize("kind", ["input", "detached", "returned"])
def test_a_function_that_writes_to_its_input(device, kind, options):
    def program(_):
        x = torch.randn(4, 8, requires_grad=True)
        Writes.apply(x.exp() * 30, kind).sin().sum().backward()
        return [x.grad]

    check(device, program, options)


@pytest.mark.parametrize("options", OPTIONS)
@pytest.mark.parametrize("name", ["native_batch_norm", "batch_norm_update_stats"])
def test_statistics_that_are_written_without_a_word(device, name, options):
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

    check(device, program, options)


def test_a_collective_writes_to_its_tensors():
    """The schemas of c10d do not tell."""
    torch.distributed.is_available() or pytest.skip("PyTorch has no collectives")
    from libstagehand.torch._spill_record import _written

    assert (0, "tensors") in _written(torch.ops.c10d.allreduce_.default)
    assert (0, "output_tensors") in _written(torch.ops.c10d.allgather_.default)


@pytest.mark.parametrize("options", OPTIONS)
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


@pytest.mark.parametrize("write", ["data", "part"])
def test_a_write_without_a_version_within_a_forward(device, write):
    """The mode that records operations sees it."""

    def program(away):
        x, w = torch.randn(4, 8), torch.randn(8, requires_grad=True)
        one, other = (x.data, x) if write == "data" else (x.unsafe_chunk(2)[0], x.unsafe_chunk(2)[0])
        first = other * w
        away()
        one.add_(1)
        (other * w).sum().backward()
        del first
        return [w.grad]

    check(device, program, {"recompute": True})


def test_two_spillers_share_nothing(device):
    x, w = torch.randn(8, 8), torch.randn(8, 8, requires_grad=True)
    one, other = spilling(None, device), spilling(None, device)
    with one:
        loss = (x[:4] * w[:4]).sum()
    with other:
        loss = loss + (x[4:] * w[4:]).sum()
    away(one)
    away(other)
    loss.backward()
    assert equal([w.grad], [x]) and nothing_is_left(one) and nothing_is_left(other)


def test_a_view_that_has_no_place_in_the_graph(device):
    """PyTorch refuses to tell the node of such a view, and computes from it without gradients."""

    def program(_):
        x = torch.randn(4, 8, requires_grad=True)
        y = x * 2
        part = y.split(2)[1]
        part.detach().add_(1)
        with torch.no_grad():
            y.add_(1)
            other = part * 3
        (y * other.sum()).sum().backward()
        return [x.grad, other]

    check(device, program, {"recompute": True})
