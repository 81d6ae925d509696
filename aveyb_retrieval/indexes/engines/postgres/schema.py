"""The tables of a collection, and which version of it readers see.

A version is a schema of its own, `aveyb_NAME_N`. The table `aveyb.collections` names the schema that readers see; one
update of it is the switch.
"""

from __future__ import annotations

import json
import logging
from contextlib import contextmanager
from typing import TYPE_CHECKING, Any

from aveyb_retrieval.errors import ConfigError
from aveyb_retrieval.indexes.engines.postgres.connection import translated
from aveyb_retrieval.indexes.engines.versions import Versions
from aveyb_retrieval.wording import first_line

if TYPE_CHECKING:
    from collections.abc import Iterator, Mapping

    from aveyb_retrieval.indexes.engines.collection import Address, CollectionSettings
    from aveyb_retrieval.indexes.types import Kind

KINDS: tuple[Kind, ...] = ("document", "passage")
MOST_DIMENSIONS = 2000  # that pgvector's HNSW index takes
BLOCK = 1 << 16  # rows of a word's list that are kept together, 1 MB
LOCK_WAIT = 5  # seconds that the removal of an old version waits for its readers
OLDEST = (0, 8)  # pgvector with iterative scans: without them a filter leaves fewer hits than there are

logger = logging.getLogger(__name__)

_REGISTRY = """
CREATE SCHEMA IF NOT EXISTS aveyb;
CREATE TABLE IF NOT EXISTS aveyb.collections(name text PRIMARY KEY, version text NOT NULL);
"""
_TABLES = """
CREATE SCHEMA {schema};
CREATE TABLE {schema}.state(settings jsonb NOT NULL, changes bigint NOT NULL DEFAULT 0);
CREATE TABLE {schema}.counts(
    kind text PRIMARY KEY, n bigint NOT NULL DEFAULT 0, worded bigint NOT NULL DEFAULT 0,
    words bigint NOT NULL DEFAULT 0, characters bigint NOT NULL DEFAULT 0);
INSERT INTO {schema}.counts VALUES ('document'), ('passage');
CREATE SEQUENCE {schema}.numbers;
CREATE TABLE {schema}.documents(
    number bigint PRIMARY KEY, rank bigint NOT NULL, id text NOT NULL, stored text NOT NULL, fields jsonb NOT NULL,
    passages bigint NOT NULL, words text NOT NULL);
CREATE TABLE {schema}.passages(
    number bigint PRIMARY KEY, start integer NOT NULL, stop integer NOT NULL, heading text NOT NULL,
    words text NOT NULL);
"""
_TABLES_OF_KIND = """
CREATE TABLE {schema}.{kind}_vectors(number bigint PRIMARY KEY, vector vector({dim}) NOT NULL);
ALTER TABLE {schema}.{kind}_vectors ALTER vector SET STORAGE PLAIN;
CREATE TABLE {schema}.{kind}_lists(key bytea NOT NULL, n integer NOT NULL, held bytea NOT NULL);
ALTER TABLE {schema}.{kind}_lists ALTER held SET STORAGE EXTERNAL;
"""
# A list of `engines.words` was written in one block for each batch: joined, up to BLOCK rows each.
_JOIN_BLOCKS = """
WITH written AS (DELETE FROM {schema}.{kind}_lists RETURNING *),
    parts AS (SELECT *, sum(n) OVER (PARTITION BY key ROWS UNBOUNDED PRECEDING) / {block} AS part FROM written)
INSERT INTO {schema}.{kind}_lists SELECT key, sum(n), string_agg(held, ''::bytea) FROM parts GROUP BY key, part
"""
_OF_DOCUMENTS = """
CREATE INDEX IF NOT EXISTS documents_fields ON {schema}.documents USING gin (fields jsonb_path_ops);
CREATE INDEX IF NOT EXISTS documents_rank ON {schema}.documents (rank);
"""
_LISTS = "CREATE INDEX IF NOT EXISTS {kind}_lists_key ON {schema}.{kind}_lists (key)"
_GRAPH = (
    "CREATE INDEX IF NOT EXISTS {kind}_graph ON {schema}.{kind}_vectors USING hnsw (vector vector_ip_ops) "
    "WITH (m = 16, ef_construction = 128)"
)


def prepare_server(connection: Any, name: str) -> None:
    """Make sure that the server has pgvector and our registry.

    Raises:
        ConfigError: pgvector is not there, cannot be made ready by this user, or is too old.
    """
    import psycopg

    try:
        connection.execute("CREATE EXTENSION IF NOT EXISTS vector")
    except psycopg.Error as error:
        raise ConfigError(
            f"{name}: the database has no pgvector ({first_line(error)}); install it on the server and have an "
            "administrator run CREATE EXTENSION vector"
        ) from error
    (found,) = connection.execute("SELECT extversion FROM pg_extension WHERE extname = 'vector'").fetchone()
    if tuple(int(part) for part in found.split(".")[:2]) < OLDEST:
        raise ConfigError(f"{name}: pgvector {found}; {'.'.join(map(str, OLDEST))} or newer is needed")
    try:
        connection.execute(_REGISTRY)
    except (psycopg.errors.UniqueViolation, psycopg.errors.DuplicateTable):
        connection.execute(_REGISTRY)  # another process made it just now


class PostgresVersions(Versions):
    """The versions of a collection, over one connection."""

    def __init__(self, address: Address, connection: Any) -> None:
        super().__init__(address)
        self._collection = address.collection
        self._db = connection

    @contextmanager
    def translated(self) -> Iterator[None]:
        """Turn errors of the server within into ours."""
        with translated(self.name):
            yield

    def all(self) -> list[int]:
        """Every version that is there, ascending; schemas of such a name without our tables are somebody else's."""
        rows = self._db.execute(
            "SELECT nspname FROM pg_namespace AS n JOIN pg_class AS c ON c.relnamespace = n.oid "
            "WHERE nspname ~ %s AND relname = 'counts'",
            (f"^{self.prefix}_[0-9]+$",),
        )
        return sorted(self.number(label) for (label,) in rows)

    def shown(self) -> int | None:
        """The version that readers see."""
        if self._db.execute("SELECT to_regclass('aveyb.collections')").fetchone() == (None,):
            return None
        row = self._db.execute("SELECT version FROM aveyb.collections WHERE name = %s", (self._collection,)).fetchone()
        return self.number(row[0]) if row and row[0] else None

    def settings(self, number: int) -> Mapping[str, Any] | None:
        """The settings of a version."""
        row = self._db.execute(f"SELECT settings FROM {self.label(number)}.state").fetchone()
        return row[0] if row else None

    def create(self, number: int, settings: CollectionSettings) -> None:
        """Make the empty tables of a version, in one transaction.

        Raises:
            ConfigError: the vectors are too wide.
        """
        dim, schema = settings.encoding.dim, self.label(number)
        if dim > MOST_DIMENSIONS:
            raise ConfigError(
                f"{self.name}: vectors of dimension {dim}; pgvector's HNSW index takes {MOST_DIMENSIONS:,}"
            )
        with self._db.transaction():
            self._db.execute(_TABLES.format(schema=schema))
            for kind in KINDS:
                self._db.execute(_TABLES_OF_KIND.format(schema=schema, kind=kind, dim=dim))
            self._db.execute(f"INSERT INTO {schema}.state VALUES (%s)", (json.dumps(settings.to_json()),))

    def build_indexes(self, number: int) -> None:
        """Join the lists of words and build every index; what an interrupted run has done is kept or done again."""
        schema = self.label(number)
        for kind in KINDS:
            self._db.execute(_JOIN_BLOCKS.format(schema=schema, kind=kind, block=BLOCK))
            self._db.execute(f"VACUUM (FULL, ANALYZE) {schema}.{kind}_lists")
            self._db.execute(_LISTS.format(schema=schema, kind=kind))
            self._db.execute(_GRAPH.format(schema=schema, kind=kind))
            self._db.execute(f"ANALYZE {schema}.{kind}_vectors, {schema}.{kind}s")
        self._db.execute(_OF_DOCUMENTS.format(schema=schema))

    def show(self, number: int) -> None:
        """Let readers see a version."""
        self._db.execute(
            "INSERT INTO aveyb.collections(name, version) VALUES (%s, %s) "
            "ON CONFLICT (name) DO UPDATE SET version = excluded.version",
            (self._collection, self.label(number)),
        )

    def drop(self, number: int) -> None:
        """Remove a version; one that a reader holds at the moment is left to the next publication."""
        import psycopg

        schema = self.label(number)
        try:
            with self._db.transaction():
                self._db.execute(f"SET LOCAL lock_timeout = '{LOCK_WAIT}s'")
                self._db.execute(f"DROP SCHEMA IF EXISTS {schema} CASCADE")
        except psycopg.errors.LockNotAvailable:
            logger.warning("%s: %s is being read; the next publication removes it", self.name, schema)
