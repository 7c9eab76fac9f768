"""Each type of elements that safetensors has, from files."""

import pytest
import torch
from model_files import write_safetensors
from torch import nn

import libstagehand.torch as st

# The format's types, with those of PyTorch, which has got some of them lately.
NAMES = {
    "BOOL": "bool",
    "U8": "uint8",
    "I8": "int8",
    "U16": "uint16",
    "I16": "int16",
    "U32": "uint32",
    "I32": "int32",
    "U64": "uint64",
    "I64": "int64",
    "F16": "float16",
    "BF16": "bfloat16",
    "F32": "float32",
    "F64": "float64",
    "C64": "complex64",
    "F8_E4M3": "float8_e4m3fn",
    "F8_E5M2": "float8_e5m2",
    "F8_E4M3FNUZ": "float8_e4m3fnuz",
    "F8_E5M2FNUZ": "float8_e5m2fnuz",
    "F8_E8M0": "float8_e8m0fnu",
    "F4": "float4_e2m1fn_x2",
}
TYPES = {name: getattr(torch, type) for name, type in NAMES.items() if hasattr(torch, type)}
WITHOUT = ["F6_E2M3", "F6_E3M2"]  # in PyTorch
ELEMENTS = 1 << 12


def part(type, bits):
    """A file's tensor of that type."""
    data = torch.randint(0, 2 if type == "BOOL" else 256, (ELEMENTS * bits // 8,), dtype=torch.uint8)
    return (type, [64, ELEMENTS // 64], data.numpy().tobytes()), data


class Bytes(nn.Module):
    def __init__(self, tensor, buffer):
        super().__init__()
        if buffer:
            self.register_buffer("w", tensor)
        else:
            self.w = nn.Parameter(tensor, requires_grad=False)
        self.v = nn.Parameter(torch.empty(64, device="meta"), requires_grad=False)

    def forward(self, x):
        return self.w.view(torch.uint8).clone()


@pytest.mark.parametrize("buffer", [False, True])
@pytest.mark.parametrize("type", TYPES)
def test_a_tensor_is_streamed_bit_equal(device, tmp_path, monkeypatch, type, buffer):
    monkeypatch.setattr("libstagehand.torch._weights.SMALL_BUFFER", 0)
    kind = TYPES[type]
    bits = 4 if type == "F4" else 8 * kind.itemsize
    tensor, data = part(type, bits)
    others = {name: part(name, 6)[0] for name in WITHOUT}  # which nobody asks for
    file = write_safetensors(tmp_path / "m.safetensors", {"v": ("F32", [64], bytes(256)), "w": tensor, **others})
    columns = len(data) // 64 // kind.itemsize
    model = Bytes(torch.empty(64, columns, dtype=kind, device="meta"), buffer)
    with st.stream(model, device, files=file, strict=False), torch.inference_mode():
        assert torch.equal(model(None).flatten(), data)
        assert model.state_dict()["w"].dtype == kind


@pytest.mark.parametrize("type", WITHOUT)
def test_a_type_that_pytorch_lacks_is_named(device, tmp_path, type):
    tensor, data = part(type, 6)
    file = write_safetensors(tmp_path / "m.safetensors", {"v": ("F32", [64], bytes(256)), "w": tensor})
    model = Bytes(torch.empty(len(data), dtype=torch.uint8, device="meta"), False)
    with pytest.raises(ValueError, match=rf"w is {type} in .*m\.safetensors, and this PyTorch has no such type"):
        st.stream(model, device, files=file)


@pytest.mark.skipif("F4" not in TYPES, reason="this PyTorch has no elements of 4 bits")
def test_elements_of_four_bits_come_in_pairs(device, tmp_path):
    def refused(shape, columns, says):
        v = ("F32", [64], bytes(256))
        file = write_safetensors(tmp_path / "m.safetensors", {"v": v, "w": ("F4", shape, bytes(8))})
        packed = torch.empty(4, columns, dtype=torch.uint8, device="meta").view(torch.float4_e2m1fn_x2)
        with pytest.raises(ValueError, match=says):
            st.stream(Bytes(packed, False), device, files=file)

    refused([4, 4], 4, r"w is f4 \[4, 2\] in .*, and float4_e2m1fn_x2 \[4, 4\] in the model")
    refused([16, 1], 4, r"w is f4 \[16, 1\] in .*, and float4_e2m1fn_x2 \[4, 4\] in the model")
