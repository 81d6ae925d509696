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
    enriched_order: str
    fuser_order: str

    def parts(self, enriched: torch.Tensor) -> tuple[torch.Tensor, torch.Tensor, torch.Tensor]:
        """Split `[n, T, 2 m + b]` into views: mixed `[n, T, m]`, gate `[n, T, m]`, bypass `[n, T,
        b]`.
        """
        m, b = self.mixed_size, self.bypass_size
        if self.mixed_first:
            mixed, gate, bypass = torch.split_with_sizes(enriched, (m, m, b), dim=-1)
        else:
            bypass, gate, mixed = torch.split_with_sizes(enriched, (b, m, m), dim=-1)
        return mixed, gate, bypass

    def mixing(self, lengths: torch.Tensor | None, bias: torch.Tensor | None) -> Mixing:
        """Return the options of the contextualizer."""
        return {"lengths": lengths, "bias": bias, "activation": self.mix_activation}

    @property
    def similarity(self) -> Similarity:
        """The further ones of a dynamic layer."""
        return {"normalization": self.similarity_norm, "eps": self.similarity_eps}

    @property
    def joinable(self) -> bool:
        """Whether gate and bypass stand side by side in an enriched vector, in the order of the
        fuser's columns.
        """
        orders = self.enriched_order, self.fuser_order
        return orders in (
            ("mixed_gate_bypass", "context_bypass"),
            ("bypass_gate_mixed", "bypass_context"),
        )

    @property
    def mixed_first(self) -> bool:
        """Whether an enriched vector begins with the part that is mixed; otherwise it
        ends with it.
        """
        return self.enriched_order == "mixed_gate_bypass"


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
        mixed, gate, bypass = self.enriched(x)
        context = self.mix(mixed, gate, lengths)
        context_weight, bypass_weight = self._fuser_parts()
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

    def _fuser_parts(self) -> tuple[torch.Tensor, torch.Tensor]:
        m, b = self.settings.mixed_size, self.settings.bypass_size
        if self.settings.fuser_order == "context_bypass":
            context, bypass = self.fuser.weight.split((m, b), dim=1)
        else:
            bypass, context = self.fuser.weight.split((b, m), dim=1)
        return context, bypass


def fusable(layer: AveyBLayer, dtype: torch.dtype) -> bool:
    """Return whether `run_fused` takes a layer on inputs of `dtype`: gate and bypass stand in the
    fuser's order.
    """
    return layer.settings.joinable and all(p.dtype == dtype for p in layer.parameters())


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
    mixed, gate, bypass = settings.parts(enriched)
    name = settings.enricher_activation
    norms, start = (
        ("head", settings.mixed_size) if settings.mixed_first else ("tail", settings.bypass_size)
    )  # of gate
    inverse_norms = activate_around(enriched, name, start, start + settings.mixed_size, norms=norms)
    weight, bias = layer.mixing_parameters()
    width = mixed.shape[1]
    how = settings.mixing(lengths, None if bias is None else bias[:width])
    if weight is not None:
        static_mix_over_gate(mixed, gate, weight[:width, :width], gate_activation=name, **how)
    else:
        dynamic_mix_over_gate(
            mixed, gate, inverse_norms, gate_activation=name, **settings.similarity, **how
        )
    first = gate if settings.mixed_first else bypass
    # Gate and bypass stand side by side: see `LayerSettings.joinable`.
    size = (*first.shape[:-1], settings.mixed_size + settings.bypass_size)
    return project_joined(first.as_strided(size, first.stride()), fuser.weight, fuser.bias)
