"""Coupled contextualizer: a learned matrix times the tokens' cosine similarities, then gated (Avey eq. 2).

Avey's is causal. In Avey-B every token sees every other one of its split; that form is plain torch on every device.
"""

from __future__ import annotations

import torch

from aveyb_retrieval.kernels.dispatch import Backend, inner_contiguous, use_triton
from aveyb_retrieval.kernels.masking import gated, zero_padding


def coupled_mix_reference(mixed: torch.Tensor, gate: torch.Tensor, weight: torch.Tensor, *, eps: float) -> torch.Tensor:
    """`gate * ((tril(V) * (N(mixed) N(mixed)^T)) @ mixed)`, with `N(x) = x / sqrt(|x|^2 + eps)` row by row.

    A row depends on itself and on rows before it only, so rows at the end that hold no token need no mask.

    Args:
        mixed: `[n, C, D]`, the half of the tail that is mixed across tokens.
        gate: `[n, C, D]`, the half that gates.
        weight: `[C, C]`, the upper left corner of V for contexts of C tokens.
        eps: keeps the norm of a zero vector from being zero.

    Returns:
        `[n, C, D]` in the dtype of `mixed`.
    """
    unit = _unit(mixed, eps)
    shares = torch.matmul(unit, unit.transpose(1, 2)) * weight.tril()
    return gate * torch.matmul(shares, mixed)


def coupled_mix_both_ways(
    mixed: torch.Tensor,
    gate: torch.Tensor,
    weight: torch.Tensor,
    *,
    eps: float,
    lengths: torch.Tensor | None = None,
    bias: torch.Tensor | None = None,
    activation: str = "none",
) -> torch.Tensor:
    """`gate * sigma((V * (N(mixed) N(mixed)^T)) @ mixed + b)`: Avey-B's coupled layer, in plain torch.

    Args:
        mixed: `[n, T, D]`, as for `coupled_mix_reference`, as are gate, weight `[T, T]` and eps.
        lengths: int `[n]`, valid tokens of each split; None when all T are.
        bias: `[T]`, one value a token position, or None.
        activation: sigma, "none" or "relu".

    Returns:
        `[n, T, D]` in the dtype of `mixed`; rows at or beyond `lengths` are zero.
    """
    mixed = zero_padding(mixed, lengths)
    unit = _unit(mixed, eps)
    out = torch.matmul(torch.matmul(unit, unit.transpose(1, 2)) * weight, mixed)
    return gated(out, gate, lengths, bias, activation)


def coupled_mix(
    mixed: torch.Tensor, gate: torch.Tensor, weight: torch.Tensor, *, eps: float, backend: Backend = "auto"
) -> torch.Tensor:
    """`coupled_mix_reference` by the implementation that `backend` means (see `dispatch.py`).

    The kernel reads `mixed`, `gate` and `weight` through their strides; only the last axis must be contiguous.

    Raises:
        BackendError: `backend="triton"` cannot run: no Triton, no such device or dtype.
    """
    if use_triton(backend, mixed, operation="coupled_mix"):
        from aveyb_retrieval.kernels.triton.coupled_mix import coupled_mix_op

        weight = inner_contiguous(weight.to(mixed.dtype))
        return coupled_mix_op(inner_contiguous(mixed), inner_contiguous(gate), weight, eps)[0]
    return coupled_mix_reference(mixed, gate, weight, eps=eps)


def _unit(x: torch.Tensor, eps: float) -> torch.Tensor:
    """`x / sqrt(|x|^2 + eps)` over the last axis of `[n, C, D]`; the norms are float32 at least."""
    wide = torch.promote_types(x.dtype, torch.float32)
    return (x * (x.to(wide).square().sum(-1, keepdim=True) + eps).rsqrt()).to(x.dtype)
