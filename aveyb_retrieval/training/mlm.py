"""Masked-language modeling (see `pretraining.py`)."""

from __future__ import annotations

from functools import partial
from typing import TYPE_CHECKING, Any

from aveyb_retrieval.training.packing import MaskedSequences
from aveyb_retrieval.training.pretraining import OpenSequences, open_held_out, pretrain
from aveyb_retrieval.training.settings import MLMSettings

if TYPE_CHECKING:
    from collections.abc import Iterable
    from pathlib import Path

    from transformers import PreTrainedModel

    from aveyb_retrieval.encoder.wordpiece import Tokenizer
    from aveyb_retrieval.training.packing import PackedSequences


def train_mlm(
    model: PreTrainedModel,
    tokenizer: Tokenizer,
    texts: Iterable[str],
    folder: str | Path,
    *,
    data: dict[str, Any],
    settings: MLMSettings | None = None,
    resume: bool = False,
    device: str | None = None,
) -> dict[str, float]:
    """Train an `AveyBForMaskedLM`, or any transformers model for masked language modeling; see `pretrain`.

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
        Held-out `loss` (nats) and `accuracy` over masked tokens, where there are any.
    """
    settings = settings or MLMSettings()
    return pretrain(
        model,
        tokenizer,
        texts,
        folder,
        _masked(tokenizer, settings),
        title="Masked-language modeling",
        data=data,
        settings=settings,
        resume=resume,
        device=device,
    )


def held_out_sequences(run: Path, tokenizer: Tokenizer, settings: MLMSettings) -> PackedSequences | None:
    """Open the held-out documents of a run folder, masked alike in every evaluation; None: less than one sequence."""
    return open_held_out(run, settings, _masked(tokenizer, settings))


def _masked(tokenizer: Tokenizer, settings: MLMSettings) -> OpenSequences:
    rate = settings.mask_rate
    return partial(MaskedSequences, length=settings.length, mask_id=tokenizer.mask_id, mask_rate=rate)
