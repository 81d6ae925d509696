"""Change the metadata of documents that are in an index. No text is read, nothing is encoded."""

from __future__ import annotations

import hashlib
from typing import TYPE_CHECKING, Any

from aveyb_retrieval.errors import ConfigError
from aveyb_retrieval.indexes.input.documents import check_metadata, metadata_json
from aveyb_retrieval.indexes.types import Progress, silent
from aveyb_retrieval.indexes.changes.change import FinishOptions, Report, run_change
from aveyb_retrieval.indexes.changes.selection import Selection

if TYPE_CHECKING:
    from collections.abc import Mapping, Sequence
    from pathlib import Path

    from aveyb_retrieval.indexes.store.filters import Filter
    from aveyb_retrieval.indexes.changes.settings import Settings
    from aveyb_retrieval.indexes.changes.transaction import Job, Transaction

BATCH = 1024  # documents whose metadata are read at once


def update_metadata(
    root: str | Path,
    changes: Mapping[str, Any],
    ids: Sequence[str] = (),
    *,
    where: Filter | None = None,
    remove: Sequence[str] = (),
    missing_ok: bool = False,
    restart: bool = False,
    progress: Progress = silent,
) -> Report:
    """Set metadata fields of the documents with these ids, and of those that satisfy a filter.

    Fields that are not named stay as they are. Titles and texts are not metadata: `upsert_documents` changes them.

    Args:
        root: The index directory.
        changes: Fields and their new values, for every chosen document; a value replaces the old one as a whole.
        ids: Ids of documents.
        where: A filter; {} is for every document.
        remove: Names of fields to take away.
        missing_ok: Ignore ids that are not in the index.
        restart: Throw away the work of an interrupted change.
        progress: Called as the work goes on.

    Raises:
        ConfigError: there is nothing to change, a field is both set and removed, or neither ids nor a filter are given.
        InputError: a value is not what JSON can hold, or an id is not in the index (unless `missing_ok`).
        IndexFormatError: there is no index.
        IndexLockedError: another process is writing.
    """
    chosen = Selection("update_metadata", ids, where, missing_ok=missing_ok)
    if isinstance(remove, str):
        raise ConfigError(f"update_metadata: remove={remove!r} is one string; give a list of fields, as [{remove!r}]")
    if not changes and not remove:
        raise ConfigError("update_metadata: nothing to change; give fields with their new values, or fields to remove")
    if both := sorted(set(changes) & set(remove)):
        raise ConfigError(f"update_metadata: the field {both[0]!r} is both set and removed; name it once")
    new = check_metadata(changes, "update_metadata")
    job: Job = {
        "command": "update-metadata",
        **chosen.describe(),
        "changes": hashlib.sha256(metadata_json(new).encode()).hexdigest(),
        "remove": sorted(set(remove)),
    }

    def work(transaction: Transaction, settings: Settings) -> FinishOptions | None:
        store = transaction.store
        if store.get("consumed"):  # by the interrupted run that this one continues
            return FinishOptions(settings)
        with store.transaction():
            docs = chosen.numbers(transaction)
            for start in range(0, len(docs), BATCH):
                progress("changing metadata", start, len(docs), 0)
                for doc, old in store.metadata(docs[start : start + BATCH]).items():
                    kept = {name: value for name, value in old.items() if name not in remove}
                    store.set_metadata(doc, metadata_json({**kept, **new}))
            store.put("consumed", 1)
            store.put("changes", {"replaced": len(docs)})
        return FinishOptions(settings) if docs else None

    return run_change(root, job, work, restart=restart, progress=progress)
