"""BM25 over the columns `terms` of documents and passages, each a JSON object of terms and how often they occur."""

from __future__ import annotations

import hashlib
from typing import TYPE_CHECKING, Any

import numpy as np

from aveyb_retrieval.indexes.engines.words import K1, B, WordStatistics

if TYPE_CHECKING:
    from aveyb_retrieval.indexes.engines.base import BoolArray
    from aveyb_retrieval.indexes.engines.words import TermCounter
    from aveyb_retrieval.indexes.types import IntArray, Kind


class WordSearch:
    """Finds words in the tables of one schema, over a connection that is in a transaction."""

    def __init__(self, connection: Any, schema: str, terms: TermCounter) -> None:
        self._db = connection
        self._schema = schema
        self._terms = terms
        self._known: dict[str, list[list[str]]] = {}

    def statistics(self, kind: Kind, text: str, rows: int, length: int) -> WordStatistics:
        """Count the documents or passages that hold each word of a text, of `rows` with `length` terms in all."""
        words = self._alternatives(text)
        single = [terms[0] for terms in words if len(terms) == 1]
        found = dict(
            self._db.execute(
                f"SELECT term, {kind}s FROM {self._schema}.terms WHERE key = ANY(%s)",
                ([hashlib.sha256(term.encode()).digest() for term in single],),
            ).fetchall()
        )
        holding = [found.get(terms[0], 0) if len(terms) == 1 else self._count_any(kind, terms) for terms in words]
        return WordStatistics(rows, length, np.array(holding, dtype=np.int64))

    def best(
        self, kind: Kind, text: str, k: int, statistics: WordStatistics, among: str, parameters: tuple[Any, ...]
    ) -> list[tuple[int, float]]:
        """The `k` best rows by BM25, of those that satisfy `among`, SQL with its parameters: (number, score)."""
        words = self._alternatives(text)
        every = list(dict.fromkeys(term for terms in words for term in terms))
        if not every:
            return []
        count = "coalesce((held ->> %s::text)::float8, 0)"
        columns, given = [], list[Any]()
        for number, terms in enumerate(words):
            columns.append(f"{' + '.join([count] * len(terms)) or '0'} AS f{number}")
            given += terms
        parts = [f"%s::float8 * f{number} * {K1 + 1} / (f{number} + length_norm)" for number in range(len(words))]
        sql = (
            f"SELECT r.number, {' + '.join(parts)} AS score FROM {self._schema}.{kind}s AS r "
            # a long column is unpacked at every use of it, but what an expression gives only once
            "CROSS JOIN LATERAL (SELECT r.terms || '{}'::jsonb AS held OFFSET 0) AS unpacked "
            f"CROSS JOIN LATERAL (SELECT {K1} * ({1 - B} + {B} * r.n_terms / %s::float8) AS length_norm, "
            f"{', '.join(columns)}) AS f WHERE r.terms ?| %s::text[] {among} ORDER BY score DESC, r.number LIMIT %s"
        )
        rows = self._db.execute(sql, (*statistics.weights(), statistics.mean_length, *given, every, *parameters, k))
        return [(number, float(score)) for number, score in rows]

    def held(self, text: str, passages: IntArray) -> BoolArray:
        """Which of some passages `[n]` hold each word of a text: `[t, n]`."""
        words = self._alternatives(text)
        held = np.zeros((len(words), len(passages)), dtype=bool)
        if not words or not len(passages):
            return held
        columns = ", ".join("terms ?| %s::text[]" for _ in words)
        rows = self._db.execute(
            f"SELECT number, {columns} FROM {self._schema}.passages WHERE number = ANY(%s)",
            (*words, passages.tolist()),
        ).fetchall()
        columns_of = {number: column for column, number in enumerate(passages.tolist())}
        for number, *found in rows:
            held[:, columns_of[number]] = found
        return held

    def _alternatives(self, text: str) -> list[list[str]]:
        """The terms that each word of a text stands for: one, but for a prefix."""
        if text not in self._known:
            self._known[text] = [
                self._beginning_with(word.term) if word.prefix else [word.term] for word in self._terms.query(text)
            ]
        return self._known[text]

    def _beginning_with(self, character: str) -> list[str]:
        rows = self._db.execute(
            f'SELECT term FROM {self._schema}.terms WHERE left(term, 1) COLLATE "C" = %s AND documents + passages > 0 '
            "ORDER BY term",
            (character,),
        )
        return [term for (term,) in rows]

    def _count_any(self, kind: Kind, terms: list[str]) -> int:
        (count,) = self._db.execute(
            f"SELECT count(*) FROM {self._schema}.{kind}s WHERE terms ?| %s::text[]",
            (terms,),
        ).fetchone()
        return int(count)
