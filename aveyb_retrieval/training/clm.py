"""Next-token training of Avey, the causal language model (see `pretraining.py`)."""

from __future__ import annotations

from functools import partial
from typing import TYPE_CHECKING, Any

from aveyb_retrieval.encoder.avey_config import AveyConfig
from aveyb_retrieval.encoder.avey_model import AveyForCausalLM
from aveyb_retrieval.errors import ModelError
from aveyb_retrieval.training.loading import starting_model
from aveyb_retrieval.training.packing import NextTokens
from aveyb_retrieval.training.pretraining import pretrain
from aveyb_retrieval.training.settings import CLMSettings

if TYPE_CHECKING:
    from collections.abc import Iterable, Mapping
    from pathlib import Path

    from transformers import PreTrainedModel

    from aveyb_retrieval.encoder.wordpiece import Tokenizer

PRESETS = {
    "mini": AveyConfig.mini,
    "small": AveyConfig.small,
    "medium": AveyConfig.medium,
    "large": AveyConfig.large,
}
END_OF_TEXT = "<|endoftext|>"


def end_of_text(tokenizer: Tokenizer) -> int:
    """Return the token that closes a document: `<|endoftext|>` where the vocabulary has it, otherwise [SEP]."""
    return tokenizer.special_tokens.get(END_OF_TEXT, tokenizer.sep_id)


def causal_model(
    model: str | None, preset: str, tokenizer: Tokenizer, *, seed: int, fields: Mapping[str, Any] | None = None
) -> AveyForCausalLM:
    """Return the model that next-token training starts from (see `starting_model`), its texts ending as in training.

    Raises:
        ConfigError: unknown preset or field, or fields for a saved model.
        ModelError: the saved model's embeddings are not those of the vocabulary.
    """
    made = starting_model(AveyForCausalLM, PRESETS, model, preset, tokenizer, seed=seed, fields=fields)
    if made.generation_config is None:
        raise ModelError(f"{model or preset}: transformers made no generation configuration; update transformers")
    made.generation_config.eos_token_id = end_of_text(tokenizer)
    made.generation_config.pad_token_id = tokenizer.pad_id
    return made


def train_clm(
    model: PreTrainedModel,
    tokenizer: Tokenizer,
    texts: Iterable[str],
    folder: str | Path,
    *,
    data: dict[str, Any],
    settings: CLMSettings | None = None,
    resume: bool = False,
    device: str | None = None,
) -> dict[str, float]:
    """Train an `AveyForCausalLM`, or any model whose labels are the next tokens; see `pretrain`.

    Sequences are scored as trained: all positions of a split share its ranking (see `avey_model.py`).

    Args:
        model: the model.
        tokenizer: of the model.
        texts: documents.
        folder: the run folder.
        data: fingerprints of what `texts` came from.
        settings: None: the paper's.
        resume: continue from the newest checkpoint.
        device: "cpu" keeps the run off an accelerator; None: the trainer chooses.

    Returns:
        Held-out `loss` (nats, as trained) and `accuracy`, where there is enough held-out text.
    """
    settings = settings or CLMSettings()
    return pretrain(
        model,
        tokenizer,
        texts,
        folder,
        partial(NextTokens, length=settings.length),
        title="Next-token training",
        data=data,
        settings=settings,
        separator=end_of_text(tokenizer),
        resume=resume,
        device=device,
    )
