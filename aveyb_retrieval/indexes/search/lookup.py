"""Documents without a search: by id, or all that satisfy a filter."""

from __future__ import annotations

from dataclasses import dataclass, field
from itertools import chain
from typing import TYPE_CHECKING, Any

from aveyb_retrieval.encoder.text.outline import outline
from aveyb_retrieval.errors import ConfigError, IndexFormatError, InputError
from aveyb_retrieval.indexes.search.several import SeveralView
from aveyb_retrieval.indexes.search.snapshot import Snapshot
from aveyb_retrieval.indexes.store.filters import advice_on, compile_filter
from aveyb_retrieval.indexes.store.tables import MOST_GIVEN, most_frequent
from aveyb_retrieval.indexes.types import check_ids

if TYPE_CHECKING:
    from collections.abc import Iterable, Iterator, Sequence
    from contextlib import AbstractContextManager

    from aveyb_retrieval.documents.records import FileOrigin
    from aveyb_retrieval.indexes.engine import EngineView
    from aveyb_retrieval.indexes.store.filters import Filter, Scalar

BATCH = 256  # documents that are read at once
_BEGINNING = 4000  # characters in which a document's first heading is looked for


@dataclass(frozen=True)
class Document:
    """One document of an index.

    Attributes:
        id: The document's id.
        text: The whole text.
        title: The title, "" where there is none.
        metadata: All other fields.
        origin: The file that it was read from, if it was one of its own.
        index: The name of its index where several are read together, else None.
    """

    id: str
    text: str
    title: str
    metadata: dict[str, Any]
    origin: FileOrigin | None = field(default=None, repr=False, compare=False)
    index: str | None = None

    @property
    def name(self) -> str:
        """What it is called: its title, else its first heading, else its id."""
        if self.title:
            return self.title
        headings = outline(self.text[:_BEGINNING]).headings
        return headings[0].words if headings else self.id

    def to_dict(self) -> dict[str, Any]:
        """Return what JSON can hold, and what `build_index` and `upsert_documents` take as a document."""
        return {"_id": self.id, "title": self.title, "text": self.text, "metadata": self.metadata}


def get(view: EngineView, ids: Sequence[str], *, missing_ok: bool) -> list[Document]:
    """Fetch documents by id, in the order of `ids`.

    Raises:
        InputError: `ids` is not a list of strings, or (unless `missing_ok`) the index has no document of such an id.
    """
    ids = check_ids(ids)
    found = view.find(ids)
    if not missing_ok and (missing := next((i for i in ids if i not in found), None)) is not None:
        raise InputError(f"{view.info.name}: no document has the id {missing!r}")
    return list(_fetch(view, [found[document_id] for document_id in ids if document_id in found]))


def count(view: EngineView, where: Filter | None) -> int:
    """Count the documents that satisfy a filter; None counts all."""
    selection = view.select(where)
    return view.info.documents if selection is None else len(view.matching(selection))


def within(where: Filter | None, ids: Iterable[str] | None) -> Filter | None:
    """A filter that also keeps to some ids, where they are given; raises InputError as `check_ids` does."""
    if ids is None:
        return where
    among = {"_id": {"$in": check_ids(ids)}}
    return among if where is None else {"$and": [among, where]}


def values(view: EngineView, field: str, where: Filter | None, limit: int) -> list[tuple[Scalar, int]]:
    """Count the values of a field, as `Retriever.values` says.

    Raises:
        ConfigError: an engine is asked, the field is not one, or `limit` is out of range.
    """
    if not isinstance(field, str):
        raise ConfigError(f"field={field!r}: must be the name of a field")
    if not isinstance(limit, int) or isinstance(limit, bool) or not 0 < limit <= MOST_GIVEN:
        raise ConfigError(f"limit={limit!r}: must be a whole number from 1 to {MOST_GIVEN:,}")
    if isinstance(view, SeveralView):  # some of them may know nothing of the field
        known = [each for each in view.views if not isinstance(each, Snapshot) or each.has_field(field)]
        counted = [_values(each, field, where) for each in known or view.views[:1]]
        return most_frequent(chain.from_iterable(counted))[:limit]
    return _values(view, field, where)[:limit]


def advice(view: EngineView, where: Filter) -> list[str]:
    """Say why a filter may match nothing; nothing where the engine cannot tell.

    Raises:
        ConfigError: the filter means nothing.
    """
    compile_filter(where)  # only for its errors
    views = view.views if isinstance(view, SeveralView) else [view]
    found = [advice_on(each.tables, where) for each in views if isinstance(each, Snapshot)]
    return list(dict.fromkeys(chain.from_iterable(found)))


def _values(view: EngineView, field: str, where: Filter | None) -> list[tuple[Scalar, int]]:
    if not isinstance(view, Snapshot):
        raise ConfigError(f"{view.info.name}: values are counted in index directories alone; ask the database itself")
    return view.values(field, where)


def documents(
    viewing: AbstractContextManager[EngineView], where: Filter | None, limit: int | None, offset: int
) -> Iterator[Document]:
    """Yield the documents that satisfy a filter, oldest first, in constant memory but for their numbers.

    The view is entered when the first document is asked for, and left after the last one.

    Raises:
        ConfigError: `limit` or `offset` is not a whole number of at least 0, or the filter means nothing.
    """
    for name, value in (("limit", limit), ("offset", offset)):
        if value is None and name == "limit":
            continue
        if not isinstance(value, int) or isinstance(value, bool) or value < 0:
            raise ConfigError(f"{name}={value!r}: must be a whole number of at least 0")
    compile_filter({} if where is None else where)  # only for its errors
    return _documents(viewing, {} if where is None else where, slice(offset, None if limit is None else offset + limit))


def _documents(viewing: AbstractContextManager[EngineView], where: Filter, wanted: slice) -> Iterator[Document]:
    with viewing as view:
        yield from _fetch(view, view.matching(view.select(where))[wanted].tolist())


def _fetch(view: EngineView, numbers: Sequence[int]) -> Iterator[Document]:
    for start in range(0, len(numbers), BATCH):
        some = numbers[start : start + BATCH]
        found = view.documents(some)
        for number in some:
            if number not in found:
                raise IndexFormatError(f"{view.info.name}: document number {number} has no text; {view.info.remedy}")
            stored = found[number]
            yield Document(stored.id, stored.text, stored.title, stored.metadata, stored.origin, stored.of_index)
