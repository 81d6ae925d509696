"""Which documents a change is about: some ids, those that satisfy a filter, or both."""

from __future__ import annotations

import hashlib
import json
from typing import TYPE_CHECKING, Any

from aveyb_retrieval.errors import ConfigError, InputError
from aveyb_retrieval.indexes.store import filters
from aveyb_retrieval.indexes.store.filter_advice import warn_of_filter

if TYPE_CHECKING:
    from collections.abc import Sequence

    from aveyb_retrieval.indexes.store.filters import Filter
    from aveyb_retrieval.indexes.changes.transaction import Transaction


class Selection:
    """The documents with these ids, and those that satisfy a filter.

    Raises:
        ConfigError: neither is given, or `ids` is one string.
    """

    def __init__(self, command: str, ids: Sequence[str], where: Filter | None, *, missing_ok: bool) -> None:
        if isinstance(ids, str):
            raise ConfigError(f"{command}: ids={ids!r} is one string; give a list of ids, as [{ids!r}]")
        if not ids and where is None:
            raise ConfigError(f"{command}: give ids or a filter; an empty filter {{}} is for every document")
        self._ids = sorted(set(ids))
        self._where = where
        self._missing_ok = missing_ok

    def describe(self) -> dict[str, Any]:
        """Identify the selection, so that an interrupted change never continues with another one."""
        return {
            "ids": hashlib.sha256(json.dumps(self._ids).encode()).hexdigest() if self._ids else None,
            "filter": filters.filter_key(self._where) if self._where is not None else None,
        }

    def numbers(self, transaction: Transaction) -> list[int]:
        """Return the numbers of the documents in the store of a change, ascending.

        Raises:
            InputError: an id is not in the index, which was not said to be all right.
        """
        store = transaction.store
        docs: set[int] = set()
        for document_id in self._ids:
            known = store.find(document_id)
            if known is not None:
                docs.add(known[0])
            elif not self._missing_ok:
                root = transaction.index_dir.root
                raise InputError(f"{root}: no document has the id {document_id!r}; nothing was changed")
        if self._where is not None:
            index_fields = transaction.base.index_fields if transaction.base else {}
            matching = store.matching(filters.compile_filter(self._where, index_fields)).tolist()
            docs.update(matching)
            if not matching:
                warn_of_filter(store, self._where)
        return sorted(docs)
