"""An engine of another package: Qdrant, in memory, for collections at `qdrant://memory/NAME`.

    python -m pytest tests/engines/test_qdrant.py     # needs qdrant-client; the suite of aveyb_retrieval.conformance

A package would name this module as an entry point, `[project.entry-points."aveyb_retrieval.engines"] qdrant = "..."`;
`register_engine("qdrant", module)` does it for one process. Two Qdrant collections hold documents and passages, with
their metadata; words are sparse vectors whose inverse frequency Qdrant counts. Lengths of texts are compared with a
fixed mean, so BM25 differs a little from that of an index directory.
"""

from __future__ import annotations

import json
from collections import Counter
from contextlib import contextmanager
from dataclasses import asdict
from typing import TYPE_CHECKING, Any

import numpy as np
from qdrant_client import QdrantClient, models

from aveyb_retrieval.errors import AveyBError, ConfigError, IndexFormatError
from aveyb_retrieval.indexes.engines.base import EngineInfo
from aveyb_retrieval.indexes.engines.collection import CollectionSettings, check_name
from aveyb_retrieval.indexes.engines.words import K1, B, word_key
from aveyb_retrieval.indexes.store.filters import compile_filter
from aveyb_retrieval.indexes.store.numbering import PASSAGE_BITS, expand_passages
from aveyb_retrieval.indexes.store.tables import StoredDocument, StoredPassage
from aveyb_retrieval.indexes.store.words import language

CLIENT = QdrantClient(":memory:")
MEAN = {"document": 32.0, "passage": 8.0}  # words of a text in the suite; set it to yours
_RANGE = {"$gt": "gt", "$gte": "gte", "$lt": "lt", "$lte": "lte"}
_ABOUT: dict[str, dict[str, Any]] = {}  # of each collection that is published, and of those that are being
if TYPE_CHECKING:
    from collections.abc import Callable, Iterator, Sequence


def open_engine(address: str) -> QdrantEngine:
    """Open a collection for searching."""
    return QdrantEngine(_name(address))


def open_writer(address: str) -> QdrantWriter:
    """Connect to write a collection."""
    return QdrantWriter(_name(address))


def _name(address: str) -> str:
    return check_name(address.rpartition("/")[2], address)


def translate(where: dict[str, Any]) -> models.Filter:
    """A filter in Qdrant's words; what it cannot say exactly is refused."""
    must: list[Any] = []
    for key, value in where.items():
        if key in ("$and", "$or"):
            parts: Any = [translate(part) for part in value]
            must.append(models.Filter(must=parts) if key == "$and" else models.Filter(should=parts))
        elif key == "$not":
            must.append(models.Filter(must_not=[translate(value)]))
        else:
            for operator, operand in (value if isinstance(value, dict) else {"$eq": value}).items():
                if operator in _RANGE and isinstance(operand, (int, float)):
                    must.append(
                        models.FieldCondition(key=f"m.{key}", range=models.Range(**{_RANGE[operator]: operand}))
                    )
                elif operator in ("$eq", "$ne", "$in", "$nin") and "\\" not in key:
                    values = operand if isinstance(operand, list) else [operand]
                    if any(isinstance(each, (float, type(None))) for each in values):
                        raise ConfigError(
                            f"filter: {operator} on {key!r}: Qdrant matches strings, true, false and whole numbers"
                        )
                    matches: Any = [
                        models.FieldCondition(key=f"m.{key}", match=models.MatchValue(value=each)) for each in values
                    ]
                    some = models.Filter(should=matches or [models.HasIdCondition(has_id=[])])
                    must.append(some if operator in ("$eq", "$in") else models.Filter(must_not=[some]))
                else:
                    raise ConfigError(f"filter: {operator} on {key!r}: the Qdrant example does not translate it")
    return models.Filter(must=must)


class QdrantEngine:
    """A collection that is open for searching."""

    def __init__(self, name: str) -> None:
        if not _ABOUT.get(name, {}).get("shown"):
            raise IndexFormatError(f"qdrant://memory/{name}: nothing is published there; use `aveyb-index publish`")
        self._name, self._version, self.is_closed = name, _ABOUT[name]["shown"], False

    @contextmanager
    def view(self) -> Iterator[QdrantView]:
        """Look at what is there now."""
        if self.is_closed:
            raise AveyBError(f"qdrant://memory/{self._name}: this index was closed; load it again to search it")
        yield QdrantView(self._name, self._version)

    @property
    def is_stale(self) -> bool:
        """Whether other documents were published."""
        return bool(_ABOUT[self._name]["shown"] != self._version)

    def reopen(self, check: Callable[[EngineInfo], None]) -> None:
        """Move to what is published now."""
        check(QdrantView(self._name, _ABOUT[self._name]["shown"]).info)
        self._version = _ABOUT[self._name]["shown"]

    def close(self) -> None:
        """Nothing to let go of."""
        self.is_closed = True


class QdrantView:
    """What a search reads."""

    tokens = None

    def __init__(self, name: str, version: str) -> None:
        self._version, settings = version, _ABOUT[name][version]
        self.language, e = language(settings.encoding.language), settings.encoding
        counts = {kind: self.count(kind) for kind in ("document", "passage")}
        self.info = EngineInfo(
            f"qdrant://memory/{name}", version, e.dim, e.granularity, counts["document"], counts["passage"], e.model,
            e.model_source, "publish it again",
        )  # fmt: skip

    def select(self, where: Any) -> models.Filter | None:
        if where is not None:
            compile_filter(where)  # for its errors
        return None if where is None else translate(dict(where))

    def count(self, kind: str, selection: models.Filter | None = None) -> int:
        return CLIENT.count(f"{self._version}_{kind}", count_filter=selection).count

    def nearest(
        self, kind: str, queries: Any, k: int, selection: Any = None, *, exact: bool = False
    ) -> tuple[Any, Any]:
        found = [self._best(kind, query.tolist(), "vector", k, selection) for query in queries]
        k = min(map(len, found), default=0)
        ordered = [sorted(row, key=lambda hit: (-hit[1], hit[0]))[:k] for row in found]
        scores = np.array([[score for _, score in row] for row in ordered], np.float32).reshape(len(ordered), k)
        return scores, np.array([[number for number, _ in row] for row in ordered], np.int64).reshape(len(ordered), k)

    def by_words(self, kind: str, text: str, k: int, selection: Any = None) -> list[tuple[int, float]]:
        query = _sparse({word: 1.0 for word in self.language.words(text)})
        return self._best(kind, query, "words", k, selection) if query.indices else []

    def _best(self, kind: str, query: Any, using: str, k: int, selection: Any) -> list[tuple[int, float]]:
        found = CLIENT.query_points(
            f"{self._version}_{kind}", query=query, using=using, limit=max(k, 1), query_filter=selection
        )
        return [(int(point.id), float(point.score)) for point in found.points][:k]

    def _read(self, kind: str, numbers: Any, *, vectors: Any = False) -> dict[int, Any]:
        wanted = [int(number) for number in numbers]
        return (
            {int(p.id): p for p in CLIENT.retrieve(f"{self._version}_{kind}", wanted, with_vectors=vectors)}
            if wanted
            else {}
        )

    def vectors(self, kind: str, numbers: Any) -> Any:
        found = self._read(kind, numbers, vectors=["vector"])
        return np.array([found[i].vector["vector"] for i in numbers.tolist()], np.float32).reshape(-1, self.info.dim)

    @property
    def mean_vector(self) -> Any:
        numbers = self.matching(models.Filter())
        if self.info.granularity == "passage":
            numbers = self.passage_numbers(numbers.tolist())
        kind = self.info.kinds[0]
        return self.vectors(kind, numbers).mean(axis=0) if len(numbers) else np.zeros(self.info.dim, np.float32)

    @property
    def mean_passage_length(self) -> float:
        points = self._scroll("passage", models.Filter())
        return sum(p.payload["stop"] - p.payload["start"] for p in points) / max(len(points), 1)

    def occurrences(self, text: str, passages: Any) -> tuple[Any, Any]:
        words, found = self.language.words(text), self._read("passage", passages)
        counts = [self.count("passage", _holds("words", [word])) for word in words]
        held = [[word in found[number].payload["words"] for number in passages.tolist()] for word in words]
        return np.array(counts, np.int64), np.array(held, bool).reshape(len(words), len(passages))

    def find(self, ids: Sequence[str]) -> dict[str, int]:
        return {p.payload["id"]: int(p.id) for p in self._scroll("document", _holds("id", list(ids)))}

    def matching(self, selection: models.Filter) -> Any:
        return np.array(sorted(int(p.id) for p in self._scroll("document", selection)), np.int64)

    def _scroll(self, kind: str, selection: models.Filter) -> list[Any]:
        return CLIENT.scroll(f"{self._version}_{kind}", scroll_filter=selection, limit=10**6)[0]

    def documents(self, docs: Sequence[int], *, texts: bool = True) -> dict[int, StoredDocument]:
        found = {i: p.payload for i, p in self._read("document", docs).items()}
        return {
            i: StoredDocument(i, p["id"], p["title"], p["text"], json.loads(p["metadata"])) for i, p in found.items()
        }

    def passages(self, passages: Sequence[int]) -> dict[int, StoredPassage]:
        found = {i: p.payload for i, p in self._read("passage", passages).items()}
        return {i: StoredPassage((p["start"], p["stop"]), p["heading"]) for i, p in found.items()}

    def passage_numbers(self, docs: Sequence[int]) -> Any:
        return self.passage_spans(docs)[0]

    def passage_spans(self, docs: Sequence[int]) -> tuple[Any, Any]:
        counts = [(number, p.payload["n"]) for number, p in sorted(self._read("document", docs).items())]
        numbers = expand_passages(np.array(counts, np.int64).reshape(-1, 2))
        found = self.passages(numbers.tolist())
        return numbers, np.array([found[i].span for i in numbers.tolist()], np.int64).reshape(-1, 2)


class QdrantWriter:
    """Writes a collection."""

    def __init__(self, name: str) -> None:
        self.name, self._key, self._about = f"qdrant://memory/{name}", name, _ABOUT.setdefault(name, {})
        self._version = ""

    def begin(self, settings: CollectionSettings, *, restart: bool) -> int:
        self._version = f"{self._key}-{settings.publication}"
        if restart or self._version not in self._about or self._version == self._about.get("shown"):
            for kind in ("document", "passage"):
                CLIENT.delete_collection(f"{self._version}_{kind}")
                CLIENT.create_collection(
                    f"{self._version}_{kind}",
                    {"vector": models.VectorParams(size=settings.encoding.dim, distance=models.Distance.DOT)},
                    sparse_vectors_config={"words": models.SparseVectorParams(modifier=models.Modifier.IDF)},
                )
        self._about[self._version], self._next = settings, CLIENT.count(f"{self._version}_document").count
        return self._next

    def add(self, rows: Any) -> None:
        self._write(rows, range(self._next, self._next + len(rows)))
        self._next += len(rows)

    def finish(self) -> None:
        """Nothing to build."""

    def switch(self) -> None:
        self._about["shown"] = self._version

    def settings(self) -> CollectionSettings:
        self._version = QdrantEngine(self._key)._version
        self._next = max(QdrantView(self._key, self._version).matching(models.Filter()).tolist(), default=-1) + 1
        found: CollectionSettings = self._about[self._version]
        return CollectionSettings.from_json(json.loads(json.dumps(asdict(found))), self.name)

    def upsert(self, rows: Any) -> None:
        self.delete([record.id for record, _ in rows])
        self.add(rows)

    def delete(self, ids: Sequence[str]) -> int:
        self.settings()
        found = self._view().find(ids)
        passages = self._view().passage_numbers(list(found.values()))
        for kind, numbers in (("passage", passages.tolist()), ("document", list(found.values()))):
            CLIENT.delete(f"{self._version}_{kind}", models.PointIdsList(points=numbers))
        return len(found)

    def missing(self, ids: Sequence[str]) -> list[str]:
        self.settings()
        found = self._view().find(ids)
        return [name for name in ids if name not in found]

    def close(self) -> None:
        """Nothing to let go of."""

    def _view(self) -> QdrantView:
        return QdrantView(self._key, self._version)

    def _write(self, rows: Any, numbers: range) -> None:
        stored = language(self._about[self._version].encoding.language).stored
        documents, passages = [], []
        for number, (record, row) in zip(numbers, rows, strict=True):
            about = {"id": record.id, "title": record.title, "text": record.text, "metadata": record.metadata_json}
            payload = {**about, "m": record.metadata, "n": len(row.spans)}
            documents.append(_point("document", number, row.vector, stored(f"{record.title}\n{record.text}"), payload))
            for i, ((start, stop), heading) in enumerate(zip(row.spans.tolist(), row.headings, strict=True)):
                words = stored(f"{heading}\n{record.text[start:stop]}")
                payload = {"m": record.metadata, "start": start, "stop": stop, "heading": heading}
                passages.append(_point("passage", number << PASSAGE_BITS | i, row.passages[i], words, payload))
        for kind, points in (("passage", passages), ("document", documents)):
            if points:
                CLIENT.upsert(f"{self._version}_{kind}", points)


def _point(kind: str, number: int, vector: Any, stored: str, payload: dict[str, Any]) -> models.PointStruct:
    counts, norm = Counter(stored.split()), K1 * (1 - B + B * stored.count(" ", 1) / MEAN[kind])
    words = _sparse({word: count * (K1 + 1) / (count + norm) for word, count in counts.items()})
    return models.PointStruct(
        id=number, vector={"vector": vector.tolist(), "words": words}, payload={**payload, "words": list(counts)}
    )


def _sparse(words: dict[str, float]) -> models.SparseVector:
    hashed = {int.from_bytes(word_key(word)[:4], "big"): value for word, value in words.items()}
    return models.SparseVector(indices=list(hashed), values=list(hashed.values()))


def _holds(field: str, values: list[Any]) -> models.Filter:
    return models.Filter(must=[models.FieldCondition(key=field, match=models.MatchAny(any=values))])
