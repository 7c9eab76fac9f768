"""The end of streaming: what the module is then, and what it leaves of PyTorch's state."""
import pytest
import torch
from torch.utils._python_dispatch import _get_current_dispatch_mode_stack

import libstagehand.torch as st


@pytest.mark.parametrize("debug", [None, True])
def test_after_an_interrupt_in_a_call(device, net, tokens, quarter, debug):
    want = net(tokens)["logits"]

    def interrupt(*_):
        raise KeyboardInterrupt

    handle = net.layers[3].register_forward_hook(interrupt)
    with pytest.raises(KeyboardInterrupt), st.stream(net, device, budget=quarter, debug=debug):
        net(tokens)
    handle.remove()
    assert not _get_current_dispatch_mode_stack()
    assert torch.equal(torch.ones(3) + 1, torch.full((3,), 2.0))
    assert torch.equal(net(tokens)["logits"], want)
