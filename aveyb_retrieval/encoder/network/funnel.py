"""Funnel: after some layers neighbouring tokens of a split are pooled; the layers behind run on fewer rows (Funnel, 3).

Pooling never crosses a split, so ranker, compressor and everything that counts splits stay as they are. A pooled row
stands for `factor` tokens, the last one of a split for those that are left. Where a vector for each token is wanted, a
token gets the vector of its row ("tiled"): a mean over tokens is then the mean over rows, weighted by the tokens that
each stands for, and a row across the border of two passages counts in both, by the tokens it has in each. Outputs of
single tokens, for masked-language modelling and late interaction, are told apart by what the layers before the funnel
said of them (the paper's six recoveries).
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING

import torch

from aveyb_retrieval.kernels.positionwise import row_mask, zero_padding

if TYPE_CHECKING:
    from collections.abc import Sequence

    from aveyb_retrieval.encoder.config import AveyBConfig


@dataclass(frozen=True)
class Funnel:
    """Where and how a model pools; the fields are those of `AveyBConfig` without their prefix."""

    after: int
    factor: int
    pool: str
    recovery: str

    @classmethod
    def of(cls, config: AveyBConfig) -> Funnel | None:
        """Return the funnel of a model, or None where it has none (or a factor of 1, which pools nothing)."""
        if config.funnel_after is None or config.funnel_factor in (None, 1):
            return None
        assert config.funnel_factor and config.funnel_pool and config.funnel_recovery  # filled in by the configuration
        return cls(config.funnel_after, config.funnel_factor, config.funnel_pool, config.funnel_recovery)

    def stops(self, *, recover: bool) -> list[int]:
        """Return how many layers precede each output of full length that is needed; the funnel's own is the last."""
        if not recover or self.recovery.endswith("last"):
            return [self.after]
        if self.recovery == "sum_first":
            return [1, self.after] if self.after > 1 else [1]
        return list(range(1, self.after + 1))

    def pooled(self, x: torch.Tensor, lengths: torch.Tensor | None) -> tuple[torch.Tensor, torch.Tensor | None]:
        """Pool neighbouring tokens of each split.

        Args:
            x: `[n, T, D]`.
            lengths: int `[n]`, valid tokens of each split; None when all T are.

        Returns:
            `[n, ceil(T / factor), D]`, and the valid rows of each split, int `[n]` (None when all are).
        """
        n, width, dim = x.shape
        rows = -(-width // self.factor)
        if self.pool == "max" and lengths is not None:
            x = x.masked_fill(~row_mask(lengths, width), float("-inf"))
        elif self.pool == "mean":
            x = zero_padding(x, lengths)
        if missing := rows * self.factor - width:
            x = torch.nn.functional.pad(x, (0, 0, 0, missing), value=0 if self.pool == "mean" else float("-inf"))
        groups = x.reshape(n, rows, self.factor, dim)
        valid = None if lengths is None else (lengths + (self.factor - 1)) // self.factor
        if self.pool == "max":
            return zero_padding(groups.amax(2), valid), valid
        starts = torch.arange(0, rows * self.factor, self.factor, device=x.device)
        tokens = (width - starts)[None] if lengths is None else lengths[:, None] - starts
        return groups.sum(2) / tokens.clamp(1, self.factor)[..., None].to(x.dtype), valid

    def tiled(self, rows: torch.Tensor, width: int) -> torch.Tensor:
        """Give each of `width` tokens the vector of its row: `[n, ceil(T / factor), D]` -> `[n, T, D]`."""
        return rows.repeat_interleave(self.factor, dim=1)[:, :width]

    def recovered(self, tiled: torch.Tensor, earlier: Sequence[torch.Tensor]) -> torch.Tensor:
        """Tell the tokens of a row apart again.

        Args:
            tiled: `[n, T, D]`, the last layer's output.
            earlier: `[n, T, D]` each, the outputs of the layers that `stops(recover=True)` names.

        Returns:
            `[n, T, D]`.
        """
        if self.recovery == "average_last":
            return (tiled + earlier[-1]) / 2
        if self.recovery == "max_last":
            return torch.maximum(tiled, earlier[-1])
        if self.recovery == "sum_max":
            return tiled + torch.stack(list(earlier)).amax(0)
        if self.recovery == "sum_mean":
            return tiled + torch.stack(list(earlier)).mean(0)
        return tiled + earlier[0 if self.recovery == "sum_first" else -1]


def pooled_matrix(weight: torch.Tensor, factor: int) -> torch.Tensor:
    """Return the matrix that mixes pooled rows as `weight` mixes their tokens.

    Each entry is the sum of a `factor` x `factor` block over `factor`. Where the tokens of every row are equal, its
    product is the mean over each row's tokens of the product of `weight`, exactly.

    Args:
        weight: `[S, S]`, S a multiple of `factor`.
        factor: tokens that a row stands for.

    Returns:
        `[S / factor, S / factor]`.
    """
    rows = len(weight) // factor
    return weight.view(rows, factor, rows, factor).sum((1, 3)) / factor


def pooled_bias(bias: torch.Tensor, factor: int) -> torch.Tensor:
    """Return the mean of `bias` `[S]` over the tokens of each row, `[S / factor]`."""
    return bias.view(-1, factor).mean(1)
