"""The end of streaming, by close(), unstream() or an exception: what the module is then, and what can be asked."""

import gc
import os
import weakref

import pytest
import torch
from models import Net, loss_of, nothing_is_held, on_meta, refused, same, sgd, size_of, with_lora
from torch import nn
from torch.utils._python_dispatch import _get_current_dispatch_mode_stack

import libstagehand as sh
import libstagehand.torch as st


@pytest.mark.parametrize("debug", [None, True])
@pytest.mark.parametrize("error", [KeyError, KeyboardInterrupt])
@pytest.mark.parametrize("where", ["layers.3", "layers.5.up"])
def test_trap_22_after_an_exception_in_a_call(device, net, tokens, quarter, where, error, debug):
    """No hook sees an interrupt."""
    want = net(tokens)["logits"]

    def fail(*_):
        raise error("here")

    def failing(call):
        for register in (nn.Module.register_forward_pre_hook, nn.Module.register_forward_hook):
            handle = register(net.get_submodule(where), fail)
            with pytest.raises(error, match="here"):
                call()
            handle.remove()

    with st.stream(net, device, budget=quarter, debug=debug) as streamed:
        failing(lambda: net(tokens))
        for _ in range(2):
            assert torch.equal(net(tokens)["logits"], want) and nothing_is_held(streamed)

    def ended():
        with st.stream(net, device, budget=quarter, debug=debug):
            net(tokens)

    failing(ended)
    assert not _get_current_dispatch_mode_stack()
    assert torch.equal(torch.ones(3) + 1, torch.full((3,), 2.0)) and torch.equal(net(tokens)["logits"], want)


def test_the_module_is_what_it_was(device, net, tokens, quarter):
    before = {name: (parameter, parameter.data_ptr(), parameter.clone()) for name, parameter in net.named_parameters()}
    attributes = {name: set(module.__dict__) for name, module in net.named_modules()}
    with st.stream(net, device, budget=quarter):
        assert dict(net.named_parameters()).keys() == before.keys()
        assert all(parameter is before[name][0] for name, parameter in net.named_parameters())
        net(tokens)
    for name, parameter in net.named_parameters():
        was, address, contents = before[name]
        assert parameter is was and parameter.data_ptr() == address and torch.equal(parameter, contents)
        assert not parameter.__dict__
    for name, module in net.named_modules():
        assert set(module.__dict__) == attributes[name] and not module._forward_hooks and not module._forward_pre_hooks


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
    streamed.close()
    with refused("streaming of the model has ended", sh.UsageError):
        with streamed.step():
            pass


def test_what_is_not_streamed_is_told(device, net):
    around, plain = nn.Sequential(net), refused("Net is not streamed$", sh.UsageError)
    with plain:
        st.unstream(net)
    with st.stream(net, device) as streamed:
        for one, why, error in (
            (net.layers[2], "is the part 'layers.2' of Net, which is streamed", sh.UsageError),
            (around, "Sequential is not streamed, but its part '0' is", sh.UsageError),
            (streamed, "module that was given to stream.*Streamed", TypeError),
        ):
            with refused(why, error):
                st.unstream(one)
        with refused(r"embed\.weight is streamed already.*unstream\(model\)", sh.UsageError):
            st.stream(net, device)
    with refused("matches no module", ValueError):
        st.stream(net, device, blocks="nothing")
    with refused("Net is not streamed$", sh.UsageError):
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
        net(tokens), net(tokens)
        within = streamed.stats()
    after = streamed.stats()
    assert (after.steps, after.bytes_to_device) == (within.steps, within.bytes_to_device) and after.steps == 2


# Models on the meta device, whose weights are files.


@pytest.fixture
def stored(tmp_path):
    """Makes a net, stores it, and makes another one on the meta device."""
    safetensors = pytest.importorskip("safetensors.torch")

    def make(kind):
        net, meta = kind(), on_meta(kind)
        safetensors.save_file(net.state_dict(), tmp_path / "net.safetensors")
        for parameter, other in zip(meta.parameters(), net.parameters()):
            parameter.requires_grad_(other.requires_grad)
        return net, meta, tmp_path / "net.safetensors"

    return make


class Counts(Net):
    def __init__(self):
        super().__init__()
        self.norm = nn.BatchNorm1d(64)

    def forward(self, tokens):
        out = super().forward(tokens)
        return dict(out, logits=out["logits"] + self.norm(out["hidden"].mean(1)).sum())


def test_what_was_trained_from_files_stays(device, tokens, stored):
    net, meta, file = stored(Counts)
    before = file.read_bytes()
    for one in (net, meta):
        one.layers[2].up.weight.requires_grad_(False)
    want = [one.requires_grad for one in net.parameters()]
    optimizer = sgd([one for one in net.parameters() if one.requires_grad])
    with st.stream(meta, device, budget=size_of(net) // 4, files=file, optimizer=sgd):
        for _ in range(3):
            loss_of(meta(tokens)).backward()
            loss_of(net(tokens)).backward()
            optimizer.step()
            optimizer.zero_grad()
        assert same(meta.eval(), net.eval(), tokens)
    assert file.read_bytes() == before
    os.truncate(file, 0)
    state = net.state_dict()
    assert [one.requires_grad for one in meta.parameters()] == want
    assert [name for name, value in meta.state_dict().items() if value.is_meta] == ["layers.2.up.weight"]
    assert all(value.is_meta or torch.equal(value, state[name]) for name, value in meta.state_dict().items())


def test_what_was_trained_beside_files_stays(device, tokens, stored):
    net, meta, file = stored(lambda: with_lora(Net()))
    trained = {name for name, one in net.named_parameters() if one.requires_grad}
    optimizer = sgd([one for one in net.parameters() if one.requires_grad])
    loss_of(net(tokens)).backward()
    optimizer.step()
    with st.stream(meta, device, budget=size_of(net) // 4, files=file):
        optimizer = sgd([one for one in meta.parameters() if one.requires_grad])
        loss_of(meta(tokens)).backward()
        optimizer.step()
    os.truncate(file, 0)
    assert {name for name, one in meta.named_parameters() if not one.is_meta} == trained
    assert all(torch.equal(one, net.get_parameter(name)) for name, one in meta.named_parameters() if not one.is_meta)


def test_what_could_not_begin_leaves_all_on_the_meta_device(device, stored):
    net, meta, file = stored(Net)
    before = dict(meta.named_parameters())
    with pytest.raises(ZeroDivisionError):
        st.stream(meta, device, budget=size_of(net) // 4, files=file, optimizer=lambda parameters: 1 / 0)
    assert all(parameter is before[name] and parameter.is_meta for name, parameter in meta.named_parameters())
