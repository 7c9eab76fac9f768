"""Models on the meta device whose weights are mapped files."""

import json
import mmap
import os
import pathlib
import re
import resource
import struct

import pytest
import torch
from broken_files import BROKEN
from model_files import write_safetensors
from models import Net, on_meta, refused, size_of
from torch import nn

import libstagehand.torch as st
from libstagehand.torch import _files

TYPES = {torch.float32: "F32", torch.bfloat16: "BF16", torch.int8: "I8"}


def write(path, tensors):
    """A file of tensors."""
    raw = {name: one.contiguous().view(torch.uint8).numpy().tobytes() for name, one in tensors.items()}
    write_safetensors(path, {name: (TYPES[one.dtype], list(one.shape), raw[name]) for name, one in tensors.items()})


def write_sparse(path, rest, content=b"", **tensors):
    """A file with a tensor of that many bytes, which takes no place on the disk, behind others."""
    at = len(content)
    header = {"rest": {"dtype": "U8", "shape": [rest], "data_offsets": [at, at + rest]}, **tensors}
    text = json.dumps(header).encode()
    text += b" " * (-len(text) % 8)
    with path.open("wb") as file:
        file.write(struct.pack("<Q", len(text)) + text + content)
        file.truncate(8 + len(text) + at + rest)


@pytest.fixture
def stored(tmp_path):
    net = Net().requires_grad_(False)
    state = net.state_dict()
    names = list(state)
    write(tmp_path / "one.safetensors", {name: state[name] for name in names[:20]})
    write(tmp_path / "two.safetensors", {name: state[name] for name in names[20:]})
    return net, on_meta(), tmp_path


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
    model, meta = (nn.Sequential(nn.Linear(16, 16), nn.Linear(16, 16)).requires_grad_(False) for _ in range(2))
    write(tmp_path / "even.safetensors", model.state_dict())
    raw = (tmp_path / "even.safetensors").read_bytes()
    size = struct.unpack("<Q", raw[:8])[0]
    (tmp_path / "odd.safetensors").write_bytes(
        struct.pack("<Q", size + 3) + raw[8 : 8 + size] + b"   " + raw[8 + size :]
    )
    x = torch.randn(2, 16)
    with st.stream(meta.to("meta"), device, files=[tmp_path / "odd.safetensors"]):
        assert torch.equal(meta(x), model(x))


def test_what_is_missing_or_different_is_named(device, stored):
    net, meta, folder = stored
    smaller, other = on_meta(layers=7), Net().requires_grad_(False).to("meta", torch.bfloat16)
    (folder / "empty").mkdir()
    one = folder / "one.safetensors"
    different = r"embed\.weight is f32 \[50, 64\] in .*one\.safetensors, and bfloat16 \[50, 64\] in the model"
    for model, files, why, error in (
        (meta, None, r"meta device have no contents: embed\.weight, .*files=", ValueError),
        (meta, one, r"no contents: layers\.3.*No file has them", ValueError),
        (other, folder, different, ValueError),
        (net, folder, r"embed\.weight is in .*one\.safetensors, but is not on the meta device", ValueError),
        (smaller, folder, r"tensors that Net does not have: layers\.7\.down\.bias.*strict=False", ValueError),
        (meta, [folder, one], r"embed\.weight': is also in .*one\.safetensors", ValueError),
        (meta, folder / "empty", r"empty: folder: holds no \*\.safetensors", FileNotFoundError),
    ):
        with refused(why, error):
            st.stream(model, device, files=files)
    st.stream(smaller, device, files=folder, strict=False).close()
    assert all(parameter.is_meta for parameter in meta.parameters())


def test_similar_names_are_shown(device, stored, tmp_path):
    net, meta, _ = stored
    state = {f"model.{name}": value for name, value in net.state_dict().items()}
    write(tmp_path / "prefix", state)
    with refused(
        r"no contents: embed\.weight \(the files have model\.embed\.weight\), layers\.0\.norm\.weight .*, \.\.\.\. No",
        ValueError,
    ):
        st.stream(meta, device, files=tmp_path / "prefix")
    state = dict(net.state_dict())
    state["layers.3.down_proj.weight"] = state.pop("layers.3.down.weight")
    state["zzz"] = state.pop("head.bias")
    write(tmp_path / "other", state)
    with refused(
        r"no contents: layers\.3\.down\.weight \(the files have layers\.3\.down_proj\.weight\), head\.bias\. No",
        ValueError,
    ):
        st.stream(meta, device, files=tmp_path / "other")


@pytest.mark.parametrize("name", BROKEN)
def test_broken_files_are_refused(device, tmp_path, name):
    content, says = BROKEN[name]
    (tmp_path / "bad.safetensors").write_bytes(content)
    meta = on_meta()
    with pytest.raises(ValueError, match=rf"/bad\.safetensors: .*{re.escape(says)}"):
        st.stream(meta, device, files=tmp_path)


def test_a_file_larger_than_the_memory_is_mapped(device, tmp_path):
    model, x = nn.Linear(4, 4, bias=False).requires_grad_(False), torch.randn(2, 4)
    weight = {"dtype": "F32", "shape": [4, 4], "data_offsets": [0, 64]}
    bytes = 2 * os.sysconf("SC_PHYS_PAGES") * mmap.PAGESIZE
    write_sparse(tmp_path / "large.safetensors", bytes, model.weight.numpy().tobytes(), weight=weight)
    meta = nn.Linear(4, 4, bias=False, device="meta").requires_grad_(False)
    with st.stream(meta, device, files=tmp_path / "large.safetensors", strict=False):
        assert torch.equal(meta(x), model(x))


def tied(device):
    model = nn.Sequential(nn.Linear(4, 4, bias=False), nn.Linear(4, 4, bias=False)).to(device).requires_grad_(False)
    model[1].weight = model[0].weight
    return model


def test_the_tensors_of_a_tied_weight_must_be_equal(device, tmp_path):
    model, x = tied("cpu"), torch.randn(2, 4)
    weight = model[0].weight
    write(tmp_path / "equal.safetensors", {"0.weight": weight, "1.weight": weight})
    write(tmp_path / "different.safetensors", {"0.weight": weight, "1.weight": weight + 1})
    write(tmp_path / "other.safetensors", {"0.weight": weight, "1.weight": weight.bfloat16()})
    meta = tied("meta")
    with st.stream(meta, device, files=tmp_path / "equal.safetensors"):
        assert torch.equal(meta(x), model(x))
    for name in ("different", "other"):
        with refused(rf"0\.weight in .*{name}\.safetensors and 1\.weight in .* differ, and are", ValueError):
            st.stream(tied("meta"), device, files=tmp_path / f"{name}.safetensors")


def test_a_nul_byte_does_not_end_a_name(device, tmp_path):
    model = nn.Linear(4, 4, bias=False)
    write(tmp_path / "model.safetensors", model.state_dict())
    with pytest.raises(ValueError, match=r"the name holds a NUL byte"):
        st.stream(model.to("meta"), device, files=f"{tmp_path / 'model.safetensors'}\0.safetensors")


@pytest.fixture
def limited():
    """Sets a limit of this process, for the test."""
    before = {}

    def limit(which, most):
        before[which] = resource.getrlimit(which)
        resource.setrlimit(which, (most, before[which][1]))

    yield limit
    for which, limits in before.items():
        resource.setrlimit(which, limits)


def test_more_files_than_descriptors(device, tmp_path, limited):
    model = nn.Sequential(*(nn.Linear(8, 8, bias=False) for _ in range(100))).requires_grad_(False)
    for name, tensor in model.state_dict().items():
        write(tmp_path / f"{name}.safetensors", {name: tensor})
    x, meta = torch.randn(2, 8), nn.Sequential(*(nn.Linear(8, 8, bias=False, device="meta") for _ in range(100)))
    open_before = len(os.listdir("/proc/self/fd"))
    limited(resource.RLIMIT_NOFILE, open_before + 50)
    with st.stream(meta.requires_grad_(False), device, budget=size_of(model) // 4, files=tmp_path):
        assert torch.equal(meta(x), model(x))
        open_now = [os.readlink(path) for path in pathlib.Path("/proc/self/fd").iterdir() if path.is_symlink()]
        assert not any(name.endswith(".safetensors") for name in open_now)


def test_an_error_of_mapping_names_the_file(device, tmp_path, limited):
    write_sparse(tmp_path / "large.safetensors", 1 << 42)
    limited(resource.RLIMIT_AS, 1 << 41)
    with refused(r"cannot be mapped: Cannot allocate memory: .*large\.safetensors", OSError):
        st.stream(nn.Linear(4, 4, device="meta"), device, files=tmp_path)


def test_a_file_that_is_replaced_after_its_header_was_read(device, tmp_path, monkeypatch):
    """The offsets of one file are never taken for those of another."""
    model, path = nn.Linear(4, 4, bias=False), tmp_path / "model.safetensors"
    read = _files.read_headers

    def then(change):
        def changed(paths):
            found = read(paths)
            change()
            return found

        monkeypatch.setattr(_files, "read_headers", changed)

    def replace():
        write(tmp_path / "other", {"weight": model.weight + 1})
        os.replace(tmp_path / "other", path)

    def rewrite():
        with path.open("r+b") as file:
            file.seek(-4, os.SEEK_END)
            file.write(b"1234")
        os.utime(path, ns=(0, path.stat().st_mtime_ns + 1))

    for change in (replace, rewrite, lambda: os.truncate(path, path.stat().st_size - 4)):
        write(path, {"weight": model.weight})
        then(change)
        with pytest.raises(ValueError, match=r"model\.safetensors was changed, or is another file, since its header"):
            st.stream(nn.Linear(4, 4, bias=False, device="meta"), device, files=path)
