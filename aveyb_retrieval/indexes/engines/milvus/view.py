"""A collection of Milvus as a search reads it. Every call reads the newest state: Milvus has no view of several."""

from __future__ import annotations

import json
import time
from collections import Counter
from functools import cached_property
from typing import TYPE_CHECKING, Any

import numpy as np

from aveyb_retrieval.errors import ConfigError
from aveyb_retrieval.indexes.engines.base import SAMPLE
from aveyb_retrieval.indexes.engines.facts import FactFilters
from aveyb_retrieval.indexes.engines.reader import CollectionView
from aveyb_retrieval.indexes.engines.words import ascii_word

if TYPE_CHECKING:
    from collections.abc import Iterable, Sequence

    from aveyb_retrieval.indexes.engines.milvus.collection import MilvusCollection
    from aveyb_retrieval.indexes.engines.reader import Version
    from aveyb_retrieval.indexes.store.filters import Condition, Filter
    from aveyb_retrieval.indexes.types import FloatArray, IntArray, Kind

MOST_HITS = 16_384  # of one search
NAMED = 4096  # values in one expression
EF = 200  # candidates that a search of a graph keeps; as many as are asked for if these are more
ALL = "number >= 0"
COUNTED = 5.0  # seconds that counts are remembered, as long as Milvus's bounded reads may be behind
PATIENCE = 20.0  # times as long as the counting took, if this is longer: milvus-lite reads all rows for it
SAMPLED = 60.0  # seconds that what a sample says is remembered while the counts stay


class MilvusFilters(FactFilters):
    """Filters as expressions of Milvus."""

    def has_part(self, field: str, text: str) -> Condition:
        """The field is a string that holds this text, letter by letter."""
        if any(letter in text for letter in "%_\\"):
            raise ConfigError(f"filter: $contains on {field!r}: Milvus cannot look for {text!r}, of %, _ and \\")
        return super().has_part(field, text and f"%{text}%")


_COMPARED = '(exists bounds["{key}"] AND bounds["{key}"] {operator} %s)'
FILTERS = MilvusFilters(
    holds="array_contains_any(facts, [{}])",
    there='exists bounds["{}"]',
    number=_COMPARED,
    text=_COMPARED,
    part='bounds["{}"] like %s',
)


class MilvusView(CollectionView):
    """What one search reads."""

    remedy = "it was changed meanwhile: search again, and if it stays so, publish it again"

    def __init__(self, collection: MilvusCollection, version: Version) -> None:
        super().__init__(collection, version)
        self._client, self._options = collection.client, collection.options

    @cached_property
    def state(self) -> tuple[float, ...]:
        """What a sample says is used again as long as this stays."""
        return time.monotonic() // SAMPLED, self.count("document"), self.count("passage")

    def select(self, where: Filter | None) -> str | None:
        """Compile a filter to an expression, which documents and passages both understand."""
        if where is None:
            return None
        sql, parameters = FILTERS.compile(where)
        # what a user wrote stands in the parameters alone
        sql = sql.replace("1 = 1", ALL).replace("1 = 0", "number < 0")
        return sql % tuple(json.dumps(value, ensure_ascii=False) for value in parameters)

    def count(self, kind: Kind, selection: str | None = None) -> int:
        """Count the vectors of a kind that can be found."""
        key, now = ("count", kind, selection), time.monotonic()
        until, counted = self.version.known.get(key, (now, 0))
        if until <= now:
            counted = self._query(kind, selection or "", ["count(*)"])[0]["count(*)"]
            self.remember(key, (now + max(COUNTED, PATIENCE * (time.monotonic() - now)), counted))
        return counted

    def matching(self, selection: str) -> IntArray:
        """Numbers of the documents of a selection, ascending."""
        return np.array(sorted(row["number"] for row in self._all("document", selection)), dtype=np.int64)

    def nearest(
        self, kind: Kind, queries: FloatArray, k: int, selection: str | None = None, *, exact: bool = False
    ) -> tuple[FloatArray, IntArray]:
        """Find the vectors nearest to unit vectors `[n, d]`: cosines and numbers `[n, k]`, best first.

        `exact`, and what the index finds too little of, reads and scores all vectors here.
        """
        if k and not exact and k <= MOST_HITS:
            found = self._search(kind, "vector", "IP", list(queries), k, selection, ef=max(EF, k))
            if min(map(len, found), default=0) == k:
                hits = np.array(found, dtype=[("number", np.int64), ("score", np.float32)])
                return hits["score"], hits["number"]
        rows = self._all(kind, selection or ALL, "vector")
        numbers = np.array([row["number"] for row in rows], dtype=np.int64)
        vectors = np.array([row["vector"] for row in rows], dtype=np.float32).reshape(-1, self.encoding.dim)
        scores = queries @ vectors.T
        best = np.lexsort((np.broadcast_to(numbers, scores.shape), -scores))[:, :k]
        return np.take_along_axis(scores, best, axis=1), numbers[best]

    def by_words(
        self, kind: Kind, words: Sequence[str], k: int, selection: str | None = None
    ) -> list[tuple[int, float]]:
        """The `k` best documents or passages by Milvus's BM25, best first; fewer where fewer hold a word."""
        k = min(k, self.count(kind, selection)) if k > MOST_HITS else k
        if k > MOST_HITS:
            raise ConfigError(f"{self.info.name}: {k:,} hits by words; Milvus gives up to {MOST_HITS:,}: ask for fewer")
        if not words or not k:
            return []
        (found,) = self._search(kind, "bm25", "BM25", [" ".join(map(ascii_word, words))], k, selection)
        return [hit for hit in found if hit[1]]

    def holding(self, words: Sequence[str]) -> list[int]:
        """How many passages hold each of some words, by those of a sample of documents."""
        seen, held = self.remembered("words", self._words_of_sample)
        return [round(held[ascii_word(word)] * self.count("passage") / max(seen, 1)) for word in words]

    def _words_of_sample(self) -> tuple[int, Counter[str]]:
        """How many passages a sample of documents has, and how many of these hold each word."""
        rows = self.read("passage", ("words",), self.passage_numbers(self.sample(SAMPLE)).tolist())
        return len(rows), Counter(word for (words,) in rows for word in set(words.split()))

    def read(
        self, kind: Kind, columns: Sequence[str], values: Iterable[int], *, by: str = "number"
    ) -> list[tuple[Any, ...]]:
        """Columns of the rows whose number, or rank, is one of some values, in any order."""
        wanted, rows = list(values), list[tuple[Any, ...]]()
        for start in range(0, len(wanted), NAMED):
            found = self._query(kind, f"{by} in {wanted[start : start + NAMED]}", list(columns))
            rows += [tuple(row[column] for column in columns) for row in found]
        return rows

    def sample(self, most: int) -> list[int]:
        """Numbers of the documents of least rank."""
        total = self.count("document")
        # of so many ranks, evenly spread, at least `most` are below this, but for one chance in 10^15
        below = ALL if total <= 2 * most else f"rank < {int(1.3 * most / total * 2**63)}"
        rows = sorted(self._all("document", below, "rank"), key=lambda row: int(row["rank"]))
        return [row["number"] for row in rows[:most]]

    def _query(self, kind: Kind, condition: str, fields: list[str]) -> list[dict[str, Any]]:
        name = f"{self.version.label}_{kind}s"
        return self._client.query(name, filter=condition, output_fields=fields, **self._options)

    def _all(self, kind: Kind, condition: str, *fields: str) -> list[dict[str, Any]]:
        """Fields of all rows that satisfy a condition, however many."""
        name, fields = f"{self.version.label}_{kind}s", ("number", *fields)
        pages = self._client.query_iterator(name, 8192, filter=condition, output_fields=list(fields), **self._options)
        rows: list[dict[str, Any]] = []
        while page := pages.next():
            rows.extend(page)
        pages.close()
        return rows

    def _search(
        self, kind: Kind, field: str, metric: str, data: list[Any], k: int, where: str | None, **effort: int
    ) -> list[list[tuple[int, float]]]:
        """The best rows for each of some queries, best first: (number, score)."""
        parameters = {"metric_type": metric, "params": effort}
        found = self._client.search(
            f"{self.version.label}_{kind}s", data=data, anns_field=field, limit=k, filter=where or "",
            search_params=parameters, **self._options,
        )  # fmt: skip
        # milvus-lite gives the negative of a score by words
        sign = -1 if metric == "BM25" and any(hit["distance"] < 0 for hits in found for hit in hits) else 1
        scored = [[(int(hit["number"]), sign * float(hit["distance"])) for hit in hits] for hits in found]
        return [sorted(hits, key=lambda hit: (-hit[1], hit[0])) for hits in scored]
