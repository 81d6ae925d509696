"""One state of a collection in PostgreSQL: what a search reads, in one transaction."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any, NamedTuple

import numpy as np

from aveyb_retrieval.errors import IndexFormatError
from aveyb_retrieval.indexes.engines.facts import FactFilters
from aveyb_retrieval.indexes.engines.reader import CollectionView
from aveyb_retrieval.indexes.engines.words import POSTING, bm25, word_key
from aveyb_retrieval.indexes.store.numbering import PASSAGE_BITS, expand_passages

if TYPE_CHECKING:
    from collections.abc import Iterable, Sequence

    from aveyb_retrieval.indexes.engines.postgres.collection import PostgresCollection
    from aveyb_retrieval.indexes.engines.reader import Version
    from aveyb_retrieval.indexes.store.filters import Filter
    from aveyb_retrieval.indexes.types import FloatArray, IntArray, Kind

EXACT_ROWS = 20_000  # so many vectors are scored in some ten milliseconds
EXACT_SHARE = 0.02  # below this share of allowed vectors a graph loses recall or takes longer than scoring them all
EF_SEARCH = 200  # candidates that a search of the graph keeps; at most 1,000
MOST_EF = 1000
FILTERS = FactFilters(
    holds="facts && ARRAY[{}]::bigint[]",
    there="bounds ? '{}'",
    number="coalesce((bounds ->> '{key}')::numeric {operator} %s::numeric, false)",
    text="coalesce((bounds ->> '{key}') COLLATE \"C\" {operator} %s, false)",
    part="coalesce(strpos(bounds ->> '{}', %s) > 0, false)",
)


class Selected(NamedTuple):
    """What a filter lets through: SQL and its parameters, and documents, ascending, with their passages `[n, 2]`."""

    sql: str
    parameters: list[str]
    documents: IntArray


class PostgresView(CollectionView):
    """A transaction that reads one state."""

    def __init__(self, collection: PostgresCollection, version: Version) -> None:
        """Read a version over a connection that is in a transaction."""
        from psycopg.rows import namedtuple_row

        super().__init__(collection, version)
        self._db, self._schema = collection.db, version.label
        rows = self._db.cursor(row_factory=namedtuple_row).execute(f"SELECT * FROM {self._schema}.counts").fetchall()
        self._counts, self.state = {row.kind: row for row in rows}, rows[0].changes

    def select(self, where: Filter | None) -> Selected | None:
        """Compile a filter and count what it lets through."""
        if where is None:
            return None
        sql, given = FILTERS.compile(where)
        parameters = list(map(str, given))
        ((found,),) = self._db.execute(
            "SELECT string_agg(int8send(number) || int8send(passages), ''::bytea ORDER BY number) "
            f"FROM {self._schema}.documents WHERE {sql}",
            parameters,
            binary=True,
        )
        return Selected(sql, parameters, np.frombuffer(found or b"", dtype=">i8").astype(np.int64).reshape(-1, 2))

    def count(self, kind: Kind, selection: Selected | None = None) -> int:
        """Count the vectors of a kind that can be found."""
        if selection is None:
            return self._counts[kind].n
        return len(selection.documents) if kind == "document" else int(selection.documents[:, 1].sum())

    def matching(self, selection: Selected) -> IntArray:
        """Numbers of the documents of a selection, ascending."""
        return selection.documents[:, 0]

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
            sql, given = self._scored(kind, query, selection)
            found = [] if exact or few else self._by_graph(sql, given, k)
            if len(found) < k:  # ordered by what the graph is not of
                found = self._db.execute(f"{sql} ORDER BY score DESC, number LIMIT %s", (*given, k)).fetchall()
            if len(found) < k:
                raise IndexFormatError(
                    f"{self.info.name}: {len(found)} {kind} vectors where {k} are counted; {self.info.remedy}"
                )
            numbers[row], scores[row] = zip(*found, strict=True)
        return scores, numbers

    def _by_graph(self, sql: str, given: list[str], k: int) -> list[tuple[int, float]]:
        """Search the HNSW graph, which goes on until `k` of the vectors that a filter lets through are found."""
        effort = {"ef_search": min(MOST_EF, max(EF_SEARCH, k)), "max_scan_tuples": max(20_000, 40 * k)}
        limits = "".join(f"SET LOCAL hnsw.{name} = {value};" for name, value in effort.items())
        ways = ("seqscan", "sort", "hashjoin", "mergejoin")  # of the planner, beside the graph
        off = "".join(f"SET LOCAL enable_{way} = off;" for way in ways)
        self._db.execute(f"{limits} SET LOCAL hnsw.iterative_scan = strict_order; {off}")
        rows = self._db.execute(f"{sql} ORDER BY vector <#> %s::vector LIMIT %s", (*given, given[0], k)).fetchall()
        self._db.execute(off.replace("off", "on"))
        return sorted(rows, key=lambda row: (-row[1], row[0]))

    def _scored(self, kind: Kind, query: FloatArray, selection: Selected | None) -> tuple[str, list[str]]:
        """SQL of the numbers and scores of vectors, and its parameters, the query first."""
        sql = f"SELECT v.number, -(vector <#> %s::vector) AS score FROM {self._schema}.{kind}_vectors AS v"
        if selection is None:
            return sql, [vector_text(query)]
        number = "v.number" if kind == "document" else f"v.number >> {PASSAGE_BITS}"
        documents = f"SELECT FROM {self._schema}.documents AS d WHERE d.number = {number} AND ({selection.sql})"
        return f"{sql} WHERE EXISTS ({documents})", [vector_text(query), *selection.parameters]

    def read(
        self, kind: Kind, columns: Sequence[str], values: Iterable[int], *, by: str = "number"
    ) -> Iterable[tuple[Any, ...]]:
        """Columns of the rows whose number, or rank, is one of some values, in any order."""
        sql = f"SELECT {', '.join(columns)} FROM {self._schema}.{kind}s WHERE {by} = ANY(%s)"
        return self._db.execute(sql, (list(values),)).fetchall()

    def read_vectors(self, kind: Kind, numbers: list[int]) -> Iterable[tuple[int, FloatArray]]:
        """Vectors with their numbers."""
        sql = f"SELECT number, vector_send(vector) FROM {self._schema}.{kind}_vectors WHERE number = ANY(%s)"
        # pgvector sends the dimension and two unused bytes, then float32, all big-endian
        for number, sent in self._db.execute(sql, (numbers,), binary=True):
            yield number, np.frombuffer(sent, dtype=">f4", offset=4)

    def sample(self, most: int) -> list[int]:
        """Numbers of the documents of least rank."""
        rows = self._db.execute(f"SELECT number FROM {self._schema}.documents ORDER BY rank LIMIT %s", (most,))
        return [number for (number,) in rows]

    @property
    def mean_passage_length(self) -> float:
        """The mean length of all passages, in characters."""
        counted = self._counts["passage"]
        return counted.characters / max(counted.n, 1)

    def by_words(
        self, kind: Kind, words: Sequence[str], k: int, selection: Selected | None = None
    ) -> list[tuple[int, float]]:
        """The `k` best documents or passages by BM25, best first; fewer where fewer hold a word."""
        keys, counted = list(map(word_key, words)), self._counts[kind]
        blocks: dict[bytes, bytes] = {}
        for key, held in self._db.execute(
            f"SELECT key, held FROM {self._schema}.{kind}_lists WHERE key = ANY(%s)", (keys,), binary=True
        ):
            blocks[key] = blocks.get(key, b"") + held
        lists = [np.frombuffer(held, POSTING) for held in blocks.values()]
        numbers, scores = bm25(lists, counted.worded, counted.words / max(counted.worded, 1))
        if selection is not None:
            chosen = selection.documents
            allowed = np.isin(numbers, chosen[:, 0] if kind == "document" else expand_passages(chosen))
            numbers, scores = numbers[allowed], scores[allowed]
        best = np.lexsort((numbers, -scores))[:k]
        return list(zip(numbers[best].tolist(), scores[best].tolist(), strict=True))

    def holding(self, words: Sequence[str]) -> list[int]:
        """How many passages hold each of some words."""
        keys = list(map(word_key, words))
        sql = f"SELECT key, sum(n)::bigint FROM {self._schema}.passage_lists WHERE key = ANY(%s) GROUP BY key"
        counts = dict(self._db.execute(sql, (keys,)).fetchall())
        return [counts.get(key, 0) for key in keys]


def vector_text(vector: FloatArray) -> str:
    """Write a vector `[d]` as pgvector reads it."""
    return f"[{','.join(map(str, vector.tolist()))}]"
