"""A teacher's vector of every token of a text, on the student's tokens, cached in shards beside its vectors of texts.

A text's vector says one thing about it; the vectors of its tokens say hundreds, and it is their mean. (Jiao et al.,
2020, and Sun et al., 2020, distil hidden states for the same reason.) The two tokenizers differ, so a student's token
gets the mean of the teacher's tokens that it shares characters with, each weighed by how many.

Beside what `teacher.py` keeps, shard i has `tokens-0000i.npy`, int8 `[T, D]`, and `scales-0000i.npy`, float16 `[T]`:
rows of all student tokens of its texts, one text after another; a scale of 0 where the teacher has nothing to say.
"""

from __future__ import annotations

from dataclasses import dataclass
from itertools import pairwise
from typing import TYPE_CHECKING, Any

import numpy as np
import torch

from aveyb_retrieval.errors import InputError
from aveyb_retrieval.training.teacher import read_cache, shard_path

if TYPE_CHECKING:
    from collections.abc import Callable, Sequence
    from pathlib import Path

    Tokenize = Callable[[str], tuple[np.ndarray, np.ndarray]]

BATCH_TOKENS = 4096  # of the teacher, padding included


def overlaps(student: np.ndarray, teacher: np.ndarray) -> np.ndarray:
    """Return how many characters tokens of two tokenizers share, float32 `[T, U]`.

    Args:
        student: int `[T, 2]` character ranges `[start, end)`, in order.
        teacher: int `[U, 2]`, likewise; empty ones share nothing.
    """
    starts = np.maximum(student[:, None, 0], teacher[None, :, 0])
    ends = np.minimum(student[:, None, 1], teacher[None, :, 1])
    return np.maximum(ends - starts, 0).astype(np.float32)


def label_tokens(teacher: Any, texts: Sequence[str], *, tokenize: Tokenize, precision: str) -> dict[str, np.ndarray]:
    """Return the three arrays of a shard, as `teacher.cache_vectors` takes them.

    Args:
        teacher: a SentenceTransformer.
        texts: of the shard.
        tokenize: returns the student's ids `[T]` and character offsets `[T, 2]` of a text, cut as in training.
        precision: of the teacher's matrix products.
    """
    found = encode_tokens(teacher, texts, tokenize, precision)
    return {"scales": found.scales, "tokens": found.tokens, "vectors": found.texts}


@dataclass(frozen=True)
class Encoded:
    """Vectors of texts float16 `[n, D]`, unit rows; of their tokens int8 `[T, D]` with scales float16 `[T]`."""

    texts: np.ndarray
    tokens: np.ndarray
    scales: np.ndarray


@torch.inference_mode()
def encode_tokens(teacher: Any, texts: Sequence[str], tokenize: Tokenize, precision: str) -> Encoded:
    """Encode texts with a sentence-transformers teacher that takes the mean of its tokens, special ones included."""
    tokenizer, network = teacher.tokenizer, teacher[0].auto_model
    pieces = tokenizer(
        list(texts), truncation=True, max_length=teacher.max_seq_length, return_offsets_mapping=True,
        return_token_type_ids=False,
    )  # fmt: skip
    offsets = [tokenize(text)[1] for text in texts]
    starts = np.cumsum([0, *map(len, offsets)])
    dim = network.config.hidden_size
    means = np.zeros((len(texts), dim), np.float16)
    tokens, scales = np.zeros((starts[-1], dim), np.int8), np.zeros(starts[-1], np.float16)
    for rows in _batches([len(ids) for ids in pieces["input_ids"]], BATCH_TOKENS):
        batch = tokenizer.pad({"input_ids": [pieces["input_ids"][row] for row in rows]}, return_tensors="pt")
        batch = {name: value.to(network.device) for name, value in batch.items()}
        with torch.autocast(network.device.type, dtype=torch.bfloat16, enabled=precision == "bfloat16"):
            hidden = network(**batch).last_hidden_state.float()
        exist = batch["attention_mask"][..., None].float()
        mean = torch.nn.functional.normalize((hidden * exist).sum(1), dim=-1)
        means[rows] = mean.cpu().numpy()
        for row, vectors in zip(rows, hidden, strict=True):
            shared = overlaps(offsets[row], np.asarray(pieces["offset_mapping"][row]).reshape(-1, 2))
            total = shared.sum(1, keepdims=True)
            weights = torch.from_numpy(shared / np.maximum(total, 1)).to(vectors.device)
            here = slice(starts[row], starts[row + 1])
            tokens[here], scales[here] = _quantized((weights @ vectors[: weights.shape[1]]).cpu().numpy())
    return Encoded(means, tokens, scales)


@dataclass(frozen=True)
class TokenVectors:
    """The teacher's vectors of all tokens of the first texts of a cache, read from disk when asked for.

    starts: int64 `[shards + 1]`, tokens before each shard.
    """

    tokens: list[np.ndarray]
    scales: list[np.ndarray]
    starts: np.ndarray

    def __len__(self) -> int:
        """How many tokens there are."""
        return int(self.starts[-1])

    def __getitem__(self, tokens: slice) -> np.ndarray:
        """Return float32 `[t, D]` of consecutive tokens; a row is 0 where the teacher has nothing to say."""
        first, last = tokens.start, tokens.stop
        shards = range(int(np.searchsorted(self.starts, first, "right")) - 1, int(np.searchsorted(self.starts, last)))
        parts = []
        for shard in shards:
            here = slice(max(0, first - int(self.starts[shard])), last - int(self.starts[shard]))
            parts.append(
                self.tokens[shard][here].astype(np.float32) * self.scales[shard][here, None].astype(np.float32)
            )
        return np.concatenate(parts)


def read_token_vectors(folder: str | Path, *, vocabulary: str) -> TokenVectors:
    """Open the complete shards of a cache from the front.

    Raises:
        InputError: the folder is not a cache, was made for another vocabulary, or has no vectors of tokens.
    """
    cache = read_cache(folder)
    if cache.vocabulary != vocabulary:
        raise InputError(
            f"{folder} has vectors of tokens for the vocabulary {cache.vocabulary or '(none)'}, the texts were packed "
            f"with {vocabulary}: label the texts again, with this vocabulary"
        )
    tokens, scales = [], []
    for number in range(-(-cache.n_texts // cache.shard_size)):
        if not shard_path(folder, number).exists():
            break
        tokens.append(np.load(shard_path(folder, number, "tokens"), mmap_mode="r", allow_pickle=False))
        scales.append(np.load(shard_path(folder, number, "scales"), allow_pickle=False))
        if tokens[-1].shape != (len(scales[-1]), cache.dim):
            raise InputError(
                f"{shard_path(folder, number, 'tokens')} has shape {tokens[-1].shape}, {(len(scales[-1]), cache.dim)} "
                "is expected; delete the shard's three files and label again"
            )
    if not tokens:
        raise InputError(f"{folder} has no complete shard: label the texts first")
    return TokenVectors(tokens, scales, np.cumsum([0, *map(len, scales)]))


def _quantized(vectors: np.ndarray) -> tuple[np.ndarray, np.ndarray]:
    """Return int8 `[T, D]` and scales float16 `[T]`."""
    scales = (np.abs(vectors).max(1, initial=0) / 127).astype(np.float16)
    divisor = np.where(scales > 0, scales, 1).astype(np.float32)[:, None]
    return np.clip(np.rint(vectors / divisor), -127, 127).astype(np.int8), scales


def _batches(lengths: Sequence[int], most: int) -> list[np.ndarray]:
    """Rows in order of length, in batches that hold at most `most` tokens when padded."""
    order = np.argsort(lengths, kind="stable")[::-1]
    cuts, longest, count = [0], 0, 0
    for place, row in enumerate(order):
        if count and longest * (count + 1) > most:
            cuts.append(place)
            count = 0
        longest = lengths[row] if not count else longest
        count += 1
    return [order[a:b] for a, b in pairwise([*cuts, len(order)])]
