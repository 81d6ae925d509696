"""Static contextualizer: tokens of a split mixed by a learned matrix, then gated (Avey-B eq. 4, Avey eq. 2)."""

from __future__ import annotations

import torch

from aveyb_retrieval.kernels.activations import mix_activation
from aveyb_retrieval.kernels.masking import zero_padding


def static_mix_reference(
    mixed: torch.Tensor,
    gate: torch.Tensor,
    weight: torch.Tensor,
    *,
    lengths: torch.Tensor | None = None,
    bias: torch.Tensor | None = None,
    activation: str = "none",
) -> torch.Tensor:
    """`gate * sigma(V @ mixed + b)` for every split of a group.

    Args:
        mixed: `[n, T, D]`, the half of the tail that is mixed across tokens.
        gate: `[n, T, D]`, the half that gates.
        weight: `[T, T]`, the upper left corner of V for splits of up to T tokens.
        lengths: int `[n]`, valid tokens of each split; None when all T are.
        bias: `[T]`, one value a token position, or None.
        activation: sigma, "none" or "relu".

    Returns:
        `[n, T, D]` in the dtype of `mixed`; rows at or beyond `lengths` are zero.
    """
    out = torch.matmul(weight, zero_padding(mixed, lengths))
    if bias is not None:
        out = out + bias[:, None]
    return zero_padding(gate * mix_activation(out, activation), lengths)


static_mix = static_mix_reference
