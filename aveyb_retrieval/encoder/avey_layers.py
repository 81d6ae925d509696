"""One layer of Avey: enricher, coupled causal contextualizer, fuser (Avey, 2.2), and a split's context."""

from __future__ import annotations

from typing import TYPE_CHECKING

import torch
from torch import nn

from aveyb_retrieval.encoder.layers import RMSNorm
from aveyb_retrieval.kernels.coupled_mix import coupled_mix
from aveyb_retrieval.kernels.enrich import enrich
from aveyb_retrieval.kernels.fuse import fuse

if TYPE_CHECKING:
    from aveyb_retrieval.encoder.avey_config import AveyConfig


class AveyLayer(nn.Module):
    """`x + fuser([gate * mixed tail, head])` on contexts, each row from itself and the rows before it."""

    def __init__(self, config: AveyConfig) -> None:
        """Make the layer's parameters; `_init_weights` of the model starts them."""
        super().__init__()
        d, self.mixed_size, self.bypass_size = config.hidden_size, config.mixed_size, config.bypass_size
        self.similarity_eps = config.similarity_eps
        self.norm = RMSNorm(d, config.norm_eps)
        self.enricher = nn.Linear(d, 2 * self.mixed_size + self.bypass_size)
        self.fuser = nn.Linear(self.mixed_size + self.bypass_size, d)
        self.spatial_proj = nn.Parameter(torch.empty(config.context_size, config.context_size))

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        """Run the layer on contexts `[n, C, D]` -> `[n, C, D]`; C may be less than the configuration's."""
        width, sizes = x.shape[1], (self.mixed_size, self.mixed_size, self.bypass_size)
        bias = self.enricher.bias
        enriched = enrich(x, self.norm.weight, self.enricher.weight, bias, eps=self.norm.eps, activation="relu2")
        mixed, gate, bypass = enriched.split(sizes, dim=-1)
        context = coupled_mix(mixed, gate, self.spatial_proj[:width, :width], eps=self.similarity_eps)
        context_weight, bypass_weight = self.fuser.weight.split((self.mixed_size, self.bypass_size), dim=1)
        return fuse(context, bypass, context_weight, bypass_weight, self.fuser.bias, x, None)


def put_before(current: torch.Tensor, retrieved: torch.Tensor, weights: torch.Tensor) -> torch.Tensor:
    """Put the weighted retrieved splits before each current one: `[w1 X_r1, ..., wk X_rk, X]`.

    Where a split has fewer than k predecessors the weights on the left are 0. Those rows are zeros and take part in
    every layer, as in the authors' code.

    Args:
        current: `[n, T, D]`, token embeddings, T up to S.
        retrieved: `[n, k, S, D]`, token embeddings.
        weights: float32 `[n, k]`.

    Returns:
        `[n, k S + T, D]`, in the dtype of `current`.
    """
    weighted = retrieved * weights[..., None, None].to(retrieved.dtype)
    return torch.cat([weighted.flatten(1, 2), current], dim=1)
