"""Calls of one model by several threads: one after the other they work, at the same time they are refused."""

import threading

import pytest
import torch
from models import Net, equal, gradients, loss_of, size_of, with_lora

import libstagehand as sh
import libstagehand.torch as st

REFUSED = "another thread uses it now: its {} is under way"


class Other:
    """A thread that stops within a function, wherever that is called."""

    def __init__(self, function):
        self._function = function
        self._there, self._go = threading.Event(), threading.Event()
        self._thread = threading.Thread(target=self._run)
        self.result = self.error = None

    def _run(self):
        try:
            self.result = self._function()
        except BaseException as error:
            self.error = error
        finally:
            self._there.set()

    def stop(self, *_):
        if threading.current_thread() is self._thread:
            self._there.set()
            assert self._go.wait(60)

    def __enter__(self):
        self._thread.start()
        assert self._there.wait(60)
        return self

    def __exit__(self, *_):
        self._go.set()
        self._thread.join(60)


def run(function):
    with Other(function) as other:
        pass
    return other


@pytest.mark.parametrize("root", [True, False])
def test_a_call_within_that_of_another_thread_is_refused(device, net, tokens, quarter, root):
    x = torch.randn(3, 64)
    call = (lambda: net(tokens)["logits"]) if root else (lambda: net.layers[3](x))
    want = call()
    with st.stream(net, device, budget=quarter, blocks="layers.*") as streamed:
        net(tokens)
        other = Other(call)
        handle = net.layers[3].up.register_forward_hook(other.stop)
        calls = (call, lambda: net.layers[3].up(x), lambda: net.layers[5](x))
        others = (
            lambda: streamed.step().__enter__(),
            lambda: net.layers[3].load_state_dict(net.layers[3].state_dict()),
            streamed.close,
        )
        with other:
            for refused in (*calls, *others):
                with pytest.raises(RuntimeError, match=REFUSED.format("call")):
                    refused()
        assert other.error is None and torch.equal(other.result, want)
        handle.remove()
        assert torch.equal(call(), want) and torch.equal(run(call).result, want) and torch.equal(call(), want)


def test_gradients_of_one_thread_and_a_backward_of_another(device, tokens):
    net = with_lora(Net())
    want = gradients(net, tokens)
    net.zero_grad(set_to_none=True)
    with st.stream(net, device, budget=size_of(net) // 4, blocks="layers.*"):
        for _ in range(3):
            loss = run(lambda: loss_of(net(tokens))).result
            loss.backward()
            assert equal([loss.detach(), *(one.grad for one in net.parameters() if one.requires_grad)], want)
            net.zero_grad(set_to_none=True)


def test_a_call_within_the_backward_of_another_thread_is_refused(device, tokens):
    net = with_lora(Net())
    want = gradients(net, tokens)
    plain = loss_of(net(tokens)).detach()
    with st.stream(net, device, budget=size_of(net) // 4, blocks="layers.*"):
        gradients(net, tokens)
        other = Other(lambda: gradients(net, tokens))
        handle = net.layers[3].up.down.register_hook(other.stop)
        with other:
            kept = REFUSED.format("backward")
            with pytest.raises(RuntimeError, match=kept):
                net(tokens)
            with pytest.raises(RuntimeError, match=kept):
                net.layers[2](torch.randn(3, 64))
        handle.remove()
        assert other.error is None and equal(other.result, want)
        assert torch.equal(loss_of(net(tokens)).detach(), plain)


def test_a_backward_within_the_call_of_another_thread_is_refused(device, tokens):
    net = with_lora(Net())
    want = loss_of(net(tokens)).detach()
    with st.stream(net, device, budget=size_of(net) // 4, blocks="layers.*"):
        loss = loss_of(net(tokens))
        other = Other(lambda: loss_of(net(tokens)).detach())
        handle = net.layers[3].register_forward_hook(other.stop)
        with other, pytest.raises(RuntimeError, match=REFUSED.format("call")):
            loss.backward()
        handle.remove()
        assert other.error is None and torch.equal(other.result, want)


def test_what_another_thread_has_left_refuses_nothing(device, tokens):
    net = with_lora(Net())
    want = gradients(net, tokens)

    def interrupt(*_):
        raise KeyboardInterrupt

    with st.stream(net, device, budget=size_of(net) // 4, blocks="layers.*"):
        for _ in range(3):  # in the first step reads are looked at
            handle = net.layers[3].up.register_forward_hook(interrupt)
            assert isinstance(run(lambda: net(tokens)).error, KeyboardInterrupt)
            handle.remove()
            assert equal(gradients(net, tokens), want)
            handle = net.layers[3].up.down.register_hook(interrupt)
            assert isinstance(run(lambda: gradients(net, tokens)).error, KeyboardInterrupt)
            handle.remove()
            assert equal(gradients(net, tokens), want)
    assert torch.equal(torch.ones(3) + 1, torch.full((3,), 2.0))


def test_a_model_is_not_closed_within_its_call(device, net, tokens, quarter):
    want = net(tokens)["logits"]
    with st.stream(net, device, budget=quarter) as streamed:
        for _ in range(2):
            handle = net.layers[3].register_forward_hook(lambda *_: streamed.close())
            with pytest.raises(sh.UsageError, match="streaming cannot end within a call of the model Net"):
                net(tokens)
            handle.remove()
            assert torch.equal(net(tokens)["logits"], want)
    assert torch.equal(net(tokens)["logits"], want)
