"""The types of elements that safetensors and PyTorch both have."""

# mypy: disable-error-code="import-not-found"
from __future__ import annotations

import torch

from ._headers import Tensor

_NAMES = {
    "BOOL": "bool",
    "U8": "uint8",
    "I8": "int8",
    "I16": "int16",
    "I32": "int32",
    "I64": "int64",
    "U16": "uint16",
    "U32": "uint32",
    "U64": "uint64",
    "F16": "float16",
    "BF16": "bfloat16",
    "F32": "float32",
    "F64": "float64",
    "F8_E4M3": "float8_e4m3fn",
    "F8_E5M2": "float8_e5m2",
    "F8_E4M3FNUZ": "float8_e4m3fnuz",
    "F8_E5M2FNUZ": "float8_e5m2fnuz",
    "F8_E8M0": "float8_e8m0fnu",
    "F4": "float4_e2m1fn_x2",
    "C64": "complex64",
}
# PyTorch has got some of them lately.
TYPES: dict[str, torch.dtype] = {name: getattr(torch, type) for name, type in _NAMES.items() if hasattr(torch, type)}
# PyTorch's elements hold several of the format's, which lie along the last dimension.
_TOGETHER = {"F4": 2}


def shape_in_torch(tensor: Tensor) -> tuple[int, ...] | None:
    """Returns the shape in PyTorch's elements, or None if the last dimension is no whole number of them."""
    together = _TOGETHER.get(tensor.type, 1)
    *outer, last = tensor.shape or (1,)
    if last % together:
        return None
    return (*outer, last // together) if tensor.shape else ()
