"""Small random models of every variant, for tests."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

import torch

from aveyb_retrieval.encoder.config import RELEASED, AveyBConfig
from aveyb_retrieval.encoder.embedders.sentence_transformers import sentence_transformer
from aveyb_retrieval.encoder.network.model import AveyBModel
from aveyb_retrieval.encoder.text.tokenizer import AveyBTokenizer

if TYPE_CHECKING:
    from pathlib import Path

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


def save_byte_model(folder: Path, *, query: str, document: str, split_size: int) -> Path:
    """Save a random model of one token a byte, with prompts, as sentence-transformers reads it."""
    torch.manual_seed(0)
    tokenizer = AveyBTokenizer.from_ranks([bytes([i]) for i in range(256)])
    config = AveyBConfig.mini(
        vocab_size=tokenizer.vocab_size,
        hidden_size=32,
        num_hidden_layers=4,
        split_size=split_size,
        initializer_range=0.2,
    )
    prompts = {"query": query, "document": document}
    sentence_transformer(AveyBModel(config), tokenizer, folder, prompts=prompts)
    return folder
