"""One layer of the neural processor: enricher, static or dynamic contextualizer, fuser (Avey-B, 3.2
and 4.2).

Inference on a GPU (`run_fused`) is five launches a layer, nothing copied or prepared. Of the passes
over memory around a layer's two products and its mixing two are left. One activates all columns but
the gate's, and takes the norms that dynamic mixing needs; the mixing activates the gate on its way
and writes the context over it, beside the bypass, so that the fuser is one product of strided rows.
The other adds the residual and is the next layer's RMSNorm.
"""

from __future__ import annotations

from dataclasses import dataclass, fields
from itertools import pairwise
from typing import TYPE_CHECKING

import torch
from torch import nn

from aveyb_retrieval.kernels.mixing import (
    dynamic_mix,
    dynamic_mix_over_gate,
    static_mix,
    static_mix_over_gate,
)
from aveyb_retrieval.kernels.positionwise import (
    activate_around,
    add_norm,
    enrich,
    fuse,
    project_joined,
)

if TYPE_CHECKING:
    from collections.abc import Sequence

    from aveyb_retrieval.encoder.config import AveyBConfig
    from aveyb_retrieval.kernels.mixing import Mixing, Similarity


@dataclass(frozen=True)
class LayerSettings:
    """A layer's fields of `AveyBConfig` as plain values.

    Reading an attribute of a transformers configuration costs as much as a small tensor operation.
    """

    mixed_size: int
    bypass_size: int
    norm_eps: float
    similarity_eps: float
    enricher_activation: str
    mix_activation: str
    similarity_norm: str

    def parts(self, enriched: torch.Tensor) -> tuple[torch.Tensor, torch.Tensor, torch.Tensor]:
        """Split `[n, T, b + 2 m]` into views: bypass `[n, T, b]`, gate and mixed `[n, T, m]`."""
        m, b = self.mixed_size, self.bypass_size
        bypass, gate, mixed = torch.split_with_sizes(enriched, (b, m, m), dim=-1)
        return bypass, gate, mixed

    def mixing(self, lengths: torch.Tensor | None, bias: torch.Tensor | None) -> Mixing:
        """Return the options of the contextualizer."""
        return {"lengths": lengths, "bias": bias, "activation": self.mix_activation}

    @property
    def similarity(self) -> Similarity:
        """The further ones of a dynamic layer."""
        return {"normalization": self.similarity_norm, "eps": self.similarity_eps}


class AveyBLayer(nn.Module):
    """`x -> fuser([contextualized tail, bypassed head]) + residual` on a group of splits, each
    split alone.
    """

    def __init__(self, config: AveyBConfig, kind: str, order: int = 0) -> None:
        """Make a "static" or "dynamic" layer, the `order`-th of its kind; `_init_weights` of the
        model fills it.
        """
        super().__init__()
        self.kind, self.order = kind, order
        d, mixed, bypass = config.hidden_size, config.mixed_size, config.bypass_size
        self.settings = LayerSettings(
            **{f.name: getattr(config, f.name) for f in fields(LayerSettings)}
        )
        self.norm = nn.RMSNorm(d, config.norm_eps)
        self.enricher = nn.Linear(d, 2 * mixed + bypass)
        self.fuser = nn.Linear(mixed + bypass, d)
        # V is the only weight that a dynamic layer lacks; it computes its mixing matrix from the
        # input.
        size = config.split_size
        self.spatial_proj = None if kind == "dynamic" else nn.Parameter(torch.empty(size, size))
        self.mix_bias = nn.Parameter(torch.zeros(size)) if config.mix_bias else None
        self.alpha = nn.Parameter(torch.ones(())) if config.learned_residual else None

    def forward(self, x: torch.Tensor, lengths: torch.Tensor | None) -> torch.Tensor:
        """Run the layer on a group of splits `[n, T, D]` of `lengths` tokens (int `[n]`; None: all
        T): `[n, T, D]`.
        """
        bypass, gate, mixed = self.enriched(x)
        context = self.mix(mixed, gate, lengths)
        sizes = self.settings.bypass_size, self.settings.mixed_size
        bypass_weight, context_weight = self.fuser.weight.split(sizes, dim=1)
        return fuse(context, bypass, context_weight, bypass_weight, self.fuser.bias, x, self.alpha)

    def enriched(self, x: torch.Tensor) -> tuple[torch.Tensor, torch.Tensor, torch.Tensor]:
        """Return what the enricher makes of `[n, T, D]`, in parts: see `LayerSettings.parts`."""
        enriched = enrich(
            x,
            self.norm.weight,
            self.enricher.weight,
            self.enricher.bias,
            eps=self.settings.norm_eps,
            activation=self.settings.enricher_activation,
        )
        return self.settings.parts(enriched)

    def mixing_parameters(self) -> tuple[torch.Tensor | None, torch.Tensor | None]:
        """Return V `[S, S]`, None in a dynamic layer, and the bias `[S]`, None without one."""
        return self.spatial_proj, self.mix_bias

    def mix(
        self, mixed: torch.Tensor, gate: torch.Tensor, lengths: torch.Tensor | None
    ) -> torch.Tensor:
        """Run the contextualizer on the two halves of the tail, `[n, T, m]` each -> `[n, T, m]`."""
        settings, width = self.settings, mixed.shape[1]
        weight, bias = self.mixing_parameters()
        how = settings.mixing(lengths, None if bias is None else bias[:width])
        if weight is None:
            return dynamic_mix(mixed, gate, **settings.similarity, **how)
        return static_mix(mixed, gate, weight[:width, :width], **how)


def fusable(layer: AveyBLayer, dtype: torch.dtype) -> bool:
    """Return whether `run_fused` takes a layer on inputs of `dtype`."""
    return all(p.dtype == dtype for p in layer.parameters())


def intercepted(layer: nn.Module) -> bool:
    """Return whether a call of the layer runs more than its class's `forward`: it is compiled,
    hooked or patched.
    """
    return bool(
        layer._compiled_call_impl is not None
        or layer._forward_pre_hooks
        or layer._forward_hooks
        or "forward" in vars(layer)
    )


def run_fused(
    layers: Sequence[AveyBLayer], x: torch.Tensor, lengths: torch.Tensor | None
) -> torch.Tensor:
    """Run layers for which `fusable` holds, one at least, one after another, on what a layer's
    `forward` takes.
    """
    normed = layers[0].norm(x)
    for layer, following in pairwise(layers):
        weight, eps = following.norm.weight, following.settings.norm_eps
        x, normed = add_norm(_branch(layer, normed, lengths), x, layer.alpha, weight, eps=eps)
    last = layers[-1]
    branch = _branch(last, normed, lengths)
    return branch.add_(x) if last.alpha is None else branch.addcmul_(last.alpha, x)


def _branch(layer: AveyBLayer, normed: torch.Tensor, lengths: torch.Tensor | None) -> torch.Tensor:
    """The layer without its norm and its residual: `[n, T, D]` -> `[n, T, D]`."""
    settings, enricher, fuser = layer.settings, layer.enricher, layer.fuser
    enriched = torch.nn.functional.linear(normed, enricher.weight, enricher.bias)
    bypass, gate, mixed = settings.parts(enriched)
    name, start = settings.enricher_activation, settings.bypass_size
    inverse_norms = activate_around(enriched, name, start, start + settings.mixed_size)
    weight, bias = layer.mixing_parameters()
    width = mixed.shape[1]
    how = settings.mixing(lengths, None if bias is None else bias[:width])
    if weight is not None:
        static_mix_over_gate(mixed, gate, weight[:width, :width], gate_activation=name, **how)
    else:
        dynamic_mix_over_gate(
            mixed, gate, inverse_norms, gate_activation=name, **settings.similarity, **how
        )
    # The context is where the gate was, beside the bypass, in the order of the fuser's columns.
    size = (*bypass.shape[:-1], settings.bypass_size + settings.mixed_size)
    return project_joined(bypass.as_strided(size, bypass.stride()), fuser.weight, fuser.bias)
