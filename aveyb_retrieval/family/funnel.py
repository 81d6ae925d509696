"""Funnel: behind some layers neighbouring tokens of a split are pooled, and later layers run on
fewer rows.

Pooling never crosses a split, so that ranker, compressor and whatever counts splits stay as they
are. A row stands for `funnel_factor` tokens, the last one of a split for those that are left. In
the output each token has the vector of its row, so that a mean over tokens, of a text or a passage,
weights a row by the tokens that it stands for.
"""

from __future__ import annotations

from itertools import pairwise
from typing import TYPE_CHECKING, Any

import torch
from torch.nn.functional import pad

from aveyb_retrieval.encoder.network.layers import AveyBLayer
from aveyb_retrieval.encoder.network.model import AveyBModel
from aveyb_retrieval.family.config import FunnelAveyBConfig, FunnelSettings

if TYPE_CHECKING:
    from collections.abc import Sequence

    from aveyb_retrieval.encoder.settings import EncoderSettings


class FunnelLayer(AveyBLayer):
    """A layer behind the funnel.

    Its parameters are those of a layer that sees every token. It mixes rows as they would mix the
    tokens of the rows if these were equal.
    """

    factor: int

    def mixing_parameters(self) -> tuple[torch.Tensor | None, torch.Tensor | None]:
        """Return V `[S / factor, S / factor]` and the bias `[S / factor]`; see the base class."""
        weight, bias = super().mixing_parameters()
        if weight is not None:
            weight = pooled_matrix(weight, self.factor)
        if bias is not None:
            bias = bias.unflatten(0, (-1, self.factor)).mean(1)
        return weight, bias


class FunnelAveyBModel(AveyBModel):
    """An Avey-B encoder with a funnel; its inputs and outputs are those of `AveyBModel`.

    Its parameters are those of the model without a funnel. `of` puts one into a trained model.
    """

    config_class = FunnelAveyBConfig

    def _build(self, settings: EncoderSettings) -> None:
        super()._build(settings)
        assert isinstance(settings, FunnelSettings)
        pattern = settings.layer_pattern
        for i in range(settings.funnel_after, settings.num_hidden_layers):
            layer = FunnelLayer(settings, pattern[i], pattern[:i].count(pattern[i]))
            layer.factor = settings.funnel_factor
            self.layers[i] = layer

    @classmethod
    def of(cls, model: AveyBModel, **funnel: Any) -> FunnelAveyBModel:
        """Return a copy of a model with a funnel, in evaluation mode.

        Args:
            model: the encoder without one.
            **funnel: the fields that `FunnelAveyBConfig` adds to the configuration.

        Raises:
            ConfigError: a field is out of range or not one of its choices.
        """
        fields = {
            name: value
            for name, value in model.config.to_dict().items()
            if name not in ("model_type", "architectures")
        }
        with_funnel: Any = cls(FunnelAveyBConfig(**fields | funnel))
        with_funnel.load_state_dict(model.state_dict())
        return with_funnel.to(model.device).eval()

    def run_layers(self, x: torch.Tensor, lengths: torch.Tensor | None) -> torch.Tensor:
        """Run the layers and the final norm, with the funnel; see the base class."""
        config, width = self.config, x.shape[1]
        if config.funnel_factor == 1:
            return super().run_layers(x, lengths)
        layers = list(self.layers)
        earlier = []
        for start, stop in pairwise([0, *_stops(config.funnel_recovery, config.funnel_after)]):
            x = self.run_in_order(layers[start:stop], x, lengths)
            earlier.append(x)
        rows, row_counts = pool(x, lengths, config.funnel_factor, config.funnel_pool)
        rows = self.run_in_order(layers[config.funnel_after :], rows, row_counts)
        tiled = rows.repeat_interleave(config.funnel_factor, dim=1)[:, :width]
        out = recover(tiled, earlier, config.funnel_recovery)
        return self.normed(out)

    def layer_outputs(self, x: torch.Tensor, lengths: torch.Tensor | None) -> list[torch.Tensor]:
        """Return the output of each layer, behind the funnel for each token its row's; the last is
        recovered and normed.
        """
        config, width = self.config, x.shape[1]
        if config.funnel_factor == 1:
            return super().layer_outputs(x, lengths)
        layers, after = list(self.layers), config.funnel_after
        before = list(self.outputs_in_order(layers[:after], x, lengths))
        rows, row_counts = pool(before[-1], lengths, config.funnel_factor, config.funnel_pool)
        tiled = [
            output.repeat_interleave(config.funnel_factor, dim=1)[:, :width]
            for output in self.outputs_in_order(layers[after:], rows, row_counts)
        ]
        earlier = [before[stop - 1] for stop in _stops(config.funnel_recovery, after)]
        out = recover(tiled[-1], earlier, config.funnel_recovery)
        return [*before, *tiled[:-1], self.normed(out)]


def pool(
    x: torch.Tensor, lengths: torch.Tensor | None, factor: int, how: str
) -> tuple[torch.Tensor, torch.Tensor | None]:
    """Pool neighbouring tokens of each split.

    Args:
        x: `[n, T, D]`.
        lengths: int `[n]`, tokens of each split; None: all T exist.
        factor: tokens of a row.
        how: "mean" or "max", over the tokens that exist.

    Returns:
        `[n, ceil(T / factor), D]`, zeros in rows without a token, and the rows of each split, int
        `[n]` (None: all).
    """
    n, width, dim = x.shape
    counts = torch.full((n,), width, device=x.device) if lengths is None else lengths
    missing = -width % factor
    places = torch.arange(width + missing, device=x.device)
    exists = (places < counts[:, None]).view(n, -1, factor, 1)
    groups = pad(x, (0, 0, 0, missing)).view(n, -1, factor, dim)
    tokens = exists.sum(2)
    if how == "mean":
        rows = groups.masked_fill(~exists, 0).sum(2) / tokens.clamp_min(1).to(x.dtype)
    else:
        best = groups.masked_fill(~exists, float("-inf")).amax(2)
        rows = best.masked_fill(tokens == 0, 0)
    return rows, None if lengths is None else (lengths + (factor - 1)) // factor


def recover(tiled: torch.Tensor, earlier: Sequence[torch.Tensor], how: str | None) -> torch.Tensor:
    """Tell the tokens of a row apart again.

    Args:
        tiled: `[n, T, D]`, for each token the vector of its row behind the last layer.
        earlier: `[n, T, D]` each, outputs of the layers in front of the funnel that are needed, in
            order; the first is the first layer's, the last one the last layer's.
        how: one of `RECOVERIES`, or None.

    Returns:
        `[n, T, D]`.
    """
    if how is None:
        return tiled
    last = earlier[-1]
    if how == "average_last":
        return (tiled + last) / 2
    if how == "max_last":
        return torch.maximum(tiled, last)
    if how == "sum_last":
        return tiled + last
    if how == "sum_first":
        return tiled + earlier[0]
    stacked = torch.stack(list(earlier))
    return tiled + (stacked.amax(0) if how == "sum_max" else stacked.mean(0))


def pooled_matrix(weight: torch.Tensor, factor: int) -> torch.Tensor:
    """Return the matrix that mixes rows as `weight` mixes their tokens.

    Each entry is the sum of a `factor` x `factor` block over `factor`. Its product is the mean over
    the tokens of each row of the product of `weight`, exactly so if the tokens of each row are
    equal. `[S, S]` to `[S / factor, S / factor]`.
    """
    blocks = weight.unflatten(1, (-1, factor)).unflatten(0, (-1, factor))
    return blocks.sum((1, 3)) / factor


def _stops(recovery: str | None, after: int) -> list[int]:
    """Return behind how many layers an output is needed; the last is the funnel's own place."""
    if recovery in ("sum_max", "sum_mean"):
        return list(range(1, after + 1))
    if recovery == "sum_first" and after > 1:
        return [1, after]
    return [after]
