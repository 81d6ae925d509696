"""Which words of a query passages hold, and what that is worth: coverage and BM25."""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING

import numpy as np

from aveyb_retrieval.indexes.store.words import K1, B

if TYPE_CHECKING:
    from collections.abc import Sequence

    from aveyb_retrieval.indexes.engines.base import EngineView
    from aveyb_retrieval.indexes.store.tables import StoredPassage
    from aveyb_retrieval.indexes.types import FloatArray, IntArray


@dataclass(frozen=True)
class WordScores:
    """What passages hold of a query's words.

    Attributes:
        found: Summed weights of the words that each passage holds, `[n]`.
        total: Summed weights of all words of the query.
        lengths: Of the passages, in characters, `[n]`.
        mean_length: Of all passages of the index, in characters.
    """

    found: FloatArray
    total: float
    lengths: IntArray
    mean_length: float

    @classmethod
    def of(cls, view: EngineView, words: Sequence[str], passages: Sequence[StoredPassage]) -> WordScores:
        """Weigh the words that each of some passages `[n]` holds."""
        weights = word_weights(view, words)
        held = np.array([passage.held for passage in passages], np.float32).reshape(len(passages), len(words))
        spans = np.array([passage.span for passage in passages], np.int64).reshape(len(passages), 2)
        return cls(held @ weights, float(weights.sum()), spans[:, 1] - spans[:, 0], view.mean_passage_length)

    @property
    def coverage(self) -> FloatArray:
        """The share of the query's words, by weight, that each passage holds, `[n]`, 0 to 1."""
        return self.found / self.total if self.total else self.found

    @property
    def bm25(self) -> FloatArray:
        """BM25 of the passages, `[n]`.

        A word counts once in a passage however often it is there: passages are short and of one size, and so they
        need not be counted.
        """
        penalty = K1 * (1 - B + B * self.lengths / max(self.mean_length, 1.0))
        return (self.found * (K1 + 1) / (1 + penalty)).astype(np.float32)


def word_weights(view: EngineView, words: Sequence[str]) -> FloatArray:
    """Weigh words `[t]` by how few passages hold them, as BM25 does (in Lucene's form, never below 0)."""
    holding = np.array(view.holding(words), dtype=np.int64)
    return np.log(1 + (view.info.passages - holding + 0.5) / (holding + 0.5)).astype(np.float32)
