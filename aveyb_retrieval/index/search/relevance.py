"""How well passages answer a query: vectors and words together, on a scale that is the same for every query.

    r(p) = COSINE * (cos(p) - background) + coverage(p)      background: the mean cosine of all documents with the query
    s(p) = r(p) + NEIGHBOR * max(r(p - 1), r(p + 1))         neighbors in the same document
    confidence(p) = 1 / (1 + exp(-(SLOPE * s(p) + OFFSET)))

`coverage` is the share of the query's words, weighed by their inverse frequency, that the passage holds. Neither part
is divided by the best one of the query, so that equal numbers mean the same for every query.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np

from aveyb_retrieval.index.search.snapshot import Snapshot
from aveyb_retrieval.index.storage.store import PASSAGE_BITS
from aveyb_retrieval.index.types import FloatArray, IntArray

COSINE = 0.75
NEIGHBOR = 0.3
SLOPE, OFFSET = 2.6, -5.18  # fitted by benchmarks/cpu/confidence.py


@dataclass(frozen=True)
class PassageScores:
    """Passages and their scores for one query, all `[n]`, ascending by number; None where a part was not computed.

    `score` orders them; `confidence` is the calibrated form of a hybrid one.
    """

    ids: IntArray
    score: FloatArray
    cosine: FloatArray | None = None
    bm25: FloatArray | None = None
    confidence: FloatArray | None = None

    def parts(self, row: int) -> dict[str, float]:
        """The scores of one passage that were put together, by name."""
        given = {"dense": self.cosine, "lexical": self.bm25}
        return {name: float(values[row]) for name, values in given.items() if values is not None}


def score_passages(
    snapshot: Snapshot, ids: IntArray, lengths: IntArray, *, vector: FloatArray | None, text: str | None
) -> PassageScores:
    """Score passages by a vector `[d]`, by the words of a text, or by both.

    Args:
        snapshot: The version of the index.
        ids: Numbers of the passages, `[n]`, ascending; neighbors only count if they are among them.
        lengths: Their lengths in characters, `[n]`.
        vector: The query's unit vector; None scores by words alone.
        text: The query's text; None scores by vectors alone.
    """
    cosine = snapshot.tables["passage"].gather(ids) @ vector if vector is not None else None
    if text is None:
        assert cosine is not None  # one of the two is given
        return PassageScores(ids, cosine, cosine=cosine)
    words = snapshot.score_words(text, ids, lengths)
    if vector is None or cosine is None:
        return PassageScores(ids, words.bm25, bm25=words.bm25)
    own = COSINE * (cosine - float(snapshot.mean_vector @ vector)) + words.coverage
    score = own + NEIGHBOR * better_neighbor(ids, own)
    confidence = 1 / (1 + np.exp(-(SLOPE * score + OFFSET)))
    return PassageScores(ids, score, cosine, words.bm25, confidence.astype(np.float32))


def better_neighbor(ids: IntArray, values: FloatArray) -> FloatArray:
    """The better value of the two passages beside each one in its document, `[n]`; 0 where there is none."""
    best = np.zeros_like(values)
    if len(ids) > 1:
        beside = (np.diff(ids) == 1) & (ids[1:] >> PASSAGE_BITS == ids[:-1] >> PASSAGE_BITS)
        left = np.where(beside, values[:-1], -np.inf)
        right = np.where(beside, values[1:], -np.inf)
        nearest = np.maximum(np.append(right, -np.inf), np.insert(left, 0, -np.inf))
        best = np.where(np.isneginf(nearest), 0, nearest).astype(values.dtype)
    return best


def best_first(scores: FloatArray, ids: Sequence[int] | IntArray) -> list[int]:
    """Rows by score, best first; ties by the lower number."""
    return np.lexsort((np.asarray(ids), -scores)).tolist()
