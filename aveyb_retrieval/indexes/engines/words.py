"""Words as our own full-text index finds them, for engines that keep words in tables of their own.

SQLite's FTS5 splits and stems a text; here it does so in memory, so that a word has the same terms everywhere. BM25 is
FTS5's, with statistics of all documents (or passages), wherever they are:

    idf(t) = log((N - n(t) + 0.5) / (n(t) + 0.5)), at least 1e-6
    score = sum over t of idf(t) * f * (k1 + 1) / (f + k1 * (1 - b + b * length / mean length)),    k1 = 1.2, b = 0.75
"""

from __future__ import annotations

import math
import sqlite3
import threading
from dataclasses import dataclass
from typing import TYPE_CHECKING, NamedTuple

if TYPE_CHECKING:
    from collections.abc import Sequence

    from aveyb_retrieval.indexes.store.words import Language
    from aveyb_retrieval.indexes.types import IntArray

K1, B = 1.2, 0.75


class QueryWord(NamedTuple):
    """A word of a query: its term, and whether every term that begins with it is meant."""

    term: str
    prefix: bool


@dataclass(frozen=True)
class WordStatistics:
    """What BM25 has to know of all documents or passages: those of several servers are added up.

    Attributes:
        rows: How many there are.
        length: Terms of all of them together.
        holding: How many hold each word of the query, `[t]`.
    """

    rows: int
    length: int
    holding: IntArray

    def __add__(self, other: WordStatistics) -> WordStatistics:
        return WordStatistics(self.rows + other.rows, self.length + other.length, self.holding + other.holding)

    @property
    def mean_length(self) -> float:
        """The mean number of terms."""
        return self.length / self.rows if self.length else 1.0

    def weights(self) -> list[float]:
        """The inverse frequency of each word."""
        return [
            max(math.log((self.rows - n + 0.5) / (n + 0.5)), 1e-6) if n <= self.rows else 1e-6
            for n in self.holding.tolist()
        ]


class TermCounter:
    """Splits texts into terms by the rules of a language. Safe to use from many threads."""

    def __init__(self, language: Language) -> None:
        self.language = language
        self._lock = threading.Lock()
        self._db = sqlite3.connect(":memory:", check_same_thread=False, isolation_level=None)
        self._db.execute(f"CREATE VIRTUAL TABLE words USING fts5(text, content='', tokenize='{language.tokenize}')")
        self._db.execute("CREATE VIRTUAL TABLE terms USING fts5vocab(words, 'instance')")

    def count(self, texts: Sequence[str]) -> list[dict[str, int]]:
        """Count the terms of each text."""
        return self._count([self.language.index_text(text) for text in texts])

    def query(self, text: str) -> list[QueryWord]:
        """The words of a query; one that two words have in common counts twice, as in our own full-text index."""
        words = self.language.words(text)
        prefixes = [expression.endswith("*") for expression in self.language.terms(text)]
        found = self._count(words)
        return [QueryWord(term, prefix) for terms, prefix in zip(found, prefixes, strict=True) for term in terms]

    def _count(self, texts: Sequence[str]) -> list[dict[str, int]]:
        counts: list[dict[str, int]] = [{} for _ in texts]
        with self._lock:
            self._db.executemany("INSERT INTO words(rowid, text) VALUES (?, ?)", enumerate(texts))
            for row, term, count in self._db.execute("SELECT doc, term, count(*) FROM terms GROUP BY doc, term"):
                counts[row][term] = count
            self._db.execute("INSERT INTO words(words) VALUES ('delete-all')")
        return counts
