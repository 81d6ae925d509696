"""Which documents a change is about: some ids, those that satisfy a filter, or both."""

from __future__ import annotations

import hashlib
import json
from typing import TYPE_CHECKING, Any

from aveyb_retrieval.errors import ConfigError, InputError
from aveyb_retrieval.indexes.store import filters
from aveyb_retrieval.indexes.store.filter_advice import warn_of_filter
from aveyb_retrieval.indexes.store.numbering import check_ids

if TYPE_CHECKING:
    from collections.abc import Sequence

    from aveyb_retrieval.indexes.changes.transaction import Transaction
    from aveyb_retrieval.indexes.store.filters import Filter


class Selection:
    """The documents with these ids, and those that satisfy a filter.

    Raises:
        ConfigError: neither is given.
        InputError: `ids` is not a list of strings.
    """

    def __init__(self, command: str, ids: Sequence[str], where: Filter | None, *, missing_ok: bool) -> None:
        listed = check_ids(ids)
        if not listed and where is None:
            raise ConfigError(f"{command}: give ids or a filter; an empty filter {{}} is for every document")
        self._ids = sorted(set(listed))
        self._where = where
        self._missing_ok = missing_ok

    def describe(self) -> dict[str, Any]:
        """Identify the selection, so that an interrupted change never continues with another one."""
        return {
            "ids": hashlib.sha256(json.dumps(self._ids).encode()).hexdigest() if self._ids else None,
            "filter": filters.filter_key(self._where) if self._where is not None else None,
        }

    def numbers(self, transaction: Transaction) -> list[int]:
        """Return the numbers of the documents in a change, ascending.

        Raises:
            InputError: an id is not in the index, which was not said to be all right.
        """
        tables, docs = transaction.tables, set[int]()
        known = tables.find(self._ids)
        missing = next((i for i in self._ids if i not in known), None)
        if missing is not None and not self._missing_ok:
            raise InputError(f"{transaction.root}: no document has the id {missing!r}; nothing was changed")
        docs.update(doc for doc, _ in known.values())
        if self._where is not None:
            matching = tables.matching(self._where)
            docs.update(matching.tolist())
            if not len(matching):
                warn_of_filter(tables, self._where)
        return sorted(docs)
