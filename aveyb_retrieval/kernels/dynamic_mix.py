"""Dynamic contextualizer: tokens of a split mixed by their own cosine similarities, then gated (Avey-B eq. 5 to 7)."""

from __future__ import annotations

import torch

from aveyb_retrieval.kernels.activations import mix_activation
from aveyb_retrieval.kernels.masking import zero_padding

_MIN_NORM = 1e-12


def dynamic_mix_reference(
    mixed: torch.Tensor,
    gate: torch.Tensor,
    *,
    normalisation: str,
    eps: float,
    lengths: torch.Tensor | None = None,
    bias: torch.Tensor | None = None,
    activation: str = "none",
) -> torch.Tensor:
    """`gate * sigma(rownorm(N(mixed) N(mixed)^T) @ mixed + b)` for every split of a group.

    The division by the row's sum is applied after the product, which is the same and touches `D` values a row, not `T`.
    Norms and row sums are taken in float32 whatever the dtype.

    Args:
        mixed: `[n, T, D]`, the half of the tail that is mixed across tokens.
        gate: `[n, T, D]`, the half that gates.
        normalisation: "sum": row / (sum + eps) (eq. 6); "l1": row / max(sum of absolutes, 1e-12) (released code).
        eps: the epsilon of "sum".
        lengths: int `[n]`, valid tokens of each split; None when all T are.
        bias: `[T]`, one value a token position, or None.
        activation: sigma, "none" or "relu".

    Returns:
        `[n, T, D]` in the dtype of `mixed`; rows at or beyond `lengths` are zero.
    """
    mixed = zero_padding(mixed, lengths)
    norm = torch.linalg.vector_norm(mixed, dim=-1, keepdim=True, dtype=torch.float32).clamp_min(_MIN_NORM)
    unit = (mixed / norm).to(mixed.dtype)
    similarity = torch.matmul(unit, unit.transpose(1, 2))
    if normalisation == "l1":
        row_sum = similarity.abs().sum(-1, keepdim=True, dtype=torch.float32).clamp_min(_MIN_NORM)
    else:
        row_sum = similarity.sum(-1, keepdim=True, dtype=torch.float32) + eps
    out = (torch.matmul(similarity, mixed) / row_sum).to(mixed.dtype)
    if bias is not None:
        out = out + bias[:, None]
    return zero_padding(gate * mix_activation(out, activation), lengths)


dynamic_mix = dynamic_mix_reference
