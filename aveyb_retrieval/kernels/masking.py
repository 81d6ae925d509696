"""Masks of the rows of a padded group of splits that hold real tokens."""

from __future__ import annotations

import torch


def row_mask(lengths: torch.Tensor, width: int) -> torch.Tensor:
    """Make a mask `[n, width, 1]`, True where a row is one of the split's first `lengths[i]` tokens (int `[n]`)."""
    return (torch.arange(width, device=lengths.device) < lengths[:, None])[..., None]


def zero_padding(x: torch.Tensor, lengths: torch.Tensor | None) -> torch.Tensor:
    """Set the rows of `x` (`[n, T, D]`) at or beyond `lengths` (`[n]`, or None: all valid) to zero.

    A select rather than a product, so that not even NaN or infinity in a padding row gets through.
    """
    return x if lengths is None else x.masked_fill(~row_mask(lengths, x.shape[1]), 0)
