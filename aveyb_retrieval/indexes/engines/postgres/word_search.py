"""BM25 over the lists of words that a collection keeps in `document_postings` and `passage_postings`.

Lists are only ever added to: the rows of removed documents stay in them until the collection is published again, and
are left out of what is found.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

import numpy as np

from aveyb_retrieval.indexes.engines.words import Block, best_rows, word_key

if TYPE_CHECKING:
    from collections.abc import Sequence

    from aveyb_retrieval.indexes.engines.words import Statistics
    from aveyb_retrieval.indexes.types import BoolArray, IntArray, Kind

AT_ONCE = 20_000  # rows of lists that are read in one step, some 300 KB; more are read word by word, as far as needed


class WordSearch:
    """Finds words in the tables of one schema, over a connection that is in a transaction."""

    def __init__(self, connection: Any, schema: str) -> None:
        self._db = connection
        self._schema = schema

    def holding(self, kind: Kind, words: Sequence[str]) -> IntArray:
        """How many documents or passages hold each word, `[t]`."""
        keys = [word_key(word) for word in words]
        rows = self._db.execute(f"SELECT key, {kind}s FROM {self._schema}.terms WHERE key = ANY(%s)", (keys,))
        found = dict(rows.fetchall())
        return np.array([found.get(key, 0) for key in keys], dtype=np.int64)

    def best(
        self,
        kind: Kind,
        words: Sequence[str],
        k: int,
        statistics: Statistics,
        allowed: IntArray | None,
        among: str,
        parameters: tuple[Any, ...],
    ) -> list[tuple[int, float]]:
        """The `k` best rows by BM25, (number, score), of the numbers `allowed` or those that satisfy `among`, SQL."""
        table = f"{self._schema}.{kind}_postings"
        keys = {word_key(word): number for number, word in enumerate(words)}
        found = self._db.execute(
            f"SELECT key, first, last, most, shortest, id, n FROM {table} WHERE key = ANY(%s)", (list(keys),)
        ).fetchall()
        blocks = [Block(keys[row[0]], *row[1:6]) for row in found]
        known: dict[int, bytes] = {}

        def read(wanted: Sequence[int]) -> list[bytes]:
            missing = [block for block in wanted if block not in known]
            if missing:
                rows = self._db.execute(f"SELECT id, held FROM {table} WHERE id = ANY(%s)", (missing,), binary=True)
                known.update(rows.fetchall())
            return [known[block] for block in wanted]

        if sum(row[6] for row in found) <= AT_ONCE:
            read([block.key for block in blocks])
        wanted = k
        while True:
            numbers, scores = best_rows(blocks, read, statistics, wanted, allowed)
            kept = self._there(kind, numbers, among, parameters)
            if kept.sum() >= k or len(numbers) < wanted:
                return list(zip(numbers[kept][:k].tolist(), scores[kept][:k].tolist(), strict=True))
            wanted *= 4

    def held(self, words: Sequence[str], passages: IntArray) -> BoolArray:
        """Which of some passages `[n]` hold each word: `[t, n]`."""
        held = np.zeros((len(words), len(passages)), dtype=bool)
        if not words or not len(passages):
            return held
        columns = ", ".join("strpos(words, %s) > 0" for _ in words)
        rows = self._db.execute(
            f"SELECT number, {columns} FROM {self._schema}.passages WHERE number = ANY(%s)",
            (*(f" {word} " for word in words), passages.tolist()),
        ).fetchall()
        if rows:
            found = np.array(rows, dtype=np.int64)
            held[:, np.searchsorted(passages, found[:, 0])] = found[:, 1:].T.astype(bool)
        return held

    def _there(self, kind: Kind, numbers: IntArray, among: str, parameters: tuple[Any, ...]) -> BoolArray:
        """Which of some numbers `[n]` documents or passages have that satisfy a condition: `[n]`."""
        rows = self._db.execute(
            f"SELECT number FROM {self._schema}.{kind}s AS r WHERE number = ANY(%s) {among}",
            (numbers.tolist(), *parameters),
        ).fetchall()
        return np.isin(numbers, np.array([number for (number,) in rows], dtype=np.int64))
