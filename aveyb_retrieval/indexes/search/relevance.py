"""How well passages answer a query: vectors and words together, on a scale that is the same for every query.

    r(p) = COSINE * (cos(p) - background) + coverage(p)      background: the mean cosine of all documents with the query
    s(p) = r(p) + NEIGHBOR * max(r(p - 1), r(p + 1))         neighbors in the same document
    confidence(p) = 1 / (1 + exp(-(SLOPE * s(p) + OFFSET)))

    with rerank="maxsim":  s(p) + MAXSIM * maxsim(p)    maxsim: the mean over the query's tokens of the highest cosine

    best(d) = max over p in d of  2 * (weight * COSINE * (cos(p) - background) + (1 - weight) * coverage(p))

`coverage` is the share of the query's words, weighed by their inverse frequency, that the passage holds. Neither part
is divided by the best one of the query, so that equal numbers mean the same for every query.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING

import numpy as np

from aveyb_retrieval.indexes.store.numbering import PASSAGE_BITS

if TYPE_CHECKING:
    from aveyb_retrieval.indexes.search.word_scores import WordScores
    from aveyb_retrieval.indexes.types import FloatArray, IntArray

COSINE = 1.5
NEIGHBOR = 0.3
MAXSIM = 1.5
WEIGHTS = {"cosine": COSINE, "neighbor": NEIGHBOR, "maxsim": MAXSIM}
SLOPE, OFFSET = 1.85, -2.95  # fitted by benchmarks/cpu/confidence.py


@dataclass(frozen=True)
class PassageScores:
    """Passages and their scores for one query, all `[n]`, ascending by number; None where a part was not computed.

    `score` orders them, and `shown` is what hits show: its calibrated form, the confidence, of a hybrid search, which
    orders them alike, else the same. `near` is the part of the vectors in r(p).
    """

    ids: IntArray
    score: FloatArray
    shown: FloatArray
    cosine: FloatArray | None = None
    words: WordScores | None = None
    near: FloatArray | None = None

    def best_rows(self, count: int) -> dict[int, IntArray]:
        """The rows of the `count` best passages of each document, best first, by its number; ties by the lower one."""
        docs = self.ids >> PASSAGE_BITS
        order = np.lexsort((self.ids, -self.score, docs))
        found = zip(*np.unique(docs, return_index=True, return_counts=True), strict=True)
        return {int(doc): order[first : first + min(count, size)] for doc, first, size in found}

    def best(self, weight: float) -> dict[int, float]:
        """The score of each document's best passage, by its number, with `weight` (0 to 1) for the vectors."""
        assert self.near is not None  # of a hybrid score it is
        assert self.words is not None
        return best_by_document(self.ids, _together(self.near, self.words, weight))

    def parts(self, rows: IntArray) -> list[dict[str, float]]:
        """The scores of some passages, `[m]`, that were put together, by name."""
        found = {"dense": self.cosine, "lexical": None if self.words is None else self.words.bm25}
        parts = {name: values[rows].tolist() for name, values in found.items() if values is not None}
        return [dict(zip(parts, values, strict=True)) for values in zip(*parts.values(), strict=True)]


def score_hybrid(ids: IntArray, cosine: FloatArray, words: WordScores, background: float) -> PassageScores:
    """Score passages, numbers `[n]` ascending, by their cosines `[n]` with a query and by its words.

    Neighbors only count if they are among the passages.
    """
    near = COSINE * (cosine - background)
    own = _together(near, words, 0.5)
    score = own + NEIGHBOR * better_neighbor(ids, own)
    confidence = (1 / (1 + np.exp(-(SLOPE * score + OFFSET)))).astype(np.float32)
    return PassageScores(ids, score, confidence, cosine, words, near)


def best_by_document(ids: IntArray, values: FloatArray) -> dict[int, float]:
    """The highest value `[n]` of the passages of each document, by its number; passages `[n]`, ascending."""
    docs, first = np.unique(ids >> PASSAGE_BITS, return_index=True)
    return dict(zip(docs.tolist(), np.maximum.reduceat(values, first).tolist() if len(ids) else (), strict=True))


def with_maxsim(confidence: FloatArray, maxsim: FloatArray) -> FloatArray:
    """Add late interaction `[n]` to the hybrid scores s of passages, which come as their confidence `[n]`."""
    clipped = np.clip(confidence, 1e-6, 1 - 1e-6)
    return (np.log(clipped / (1 - clipped)) - OFFSET) / SLOPE + MAXSIM * maxsim


def better_neighbor(ids: IntArray, values: FloatArray) -> FloatArray:
    """The better value of the two passages beside each one in its document, `[n]`; 0 where there is none."""
    beside = (np.diff(ids) == 1) & (ids[1:] >> PASSAGE_BITS == ids[:-1] >> PASSAGE_BITS)
    best = np.full(len(values), -np.inf, dtype=values.dtype)
    best[:-1][beside] = values[1:][beside]
    best[1:][beside] = np.maximum(best[1:], values[:-1])[beside]
    best[np.isneginf(best)] = 0
    return best


def _together(near: FloatArray, words: WordScores, weight: float) -> FloatArray:
    """What passages `[n]` score without their neighbors: r(p), with another share for the vectors than a half."""
    return 2 * (weight * near + (1 - weight) * words.coverage)
