"""Perplexity of a language model by length of text, as trained and strict (see `encoder/network/avey.py`).

As trained, all positions of a split share a ranking that has seen the whole split, so this figure is a little better
than what generation gives; strict scores each position from its prefix alone, at S times the work, and is therefore
taken at sampled positions. Both are taken at the same ones, too, so that they can be compared.
"""

from __future__ import annotations

import math
from dataclasses import dataclass
from typing import TYPE_CHECKING

import numpy as np
import torch

from aveyb_retrieval.errors import ConfigError, InputError

if TYPE_CHECKING:
    from collections.abc import Iterable, Sequence

    from aveyb_retrieval.encoder.network.avey import AveyForCausalLM
    from aveyb_retrieval.encoder.text.tokenizer import AveyBTokenizer


@dataclass(frozen=True)
class Perplexity:
    """Perplexities at one length.

    Attributes:
        length: tokens of a window.
        windows: how many were scored.
        positions: how many positions were sampled.
        as_trained: over every position.
        as_trained_sampled: over the sampled positions.
        strict: over the sampled positions, each from its prefix alone.
    """

    length: int
    windows: int
    positions: int
    as_trained: float
    as_trained_sampled: float
    strict: float


def token_stream(texts: Iterable[str], tokenizer: AveyBTokenizer, separator: int, limit: int) -> np.ndarray:
    """Return the first `limit` tokens of texts, one after another, each closed by `separator`; int64."""
    parts: list[np.ndarray] = []
    count = 0
    for text in texts:
        parts.append(np.append(tokenizer.encode_ids(text), separator).astype(np.int64))
        count += len(parts[-1])
        if count >= limit:
            break
    return np.concatenate(parts)[:limit] if parts else np.empty(0, np.int64)


@torch.inference_mode()
def perplexities(
    model: AveyForCausalLM,
    tokens: np.ndarray,
    lengths: Sequence[int],
    *,
    windows: int = 4,
    positions: int = 64,
    seed: int = 0,
) -> list[Perplexity]:
    """Score windows of a text at several lengths.

    Args:
        model: the language model.
        tokens: int64 `[T]`.
        lengths: tokens of a window.
        windows: how many windows of each length, at most; they begin at the text's start and do not overlap.
        positions: sampled positions in each window.
        seed: of the sample.

    Raises:
        ConfigError: a number is below 1.
        InputError: the text is shorter than one window and the token after it.
    """
    if min(windows, positions, *lengths) < 1:
        raise ConfigError(f"windows is {windows}, positions {positions}, lengths {list(lengths)}; all must be above 0")
    found = []
    for length in lengths:
        count = min(windows, (len(tokens) - 1) // length)
        if count < 1:
            raise InputError(f"the texts have {len(tokens)} tokens, length {length} needs {length + 1}: give more text")
        random = np.random.default_rng([seed, length])
        whole: list[torch.Tensor] = []
        sampled: list[torch.Tensor] = []
        strict: list[torch.Tensor] = []
        for i in range(count):
            window = torch.from_numpy(tokens[i * length : (i + 1) * length + 1]).to(model.device)
            ids, labels = window[:-1], window[1:]
            chosen = torch.from_numpy(np.sort(random.permutation(length)[:positions])).to(model.device)
            losses = _losses(model(ids[None]).logits[0], labels)
            whole.append(losses)
            sampled.append(losses[chosen])
            strict.append(_losses(model.strict_logits(ids, chosen), labels[chosen]))
        found.append(Perplexity(length, count, sum(map(len, strict)), *map(_perplexity, (whole, sampled, strict))))
    return found


def _losses(logits: torch.Tensor, labels: torch.Tensor) -> torch.Tensor:
    return torch.nn.functional.cross_entropy(logits.float(), labels, reduction="none")


def _perplexity(losses: list[torch.Tensor]) -> float:
    return math.exp(torch.cat(losses).double().mean().item())
