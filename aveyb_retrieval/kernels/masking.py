"""Which rows of a padded group of splits hold real tokens, and what the contextualizers that mix them share."""

from __future__ import annotations

from typing import TypedDict

import torch

from aveyb_retrieval.kernels.activations import mix_activation


def row_mask(lengths: torch.Tensor, width: int) -> torch.Tensor:
    """Make a mask `[n, width, 1]`, True where a row is one of the split's first `lengths[i]` tokens (int `[n]`)."""
    return (torch.arange(width, device=lengths.device) < lengths[:, None])[..., None]


def zero_padding(x: torch.Tensor, lengths: torch.Tensor | None) -> torch.Tensor:
    """Set the rows of `x` (`[n, T, D]`) at or beyond `lengths` (`[n]`, or None: all valid) to zero.

    A select rather than a product, so that not even NaN or infinity in a padding row gets through.
    """
    return x if lengths is None else x.masked_fill(~row_mask(lengths, x.shape[1]), 0)


class Mixing(TypedDict, total=False):
    """Options of every contextualizer.

    lengths: int `[n]`, valid tokens of each split; None (the default) when all T are.
    bias: `[T]`, one value a token position, or None.
    activation: sigma, "none" (the default) or "relu".
    """

    lengths: torch.Tensor | None
    bias: torch.Tensor | None
    activation: str


class Similarity(TypedDict):
    """Options of the dynamic contextualizer; see `dynamic_mix_reference`."""

    normalization: str
    eps: float


class DynamicMixing(Mixing, Similarity):
    """Both."""


def gated(
    out: torch.Tensor, gate: torch.Tensor, lengths: torch.Tensor | None, bias: torch.Tensor | None, activation: str
) -> torch.Tensor:
    """`gate * sigma(out + b)` of `[n, T, D]`; rows at or beyond `lengths` are zero."""
    if bias is not None:
        out = out + bias[:, None]
    return zero_padding(gate * mix_activation(out, activation), lengths)


def for_kernel(how: Mixing | DynamicMixing) -> tuple[torch.Tensor | None, torch.Tensor | None, bool]:
    """Return lengths, bias, and whether sigma is ReLU, as kernels take them."""
    return how.get("lengths"), how.get("bias"), how.get("activation") == "relu"
