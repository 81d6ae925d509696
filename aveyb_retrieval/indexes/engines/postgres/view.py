"""One state of a collection in PostgreSQL: what a search reads, in one transaction."""

from __future__ import annotations

import json
from functools import cached_property
from typing import TYPE_CHECKING, Any, NamedTuple

import numpy as np

from aveyb_retrieval.errors import IndexFormatError
from aveyb_retrieval.indexes.engines.base import SAMPLE, EngineInfo
from aveyb_retrieval.indexes.engines.collection import pages_alone
from aveyb_retrieval.indexes.engines.postgres.filters import compile_filter
from aveyb_retrieval.indexes.engines.postgres.schema import passages_of
from aveyb_retrieval.indexes.engines.postgres.word_search import WordSearch
from aveyb_retrieval.indexes.engines.postgres.writer import vector_text
from aveyb_retrieval.indexes.engines.words import Statistics
from aveyb_retrieval.indexes.store.numbering import PASSAGE_BITS, expand_passages, id_digest
from aveyb_retrieval.indexes.store.tables import StoredDocument, StoredPassage
from aveyb_retrieval.indexes.store.words import language

if TYPE_CHECKING:
    from collections.abc import Callable, Sequence

    from aveyb_retrieval.indexes.engines.collection import CollectionSettings
    from aveyb_retrieval.indexes.store.filters import Condition, Filter
    from aveyb_retrieval.indexes.store.words import Language
    from aveyb_retrieval.indexes.types import BoolArray, FloatArray, IntArray, Kind

EXACT_ROWS = 20_000  # so many vectors are scored in some ten milliseconds
EXACT_SHARE = 0.02  # below this share of allowed vectors a graph loses recall or takes longer than scoring them all
FEW_DOCUMENTS = 2_000  # that a filter leaves: their numbers are read, and words are looked for among them alone
EF_SEARCH = 200  # candidates that a search of the graph keeps; at most 1,000
MOST_EF = 1000


class State(NamedTuple):
    """The row of `state`: what changes with every upsert and deletion."""

    generation: int
    documents: int
    passages: int
    passage_characters: int
    worded_documents: int
    document_words: int
    worded_passages: int
    passage_words: int


class Means:
    """Remembers the mean vector, as long as no document changes."""

    def __init__(self) -> None:
        self._known: tuple[int, FloatArray] | None = None

    def get(self, generation: int, compute: Callable[[], FloatArray]) -> FloatArray:
        """Return the mean of a generation of the documents."""
        known = self._known
        if known is None or known[0] != generation:
            known = self._known = generation, compute()
        return known[1]


class Selected(NamedTuple):
    """What a filter lets through: the condition, and how many documents and passages there are."""

    condition: Condition
    documents: int
    passages: int


class PostgresView:
    """A transaction that reads one state."""

    tokens = None

    def __init__(
        self,
        connection: Any,
        schema: str,
        name: str,
        settings: CollectionSettings,
        state: State,
        means: Means,
    ) -> None:
        """Read `schema` over a connection that is in a transaction."""
        self._db = connection
        self._schema = schema
        self._state = state
        self._means = means
        self._words = WordSearch(connection, schema)
        self.info = EngineInfo(
            name=name,
            version=f"{schema}.{settings.publication}",
            dim=settings.encoding.dim,
            granularity=settings.encoding.granularity,
            documents=state.documents,
            passages=state.passages,
            model=settings.encoding.model,
            model_source=settings.encoding.model_source,
            remedy="publish it again with `aveyb-index publish`",
        )
        self.language: Language = language(settings.encoding.language)

    # --- filters -----------------------------------------------------------------------------------------------------

    def select(self, where: Filter | None) -> Selected | None:
        """Compile a filter and count what it lets through."""
        if where is None:
            return None
        condition = compile_filter(where)
        row = self._db.execute(
            f"SELECT count(*), coalesce(sum(n_passages), 0) FROM {self._schema}.documents WHERE {condition.sql}",
            condition.parameters,
        ).fetchone()
        return Selected(condition, int(row[0]), int(row[1]))

    def count(self, kind: Kind, selection: Selected | None = None) -> int:
        """Count the vectors of a kind that can be found."""
        counted = self._state if selection is None else selection
        return counted.documents if kind == "document" else counted.passages

    def matching(self, selection: Selected) -> IntArray:
        """Numbers of the documents of a selection, ascending."""
        rows = self._db.execute(
            f"SELECT number FROM {self._schema}.documents WHERE {selection.condition.sql} ORDER BY number",
            selection.condition.parameters,
        )
        return _numbers(rows)

    def _passages_of(self, selection: Selected) -> IntArray:
        return self._numbers_of_passages(*selection.condition)

    def _numbers_of_passages(self, condition: str, parameters: tuple[Any, ...]) -> IntArray:
        """Numbers of the passages of the documents that satisfy a condition, ascending."""
        rows = self._db.execute(
            f"SELECT number, n_passages FROM {self._schema}.documents WHERE {condition} ORDER BY number", parameters
        ).fetchall()
        return expand_passages(np.array(rows, dtype=np.int64).reshape(-1, 2))

    # --- vectors -----------------------------------------------------------------------------------------------------

    def nearest(
        self, kind: Kind, queries: FloatArray, k: int, selection: Selected | None = None, *, exact: bool = False
    ) -> tuple[FloatArray, IntArray]:
        """Find the vectors nearest to unit vectors `[n, d]`: cosines and numbers `[n, k]`, best first.

        Few vectors, and those that a filter leaves few of, are scored one by one; otherwise the graph is searched.
        """
        count = self.count(kind, selection)
        k = min(k, count)
        scores, numbers = np.empty((len(queries), k), np.float32), np.empty((len(queries), k), np.int64)
        few = count <= EXACT_ROWS or count <= EXACT_SHARE * self.count(kind)
        for row, query in enumerate(queries if k else ()):
            found = [] if exact or few else self._by_graph(kind, query, k, selection)
            if len(found) < k:
                found = self._one_by_one(kind, query, k, selection)
            if len(found) < k:
                raise IndexFormatError(
                    f"{self.info.name}: {len(found)} {kind} vectors where {k} are counted; {self.info.remedy}"
                )
            numbers[row], scores[row] = zip(*found, strict=True)
        return scores, numbers

    def _one_by_one(self, kind: Kind, query: FloatArray, k: int, selection: Selected | None) -> list[tuple[int, float]]:
        """Score every vector: the materialized table keeps the planner from using the graph."""
        where, parameters = self._among(kind, selection)
        sql = (
            f"WITH scored AS MATERIALIZED (SELECT number, -(vector <#> %s::vector) AS score "
            f"FROM {self._schema}.{kind}_vectors AS v {where}) "
            "SELECT number, score FROM scored ORDER BY score DESC, number LIMIT %s"
        )
        return self._db.execute(sql, (vector_text(query), *parameters, k)).fetchall()

    def _by_graph(self, kind: Kind, query: FloatArray, k: int, selection: Selected | None) -> list[tuple[int, float]]:
        """Search the HNSW graph, which goes on until `k` of the vectors that a filter lets through are found."""
        where, parameters = self._among(kind, selection, one_by_one=False)
        settings = {
            "hnsw.ef_search": str(min(MOST_EF, max(EF_SEARCH, k))),
            "hnsw.iterative_scan": "strict_order",
            "hnsw.max_scan_tuples": str(max(20_000, 40 * k)),
            "enable_seqscan": "off",
            "enable_sort": "off",
            "enable_hashjoin": "off",
            "enable_mergejoin": "off",
        }
        self._configure(settings)
        sql = (
            f"SELECT number, -(vector <#> %s::vector) AS score FROM {self._schema}.{kind}_vectors AS v {where} "
            "ORDER BY vector <#> %s::vector LIMIT %s"
        )
        text = vector_text(query)
        rows = self._db.execute(sql, (text, *parameters, text, k)).fetchall()
        self._configure({name: "on" for name in settings if name.startswith("enable")})
        return sorted(rows, key=lambda row: (-row[1], row[0]))

    def _configure(self, settings: dict[str, str]) -> None:
        """Set parameters of the planner for this transaction."""
        calls = ", ".join(["set_config(%s, %s, true)"] * len(settings))
        self._db.execute(f"SELECT {calls}", [text for setting in settings.items() for text in setting])

    def _among(self, kind: Kind, selection: Selected | None, *, one_by_one: bool = True) -> tuple[str, tuple[Any, ...]]:
        """SQL that limits rows of vectors `v` to a selection."""
        if selection is None:
            return "", ()
        sql, parameters = selection.condition
        number = "v.number" if kind == "document" else f"v.number >> {PASSAGE_BITS}"
        documents = f"{self._schema}.documents"
        if one_by_one:
            return f"WHERE {number} IN (SELECT number FROM {documents} WHERE {sql})", parameters
        return f"WHERE EXISTS (SELECT FROM {documents} AS d WHERE d.number = {number} AND ({sql}))", parameters

    def vectors(self, kind: Kind, numbers: IntArray) -> FloatArray:
        """Vectors `[n, d]` of documents or passages, by numbers `[n]`, in their order."""
        sql = f"SELECT number, vector_send(vector) FROM {self._schema}.{kind}_vectors WHERE number = ANY(%s)"
        rows = dict(self._db.execute(sql, (numbers.tolist(),), binary=True).fetchall())
        missing = next((number for number in numbers.tolist() if number not in rows), None)
        if missing is not None:
            raise IndexFormatError(f"{self.info.name}: no vector of {kind} number {missing}; {self.info.remedy}")
        return np.array([_vector(rows[number]) for number in numbers.tolist()], np.float32).reshape(-1, self.info.dim)

    @cached_property
    def mean_vector(self) -> FloatArray:
        """The mean `[d]` of the vectors of the documents that an index directory chooses, too ."""
        return self._means.get(self._state.generation, self._mean)

    def _mean(self) -> FloatArray:
        chosen = f"SELECT number FROM {self._schema}.documents ORDER BY key LIMIT {SAMPLE}"
        kind = self.info.kinds[0]
        match = "v.number = s.number"
        if kind == "passage":
            match = passages_of("v.number", "s.number")
        (mean,) = self._db.execute(
            f"SELECT vector_send(avg(vector)) FROM ({chosen}) AS s JOIN {self._schema}.{kind}_vectors AS v ON {match}",
            binary=True,
        ).fetchone()
        return np.zeros(self.info.dim, np.float32) if mean is None else _vector(mean).astype(np.float32)

    # --- words -------------------------------------------------------------------------------------------------------

    @property
    def mean_passage_length(self) -> float:
        """The mean length of all passages, in characters."""
        return self._state.passage_characters / max(self._state.passages, 1)

    def by_words(self, kind: Kind, text: str, k: int, selection: Selected | None = None) -> list[tuple[int, float]]:
        """The `k` best documents or passages by BM25, best first; fewer where fewer hold a word."""
        words, s = self.language.words(text), self._state
        rows, length = s.worded_documents, s.document_words
        if kind == "passage":
            rows, length = s.worded_passages, s.passage_words
        statistics = Statistics(rows, length / max(rows, 1), self._words.holding(kind, words))
        allowed, among, parameters = None, "", tuple[Any, ...]()
        if selection is not None and selection.documents <= FEW_DOCUMENTS:
            allowed = self.matching(selection) if kind == "document" else self._passages_of(selection)
        elif selection is not None:
            number = "r.number" if kind == "document" else f"r.number >> {PASSAGE_BITS}"
            sql, parameters = selection.condition
            among = f"AND EXISTS (SELECT FROM {self._schema}.documents AS d WHERE d.number = {number} AND ({sql}))"
        return self._words.best(kind, words, k, statistics, allowed, among, parameters)

    def occurrences(self, text: str, passages: IntArray) -> tuple[IntArray, BoolArray]:
        """How many passages hold each word of a text, `[t]`, and which of some `[n]`, ascending, do: `[t, n]`."""
        words = self.language.words(text)
        return self._words.holding("passage", words), self._words.held(words, passages)

    # --- documents ---------------------------------------------------------------------------------------------------

    def find(self, ids: Sequence[str]) -> dict[str, int]:
        """Numbers of documents by their ids; those that are not there are left out."""
        rows = self._db.execute(
            f"SELECT id, number FROM {self._schema}.documents WHERE key = ANY(%s)",
            ([id_digest(document_id) for document_id in ids],),
        )
        return dict(rows.fetchall())

    def documents(self, docs: Sequence[int], *, texts: bool = True) -> dict[int, StoredDocument]:
        """Documents by number; those that are not there are left out. Without `texts`, texts are empty."""
        columns = "number, id, title, text, metadata, pages" if texts else "number, id, '', '', '{}', NULL"
        rows = self._db.execute(
            f"SELECT {columns} FROM {self._schema}.documents WHERE number = ANY(%s)",
            (list(docs),),
        )
        return {
            number: StoredDocument(number, name, title, text, json.loads(fields), pages_alone(pages))
            for number, name, title, text, fields, pages in rows
        }

    def passages(self, passages: Sequence[int]) -> dict[int, StoredPassage]:
        """Passages by number; those that are not there are left out."""
        rows = self._db.execute(
            f"SELECT number, start, stop, heading FROM {self._schema}.passages WHERE number = ANY(%s)",
            (list(passages),),
        )
        return {number: StoredPassage((start, stop), heading) for number, start, stop, heading in rows}

    def passage_numbers(self, docs: Sequence[int]) -> IntArray:
        """Numbers of the passages of some documents, `[n]`, ascending."""
        return self._numbers_of_passages("number = ANY(%s)", (list(docs),))

    def passage_spans(self, docs: Sequence[int]) -> tuple[IntArray, IntArray]:
        """Passages of some documents, ascending: numbers `[n]` and characters of the text `[n, 2]`."""
        rows = self._db.execute(
            f"SELECT p.number, start, stop FROM unnest(%s::bigint[]) AS d JOIN {self._schema}.passages AS p "
            f"ON {passages_of('p.number', 'd')} ORDER BY p.number",
            (list(docs),),
        ).fetchall()
        found = np.array(rows, dtype=np.int64).reshape(-1, 3)
        return found[:, 0], found[:, 1:]


def _vector(sent: bytes) -> FloatArray:
    """A vector as pgvector sends it: its dimension and two unused bytes, then float32, all big-endian."""
    return np.frombuffer(sent, dtype=">f4", offset=4)


def _numbers(rows: Any) -> IntArray:
    return np.array([number for (number,) in rows], dtype=np.int64)
