"""One layer of the neural processor: enricher, static or dynamic contextualizer, fuser (Avey-B, 3.2
and 4.2).

Inference on a GPU (`run_fused`) is five launches a layer, nothing copied or prepared. Of the passes
over memory around a layer's two products and its mixing two are left. One activates all columns but
the gate's, and takes the norms that dynamic mixing needs; the mixing activates the gate on its way
and writes the context over it, beside the bypass, so that the fuser is one product of strided rows.
The other adds the residual and is the next layer's RMSNorm.
"""

from __future__ import annotations

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

    from aveyb_retrieval.encoder.settings import EncoderSettings
    from aveyb_retrieval.kernels.mixing import Mixing, Similarity


class AveyBLayer(nn.Module):
    """`x -> fuser([bypassed head, contextualized tail]) + residual` on a group of splits, each
    split alone.

        Z = sigma(RMSNorm(X) U + b), cut into Z_h, Z_tl, Z_tr    `enriched`, equation 1
        c = Z_tl * relu(V Z_tr + b)                              `mix` if static, equation 4
        c = Z_tl * relu(S~ Z_tr + b)                             `mix` if dynamic, 5 to 7
        [Z_h, c] O + o + X                                       `forward`, equation 3
    """

    def __init__(self, settings: EncoderSettings, kind: str, order: int = 0) -> None:
        """Make a "static" or "dynamic" layer, the `order`-th of its kind; `_init_weights` of the
        model fills it.
        """
        super().__init__()
        self.settings, self.kind, self.order = settings, kind, order
        d, mixed, bypass = settings.hidden_size, settings.mixed_size, settings.bypass_size
        self.sizes = [bypass, mixed, mixed]
        self.norm = nn.RMSNorm(d, settings.norm_eps)
        self.enricher = nn.Linear(d, 2 * mixed + bypass)
        self.fuser = nn.Linear(mixed + bypass, d)
        # V is the only weight that a dynamic layer lacks; it computes its mixing matrix from the
        # input.
        size = settings.split_size
        self.spatial_proj = None if kind == "dynamic" else nn.Parameter(torch.empty(size, size))
        self.mix_bias = nn.Parameter(torch.zeros(size)) if settings.mix_bias else None
        self.alpha = nn.Parameter(torch.ones(())) if settings.learned_residual else None

    def forward(self, x: torch.Tensor, lengths: torch.Tensor | None) -> torch.Tensor:
        """Run the layer on a group of splits `[n, T, D]` of `lengths` tokens (int `[n]`; None: all
        T): `[n, T, D]`.
        """
        bypass, gate, mixed = self.enriched(x)
        context = self.mix(mixed, gate, lengths)
        bypass_weight, context_weight = self.fuser.weight.split(self.sizes[:2], dim=1)
        return fuse(context, bypass, context_weight, bypass_weight, self.fuser.bias, x, self.alpha)

    def enriched(self, x: torch.Tensor) -> tuple[torch.Tensor, torch.Tensor, torch.Tensor]:
        """Run the enricher (equation 1) on `[n, T, D]`: bypass Z_h `[n, T, b]`, gate Z_tl and mixed
        Z_tr `[n, T, m]`.
        """
        enriched = enrich(
            x,
            self.norm.weight,
            self.enricher.weight,
            self.enricher.bias,
            eps=self.settings.norm_eps,
            activation=self.settings.enricher_activation,
        )
        return self.parts(enriched)

    def parts(self, enriched: torch.Tensor) -> tuple[torch.Tensor, torch.Tensor, torch.Tensor]:
        """Split `[n, T, b + 2 m]` into views: bypass `[n, T, b]`, gate and mixed `[n, T, m]`."""
        bypass, gate, mixed = enriched.split(self.sizes, dim=-1)
        return bypass, gate, mixed

    def mixing_parameters(self) -> tuple[torch.Tensor | None, torch.Tensor | None]:
        """Return V `[S, S]`, None in a dynamic layer, and the bias `[S]`, None without one."""
        return self.spatial_proj, self.mix_bias

    def mix(
        self, mixed: torch.Tensor, gate: torch.Tensor, lengths: torch.Tensor | None
    ) -> torch.Tensor:
        """Run the contextualizer, static (equation 4) or dynamic (equations 5 to 7), on the two
        halves of the tail, `[n, T, m]` each -> `[n, T, m]`.
        """
        width = mixed.shape[1]
        weight, bias = self.mixing_parameters()
        how = self.mixing_options(lengths, bias, width)
        if weight is None:
            return dynamic_mix(mixed, gate, **self.similarity_options(), **how)
        return static_mix(mixed, gate, weight[:width, :width], **how)

    def mixing_options(
        self, lengths: torch.Tensor | None, bias: torch.Tensor | None, width: int
    ) -> Mixing:
        """Return the options of the contextualizer on splits padded to a width."""
        return {
            "lengths": lengths,
            "bias": None if bias is None else bias[:width],
            "activation": self.settings.mix_activation,
        }

    def similarity_options(self) -> Similarity:
        """Return the further ones of a dynamic layer."""
        settings = self.settings
        return {"normalization": settings.similarity_norm, "eps": settings.similarity_eps}


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
    enricher, fuser = layer.enricher, layer.fuser
    enriched = torch.nn.functional.linear(normed, enricher.weight, enricher.bias)
    bypass, gate, mixed = layer.parts(enriched)
    bypass_size, mixed_size, _ = layer.sizes
    name = layer.settings.enricher_activation
    inverse_norms = activate_around(enriched, name, bypass_size, bypass_size + mixed_size)
    weight, bias = layer.mixing_parameters()
    width = mixed.shape[1]
    how = layer.mixing_options(lengths, bias, width)
    if weight is not None:
        static_mix_over_gate(mixed, gate, weight[:width, :width], gate_activation=name, **how)
    else:
        dynamic_mix_over_gate(
            mixed, gate, inverse_norms, gate_activation=name, **layer.similarity_options(), **how
        )
    # The context is where the gate was, beside the bypass, in the order of the fuser's columns.
    size = (*bypass.shape[:-1], bypass_size + mixed_size)
    return project_joined(bypass.as_strided(size, bypass.stride()), fuser.weight, fuser.bias)
