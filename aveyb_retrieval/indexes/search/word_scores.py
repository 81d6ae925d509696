"""Which words of a query passages hold, and what that is worth: coverage and BM25."""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING

import numpy as np

from aveyb_retrieval.indexes.store.words import K1, B

if TYPE_CHECKING:
    from aveyb_retrieval.indexes.types import FloatArray, IntArray


@dataclass(frozen=True)
class WordScores:
    """What passages hold of a query's words.

    Attributes:
        found: Summed weights of the words that each passage holds, `[n]`.
        total: Summed weights of all words of the query.
        mean_length: Of all passages of the index, in characters.
    """

    found: FloatArray
    total: float
    mean_length: float

    @property
    def coverage(self) -> FloatArray:
        """The share of the query's words, by weight, that each passage holds, `[n]`, 0 to 1."""
        return self.found / self.total if self.total else self.found

    def bm25(self, lengths: IntArray) -> FloatArray:
        """BM25 of the passages `[n]`, of lengths `[n]` in characters.

        A word counts once in a passage however often it is there: passages are short and of one size, and so they
        need not be counted.
        """
        penalty = K1 * (1 - B + B * lengths / max(self.mean_length, 1.0))
        return (self.found * (K1 + 1) / (1 + penalty)).astype(np.float32)


def inverse_frequency(holding: IntArray, count: int) -> FloatArray:
    """Weigh words `[t]`, each in `holding` of `count` passages, as BM25 does (in Lucene's form, never below 0)."""
    return np.log(1 + (count - holding + 0.5) / (holding + 0.5)).astype(np.float32)
