"""Split-to-split MaxSim on a host, in NumPy: what CPUs, and devices without kernels, rank by.

    score(i, j) = sum over distinct ids u of split i of count_i(u) * max over distinct ids v of
    split j of cos(E_u, E_v)

The ranker reads token embeddings, so a cosine depends on two token ids, and ids repeat. A
document's distinct ids are compared with those of each split once. The scores of a block of columns
exist at a time, so memory grows with the length of a document, not with its square.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING

import numpy as np

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator, Sequence

    RowsOf = Callable[[np.ndarray], np.ndarray]

BLOCK_COLUMNS = 128  # columns whose scores exist at once


@dataclass(frozen=True)
class SplitVocabulary:
    """The distinct ids of one document, latest last occurrence first.

    Attributes:
        ids: int `[U]`, the distinct ids.
        asked: int64 `[n]`; a split after split j holds none but the first `asked[j]` ids.
        held: for each split the positions in `ids` that it holds, int64, each once, and how often
            it holds each.
    """

    ids: np.ndarray
    asked: np.ndarray
    held: list[tuple[np.ndarray, np.ndarray]]

    @classmethod
    def of(cls, splits: Sequence[np.ndarray]) -> SplitVocabulary:
        """Collect the ids of a document's splits, int `[T]` each."""
        n, lengths = len(splits), [len(split) for split in splits]
        distinct, position = np.unique(np.concatenate(splits), return_inverse=True)
        last_seen = np.zeros(len(distinct), dtype=np.int64)
        np.maximum.at(last_seen, position, np.repeat(np.arange(n), lengths))
        order = np.argsort(-last_seen, kind="stable")
        place = np.empty_like(order)
        place[order] = np.arange(len(order))
        parts = np.split(place[position], np.cumsum(lengths)[:-1])
        return cls(
            ids=distinct[order],
            asked=np.searchsorted(-last_seen[order], -np.arange(n)),
            held=[np.unique(part, return_counts=True) for part in parts],
        )


def score_blocks(
    splits: Sequence[np.ndarray], rows_of: RowsOf, eps: float
) -> Iterator[tuple[int, np.ndarray]]:
    """Score a document's splits against its earlier ones by MaxSim (section 3.1), `BLOCK_COLUMNS`
    at a time.

    Args:
        splits: the token ids of each split, int `[T]`.
        rows_of: returns float32 `[U, D]`, the embeddings of ids `[U]`.
        eps: added to each norm.

    Yields:
        The first column of a block, and float32 `[n - first - 1, width]`, the block's scores for
        the splits after it; -inf where the column is not an earlier split.
    """
    n, vocabulary = len(splits), SplitVocabulary.of(splits)
    rows = rows_of(vocabulary.ids)
    unit = rows / (np.linalg.norm(rows, axis=1, keepdims=True) + np.float32(eps))
    for first in range(0, n - 1, BLOCK_COLUMNS):
        stop = min(first + BLOCK_COLUMNS, n)
        best = np.zeros((len(unit), stop - first), dtype=np.float32)
        for j in range(first, stop):
            asking = unit[: vocabulary.asked[j]]
            if len(asking):
                best[: len(asking), j - first] = (asking @ unit[vocabulary.held[j][0]].T).max(1)
        scores = np.stack(
            [
                counts.astype(np.float32) @ best[positions]
                for positions, counts in vocabulary.held[first + 1 :]
            ]
        )
        scores[np.arange(first, stop) >= np.arange(first + 1, n)[:, None]] = -np.inf
        yield first, scores


def all_scores(splits: Sequence[np.ndarray], rows_of: RowsOf, eps: float) -> np.ndarray:
    """Return all scores of `score_blocks`, float32 `[n, n]`."""
    scores = np.full((len(splits), len(splits)), -np.inf, dtype=np.float32)
    for first, block in score_blocks(splits, rows_of, eps):
        scores[first + 1 :, first : first + block.shape[1]] = block
    return scores


def best_splits(
    splits: Sequence[np.ndarray], rows_of: RowsOf, eps: float, k: int
) -> tuple[np.ndarray, np.ndarray]:
    """Keep each split's k best earlier ones; the arguments are those of `score_blocks`.

    Returns:
        float32 `[n, k]` scores, best first, equal ones by the lower split, -inf where there are
        fewer than k; int64 `[n, k]` their splits.
    """
    n = len(splits)
    best = np.full((n, k), -np.inf, dtype=np.float32)
    chosen = np.zeros((n, k), dtype=np.int64)
    for first, block in score_blocks(splits, rows_of, eps):
        after = first + 1
        columns = np.broadcast_to(np.arange(first, first + block.shape[1]), block.shape)
        scores = np.concatenate([best[after:], block], axis=1)
        numbers = np.concatenate([chosen[after:], columns], axis=1)
        # Stable, and what was kept comes first: equal scores stay with the lower split.
        kept = np.argsort(-scores, axis=1, kind="stable")[:, :k]
        best[after:] = np.take_along_axis(scores, kept, 1)
        chosen[after:] = np.take_along_axis(numbers, kept, 1)
    return best, chosen
