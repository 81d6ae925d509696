"""`LiveIndex`: an index directory that a program both searches and changes, always at its newest version."""

from __future__ import annotations

import threading
from pathlib import Path
from typing import TYPE_CHECKING, Any

from aveyb_retrieval import (
    Retriever,
    add_documents,
    build_index,
    delete_documents,
    update_metadata,
    upsert_documents,
)

if TYPE_CHECKING:
    from collections.abc import Mapping, Sequence

    from aveyb_retrieval.indexes.model import Model
    from aveyb_retrieval.indexes.store.filters import Filter


class LiveIndex:
    """An index directory. Safe to use from many threads; one process at a time may change it.

    Args:
        path: The index directory.
        model: The model, as in `Retriever.load`; loaded once, for searches and changes.
        create: Make an empty index where there is none, with `options` of `build_index`.
        **options: Used only to create the index.

    Raises:
        IndexFormatError: there is no index (and `create` is not set), or it is damaged.
    """

    def __init__(self, path: str | Path, *, model: Model = None, create: bool = False, **options: Any) -> None:
        self.path = Path(path)
        self._lock = threading.RLock()
        if create and not (self.path / "current").exists():
            build_index([], self.path, model=model, allow_empty=True, **options)
        self._retriever = Retriever.load(self.path, model=model)

    @property
    def retriever(self) -> Retriever:
        """The index, open at its newest version."""
        with self._lock:
            self._retriever.reopen()
        return self._retriever

    def add(self, rows: Sequence[Mapping[str, Any]]) -> None:
        """Add documents with new ids."""
        if not rows:
            return
        with self._lock:
            add_documents(rows, self.path, model=self._retriever.model)

    def upsert(self, rows: Sequence[Mapping[str, Any]]) -> None:
        """Add documents and replace those whose ids are there already; of the same id twice, the last counts."""
        if not rows:
            return
        with self._lock:
            upsert_documents(rows, self.path, model=self._retriever.model)

    def delete(self, ids: Sequence[str] = (), *, where: Filter | None = None) -> int:
        """Delete documents by id (those that are there) or by filter; return how many."""
        if not ids and where is None:
            return 0
        with self._lock:
            before = self.retriever.count()
            delete_documents(self.path, ids, where=where, missing_ok=True)
            return before - self.retriever.count()

    def update_metadata(self, changes: Mapping[str, Any], where: Filter) -> int:
        """Set metadata fields of the documents that satisfy a filter; return how many these are."""
        with self._lock:
            count = self.retriever.count(where)
            update_metadata(self.path, changes, where=where)
            return count

    def close(self) -> None:
        """Let go of the index's files."""
        self._retriever.close()


def row(document_id: str, text: str, metadata: Mapping[str, Any]) -> dict[str, Any]:
    """Make a document for the index; a metadata field `title` that is a text is its title, too."""
    title = metadata.get("title")
    return {
        "_id": document_id,
        "title": title if isinstance(title, str) else "",
        "text": text,
        "metadata": dict(metadata),
    }
