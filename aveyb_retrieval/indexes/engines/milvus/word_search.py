"""BM25 over the postings of a collection, as of one generation."""

from __future__ import annotations

from typing import TYPE_CHECKING

import numpy as np

from aveyb_retrieval.indexes.engines.milvus.postings import Postings, join, keys_of, read_block, route_hash, term_key
from aveyb_retrieval.indexes.engines.milvus.rows import DOCUMENT_WORDS, PASSAGE_WORDS
from aveyb_retrieval.indexes.engines.words import K1, B, WordStatistics
from aveyb_retrieval.indexes.store.numbering import PASSAGE_BITS

if TYPE_CHECKING:
    from aveyb_retrieval.indexes.engines.base import BoolArray
    from aveyb_retrieval.indexes.engines.milvus.known import State
    from aveyb_retrieval.indexes.engines.milvus.rows import Table
    from aveyb_retrieval.indexes.engines.words import TermCounter
    from aveyb_retrieval.indexes.types import IntArray, Kind


class WordSearch:
    """Finds words in one generation of a collection."""

    def __init__(self, table: Table, state: State, removed: IntArray, terms: TermCounter) -> None:
        """Leave out the documents with the numbers `removed`, ascending."""
        self._table = table
        self._state = state
        self._removed = removed
        self._terms = terms
        self._known: dict[tuple[Kind, str], list[Postings]] = {}

    def statistics(self, kind: Kind, text: str) -> WordStatistics:
        """Count the documents or passages that hold each word of a text."""
        s = self._state
        rows, length = (s.documents, s.document_terms) if kind == "document" else (s.passages, s.passage_terms)
        holding = [len(word.numbers) for word in self._postings(kind, text)]
        return WordStatistics(rows, length, np.array(holding, dtype=np.int64))

    def best(
        self, kind: Kind, text: str, k: int, statistics: WordStatistics, among: IntArray | None
    ) -> list[tuple[int, float]]:
        """The `k` best rows by BM25, of the documents `among` (ascending; None for all): (number, score)."""
        words = self._postings(kind, text)
        numbers = np.unique(np.concatenate([word.numbers for word in words])) if words else np.empty(0, np.int64)
        scores = np.zeros(len(numbers))
        for word, weight in zip(words, statistics.weights(), strict=True):
            frequency = word.counts.astype(np.float64)
            norm = K1 * (1 - B + B * word.lengths / statistics.mean_length)
            scores[np.searchsorted(numbers, word.numbers)] += weight * frequency * (K1 + 1) / (frequency + norm)
        if among is not None:
            held = is_in(_documents(kind, numbers), among)
            numbers, scores = numbers[held], scores[held]
        order = np.lexsort((numbers, -scores))[:k]
        return list(zip(numbers[order].tolist(), scores[order].tolist(), strict=True))

    def held(self, text: str, passages: IntArray) -> BoolArray:
        """Which of some passages `[n]` hold each word of a text: `[t, n]`."""
        words = self._postings("passage", text)
        held = np.zeros((len(words), len(passages)), dtype=bool)
        for row, word in enumerate(words):
            held[row] = is_in(passages, word.numbers)
        return held

    def _postings(self, kind: Kind, text: str) -> list[Postings]:
        """Where each word of a text is, in ascending order of numbers."""
        if (kind, text) not in self._known:
            self._known[kind, text] = self._read(kind, text)
        return self._known[kind, text]

    def _read(self, kind: Kind, text: str) -> list[Postings]:
        words = self._terms.query(text)
        if not words:
            return []
        wanted = list(dict.fromkeys(term_key(word.term) for word in words if not word.prefix))
        firsts = list(dict.fromkeys(word.term[0] for word in words if word.prefix))
        keys = sorted({key for word in words for key in keys_of(route_hash(word.term))})
        rows = self._table.query(
            f"kind == {DOCUMENT_WORDS if kind == 'document' else PASSAGE_WORDS} and key in {keys} "
            f"and born <= {self._state.generation}",
            ["body"],
            "data",
            since=self._state.written,
        )
        parts: dict[str, list[Postings]] = {}
        for row in rows:
            for term, found in read_block(row["body"], wanted, firsts, self._table.server.name).items():
                parts.setdefault(term, []).append(found)
        there = {term: join(found) for term, found in parts.items()}
        return [
            self._merge(
                kind,
                [each for term, each in there.items() if term[0] == word.term[0]]
                if word.prefix
                else [there[key] for key in [term_key(word.term)] if key in there],
            )
            for word in words
        ]

    def _merge(self, kind: Kind, alternatives: list[Postings]) -> Postings:
        """Postings of a word from those of its terms, without removed documents."""
        found = join(alternatives)
        numbers, first, back = np.unique(found.numbers, return_index=True, return_inverse=True)
        counts = np.bincount(back, weights=found.counts, minlength=len(numbers)).astype(np.int64)
        live = ~is_in(_documents(kind, numbers), self._removed)
        return Postings(numbers[live], counts[live], found.lengths[first][live])


def is_in(values: IntArray, some: IntArray) -> BoolArray:
    """Which of some values `[n]` are in an ascending array."""
    if not len(some):
        return np.zeros(len(values), dtype=bool)
    places = np.minimum(np.searchsorted(some, values), len(some) - 1)
    found: BoolArray = some[places] == values
    return found


def _documents(kind: Kind, numbers: IntArray) -> IntArray:
    return numbers if kind == "document" else numbers >> PASSAGE_BITS
