"""What a run starts from: a vocabulary, a new or saved model, a sentence-transformers folder."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

import torch

from aveyb_retrieval.encoder.config import AveyBConfig
from aveyb_retrieval.encoder.embedders.sentence_transformers import (
    check_modules,
    read_limit,
    read_prompts,
    sentence_transformer,
)
from aveyb_retrieval.encoder.folders import model_folder
from aveyb_retrieval.encoder.network.model import AveyBForMaskedLM, AveyBModel
from aveyb_retrieval.encoder.text.tokenizer import AveyBTokenizer
from aveyb_retrieval.encoder.text.wordpiece import Tokenizer, load_tokenizer, read_vocabulary
from aveyb_retrieval.errors import ConfigError, ModelError

if TYPE_CHECKING:
    from collections.abc import Mapping
    from pathlib import Path

    from sentence_transformers import SentenceTransformer

PRESETS = {
    "mini": AveyBConfig.mini,
    "paper-base": AveyBConfig.paper_base,
    "paper-large": AveyBConfig.paper_large,
    "released-base": AveyBConfig.released_base,
}


def open_vocabulary(name: str) -> Tokenizer:
    """Open `p50k_base`, or the vocabulary in a folder."""
    return AveyBTokenizer.p50k_base() if name == "p50k_base" else read_vocabulary(name)


def starting_model(
    model: str | None, preset: str, tokenizer: Tokenizer, *, seed: int, fields: Mapping[str, Any]
) -> AveyBForMaskedLM:
    """Load a saved model in float32, or make a new one of a preset with an embedding for each id of the vocabulary.

    `fields` of a new one's configuration replace the preset's; `seed` decides its parameters.
    """
    if model is None:
        if preset not in PRESETS:
            raise ConfigError(f"preset is {preset!r}; choose one of {', '.join(PRESETS)}")
        if "vocab_size" in fields:
            raise ConfigError(f"vocab_size is the vocabulary's, {tokenizer.vocab_size:,}: give another vocabulary")
        if unknown := [name for name in fields if name not in AveyBConfig.__annotations__]:
            raise ConfigError(f"{unknown[0]!r} is not a field of AveyBConfig")
        torch.manual_seed(seed)
        return AveyBForMaskedLM(PRESETS[preset](**fields, vocab_size=tokenizer.vocab_size))
    if fields:
        raise ConfigError(f"{model} has its own configuration; {', '.join(fields)} can be set for a new model only")
    loaded: AveyBForMaskedLM = AveyBForMaskedLM.from_pretrained(model, dtype=torch.float32)
    tokenizer.check_embeddings(loaded.config.vocab_size, model)
    return loaded


def sentence_model(
    model: str | Path | None, work: Path, prompts: dict[str, str]
) -> tuple[SentenceTransformer, Tokenizer]:
    """Open an Avey-B encoder as a float32 sentence-transformers model, written to `work`; return its tokenizer as well.

    A plain encoder gets mean pooling; `prompts` replace the model's own.
    """
    folder = model_folder(model)
    if not (folder / "config.json").is_file():
        raise ModelError(f"{folder} lacks config.json: it is not a model folder")
    check_modules(folder)
    encoder = AveyBModel.from_pretrained(folder, dtype=torch.float32)
    tokenizer = load_tokenizer(folder, encoder.config.vocab_size)
    made = sentence_transformer(encoder, tokenizer, work, prompts={**read_prompts(folder), **prompts})
    if (limit := read_limit(folder)) is not None:
        made.max_seq_length = limit
    return made, tokenizer
