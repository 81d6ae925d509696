"""Coupled contextualizer: a learned matrix times the tokens' cosine similarities, causal, then gated (Avey eq. 2)."""

from __future__ import annotations

import torch

from aveyb_retrieval.kernels.dispatch import Backend, inner_contiguous, use_triton


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
    wide = torch.promote_types(mixed.dtype, torch.float32)
    unit = (mixed * _inverse_norms(mixed, eps, wide)[..., None]).to(mixed.dtype)
    shares = torch.matmul(unit, unit.transpose(1, 2)) * weight.tril()
    return gate * torch.matmul(shares, mixed)


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


def _inverse_norms(x: torch.Tensor, eps: float, dtype: torch.dtype) -> torch.Tensor:
    """`1 / sqrt(|x|^2 + eps)` over the last axis: `[n, C]`."""
    return (x.to(dtype).square().sum(-1) + eps).rsqrt()
