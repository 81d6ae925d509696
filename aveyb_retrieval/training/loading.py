"""Load what a run starts from: a vocabulary, a new or saved model, a sentence-transformers folder."""

from __future__ import annotations

from typing import TYPE_CHECKING

import torch

from aveyb_retrieval.encoder.config import AveyBConfig
from aveyb_retrieval.encoder.embedder import load_tokenizer, model_folder
from aveyb_retrieval.encoder.model import AveyBForMaskedLM, AveyBModel
from aveyb_retrieval.encoder.sentence_transformers import read_prompts, sentence_transformer
from aveyb_retrieval.encoder.tokenizer import AveyBTokenizer
from aveyb_retrieval.errors import ConfigError, ModelError

if TYPE_CHECKING:
    from pathlib import Path

    from sentence_transformers import SentenceTransformer

PRESETS = {
    "mini": AveyBConfig.mini,
    "paper-base": AveyBConfig.paper_base,
    "paper-large": AveyBConfig.paper_large,
    "released-base": AveyBConfig.released_base,
}


def open_vocabulary(name: str) -> AveyBTokenizer:
    """Open `p50k_base`, or the vocabulary in a folder."""
    return AveyBTokenizer.p50k_base() if name == "p50k_base" else AveyBTokenizer.load(name)


def masked_model(model: str | None, preset: str, tokenizer: AveyBTokenizer, *, seed: int) -> AveyBForMaskedLM:
    """Load a saved model, or make a new one of a preset with as many embeddings as the vocabulary has rows.

    Raises:
        ConfigError: unknown preset.
        ModelError: the saved model has fewer embeddings than the vocabulary has rows.
    """
    if model is None:
        if preset not in PRESETS:
            raise ConfigError(f"preset is {preset!r}; choose one of {', '.join(PRESETS)}")
        torch.manual_seed(seed)
        return AveyBForMaskedLM(PRESETS[preset](vocab_size=tokenizer.vocab_size))
    loaded = AveyBForMaskedLM.from_pretrained(model, dtype=torch.float32)
    if loaded.config.vocab_size < tokenizer.vocab_size:
        raise ModelError(
            f"{model} has {loaded.config.vocab_size} embeddings, the vocabulary {tokenizer.vocab_size} rows: they do "
            "not belong together"
        )
    return loaded


def sentence_model(
    model: str | Path | None, work: Path, prompts: dict[str, str]
) -> tuple[SentenceTransformer, AveyBTokenizer]:
    """Open a folder with an Avey-B encoder as a float32 sentence-transformers model; return it and its tokenizer.

    Args:
        model: such a folder (a plain encoder gets mean pooling), or a hub name; None: the embedded model.
        work: where its sentence-transformers form is written.
        prompts: "query" and "document" texts that replace the folder's own.

    Raises:
        ModelError: the folder is not a model folder.
    """
    folder = model_folder(model)
    if not (folder / "config.json").is_file():
        raise ModelError(f"{folder} lacks config.json: it is not a model folder")
    encoder = AveyBModel.from_pretrained(folder, dtype=torch.float32)
    tokenizer = load_tokenizer(folder, encoder.config.vocab_size)
    return sentence_transformer(encoder, tokenizer, work, prompts={**read_prompts(folder), **prompts}), tokenizer
