"""The SQLite store: documents, their texts, passages, metadata and full-text index; also the journal of a build.

Documents are known by a number of ours, `doc`, given once and never again, and a passage by `doc << 20 | ordinal`:
no number ever depends on a position, and a passage tells its document without a lookup. A visible version's store is
never written again, so readers open it as immutable; a change works on a copy.
"""

from __future__ import annotations

import hashlib
import itertools
import json
import sqlite3
from contextlib import contextmanager
from functools import cached_property
from typing import TYPE_CHECKING, Any, NamedTuple

from aveyb_retrieval.errors import IndexFormatError
from aveyb_retrieval.indexes.store import origins, store_check
from aveyb_retrieval.indexes.store.full_text import FullText
from aveyb_retrieval.indexes.store.language import ENGLISH
from aveyb_retrieval.indexes.store.numbering import MAX_PASSAGES, PASSAGE_BITS, expand_passages, numbers

if TYPE_CHECKING:
    from collections.abc import Iterable, Iterator, Sequence
    from pathlib import Path

    from aveyb_retrieval.indexes.input.documents import FileOrigin, Record, Rejected
    from aveyb_retrieval.indexes.pages import Page
    from aveyb_retrieval.indexes.store.filters import Condition
    from aveyb_retrieval.indexes.types import IntArray, Kind

_SCHEMA = """
CREATE TABLE meta(key TEXT PRIMARY KEY, value TEXT NOT NULL) WITHOUT ROWID;
CREATE TABLE documents(
    doc INTEGER PRIMARY KEY, id TEXT NOT NULL UNIQUE, metadata TEXT NOT NULL, digest BLOB NOT NULL,
    n_tokens INTEGER NOT NULL, n_cut INTEGER NOT NULL, n_passages INTEGER NOT NULL);
CREATE TABLE texts(doc INTEGER PRIMARY KEY, title TEXT NOT NULL, text TEXT NOT NULL);
CREATE TABLE passages(
    passage INTEGER PRIMARY KEY, start INTEGER NOT NULL, stop INTEGER NOT NULL, norm REAL,
    heading TEXT NOT NULL DEFAULT '');
CREATE TABLE fields(
    field TEXT NOT NULL, type TEXT NOT NULL, value NOT NULL, doc INTEGER NOT NULL,
    PRIMARY KEY (field, type, value, doc)) WITHOUT ROWID;
CREATE INDEX fields_by_document ON fields(doc);
CREATE TABLE shards(
    first INTEGER PRIMARY KEY, last INTEGER NOT NULL, name TEXT NOT NULL UNIQUE, bytes INTEGER NOT NULL,
    sha256 TEXT NOT NULL);
CREATE TABLE removed(doc INTEGER PRIMARY KEY, version TEXT NOT NULL, n_passages INTEGER NOT NULL);
CREATE TABLE rejected(
    n INTEGER PRIMARY KEY, version TEXT NOT NULL, source TEXT NOT NULL, line INTEGER NOT NULL, reason TEXT NOT NULL,
    raw TEXT NOT NULL);
"""


class Shard(NamedTuple):
    """A file of vectors: documents `first` to `last`, with its size and hash."""

    first: int
    last: int
    name: str
    bytes: int
    sha256: str


class StoredDocument(NamedTuple):
    """A document as the store keeps it."""

    doc: int
    id: str
    title: str
    text: str
    metadata: dict[str, Any]
    origin: FileOrigin | None = None

    def page(self, character: int) -> Page | None:
        """Return the page that a character of the text is on; None where the document has no pages."""
        return self.origin.pages.at(character) if self.origin and self.origin.pages else None


class StoredPassage(NamedTuple):
    """A passage as the store keeps it: its characters `[start, end)` in the text, and the heading over it or ""."""

    span: tuple[int, int]
    heading: str


class _Passages(dict[int, StoredPassage]):
    """Passages by their numbers. A vector or a word without its passage is damage, so a look-up that fails says so."""

    def __init__(self, path: Path) -> None:
        super().__init__()
        self._path = path

    def __missing__(self, passage: int) -> StoredPassage:
        raise IndexFormatError(f"{self._path}: no passage {passage}, but a vector of it; run `aveyb-index verify`")


class Counts(NamedTuple):
    """What a store holds."""

    documents: int
    passages: int
    tokens: int
    cut_documents: int
    cut_tokens: int


def content_digest(title: str, text: str) -> bytes:
    """Identify what was encoded, so that an unchanged document is never encoded again."""
    return hashlib.sha256(f"{len(title)}:{title}{text}".encode()).digest()


class Store:
    """One connection to a store, for one user at a time."""

    def __init__(self, path: Path, connection: sqlite3.Connection) -> None:
        self.path = path
        self.db = connection
        self.words = FullText(connection, path)

    @classmethod
    def create(cls, path: Path) -> Store:
        """Make an empty store for a build to fill."""
        store = cls.open_for_writing(path)
        with store.transaction():
            for statement in filter(str.strip, _SCHEMA.split(";")):
                store.db.execute(statement)
            store.words.create(ENGLISH)  # `set_language` may make them again
        return store

    @classmethod
    def open_for_writing(cls, path: Path) -> Store:
        """Open the store of an unfinished change. A transaction that was cut off is rolled back here."""
        db = sqlite3.connect(path, isolation_level=None)
        # The rollback journal (not WAL) leaves one self-contained file; FULL flushes it before and after each commit.
        db.execute("PRAGMA journal_mode = DELETE")
        db.execute("PRAGMA synchronous = FULL")
        # Nobody else opens the store of a change, so its file locks are taken once and not for each look-up of an id.
        db.execute("PRAGMA locking_mode = EXCLUSIVE")
        db.execute("PRAGMA cache_size = -65536")
        db.execute("PRAGMA trusted_schema = OFF")
        store_check.check_schema(db, path)
        return cls(path, db)

    @classmethod
    def open_for_reading(cls, path: Path) -> Store:
        """Open the store of a visible version.

        Raises:
            sqlite3.DatabaseError: it is not a readable SQLite database.
            IndexFormatError: it defines something that no store has.
        """
        # any thread may use the connection, one at a time: `Snapshot.store` sees to that
        uri = f"file:{_uri(path)}?mode=ro&immutable=1"
        db = sqlite3.connect(
            uri, uri=True, isolation_level=None, check_same_thread=False, factory=store_check.LimitedConnection
        )
        db.limit()
        db.execute("PRAGMA trusted_schema = OFF")
        db.execute("PRAGMA cell_size_check = ON")
        db.execute("PRAGMA mmap_size = 1073741824")
        store_check.check_schema(db, path)
        return cls(path, db)

    def close(self) -> None:
        """Close the connection."""
        self.db.close()

    @contextmanager
    def transaction(self) -> Iterator[None]:
        """Commit all that the block does, or none of it."""
        self.db.execute("BEGIN IMMEDIATE")
        try:
            yield
        except BaseException:
            if self.db.in_transaction:  # SQLite itself rolls back when the disk is full
                self.db.execute("ROLLBACK")
            raise
        self.db.execute("COMMIT")

    # --- meta --------------------------------------------------------------------------------------------------------

    def get(self, key: str) -> Any:
        """Value of one setting of the journal, or None."""
        return store_check.setting(self.db, key, self.path)

    def put(self, key: str, value: Any) -> None:
        """Set one value of the journal; it must be JSON."""
        self.db.execute("INSERT OR REPLACE INTO meta VALUES (?, ?)", (key, json.dumps(value)))

    def set_language(self, name: str) -> None:
        """Settle the language of a store before its first document; a continued build finds it settled."""
        if self.get("language") == name:
            return
        self.put("language", name)
        self.words.create(name)

    def make_words_again(self) -> None:
        """Make the full-text indexes again from the texts and passages, in the language that they have."""
        self.words.create(self.words.language.name)
        self.words.fill()

    def upgrade(self) -> None:
        """Bring a store of format 1 up to date: passages get headings (empty) and rows of their words."""
        if self.words.has_passages:
            return
        self.db.execute("ALTER TABLE passages ADD COLUMN heading TEXT NOT NULL DEFAULT ''")
        self.put("language", ENGLISH)
        self.words.create(ENGLISH)
        self.words.fill()

    # --- writing -----------------------------------------------------------------------------------------------------

    def add_document(
        self,
        doc: int,
        record: Record,
        tokens: tuple[int, int],
        spans: IntArray,
        norms: Sequence[float | None],
        headings: Sequence[str] | None = None,
    ) -> None:
        """Insert one document.

        Args:
            doc: Its number.
            record: What it holds.
            tokens: Tokens read, tokens cut.
            spans: Where its passages lie in the text, `[n_passages, 2]`.
            norms: Lengths of the passages' vectors before they were scaled to 1 (None where the model does not report
                them): with them a document that grows is not encoded again from its start.
            headings: The heading over each passage, "" where there is none; None where there are none at all.
        """
        metadata = record.metadata_json
        digest = content_digest(record.title, record.text)
        self.db.execute(
            "INSERT INTO documents VALUES (?, ?, ?, ?, ?, ?, ?)",
            (doc, record.id, metadata, digest, *tokens, len(spans)),
        )
        self.db.execute("INSERT INTO texts VALUES (?, ?, ?)", (doc, record.title, record.text))
        first = doc << PASSAGE_BITS
        passages = zip(spans.tolist(), norms, headings or [""] * len(spans), strict=True)
        self.db.executemany(
            "INSERT INTO passages(passage, start, stop, norm, heading) VALUES (?, ?, ?, ?, ?)",
            ((first + i, *span, norm, heading) for i, (span, norm, heading) in enumerate(passages)),
        )
        self.words.add(doc, record.title, record.text)
        self._add_fields(doc, metadata)
        if record.origin is not None:
            origins.set_origin(self, doc, record.origin)

    @cached_property
    def _index_fields(self) -> dict[str, str]:
        """JSON paths of the fields that have an index; settled before the first document."""
        return self.get("index_fields") or {}

    def rename(self, doc: int, document_id: str) -> None:
        """Give a document another id, which no other document has."""
        self.db.execute("UPDATE documents SET id = ? WHERE doc = ?", (document_id, doc))

    def set_metadata(self, doc: int, metadata: str) -> None:
        """Replace a document's metadata (JSON text)."""
        self.db.execute("UPDATE documents SET metadata = ? WHERE doc = ?", (metadata, doc))
        self.db.execute("DELETE FROM fields WHERE doc = ?", (doc,))
        self._add_fields(doc, metadata)

    def _add_fields(self, doc: int, metadata: str) -> None:
        for field, path in self._index_fields.items():
            self.db.execute(
                "INSERT OR IGNORE INTO fields SELECT ?, type, coalesce(value, ''), ? FROM json_each(?, ?) "
                "WHERE type NOT IN ('object', 'array') AND typeof(key) <> 'text'",
                (field, doc, metadata, path),
            )

    def remove_document(self, doc: int, version: str) -> None:
        """Take one document out, and remember its number until the vector indexes have forgotten it too."""
        title, text = self.db.execute("SELECT title, text FROM texts WHERE doc = ?", (doc,)).fetchone()
        self.words.add(doc, title, text, delete=True)
        self.db.execute("INSERT INTO removed SELECT doc, ?, n_passages FROM documents WHERE doc = ?", (version, doc))
        first = doc << PASSAGE_BITS
        self.db.execute("DELETE FROM passages WHERE passage >= ? AND passage < ?", (first, first + MAX_PASSAGES))
        if origins.has_origins(self):
            origins.remove_origin(self, doc)
        for table in ("texts", "fields", "documents"):
            self.db.execute(f"DELETE FROM {table} WHERE doc = ?", (doc,))  # noqa: S608  # the names are in the line above

    def add_shard(self, shard: Shard) -> None:
        """Name one more file of vectors."""
        self.db.execute("INSERT INTO shards VALUES (?, ?, ?, ?, ?)", shard)

    def replace_shards(self, shards: Iterable[Shard]) -> None:
        """Name other shards as those that hold the vectors."""
        self.db.execute("DELETE FROM shards")
        for shard in shards:
            self.add_shard(shard)

    def compact(self) -> None:
        """Give back the room of removed documents, and make the full-text indexes again in one piece each."""
        with self.transaction():
            self.make_words_again()
        self.words.optimize()
        self.db.execute("VACUUM")

    def add_rejected(self, items: Iterable[Rejected], version: str) -> None:
        """Keep items that `on_error="skip"` left out, for `rejected.jsonl`."""
        self.db.executemany(
            "INSERT INTO rejected(version, source, line, reason, raw) VALUES (?, ?, ?, ?, ?)",
            # backslashreplace: what is rejected may be just what UTF-8 cannot hold
            (
                (
                    version,
                    r.location.source,
                    r.location.line,
                    r.reason,
                    r.raw.encode("utf-8", "backslashreplace").decode(),
                )
                for r in items
            ),
        )

    # --- reading -----------------------------------------------------------------------------------------------------

    def counts(self) -> Counts:
        """Count documents, passages and tokens."""
        row = self.db.execute(
            "SELECT count(*), coalesce(sum(n_passages), 0), coalesce(sum(n_tokens), 0), "
            "coalesce(sum(n_cut > 0), 0), coalesce(sum(n_cut), 0) FROM documents"
        ).fetchone()
        return Counts(*row)

    def is_empty(self) -> bool:
        """Whether there is no document."""
        return self.db.execute("SELECT 1 FROM documents LIMIT 1").fetchone() is None

    def find(self, document_id: str) -> tuple[int, bytes] | None:
        """Number and content digest of the document with this id, or None."""
        row = self.db.execute("SELECT doc, digest FROM documents WHERE id = ?", (document_id,)).fetchone()
        return (row[0], row[1]) if row else None

    def shards(self) -> list[Shard]:
        """Return the files of vectors, ordered by their first document."""
        rows = self.db.execute("SELECT first, last, name, bytes, sha256 FROM shards ORDER BY first")
        return [Shard(*store_check.shard(row, self.path)) for row in rows]

    def rejected(self, version: str) -> Iterator[dict[str, Any]]:
        """Yield what a version's change left out, as rows of `rejected.jsonl`."""
        rows = self.db.execute(
            "SELECT source, line, reason, raw FROM rejected WHERE version = ? ORDER BY n", (version,)
        )
        for source, line, reason, raw in rows:
            yield {"file": source, "line": line, "reason": reason, "raw": raw}

    def documents(self, docs: Sequence[int], *, texts: bool = True) -> dict[int, StoredDocument]:
        """Fetch documents by number; numbers that are not there are left out. Without `texts`, texts are empty."""
        columns, table = "doc, id, title, text, metadata", "documents JOIN texts USING (doc)"
        if not texts:
            columns, table = "doc, id, '', '', '{}'", "documents"
        # one parameter for all numbers: SQLite takes only so many
        sql = f"SELECT {columns} FROM {table} WHERE doc IN (SELECT value FROM json_each(?))"  # noqa: S608  # the words above
        rows = self.db.execute(sql, (json.dumps(list(docs)),))
        files = origins.origins_of(self, docs) if texts else {}
        found = {}
        for doc, *words, metadata in rows:
            name, title, text = (store_check.text(value, self.path) for value in words)
            fields = store_check.metadata(metadata, self.path)
            found[doc] = StoredDocument(doc, name, title, text, fields, files.get(doc))
        return found

    def metadata(self, docs: Sequence[int]) -> dict[int, dict[str, Any]]:
        """Fetch the metadata of documents by number; numbers that are not there are left out."""
        sql = "SELECT doc, metadata FROM documents WHERE doc IN (SELECT value FROM json_each(?))"
        rows = self.db.execute(sql, (json.dumps(list(docs)),)).fetchall()
        return {doc: store_check.metadata(metadata, self.path) for doc, metadata in rows}

    def passages(self, docs: Sequence[int]) -> tuple[IntArray, IntArray]:
        """Passages of some documents, ascending: numbers `[n]` and character spans `[n, 2]`, int64."""
        rows = self.db.execute(
            "SELECT passage, start, stop FROM json_each(?) CROSS JOIN passages "
            "ON passage >= value << ? AND passage < (value + 1) << ?",
            (json.dumps(sorted(docs)), PASSAGE_BITS, PASSAGE_BITS),
        ).fetchall()
        found = store_check.integers(rows, 3, self.path)
        return found[:, 0], found[:, 1:]

    def some_passages(self, passages: Sequence[int]) -> dict[int, StoredPassage]:
        """Fetch passages by number; numbers that are not there are left out. Looking one up is an IndexFormatError."""
        heading = "heading" if self.words.has_passages else "''"
        rows = self.db.execute(
            f"SELECT passage, start, stop, {heading} FROM passages "  # noqa: S608  # the two words above
            "WHERE passage IN (SELECT value FROM json_each(?))",
            (json.dumps(list(passages)),),
        ).fetchall()
        store_check.integers([row[:3] for row in rows], 3, self.path)
        found = _Passages(self.path)
        for passage, start, stop, heading in rows:
            found[passage] = StoredPassage((start, stop), store_check.text(heading, self.path))
        return found

    def tokens(self, docs: Sequence[int]) -> dict[int, tuple[int, int]]:
        """Tokens read and tokens cut of documents, by number."""
        rows = self.db.execute(
            "SELECT doc, n_tokens, n_cut FROM documents WHERE doc IN (SELECT value FROM json_each(?))",
            (json.dumps(list(docs)),),
        ).fetchall()
        found = store_check.integers(rows, 3, self.path)
        return {doc: (n_tokens, n_cut) for doc, n_tokens, n_cut in found.tolist()}

    def norms(self, doc: int) -> list[float]:
        """Norms of a document's leading passages, up to the first that has none."""
        first = doc << PASSAGE_BITS
        rows = self.db.execute(
            "SELECT norm FROM passages WHERE passage >= ? AND passage < ? ORDER BY passage",
            (first, first + MAX_PASSAGES),
        )
        return [norm for (norm,) in itertools.takewhile(lambda row: row[0] is not None, rows)]

    def matching(self, condition: Condition) -> IntArray:
        """Numbers of the documents that satisfy a compiled filter, ascending."""
        sql = f"SELECT doc FROM documents WHERE {condition.sql} ORDER BY doc"  # noqa: S608  # values are bound
        return numbers(self.db.execute(sql, condition.parameters))

    def live(self, first: int, last: int) -> IntArray:
        """Numbers of the documents that exist between two numbers, both included, ascending."""
        rows = self.db.execute("SELECT doc FROM documents WHERE doc BETWEEN ? AND ? ORDER BY doc", (first, last))
        return numbers(rows)

    def ids(self, kind: Kind) -> IntArray:
        """Numbers of all documents or of all passages, ascending."""
        return self.live(0, 1 << 62) if kind == "document" else self.passage_ids()

    def passage_ids(self, docs: IntArray | None = None) -> IntArray:
        """Passage numbers of all documents, or of some, ascending."""
        some, parameters = "", tuple[str, ...]()
        if docs is not None:
            some, parameters = "AND doc IN (SELECT value FROM json_each(?))", (json.dumps(docs.tolist()),)
        rows = self.db.execute(
            f"SELECT doc, n_passages FROM documents WHERE n_passages > 0 {some} ORDER BY doc",  # noqa: S608  # the words above
            parameters,
        ).fetchall()
        most = store_check.file_rows(self.path)
        return expand_passages(store_check.passage_counts(rows, self.path, each=MAX_PASSAGES, total=most))

    def removed(self, version: str | None = None) -> IntArray:
        """Documents taken out (by one version, or all) that indexes may still hold: rows (document, passages)."""
        rows = self.db.execute(
            "SELECT doc, n_passages FROM removed WHERE ?1 IS NULL OR version = ?1 ORDER BY doc", (version,)
        ).fetchall()
        return store_check.passage_counts(rows, self.path, each=MAX_PASSAGES, total=store_check.MAX_REMOVED)

    def mean_passage(self) -> float:
        """The mean length of passages, in characters."""
        return float(self.db.execute("SELECT coalesce(avg(stop - start), 0) FROM passages").fetchone()[0])


def dead_ids(store: Store, kind: str) -> IntArray:
    """Ids of vectors ("document" or "passage") whose documents were removed, and which an index may still hold."""
    removed = store.removed()
    return removed[:, 0] if kind == "document" else expand_passages(removed)


def check_readable(store: Store) -> None:
    """Raise IndexFormatError where the file is not a store of ours."""
    try:
        store.db.execute("SELECT doc, n_passages FROM documents LIMIT 1").fetchone()
    except store_check.UNREADABLE as error:
        raise IndexFormatError(
            f"{store.path}: not a readable store ({error}); restore the file from a copy or build the index again"
        ) from error


def _uri(path: Path) -> str:
    return str(path.resolve()).replace("%", "%25").replace("?", "%3f").replace("#", "%23")
