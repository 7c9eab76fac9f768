"""Which tensors leave, how they come back, and what several saved tensors share."""

import gc

import pytest
import torch
from models import equal, host
from spilling import away, check_model, nothing_is_left, spilling
from torch import nn
from torch.multiprocessing.reductions import StorageWeakRef

import libstagehand.torch as st


class Save(torch.autograd.Function):
    """Saves tensors as they are. The gradient is the sum of what comes back."""

    @staticmethod
    def forward(ctx, x, *tensors):
        ctx.save_for_backward(*tensors)
        return x.clone()

    @staticmethod
    def backward(ctx, grad):
        Save.seen = ctx.saved_tensors
        return grad, *[None] * len(ctx.saved_tensors)


def saved(*tensors, spilled=None):
    """Saves tensors, and returns what a backward gets."""
    out = Save.apply(torch.ones(1, requires_grad=True), *tensors)
    if spilled is not None:
        away(spilled)
    out.backward()
    seen, Save.seen = Save.seen, None
    return seen


def same(got, want):
    return (
        got.dtype == want.dtype
        and got.device == want.device
        and got.size() == want.size()
        and got.stride() == want.stride()
        and torch.equal(got, want)
    )


@pytest.mark.parametrize("when", ["kept", "leaving", "away"])
def test_trap_1_a_change_of_a_saved_tensor(when):
    """It is told as by PyTorch, and is harmless after the tensor has left."""
    # A second is so long that a test on a busy machine finds the copy under way.
    latency = ";latency=1s" if when == "leaving" else ""
    keep = "1GiB" if when == "kept" else 0
    with host(backend_options="poison=1" + latency) as device, spilling(None, device, keep=keep) as spilled:
        x, weight = torch.randn(100), torch.ones(1, requires_grad=True)
        want, y = x.sum().view(1), weight * x
        if when == "away":
            away(spilled)
        assert when != "leaving" or spilled.stats().leaving_bytes == 400
        x.add_(1)
        if when == "leaving":
            away(spilled)
            assert spilled.stats().away_bytes == 400
        if when == "away":
            y.sum().backward()
            assert torch.equal(weight.grad, want)
            return
        with pytest.raises(RuntimeError, match="modified by an inplace operation.* version 1; expected version 0"):
            y.sum().backward()


@pytest.mark.parametrize("keep", [0, 1 << 30])
def test_trap_2_no_cycle(device, keep):
    """exp() saves its own result, so a hook that keeps it whole would keep the graph alive."""
    gc.collect()
    gc.disable()
    try:
        with spilling(None, device, keep=keep) as spilled:
            out = torch.randn(100, requires_grad=True).exp()
            storage = StorageWeakRef(out.untyped_storage())
            del out
            assert storage.expired() and nothing_is_left(spilled)
    finally:
        gc.enable()


def views(x):
    yield from (x, x.t(), x[1:], x[:, 3:9], x.view(-1), x.view(8, 512), x.view(torch.int32), x[::2], x.diagonal(), x[5])


def parts(x):
    flat = x.view(-1)
    yield from (flat[4000:], flat[4090:], flat.as_strided((3, 4), (100, 7), 2000), flat.unfold(0, 10, 3)[1000:1010])
    yield from (flat[1:4095:7], flat[1:100], flat[3001:3100], flat[16:32])


@pytest.mark.parametrize("make", [views, parts])
def test_traps_3_and_5_views_of_one_storage(device, make):
    """They share copies, and lie as aligned as before, on which kernels may depend."""
    with spilling(None, device) as spilled:
        x = torch.randn(64, 64)
        wanted = list(make(x))
        got = saved(*wanted, spilled=spilled)
        assert all(map(same, got, wanted))
        assert [one.data_ptr() % 64 for one in got] == [one.data_ptr() % 64 for one in wanted]
        stats = spilled.stats()
        assert stats.restored and stats.saved == len(wanted) and stats.spill_bytes <= x.nbytes * 2
        if make is views:
            assert stats.shared >= 7 and len({one.untyped_storage().data_ptr() for one in got}) < 10


def test_trap_3_ten_views_cost_one_copy(device):
    with spilling(None, device) as spilled:
        x = torch.randn(64, 64)
        got = saved(*[x.t() if number % 2 else x for number in range(10)], spilled=spilled)
        assert all(same(one, x.t() if number % 2 else x) for number, one in enumerate(got))
        stats = spilled.stats()
        assert stats.spill_bytes == stats.restore_bytes == x.nbytes and stats.shared == 9
        assert len({one.untyped_storage().data_ptr() for one in got}) == 1


@pytest.mark.parametrize("recompute", [False, True])
def test_tensors_of_one_storage_with_versions_of_their_own(device, recompute):
    """unsafe_chunk() makes them, as LSTMs do without a fused kernel: each is changed after another was saved."""

    class Gates(nn.Module):
        def __init__(self):
            super().__init__()
            self.gates = nn.Linear(64, 256)

        def forward(self, x):
            a, b, c, d = self.gates(x).unsafe_chunk(4, 1)
            return a.sigmoid_() * b.tanh_() + c.sigmoid_() * d[:, :48].sigmoid_().sum()

    check_model(device, Gates(), torch.randn(512, 64), steps=4, recompute=recompute)


def test_a_part_of_a_storage_and_its_views_share_a_copy(device):
    x = torch.randn(100, 40).requires_grad_()
    with spilling(None, device, recompute=False) as spilled:
        part, other = (x * 2).unsafe_chunk(2)
        loss = part.square().sum() + part.T.square().sum() + part[10:].square().sum() + other.square().sum()
        away(spilled)
        assert spilled.stats().away_bytes <= 2 * part.nbytes
        loss.backward()
        want = 8 * x.detach()
        want[:50] *= 2
        want[10:50] += 8 * x.detach()[10:50]
        assert equal([x.grad], [want])


def test_a_view_beyond_the_tensor_that_it_is_a_view_of(device):
    x = torch.randn(4, 100)
    want = x[1:3].clone()
    with spilling(None, device, recompute=False) as spilled:
        view = x.unsafe_chunk(4)[1].as_strided((2, 100), (100, 1), 100)
        (got,) = saved(view, spilled=spilled)
    assert same(got, want)


def test_trap_4_an_address_that_is_used_again(device):
    with spilling(None, device) as spilled:
        outs, wants, addresses = [], [], set()
        for seed in range(300):
            x = torch.full((1000,), float(seed))
            addresses.add(x.data_ptr())
            outs.append(Save.apply(torch.ones(1, requires_grad=True), x))
            wants.append(x.clone() if seed % 10 == 0 else float(seed))
            del x
            away(spilled)
        assert len(addresses) < 300
        for seed, out in enumerate(outs):
            out.backward()
            assert (Save.seen[0] == seed).all()
        Save.seen = None
        assert spilled.stats().shared == 0


def test_trap_4_the_memory_of_a_storage_changes(device):
    """FSDP gives up the memory of a storage, and gets other memory for it. The version stays."""
    with spilling(None, device) as spilled:
        x = torch.ones(1000)
        first = Save.apply(torch.ones(1, requires_grad=True), x)
        away(spilled)
        with torch.autograd._unsafe_preserve_version_counter(x):
            x.untyped_storage().resize_(0)
            x.untyped_storage().resize_(8000)
            x.fill_(2)
        second = Save.apply(torch.ones(1, requires_grad=True), x)
        first.backward()
        assert (Save.seen[0] == 1).all()
        second.backward()
        assert (Save.seen[0] == 2).all()
        Save.seen = None


def test_contents_that_change_are_another_copy(device):
    with spilling(None, device) as spilled:
        x = torch.ones(1000)
        outs = []
        for _ in range(3):
            outs.append(Save.apply(torch.ones(1, requires_grad=True), x))
            away(spilled)
            x.add_(1)
        for number, out in enumerate(outs):
            out.backward()
            assert (Save.seen[0] == number + 1).all()
        Save.seen = None
        assert spilled.stats().shared == 0


def test_trap_15_weights_stay(device):
    with spilling(None, device) as spilled:
        linear = nn.Linear(64, 64)
        frozen = nn.Parameter(torch.randn(64, 64), requires_grad=False)
        leaf = torch.randn(64, requires_grad=True)
        with torch.no_grad():
            tensors = linear.weight.t(), linear.weight, linear.bias[3:], frozen, frozen.t(), leaf, leaf[1:]
        got = saved(*tensors)
        assert spilled.stats().saved == 0
        assert all(one.data_ptr() == other.data_ptr() for one, other in zip(got, tensors))
        linear(torch.randn(4, 64)).sum().backward()
        assert spilled.stats().saved == 1  # the input


def test_trap_15_storages_of_the_model_stay(device):
    model = nn.BatchNorm1d(64)
    model.register_buffer("table", torch.randn(64))
    with spilling(model, device) as spilled:
        saved(model.weight.detach(), model.table, model.table[3:], model.weight.data.view(8, 8))
        assert spilled.stats().saved == 0
        saved(torch.randn(64))
        assert spilled.stats().saved == 1


def test_trap_16_tensors_elsewhere_stay(device):
    with spilling(None, device) as spilled:
        there = torch.empty(64, device="meta")
        assert saved(there)[0].device.type == "meta"
        assert spilled.stats().saved == 0


def test_trap_18_what_is_not_plain_stays(device):
    from torch.testing._internal.two_tensor import TwoTensor

    x = torch.randn(64, 64)
    tensors = [
        torch.empty(0, 4),
        x[:1].expand(64, 64),
        x.to_sparse(),
        x.to_sparse_csr(),
        TwoTensor(x, x),
        torch.view_as_complex(x.view(64, 32, 2)).conj(),
        torch.view_as_complex(x.view(64, 32, 2)).conj().imag,
    ]
    with spilling(None, device) as spilled:
        got = saved(*tensors)
        assert spilled.stats().saved == 0
    assert [type(one) for one in got] == [type(one) for one in tensors]
    assert got[0].shape == (0, 4) and torch.equal(got[1], tensors[1]) and got[2].is_sparse
    assert got[5].is_conj() and got[6].is_neg() and torch.equal(got[6], tensors[6])


def test_trap_18_nested_tensors_stay(device):
    leaves = [torch.randn(5, 8, requires_grad=True), torch.randn(3, 8, requires_grad=True)]

    def grads(layout):
        for leaf in leaves:
            leaf.grad = None
        nested = torch.nested.as_nested_tensor(leaves, layout=layout)
        out = torch.nn.functional.gelu(nested * nested)
        (out.values() if layout == torch.jagged else out.to_padded_tensor(0)).square().sum().backward()
        return [leaf.grad.clone() for leaf in leaves]

    for layout in (torch.strided, torch.jagged):
        want = grads(layout)
        with spilling(None, device):
            assert all(map(torch.equal, grads(layout), want))


def test_small_tensors_stay(device):
    with st.spill_activations(device=device) as spilled:
        saved(torch.randn(1023), torch.randn(1024))
        assert spilled.stats().saved == 1
    with st.spill_activations(device=device, least="1MB") as spilled:
        saved(torch.randn(1024))
        assert spilled.stats().saved == 0


def test_trap_11_a_restored_tensor_outlives_its_node(device):
    with spilling(None, device) as spilled:
        x = torch.randn(1000)
        kept = saved(x, spilled=spilled)[0][10:]
        assert nothing_is_left(spilled)
        for _ in range(10):
            saved(torch.randn(1000), spilled=spilled)
        assert torch.equal(kept, x[10:])


def test_a_backward_that_changes_what_it_gets(device):
    """Another node that shares the memory must not see the change."""

    class Change(torch.autograd.Function):
        @staticmethod
        def forward(ctx, x, tensor):
            ctx.save_for_backward(tensor)
            return x * tensor.sum()

        @staticmethod
        def backward(ctx, grad):
            (tensor,) = ctx.saved_tensors
            return grad * tensor.mul_(2).sum() / 2, None

    x = torch.randn(1000)
    want = x.sum() ** 3
    with spilling(None, device) as spilled:
        weight = torch.ones(1, requires_grad=True)
        out = Change.apply(Change.apply(Change.apply(weight, x), x), x)
        away(spilled)
        out.backward()
        assert torch.allclose(weight.grad, want)


def test_the_memory_goes(device):
    """Nothing but the copy in host memory is left of a tensor that has gone."""
    with spilling(None, device) as spilled:
        x = torch.randn(100, requires_grad=True)
        storages = []
        for _ in range(5):
            x = x.exp()
            storages.append(StorageWeakRef(x.untyped_storage()))
            x = x.sin()
        away(spilled)
        gc.collect()
        assert spilled.stats().away_bytes == 400 * 5 and all(one.expired() for one in storages)
        x.sum().backward()
        assert nothing_is_left(spilled)
