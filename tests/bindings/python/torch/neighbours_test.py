"""Several models on a device that has not the memory for all of them."""

import copy
import subprocess
import sys
import threading

import pytest
import torch
from models import PAGE, Net, Pipeline, equal, loss_of, size_of, with_lora
from torch import nn

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


def small_models(count):
    models = [nn.Sequential(*(nn.Linear(128, 128) for _ in range(6))).requires_grad_(False) for _ in range(count)]
    x = torch.randn(4, 128)
    with torch.no_grad():
        return models, x, [model(x) for model in models]


def at_once(functions):
    """Calls each function in a thread of its own. Returns what they have raised."""
    raised, together = [], threading.Barrier(len(functions))

    def run(function):
        together.wait()
        try:
            function()
        except Exception as error:
            raised.append(error)

    threads = [threading.Thread(target=run, args=(function,)) for function in functions]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    return raised


def test_models_that_come_and_go_in_other_threads_are_waited_for():
    models, x, want = small_models(3)
    budget = size_of(models[0]) * 7 // 10 // PAGE * PAGE

    def come_and_go(model, wanted):
        for _ in range(8):
            with torch.no_grad(), st.stream(model, device, share_wait=1e9):
                for _ in range(3):
                    assert torch.equal(model(x), wanted)

    with sh.Device("host", page_bytes=PAGE, backend_options="poison=1", budget_bytes=budget) as device:
        raised = at_once([lambda one=one, to=to: come_and_go(one, to) for one, to in zip(models, want)])
        assert raised == [] and device.memory().peak_bytes <= budget


def stream_first_in_threads():
    models, x, want = small_models(4)

    def use(model, wanted):
        with torch.no_grad(), st.stream(model, device):
            assert torch.equal(model(x), wanted)

    with sh.Device("host", page_bytes=PAGE, budget_bytes=4 * size_of(models[0])) as device:
        for error in at_once([lambda one=one, to=to: use(one, to) for one, to in zip(models, want)]):
            raise error


def test_the_first_models_of_a_process_may_come_in_several_threads():
    # The first time is only once in a process.
    done = subprocess.run([sys.executable, __file__], capture_output=True, text=True)
    assert done.returncode == 0, done.stderr


def in_turn(width=64):
    """Two models, each of which needs most of the budget for its largest layer."""
    models = [nn.Sequential(*(nn.Linear(width, width) for _ in range(4))).requires_grad_(False) for _ in range(2)]
    budget = (width + 1) * width * 4 * 5 // 4 // PAGE * PAGE
    return (
        *models,
        torch.randn(2, width),
        sh.Device("host", page_bytes=PAGE, backend_options="poison=1", budget_bytes=budget),
    )


def test_models_that_run_in_turn_share_the_least_that_each_needs():
    first, second, x, device = in_turn()
    with device, torch.no_grad():
        want = second(first(x))
        with st.stream(Pipeline(first=first, second=second), device) as streamed:
            for _ in range(3):
                assert torch.equal(second(first(x)), want)
            assert device.memory().peak_bytes <= device.memory().budget_bytes
            assert [one.steps for one in streamed.stats().values()] == [3, 3]


def test_models_that_run_at_the_same_time_do_not_share_it():
    first, second, x, device = in_turn()
    with device, torch.no_grad(), st.stream(first, device, name="one") as streamed, st.stream(second, device) as other:
        want = first(x)
        with streamed.step():
            first(x)
            with pytest.raises(sh.BudgetError, match="into what other models \\('one'\\) leave of the budget"):
                second(x)
            assert torch.equal(first(x), want)
        second(x)
        assert torch.equal(first(x), want)
        assert other.stats().steps == 1


if __name__ == "__main__":
    stream_first_in_threads()
