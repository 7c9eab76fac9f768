"""Weights that are trained while they are streamed: equal, bit by bit, to those trained in host memory."""

import copy
import io
from importlib import import_module

import pytest
import torch
from models import Net, adamw, loss_of, nothing_is_held, refused, same_state, size_of
from torch import nn
from torch.utils.checkpoint import checkpoint

import libstagehand as sh
import libstagehand.torch as st


def momentum(parameters):
    return torch.optim.SGD(parameters, lr=0.1, momentum=0.9)


def reference(net, make, batches, accumulate=1):
    """What training in host memory makes of it, with the losses."""
    optimizer = make([one for one in net.parameters() if one.requires_grad])
    losses = []
    for i, tokens in enumerate(batches):
        loss = loss_of(net(tokens))
        loss.backward()
        losses.append(loss.detach())
        if (i + 1) % accumulate == 0:
            optimizer.step()
            optimizer.zero_grad()
    return losses


@pytest.fixture
def batches():
    return [torch.randint(0, 50, (3, 7)) for _ in range(6)]


@pytest.mark.parametrize("make", [momentum, adamw])
@pytest.mark.parametrize("frozen", [(), ("embed", "layers.2.up", "layers.5")])
def test_bit_equal_in_a_quarter(device, batches, make, frozen):
    net = Net()
    for name in frozen:
        net.get_submodule(name).requires_grad_(False)
    other = copy.deepcopy(net)
    want = reference(other, make, batches)
    with st.stream(net, device, budget=size_of(net) // 4, blocks="layers.*", optimizer=make) as streamed:
        for tokens, loss in zip(batches, want):
            got = loss_of(net(tokens))
            assert torch.equal(got, loss)
            got.backward()
            assert all(parameter.grad is None for parameter in net.parameters())
        assert same_state(net, other)  # served from the source, written back before
        stats = streamed.stats()
        assert stats.steps == 6 and stats.bytes_to_host > 3 * size_of(net) * 3 // 4 * (not frozen)
        assert len(streamed.optimizers) == 10 - sum("." not in name or name == "layers.5" for name in frozen)
    assert same_state(net, other)


def test_gradients_are_accumulated(device, batches):
    net = Net()
    other = copy.deepcopy(net)
    reference(other, adamw, batches, accumulate=3)
    with st.stream(net, device, budget=size_of(net) // 4, blocks="layers.*", optimizer=adamw) as streamed:
        for i in (0, 3):
            with streamed.accumulate():
                loss_of(net(batches[i])).backward()
                loss_of(net(batches[i + 1])).backward()
            loss_of(net(batches[i + 2])).backward()
    assert same_state(net, other)


class Twice(Net):
    """Uses a layer twice, ties two weights, and does not use one layer at all."""

    def __init__(self):
        super().__init__()
        self.layers[6] = self.layers[3]
        self.head.weight = self.embed.weight
        self.unused = nn.Linear(64, 64)


def test_forwards_without_gradients_do_not_keep_steps_back(device, tokens):
    net, most = Net(), [0]
    with st.stream(net, device, budget=size_of(net) // 2, blocks="layers.*", optimizer=momentum) as streamed:
        for block in streamed._training._trained:
            for parameter in block.parameters:
                parameter.register_post_accumulate_grad_hook(
                    lambda _: most.append(sum(one.grad is not None for one in net.parameters()))
                )
        for _ in range(2):
            with torch.no_grad():
                net(tokens)
            loss_of(net(tokens)).backward()
        assert 0 < max(most) < 10, "gradients of a block or two"


class Checkpointed(Net):
    reentrant = False

    def forward(self, tokens):
        x = self.embed(tokens)
        for layer in self.layers:
            x = checkpoint(layer, x, use_reentrant=self.reentrant)
        return {"logits": self.head(x), "hidden": x}


class Reentrant(Checkpointed):
    reentrant = True


def adagrad(parameters):
    """It makes its state like its parameters."""
    return torch.optim.Adagrad(parameters, lr=0.1)


@pytest.mark.parametrize("make", [momentum, adamw, adagrad])
@pytest.mark.parametrize("kind", [Twice, Checkpointed, Reentrant])
def test_kinds_of_models(device, batches, kind, make):
    net = kind()
    other = copy.deepcopy(net)
    reference(other, make, batches[:3])
    blocks = ["layers.*", "unused"] if kind is Twice else "layers.*"
    with st.stream(net, device, budget=size_of(net) // 2, blocks=blocks, optimizer=make):
        for tokens in batches[:3]:
            loss_of(net(tokens)).backward()
    assert same_state(net, other)


def test_autocast_sees_the_new_weights(device, batches):
    """Trap 40."""
    net = Net()
    other = copy.deepcopy(net)

    def forward(model, tokens):
        with torch.autocast("cpu", torch.bfloat16):
            return loss_of(model(tokens))

    optimizer = momentum(other.parameters())
    with torch.autocast("cpu", torch.bfloat16):  # its cache lives on between the steps
        with st.stream(net, device, budget=size_of(net) // 4, blocks="layers.*", optimizer=momentum):
            for tokens in batches:
                loss = forward(other, tokens)
                loss.backward()
                optimizer.step()
                optimizer.zero_grad()
                torch.clear_autocast_cache()
                got = forward(net, tokens)
                assert torch.equal(got, loss)
                got.backward()
    assert same_state(net, other)


def test_a_second_backward_over_weights_that_have_changed_is_refused(device, batches):
    net = Net()
    with st.stream(net, device, optimizer=momentum):
        loss = loss_of(net(batches[0]))
        loss.backward(retain_graph=True)
        with pytest.raises(RuntimeError, match="modified by an inplace operation: .*weight is at version"):
            loss.backward()


def test_without_an_optimizer_there_is_none(device):
    with st.stream(Net(), device) as streamed:
        with pytest.raises(sh.UsageError, match="optimizer="):
            streamed.accumulate()


@pytest.mark.parametrize("make, module", [(momentum, "sgd"), (adamw, "adam")])
def test_optimizers_choose_the_same_implementation(device, batches, monkeypatch, make, module):
    """As on a GPU, where torch.optim updates many tensors by one call."""
    chosen = []

    def choose(parameters, *args, **named):
        chosen.append(default(parameters, *args, **named))
        return chosen[-1]

    optim, base = import_module(f"torch.optim.{module}"), import_module("torch.optim.optimizer")
    default = optim._default_to_fused_or_foreach
    known = list(base._foreach_supported_types)
    monkeypatch.setattr(base, "_get_foreach_kernels_supported_devices", lambda: ["cpu"])
    monkeypatch.setattr(optim, "_default_to_fused_or_foreach", choose)
    net = Net()
    other = copy.deepcopy(net)
    want = reference(other, make, batches)
    assert set(chosen) == {(False, True)}
    chosen.clear()
    with st.stream(net, device, budget=size_of(net) // 4, optimizer=make):
        for tokens, loss in zip(batches, want):
            got = loss_of(net(tokens))
            assert torch.equal(got, loss)
            got.backward()
    assert set(chosen) == {(False, True)} and same_state(net, other)
    assert base._foreach_supported_types == known


@pytest.mark.parametrize("early", [False, True])
def test_gradients_are_clipped_by_the_norm_of_all(device, batches, early):
    net = Net()
    other = copy.deepcopy(net)
    optimizer = adamw(other.parameters())
    with st.stream(net, device, budget=size_of(net) // 4, blocks="layers.*", optimizer=adamw) as streamed:
        for tokens in batches:
            loss_of(other(tokens)).backward()
            want = torch.nn.utils.clip_grad_norm_(other.parameters(), 0.1)
            optimizer.step()
            optimizer.zero_grad()
            if early:  # all in one step
                with streamed.step(), streamed.accumulate():
                    loss_of(net(tokens)).backward()
                    got = torch.nn.utils.clip_grad_norm_(net.parameters(), 0.1)
                    streamed.optimize()
            else:
                with streamed.accumulate():
                    loss_of(net(tokens)).backward()
                got = torch.nn.utils.clip_grad_norm_(net.parameters(), 0.1)
                streamed.optimize()
            assert torch.equal(got, want) and want > 0.1
            assert all(parameter.grad is None for parameter in net.parameters())
        assert same_state(net, other)
    assert same_state(net, other)


@pytest.mark.parametrize("clipped", [False, True])
def test_losses_that_are_scaled(device, batches, clipped):
    net = Net()
    other = copy.deepcopy(net)
    optimizer = momentum(other.parameters())
    scalers = [torch.amp.GradScaler("cpu", init_scale=1024.0, growth_interval=2) for _ in range(2)]
    options = {} if clipped else {"optimizer_step": scalers[0].step}
    with st.stream(net, device, budget=size_of(net) // 4, blocks="layers.*", optimizer=momentum, **options) as streamed:
        for i, tokens in enumerate(batches):
            factor = float("inf") if i == 3 else 1.0  # a step that is not made
            scalers[1].scale(loss_of(other(tokens)) * factor).backward()
            if clipped:
                scalers[1].unscale_(optimizer)
                torch.nn.utils.clip_grad_norm_(other.parameters(), 0.1)
            scalers[1].step(optimizer)
            optimizer.zero_grad()
            if clipped:
                with streamed.accumulate():
                    scalers[0].scale(loss_of(net(tokens)) * factor).backward()
                for one in streamed.optimizers.values():
                    scalers[0].unscale_(one)
                torch.nn.utils.clip_grad_norm_(net.parameters(), 0.1)
                streamed.optimize(scalers[0].step)
            else:
                scalers[0].scale(loss_of(net(tokens)) * factor).backward()
            for scaler in scalers:
                scaler.update()
            assert scalers[0].get_scale() == scalers[1].get_scale()
            assert same_state(net, other)
    assert scalers[0].get_scale() != 1024.0


def test_a_step_of_a_blocks_optimizer_by_hand_is_refused(device, batches):
    net = Net()
    other = copy.deepcopy(net)
    with st.stream(net, device, budget=size_of(net) // 4, blocks="layers.*", optimizer=momentum) as streamed:
        with streamed.accumulate():
            loss_of(net(batches[0])).backward()
        with refused(
            r"the optimizer of .layers\.0.* cannot be stepped by hand.*optimize\(\).*optimizer_step=scaler\.step"
        ):
            streamed.optimizers["layers.0"].step()
        net.zero_grad()
        assert same_state(net, other)


def test_a_function_that_makes_no_optimizer_leaves_nothing(device, batches):
    net = Net()
    left = 3

    def fails(parameters):
        nonlocal left
        left -= 1
        return momentum(parameters) if left else 1 / 0

    def without(parameters):
        return parameters

    for make, error in ((fails, ZeroDivisionError), (without, TypeError), (torch.optim.LBFGS, TypeError)):
        with pytest.raises(error):
            st.stream(net, device, budget=size_of(net) // 4, optimizer=make)
        loss_of(net(batches[0])).backward()
        assert not any(parameter._post_accumulate_grad_hooks for parameter in net.parameters())
        net.zero_grad()
    other = copy.deepcopy(net)
    reference(other, momentum, batches[:2])
    with st.stream(net, device, budget=size_of(net) // 4, optimizer=momentum):
        for tokens in batches[:2]:
            loss_of(net(tokens)).backward()
    assert same_state(net, other)


def saved(net):
    file = io.BytesIO()
    torch.save(net, file)
    file.seek(0)
    return torch.load(file, weights_only=False)


@pytest.mark.parametrize("fails", ["hook", "step"])
@pytest.mark.parametrize("save", [lambda net: net, copy.deepcopy, saved], ids=["state_dict", "deepcopy", "save"])
def test_an_emergency_checkpoint_after_a_backward_that_failed(device, batches, save, fails):
    """The blocks that the backward has reached have their steps, and the others have none."""
    net = Net()
    before = copy.deepcopy(net)

    class Failing(torch.optim.SGD):
        steps = 0

        def step(self, *args):
            Failing.steps += 1
            if fails == "step" and Failing.steps == 4:
                raise ValueError("as planned")
            super().step(*args)

    def hook(gradient):
        raise ValueError("as planned")

    def make(parameters):
        return Failing(parameters, lr=0.1)

    with st.stream(net, device, budget=size_of(net) // 4, blocks="layers.*", optimizer=make) as streamed:
        handle = net.layers[3].register_forward_hook(lambda module, args, out: out.register_hook(hook) and None)
        if fails == "step":
            handle.remove()
        loss = loss_of(net(batches[0]))
        handle.remove()
        try:
            loss.backward()
            pytest.fail("the backward has not failed")
        except ValueError:
            state = {name: value.clone() for name, value in save(net).state_dict().items()}
        assert nothing_is_held(streamed)
        changed = {name for name, value in before.state_dict().items() if not torch.equal(value, state[name])}
        assert changed and not any(name.startswith("layers.0.") for name in changed)
        net.load_state_dict(before.state_dict())
        assert same_state(net, before)
        net.zero_grad()
        want = reference(before, lambda parameters: torch.optim.SGD(parameters, lr=0.1), batches[:2])
        steps = Failing.steps
        fails = ""
        for tokens, loss in zip(batches[:2], want):
            got = loss_of(net(tokens))
            got.backward()
            assert torch.equal(got, loss)
        assert same_state(net, before)
        assert Failing.steps - steps == 2 * len(streamed.optimizers)  # no block counts gradients of the failed backward
