"""Weights of linear maps, packed once for a CPU.

oneDNN multiplies by a weight stored in blocks that fit its inner loop. `F.linear` hands over rows and has them
rearranged in every call; `torch.ops.mkldnn` packs a weight once, and adds bias and activation while a result is still
in registers. The same packed weight serves any number of rows, and a row's result does not depend on the rows beside
it. These operators are private to torch, whose own compiler calls them. Where they are missing, or `usable` returns
False for another reason, callers use the plain form, which is complete.
"""

from __future__ import annotations

import platform
from functools import lru_cache

import torch

_AVAILABLE = (
    platform.machine() in ("x86_64", "AMD64")  # elsewhere: not measured
    and torch.backends.mkldnn.is_available()
    and all(hasattr(torch.ops.mkldnn, name) for name in ("_reorder_linear_weight", "_linear_pointwise"))
)
_linear_pointwise = torch.ops.mkldnn._linear_pointwise.default if _AVAILABLE else None
_ALGORITHM = {"none": "", "relu": "", "gelu": "none"}  # gelu: "none" is the exact form by erf, "tanh" the other


def pack(weight: torch.Tensor) -> torch.Tensor:
    """Pack `weight` (`[M, D]`, float32 or bfloat16, on a CPU) for `packed_linear`; the result is as large."""
    return torch.ops.mkldnn._reorder_linear_weight(weight)


def usable(x: torch.Tensor) -> bool:
    """Return whether `x` (`[..., D]`) can be multiplied by packed weights.

    It can in inference on an x86 CPU, if it is a plain float32 or bfloat16 tensor.

    False where a gradient is recorded, under autocast, while a compiler traces, where this torch lacks the operators or
    this processor bfloat16, and where `torch.backends.mkldnn` is switched off.
    """
    return (
        _AVAILABLE
        and not torch.is_grad_enabled()
        and not torch.compiler.is_compiling()
        and type(x) is torch.Tensor
        and x.device.type == "cpu"
        and (x.dtype == torch.float32 or (x.dtype == torch.bfloat16 and _supports_bfloat16()))
        and not torch.is_autocast_enabled("cpu")
        and bool(torch.backends.mkldnn.enabled)
    )


def packed_linear(x: torch.Tensor, packed: torch.Tensor, bias: torch.Tensor, activation: str = "none") -> torch.Tensor:
    """Compute `act(x @ weight^T + bias)`.

    Args:
        x: `[..., D]`.
        packed: from `pack`, of a weight `[M, D]` in the dtype of `x`.
        bias: `[M]`.
        activation: "none", "relu" or "gelu" (exact, by erf).

    Returns:
        `[..., M]` in the dtype of `x`.
    """
    return _linear_pointwise(x, packed, bias, activation, [], _ALGORITHM[activation])  # type: ignore[misc]


@lru_cache(maxsize=1)
def _supports_bfloat16() -> bool:
    return bool(torch.ops.mkldnn._is_mkldnn_bf16_supported())
