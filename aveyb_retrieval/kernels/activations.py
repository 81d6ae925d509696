"""The two pointwise activations of Avey-B, by name."""

from __future__ import annotations

import torch
import torch.nn.functional as F


def enricher_activation(x: torch.Tensor, name: str) -> torch.Tensor:
    """Apply "gelu" (exact, by erf) or "relu2" (ReLU squared; similarities of its outputs are never negative).

    May overwrite `x` where no gradient is recorded: a fresh buffer of this size costs more than the arithmetic.
    """
    if name == "gelu":
        return F.gelu(x)
    return F.relu(x).square() if torch.is_grad_enabled() else x.relu_().square_()


def mix_activation(x: torch.Tensor, name: str) -> torch.Tensor:
    """Apply sigma of eq. 4 and 7: "relu" or "none"."""
    return F.relu(x) if name == "relu" else x
