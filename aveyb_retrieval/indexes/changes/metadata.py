"""Change the metadata of documents that are in an index. No text is read, nothing is encoded."""

from __future__ import annotations

import hashlib
import json
from typing import TYPE_CHECKING, Any

from aveyb_retrieval.errors import ConfigError
from aveyb_retrieval.indexes.changes.change import Report, once, run_change
from aveyb_retrieval.indexes.changes.selection import Selection
from aveyb_retrieval.indexes.input.documents import check_metadata, metadata_json
from aveyb_retrieval.indexes.store.filters import OWN
from aveyb_retrieval.indexes.types import Progress, silent

if TYPE_CHECKING:
    from collections.abc import Mapping, Sequence
    from pathlib import Path

    from aveyb_retrieval.indexes.changes.transaction import Job, Transaction
    from aveyb_retrieval.indexes.store.filters import Filter
    from aveyb_retrieval.indexes.store.tables import Tables


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
    before: Tables | None = None,
) -> Report:
    """Set metadata fields of the documents with these ids, and of those that satisfy a filter.

    Fields that are not named stay as they are. `_id`, `title` and `text` are refused, as they are no metadata:
    `upsert_documents` changes them.

    Args:
        root: The index directory.
        changes: Fields and their new values, for every chosen document; a value replaces the old one as a whole.
        ids: Ids of documents.
        where: A filter; {} is for every document.
        remove: Names of fields to take away.
        missing_ok: Ignore ids that are not in the index.
        restart: Throw away the work of an interrupted change.
        progress: Called as the work goes on.
        before: The datasets at any version, if this process has them open.

    Raises:
        ConfigError: there is nothing to change, a field is both set and removed or is a document's own, or neither ids
            nor a filter are given.
        InputError: a value is not what JSON can hold, or an id is not in the index (unless `missing_ok`).
        IndexFormatError: there is no index.
        IndexLockedError: another process is writing.
    """
    change = MetadataChange(changes, Selection("update_metadata", ids, where, missing_ok=missing_ok), remove)
    progress("changing metadata", 0, None, 0)
    return run_change(root, change.job, once(change.apply), restart=restart, progress=progress, before=before)


class MetadataChange:
    """New values of fields, and fields to take away, for some documents.

    Raises:
        ConfigError: there is nothing to change, or a field is both set and removed, or is a document's own.
        InputError: a value is not what JSON can hold.
    """

    def __init__(self, changes: Mapping[str, Any], chosen: Selection, remove: Sequence[str] = ()) -> None:
        if isinstance(remove, str):
            raise ConfigError(
                f"update_metadata: remove={remove!r} is one string; give a list of fields, as [{remove!r}]"
            )
        if not changes and not remove:
            raise ConfigError(
                "update_metadata: nothing to change; give fields with their new values, or fields to remove"
            )
        if both := sorted(set(changes) & set(remove)):
            raise ConfigError(f"update_metadata: the field {both[0]!r} is both set and removed; name it once")
        if own := sorted({*changes, *remove} & {*OWN, "text"}):
            raise ConfigError(f"update_metadata: {own[0]!r} is a document's own, not metadata; upsert changes it")
        self._new = check_metadata(changes, "update_metadata")
        self._remove = frozenset(remove)
        self._chosen = chosen

    @property
    def job(self) -> Job:
        """What identifies it."""
        return {
            "command": "update-metadata",
            **self._chosen.describe(),
            "changes": hashlib.sha256(metadata_json(self._new).encode()).hexdigest(),
            "remove": sorted(self._remove),
        }

    def apply(self, transaction: Transaction) -> int:
        """Make it; return how many documents it concerned."""
        docs = self._chosen.numbers(transaction)
        transaction.rewrite(docs, self._changed)
        transaction.count(replaced=len(docs))
        return len(docs)

    def _changed(self, row: dict[str, Any]) -> dict[str, Any]:
        kept = {name: value for name, value in json.loads(row["metadata"]).items() if name not in self._remove}
        return {"metadata": metadata_json({**kept, **self._new})}
