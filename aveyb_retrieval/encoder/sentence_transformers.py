"""An Avey-B model as a sentence-transformers folder made of stock modules: Transformer, mean Pooling, Normalize.

`SentenceTransformer(folder)` loads such a folder without `trust_remote_code` once `aveyb_retrieval` is imported.
"""

from __future__ import annotations

import json
from pathlib import Path
from typing import TYPE_CHECKING

from aveyb_retrieval.encoder.model import AveyBModel
from aveyb_retrieval.encoder.tokenizer import AveyBTokenizer
from aveyb_retrieval.errors import ModelError

if TYPE_CHECKING:
    from sentence_transformers import SentenceTransformer

PROMPTS_FILE = "config_sentence_transformers.json"
POOLING_FILE = "1_Pooling/config.json"
NO_PROMPTS = {"query": "", "document": ""}


def sentence_transformer(
    model: AveyBModel, tokenizer: AveyBTokenizer, folder: str | Path, *, prompts: dict[str, str] | None = None
) -> SentenceTransformer:
    """Writes `model` and `tokenizer` to `folder` as a sentence-transformers model and returns it, loaded.

    Args:
        model: the encoder; saved as safetensors in its own dtype.
        tokenizer: saved in both of its views.
        folder: made if needed.
        prompts: text put before every "query" and "document"; part of what is pooled. None: no prompts.

    Raises:
        ModelError: the tokenizer has more ids than the model has embeddings.
    """
    from sentence_transformers import SentenceTransformer
    from sentence_transformers.base.modules import Transformer
    from sentence_transformers.sentence_transformer.modules import Normalize, Pooling

    folder = Path(folder)
    tokenizer.check_embeddings(model.config.vocab_size, str(folder))
    tokenizer.save(folder)
    model.save_pretrained(folder)
    modules = [Transformer(str(folder)), Pooling(model.config.hidden_size, pooling_mode="mean"), Normalize()]
    sentence_model = SentenceTransformer(
        modules=modules, prompts={**NO_PROMPTS, **(prompts or {})}, similarity_fn_name="cosine", device="cpu"
    )
    sentence_model.save(str(folder), create_model_card=False)
    tokenizer.save(folder)  # again: transformers rewrites tokenizer.json in its own words, and ours is the source
    return sentence_model


def read_prompts(folder: Path) -> dict[str, str]:
    """The "query" and "document" prompts of a sentence-transformers folder; empty where none are set."""
    path = folder / PROMPTS_FILE
    if not path.is_file():
        return dict(NO_PROMPTS)
    prompts = json.loads(path.read_text(encoding="utf-8")).get("prompts") or {}
    return {name: str(prompts.get(name) or "") for name in NO_PROMPTS}


def check_mean_pooling(folder: Path) -> None:
    """Raises ModelError where the folder pools in another way than the mean over all tokens."""
    path = folder / POOLING_FILE
    if not path.is_file():
        return
    settings = json.loads(path.read_text(encoding="utf-8"))
    mode = settings.get("pooling_mode", "mean")
    if mode != "mean" or settings.get("include_prompt") is False:
        raise ModelError(
            f"{path}: pooling_mode {mode!r}; passages are pooled by the mean over all tokens, prompt included"
        )
