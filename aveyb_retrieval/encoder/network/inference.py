"""The layers as inference on a GPU runs them: five launches each, nothing copied or prepared.

Of the passes over memory around a layer's two products and its mixing two are left. One activates all columns but the
gate's, and takes the norms that dynamic mixing needs; the mixing activates the gate on its way and writes the context
over it, beside the bypass, so that the fuser is one product of strided rows. The other adds the residual and is the
next layer's RMSNorm.
"""

from __future__ import annotations

from itertools import pairwise
from typing import TYPE_CHECKING

import torch

from aveyb_retrieval.kernels.mixing import dynamic_mix_over_gate, in_kernel, static_mix_over_gate
from aveyb_retrieval.kernels.positionwise import activate_around, add_norm, project_joined

if TYPE_CHECKING:
    from collections.abc import Sequence

    from torch import nn

    from aveyb_retrieval.encoder.network.layers import AveyBLayer


def fusable(layer: AveyBLayer, dtype: torch.dtype) -> bool:
    """Return whether `run_fused` has kernels for a layer of this form, on inputs of `dtype`.

    Gate and bypass must stand in the fuser's order.
    """
    known = layer.kind == "static" or (layer.kind == "dynamic" and in_kernel(layer.settings.similarity_norm))
    return known and layer.settings.joinable and all(p.dtype == dtype for p in layer.parameters())


def intercepted(layer: nn.Module) -> bool:
    """Return whether a call of the layer runs more than its class's `forward`: it is compiled, hooked or patched."""
    return bool(
        layer._compiled_call_impl is not None
        or layer._forward_pre_hooks
        or layer._forward_hooks
        or "forward" in vars(layer)
    )


def run_fused(
    layers: Sequence[AveyBLayer], x: torch.Tensor, lengths: torch.Tensor | None, factor: int = 1
) -> torch.Tensor:
    """Run layers for which `fusable` holds, one after another.

    Args:
        layers: one at least.
        x: `[n, T, D]`.
        lengths: int `[n]`, valid rows of each split; None when all T are.
        factor: how many tokens a row stands for.

    Returns:
        `[n, T, D]`.
    """
    normed = layers[0].norm(x)
    for layer, following in pairwise(layers):
        norm = following.norm
        x, normed = add_norm(_branch(layer, normed, lengths, factor), x, layer.alpha, norm.weight, eps=norm.eps)
    last = layers[-1]
    branch = _branch(last, normed, lengths, factor)
    return branch.add_(x) if last.alpha is None else branch.addcmul_(last.alpha, x)


def _branch(layer: AveyBLayer, normed: torch.Tensor, lengths: torch.Tensor | None, factor: int) -> torch.Tensor:
    """The layer without its norm and its residual: `[n, T, D]` -> `[n, T, D]`."""
    settings, enricher, fuser = layer.settings, layer.enricher, layer.fuser
    enriched = torch.nn.functional.linear(normed, enricher.weight, enricher.bias)
    mixed, gate, bypass = settings.parts(enriched)
    name = settings.enricher_activation
    norms = "head" if settings.mixed_first else "tail"
    inverse_norms = activate_around(enriched, name, *settings.gate_columns, norms=norms)
    weight, bias = layer.mixing(factor)
    width = mixed.shape[1]
    how = settings.mixing(lengths, None if bias is None else bias[:width])
    if weight is not None:
        static_mix_over_gate(mixed, gate, weight[:width, :width], gate_activation=name, **how)
    else:
        mixed = settings.weighed(mixed, factor)
        dynamic_mix_over_gate(mixed, gate, inverse_norms, gate_activation=name, **settings.similarity, **how)
    first = gate if settings.mixed_first else bypass
    # Gate and bypass stand side by side: see `LayerSettings.joinable`.
    size = (*first.shape[:-1], settings.mixed_size + settings.bypass_size)
    return project_joined(first.as_strided(size, first.stride()), fuser.weight, fuser.bias)
