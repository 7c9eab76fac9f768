"""unstream(), and what can be asked after the end of streaming."""

import gc
import weakref

import pytest
import torch
from models import Net
from torch import nn

import libstagehand as sh
import libstagehand.torch as st


def test_a_model_ends_its_streaming(device, net, tokens):
    want = net(tokens)["logits"]
    st.stream(net, device, budget="25%")
    gc.collect()  # the program has no reference to what stream() returned
    assert torch.equal(net(tokens)["logits"], want)
    st.unstream(net)
    assert type(net.embed.weight) is nn.Parameter and "_apply" not in net.__dict__
    assert torch.equal(net(tokens)["logits"], want)
    with st.stream(net, device) as streamed:
        assert torch.equal(net(tokens)["logits"], want)
    assert "closed" in repr(streamed)


def test_what_is_not_streamed_is_told(device, net):
    around = nn.Sequential(net)
    with pytest.raises(sh.UsageError, match="Net is not streamed$"):
        st.unstream(net)
    with st.stream(net, device) as streamed:
        with pytest.raises(sh.UsageError, match="is the part 'layers.2' of Net, which is streamed"):
            st.unstream(net.layers[2])
        with pytest.raises(sh.UsageError, match="Sequential is not streamed, but its part '0' is"):
            st.unstream(around)
        with pytest.raises(TypeError, match="module that was given to stream.*Streamed"):
            st.unstream(streamed)
        with pytest.raises(sh.UsageError, match=r"streamed already.*unstream\(model\)"):
            st.stream(net, device)
    with pytest.raises(sh.UsageError, match="Net is not streamed$"):
        st.unstream(net)
    with pytest.raises(ValueError, match="matches no module"):
        st.stream(net, device, blocks="nothing")
    with pytest.raises(sh.UsageError, match="Net is not streamed$"):
        st.unstream(net)


def test_the_registry_keeps_no_model(device):
    net = Net().requires_grad_(False)
    st.stream(net, device).close()
    reference = weakref.ref(net)
    del net
    gc.collect()
    assert reference() is None


def test_the_last_stats_stay(device, net, tokens):
    with st.stream(net, device, budget="25%") as streamed:
        net(tokens)
        net(tokens)
        within = streamed.stats()
    after = streamed.stats()
    assert (after.steps, after.bytes_to_device) == (within.steps, within.bytes_to_device) and after.steps == 2
