"""The scores of passages; docs/ranking.md explains the formulas.

With w the weight of the vectors (0.5 but where options say otherwise), known the share of a passage
that the model knows, and background the mean cosine of all vectors with the question:

    r(p) = 2 (w COSINE_WEIGHT known (cosine - background)
              + (1 - w) coverage of the question's words)
    s(p) = r(p) at w = 0.5, + NEIGHBOR_WEIGHT times that of the better passage beside p

No part of r(p) is divided by the best one of the question, so that equal numbers mean the same for
every question.
"""

from __future__ import annotations

from dataclasses import dataclass, replace
from typing import TYPE_CHECKING

import numpy as np

from aveyb_retrieval.indexes.store.words import K1, B
from aveyb_retrieval.indexes.types import PASSAGE_BITS, ascending, starts_of_equals

if TYPE_CHECKING:
    from collections.abc import Sequence

    from aveyb_retrieval.indexes.engine import EngineInfo, EngineView
    from aveyb_retrieval.indexes.store.tables import StoredPassages
    from aveyb_retrieval.indexes.types import FloatArray, IntArray

# weights of the cosine and of the better neighbor in s(p), where the words' coverage has 1: fitted
# by benchmarks/cpu/fit.py
COSINE_WEIGHT = 2.0
NEIGHBOR_WEIGHT = 0.3
SHOWN_WEIGHT = 0.5  # of vectors, whatever `weight` a search has: confidence is calibrated with it


@dataclass(frozen=True, eq=False)
class WordScores:
    """How much of a question's words passages hold.

    Attributes:
        held: The summed weights of the words that each passage holds, `[n]`.
        total: The summed weights of all words.
        lengths: Characters of each passage, `[n]`.
        mean_length: The mean of all passages of the index, in characters.
    """

    held: FloatArray
    total: float
    lengths: IntArray
    mean_length: float

    @classmethod
    def of(
        cls,
        passages: StoredPassages,
        weights: FloatArray,
        mean_length: float,
        shares: FloatArray | float = 1.0,
    ) -> WordScores:
        """Weigh the words that each of some passages `[n]` holds, by weights `[t]`, and by the
        share `[n]` that each passage counts.
        """
        lengths = passages.spans[:, 1] - passages.spans[:, 0]
        held = passages.held.astype(np.float32) @ weights * shares
        return cls(held, float(weights.sum()), lengths, mean_length)

    def take(self, rows: IntArray) -> WordScores:
        return replace(self, held=self.held[rows], lengths=self.lengths[rows])

    @property
    def coverage(self) -> FloatArray:
        """The share of the question's words, by weight, that each passage holds, `[n]`, 0 to 1."""
        return self.held / (self.total or 1.0)

    @property
    def bm25(self) -> FloatArray:
        """BM25 of the passages, `[n]`, where a word counts once: they are short and of one size."""
        penalty = K1 * (1 - B + B * self.lengths / max(self.mean_length, 1.0))
        return (self.held * (K1 + 1) / (1 + penalty)).astype(np.float32)


def word_weights(view: EngineView, words: Sequence[str]) -> FloatArray:
    """Weigh words `[t]` by how few passages (documents, where there are none) hold them, as BM25
    does: in Lucene's form, never below 0.
    """
    return weigh(view.info, view.holding(words))


def weigh(info: EngineInfo, holding: Sequence[int]) -> FloatArray:
    """Weigh words `[t]` by how many passages (documents, where there are none) hold each."""
    total = info.passages if "passage" in info.kinds else info.documents  # as `holding` counts
    held = np.minimum(np.array(holding, dtype=np.int64), total)
    return np.log(1 + (total - held + 0.5) / (held + 0.5)).astype(np.float32)


@dataclass(frozen=True, eq=False)
class PassageScores:
    """Passages and their scores for one question, all `[n]`, ascending by number.

    Attributes:
        ids: Numbers of the passages.
        score: What orders them.
        shown_score: What hits show: the confidence if it is known, else the score.
        cosine: Their cosines with the question; None in a search by words.
        words: What they hold of its words; None in a search by vectors.
        near: The vectors' part of r(p); None unless the score is of both.
    """

    ids: IntArray
    score: FloatArray
    shown_score: FloatArray
    cosine: FloatArray | None = None
    words: WordScores | None = None
    near: FloatArray | None = None

    def take(self, rows: IntArray) -> PassageScores:
        """Some of the passages, in the order of `rows`."""
        return PassageScores(
            self.ids[rows],
            self.score[rows],
            self.shown_score[rows],
            None if self.cosine is None else self.cosine[rows],
            None if self.words is None else self.words.take(rows),
            None if self.near is None else self.near[rows],
        )

    def of_both(self, weight: float) -> FloatArray:
        """r(p) `[n]` with `weight` (0 to 1) for the vectors; neighbors do not count."""
        assert self.near is not None  # of a hybrid score it is
        assert self.words is not None
        return _together(self.near, self.words, weight)

    def parts(self) -> dict[str, FloatArray]:
        """The scores that were put together, `[n]`, by name."""
        parts = {} if self.cosine is None else {"dense": self.cosine}
        return parts if self.words is None else {**parts, "lexical": self.words.bm25}


def score_hybrid(
    ids: IntArray,
    cosine: FloatArray,
    words: WordScores,
    background: float,
    known: FloatArray | float = 1.0,
) -> PassageScores:
    """Score passages, numbers `[n]` ascending, by cosines `[n]`, words, and those neighbors that
    are among them. `known` `[n]` says how well the model knows each and the question, 0 to 1.
    """
    near = COSINE_WEIGHT * known * (cosine - background)
    own = _together(near, words, SHOWN_WEIGHT)
    score = own + NEIGHBOR_WEIGHT * better_neighbor(ids, own)
    return PassageScores(ids, score, score, cosine, words, near)


def better_neighbor(ids: IntArray, values: FloatArray) -> FloatArray:
    """The better value of the two passages next to each one in its document, `[n]`; 0 where there
    is none.
    """
    adjacent = (np.diff(ids) == 1) & (ids[1:] >> PASSAGE_BITS == ids[:-1] >> PASSAGE_BITS)
    best = np.full(len(values), -np.inf, dtype=values.dtype)
    best[:-1][adjacent] = values[1:][adjacent]
    best[1:][adjacent] = np.maximum(best[1:], values[:-1])[adjacent]
    best[np.isneginf(best)] = 0
    return best


def with_neighbors(ids: IntArray) -> IntArray:
    """Numbers of passages, ascending, and of those next to them, whether these exist or not."""
    return ascending(np.concatenate([ids - 1, ids, ids + 1]))


def first_of_each(numbers: IntArray, most: int) -> IntArray:
    """The first `most` passages of each document, of numbers of passages that come best first:
    grouped by document, best first within each.
    """
    by_document = numbers[np.argsort(numbers >> PASSAGE_BITS, kind="stable")]
    docs = by_document >> PASSAGE_BITS
    is_first = np.ones(len(numbers), np.bool_)
    np.not_equal(docs[most:], docs[:-most], out=is_first[most:])
    return by_document[is_first]


def best_by_document(ids: IntArray, values: FloatArray) -> tuple[IntArray, FloatArray]:
    """The documents `[m]` of passages `[n]`, ascending, and the highest value of each, `[m]`."""
    docs = ids >> PASSAGE_BITS
    first = starts_of_equals(docs)
    return docs[first], np.maximum.reduceat(values, first) if len(ids) else values[:0]


def _together(near: FloatArray, words: WordScores, weight: float) -> FloatArray:
    """What passages `[n]` score without their neighbors: r(p), with another share for the vectors
    than a half.
    """
    return 2 * (weight * near + (1 - weight) * words.coverage)
