"""Fuser: contextualised and bypassed features projected back to the model width, plus the residual (Avey eq. 3)."""

from __future__ import annotations

import torch
import torch.nn.functional as F


def fuse_reference(
    context: torch.Tensor,
    bypass: torch.Tensor,
    context_weight: torch.Tensor,
    bypass_weight: torch.Tensor,
    bias: torch.Tensor,
    residual: torch.Tensor,
    alpha: torch.Tensor | None,
) -> torch.Tensor:
    """`context @ Wc^T + bypass @ Wb^T + bias + alpha * residual`, without concatenating the two inputs.

    Args:
        context: `[n, T, Dc]`, the contextualizer's output.
        bypass: `[n, T, Db]`, the head of the enriched vector.
        context_weight: `[D, Dc]` and bypass_weight `[D, Db]`: the two column blocks of the fuser's matrix.
        bias: `[D]`.
        residual: `[n, T, D]`, the layer's input.
        alpha: scalar tensor, or None for a plain residual.

    Returns:
        `[n, T, D]` in the dtype of `context`.
    """
    out = F.linear(context, context_weight) + F.linear(bypass, bypass_weight, bias)
    return out + (residual if alpha is None else alpha * residual)


fuse = fuse_reference
