"""Enricher: RMSNorm, one position-wise linear map to a wider space, activation (Avey-B eq. 1)."""

from __future__ import annotations

import torch
import torch.nn.functional as F

from aveyb_retrieval.kernels.activations import enricher_activation


def enrich_reference(
    x: torch.Tensor,
    norm_weight: torch.Tensor,
    weight: torch.Tensor,
    bias: torch.Tensor,
    *,
    eps: float,
    activation: str,
) -> torch.Tensor:
    """`act(RMSNorm(x) @ weight^T + bias)`.

    Args:
        x: `[n, T, D]`.
        norm_weight: `[D]`.
        weight: `[M, D]`.
        bias: `[M]`.
        eps: added to the mean square before the root.
        activation: "gelu" or "relu2".

    Returns:
        `[n, T, M]` in the dtype of `x`.
    """
    normed = F.rms_norm(x, (x.shape[-1],), norm_weight, eps)
    return enricher_activation(F.linear(normed, weight, bias), activation)


enrich = enrich_reference
