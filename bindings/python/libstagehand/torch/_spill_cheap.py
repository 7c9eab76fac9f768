"""The operations whose results are cheap to compute again: they read and write their tensors once or a few times.

None of them multiplies matrices, and none draws random numbers. The same arguments give the same bits on the same
device.
"""

# mypy: disable-error-code="import-not-found,misc,no-untyped-call,unused-ignore"
from __future__ import annotations

import struct
from collections.abc import Callable
from typing import Any

import torch

Arguments = tuple[Any, ...]
Run = Callable[..., torch.Tensor]

_NAMES = """
    _to_copy clone add.Tensor add.Scalar sub.Tensor sub.Scalar rsub.Tensor rsub.Scalar mul.Tensor mul.Scalar div.Tensor
    div.Scalar neg abs exp log log1p sqrt rsqrt reciprocal square pow.Tensor_Scalar sin cos erf sigmoid tanh relu silu
    gelu mish hardswish hardsigmoid hardtanh leaky_relu elu softplus glu clamp clamp_min clamp_max maximum minimum
    where.self where.ScalarSelf where.ScalarOther masked_fill.Scalar masked_fill.Tensor cat stack mean.dim
    sum.dim_IntList var.correction _softmax _log_softmax log_sigmoid_forward addcmul addcdiv lerp.Tensor lerp.Scalar
    tril triu native_layer_norm native_group_norm _fused_rms_norm
"""


def _overload(name: str) -> Any:
    """Returns an operation of this PyTorch, or None."""
    packet = getattr(torch.ops.aten, name.partition(".")[0], None)
    return None if packet is None else getattr(packet, name.partition(".")[2] or "default", None)


def _first(operation: Any) -> Run:
    def run(*arguments: Any, **named: Any) -> torch.Tensor:
        result: torch.Tensor = operation(*arguments, **named)[0]
        return result

    return run


# For each operation: what computes its result, or the first one of its results. The others are small.
CHEAP: dict[Any, Run] = {}
SEVERAL: set[Any] = set()
for _found in filter(None, map(_overload, _NAMES.split())):
    if len(_found._schema.returns) > 1:
        CHEAP[_found] = _first(_found)
        SEVERAL.add(_found)
    else:
        CHEAP[_found] = _found

DROPOUT = _overload("native_dropout")
_masked: Any = _overload("native_dropout_backward")


def masked(x: torch.Tensor, mask: torch.Tensor, kept: float) -> torch.Tensor:
    """Computes the result of a dropout again from its mask, with the roundings of the dropout of that device."""
    if x.device.type == "cpu":
        return x * mask.to(x.dtype).div_(kept)
    # The kernel has the scale in the type that it computes in.
    scale = 1.0 / kept if x.dtype == torch.float64 else _single(1.0 / _single(kept))
    result: torch.Tensor = _masked(x, mask, scale)
    return result


def _single(number: float) -> float:
    return float(struct.unpack("f", struct.pack("f", number))[0])
