"""`verify --deep`: does the content of a store agree with itself? A change made with its hash shows here."""

from __future__ import annotations

import hashlib
import sqlite3
from contextlib import closing
from typing import TYPE_CHECKING

import numpy as np

from aveyb_retrieval.errors import IndexFormatError
from aveyb_retrieval.indexes.store import store_check
from aveyb_retrieval.indexes.store.numbering import MAX_PASSAGES, PASSAGE_BITS
from aveyb_retrieval.indexes.store.origins import origin_problems
from aveyb_retrieval.indexes.store.store import Store, content_digest

if TYPE_CHECKING:
    from collections.abc import Iterator

_SAMPLED = 2000  # words that are looked up in each full-text index
_MOST = 20  # problems that are named; one is enough to distrust an index


def content_problems(store: Store) -> list[str]:
    """Return what is wrong in a store as sentences, at most twenty of them."""
    found: list[str] = []
    for problem in _all(store):
        found.append(f"{store.path}: {problem}")
        if len(found) == _MOST:
            break
    return found


def _all(store: Store) -> Iterator[str]:
    rows = store.db.execute(
        "SELECT doc, id, digest, n_passages, title, text FROM documents LEFT JOIN texts USING (doc) ORDER BY doc"
    )
    for doc, name, digest, n_passages, title, text in rows:
        where = f"document {name!r}"
        if not isinstance(title, str) or not isinstance(text, str):
            yield f"{where} has no text"
            continue
        if content_digest(title, text) != digest:
            yield f"{where}: its text is not the one that was encoded"
        try:
            numbers, spans = store.passages([doc])
            store.some_passages(numbers.tolist())
            store.documents([doc])
        except IndexFormatError as error:
            yield f"{where}: {error}"
            continue
        if len(spans) != n_passages:
            yield f"{where}: {len(spans)} passages are stored, its row says {n_passages}"
        elif len(spans) and not (
            spans.min() >= 0
            and spans.max() <= len(text)
            and (spans[:, 0] <= spans[:, 1]).all()
            and (np.diff(spans, axis=0) >= 0).all()
        ):
            yield f"{where}: its passages are not spans of its text in order"
    (orphans,) = store.db.execute(
        "SELECT count(*) FROM passages WHERE passage >> ? NOT IN (SELECT doc FROM documents) "
        "OR passage & ? >= (SELECT n_passages FROM documents WHERE doc = passage >> ?)",
        (PASSAGE_BITS, MAX_PASSAGES - 1, PASSAGE_BITS),
    ).fetchone()
    if orphans:
        yield f"{orphans} passages belong to no document"
    yield from origin_problems(store)
    yield from _word_problems(store)


def _word_problems(store: Store) -> Iterator[str]:
    """Full-text indexes that disagree with the texts: a copy's are checked, made again from the texts, and compared."""
    names = ["fulltext", "passage_words"] if store.words.has_passages else ["fulltext"]
    with closing(sqlite3.connect("", isolation_level=None)) as connection:  # a file that SQLite deletes
        store.db.backup(connection)
        for name in names:
            try:  # in format 1, where the table reads `texts`, this compares with the texts; else only its own parts
                connection.execute(f"INSERT INTO {name}({name}, rank) VALUES ('integrity-check', 1)")  # noqa: S608
            except store_check.UNREADABLE as error:
                yield f"the full-text index {name!r} does not fit the texts ({error})"
                return
        if not store.words.has_passages:
            return
        copy = Store(store.path, connection)
        for name in names:
            if lost := _lost_words(copy, name):
                yield f"{lost} words of the full-text index {name!r} are not found when they are looked up"
                return
        before = [_words_digest(copy, name) for name in names]
        with copy.transaction():
            copy.make_words_again()
        for name, digest in zip(names, before, strict=True):
            if _words_digest(copy, name) != digest:
                yield f"the words in the full-text index {name!r} are not those of the texts"


def _lost_words(store: Store, name: str) -> int:
    """How many of a sample of an FTS5 table's words a look-up finds in other numbers of rows than a scan does."""
    store.db.execute(f"CREATE VIRTUAL TABLE temp.words USING fts5vocab(main, {name}, row)")
    (count,) = store.db.execute("SELECT count(*) FROM temp.words").fetchone()
    step = max(1, count // _SAMPLED)
    scanned = store.db.execute("SELECT term, doc FROM temp.words")
    sample = [row for number, row in enumerate(scanned) if number % step == 0]
    look_up = "SELECT doc FROM temp.words WHERE term = ?"
    lost = sum(store.db.execute(look_up, (term,)).fetchone() != (rows,) for term, rows in sample)
    store.db.execute("DROP TABLE temp.words")
    return lost


def _words_digest(store: Store, name: str) -> bytes:
    """A hash of all that an FTS5 table holds: each word with its places, the lengths of rows, and their sums."""
    digest = hashlib.sha256()
    store.db.execute(f"CREATE VIRTUAL TABLE temp.places USING fts5vocab(main, {name}, instance)")
    for sql in (
        "SELECT term, doc, col, offset FROM temp.places",
        f"SELECT id, sz FROM {name}_docsize ORDER BY id",  # noqa: S608  # one of two names
    ):
        for row in store.db.execute(sql):
            digest.update(repr(row).encode())
    (sums,) = store.db.execute(f"SELECT block FROM {name}_data WHERE id = 1").fetchone()  # noqa: S608
    # FTS5's record of the sums: nothing, or zeros where the last row was deleted
    digest.update(repr(sums.rstrip(b"\0") if isinstance(sums, bytes) else sums).encode())
    store.db.execute("DROP TABLE temp.places")
    return digest.digest()
