"""The types of elements that can be packed."""

# mypy: disable-error-code="import-not-found"
from __future__ import annotations

import torch

from .._generated import WeightFormat

FORMATS = {
    torch.bfloat16: WeightFormat.BF16,
    torch.float16: WeightFormat.F16,
    torch.float32: WeightFormat.F32,
    torch.float8_e4m3fn: WeightFormat.F8_E4M3,
    torch.float8_e5m2: WeightFormat.F8_E5M2,
}
