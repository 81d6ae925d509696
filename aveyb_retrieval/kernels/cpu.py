"""The four operations of a layer for inference on a CPU, on weights that are packed once.

A short text's cost is the number of operations, not their arithmetic: each starts with cold caches, because the
weights of the linear maps have just run through them. So these forms use as few operations as torch offers: packed
weights, the RMSNorm's scale folded into one of them, bias and activation inside the product, results written over
buffers that nobody reads again. Nothing here has a gradient.

oneDNN multiplies by a weight stored in blocks that fit its inner loop. `F.linear` hands over rows and has them
rearranged in every call; `torch.ops.mkldnn` packs a weight once, and adds bias and activation while a result is still
in registers. The same packed weight serves any number of rows, and a row's result does not depend on the rows beside
it. These operators are private to torch, whose own compiler calls them. Where they are missing, or `usable` returns
False for another reason, callers use the plain form, which is complete.
"""

from __future__ import annotations

import platform
from functools import lru_cache
from typing import TYPE_CHECKING

import torch

from aveyb_retrieval.kernels.dynamic_mix import dynamic_mix_reference, in_kernel
from aveyb_retrieval.kernels.masking import row_mask, zero_padding
from aveyb_retrieval.kernels.static_mix import static_mix_reference

if TYPE_CHECKING:
    from aveyb_retrieval.kernels.masking import Mixing

_MIN_NORM = 1e-12
# oneDNN's cost of starting a bfloat16 product exceeds that of the product in float32 up to about this many tokens. One
# of the widths at which splits are grouped, so that a text's form does not depend on its group.
_NARROW = 32
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


def fold_norm(weight: torch.Tensor, norm_weight: torch.Tensor) -> torch.Tensor:
    """The enricher's matrix for `enrich`: `W diag(g) sqrt(D)`, `[M, D]`, from W `[M, D]` and the norm's g `[D]`."""
    return (weight.float() * (norm_weight.float() * weight.shape[1] ** 0.5)).to(weight.dtype)


def enrich(x: torch.Tensor, packed: torch.Tensor, bias: torch.Tensor, *, eps: float, activation: str) -> torch.Tensor:
    """As `enrich.py`, with `packed` made by `fold_norm`: `act(W diag(g) sqrt(D) x / sqrt(|x|^2 + D eps) + b)`."""
    norm = torch.linalg.vector_norm(x, dim=-1, keepdim=True, dtype=torch.float32)
    norm.hypot_(_root(eps * x.shape[-1]))
    # With `out`, a float32 quotient is rounded to bfloat16 without another operation.
    unit = x / norm if x.dtype == torch.float32 else torch.div(x, norm, out=torch.empty_like(x))
    if activation == "gelu":
        return packed_linear(unit, packed, bias, "gelu")
    return packed_linear(unit, packed, bias, "relu").square_()


def static_mix(
    mixed: torch.Tensor,
    gate: torch.Tensor,
    weight: torch.Tensor,
    *,
    lengths: torch.Tensor | None,
    bias: torch.Tensor | None,
    activation: str,
) -> torch.Tensor:
    """`static_mix_reference`; may overwrite `gate`. Here `weight` is `[S, S]` and `bias` `[S]`, not cut to T."""
    n, width, _ = mixed.shape
    # One view instead of a chain of slices.
    corner = weight.as_strided((n, width, width), (0, weight.stride(0), weight.stride(1)))
    column = None if bias is None else bias.as_strided((width, 1), (bias.stride(0), 0))
    if mixed.dtype != torch.float32:
        if width > _NARROW:
            how: Mixing = {"lengths": lengths, "bias": None if bias is None else bias[:width], "activation": activation}
            return static_mix_reference(mixed, gate, weight[:width, :width], **how)
        mixed, corner = mixed.float(), corner.float()
        column = None if column is None else column.float()
    mixed = zero_padding(mixed, lengths)
    out = torch.bmm(corner, mixed) if column is None else torch.baddbmm(column, corner, mixed)
    return _gated(gate, out, lengths, activation)


def dynamic_mix(
    mixed: torch.Tensor,
    gate: torch.Tensor,
    *,
    normalization: str,
    eps: float,
    lengths: torch.Tensor | None,
    bias: torch.Tensor | None,
    activation: str,
) -> torch.Tensor:
    """`dynamic_mix_reference`; may overwrite `gate`. Here `bias` is `[S]`, not cut to T."""
    width = mixed.shape[1]
    column = None if bias is None else bias[:width]
    if not in_kernel(normalization) or (mixed.dtype != torch.float32 and width > _NARROW):
        return dynamic_mix_reference(
            mixed, gate, normalization=normalization, eps=eps, lengths=lengths, bias=column, activation=activation
        )
    mixed = mixed.float()
    mixed = zero_padding(mixed, lengths)
    unit = mixed / torch.linalg.vector_norm(mixed, dim=-1, keepdim=True).clamp_min_(_MIN_NORM)
    similarity = torch.bmm(unit, unit.mT)
    if normalization == "l1":
        row_sum = similarity.abs().sum(-1, keepdim=True).clamp_min_(_MIN_NORM)
    else:
        row_sum = similarity.sum(-1, keepdim=True).add_(eps)
    out = torch.bmm(similarity, mixed)
    out = out.div_(row_sum) if column is None else torch.addcdiv(column[:, None], out, row_sum)
    return _gated(gate, out, lengths, activation)


def fuse(
    parts: tuple[torch.Tensor, torch.Tensor],
    packed: torch.Tensor,
    bias: torch.Tensor,
    residual: torch.Tensor,
    alpha: torch.Tensor | None,
) -> torch.Tensor:
    """`fuse_reference`, with the whole matrix packed.

    Args:
        parts: context `[n, T, Dc]` and bypass `[n, T, Db]` in the order of the matrix's columns; joining them costs
            less than a second product.
    """
    out = packed_linear(torch.cat(parts, dim=-1), packed, bias)
    return out.add_(residual if alpha is None else alpha * residual)


def _gated(gate: torch.Tensor, out: torch.Tensor, lengths: torch.Tensor | None, activation: str) -> torch.Tensor:
    gate.mul_(out.relu_() if activation == "relu" else out)  # in place also rounds to the gate's dtype
    return gate if lengths is None else gate.masked_fill_(~row_mask(lengths, gate.shape[1]), 0)


@lru_cache(maxsize=8)
def _root(value: float) -> torch.Tensor:
    return torch.tensor(value**0.5)
