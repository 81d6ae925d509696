"""Documents of an index without a search: by id, or all that satisfy a filter."""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

from aveyb_retrieval.errors import ConfigError, IndexFormatError, InputError

if TYPE_CHECKING:
    from collections.abc import Iterator, Sequence

    from aveyb_retrieval.index.search.snapshot import Snapshot
    from aveyb_retrieval.index.storage.filters import Filter

BATCH = 256  # documents that are read at once


@dataclass(frozen=True)
class Document:
    """One document of an index.

    Attributes:
        id: The document's id.
        text: The whole text.
        title: The title, "" where there is none.
        metadata: All other fields.
    """

    id: str
    text: str
    title: str
    metadata: dict[str, Any]

    def to_dict(self) -> dict[str, Any]:
        """Return what JSON can hold, and what `build_index` and `upsert_documents` take as a document."""
        return {"_id": self.id, "title": self.title, "text": self.text, "metadata": self.metadata}


def get(snapshot: Snapshot, ids: Sequence[str], *, missing_ok: bool) -> list[Document]:
    """Fetch documents by id, in the order of `ids`.

    Raises:
        InputError: `ids` is not a list of strings, or (unless `missing_ok`) the index has no document of such an id.
    """
    if isinstance(ids, str):
        raise InputError(f"ids={ids!r} is one string; give a list of ids, as [{ids!r}]")
    numbers = []
    with snapshot.store() as store:
        for document_id in ids:
            if not isinstance(document_id, str):
                raise InputError(f"the id {document_id!r} is of type {type(document_id).__name__}; ids are strings")
            found = store.find(document_id)
            if found is not None:
                numbers.append(found[0])
            elif not missing_ok:
                raise InputError(f"{snapshot.folder.parent}: no document has the id {document_id!r}")
    return list(_fetch(snapshot, numbers))


def count(snapshot: Snapshot, where: Filter | None) -> int:
    """Count the documents that satisfy a filter; None counts all."""
    allowed = snapshot.allowed(where)
    return snapshot.manifest.counts["documents"] if allowed is None else len(allowed.docs)


def documents(snapshot: Snapshot, where: Filter | None, limit: int | None, offset: int) -> Iterator[Document]:
    """Yield the documents that satisfy a filter, oldest first, in constant memory but for their numbers.

    Raises:
        ConfigError: `limit` or `offset` is not a whole number of at least 0, or the filter means nothing.
    """
    for name, value in (("limit", limit), ("offset", offset)):
        if value is None and name == "limit":
            continue
        if not isinstance(value, int) or isinstance(value, bool) or value < 0:
            raise ConfigError(f"{name}={value!r}: must be a whole number of at least 0")
    allowed = snapshot.allowed({} if where is None else where)
    assert allowed is not None  # there is a filter
    return _fetch(snapshot, allowed.docs[offset : None if limit is None else offset + limit].tolist())


def _fetch(snapshot: Snapshot, numbers: Sequence[int]) -> Iterator[Document]:
    for start in range(0, len(numbers), BATCH):
        some = numbers[start : start + BATCH]
        with snapshot.store() as store:
            found = store.documents(some)
        for number in some:
            if number not in found:
                raise IndexFormatError(
                    f"{snapshot.folder}: document number {number} has no text; run `aveyb-index verify "
                    f"{snapshot.folder.parent}`"
                )
            stored = found[number]
            yield Document(stored.id, stored.text, stored.title, stored.metadata)
