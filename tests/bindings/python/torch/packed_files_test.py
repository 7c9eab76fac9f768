"""Models whose weights are files of `stagehand pack`."""

import json
import pathlib

import pytest
import torch
from model_files import write_safetensors
from models import refused
from torch import nn

import libstagehand as sh
import libstagehand.torch as st

DATA = pathlib.Path(__file__).resolve().parents[3] / "data/packed"
FRAME = (DATA / "weights.packed").read_bytes()
CONTENTS = torch.frombuffer(bytearray((DATA / "weights.bf16").read_bytes()), dtype=torch.bfloat16)[: 90 * 100]
ROWS, COLUMNS = 90, 100


class Layer(nn.Module):
    def __init__(self):
        super().__init__()
        self.weight = nn.Parameter(torch.zeros(ROWS, COLUMNS, dtype=torch.bfloat16))
        self.scale = nn.Parameter(torch.zeros(COLUMNS, dtype=torch.bfloat16))

    def forward(self, x):
        return torch.tanh(
            (x @ self.weight.nan_to_num(0, 1, -1).clamp(-1, 1).T @ self.weight[:, :COLUMNS].nan_to_num()).clamp(-1, 1)
            * self.scale
        )


def made():
    return nn.Sequential(*(Layer() for _ in range(6)))


def write(path, version=1, frame=FRAME, dtype="BF16", shape=(ROWS, COLUMNS)):
    """A file of `stagehand pack`: of each layer one tensor is packed."""
    tensors, packed = {}, {}
    for i in range(6):
        scale = torch.full((COLUMNS,), 1 + i / 8, dtype=torch.bfloat16).view(torch.uint8).numpy().tobytes()
        tensors |= {f"{i}.scale": ("BF16", [COLUMNS], scale), f"{i}.weight": ("U8", [len(frame)], frame)}
        packed[f"{i}.weight"] = {"dtype": dtype, "shape": list(shape)}
    about = {"stagehand.packed": json.dumps({"version": version, "tensors": packed})}
    write_safetensors(path, tensors, about)


@pytest.fixture
def packed(tmp_path):
    write(tmp_path / "packed.safetensors")
    return tmp_path


@pytest.fixture
def plain():
    model = made().requires_grad_(False)
    for i, layer in enumerate(model):
        layer.weight.copy_(CONTENTS.view(ROWS, COLUMNS))
        layer.scale.fill_(1 + i / 8)
    return model


@pytest.fixture
def meta():
    with torch.device("meta"):
        return made().requires_grad_(False)


@pytest.fixture
def x():
    return torch.randn(4, COLUMNS).to(torch.bfloat16)


def same(a, b):
    return torch.equal(a.view(torch.int16), b.view(torch.int16))


def read(streamed):
    """The tensors that were unpacked on the host."""
    return [one for one in streamed._files._packed if one._read]


@pytest.mark.parametrize("options", [{}, {"pin": False}, {"pack": True}])
def test_packed_files_are_streamed_bit_equal(device, packed, plain, meta, x, options):
    want = plain(x)
    before = dict(meta.named_parameters())
    with st.stream(meta, device, budget=70 << 10, files=packed, **options) as streamed:
        for _ in range(3):
            assert same(meta(x), want)
        assert streamed.stats().bytes_to_device > 0
        assert not read(streamed), "streaming has unpacked tensors into host memory"
        state = meta.state_dict()
        assert all(same(state[name], value) for name, value in plain.state_dict().items())
        assert len(read(streamed)) == 6
        with pytest.raises(RuntimeError, match="mapped file, and files are not written to"):
            meta.load_state_dict(plain.state_dict())
        assert same(meta(x), want)
    assert all(parameter is before[name] and parameter.is_meta for name, parameter in meta.named_parameters())


def test_small_packed_tensors_are_copied(device, packed, plain, meta, x, monkeypatch):
    """Tensors below SMALL_SOURCE share pinned memory, where they are plain."""
    monkeypatch.setattr("libstagehand.torch._weights.SMALL_SOURCE", 1 << 20)
    with st.stream(meta, device, budget=70 << 10, files=packed) as streamed:
        assert same(meta(x), plain(x)) and len(read(streamed)) == 6


def test_packed_tensors_outside_are_moved_to_the_device(device, packed, plain, meta, x):
    with st.stream(meta, device, files=packed, outside=["0.*", "5.weight"]) as streamed:
        assert same(meta(x), plain(x))
        assert same(meta[0].weight, plain[0].weight) and same(meta[5].weight, plain[5].weight)
        assert len(read(streamed)) >= 2


def test_packed_tensors_are_trained(device, packed, plain, meta, x):
    """Trained weights are in memory, as from plain files."""
    optimizer = lambda parameters: torch.optim.SGD(parameters, lr=0.5)  # noqa: E731
    plain.requires_grad_(True)
    reference = optimizer(plain.parameters())
    for _ in range(2):
        reference.zero_grad()
        plain(x).float().square().mean().backward()
        reference.step()
    meta.requires_grad_(True)
    with st.stream(meta, device, files=packed, optimizer=optimizer):
        for _ in range(2):
            meta(x).float().square().mean().backward()
    assert all(same(value, plain.state_dict()[name]) for name, value in meta.state_dict().items())
    assert not any(parameter.is_meta for parameter in meta.parameters())


def test_what_does_not_fit_the_model_is_named(device, packed, meta):
    write(packed / "packed.safetensors", shape=(COLUMNS, ROWS))
    with refused(r"0\.weight is bf16 \[100, 90\] in .*packed\.safetensors, and bfloat16 \[90, 100\]", ValueError):
        st.stream(meta, device, files=packed)
    for lie in ({"dtype": "F16"}, {"shape": (ROWS, COLUMNS - 1)}):
        write(packed / "packed.safetensors", **lie)
        with refused(r"packed\.safetensors: .*0\.weight.* not a packed tensor of the type and the shape", ValueError):
            st.stream(meta.half() if "dtype" in lie else meta, device, files=packed)
    write(packed / "packed.safetensors", version=2)
    with pytest.raises(ValueError, match=r"packed\.safetensors: .*is of version 2, and only version 1"):
        st.stream(meta, device, files=packed)
    write(packed / "packed.safetensors", frame=FRAME[:-16])
    with pytest.raises(ValueError, match=r"packed\.safetensors: .*0\.weight.*: not a packed tensor"):
        st.stream(meta, device, files=packed)


def test_a_damaged_tensor_is_named(device, packed, meta, x, monkeypatch):
    damaged = bytearray(FRAME)
    damaged[-40] ^= 1
    write(packed / "packed.safetensors", frame=bytes(damaged))
    with st.stream(meta, device, files=packed):
        with pytest.raises(sh.OperationError, match="packed tensor at"):
            meta(x)
        with pytest.raises(sh.OperationError, match=r"0\.weight in .*packed\.safetensors: "):
            meta.state_dict()
    monkeypatch.setattr("libstagehand.torch._weights.SMALL_SOURCE", 1 << 20)  # small tensors are read at once
    with pytest.raises(sh.OperationError, match=r"0\.weight in .*packed\.safetensors: "):
        st.stream(meta, device, files=packed)
    assert all(parameter.is_meta for parameter in meta.parameters())
