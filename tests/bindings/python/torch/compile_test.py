"""torch.compile of a streamed model, of its layers, before and after streaming begins: trap 19."""
import pytest
import torch
from models import Net, size_of, with_lora

import libstagehand.torch as st


@pytest.fixture(autouse=True)
def reset():
    yield
    torch.compiler.reset()


def compiled(net, whole):
    if whole:
        return torch.compile(net, backend="aot_eager")
    for layer in net.layers:
        layer.compile(backend="aot_eager")
    return net


@pytest.mark.parametrize("before", [False, True])
@pytest.mark.parametrize("whole", [False, True])
@pytest.mark.parametrize("grad", [False, True])
def test_trap_19_bit_equal(device, tokens, whole, grad, before):
    net = with_lora(Net(layers=4)) if grad else Net(layers=4).requires_grad_(False)

    def step(model):
        if not grad:
            with torch.no_grad():
                return [model(tokens)["logits"]]
        net.zero_grad(set_to_none=True)
        loss = model(tokens)["logits"].square().mean()
        loss.backward()
        return [loss.detach(), *(one.grad for one in net.parameters() if one.requires_grad)]

    want = step(net)
    if before:
        model = compiled(net, whole)
        step(model)
    with st.stream(net, device, budget=size_of(net) // 2, blocks="layers.*", debug=False) as streamed:
        if not before:
            model = compiled(net, whole)
        for _ in range(3):
            assert all(torch.equal(one, other) for one, other in zip(step(model), want))
        stats = streamed.stats()
        assert stats.steps == 3 and stats.acquires >= 3 * (6 + 5 * grad) and stats.bytes_to_device > size_of(net)
    assert all(torch.equal(one, other) for one, other in zip(step(model), want))
