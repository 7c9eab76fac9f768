"""Several models on a device that has not the memory for all of them."""

import copy
import threading

import pytest
import torch
from models import PAGE, Net, equal, loss_of, size_of, with_lora

import libstagehand as sh
import libstagehand.torch as st


@pytest.fixture
def pair():
    return with_lora(Net()), with_lora(Net())


@pytest.fixture
def shared(pair):
    with sh.Device("host", page_bytes=PAGE, backend_options="poison=1", budget_bytes=size_of(pair[0]) // 2) as device:
        yield device


def step(first, second, tokens):
    """The output of one is the input of the other, with one backward."""
    for net in (first, second):
        net.zero_grad(set_to_none=True)
    loss = loss_of(second(None, first(tokens)["hidden"]))
    loss.backward()
    return [loss.detach(), *(one.grad for net in (first, second) for one in net.parameters() if one.grad is not None)]


def test_two_models_in_one_graph(shared, pair, tokens):
    want = step(*copy.deepcopy(pair), tokens)
    with st.stream(pair[0], shared), st.stream(pair[1], shared, share_wait=0.0):
        for _ in range(4):
            assert equal(step(*pair, tokens), want)


def test_within_an_explicit_step_it_is_an_error_at_once(shared, pair, tokens):
    first, second = pair
    with torch.no_grad(), st.stream(first, shared) as streamed, st.stream(second, shared, share_wait=1e9):
        want = first(tokens)["logits"]
        with streamed.step():
            assert torch.equal(first(tokens)["logits"], want)
            with pytest.raises(sh.BudgetError, match="BUSY"):
                second(tokens)
        second(tokens)


def test_a_step_waits_for_that_of_another_thread(shared, pair, tokens):
    first, second = pair
    with torch.no_grad():
        want = copy.deepcopy(second)(tokens)["logits"]
        with st.stream(first, shared) as streamed, st.stream(second, shared, share_wait=1e9):
            first(tokens)
            got = []

            def call():
                with torch.no_grad():
                    got.append(second(tokens)["logits"])

            thread = threading.Thread(target=call)
            with streamed.step():
                first(tokens)
                thread.start()
                thread.join(0.1)
            thread.join(60)
            assert len(got) == 1 and torch.equal(got[0], want)
