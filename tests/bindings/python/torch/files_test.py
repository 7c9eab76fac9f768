"""Models on the meta device whose weights are mapped files."""

import json
import re
import struct

import pytest
import torch
from broken_files import BROKEN
from models import Net, size_of
from torch import nn

import libstagehand as sh
import libstagehand.torch as st

TYPES = {torch.float32: "F32", torch.bfloat16: "BF16", torch.int8: "I8"}


def write(path, tensors, pad=0):
    """A safetensors file."""
    header, data = {"__metadata__": {"format": "pt"}}, b""
    for name, tensor in tensors.items():
        raw = tensor.contiguous().view(torch.uint8).numpy().tobytes() if tensor.numel() else b""
        header[name] = {
            "dtype": TYPES[tensor.dtype],
            "shape": list(tensor.shape),
            "data_offsets": [len(data), len(data) + len(raw)],
        }
        data += raw
    text = json.dumps(header).encode()
    text += b" " * (-len(text) % 8 + pad)
    path.write_bytes(struct.pack("<Q", len(text)) + text + data)


@pytest.fixture
def stored(tmp_path):
    net = Net().requires_grad_(False)
    state = net.state_dict()
    names = list(state)
    write(tmp_path / "one.safetensors", {name: state[name] for name in names[:20]})
    write(tmp_path / "two.safetensors", {name: state[name] for name in names[20:]})
    with torch.device("meta"):
        meta = Net().requires_grad_(False)
    return net, meta, tmp_path


def test_files_are_streamed_bit_equal(device, stored, tokens):
    net, meta, folder = stored
    want = net(tokens)["logits"]
    before = dict(meta.named_parameters())
    with st.stream(meta, device, budget=size_of(net) // 4, files=folder) as streamed:
        for _ in range(3):
            assert torch.equal(meta(tokens)["logits"], want)
        assert streamed.stats().bytes_to_device > 2 * size_of(net)
        assert all(torch.equal(value, net.state_dict()[name]) for name, value in meta.state_dict().items())
        with pytest.raises(RuntimeError, match=r"mapped file, and files are not written to"):
            meta.load_state_dict(net.state_dict())
    assert all(parameter is before[name] and parameter.is_meta for name, parameter in meta.named_parameters())


def test_a_file_that_aligns_nothing(device, tmp_path):
    model = nn.Sequential(nn.Linear(16, 16), nn.Linear(16, 16)).requires_grad_(False)
    write(tmp_path / "odd.safetensors", model.state_dict(), pad=3)
    with torch.device("meta"):
        meta = nn.Sequential(nn.Linear(16, 16), nn.Linear(16, 16)).requires_grad_(False)
    x = torch.randn(2, 16)
    with st.stream(meta, device, files=[tmp_path / "odd.safetensors"]):
        assert torch.equal(meta(x), model(x))


def test_what_is_missing_or_different_is_named(device, stored, tmp_path):
    net, meta, folder = stored
    with pytest.raises(ValueError, match=r"meta device have no contents: embed\.weight, .*files="):
        st.stream(meta, device)
    with pytest.raises(ValueError, match=r"no contents: layers\.3.*No file has them"):
        st.stream(meta, device, files=folder / "one.safetensors")
    with pytest.raises(
        ValueError, match=r"embed\.weight is f32 \[50, 64\] in .*one\.safetensors, and bfloat16 \[50, 64\] in the model"
    ):
        st.stream(Net().requires_grad_(False).to("meta", torch.bfloat16), device, files=folder)
    with pytest.raises(ValueError, match=r"embed\.weight is in .*one\.safetensors, but is not on the meta device"):
        st.stream(net, device, files=folder)
    with torch.device("meta"):
        smaller = Net(layers=7).requires_grad_(False)
    with pytest.raises(ValueError, match=r"tensors that Net does not have: layers\.7\.down\.bias.*strict=False"):
        st.stream(smaller, device, files=folder)
    st.stream(smaller, device, files=folder, strict=False).close()
    with pytest.raises(ValueError, match=r"embed\.weight': is also in .*one\.safetensors"):
        st.stream(meta, device, files=[folder, folder / "one.safetensors"])
    with pytest.raises(FileNotFoundError, match=r"empty: folder: holds no \*\.safetensors"):
        (folder / "empty").mkdir()
        st.stream(meta, device, files=folder / "empty")
    assert all(parameter.is_meta for parameter in meta.parameters())


def test_similar_names_are_shown(device, stored, tmp_path):
    net, meta, _ = stored
    state = {f"model.{name}": value for name, value in net.state_dict().items()}
    write(tmp_path / "prefix", state)
    with pytest.raises(
        ValueError,
        match=r"no contents: embed\.weight \(the files have model\.embed\.weight\), layers\.0\.norm\.weight .*, \.\.\.\. No",
    ):
        st.stream(meta, device, files=tmp_path / "prefix")
    state = dict(net.state_dict())
    state["layers.3.down_proj.weight"] = state.pop("layers.3.down.weight")
    state["zzz"] = state.pop("head.bias")
    write(tmp_path / "other", state)
    with pytest.raises(
        ValueError,
        match=r"no contents: layers\.3\.down\.weight \(the files have layers\.3\.down_proj\.weight\), head\.bias\. No",
    ):
        st.stream(meta, device, files=tmp_path / "other")


@pytest.mark.parametrize("name", BROKEN)
def test_broken_files_are_refused(device, tmp_path, name):
    content, says = BROKEN[name]
    (tmp_path / "bad.safetensors").write_bytes(content)
    with torch.device("meta"):
        meta = Net()
    with pytest.raises(ValueError, match=rf"/bad\.safetensors: .*{re.escape(says)}"):
        st.stream(meta, device, files=tmp_path)


def test_a_file_that_shrinks_is_an_error(device, stored, tokens):
    net, meta, folder = stored
    with st.stream(meta, device, budget=size_of(net) // 4, files=folder):
        meta(tokens)
        with open(folder / "two.safetensors", "r+b") as file:
            file.truncate(4096)
        with pytest.raises(sh.Error):
            for _ in range(3):
                meta(tokens)
