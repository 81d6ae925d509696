"""The words of documents and passages in a store: two FTS5 tables, how they are filled, and how words are found.

Both tables hold no text of their own: it is in `texts`, and what is deleted is told again as it was inserted.
"""

from __future__ import annotations

import json
from functools import cached_property
from typing import TYPE_CHECKING

import numpy as np

from aveyb_retrieval.indexes.store import store_check
from aveyb_retrieval.indexes.store.filters import Condition
from aveyb_retrieval.indexes.store.language import ENGLISH, OLD_ENGLISH, Language, language
from aveyb_retrieval.indexes.store.numbering import MAX_PASSAGES, PASSAGE_BITS, numbers

if TYPE_CHECKING:
    import sqlite3
    from collections.abc import Sequence
    from pathlib import Path

    from aveyb_retrieval.indexes.types import IntArray

_TABLES = {"fulltext": "title, text", "passage_words": "words"}


class FullText:
    """The full-text indexes of one store."""

    def __init__(self, connection: sqlite3.Connection, path: Path) -> None:
        self.db = connection
        self.path = path

    @cached_property
    def has_passages(self) -> bool:
        """Whether passages can be found by their words: not so in a store of format 1."""
        return self.db.execute("SELECT 1 FROM sqlite_master WHERE name = 'passage_words'").fetchone() is not None

    @cached_property
    def language(self) -> Language:
        """The rules by which words are found; settled before the first document."""
        if not self.has_passages:
            return OLD_ENGLISH
        name = store_check.setting(self.db, "language", self.path)
        return language(ENGLISH if name is None else store_check.text(name, self.path))

    # --- writing -----------------------------------------------------------------------------------------------------

    def create(self, name: str) -> None:
        """Make both tables empty, in a language, in place of any that are there."""
        rules = language(name)
        for table, columns in _TABLES.items():
            self.db.execute(f"DROP TABLE IF EXISTS {table}")
            self.db.execute(
                f"CREATE VIRTUAL TABLE {table} USING fts5({columns}, content='', tokenize='{rules.tokenize}')"
            )
        self.__dict__.update(has_passages=True, language=rules)

    def fill(self) -> None:
        """Put the words of all documents into tables that are empty."""
        for doc, title, text in self.db.execute("SELECT doc, title, text FROM texts ORDER BY doc"):
            self.add(doc, title, text)

    def add(self, doc: int, title: str, text: str, *, delete: bool = False) -> None:
        """Put the words of a document and of its stored passages into the tables, or take them out again."""
        command = ("'delete', ", "fulltext, ") if delete else ("", "")
        prepare = self.language.index_text
        self.db.execute(
            f"INSERT INTO fulltext({command[1]}rowid, title, text) VALUES ({command[0]}?, ?, ?)",  # noqa: S608
            (doc, prepare(title), prepare(text)),
        )
        first = doc << PASSAGE_BITS
        passages = self.db.execute(
            "SELECT passage, start, stop, heading FROM passages WHERE passage >= ? AND passage < ?",
            (first, first + MAX_PASSAGES),
        ).fetchall()
        column = "passage_words, " if delete else ""
        self.db.executemany(
            f"INSERT INTO passage_words({column}rowid, words) VALUES ({command[0]}?, ?)",  # noqa: S608
            ((passage, prepare(f"{heading}\n{text[a:b]}")) for passage, a, b, heading in passages),
        )

    def optimize(self) -> None:
        """Merge each table into one segment, which searches read fastest."""
        for table in _TABLES:
            self.db.execute(f"INSERT INTO {table}({table}) VALUES ('optimize')")  # noqa: S608  # of the names above

    # --- searching ---------------------------------------------------------------------------------------------------

    def match(self, expression: str, limit: int, condition: Condition | None = None) -> list[tuple[int, float]]:
        """Best documents for an FTS5 expression: (number, BM25 score, higher is better), best first."""
        sql, parameters = condition or Condition("1", ())
        where = f"AND rowid IN (SELECT doc FROM documents WHERE {sql})" if condition else ""  # noqa: S608  # values bound
        rows = self.db.execute(
            f"SELECT rowid, -bm25(fulltext) AS score FROM fulltext WHERE fulltext MATCH ? {where} "  # noqa: S608
            "ORDER BY score DESC, rowid LIMIT ?",
            (expression, *parameters, limit),
        )
        return [(doc, score) for doc, score in rows]

    def match_passages(
        self, expression: str, limit: int, condition: Condition | None = None
    ) -> list[tuple[int, float]]:
        """Best passages for an FTS5 expression: (number, BM25 score, higher is better), best first."""
        sql, parameters = condition or Condition("1", ())
        where = f"AND rowid >> {PASSAGE_BITS} IN (SELECT doc FROM documents WHERE {sql})" if condition else ""  # noqa: S608
        rows = self.db.execute(
            f"SELECT rowid, -bm25(passage_words) AS score FROM passage_words WHERE passage_words MATCH ? {where} "  # noqa: S608
            "ORDER BY score DESC, rowid LIMIT ?",
            (expression, *parameters, limit),
        )
        return [(passage, score) for passage, score in rows]

    def passages_holding(self, term: str, limit: int) -> IntArray:
        """Numbers of the passages that hold an FTS5 term, ascending; `limit` at most."""
        sql = "SELECT rowid FROM passage_words WHERE passage_words MATCH ? LIMIT ?"
        return np.sort(numbers(self.db.execute(sql, (term, limit))))

    def count_holding(self, term: str) -> int:
        """How many passages hold an FTS5 term."""
        sql = "SELECT count(*) FROM passage_words WHERE passage_words MATCH ?"
        return int(self.db.execute(sql, (term,)).fetchone()[0])

    def passages_between(self, term: str, ranges: Sequence[tuple[int, int]]) -> IntArray:
        """Numbers of the passages in some ascending ranges `[first, last]` that hold an FTS5 term, ascending."""
        rows = self.db.execute(
            "SELECT p.rowid FROM json_each(?) r CROSS JOIN passage_words p WHERE p.passage_words MATCH ? "
            "AND p.rowid BETWEEN json_extract(r.value, '$[0]') AND json_extract(r.value, '$[1]')",
            (json.dumps(list(ranges)), term),
        )
        return np.sort(numbers(rows))
