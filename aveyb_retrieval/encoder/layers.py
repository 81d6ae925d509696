"""One layer of the neural processor: enricher, static or dynamic contextualizer, fuser (Avey-B, 3.2 and 4.2)."""

from __future__ import annotations

import torch
from torch import nn

from aveyb_retrieval.encoder.config import AveyBConfig
from aveyb_retrieval.kernels.dynamic_mix import dynamic_mix
from aveyb_retrieval.kernels.enrich import enrich
from aveyb_retrieval.kernels.fuse import fuse
from aveyb_retrieval.kernels.static_mix import static_mix


class RMSNorm(nn.Module):
    """`x / sqrt(mean(x^2) + eps) * weight` over the last axis."""

    def __init__(self, size: int, eps: float) -> None:
        super().__init__()
        self.weight = nn.Parameter(torch.ones(size))
        self.eps = eps

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        """`[..., D]` -> `[..., D]`."""
        return nn.functional.rms_norm(x, (x.shape[-1],), self.weight, self.eps)


class AveyBLayer(nn.Module):
    """`x -> fuser([contextualised tail, bypassed head]) + residual` on a group of splits, each split alone."""

    def __init__(self, config: AveyBConfig, kind: str) -> None:
        super().__init__()
        d, mixed = config.hidden_size, config.mixed_size
        # Copies of plain settings: a lookup in a transformers configuration costs as much as a small operation.
        self.mixed_size = mixed
        self.norm_eps, self.similarity_eps = config.norm_eps, config.similarity_eps
        self.enricher_activation, self.mix_activation = config.enricher_activation, config.mix_activation
        self.similarity_norm = config.similarity_norm
        self.enriched_order, self.fuser_order = config.enriched_order, config.fuser_order
        self.norm = RMSNorm(d, config.norm_eps)
        self.enricher = nn.Linear(d, 4 * mixed)
        self.fuser = nn.Linear(3 * mixed, d)
        # V is the only weight that sets a static layer apart; a dynamic layer computes its mixing from the input.
        self.spatial_proj = (
            nn.Parameter(torch.empty(config.split_size, config.split_size)) if kind == "static" else None
        )
        self.mix_bias = nn.Parameter(torch.zeros(config.split_size)) if config.mix_bias else None
        self.alpha = nn.Parameter(torch.ones(())) if config.learned_residual else None

    def forward(self, x: torch.Tensor, lengths: torch.Tensor | None) -> torch.Tensor:
        """`[n, T, D]` -> `[n, T, D]`; `lengths`: int `[n]` valid tokens of each split, None when all T are."""
        width = x.shape[1]
        enriched = enrich(
            x,
            self.norm.weight,
            self.enricher.weight,
            self.enricher.bias,
            eps=self.norm_eps,
            activation=self.enricher_activation,
        )
        mixed, gate, bypass = self._parts(enriched)
        bias = None if self.mix_bias is None else self.mix_bias[:width]
        if self.spatial_proj is not None:
            context = static_mix(
                mixed,
                gate,
                self.spatial_proj[:width, :width],
                lengths=lengths,
                bias=bias,
                activation=self.mix_activation,
            )
        else:
            context = dynamic_mix(
                mixed,
                gate,
                normalisation=self.similarity_norm,
                eps=self.similarity_eps,
                lengths=lengths,
                bias=bias,
                activation=self.mix_activation,
            )
        context_weight, bypass_weight = self._fuser_parts()
        return fuse(context, bypass, context_weight, bypass_weight, self.fuser.bias, x, self.alpha)

    def _parts(self, enriched: torch.Tensor) -> tuple[torch.Tensor, torch.Tensor, torch.Tensor]:
        m = self.mixed_size
        if self.enriched_order == "mixed_gate_bypass":
            mixed, gate, bypass = enriched.split((m, m, 2 * m), dim=-1)
        else:
            bypass, gate, mixed = enriched.split((2 * m, m, m), dim=-1)
        return mixed, gate, bypass

    def _fuser_parts(self) -> tuple[torch.Tensor, torch.Tensor]:
        m = self.mixed_size
        if self.fuser_order == "context_bypass":
            context, bypass = self.fuser.weight.split((m, 2 * m), dim=1)
        else:
            bypass, context = self.fuser.weight.split((2 * m, m), dim=1)
        return context, bypass
