"""Small random models of every variant, for tests."""

from __future__ import annotations

from typing import Any

import torch

from aveyb_retrieval.encoder.config import RELEASED, AveyBConfig
from aveyb_retrieval.encoder.network.model import AveyBModel

PRESETS = {
    "paper": {},
    "released": RELEASED,
    "released_masked": {**RELEASED, "tail": "masked"},
    "paper_zero_slots": {"tail": "zero_slots"},
}
SMALL = {
    "vocab_size": 97,
    "hidden_size": 32,
    "num_hidden_layers": 4,
    "split_size": 16,
    "weight_init": "normal",
    "initializer_range": 0.15,
}


def small_config(preset: str, **overrides: Any) -> AveyBConfig:
    """A few thousand parameters, S = 16."""
    return AveyBConfig(**{**PRESETS[preset], **SMALL, **overrides})


def small_model(preset: str, *, seed: int = 0, **overrides: Any) -> AveyBModel:
    """A random model whose biases and scalars are not at their neutral initial values."""
    torch.manual_seed(seed)
    model = AveyBModel(small_config(preset, **overrides)).eval()
    with torch.no_grad():
        for name, parameter in model.named_parameters():
            if name.endswith(("bias", "alpha")):
                parameter.add_(0.3 * torch.randn_like(parameter))
    return model
