"""Which words of a query passages hold, and what that is worth: coverage and BM25."""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING

import numpy as np

if TYPE_CHECKING:
    from collections.abc import Sequence

    from aveyb_retrieval.indexes.engines.base import BoolArray
    from aveyb_retrieval.indexes.store.store import Store
    from aveyb_retrieval.indexes.types import FloatArray, IntArray

K1, B = 1.2, 0.75  # those of FTS5's bm25()
FREQUENT = 50_000  # passages: reading their numbers takes about ten milliseconds
KEPT = 4_000_000  # numbers of passages, 32 MiB
WORD = 50  # numbers that a remembered word takes the room of, beside its letters, however few passages hold it


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

        A word counts once in a passage however often it is there: passages are short and of one size, and so the rows
        of the full-text index need not be read again.
        """
        penalty = K1 * (1 - B + B * lengths / max(self.mean_length, 1.0))
        return (self.found * (K1 + 1) / (1 + penalty)).astype(np.float32)


def inverse_frequency(holding: IntArray, count: int) -> FloatArray:
    """Weigh words `[t]`, each in `holding` of `count` passages, as BM25 does (in Lucene's form, never below 0)."""
    return np.log(1 + (count - holding + 0.5) / (holding + 0.5)).astype(np.float32)


class Postings:
    """Which passages hold which words: read from a store when first asked for, and remembered. A version never changes.

    Words in more than `FREQUENT` passages are only counted, and looked up among the passages in question each time.
    """

    def __init__(self) -> None:
        self._known: dict[str, tuple[int, IntArray | None]] = {}
        self._kept = 0

    def look_up(self, store: Store, terms: Sequence[str], ids: IntArray) -> tuple[IntArray, BoolArray]:
        """How many passages hold each term, `[t]`, and which of some passages `[n]`, ascending, do: `[t, n]`."""
        counts = np.zeros(len(terms), dtype=np.int64)
        held = np.zeros((len(terms), len(ids)), dtype=bool)
        for row, term in enumerate(terms):
            counts[row], holding = self._holding(store, term)
            if holding is None:
                holding = store.words.passages_between(term, _ranges(ids))
            if len(holding):
                places = np.searchsorted(holding, ids)
                held[row] = holding[np.minimum(places, len(holding) - 1)] == ids
        return counts, held

    def _holding(self, store: Store, term: str) -> tuple[int, IntArray | None]:
        known = self._known.get(term)
        if known is None:
            passages = store.words.passages_holding(term, FREQUENT + 1)
            known = (len(passages), passages) if len(passages) <= FREQUENT else (store.words.count_holding(term), None)
            if self._kept > KEPT:
                self._known, self._kept = {}, 0
            self._known[term] = known
            self._kept += WORD + len(term) + (0 if known[1] is None else len(passages))
        return known


def _ranges(ids: IntArray) -> list[tuple[int, int]]:
    """Runs of successive numbers, `[first, last]`, in ascending numbers `[n]`."""
    return [(int(run[0]), int(run[-1])) for run in np.split(ids, np.flatnonzero(np.diff(ids) != 1) + 1) if len(run)]


def count_words(words: list[str], text: str, spans: IntArray) -> FloatArray:
    """Score passages `[n, 2]` of a text by the query's words in them, each by its length: long words say more.

    For indexes of format 1, which do not have their passages' words. A word counts without its last three letters,
    which is roughly what the full-text index's stemmer takes away.
    """
    stems = [word[: max(3, len(word) - 3)] for word in words]
    counts = [sum(len(s) for s in stems if s in text[start:stop].lower()) for start, stop in spans.tolist()]
    return np.array(counts, dtype=np.float32)
