"""A store is read as data and nothing else: only an index's tables, rows of the right types, statements that end.

SQLite runs what a database file defines: a view in place of a table can be endless, a trigger acts when a row is
inserted. A store with any of these is refused before its first row is read.
"""

from __future__ import annotations

import json
import re
import sqlite3
import time
import weakref
from typing import TYPE_CHECKING, Any

import numpy as np

from aveyb_retrieval.errors import IndexFormatError

if TYPE_CHECKING:
    from collections.abc import Sequence
    from pathlib import Path

    from aveyb_retrieval.indexes.types import IntArray

STATEMENT_SECONDS = 300.0  # a filter over twenty million documents takes about a tenth of it
MAX_REMOVED = 1 << 28  # passages of removed documents whose vectors an index may still hold

# what reading a damaged database raises; the second where SQLite's own message holds what is damaged
UNREADABLE = (sqlite3.DatabaseError, UnicodeDecodeError)

_HANDLER_STEPS = 1_000_000  # of SQLite's machine between two looks at the clock: some hundredths of a second
_TABLES = {"meta", "documents", "texts", "passages", "fields", "shards", "removed", "rejected", "origins"}
_FULLTEXT = {"fulltext", "passage_words"}
_SHADOWS = {f"{name}_{part}" for name in _FULLTEXT for part in ("data", "idx", "content", "docsize", "config")}
_INDEXES = {"fields_by_document"}
SHARD_NAME = re.compile(r"vectors/v\d{6,12}-\d{12,20}\.safetensors")
_CONTENT = re.compile(r"content\s*=\s*(\S*?)\s*[,)]")


class LimitedConnection(sqlite3.Connection):
    """A connection whose statements end with an error when they take longer than `STATEMENT_SECONDS`."""

    started = 0.0

    def execute(self, *arguments: Any) -> sqlite3.Cursor:
        """Execute a statement and start its clock."""
        self.started = time.monotonic()
        return super().execute(*arguments)

    def limit(self) -> None:
        """Set the limits; call it once."""
        own = weakref.proxy(self)  # SQLite holds the handler, which must not hold the connection
        self.set_progress_handler(lambda: time.monotonic() - own.started > STATEMENT_SECONDS, _HANDLER_STEPS)
        if hasattr(self, "setlimit"):  # from Python 3.11 on
            self.setlimit(sqlite3.SQLITE_LIMIT_ATTACHED, 0)
            self.setlimit(sqlite3.SQLITE_LIMIT_TRIGGER_DEPTH, 0)


def check_schema(db: sqlite3.Connection, path: Path) -> None:
    """Check that a database defines the tables of a store and nothing that acts by itself.

    Raises:
        IndexFormatError: it has a view, a trigger, a generated column, or a table of another name or kind.
    """
    for kind, name, sql in db.execute("SELECT type, name, sql FROM sqlite_master"):
        if not _is_ours(kind, name, " ".join((sql or "").split())):
            raise IndexFormatError(
                f"{path}: holds the {kind} {name!r}, which is not of an index; "
                "restore the file from a copy or build the index again"
            )


def _is_ours(kind: str, name: str, sql: str) -> bool:
    if kind == "index":
        return name in _INDEXES or name.startswith("sqlite_autoindex_")
    if kind != "table":
        return False
    if name in _FULLTEXT:
        content = _CONTENT.search(sql)
        is_fts5 = re.match(rf"CREATE VIRTUAL TABLE {name} USING fts5\s*\(", sql) is not None
        return is_fts5 and content is not None and content.group(1).strip("'\"") in ("", "texts")
    plain = sql.startswith("CREATE TABLE ") and re.search(r"\bAS\b|\bGENERATED\b", sql, re.IGNORECASE) is None
    return plain and (name in _TABLES or name in _SHADOWS)


def integers(rows: Sequence[Sequence[object]], width: int, path: Path) -> IntArray:
    """Rows of whole numbers as an array `[n, width]` int64.

    Raises:
        IndexFormatError: one is not a whole number.
    """
    try:
        if all(type(value) is int for row in rows for value in row):
            return np.array(rows, dtype=np.int64).reshape(len(rows), width)
    except OverflowError:
        pass
    raise _damaged(path, "text or a fraction where a whole number belongs")


def passage_counts(rows: Sequence[Sequence[object]], path: Path, *, each: int, total: int) -> IntArray:
    """Rows of (document, number of passages) `[n, 2]`.

    Raises:
        IndexFormatError: a document has more than `each` passages, or all together more than `total`.
    """
    table = integers(rows, 2, path)
    counts = table[:, 1]
    if len(counts) and (counts.min() < 0 or counts.max() > each or int(counts.sum()) > total):
        raise _damaged(path, f"a document with {int(counts.max()):,} passages")
    return table


def file_rows(path: Path) -> int:
    """How many rows a store could hold at most: each takes at least four bytes."""
    return path.stat().st_size // 4


def text(value: object, path: Path) -> str:
    """A text.

    Raises:
        IndexFormatError: it is a number or bytes.
    """
    if not isinstance(value, str):
        raise _damaged(path, "a number or bytes where text belongs")
    return value


def json_value(value: object, path: Path) -> Any:
    """A value that is kept as JSON.

    Raises:
        IndexFormatError: it is not JSON.
    """
    try:
        return json.loads(text(value, path))
    except (ValueError, RecursionError) as error:
        raise _damaged(path, f"a value that is not JSON: {error}") from error


def shard(row: tuple[Any, ...], path: Path) -> tuple[Any, ...]:
    """A row of the table `shards`.

    Raises:
        IndexFormatError: it names a file that is not one of vectors, or its numbers are not whole.
    """
    first, last, name, size, digest = row
    integers([(first, last, size)], 3, path)
    if SHARD_NAME.fullmatch(text(name, path)) is None:
        raise _damaged(path, f"{name!r} where the name of a file of vectors belongs")
    text(digest, path)
    return row


def setting(db: sqlite3.Connection, key: str, path: Path) -> Any:
    """One value of the table `meta`, or None.

    Raises:
        IndexFormatError: it is not JSON.
    """
    row = db.execute("SELECT value FROM meta WHERE key = ?", (key,)).fetchone()
    return json_value(row[0], path) if row else None


def metadata(value: object, path: Path) -> dict[str, Any]:
    """A document's metadata.

    Raises:
        IndexFormatError: they are not a JSON object.
    """
    found = json_value(value, path)
    if not isinstance(found, dict):
        raise _damaged(path, "metadata that are not a JSON object")
    return found


def _damaged(path: Path, what: str) -> IndexFormatError:
    return IndexFormatError(f"{path}: damaged ({what}); restore the file from a copy or build the index again")
