"""The tables of a collection, and which version of it readers see.

A collection is published into a schema of its own, `aveyb_NAME_N`. The table `aveyb.collections` names the schema that
readers see; one update of it is the switch. The version before stays until the next switch, for readers that are open.
"""

from __future__ import annotations

import json
import logging
import re
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

from aveyb_retrieval.errors import ConfigError, EngineError, IndexFormatError
from aveyb_retrieval.indexes.engines.collection import CollectionSettings
from aveyb_retrieval.indexes.engines.words import word_key
from aveyb_retrieval.indexes.store.numbering import PASSAGE_BITS
from aveyb_retrieval.wording import first_line

if TYPE_CHECKING:
    from collections import Counter

    from aveyb_retrieval.indexes.engines.postgres.connection import Address

MOST_DIMENSIONS = 2000  # that pgvector's HNSW index takes
BLOCK = 2048  # rows of a word's list that are read together
TABLES = (
    "documents", "passages", "document_vectors", "passage_vectors", "document_postings", "passage_postings",
)  # fmt: skip
LOCK_WAIT = 5  # seconds that the removal of an old version waits for its readers
OLDEST = (0, 8)  # pgvector with iterative scans: without them a filter leaves fewer hits than there are

logger = logging.getLogger(__name__)

_SCHEMA = re.compile(r"aveyb_[a-z][a-z0-9_]*_[0-9]+")
_REGISTRY = """
CREATE SCHEMA IF NOT EXISTS aveyb;
CREATE TABLE IF NOT EXISTS aveyb.collections(
    name text PRIMARY KEY, version text, previous text, building text, number bigint NOT NULL DEFAULT 0);
"""
_TABLES = """
CREATE TABLE {schema}.state(
    settings jsonb NOT NULL, generation bigint NOT NULL DEFAULT 0, documents bigint NOT NULL DEFAULT 0,
    passages bigint NOT NULL DEFAULT 0, passage_characters bigint NOT NULL DEFAULT 0,
    worded_documents bigint NOT NULL DEFAULT 0, document_words bigint NOT NULL DEFAULT 0,
    worded_passages bigint NOT NULL DEFAULT 0, passage_words bigint NOT NULL DEFAULT 0);
CREATE SEQUENCE {schema}.numbers;
CREATE TABLE {schema}.documents(
    number bigint PRIMARY KEY, key bytea NOT NULL UNIQUE, id text NOT NULL, title text NOT NULL, text text NOT NULL,
    metadata text NOT NULL, fields jsonb NOT NULL, pages text, n_tokens bigint NOT NULL, n_cut bigint NOT NULL,
    n_passages integer NOT NULL, words text NOT NULL, n_words integer NOT NULL);
CREATE TABLE {schema}.passages(
    number bigint PRIMARY KEY, start integer NOT NULL, stop integer NOT NULL, heading text NOT NULL, norm real,
    words text NOT NULL, n_words integer NOT NULL);
CREATE TABLE {schema}.document_vectors(number bigint PRIMARY KEY, vector vector({dim}) NOT NULL);
CREATE TABLE {schema}.passage_vectors(number bigint PRIMARY KEY, vector vector({dim}) NOT NULL);
CREATE TABLE {schema}.terms(key bytea PRIMARY KEY, documents bigint NOT NULL, passages bigint NOT NULL);
CREATE TABLE {schema}.document_postings(id bigint GENERATED ALWAYS AS IDENTITY, key bytea NOT NULL,
    first bigint NOT NULL, last bigint NOT NULL, n integer NOT NULL, most integer NOT NULL, shortest integer NOT NULL,
    held bytea NOT NULL);
CREATE TABLE {schema}.passage_postings(LIKE {schema}.document_postings INCLUDING IDENTITY);
ALTER TABLE {schema}.document_postings ALTER held SET STORAGE EXTERNAL;
ALTER TABLE {schema}.passage_postings ALTER held SET STORAGE EXTERNAL;
ALTER TABLE {schema}.document_vectors ALTER vector SET STORAGE PLAIN;
ALTER TABLE {schema}.passage_vectors ALTER vector SET STORAGE PLAIN;
"""
# A list of `engines.words` was written in one block for each batch: joined, up to BLOCK rows each.
_JOIN_BLOCKS = """
CREATE TEMPORARY TABLE joined ON COMMIT DROP AS
SELECT key, min(first) AS first, max(last) AS last, sum(n) AS n, max(most) AS most, min(shortest) AS shortest,
    string_agg(held, ''::bytea ORDER BY first) AS held
FROM (SELECT *, sum(n) OVER (PARTITION BY key ORDER BY first) / {block} AS part FROM {schema}.{kind}_postings) AS found
GROUP BY key, part;
TRUNCATE {schema}.{kind}_postings;
INSERT INTO {schema}.{kind}_postings(key, first, last, n, most, shortest, held)
SELECT * FROM joined ORDER BY key, first;
DROP TABLE joined
"""
_COUNT_WORDS = """
INSERT INTO {schema}.terms AS t SELECT key, sum(d), sum(p) FROM (
    SELECT key, n AS d, 0 AS p FROM {schema}.document_postings
    UNION ALL SELECT key, 0, n FROM {schema}.passage_postings) AS found GROUP BY key
"""
_ADD_WORDS = """
INSERT INTO {schema}.terms AS t SELECT * FROM unnest(%s::bytea[], %s::bigint[], %s::bigint[])
ON CONFLICT (key) DO UPDATE SET documents = t.documents + excluded.documents, passages = t.passages + excluded.passages
"""
_COUNT_ROWS = """
UPDATE {schema}.state SET documents = documents + {sign} * d.n, document_words = document_words + {sign} * d.words,
    passages = passages + {sign} * p.n, passage_words = passage_words + {sign} * p.words,
    worded_documents = worded_documents + {sign} * d.worded, worded_passages = worded_passages + {sign} * p.worded,
    passage_characters = passage_characters + {sign} * p.characters
FROM (SELECT count(*) AS n, count(*) FILTER (WHERE n_words > 0) AS worded, coalesce(sum(n_words), 0) AS words
     FROM {schema}.documents AS r {documents}) AS d,
    (SELECT count(*) AS n, count(*) FILTER (WHERE n_words > 0) AS worded, coalesce(sum(n_words), 0) AS words,
     coalesce(sum(stop - start), 0) AS characters
     FROM {schema}.passages AS r {passages}) AS p
"""
_OF_DOCUMENTS = "WHERE r.number = ANY(%(numbers)s::bigint[])"


def passages_of(number: str, doc: str) -> str:
    """SQL: a number is that of a passage of a document."""
    return f"{number} >= {doc} << {PASSAGE_BITS} AND {number} < ({doc} + 1) << {PASSAGE_BITS}"


_OF_PASSAGES = f"JOIN unnest(%(numbers)s::bigint[]) AS d ON {passages_of('r.number', 'd')}"
_INDEXES = (
    "CREATE INDEX IF NOT EXISTS documents_fields ON {schema}.documents USING gin (fields jsonb_path_ops)",
    *(
        f"CREATE {index} ON {{schema}}.{kind}_postings ({column})"
        for kind in ("document", "passage")
        for index, column in (
            (f"INDEX IF NOT EXISTS {kind}_postings_key", "key, first"),
            (f"UNIQUE INDEX IF NOT EXISTS {kind}_postings_id", "id"),
        )
    ),
)
_GRAPH = (
    "CREATE INDEX IF NOT EXISTS {kind}_graph ON {schema}.{kind}_vectors USING hnsw (vector vector_ip_ops) "
    "WITH (m = 16, ef_construction = 128)"
)


@dataclass(frozen=True)
class Versions:
    """The schemas of a collection: what readers see, what they saw before, and what is being published."""

    version: str | None
    previous: str | None
    building: str | None


def prepare_server(connection: Any, address: Address) -> None:
    """Make sure that the server has pgvector and our registry.

    Raises:
        ConfigError: pgvector is not there, cannot be made ready by this user, or is too old.
    """
    import psycopg

    try:
        connection.execute("CREATE EXTENSION IF NOT EXISTS vector")
    except psycopg.Error as error:
        raise ConfigError(
            f"{address.name}: the database has no pgvector ({first_line(error)}); install it on the server and have an "
            "administrator run CREATE EXTENSION vector"
        ) from error
    (found,) = connection.execute("SELECT extversion FROM pg_extension WHERE extname = 'vector'").fetchone()
    if tuple(int(part) for part in found.split(".")[:2]) < OLDEST:
        raise ConfigError(f"{address.name}: pgvector {found}; {'.'.join(map(str, OLDEST))} or newer is needed")
    try:
        connection.execute(_REGISTRY)
    except (psycopg.errors.UniqueViolation, psycopg.errors.DuplicateTable):
        connection.execute(_REGISTRY)  # another process made it just now


def read_versions(connection: Any, address: Address) -> Versions:
    """Return the schemas of a collection; none where there is no registry."""
    import psycopg

    try:
        row = connection.execute(
            "SELECT version, previous, building FROM aveyb.collections WHERE name = %s", (address.collection,)
        ).fetchone()
    except psycopg.errors.UndefinedTable:
        return Versions(None, None, None)
    for schema in row or ():
        if schema is not None and not _SCHEMA.fullmatch(schema):
            raise IndexFormatError(
                f"{address.name}: damaged: aveyb.collections names {schema!r}, not a version of ours"
            )
    return Versions(*row) if row else Versions(None, None, None)


def visible(connection: Any, address: Address) -> str:
    """Return the schema that readers see.

    Raises:
        IndexFormatError: nothing was published under this name, or not yet completely.
    """
    versions = read_versions(connection, address)
    if versions.version is None:
        what = "is published only in part; run the same `aveyb-index publish` again to continue"
        missing = "is not there; publish it with `aveyb-index publish`"
        raise IndexFormatError(f"{address.name}: the collection {what if versions.building else missing}")
    return versions.version


def settings_of(connection: Any, schema: str, name: str) -> CollectionSettings:
    """Read the settings of a published schema of the collection `name`.

    Raises:
        IndexFormatError: there are none.
    """
    row = connection.execute(f"SELECT settings FROM {schema}.state").fetchone()
    if row is None:
        raise IndexFormatError(f"{name}: damaged: {schema}.state is empty; publish it again")
    return CollectionSettings.from_json(row[0], name)


def create(connection: Any, address: Address, settings: CollectionSettings) -> str:
    """Make the empty tables of a new version, in one transaction; returns its schema.

    Raises:
        ConfigError: the vectors are too wide.
    """
    if settings.encoding.dim > MOST_DIMENSIONS:
        raise ConfigError(
            f"{address.name}: vectors of dimension {settings.encoding.dim}; pgvector's HNSW index takes "
            f"{MOST_DIMENSIONS:,}"
        )
    with connection.transaction():
        (number,) = connection.execute(
            "INSERT INTO aveyb.collections(name, number) VALUES (%s, 1) "
            "ON CONFLICT (name) DO UPDATE SET number = collections.number + 1 RETURNING number",
            (address.collection,),
        ).fetchone()
        schema = f"aveyb_{address.collection}_{number}"
        connection.execute(f"CREATE SCHEMA {schema}")
        connection.execute(_TABLES.format(schema=schema, dim=settings.encoding.dim))
        connection.execute(
            f"INSERT INTO {schema}.state(settings) VALUES (%s)",
            (json.dumps(settings.to_json()),),
        )
        connection.execute("UPDATE aveyb.collections SET building = %s WHERE name = %s", (schema, address.collection))
    return schema


def drop_building(connection: Any, address: Address, schema: str) -> None:
    """Remove a version that was never shown."""
    with connection.transaction():
        connection.execute(
            "UPDATE aveyb.collections SET building = NULL WHERE name = %s AND building = %s",
            (address.collection, schema),
        )
        connection.execute(f"DROP SCHEMA IF EXISTS {schema} CASCADE")


def build_indexes(connection: Any, schema: str) -> None:
    """Count all words and rows, and build every index; what an interrupted run has done is kept or done again."""
    with connection.transaction():
        connection.execute(f"TRUNCATE {schema}.terms")
        connection.execute(
            f"UPDATE {schema}.state SET documents = 0, passages = 0, passage_characters = 0, worded_documents = 0, "
            "document_words = 0, worded_passages = 0, passage_words = 0"
        )
        for kind in ("document", "passage"):
            connection.execute(_JOIN_BLOCKS.format(schema=schema, kind=kind, block=BLOCK))
        connection.execute(_COUNT_WORDS.format(schema=schema))
        connection.execute(_COUNT_ROWS.format(schema=schema, sign=1, documents="", passages=""))
    for sql in _INDEXES:
        connection.execute(sql.format(schema=schema))
    for kind in ("document", "passage"):
        connection.execute(_GRAPH.format(schema=schema, kind=kind))
    for table in (*TABLES, "terms"):
        connection.execute(f"ANALYZE {schema}.{table}")


def count_in(connection: Any, schema: str, numbers: list[int], words: dict[str, Counter[str]], sign: int) -> None:
    """Add documents (`sign` 1) to the statistics, or take them out (-1): within the transaction that changes them.

    `words`: how many of these documents, and of their passages, hold each word.
    """
    every = sorted(set(words["document"]) | set(words["passage"]))
    counts = ([sign * words[kind][word] for word in every] for kind in ("document", "passage"))
    connection.execute(_ADD_WORDS.format(schema=schema), ([word_key(word) for word in every], *counts))
    statement = _COUNT_ROWS.format(schema=schema, sign=sign, documents=_OF_DOCUMENTS, passages=_OF_PASSAGES)
    connection.execute(statement, {"numbers": numbers})


def show(connection: Any, address: Address, schema: str) -> None:
    """Let readers see a version, atomically, and remove those before the one that they saw until now."""
    with connection.transaction():
        changed = connection.execute(
            "UPDATE aveyb.collections SET previous = version, version = building, building = NULL "
            "WHERE name = %s AND building = %s",
            (address.collection, schema),
        )
        if changed.rowcount != 1:
            raise EngineError(f"{address.name}: another process has published meanwhile; publish again")
    _drop_old(connection, address)


def _drop_old(connection: Any, address: Address) -> None:
    """Remove versions that nobody needs; one that a reader holds at the moment is left to the next publication."""
    import psycopg

    kept = read_versions(connection, address)
    rows = connection.execute(
        "SELECT nspname FROM pg_namespace WHERE nspname ~ %s", (f"^aveyb_{address.collection}_[0-9]+$",)
    ).fetchall()
    for (schema,) in rows:
        if schema not in (kept.version, kept.previous, kept.building):
            try:
                with connection.transaction():
                    connection.execute(f"SET LOCAL lock_timeout = '{LOCK_WAIT}s'")
                    connection.execute(f"DROP SCHEMA IF EXISTS {schema} CASCADE")
            except psycopg.errors.LockNotAvailable:
                logger.warning("%s: %s is being read; the next publication removes it", address.name, schema)
