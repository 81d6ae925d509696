"""One state of a collection in PostgreSQL: what a search reads, in one transaction."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any, NamedTuple

import numpy as np

from aveyb_retrieval.errors import IndexFormatError
from aveyb_retrieval.indexes.engines.postgres.filters import compile_filter
from aveyb_retrieval.indexes.engines.reader import CollectionView
from aveyb_retrieval.indexes.engines.words import POSTING, bm25, word_key
from aveyb_retrieval.indexes.store.numbering import PASSAGE_BITS, expand_passages

if TYPE_CHECKING:
    from collections.abc import Iterable, Sequence

    from aveyb_retrieval.indexes.engines.reader import Version
    from aveyb_retrieval.indexes.store.filters import Condition, Filter
    from aveyb_retrieval.indexes.types import FloatArray, IntArray, Kind

EXACT_ROWS = 20_000  # so many vectors are scored in some ten milliseconds
EXACT_SHARE = 0.02  # below this share of allowed vectors a graph loses recall or takes longer than scoring them all
EF_SEARCH = 200  # candidates that a search of the graph keeps; at most 1,000
MOST_EF = 1000


class Counts(NamedTuple):
    """The row of `counts` of one kind: how many there are, and of those with words how many, and their words."""

    n: int
    worded: int
    words: int
    characters: int


class Selected(NamedTuple):
    """What a filter lets through: the condition, and documents, ascending, with their counts of passages `[n, 2]`."""

    condition: Condition
    documents: IntArray


class PostgresView(CollectionView):
    """A transaction that reads one state."""

    def __init__(self, connection: Any, version: Version) -> None:
        """Read a version over a connection that is in a transaction."""
        self._db = connection
        self._schema = version.label
        rows = connection.execute(
            f"SELECT changes, kind, {', '.join(Counts._fields)} FROM {self._schema}.state, {self._schema}.counts"
        ).fetchall()
        self._counts = {kind: Counts(*row) for _, kind, *row in rows}
        super().__init__(version, rows[0][0])

    # --- filters -----------------------------------------------------------------------------------------------------

    def select(self, where: Filter | None) -> Selected | None:
        """Compile a filter and count what it lets through."""
        if where is None:
            return None
        condition = compile_filter(where)
        ((found,),) = self._db.execute(
            "SELECT string_agg(int8send(number) || int8send(passages), ''::bytea ORDER BY number) "
            f"FROM {self._schema}.documents WHERE {condition.sql}",
            condition.parameters,
            binary=True,
        )
        return Selected(condition, np.frombuffer(found or b"", dtype=">i8").astype(np.int64).reshape(-1, 2))

    def count(self, kind: Kind, selection: Selected | None = None) -> int:
        """Count the vectors of a kind that can be found."""
        if selection is None:
            return self._counts[kind].n
        return len(selection.documents) if kind == "document" else int(selection.documents[:, 1].sum())

    def matching(self, selection: Selected) -> IntArray:
        """Numbers of the documents of a selection, ascending."""
        return selection.documents[:, 0]

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
        where, parameters = self._among(kind, selection)
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

    def _among(self, kind: Kind, selection: Selected | None) -> tuple[str, tuple[Any, ...]]:
        """SQL that limits rows of vectors `v` to a selection."""
        if selection is None:
            return "", ()
        sql, parameters = selection.condition
        number = "v.number" if kind == "document" else f"v.number >> {PASSAGE_BITS}"
        documents = f"SELECT FROM {self._schema}.documents AS d WHERE d.number = {number} AND ({sql})"
        return f"WHERE EXISTS ({documents})", parameters

    # --- rows --------------------------------------------------------------------------------------------------------

    def read(
        self, kind: Kind, columns: Sequence[str], values: Iterable[int], *, by: str = "number"
    ) -> Iterable[tuple[Any, ...]]:
        """Columns of the rows whose number, or rank, is one of some values, in any order."""
        sql = f"SELECT {', '.join(columns)} FROM {self._schema}.{kind}s WHERE {by} = ANY(%s)"
        found: list[tuple[Any, ...]] = self._db.execute(sql, (list(values),)).fetchall()
        return found

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

    # --- words -------------------------------------------------------------------------------------------------------

    @property
    def mean_passage_length(self) -> float:
        """The mean length of all passages, in characters."""
        counted = self._counts["passage"]
        return counted.characters / max(counted.n, 1)

    def by_words(self, kind: Kind, text: str, k: int, selection: Selected | None = None) -> list[tuple[int, float]]:
        """The `k` best documents or passages by BM25, best first; fewer where fewer hold a word."""
        keys, counted = [word_key(word) for word in self.language.words(text)], self._counts[kind]
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
        keys = [word_key(word) for word in words]
        sql = f"SELECT key, sum(n)::bigint FROM {self._schema}.passage_lists WHERE key = ANY(%s) GROUP BY key"
        counts = dict(self._db.execute(sql, (keys,)).fetchall())
        return [counts.get(key, 0) for key in keys]


def vector_text(vector: FloatArray) -> str:
    """Write a vector `[d]` as pgvector reads it."""
    return f"[{','.join(map(str, vector.tolist()))}]"
