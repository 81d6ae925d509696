"""A collection of Milvus as a search reads it. Every call reads the newest state: Milvus has no view of several."""

from __future__ import annotations

from functools import cached_property, partial
from typing import TYPE_CHECKING, Any

import numpy as np

from aveyb_retrieval.errors import ConfigError, IndexFormatError
from aveyb_retrieval.indexes.engines.base import SAMPLE, EngineInfo
from aveyb_retrieval.indexes.engines.milvus.filters import compile_filter
from aveyb_retrieval.indexes.engines.milvus.rows import match_text, read_document
from aveyb_retrieval.indexes.engines.milvus.schema import WAIT
from aveyb_retrieval.indexes.engines.milvus.writer import NAMED, passages_of, read_all
from aveyb_retrieval.indexes.store.numbering import rank_of
from aveyb_retrieval.indexes.store.tables import StoredDocument, StoredPassage
from aveyb_retrieval.indexes.store.words import Language, language

if TYPE_CHECKING:
    from collections.abc import Callable, Iterable, Sequence

    from aveyb_retrieval.indexes.engines.collection import CollectionSettings
    from aveyb_retrieval.indexes.engines.milvus.connection import Server
    from aveyb_retrieval.indexes.engines.milvus.schema import Publication
    from aveyb_retrieval.indexes.store.filters import Filter
    from aveyb_retrieval.indexes.types import BoolArray, FloatArray, IntArray, Kind

MOST_HITS = 16_384  # of one search
EF = 200  # candidates that a search of a graph keeps; as many as are asked for if these are more
ALL = "number >= 0"


class MilvusView:
    """What one search reads."""

    tokens = None

    def __init__(
        self,
        server: Server,
        publication: Publication,
        settings: CollectionSettings,
        state: dict[str, Any],
        remember: Callable[[str, Callable[[], Any]], Any],
    ) -> None:
        """Look at a publication; `remember` keeps a value by its name until a document changes."""
        self._server = server
        self._publication = publication
        self._settings = settings
        self._state = state
        self._remember = remember
        self.language: Language = language(settings.encoding.language)

    @cached_property
    def info(self) -> EngineInfo:
        """What there is."""
        encoding = self._settings.encoding
        return EngineInfo(
            name=self._server.name,
            version=f"{self._publication.about}.{self._settings.publication}",
            dim=encoding.dim,
            granularity=encoding.granularity,
            documents=self.count("document"),
            passages=self.count("passage"),
            model=encoding.model,
            model_source=encoding.model_source,
            remedy="it was changed meanwhile: search again, and if it stays so, publish it again",
        )

    # --- filters and vectors -----------------------------------------------------------------------------------------

    def select(self, where: Filter | None) -> str | None:
        """Compile a filter to an expression, which documents and passages both understand."""
        return None if where is None else compile_filter(where)

    def count(self, kind: Kind, selection: str | None = None) -> int:
        """Count the vectors of a kind that can be found."""
        condition = selection or ALL
        return int(self._remember(f"count {kind} {condition}", lambda: self._count(kind, condition)))

    def matching(self, selection: str) -> IntArray:
        """Numbers of the documents of a selection, ascending."""
        return np.sort(_numbers(self._all("document", selection, ["number"])))

    def nearest(
        self, kind: Kind, queries: FloatArray, k: int, selection: str | None = None, *, exact: bool = False
    ) -> tuple[FloatArray, IntArray]:
        """Find the vectors nearest to unit vectors `[n, d]`: cosines and numbers `[n, k]`, best first.

        `exact`, and what the index finds too little of, reads and scores all vectors here.
        """
        k = min(k, self.count(kind, selection))
        if not k or not len(queries):
            return np.empty((len(queries), k), np.float32), np.empty((len(queries), k), np.int64)
        if not exact and k <= MOST_HITS:
            parameters = {"metric_type": "IP", "params": {"ef": max(EF, k)}}
            found = self._search(kind, queries, "vector", parameters, k, selection)
            if min(map(len, found)) == k:
                return _arrays(found)
        rows = self._all(kind, selection or ALL, ["number", "vector"])
        numbers, vectors = _numbers(rows), np.array([row["vector"] for row in rows], dtype=np.float32)
        scored = queries @ vectors.reshape(-1, self.info.dim).T
        best = [np.lexsort((numbers, -row))[:k] for row in scored]
        return np.stack([row[at] for row, at in zip(scored, best, strict=True)]), np.stack([numbers[at] for at in best])

    def vectors(self, kind: Kind, numbers: IntArray) -> FloatArray:
        """Vectors `[n, d]` of documents or passages, by numbers `[n]`, in their order."""
        found = {int(row["number"]): row["vector"] for row in self._rows(kind, numbers.tolist(), ["number", "vector"])}
        missing = next((number for number in numbers.tolist() if number not in found), None)
        if missing is not None:
            raise IndexFormatError(f"{self.info.name}: no vector of {kind} number {missing}; {self.info.remedy}")
        return np.array([found[i] for i in numbers.tolist()], np.float32).reshape(-1, self._settings.encoding.dim)

    @cached_property
    def mean_vector(self) -> FloatArray:
        """The mean `[d]` of the vectors of the documents that an index directory chooses, too."""
        mean: FloatArray = self._remember("mean", self._mean)
        return mean

    def _mean(self) -> FloatArray:
        total, kind = self.count("document"), self._settings.encoding.kinds[0]
        # of so many ranks, evenly spread, at least SAMPLE are below this, but for one chance in 10^15
        below = ALL if total <= 2 * SAMPLE else f"rank < {int(1.3 * SAMPLE / total * 2**63)}"
        rows = sorted(self._all("document", below, ["number", "rank"]), key=lambda row: int(row["rank"]))[:SAMPLE]
        numbers = np.sort(_numbers(rows))
        if kind == "passage":
            numbers = self.passage_numbers(numbers.tolist())
        vectors = self.vectors(kind, numbers)
        return vectors.mean(axis=0) if len(vectors) else np.zeros(self._settings.encoding.dim, np.float32)

    # --- words -------------------------------------------------------------------------------------------------------

    @property
    def mean_passage_length(self) -> float:
        """The mean length of all passages, in characters."""
        return float(self._state["characters"]) / max(self.info.passages, 1)

    def by_words(self, kind: Kind, text: str, k: int, selection: str | None = None) -> list[tuple[int, float]]:
        """The `k` best documents or passages by Milvus's BM25, best first; fewer where fewer hold a word."""
        words = self.language.words(text)
        k = min(k, self.count(kind, selection))
        if not words or not k:
            return []
        if k > MOST_HITS:
            raise ConfigError(f"{self.info.name}: {k:,} hits by words; Milvus gives up to {MOST_HITS:,}: ask for fewer")
        (found,) = self._search(kind, [match_text(words)], "bm25", {"metric_type": "BM25"}, k, selection)
        # milvus-lite gives the negative of a score
        return sorted(((number, abs(score)) for number, score in found if score), key=lambda hit: (-hit[1], hit[0]))

    def occurrences(self, text: str, passages: IntArray) -> tuple[IntArray, BoolArray]:
        """How many passages hold each word of a text, `[t]`, and which of some `[n]`, ascending, do: `[t, n]`."""
        words = [match_text([word]) for word in self.language.words(text)]
        counts = [
            self._remember(f"word {word}", partial(self._count, "passage", f'TEXT_MATCH(words, "{word}")'))
            for word in words
        ]
        rows = self._rows("passage", passages.tolist(), ["number", "words"])
        stored = {int(row["number"]): set(row["words"].split()) for row in rows}
        empty: set[str] = set()
        held = [[word in stored.get(number, empty) for number in passages.tolist()] for word in words]
        return np.array(counts, dtype=np.int64), np.array(held, dtype=bool).reshape(len(words), len(passages))

    # --- documents ---------------------------------------------------------------------------------------------------

    def find(self, ids: Sequence[str]) -> dict[str, int]:
        """Numbers of documents by their ids; those that are not there are left out."""
        wanted = set(ids)
        rows = self._rows("document", [rank_of(name) for name in wanted], ["number", "id"], field="rank")
        return {row["id"]: int(row["number"]) for row in rows if row["id"] in wanted}

    def documents(self, docs: Sequence[int], *, texts: bool = True) -> dict[int, StoredDocument]:
        """Documents by number; those that are not there are left out. Without `texts`, texts are empty."""
        rows = self._rows("document", docs, ["number", "id", *(["stored"] if texts else [])])
        return {int(row["number"]): read_document(row) for row in rows}

    def passages(self, passages: Sequence[int]) -> dict[int, StoredPassage]:
        """Passages by number; those that are not there are left out."""
        rows = self._rows("passage", passages, ["number", "start", "stop", "heading"])
        return {int(r["number"]): StoredPassage((int(r["start"]), int(r["stop"])), str(r["heading"])) for r in rows}

    def passage_numbers(self, docs: Sequence[int]) -> IntArray:
        """Numbers of the passages of some documents, `[n]`, ascending."""
        return self.passage_spans(docs)[0]

    def passage_spans(self, docs: Sequence[int]) -> tuple[IntArray, IntArray]:
        """Passages of some documents, ascending: numbers `[n]` and characters of the text `[n, 2]`."""
        found = [
            (row["number"], row["start"], row["stop"])
            for row in passages_of(self._server, self._publication, docs, self._server.address.consistency)
        ]
        rows = np.array(sorted(found), dtype=np.int64).reshape(-1, 3)
        return rows[:, 0], rows[:, 1:]

    # --- inside ------------------------------------------------------------------------------------------------------

    @property
    def _reading(self) -> dict[str, Any]:
        return {"consistency_level": self._server.address.consistency, "timeout": WAIT}

    def _search(
        self, kind: Kind, data: Any, field: str, parameters: dict[str, Any], k: int, selection: str | None
    ) -> list[list[tuple[int, float]]]:
        with self._server.translated():
            found = self._server.client.search(
                self._publication.of(kind),
                data=list(data),
                anns_field=field,
                limit=k,
                filter=selection or "",
                search_params=parameters,
                **self._reading,
            )
        return [[(int(hit["number"]), float(hit["distance"])) for hit in hits] for hits in found]

    def _all(self, kind: Kind, condition: str, fields: list[str]) -> list[dict[str, Any]]:
        return read_all(self._server, self._publication.of(kind), condition, fields, self._server.address.consistency)

    def _rows(
        self, kind: Kind, values: Iterable[int], fields: list[str], *, field: str = "number"
    ) -> list[dict[str, Any]]:
        """The rows whose number, or another field, is one of some values."""
        wanted, rows = list(values), []
        for start in range(0, len(wanted), NAMED):
            with self._server.translated():
                rows += self._server.client.query(
                    self._publication.of(kind),
                    filter=f"{field} in {wanted[start : start + NAMED]}",
                    output_fields=fields,
                    **self._reading,
                )
        return rows

    def _count(self, kind: Kind, condition: str) -> int:
        with self._server.translated():
            (row,) = self._server.client.query(
                self._publication.of(kind), filter=condition, output_fields=["count(*)"], **self._reading
            )
        return int(row["count(*)"])


def _numbers(rows: list[dict[str, Any]]) -> IntArray:
    return np.array([int(row["number"]) for row in rows], dtype=np.int64)


def _arrays(found: list[list[tuple[int, float]]]) -> tuple[FloatArray, IntArray]:
    ordered = [sorted(row, key=lambda hit: (-hit[1], hit[0])) for row in found]
    scores = np.array([[score for _, score in row] for row in ordered], dtype=np.float32)
    return scores, np.array([[number for number, _ in row] for row in ordered], dtype=np.int64)
