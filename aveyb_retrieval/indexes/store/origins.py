"""The files that documents were read from, and their pages: a table of the store that is made when it is first needed.

An index without such documents has no such table, and neither has one of an older version.
"""

from __future__ import annotations

import json
from typing import TYPE_CHECKING, NamedTuple

from aveyb_retrieval.errors import IndexFormatError
from aveyb_retrieval.indexes.input.documents import FileOrigin
from aveyb_retrieval.indexes.pages import Pages
from aveyb_retrieval.indexes.store import store_check

if TYPE_CHECKING:
    from collections.abc import Iterable
    from pathlib import Path

    from aveyb_retrieval.indexes.store.store import Store

_TABLE = """CREATE TABLE IF NOT EXISTS origins(
    doc INTEGER PRIMARY KEY, sha256 TEXT NOT NULL, folder TEXT NOT NULL, pages TEXT)"""


class StoredFile(NamedTuple):
    """A file as the store knows it: its document's number and id, and the hash of its bytes."""

    doc: int
    id: str
    sha256: str


def has_origins(store: Store) -> bool:
    """Whether any document was read from a file of its own."""
    found = store.db.execute("SELECT 1 FROM sqlite_master WHERE type = 'table' AND name = 'origins'").fetchone()
    return found is not None


def set_origin(store: Store, doc: int, origin: FileOrigin | None) -> None:
    """Keep, replace or forget the file that a document was read from."""
    if origin is not None:
        store.db.execute(_TABLE)
        pages = origin.pages.to_json() if origin.pages else None
        store.db.execute(
            "INSERT OR REPLACE INTO origins VALUES (?, ?, ?, ?)", (doc, origin.sha256, origin.folder, pages)
        )
    elif has_origins(store):
        remove_origin(store, doc)


def forget_hash(store: Store, doc: int) -> None:
    """Let a document's file count as changed until it is read again."""
    store.db.execute("UPDATE origins SET sha256 = '' WHERE doc = ?", (doc,))


def remove_origin(store: Store, doc: int) -> None:
    """Forget the file of a document that is removed."""
    store.db.execute("DELETE FROM origins WHERE doc = ?", (doc,))


def stored_files(store: Store) -> dict[str, StoredFile]:
    """Return the files of all documents that were read from one each, by the documents' ids."""
    if not has_origins(store):
        return {}
    rows = store.db.execute("SELECT doc, id, sha256 FROM origins JOIN documents USING (doc) ORDER BY doc")
    return {name: StoredFile(doc, name, store_check.text(sha256, store.path)) for doc, name, sha256 in rows}


def folders(store: Store) -> list[str]:
    """Return the folders whose files were read, as absolute paths."""
    if not has_origins(store):
        return []
    rows = store.db.execute("SELECT DISTINCT folder FROM origins ORDER BY folder")
    return [store_check.text(folder, store.path) for (folder,) in rows]


def set_folder(store: Store, folder: str) -> None:
    """Name another folder as the one whose files were read: the same one at another place."""
    if has_origins(store):
        store.db.execute("UPDATE origins SET folder = ?", (folder,))


def origins_of(store: Store, docs: Iterable[int]) -> dict[int, FileOrigin]:
    """Return the files of those documents that were read from one each.

    Raises:
        IndexFormatError: what is stored is not pages, or not text.
    """
    if not has_origins(store):
        return {}
    rows = store.db.execute(
        "SELECT doc, sha256, folder, pages FROM origins WHERE doc IN (SELECT value FROM json_each(?))",
        (json.dumps(list(docs)),),
    )
    found = {}
    for doc, *words, pages in rows:
        sha256, folder = (store_check.text(value, store.path) for value in words)
        found[doc] = FileOrigin(sha256, folder, None if pages is None else _parse(pages, store.path))
    return found


def _parse(value: object, path: Path) -> Pages:
    try:
        return Pages.from_json(store_check.json_value(value, path))
    except ValueError as error:
        raise IndexFormatError(
            f"{path}: damaged ({error}); restore the file from a copy or build the index again"
        ) from error


def origin_problems(store: Store) -> list[str]:
    """Return what is wrong with the files and pages of documents, as sentences."""
    if not has_origins(store):
        return []
    found = []
    rows = store.db.execute(
        "SELECT o.doc, o.pages, length(t.text) FROM origins o LEFT JOIN texts t USING (doc) ORDER BY o.doc"
    )
    for doc, pages, length in rows:
        if length is None:
            found.append(f"a file of document number {doc}, which is not there")
        elif pages is not None:
            try:
                last = _parse(pages, store.path).starts[-1]
            except IndexFormatError as error:
                found.append(str(error).removeprefix(f"{store.path}: "))
                continue
            if last > length:
                found.append(f"document number {doc}: a page begins at character {last} of {length}")
    return found
