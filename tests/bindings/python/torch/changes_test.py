"""Changes of weights while they are streamed: those that are made in the source come to the device; those that cannot
be are errors.
"""

import copy

import pytest
import torch
from models import Net, equal, size_of
from torch import nn

import libstagehand.torch as st


def data(weight, net):
    weight.data.mul_(2)


def augmented(weight, net):
    weight.data += weight.data


def detached(weight, net):
    weight.detach().mul_(2)


def of_state(weight, net):
    net.state_dict()["layers.4.up.weight"].mul_(2)


def copied(weight, net):
    weight.data.copy_(weight.data * 2)


def assigned(weight, net):
    """As adapters of peft take their part from a weight."""
    other = weight.to(torch.float32)
    other.data *= 2
    weight.data = other


@pytest.mark.parametrize("change", [data, augmented, detached, of_state, copied, assigned])
@pytest.mark.parametrize("resident", [False, True])
@pytest.mark.parametrize("mode", [torch.no_grad, torch.inference_mode])
def test_what_is_written_to_the_source_is_computed_with(device, net, tokens, change, resident, mode):
    other = copy.deepcopy(net)
    other.layers[4].up.weight.data.mul_(2)
    with mode():
        want = other(tokens)["logits"]
        assert not torch.equal(want, net(tokens)["logits"])
        with st.stream(net, device, budget=size_of(net) * (4 if resident else 1) // 4, blocks="layers.*"):
            for _ in range(3):
                net(tokens)
            change(net.layers[4].up.weight, net)
            assert torch.equal(net(tokens)["logits"], want)
            change(net.layers[4].up.weight, net)
            other.layers[4].up.weight.data.mul_(2)
            assert torch.equal(net(tokens)["logits"], other(tokens)["logits"])
        assert torch.equal(net(tokens)["logits"], other(tokens)["logits"])


def test_other_data_is_refused_and_nothing_is_lost(device, net, tokens):
    with torch.no_grad(), st.stream(net, device):
        want = net(tokens)["logits"]
        for value in (torch.zeros(1), torch.zeros(64, 128), torch.zeros(128, 64).half()):
            with pytest.raises(
                RuntimeError, match=r"layers\.4\.up\.weight is streamed, so its data cannot be replaced"
            ):
                net.layers[4].up.weight.data = value
        assert torch.equal(net(tokens)["logits"], want)


def test_arrays_are_read_only(device, net, tokens):
    with torch.no_grad(), st.stream(net, device):
        net(tokens)
        with pytest.raises(ValueError, match="read-only"):
            net.layers[4].up.weight.numpy()[0, 0] = 1


class WritesData(nn.Linear):
    def forward(self, x):
        self.weight.data.mul_(2)
        return super().forward(x)


def test_a_module_that_writes_to_its_weight(device):
    model = nn.Sequential(WritesData(64, 64), nn.Linear(64, 64)).requires_grad_(False)
    with st.stream(model, device, blocks=["0", "1"]):
        with pytest.raises(RuntimeError, match=r"0\.weight is streamed, and was changed in place"):
            model(torch.zeros(1, 64))


def test_what_is_read_of_a_mapped_file_is_not_changed(device, net, tokens, tmp_path):
    safetensors = pytest.importorskip("safetensors.torch")
    safetensors.save_file(net.state_dict(), tmp_path / "net.safetensors")
    with torch.device("meta"):
        meta = Net().requires_grad_(False)
    with torch.no_grad(), st.stream(meta, device, files=tmp_path):
        meta(tokens)
        with pytest.raises(
            RuntimeError, match=r"changes layers\.4\.up\.weight in place .*: the weight is streamed from"
        ):
            meta.layers[4].up.weight.data.mul_(2)
        meta(tokens)
        meta.state_dict()["layers.4.up.weight"].mul_(2)
        with pytest.raises(
            RuntimeError,
            match=r"layers\.4\.up\.weight is streamed from a mapped file, and .* that was made from it was changed",
        ):
            meta(tokens)


def sgd(parameters):
    return torch.optim.SGD(parameters, lr=0.1)


def train(net, tokens):
    net(tokens)["logits"].square().mean().backward()


def test_weights_that_are_trained(device, tokens):
    net = Net()
    other = copy.deepcopy(net)
    optimizer = sgd(other.parameters())
    with st.stream(net, device, budget=size_of(net) // 2, blocks="layers.*", optimizer=sgd):
        for _ in range(3):
            train(net, tokens)
            train(other, tokens)
            optimizer.step()
            optimizer.zero_grad()
            for model in (net, other):
                model.layers[2].up.weight.data.mul_(0.5)
        assert equal(list(net.state_dict().values()), list(other.state_dict().values()))
        old = net.layers[2].up.weight.detach()
        train(net, tokens)
        old.mul_(2)
        with pytest.raises(
            RuntimeError,
            match=r"layers\.2\.up\.weight was changed in place, by a tensor that was read before steps",
        ):
            net(tokens)


def test_forwards_without_gradients_do_not_keep_steps_back(device, tokens):
    net = Net()
    with st.stream(net, device, budget=size_of(net) // 2, blocks="layers.*", optimizer=sgd) as streamed:
        most = [0]

        def note_gradients(_):
            most.append(sum(one.grad is not None for one in net.parameters()))

        for block in streamed._training._trained:
            for parameter in block.parameters:
                parameter.register_post_accumulate_grad_hook(note_gradients)
        for _ in range(2):
            with torch.no_grad():
                net(tokens)
            train(net, tokens)
        assert max(most) < 10, "gradients of a block or two"


class Fails(nn.Module):
    def __init__(self):
        super().__init__()
        self.own, self.inner, self.fails = nn.Parameter(torch.randn(64, 64)), nn.Linear(64, 64), True

    def forward(self, x):
        return self.inner(x @ self.own)


def test_a_loading_that_fails(device):
    model = nn.Sequential(Fails(), Fails()).requires_grad_(False)
    other = copy.deepcopy(model)
    x = torch.randn(2, 64)
    with torch.no_grad(), st.stream(model, device):
        want = model(x)

        def fail(*args):
            raise KeyError("bad file")

        handle = model[0].inner._register_load_state_dict_pre_hook(fail)
        with pytest.raises(KeyError, match="bad file"):
            model.load_state_dict({name: value * 0 for name, value in other.state_dict().items()})
        handle.remove()
        other[0].own.data.zero_()  # what was loaded before it failed
        assert torch.equal(model(x), other(x)) and not torch.equal(model(x), want)
        model.load_state_dict({name: value + 1 for name, value in other.state_dict().items()})
        other.load_state_dict(model.state_dict())
        assert torch.equal(model(x), other(x))


@pytest.mark.parametrize("load", [False, True])
def test_a_model_that_was_made_in_inference_mode(device, tokens, load):
    with torch.inference_mode():
        net, other = Net(), Net()
        want = (other if load else net)(tokens)["logits"]
        with st.stream(net, device, budget=size_of(net) // 4):
            for _ in range(3):
                if load:
                    net.load_state_dict(other.state_dict())
                assert torch.equal(net(tokens)["logits"], want)
        assert torch.equal(net(tokens)["logits"], want) and all(one.is_inference() for one in net.parameters())


def test_what_asks_for_nothing_is_refused(device, net, tmp_path):
    with pytest.raises(ValueError, match=r"outside=\['lm_hed\*'\] matches no parameter or buffer"):
        st.stream(net, device, outside=["lm_hed*", "embed.*"])
    with pytest.raises(ValueError, match="optimizer= was given, but no streamed weight requires a gradient"):
        st.stream(net, device, optimizer=sgd)
    with pytest.raises(ValueError, match="files= is empty"):
        st.stream(net, device, files=[])


@pytest.mark.parametrize("resident", [False, True])
def test_what_an_error_has_told_of_is_not_computed_with(device, net, tokens, resident):
    def write(module, args):
        module.up.weight.mul_(2)
        module.up.bias.mul_(2)

    with torch.no_grad():
        want = net(tokens)["logits"]
        with st.stream(net, device, budget=size_of(net) * (4 if resident else 1) // 4, blocks="layers.*") as streamed:
            for _ in range(3):
                handle = net.layers[4].register_forward_pre_hook(write)
                with pytest.raises(RuntimeError, match=r"layers\.4\.up\..* was changed in place"):
                    net(tokens)
                handle.remove()
                for _ in range(2):
                    assert torch.equal(net(tokens)["logits"], want)
            with streamed.step():
                handle = net.layers[4].register_forward_pre_hook(write)
                with pytest.raises(RuntimeError, match="was changed in place"):
                    net(tokens)
                handle.remove()
                with pytest.raises(RuntimeError, match="was changed in place"):  # in the same step it is there still
                    net(tokens)
            assert torch.equal(net(tokens)["logits"], want)
        assert torch.equal(net(tokens)["logits"], want)
