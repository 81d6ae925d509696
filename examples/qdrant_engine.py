"""An engine of another package, in under 200 lines: Qdrant, in this process's memory. Addresses:
`qdrant://memory/NAME`.

    python -m pytest tests/engines/test_qdrant.py     # needs qdrant-client

`register_engine("qdrant", QdrantCollection)` makes its addresses known (docs/engines.md). Words
are sparse vectors whose inverse frequency Qdrant counts.
Lengths of texts are compared with a fixed mean, so BM25 differs a little from that of an index
directory.
"""

from __future__ import annotations

from collections import Counter
from typing import Any

import numpy as np
from qdrant_client import QdrantClient, models

from aveyb_retrieval.engines.collection import Collection, CollectionView
from aveyb_retrieval.engines.database_rows import ascii_word, word_key
from aveyb_retrieval.errors import ConfigError
from aveyb_retrieval.indexes.store.filters import LanceFilters
from aveyb_retrieval.indexes.store.words import K1, B

CLIENT = QdrantClient(":memory:")
MEAN = {"document": 32.0, "passage": 8.0}  # words of a text in the suite; set it to yours
SETTINGS: dict[str, dict[str, Any]] = {}  # of each version
SHOWN: dict[str, int] = {}  # the version of each collection that readers see
_JOINED = {"$and": "must", "$or": "should", "$not": "must_not"}
_RANGE = {"$gt": "gt", "$gte": "gte", "$lt": "lt", "$lte": "lte"}


def translate(where: dict[str, Any]) -> models.Filter:
    """A filter in Qdrant's words; what it cannot say exactly is refused."""
    must: list[Any] = []
    for key, value in where.items():
        if key in _JOINED:
            parts = [translate(part) for part in (value if isinstance(value, list) else [value])]
            must.append(models.Filter(**{_JOINED[key]: parts}))
            continue
        for operator, operand in (value if isinstance(value, dict) else {"$eq": value}).items():
            if operator in _RANGE and isinstance(operand, (int, float)):
                must.append(
                    models.FieldCondition(
                        key=f"m.{key}", range=models.Range(**{_RANGE[operator]: operand})
                    )
                )
            elif operator in ("$eq", "$ne") and type(operand) in (str, bool, int):
                found = [models.FieldCondition(key=f"m.{key}", match={"value": operand})]
                must.append(models.Filter(**{"must" if operator == "$eq" else "must_not": found}))
            else:
                raise ConfigError(
                    f"filter: {operator} {operand!r} on {key!r}: Qdrant cannot say it, or we do not"
                )
    return models.Filter(must=must)


class QdrantView(CollectionView):
    """What a search reads."""

    @property
    def state(self) -> object:
        return object()  # nothing is remembered

    def name(self, kind: str) -> str:
        return f"{self.version.label}_{kind}"

    def select(self, where: Any) -> models.Filter | None:
        if where is not None:
            LanceFilters((), {}).compile(where)  # for its errors
        return None if where is None else translate(dict(where))

    def count(self, kind: str, selection: models.Filter | None = None) -> int:
        return CLIENT.count(self.name(kind), count_filter=selection).count

    def nearest(
        self, kind: str, queries: Any, k: int, selection: Any = None, *, exact: bool = False
    ) -> Any:
        found = [self._best(kind, query.tolist(), "vector", k, selection) for query in queries]
        hits = np.array(found, dtype=[("number", np.int64), ("score", np.float32)]).reshape(
            len(found), -1
        )
        return hits["score"], hits["number"]

    def by_words(
        self, kind: str, words: list[str], k: int, selection: Any = None
    ) -> list[tuple[int, float]]:
        return (
            self._best(kind, _sparse(dict.fromkeys(words, 1.0)), "words", k, selection)
            if words
            else []
        )

    def holding(self, words: list[str]) -> list[int]:
        return [self.count("passage", _is_one_of("terms", [ascii_word(word)])) for word in words]

    def matching(self, selection: models.Filter) -> Any:
        return np.array(
            sorted(int(point.id) for point in self._scroll("document", selection)), np.int64
        )

    def sample(self, most: int) -> list[int]:
        ranks = {
            int(point.id): point.payload["rank"]
            for point in self._scroll("document", models.Filter())
        }
        return sorted(ranks, key=ranks.__getitem__)[:most]

    def read(
        self, kind: str, columns: Any, values: Any, *, by: str = "number"
    ) -> list[tuple[Any, ...]]:
        wanted, name = [int(value) for value in values], self.name(kind)
        found = (
            self._scroll(kind, _is_one_of(by, wanted))
            if by == "rank"
            else CLIENT.retrieve(name, wanted)
        )
        return [tuple(point.payload[column] for column in columns) for point in found]

    def read_vectors(self, kind: str, numbers: list[int]) -> list[tuple[int, Any]]:
        found = CLIENT.retrieve(self.name(kind), numbers, with_vectors=["vector"])
        return [(int(point.id), point.vector["vector"]) for point in found]

    def _best(
        self, kind: str, query: Any, using: str, k: int, where: Any
    ) -> list[tuple[int, float]]:
        found = CLIENT.query_points(
            self.name(kind), query=query, using=using, limit=k or 1, query_filter=where
        ).points
        return sorted(
            ((int(point.id), float(point.score)) for point in found[:k]),
            key=lambda hit: (-hit[1], hit[0]),
        )

    def _scroll(self, kind: str, selection: models.Filter) -> list[Any]:
        return CLIENT.scroll(self.name(kind), scroll_filter=selection, limit=10**6)[0]


class QdrantCollection(Collection):
    """Versions, and what is written to them."""

    viewed_by = QdrantView

    def versions(self) -> dict[int, Any]:
        return {
            number: SETTINGS[self.label(number)]
            for number in range(1, 1000)
            if self.label(number) in SETTINGS
        }

    def visible_version(self) -> tuple[int, Any] | None:
        number = SHOWN.get(self.prefix)
        return None if number is None else (number, SETTINGS[self.label(number)])

    def create(self, number: int, settings: Any) -> None:
        vectors = {
            "vector": models.VectorParams(size=settings.encoding.dim, distance=models.Distance.DOT)
        }
        words = {"words": models.SparseVectorParams(modifier=models.Modifier.IDF)}
        for kind in MEAN:
            CLIENT.create_collection(
                f"{self.label(number)}_{kind}", vectors, sparse_vectors_config=words
            )
        SETTINGS[self.label(number)] = settings.to_json()

    def show(self, number: int) -> None:
        SHOWN[self.prefix] = number

    def drop(self, number: int) -> None:
        for kind in MEAN:
            CLIENT.delete_collection(f"{self.label(number)}_{kind}")
        del SETTINGS[self.label(number)]

    def add(self, rows: Any) -> None:
        first = max(self.view().sample(10**6), default=-1) + 1
        documents, passages = [], []
        for number, (record, row) in enumerate(rows, start=first):
            document, inside = self.rows_of(number, record, row)
            documents.append(_point("document", document._asdict(), record))
            passages += [_point("passage", each._asdict(), record) for each in inside]
        for kind, points in (("passage", passages), ("document", documents)):
            if points:
                CLIENT.upsert(f"{self.version.label}_{kind}", points)

    def finish(self) -> None:
        """Nothing to build, nor to let go of."""

    close = finish

    def remove(self, docs: list[int]) -> None:
        passages = self.view().passage_numbers(docs)
        for kind, numbers in (("passage", passages.tolist()), ("document", docs)):
            CLIENT.delete(f"{self.version.label}_{kind}", models.PointIdsList(points=numbers))


def _point(kind: str, row: dict[str, Any], record: Any) -> Any:
    counts, norm = (
        Counter(row["words"].split()),
        K1 * (1 - B + B * row["words"].count(" ", 1) / MEAN[kind]),
    )
    words = _sparse({word: count * (K1 + 1) / (count + norm) for word, count in counts.items()})
    vectors = {"vector": row.pop("vector").tolist(), "words": words}
    return models.PointStruct(
        id=row["number"],
        vector=vectors,
        payload={**row, "terms": list(counts), "m": record.metadata},
    )


def _sparse(words: dict[str, float]) -> models.SparseVector:
    hashed = {int.from_bytes(word_key(word)[:4], "big"): value for word, value in words.items()}
    return models.SparseVector(indices=list(hashed), values=list(hashed.values()))


def _is_one_of(field: str, values: list[Any]) -> models.Filter:
    return models.Filter(must=[models.FieldCondition(key=field, match=models.MatchAny(any=values))])
