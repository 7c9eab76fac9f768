"""Backward passes over frozen streamed weights: gradients bit-equal to those of the module in host memory, in a quarter
of its bytes.
"""

import gc
import weakref

import pytest
import torch
from models import (
    Layer,
    Net,
    check_streamed,
    equal,
    gradients,
    host,
    loss_of,
    nothing_is_held,
    refused,
    size_of,
    with_lora,
)
from torch import nn

import libstagehand as sh
import libstagehand.torch as st


@pytest.fixture
def net():
    return with_lora(Net())


@pytest.fixture
def quarter(net):
    return size_of(net) // 4


@pytest.mark.parametrize("blocks", [None, "layers.*"])
def test_trap_38_weights_are_there_again_for_their_backward(device, net, tokens, quarter, blocks):
    streamed = check_streamed(device, net, lambda: gradients(net, tokens), 4, budget=quarter, blocks=blocks)
    stats = streamed.stats()
    assert stats.steps == 4 and stats.held_bytes <= quarter
    assert net.layers[0].up.down.grad is not None and "layers.0.up.down" not in sum(streamed.blocks().values(), [])


def test_trap_38_without_that_the_weights_are_not_there(device, net, tokens, quarter, monkeypatch):
    """So the test above would see it."""
    with st.stream(net, device, budget=quarter, blocks="layers.*") as streamed:
        gradients(net, tokens)
        gradients(net, tokens)
        monkeypatch.setattr(type(streamed._holding), "read", lambda self, block: True)
        with pytest.raises(RuntimeError, match="is read by a view of it, or by its address, but its block .* not held"):
            gradients(net, tokens)


def test_trap_39_inputs_without_a_gradient_and_dict_outputs(device, quarter, tokens):
    class Dicts(nn.Module):
        def __init__(self, layer):
            super().__init__()
            self.layer = layer

        def forward(self, *, inputs):
            return {"x": self.layer(inputs["x"])}

    class Model(nn.Module):
        def __init__(self):
            super().__init__()
            net = with_lora(Net())
            self.embed, self.head = net.embed, net.head
            self.layers = nn.ModuleList(Dicts(layer) for layer in net.layers)

        def forward(self, tokens):
            x = {"x": self.embed(tokens)}  # needs no gradient
            for layer in self.layers:
                x = layer(inputs=x)
            return {"logits": self.head(x["x"]), "hidden": x["x"]}

    model = Model()
    check_streamed(device, model, lambda: gradients(model, tokens), budget=quarter, blocks="layers.*")


def test_a_graph_that_is_kept_is_run_again(device, net, tokens, quarter):
    """Trap 12."""
    want = gradients(net, tokens)
    with st.stream(net, device, budget=quarter) as streamed:
        net.zero_grad(set_to_none=True)
        loss = loss_of(net(tokens))
        loss.backward(retain_graph=True)
        first = [one.grad.clone() for one in net.parameters() if one.requires_grad]
        assert equal(first, want[1:])
        net(tokens)  # others are in its memory by now
        loss.backward()
        assert equal([one.grad for one in net.parameters() if one.requires_grad], [2 * one for one in first])
        assert nothing_is_held(streamed)


def test_two_forwards_and_then_their_backwards(device, net, tokens, quarter):
    wants = [gradients(net, (tokens + shift) % 50) for shift in (0, 1)]
    with st.stream(net, device, budget=quarter):
        for _ in range(2):
            net.zero_grad(set_to_none=True)
            losses = [loss_of(net((tokens + shift) % 50)) for shift in (0, 1)]
            losses[1].backward()
            assert equal([one.grad for one in net.parameters() if one.requires_grad], wants[1][1:])
            net.zero_grad(set_to_none=True)
            losses[0].backward()
            assert equal([one.grad for one in net.parameters() if one.requires_grad], wants[0][1:])


def test_one_step_of_several_micro_batches(device, net, tokens, quarter):
    def accumulate():
        net.zero_grad(set_to_none=True)
        for shift in range(3):
            loss_of(net((tokens + shift) % 50)).backward()
        return [one.grad for one in net.parameters() if one.requires_grad]

    want = accumulate()
    with st.stream(net, device, budget=quarter, debug=True) as streamed:
        for _ in range(2):
            assert equal(accumulate(), want)
            with streamed.step():
                assert equal(accumulate(), want)
        assert nothing_is_held(streamed)


class Alive:
    """A hook of a node: it lives as long as the node."""

    def __call__(self, *gradients):
        return None


class Tanh(Layer):
    """Autograd keeps what tanh returns for tanh itself, which would then keep itself alive."""

    nodes: list = []

    def forward(self, x):
        y = torch.tanh(x)
        hook = Alive()
        y.grad_fn.register_hook(hook)
        self.nodes.append(weakref.ref(hook))
        return super().forward(y)


def test_a_backward_that_never_comes(device, tokens):
    """Traps 2 and 13."""
    net = with_lora(Net(layer=Tanh))
    hidden = torch.randn(3, 7, 64, requires_grad=True)
    want = gradients(net, tokens, hidden)
    with st.stream(net, device, budget=size_of(net) // 4, blocks="layers.*") as streamed:
        kept = net(tokens, hidden)["logits"]
        for _ in range(2):
            assert equal(gradients(net, tokens, hidden), want)
        Tanh.nodes.clear()
        gc.collect()
        gc.disable()
        try:
            kept = net(tokens, hidden)["logits"]
            assert len(Tanh.nodes) == 8 and all(ref() is not None for ref in Tanh.nodes)
            del kept
            assert not any(ref() is not None for ref in Tanh.nodes)
        finally:
            gc.enable()
        assert equal(gradients(net, tokens, hidden), want)
        assert nothing_is_held(streamed)


def test_a_backward_that_fails(device, net, tokens, quarter):
    want = gradients(net, tokens)

    class Fails(torch.autograd.Function):
        @staticmethod
        def forward(ctx, x):
            return x.clone()

        @staticmethod
        def backward(ctx, grad):
            raise KeyError("there")

    with st.stream(net, device, budget=quarter) as streamed:
        handle = net.layers[3].register_forward_hook(lambda module, args, out: Fails.apply(out))
        for _ in range(2):
            with pytest.raises(KeyError, match="there"):
                gradients(net, tokens)
        handle.remove()
        for _ in range(2):
            assert equal(gradients(net, tokens), want)
            assert nothing_is_held(streamed)


def test_a_backward_after_the_end_is_refused(device, net, tokens):
    with st.stream(net, device):
        loss = loss_of(net(tokens))
    with pytest.raises(sh.UsageError, match="but streaming has ended"):
        loss.backward()


def test_a_backward_that_is_to_be_differentiated_is_refused(device, tokens):
    net = Net().requires_grad_(False)
    hidden = torch.randn(3, 7, 64, requires_grad=True)
    with st.stream(net, device):
        with pytest.raises(RuntimeError, match="create_graph=True"):
            torch.autograd.grad(loss_of(net(tokens, hidden)), hidden, create_graph=True)


class Counted:
    """Hooks of a user, as one that spills activations has."""

    def __init__(self):
        self.packed, self.unpacked = [], 0

    def pack(self, tensor):
        self.packed.append(tuple(tensor.shape))
        return tensor.detach().clone()

    def unpack(self, tensor):
        self.unpacked += 1
        return tensor


def test_hooks_of_others_get_what_is_no_weight(device, net, tokens, quarter):
    want = gradients(net, tokens)
    counted = Counted()
    with st.stream(net, device, budget=quarter, blocks="layers.*"):
        for _ in range(2):
            counted.__init__()
            net.zero_grad(set_to_none=True)
            with torch.autograd.graph.saved_tensors_hooks(counted.pack, counted.unpack):
                loss = loss_of(net(tokens))
            loss.backward()
            assert equal([one.grad for one in net.parameters() if one.requires_grad], want[1:])
            flat = {
                shape if len(shape) == 2 else (shape[0] * shape[1], shape[2])
                for shape in counted.packed
                if len(shape) > 1
            }
            assert counted.unpacked and (21, 64) in flat
            assert (128, 64) not in counted.packed and (64, 128) not in counted.packed
        assert torch._C._autograd._top_saved_tensors_default_hooks(False) is None


def test_a_node_that_is_looked_at_outside_a_backward(device, tokens, quarter):
    net = Net().requires_grad_(False)
    seen = []
    net.layers[1].up.register_forward_hook(lambda module, args, out: seen.append(out.grad_fn))
    want = net.layers[1].up.weight.clone()
    hidden = torch.randn(21, 64, requires_grad=True)
    with st.stream(net, device, budget=quarter, blocks="layers.*") as streamed:
        loss = loss_of(net(tokens, hidden))
        assert torch.equal(seen[0]._saved_mat2, want.t())
        del loss
        assert nothing_is_held(streamed)


def test_trap_40_autocast(device, net, tokens, quarter):
    def step():
        with torch.autocast("cpu", torch.bfloat16):
            return gradients(net, tokens)

    check_streamed(device, net, step, budget=quarter)


def test_tied_weights_and_modules_called_twice(device, net, tokens):
    net.head.weight = net.embed.weight
    net.layers[5] = net.layers[2]
    check_streamed(device, net, lambda: gradients(net, tokens), budget=size_of(net) // 4)


class Three(torch.autograd.Function):
    """One node that reads weights of three blocks."""

    look = staticmethod(lambda: None)

    @staticmethod
    def forward(ctx, x, a, b, c):
        ctx.save_for_backward(a, b, c)
        return x @ a @ b @ c

    @staticmethod
    def backward(ctx, grad):
        a, b, c = ctx.saved_tensors
        Three.look()
        return grad @ (a @ b @ c).t(), None, None, None


class Fused(nn.Module):
    def __init__(self, layers):
        super().__init__()
        self.a, self.b, self.c = layers

    def forward(self, x):
        return Three.apply(x, self.a.weight, self.b.weight, self.c.weight)


class WithFused(nn.Module):
    def __init__(self):
        super().__init__()
        self.layers = nn.ModuleList(nn.Linear(64, 64, bias=False) for _ in range(16))
        self.fused = Fused(self.layers[3:6])

    def forward(self, x):
        for layer in self.layers:
            x = layer(x)
        return self.fused(x)


def test_a_node_that_reads_several_blocks(device, monkeypatch):
    model = WithFused().requires_grad_(False)
    x = torch.randn(5, 64, requires_grad=True)
    (want,) = torch.autograd.grad(model(x).square().sum(), x)
    with st.stream(model, device, budget=size_of(model) // 3, blocks=["layers.*", "fused"]) as streamed:
        assert {"layers.3 and fused", "layers.4 and fused", "layers.5 and fused"} <= set(streamed.blocks())
        shared = [block for block in streamed._blocks if "fused" in block.name]
        seen = []
        monkeypatch.setattr(
            Three, "look", lambda: seen.append(sum(streamed.runtime.block_info(block.block).held for block in shared))
        )
        for _ in range(4):
            (got,) = torch.autograd.grad(model(x).square().sum(), x)
            assert torch.equal(got, want)
            assert nothing_is_held(streamed)
        assert seen == [3] * 4


def test_trap_26_random_delays_never_change_a_gradient(net, tokens, quarter):
    with host(backend_options="poison=1;jitter_us=200;jitter_seed=3") as device:
        check_streamed(device, net, lambda: gradients(net, tokens), 20, budget=quarter, blocks="layers.*")
    gc.collect()


class Spoils(nn.Module):
    """Changes a tensor that autograd has saved. With hooks PyTorch does not look by itself."""

    def __init__(self, nested):
        super().__init__()
        self.linear, self.nested = nn.Linear(64, 64), nested

    def forward(self, x):
        h = self.linear(x)
        h = torch.nested.as_nested_tensor([h, h[:1]]) if self.nested else h
        squares = h * h
        h.mul_(2)
        return torch.nested.to_padded_tensor(squares, 0.0) if self.nested else squares


@pytest.mark.parametrize("nested, what", [(False, r"a \[3, 64\] tensor"), (True, "a nested tensor")])
def test_trap_1_a_kept_tensor_that_is_changed_in_place_is_told(device, nested, what):
    model, x = Spoils(nested).requires_grad_(False), torch.randn(3, 64, requires_grad=True)
    with st.stream(model, device), refused(f"modified by an inplace operation: {what} is at version"):
        model(x).sum().backward()
