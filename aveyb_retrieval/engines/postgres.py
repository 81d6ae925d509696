"""PostgreSQL with pgvector: a collection that is published to and searched.

A version is a schema of its own, `aveyb_NAME_N`, and a row of the table `aveyb.versions`, which
says whether readers see it; one update of that table is the switch.
"""

from __future__ import annotations

import logging
from contextlib import contextmanager
from copy import copy
from typing import TYPE_CHECKING, Any, NamedTuple
from urllib.parse import urlunsplit

import numpy as np

from aveyb_retrieval.engines.collection import Collection, CollectionView
from aveyb_retrieval.engines.database_rows import FactFilters, ascii_word, pack_postings, word_key
from aveyb_retrieval.errors import (
    ConfigError,
    EngineError,
    IndexFormatError,
    IndexLockedError,
    InputError,
    extra_for,
    first_line,
)
from aveyb_retrieval.indexes.store.postings import POSTING, bm25
from aveyb_retrieval.indexes.types import PASSAGE_BITS, expand_passages

if TYPE_CHECKING:
    from collections.abc import Iterable, Iterator, Mapping, Sequence

    from aveyb_retrieval.engines.collection import Address, CollectionSettings, Rows, Version
    from aveyb_retrieval.indexes.search.operators import Sought
    from aveyb_retrieval.indexes.store.filters import Filter
    from aveyb_retrieval.indexes.types import FloatArray, IntArray, Kind

EXACT_ROWS = 20_000  # so many vectors are scored in some ten milliseconds
# below this share of allowed vectors a graph loses recall or takes longer than scoring them all
EXACT_SHARE = 0.02
EF_SEARCH_CANDIDATES = 200  # candidates that a search of the graph keeps; at most 1,000
MAX_EF_CANDIDATES = 1000
FILTERS = FactFilters(
    holds="facts && ARRAY[{}]::bigint[]",
    has_key="bounds ? '{}'",
    number="coalesce((bounds ->> '{key}')::numeric {operator} %s::numeric, false)",
    text="coalesce((bounds ->> '{key}') COLLATE \"C\" {operator} %s, false)",
    part="coalesce(strpos(bounds ->> '{}', %s) > 0, false)",
)


class Selected(NamedTuple):
    """What a filter lets through: SQL and its parameters, and documents, ascending, with their
    passages `[n, 2]`.
    """

    sql: str
    parameters: list[str]
    documents: IntArray


class PostgresView(CollectionView):
    """A transaction that reads one state."""

    def __init__(self, collection: PostgresCollection, version: Version) -> None:
        from psycopg.rows import namedtuple_row

        super().__init__(collection, version)
        self._db, self._schema = collection.db, version.label
        rows = (
            self._db.cursor(row_factory=namedtuple_row)
            .execute(f"SELECT * FROM {self._schema}.counts")
            .fetchall()
        )
        self._counts, self.state = {row.kind: row for row in rows}, rows[0].changes

    def select(self, where: Filter | None) -> Selected | None:
        if where is None:
            return None
        sql, parameters = FILTERS.compile(where)
        return self._selected(sql, list(map(str, parameters)))

    def narrow(
        self, selection: Selected | None, kind: Kind, conditions: Sequence[Sought]
    ) -> Selected:
        """The documents of a selection, or of all, in whose stored words phrases stand, or not."""
        if kind == "passage":
            return super().narrow(selection, kind, conditions)
        sql, parameters = (
            ("true", [])
            if selection is None
            else (f"({selection.sql})", list(selection.parameters))
        )
        for sought in conditions:
            sql += f" AND {'' if sought.condition.must else 'NOT '}position(%s IN words) > 0"
            parameters.append(f" {' '.join(map(ascii_word, sought.phrases[0]))} ")
        return self._selected(sql, parameters)

    def _selected(self, sql: str, parameters: list[str]) -> Selected:
        ((packed,),) = self._db.execute(
            "SELECT string_agg(int8send(number) || int8send(passages), ''::bytea ORDER BY number) "
            f"FROM {self._schema}.documents WHERE {sql}",
            parameters,
            binary=True,
        )
        return Selected(
            sql,
            parameters,
            np.frombuffer(packed or b"", dtype=">i8").astype(np.int64).reshape(-1, 2),
        )

    def count(self, kind: Kind, selection: Selected | None = None) -> int:
        if selection is None:
            return self._counts[kind].n
        return (
            len(selection.documents) if kind == "document" else int(selection.documents[:, 1].sum())
        )

    def matching(self, selection: Selected) -> IntArray:
        return selection.documents[:, 0]

    def nearest(
        self,
        kind: Kind,
        queries: FloatArray,
        k: int,
        selection: Selected | None = None,
        *,
        exact: bool = False,
    ) -> tuple[FloatArray, IntArray]:
        """Score few vectors, and those that a filter leaves few of, one by one; otherwise search
        the graph.
        """
        count = self.count(kind, selection)
        k = min(k, count)
        scores, numbers = (
            np.empty((len(queries), k), np.float32),
            np.empty((len(queries), k), np.int64),
        )
        few = count <= EXACT_ROWS or count <= EXACT_SHARE * self.count(kind)
        for row, query in enumerate(queries if k else ()):
            sql, parameters = self._scored(kind, query, selection)
            ranked = [] if exact or few else self._by_graph(sql, parameters, k)
            if len(ranked) < k:  # ordered by what the graph is not of
                ranked = self._db.execute(
                    f"{sql} ORDER BY score DESC, number LIMIT %s", (*parameters, k)
                ).fetchall()
            if len(ranked) < k:
                raise IndexFormatError(
                    f"{self.info.name}: {len(ranked)} {kind} vectors, but {k} are counted;"
                    f" {self.info.remedy}"
                )
            numbers[row], scores[row] = zip(*ranked, strict=True)
        return scores, numbers

    def _by_graph(self, sql: str, parameters: list[str], k: int) -> list[tuple[int, float]]:
        """Search the HNSW graph, which goes on until `k` of the vectors that a filter lets through
        are found.
        """
        effort = {
            "ef_search": min(MAX_EF_CANDIDATES, max(EF_SEARCH_CANDIDATES, k)),
            "max_scan_tuples": max(20_000, 40 * k),
        }
        limits = "".join(f"SET LOCAL hnsw.{name} = {value};" for name, value in effort.items())
        ways = ("seqscan", "sort", "hashjoin", "mergejoin")  # of the planner, beside the graph
        off = "".join(f"SET LOCAL enable_{way} = off;" for way in ways)
        self._db.execute(f"{limits} SET LOCAL hnsw.iterative_scan = strict_order; {off}")
        rows = self._db.execute(
            f"{sql} ORDER BY vector <#> %s::vector LIMIT %s", (*parameters, parameters[0], k)
        ).fetchall()
        self._db.execute(off.replace("off", "on"))
        return sorted(rows, key=lambda row: (-row[1], row[0]))

    def _scored(
        self, kind: Kind, query: FloatArray, selection: Selected | None
    ) -> tuple[str, list[str]]:
        """SQL of the numbers and scores of vectors, and its parameters, the query first."""
        sql = (
            f"SELECT v.number, -(vector <#> %s::vector) AS score FROM {self._schema}.{kind}_vectors"
            " AS v"
        )
        if selection is None:
            return sql, [vector_text(query)]
        number = "v.number" if kind == "document" else f"v.number >> {PASSAGE_BITS}"
        documents = (
            f"SELECT FROM {self._schema}.documents AS d WHERE d.number = {number} AND"
            f" ({selection.sql})"
        )
        return f"{sql} WHERE EXISTS ({documents})", [vector_text(query), *selection.parameters]

    def read(
        self, kind: Kind, columns: Sequence[str], values: Iterable[int], *, by: str = "number"
    ) -> Iterable[tuple[Any, ...]]:
        sql = f"SELECT {', '.join(columns)} FROM {self._schema}.{kind}s WHERE {by} = ANY(%s)"
        return self._db.execute(sql, (list(values),)).fetchall()

    def read_vectors(self, kind: Kind, numbers: list[int]) -> Iterable[tuple[int, FloatArray]]:
        sql = (
            f"SELECT number, vector_send(vector) FROM {self._schema}.{kind}_vectors WHERE number ="
            " ANY(%s)"
        )
        # pgvector sends the dimension and two unused bytes, then float32, all big-endian
        for number, sent in self._db.execute(sql, (numbers,), binary=True):
            yield number, np.frombuffer(sent, dtype=">f4", offset=4)

    def sample(self, most: int) -> list[int]:
        rows = self._db.execute(
            f"SELECT number FROM {self._schema}.documents ORDER BY rank LIMIT %s", (most,)
        )
        return [number for (number,) in rows]

    @property
    def mean_passage_length(self) -> float:
        counted = self._counts["passage"]
        return counted.characters / max(counted.n, 1)

    def by_words(
        self, kind: Kind, words: Sequence[str], k: int, selection: Selected | None = None
    ) -> list[tuple[int, float]]:
        keys, counted = list(map(word_key, words)), self._counts[kind]
        blocks: dict[bytes, bytes] = {}
        for key, held in self._db.execute(
            f"SELECT key, held FROM {self._schema}.{kind}_lists WHERE key = ANY(%s)",
            (keys,),
            binary=True,
        ):
            blocks[key] = blocks.get(key, b"") + held
        lists = [np.frombuffer(held, POSTING) for held in blocks.values()]
        numbers, scores = bm25(lists, counted.worded, counted.words / max(counted.worded, 1))
        if selection is not None:
            chosen = selection.documents
            allowed = np.isin(
                numbers, chosen[:, 0] if kind == "document" else expand_passages(chosen)
            )
            numbers, scores = numbers[allowed], scores[allowed]
        best = np.lexsort((numbers, -scores))[:k]
        return list(zip(numbers[best].tolist(), scores[best].tolist(), strict=True))

    def holding(self, words: Sequence[str]) -> list[int]:
        keys = list(map(word_key, words))
        sql = (
            f"SELECT key, sum(n)::bigint FROM {self._schema}.passage_lists WHERE key = ANY(%s)"
            " GROUP BY key"
        )
        counts = dict(self._db.execute(sql, (keys,)).fetchall())
        return [counts.get(key, 0) for key in keys]


def vector_text(vector: FloatArray) -> str:
    """Write a vector `[d]` as pgvector reads it."""
    return f"[{','.join(map(str, vector.tolist()))}]"


WAIT_SECONDS = 10  # seconds for a server to accept a connection, where the URL says nothing else
MAX_DIMENSIONS = 2000  # that pgvector's HNSW index takes
BLOCK_ROWS = 1 << 16  # rows of a word's list that are kept together, 1 MB
LOCK_WAIT_SECONDS = 5  # seconds that the removal of an old version waits for its readers
# pgvector with iterative scans: without them a filter leaves fewer hits than there are
OLDEST = (0, 8)
COLUMNS = {  # those of `DocumentRow` and `PassageRow` but for the vector
    "document": (
        "number bigint PRIMARY KEY, rank bigint, id text, stored text, passages bigint, facts"
        " bigint[], bounds jsonb, words text"
    ),
    "passage": "number bigint PRIMARY KEY, start integer, stop integer, heading text, words text,"
    " share real",
}
_BEGIN = "BEGIN ISOLATION LEVEL REPEATABLE READ READ ONLY"
_REGISTRY = """
CREATE SCHEMA IF NOT EXISTS aveyb;
CREATE TABLE IF NOT EXISTS aveyb.versions(
    name text, version bigint, settings jsonb NOT NULL, shown boolean DEFAULT false, PRIMARY KEY (name, version));
"""  # noqa: E501
_SCHEMA = """
CREATE SCHEMA {schema};
CREATE SEQUENCE {schema}.numbers;
CREATE TABLE {schema}.counts(
    kind text PRIMARY KEY, changes bigint DEFAULT 0, n bigint DEFAULT 0, worded bigint DEFAULT 0,
    words bigint DEFAULT 0, characters bigint DEFAULT 0);
"""
_TABLES = """
INSERT INTO {schema}.counts VALUES ('{kind}');
CREATE TABLE {schema}.{kind}s({columns});
CREATE TABLE {schema}.{kind}_vectors(number bigint PRIMARY KEY, vector vector({dim}) NOT NULL);
ALTER TABLE {schema}.{kind}_vectors ALTER vector SET STORAGE PLAIN;
CREATE TABLE {schema}.{kind}_lists(key bytea NOT NULL, n integer NOT NULL, held bytea NOT NULL);
ALTER TABLE {schema}.{kind}_lists ALTER held SET STORAGE EXTERNAL;
"""
# A list of `pack_postings` was written in one block for each batch: joined, up to BLOCK_ROWS rows
# each.
_FINISH = """
WITH written AS (DELETE FROM {schema}.{kind}_lists RETURNING *),
    parts AS (SELECT *, sum(n) OVER (PARTITION BY key ROWS UNBOUNDED PRECEDING) / {block} AS part FROM written)
INSERT INTO {schema}.{kind}_lists SELECT key, sum(n), string_agg(held, ''::bytea) FROM parts GROUP BY key, part;
VACUUM (FULL, ANALYZE) {schema}.{kind}_lists;
CREATE INDEX IF NOT EXISTS {kind}_lists_key ON {schema}.{kind}_lists (key);
CREATE INDEX IF NOT EXISTS {kind}_graph ON {schema}.{kind}_vectors USING hnsw (vector vector_ip_ops)
    WITH (m = 16, ef_construction = 128);
CREATE INDEX IF NOT EXISTS documents_facts ON {schema}.documents USING gin (facts);
CREATE INDEX IF NOT EXISTS documents_rank ON {schema}.documents (rank);
ANALYZE {schema}.{kind}_vectors, {schema}.{kind}s
"""  # noqa: E501

logger = logging.getLogger(__name__)


def _psycopg() -> Any:
    """Return psycopg; raises OptionalDependencyError where it is not installed."""
    with extra_for("postgresql:// addresses", "pgvector"):
        import psycopg
    return psycopg


class PostgresCollection(Collection):
    """A collection over one connection, and those for reading that nobody uses at the moment."""

    viewed_by = PostgresView

    def __init__(self, address: Address, *, writes: bool) -> None:
        super().__init__(address, writes=writes)
        self._free: list[Any] = []
        self._closed = False
        self.db: Any = self._connect() if writes else None

    def _connect(self) -> Any:
        """Open a connection that commits every statement unless a transaction is begun."""
        if len(self.address.folders) != 1:
            raise ConfigError(
                f"{self.name}: write it as postgresql://USER@HOST:PORT/DATABASE/COLLECTION"
            )
        psycopg = _psycopg()
        from psycopg.conninfo import conninfo_to_dict
        from psycopg.types.json import JsonbDumper

        url = self.address.url
        server = urlunsplit(
            (url.scheme, url.netloc, url.path.strip("/").partition("/")[0], url.query, "")
        )
        try:
            settings: Any = {
                "connect_timeout": WAIT_SECONDS,
                "application_name": "aveyb-retrieval",
                **conninfo_to_dict(server),
            }
            # plans depend on the query's vector and filter, so that none is kept
            connection = psycopg.connect(**settings, autocommit=True, prepare_threshold=None)
        except psycopg.ProgrammingError as error:
            raise ConfigError(
                f"{self.name}: not an address of a server ({first_line(error)})"
            ) from error
        except psycopg.OperationalError as error:
            raise EngineError(
                f"{self.name}: no connection ({first_line(error)}); check that the server runs"
                " there, and the user, password and database"
            ) from error
        connection.adapters.register_dumper(dict, JsonbDumper)
        return connection

    def close(self) -> None:
        self._closed = True  # what is in use is closed after it
        for connection in (self.db, *self._free):
            if connection is not None:
                connection.close()

    @contextmanager
    def translated(self) -> Iterator[None]:
        psycopg = _psycopg()
        try:
            yield
        except psycopg.Error as error:
            said = first_line(error)
            if isinstance(error, (psycopg.errors.UndefinedTable, psycopg.errors.InvalidSchemaName)):
                raise self.missing_version() from error
            if isinstance(error, psycopg.errors.InsufficientPrivilege):
                said = f"{said}; grant this user the right to do so"
            elif isinstance(error, psycopg.OperationalError):
                said = f"the server failed or went away ({said}); try again"
            raise EngineError(f"{self.name}: {said}") from error

    @contextmanager
    def reading(self) -> Iterator[PostgresCollection]:
        """Give a collection in one read-only transaction, which sees one state of the database."""
        reading = copy(self)
        with self.translated():
            reading.db = self._begun()
            try:
                yield reading
                reading.db.execute("ROLLBACK")
            except BaseException:
                reading.db.close()
                raise
        self._free.append(reading.db)
        if self._closed:
            self.close()

    def _begun(self) -> Any:
        """A connection in a transaction: one that was free, or where the server has cut those, a
        new one.
        """
        import psycopg

        while self._free:
            connection = self._free.pop()
            try:
                connection.execute(_BEGIN)
                return connection
            except psycopg.OperationalError:
                connection.close()  # the server was started again meanwhile
        connection = self._connect()
        connection.execute(_BEGIN)
        return connection

    def versions(self) -> dict[int, Mapping[str, Any] | None]:
        # other schemas are somebody else's
        return {number: settings for number, settings, _ in self._registered()}

    def visible_version(self) -> tuple[int, Mapping[str, Any]] | None:
        return next(
            (
                (number, settings)
                for number, settings, is_visible in self._registered()
                if is_visible
            ),
            None,
        )

    def _registered(self) -> list[tuple[int, Mapping[str, Any], bool]]:
        if self.db.execute("SELECT to_regclass('aveyb.versions')").fetchone() == (None,):
            return []
        sql = "SELECT version, settings, shown FROM aveyb.versions WHERE name = %s ORDER BY version"
        return self.db.execute(sql, (self.address.collection,)).fetchall()

    def create(self, number: int, settings: CollectionSettings) -> None:
        dim, schema = settings.encoding.dim, self.label(number)
        if dim > MAX_DIMENSIONS:
            raise ConfigError(
                f"{self.name}: vectors of dimension {dim}; pgvector's HNSW index takes"
                f" {MAX_DIMENSIONS:,}"
            )
        with self.db.transaction():
            self.db.execute(_SCHEMA.format(schema=schema))
            for kind, columns in COLUMNS.items():
                self.db.execute(_TABLES.format(schema=schema, kind=kind, columns=columns, dim=dim))
            row = (self.address.collection, number, settings.to_json())
            self.db.execute("INSERT INTO aveyb.versions VALUES (%s, %s, %s)", row)

    def show(self, number: int) -> None:
        sql = "UPDATE aveyb.versions SET shown = (version = %s) WHERE name = %s"
        self.db.execute(sql, (number, self.address.collection))

    def drop(self, number: int) -> None:
        """Remove a version; one that a reader holds at the moment is left to the next
        publication.
        """
        import psycopg

        schema = self.label(number)
        try:
            with self.db.transaction():
                self.db.execute(
                    f"SET LOCAL lock_timeout = '{LOCK_WAIT_SECONDS}s';"
                    f" DROP SCHEMA IF EXISTS {schema} CASCADE"
                )
                row = (self.address.collection, number)
                self.db.execute("DELETE FROM aveyb.versions WHERE name = %s AND version = %s", row)
        except psycopg.errors.LockNotAvailable:
            logger.warning(
                "%s: %s is being read; the next publication removes it", self.name, schema
            )

    def begin(self, settings: CollectionSettings, *, restart: bool) -> int:
        """Make sure of pgvector and our registry, and that nobody else publishes, and begin."""
        import psycopg

        with self.translated():
            try:
                self.db.execute("CREATE EXTENSION IF NOT EXISTS vector")
            except psycopg.Error as error:
                raise ConfigError(
                    f"{self.name}: the database has no pgvector ({first_line(error)}); install it"
                    " on the server and have an administrator run CREATE EXTENSION vector"
                ) from error
            (extension,) = self.db.execute(
                "SELECT extversion FROM pg_extension WHERE extname = 'vector'"
            ).fetchone()
            if tuple(int(part) for part in extension.split(".")[:2]) < OLDEST:
                raise ConfigError(
                    f"{self.name}: pgvector {extension}; {'.'.join(map(str, OLDEST))} or newer is"
                    " needed"
                )
            try:
                self.db.execute(_REGISTRY)
            except (psycopg.errors.UniqueViolation, psycopg.errors.DuplicateTable):
                self.db.execute(_REGISTRY)  # another process made it just now
            lock = f"aveyb {self.address.collection}"
            (free,) = self.db.execute(
                "SELECT pg_try_advisory_lock(hashtext(%s))", (lock,)
            ).fetchone()
        if not free:
            raise IndexLockedError(
                f"{self.name}: another process is publishing under this name; wait for its end"
            )
        return super().begin(settings, restart=restart)

    def add(self, rows: Rows) -> None:
        for record, _ in rows:
            plain = record.metadata_json.replace("\\u0000", "\0")
            for name, value in {
                "id": record.id,
                "title": record.title,
                "text": record.text,
                "metadata": plain,
            }.items():
                if "\0" in value:
                    raise InputError(
                        f"{record.location}: the {name} of document {record.id!r} holds a NUL"
                        " character, which PostgreSQL cannot store; remove it before publishing to"
                        f" {self.name}"
                    )
        with self.change():
            numbers = self.db.execute(
                "SELECT nextval(%s::regclass) FROM generate_series(1, %s)",
                (f"{self.version.label}.numbers", len(rows)),
            ).fetchall()
            made = [
                self.rows_of(number, *row) for (number,), row in zip(numbers, rows, strict=True)
            ]
            documents, passages = (
                [document for document, _ in made],
                [part for _, parts in made for part in parts],
            )
            self._insert("document", documents, [(row.number, row.words, 0) for row in documents])
            self._insert(
                "passage",
                passages,
                [(row.number, row.words, row.stop - row.start) for row in passages],
            )

    def finish(self) -> None:
        """Join the lists of words and build every index; what an interrupted run has done is kept
        or done again.
        """
        with self.translated():
            for kind in COLUMNS:
                for statement in _FINISH.format(
                    schema=self.version.label, kind=kind, block=BLOCK_ROWS
                ).split(";"):
                    self.db.execute(statement)

    @contextmanager
    def change(self) -> Iterator[None]:
        """One transaction: writers wait for each other here, and readers see all of it
        or nothing.
        """
        version = self.version
        with self.translated(), self.db.transaction():
            self.db.execute(f"UPDATE {version.label}.counts SET changes = changes + 1")
            yield

    def remove(self, docs: list[int]) -> None:
        passages = self.view().passage_numbers(docs).tolist()
        for kind, numbers, characters in (
            ("document", docs, "0"),
            ("passage", passages, "stop - start"),
        ):
            table = f"{self.version.label}.{kind}"
            self.db.execute(f"DELETE FROM {table}_vectors WHERE number = ANY(%s)", (numbers,))
            sql = (
                f"DELETE FROM {table}s WHERE number = ANY(%s) RETURNING number, words, {characters}"
            )
            self._count(kind, self.db.execute(sql, (numbers,)).fetchall(), -1)

    def _insert(
        self, kind: str, rows: Sequence[Any], counted: Sequence[tuple[int, str, int]]
    ) -> None:
        self._copy(f"{kind}s", (row[:-1] for row in rows))
        self._copy(f"{kind}_vectors", ((row.number, vector_text(row.vector)) for row in rows))
        self._count(kind, counted, 1)

    def _count(self, kind: str, rows: Sequence[tuple[int, str, int]], sign: int) -> None:
        """Add rows (number, words, characters) to the statistics and lists of words, or remove them
        (`sign` -1).
        """
        lengths = [words.count(" ", 1) for _, words, _ in rows]
        added = (
            len(rows),
            sum(length > 0 for length in lengths),
            sum(lengths),
            sum(row[2] for row in rows),
        )
        self.db.execute(
            f"UPDATE {self.version.label}.counts SET n = n + %s, worded = worded + %s, words ="
            " words + %s, characters = characters + %s WHERE kind = %s",
            (*(sign * number for number in added), kind),
        )
        lists = pack_postings((row[:2] for row in rows), sign)
        packed = (
            (word_key(word), sign * len(held), held.tobytes()) for word, held in lists.items()
        )
        self._copy(f"{kind}_lists", packed, ["bytea", "int4", "bytea"])

    def _copy(
        self, table: str, rows: Iterable[tuple[Any, ...]], binary: Sequence[str] = ()
    ) -> None:
        form = "(FORMAT BINARY)" if binary else ""
        with self.db.cursor().copy(f"COPY {self.version.label}.{table} FROM STDIN {form}") as copy:
            if binary:
                copy.set_types(binary)
            for row in rows:
                copy.write_row(row)
