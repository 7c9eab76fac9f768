"""Models whose weights the library packs: bit-equal, and fixed while they are streamed."""

import pytest
import torch
from models import Net, size_of
from torch import nn

import libstagehand as sh
import libstagehand.torch as st


def flags(streamed):
    return [block.block.info().flags for block in streamed._blocks]


@pytest.mark.parametrize("kind", [torch.float32, torch.bfloat16, torch.float16])
@pytest.mark.parametrize("pin", [True, False])
def test_packed_weights_are_bit_equal(device, tokens, kind, pin):
    net = Net().requires_grad_(False).to(kind)
    net.layers[3].register_buffer("table", torch.arange(9_000))  # of integers, which are not packed
    want = net(tokens)["logits"]
    before = {name: (one, one.clone()) for name, one in net.state_dict(keep_vars=True).items()}
    with st.stream(net, device, budget=size_of(net) // 4 + 90_000, pin=pin, pack=True) as streamed:
        assert sh.BlockFlag.PACK in flags(streamed)[1]
        for _ in range(3):
            assert torch.equal(net(tokens)["logits"], want)
        assert all(torch.equal(one, before[name][1]) for name, one in net.state_dict().items())
    after = net.state_dict(keep_vars=True)
    assert all(after[name] is one and torch.equal(one, value) for name, (one, value) in before.items())


def test_packed_weights_are_not_changed(device, net, tokens):
    want = net(tokens)["logits"]
    with torch.no_grad(), st.stream(net, device, pack=True):
        with pytest.raises(RuntimeError, match=r"packed \(pack=True\).*stream the model again"):
            net.load_state_dict(net.state_dict())
        assert torch.equal(net(tokens)["logits"], want)
        with pytest.raises(RuntimeError, match=r"changes layers\.4\.up\.weight in place .*: the weight is packed"):
            net.layers[4].up.weight.data.mul_(2)
        net.state_dict()["layers.4.up.weight"].mul_(2)
        with pytest.raises(RuntimeError, match=r"layers\.4\.up\.weight is packed .* was changed in place"):
            net(tokens)


def test_a_change_on_the_device_is_gone_after_the_step(device, net, tokens):
    class Doubled(nn.Linear):
        def forward(self, x):
            self.weight.data.mul_(2)
            return super().forward(x)

    want = net(tokens)["logits"]
    net.head.__class__ = Doubled
    with torch.no_grad(), st.stream(net, device, pack=True):
        with pytest.raises(RuntimeError, match=r"head\.weight is streamed, and was changed in place"):
            net(tokens)
        net.head.__class__ = nn.Linear
        for _ in range(2):
            assert torch.equal(net(tokens)["logits"], want)


def test_trained_weights_are_not_packed(device, tokens):
    net = Net()
    with st.stream(net, device, pack=True, optimizer=lambda them: torch.optim.SGD(them, lr=0.1)) as streamed:
        assert not any(sh.BlockFlag.PACK in one for one in flags(streamed))
        net(tokens)["logits"].square().mean().backward()


def test_weights_of_files_are_packed_too(device, net, tokens, tmp_path):
    safetensors = pytest.importorskip("safetensors.torch")
    safetensors.save_file(net.state_dict(), tmp_path / "net.safetensors")
    with torch.device("meta"):
        meta = Net().requires_grad_(False)
    with st.stream(meta, device, budget=size_of(net) // 4, files=tmp_path, pack=True) as streamed:
        assert all(sh.BlockFlag.PACK in one for one in flags(streamed))
        for _ in range(2):
            assert torch.equal(meta(tokens)["logits"], net(tokens)["logits"])
