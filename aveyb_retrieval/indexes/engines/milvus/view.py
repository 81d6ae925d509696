"""One generation of a collection in Milvus: what a search reads."""

from __future__ import annotations

import json
from functools import cached_property
from typing import TYPE_CHECKING, Any, NoReturn

import numpy as np

from aveyb_retrieval.errors import IndexFormatError
from aveyb_retrieval.indexes.engines.base import BoolArray, EngineInfo
from aveyb_retrieval.indexes.engines.collection import pages_alone
from aveyb_retrieval.indexes.engines.milvus.known import Catalog
from aveyb_retrieval.indexes.engines.milvus.rows import DOCUMENT, KIND_BITS, MOST_NAMED, MOST_ROWS, PASSAGE
from aveyb_retrieval.indexes.engines.milvus.word_search import WordSearch, is_in
from aveyb_retrieval.indexes.store import sample
from aveyb_retrieval.indexes.store.numbering import PASSAGE_BITS, expand_passages
from aveyb_retrieval.indexes.store.tables import StoredDocument, StoredPassage

if TYPE_CHECKING:
    from collections.abc import Iterable, Sequence

    from aveyb_retrieval.indexes.engines.collection import CollectionSettings
    from aveyb_retrieval.indexes.engines.milvus.known import Known, Removed, State
    from aveyb_retrieval.indexes.engines.milvus.rows import Row, Table
    from aveyb_retrieval.indexes.engines.words import TermCounter, WordStatistics
    from aveyb_retrieval.indexes.store.filters import Filter
    from aveyb_retrieval.indexes.store.words import Language
    from aveyb_retrieval.indexes.types import FloatArray, IntArray, Kind

FEW = 1000  # vectors that a filter leaves, and that are rather read and scored here
EF_SEARCH = 200  # candidates that a search of the graph keeps, at least
_KINDS = {"document": DOCUMENT, "passage": PASSAGE}


class MilvusView:
    """One generation of a collection. Rows of documents that were removed since may vanish while it is read."""

    tokens = None

    def __init__(
        self,
        table: Table,
        settings: CollectionSettings,
        state: State,
        removed: Removed,
        known: Known,
        terms: TermCounter,
    ) -> None:
        """Read one generation of a table."""
        self._table = table
        self._state = state
        self._removed = removed
        self._known = known
        self._words = WordSearch(table, state, removed.documents, terms)
        self.info = EngineInfo(
            name=table.server.name,
            version=f"{state.collection}.{settings.publication}",
            dim=settings.encoding.dim,
            granularity=settings.encoding.granularity,
            documents=state.documents,
            passages=state.passages,
            model=settings.encoding.model,
            model_source=settings.encoding.model_source,
            remedy="search again, and if this stays, publish it again with `aveyb-index publish`",
        )
        self.language: Language = terms.language

    # --- filters -----------------------------------------------------------------------------------------------------

    def select(self, where: Filter | None) -> Catalog | None:
        """Find the documents that satisfy a filter."""
        return None if where is None else self._known.matching(where, self._state, self._removed)

    def count(self, kind: Kind, selection: Catalog | None = None) -> int:
        """Count the vectors of a kind that can be found."""
        if selection is None:
            return self._state.documents if kind == "document" else self._state.passages
        return len(selection.numbers) if kind == "document" else int(selection.passages.sum())

    def matching(self, selection: Catalog) -> IntArray:
        """Numbers of the documents of a selection, ascending."""
        return selection.numbers

    # --- vectors -----------------------------------------------------------------------------------------------------

    def nearest(
        self, kind: Kind, queries: FloatArray, k: int, selection: Catalog | None = None, *, exact: bool = False
    ) -> tuple[FloatArray, IntArray]:
        """Find the vectors nearest to unit vectors `[n, d]`: cosines and numbers `[n, k]`, best first.

        The few that a filter leaves, and all where more are wanted than Milvus gives, are read and scored here.
        """
        count = self.count(kind, selection)
        k = min(k, count)
        if not k or not len(queries):
            return np.empty((len(queries), k), np.float32), np.empty((len(queries), k), np.int64)
        if not (exact or k > MOST_ROWS or (selection is not None and count <= FEW)):
            found = self._by_graph(kind, queries, k, selection)
            if all(len(numbers) >= k for _, numbers in found):
                return np.stack([scores[:k] for scores, _ in found]), np.stack([numbers[:k] for _, numbers in found])
        return self._one_by_one(kind, queries, k, selection)

    def _by_graph(
        self, kind: Kind, queries: FloatArray, k: int, selection: Catalog | None
    ) -> list[tuple[FloatArray, IntArray]]:
        """Search in Milvus: scores and numbers for each query, of `k` or fewer where not as many were found."""
        conditions = [f"born <= {self._state.generation}"]
        if len(self._removed.present):
            conditions.append(f"doc not in {self._removed.present.tolist()}")
        wanted = [k]
        if selection is not None:
            others = self._state.documents - len(selection.numbers)
            if len(selection.numbers) <= MOST_NAMED:
                conditions.append(f"doc in {selection.numbers.tolist()}")
            elif others <= MOST_NAMED:
                catalog = self._known.catalog(self._state, self._removed)
                excluded = catalog.numbers[~is_in(catalog.numbers, selection.numbers)]
                conditions.append(f"doc not in {excluded.tolist()}")
            else:  # more are asked for, and those of other documents left out
                share = self.count(kind, selection) / self.count(kind)
                wanted = [min(MOST_ROWS, int(1.5 * k / share) + 64), MOST_ROWS]
        for most in wanted:
            found = self._table.search(
                _KINDS[kind], queries, most, " and ".join(conditions), max(EF_SEARCH, most), since=self._state.written
            )
            if len(wanted) > 1 and selection is not None:
                chosen = [is_in(_documents(kind, numbers), selection.numbers) for _, numbers in found]
                found = [(scores[mine], numbers[mine]) for (scores, numbers), mine in zip(found, chosen, strict=True)]
            if all(len(numbers) >= k for _, numbers in found):
                break
        return [_best_first(scores, numbers) for scores, numbers in found]

    def _one_by_one(
        self, kind: Kind, queries: FloatArray, k: int, selection: Catalog | None
    ) -> tuple[FloatArray, IntArray]:
        """Read all vectors in parts and score them."""
        catalog = self._known.catalog(self._state, self._removed) if selection is None else selection
        numbers = catalog.numbers if kind == "document" else expand_passages(np.stack(catalog, axis=1))
        best = [(np.empty(0, np.float32), np.empty(0, np.int64)) for _ in queries]
        step = max(k, 16_384)
        for start in range(0, len(numbers), step):
            some = numbers[start : start + step]
            scores = queries @ self.vectors(kind, some).T
            for row, (old_scores, old_numbers) in enumerate(best):
                joined = _best_first(np.concatenate([old_scores, scores[row]]), np.concatenate([old_numbers, some]))
                best[row] = joined[0][:k], joined[1][:k]
        return np.stack([scores for scores, _ in best]), np.stack([numbers for _, numbers in best])

    def vectors(self, kind: Kind, numbers: IntArray) -> FloatArray:
        """Vectors `[n, d]` of documents or passages, by numbers `[n]`, in their order."""
        found = np.empty((len(numbers), self.info.dim), dtype=np.float32)
        order = np.argsort(numbers, kind="stable")
        ascending = numbers[order]
        missing = np.ones(len(numbers), dtype=bool)
        for number, row in self._read(_KINDS[kind], np.unique(numbers).tolist(), ["vector"]):
            first, last = np.searchsorted(ascending, [number, number + 1])
            found[order[first:last]] = row["vector"]
            missing[order[first:last]] = False
        if missing.any():
            self._damaged(f"no vector of {kind} number {numbers[missing][0]}")
        return found

    @cached_property
    def mean_vector(self) -> FloatArray:
        """The mean `[d]` of the vectors of the documents that an index directory chooses, too (`storage/sample.py`)."""
        return self._known.mean(self._state.generation, self._mean)

    def _mean(self) -> FloatArray:
        catalog = self._known.catalog(self._state, self._removed)
        if not len(catalog.numbers):
            return np.zeros(self.info.dim, dtype=np.float32)
        least = np.argsort(catalog.keys)[: sample.SAMPLE]
        chosen = Catalog(*(column[least] for column in catalog))
        kind = self.info.kinds[0]
        numbers = chosen.numbers if kind == "document" else expand_passages(np.stack(chosen[:2], axis=1))
        if not len(numbers):
            return np.zeros(self.info.dim, dtype=np.float32)
        mean: FloatArray = self.vectors(kind, numbers).mean(axis=0)
        return mean

    # --- words -------------------------------------------------------------------------------------------------------

    @property
    def mean_passage_length(self) -> float:
        """The mean length of all passages, in characters."""
        return self._state.passage_characters / max(self._state.passages, 1)

    def word_statistics(self, kind: Kind, text: str) -> WordStatistics:
        """The statistics of this server's documents or passages that BM25 needs for the words of a query."""
        return self._words.statistics(kind, text)

    def by_words(
        self,
        kind: Kind,
        text: str,
        k: int,
        selection: Catalog | None = None,
        statistics: WordStatistics | None = None,
    ) -> list[tuple[int, float]]:
        """The `k` best documents or passages by BM25, best first; `statistics` are those of all servers."""
        known = self.word_statistics(kind, text) if statistics is None else statistics
        return self._words.best(kind, text, k, known, None if selection is None else selection.numbers)

    def occurrences(self, text: str, passages: IntArray) -> tuple[IntArray, BoolArray]:
        """How many passages hold each word of a text, `[t]`, and which of some `[n]`, ascending, do: `[t, n]`."""
        return self.word_statistics("passage", text).holding, self._words.held(text, passages)

    # --- documents ---------------------------------------------------------------------------------------------------

    def find(self, ids: Sequence[str]) -> dict[str, int]:
        """Numbers of documents by their ids; those that are not there are left out."""
        found = {}
        for row in self._table.find(ids, [], self._state.generation, since=self._state.written):
            number = row["number"] >> KIND_BITS
            if not is_in(np.array([number]), self._removed.documents)[0]:
                found[row["name"]] = number
        return found

    def documents(self, docs: Sequence[int], *, texts: bool = True) -> dict[int, StoredDocument]:
        """Documents by number; those that are not there are left out. Without `texts`, texts are empty."""
        if not texts:
            rows = self._read(DOCUMENT, docs, ["name"])
            return {number: StoredDocument(number, row["name"], "", "", {}, None) for number, row in rows}
        found = dict(self._read(DOCUMENT, docs, ["name", "fields", "doc", "first", "pieces", "body"]))
        bodies = self._bodies(list(found.values()))
        return {
            number: StoredDocument(
                number,
                row["name"],
                body["title"],
                body["text"],
                json.loads(row["fields"] or body["metadata"]),
                pages_alone(body["pages"]),
            )
            for (number, row), body in zip(found.items(), bodies, strict=True)
        }

    def passages(self, passages: Sequence[int]) -> dict[int, StoredPassage]:
        """Passages by number; those that are not there are left out."""
        found = dict(self._read(PASSAGE, passages, ["doc", "first", "pieces", "body"]))
        bodies = self._bodies(list(found.values()))
        return {
            number: StoredPassage((start, stop), heading)
            for number, (start, stop, heading) in zip(found, bodies, strict=True)
        }

    def passage_numbers(self, docs: Sequence[int]) -> IntArray:
        """Numbers of the passages of some documents, `[n]`, ascending."""
        rows = [(number, row["n"]) for number, row in self._read(DOCUMENT, docs, ["n"])]
        return expand_passages(np.array(sorted(rows), dtype=np.int64).reshape(-1, 2))

    def passage_spans(self, docs: Sequence[int]) -> tuple[IntArray, IntArray]:
        """Passages of some documents, ascending: numbers `[n]` and characters of the text `[n, 2]`."""
        spans: dict[int, tuple[int, int]] = {}
        for number, row in self._read(DOCUMENT, docs, ["n", "spans"]):
            passages = range(number << PASSAGE_BITS, (number << PASSAGE_BITS) + row["n"])
            if row["spans"]:
                spans.update(zip(passages, json.loads(row["spans"]), strict=True))
                continue
            found = self.passages(passages)  # more than fit into its row
            if len(found) < len(passages):
                self._damaged(f"{len(passages) - len(found)} passages of document number {number} are missing")
            spans.update((passage, stored.span) for passage, stored in found.items())
        numbers = np.array(sorted(spans), dtype=np.int64)
        return numbers, np.array([spans[number] for number in numbers.tolist()], dtype=np.int64).reshape(-1, 2)

    # --- inside ------------------------------------------------------------------------------------------------------

    def _read(self, kind: int, numbers: Iterable[int], columns: Sequence[str]) -> Iterable[tuple[int, Row]]:
        return self._table.read(kind, numbers, columns, since=self._state.written)

    def _bodies(self, rows: list[Row]) -> list[Any]:
        try:
            return self._table.bodies(rows, since=self._state.written)
        except KeyError as error:
            self._damaged(f"piece {error} of a text is missing")

    def _damaged(self, what: str) -> NoReturn:
        raise IndexFormatError(f"{self.info.name}: {what}; {self.info.remedy}")


def _best_first(scores: FloatArray, numbers: IntArray) -> tuple[FloatArray, IntArray]:
    order = np.lexsort((numbers, -scores))
    return scores[order], numbers[order]


def _documents(kind: Kind, numbers: IntArray) -> IntArray:
    return numbers if kind == "document" else numbers >> PASSAGE_BITS
