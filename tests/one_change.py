"""A single change of an index, as the command line makes it: without opening the index to search,
and continued by the same call after an interruption.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

from aveyb_retrieval import Batch
from aveyb_retrieval.indexes.changes import change
from aveyb_retrieval.indexes.changes.update import insert_alone
from aveyb_retrieval.indexes.store.place import open_directory

if TYPE_CHECKING:
    from collections.abc import Mapping, Sequence
    from pathlib import Path

    from aveyb_retrieval.documents.corpus import Source
    from aveyb_retrieval.indexes.changes.change import Report
    from aveyb_retrieval.indexes.store.filters import Filter


def add(documents: Source | None, root: str | Path, **options: Any) -> Report:
    """Add documents with new ids."""
    return insert_alone("add", documents, root, **options)


def upsert(documents: Source | None, root: str | Path, **options: Any) -> Report:
    """Add documents, replacing those whose ids are in the index already."""
    return insert_alone("upsert", documents, root, **options)


def delete(
    root: str | Path,
    ids: Sequence[str] = (),
    *,
    where: Filter | None = None,
    missing_ok: bool = False,
    **writing: Any,
) -> Report:
    """Remove documents by ids or a filter."""
    batch = Batch(root, **writing)
    batch.delete(ids, where=where, missing_ok=missing_ok)
    return batch.commit(resumable=True)


def update_metadata(
    root: str | Path,
    changes: Mapping[str, Any],
    ids: Sequence[str] = (),
    *,
    where: Filter | None = None,
    remove: Sequence[str] = (),
    clear: bool = False,
    missing_ok: bool = False,
    **writing: Any,
) -> Report:
    """Set metadata fields of documents by ids or a filter."""
    batch = Batch(root, **writing)
    batch.update_metadata(
        changes, ids, where=where, remove=remove, clear=clear, missing_ok=missing_ok
    )
    return batch.commit(resumable=True)


def compact(root: str | Path, **writing: Any) -> Report:
    """Merge what changes have left in pieces."""
    return change.compact(open_directory(root), **writing)
