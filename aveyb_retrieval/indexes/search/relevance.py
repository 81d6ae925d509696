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

from dataclasses import dataclass, replace
from typing import TYPE_CHECKING

import numpy as np

from aveyb_retrieval.indexes.search.candidates import background
from aveyb_retrieval.indexes.search.word_scores import WordScores, inverse_frequency
from aveyb_retrieval.indexes.store.numbering import PASSAGE_BITS

if TYPE_CHECKING:
    from collections.abc import Sequence

    from aveyb_retrieval.indexes.engines.base import EngineView
    from aveyb_retrieval.indexes.types import FloatArray, IntArray

COSINE = 1.5
NEIGHBOR = 0.3
MAXSIM = 1.5
WEIGHTS = {"cosine": COSINE, "neighbor": NEIGHBOR, "maxsim": MAXSIM}
SLOPE, OFFSET = 1.71, -2.49  # fitted by benchmarks/cpu/confidence.py


@dataclass(frozen=True)
class PassageScores:
    """Passages and their scores for one query, all `[n]`, ascending by number; None where a part was not computed.

    `score` orders them; `confidence` is the calibrated form of a hybrid one and orders them alike. `near` is the part
    of the vectors in r(p).
    """

    ids: IntArray
    score: FloatArray
    cosine: FloatArray | None = None
    words: WordScores | None = None
    near: FloatArray | None = None
    confidence: FloatArray | None = None

    @property
    def shown(self) -> FloatArray:
        """The scores that hits show, `[n]`: the confidence where there is one, else the cosine or BM25 itself."""
        return self.score if self.confidence is None else self.confidence

    def of_documents(self, docs: Sequence[int]) -> PassageScores:
        """Those of some documents, all of whose passages are scored."""
        rows = np.isin(self.ids >> PASSAGE_BITS, np.array(docs, dtype=np.int64))
        words = None if self.words is None else replace(self.words, found=self.words.found[rows])
        near, confidence = (None if part is None else part[rows] for part in (self.near, self.confidence))
        cosine = None if self.cosine is None else self.cosine[rows]
        return PassageScores(self.ids[rows], self.score[rows], cosine, words, near, confidence)

    def best(self, weight: float) -> dict[int, float]:
        """The score of each document's best passage, by its number, with `weight` (0 to 1) for the vectors."""
        assert self.near is not None  # of a hybrid score it is
        assert self.words is not None
        if not len(self.ids):
            return {}
        return best_by_document(self.ids, _together(self.near, self.words, weight))

    def parts(self, rows: IntArray, lengths: IntArray) -> list[dict[str, float]]:
        """The scores of some passages, `[m]` of `lengths` in characters, that were put together, by name."""
        parts: dict[str, FloatArray] = {}
        if self.cosine is not None:
            parts["dense"] = self.cosine[rows]
        if self.words is not None:
            parts["lexical"] = replace(self.words, found=self.words.found[rows]).bm25(lengths)
        if not parts:
            return [{} for _ in rows]
        return [dict(zip(parts, values, strict=True)) for values in np.stack(list(parts.values()), axis=1).tolist()]


def score_hybrid(view: EngineView, ids: IntArray, vector: FloatArray, text: str) -> PassageScores:
    """Score passages, numbers `[n]` ascending, by a query's unit vector `[d]` and its words.

    Neighbors only count if they are among the passages.
    """
    cosine = view.vectors("passage", ids) @ vector
    words = _score_words(view, ids, text)
    near = COSINE * (cosine - background(view, vector))
    own = _together(near, words, 0.5)
    score = own + NEIGHBOR * better_neighbor(ids, own)
    confidence = 1 / (1 + np.exp(-(SLOPE * score + OFFSET)))
    return PassageScores(ids, score, cosine, words, near, confidence.astype(np.float32))


def best_by_document(ids: IntArray, values: FloatArray) -> dict[int, float]:
    """The highest value `[n]` of the passages of each document, by its number; passages `[n]`, n > 0, ascending."""
    docs, first = np.unique(ids >> PASSAGE_BITS, return_index=True)
    return dict(zip(docs.tolist(), np.maximum.reduceat(values, first).tolist(), strict=True))


def score_by_vector(view: EngineView, ids: IntArray, vector: FloatArray) -> PassageScores:
    """Score passages, numbers `[n]` ascending, by their cosine with a unit vector `[d]`."""
    cosine = view.vectors("passage", ids) @ vector
    return PassageScores(ids, cosine, cosine=cosine)


def score_by_words(view: EngineView, ids: IntArray, lengths: IntArray, text: str) -> PassageScores:
    """Score passages, numbers `[n]` ascending with lengths `[n]` in characters, by BM25."""
    words = _score_words(view, ids, text)
    return PassageScores(ids, words.bm25(lengths), words=words)


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


def _score_words(view: EngineView, ids: IntArray, text: str) -> WordScores:
    """Weigh the words of a query that each passage holds, passages `[n]` ascending by number."""
    counts, held = view.occurrences(text, ids)
    weights = inverse_frequency(counts, view.info.passages)
    return WordScores(weights @ held, float(weights.sum()), view.mean_passage_length)
