"""Reading stored documents without a search: by id or filter, headings, matches of an expression,
and parts.
"""

from __future__ import annotations

import unicodedata
from collections import Counter
from dataclasses import dataclass, field
from itertools import chain
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any, NamedTuple

import numpy as np
from msgspec import Meta

from aveyb_retrieval.checks import check_value
from aveyb_retrieval.encoder.text.passages import names_of, outline
from aveyb_retrieval.errors import ConfigError, IndexFormatError, InputError
from aveyb_retrieval.indexes.search.exported_vectors import (
    VectorBatch,
    read_batches,
    select_documents,
    write_vectors,
)
from aveyb_retrieval.indexes.search.options import AtLeast0, within
from aveyb_retrieval.indexes.search.selections import Allowed
from aveyb_retrieval.indexes.search.several import SeveralView
from aveyb_retrieval.indexes.search.snapshot import Snapshot
from aveyb_retrieval.indexes.store.expressions import TimedExpression, compile_expression
from aveyb_retrieval.indexes.store.filters import compile_filter
from aveyb_retrieval.indexes.store.tables import MAX_GIVEN_ROWS, most_frequent
from aveyb_retrieval.indexes.types import check_ids

if TYPE_CHECKING:
    from collections.abc import Iterator, Sequence
    from contextlib import AbstractContextManager

    from aveyb_retrieval.documents.records import FileOrigin, Page
    from aveyb_retrieval.indexes.engine import EngineView, VectorEngine
    from aveyb_retrieval.indexes.search.options import Unit
    from aveyb_retrieval.indexes.store.filters import Filter, Scalar
    from aveyb_retrieval.indexes.types import IntArray

BATCH_DOCUMENTS = 256  # documents that are read at once
BATCH_IDS = 8192  # ids that are
LISTED_DOCUMENTS = 200  # documents from which on folders are counted
_BEGINNING_CHARACTERS = 4000  # characters in which a document's first heading is looked for
MAX_MATCHES = 1000
_GivenRows = Annotated[int, Meta(ge=1, le=MAX_GIVEN_ROWS)]
CONTEXT_CHARACTERS = 100  # characters beside a match, up to the ends of its line
CHARACTERS = 4  # of a token, at least, in most scripts that are written with spaces


@dataclass(frozen=True)
class Document:
    """One document of an index.

    Attributes:
        id, text, title, metadata: The title is "" where there is none; metadata are all other
            fields.
        origin: The file that it was read from, if it was one of its own.
        index: The name of its index where several are read together, else None.
    """

    id: str
    text: str
    title: str
    metadata: dict[str, Any] = field(hash=False)
    origin: FileOrigin | None = field(default=None, repr=False, compare=False)
    index: str | None = None

    @property
    def name(self) -> str:
        """What it is called: its title, else its first heading, else its id."""
        if self.title:
            return self.title
        lines = (
            heading.words
            for heading in outline(self.text[:_BEGINNING_CHARACTERS]).headings
            if not heading.caption
        )
        return next(lines, self.id)

    def to_dict(self) -> dict[str, Any]:
        """Return what JSON can hold, and what `build_index` and `Index.upsert` take as a
        document.
        """
        return {"_id": self.id, "title": self.title, "text": self.text, "metadata": self.metadata}


@dataclass(frozen=True)
class Match:
    """Where an expression matches.

    Attributes:
        id: Id of the document.
        title: Title of the document.
        span: The characters `[start, end)` of the match in its text.
        line: The line around the match, at most `CONTEXT_CHARACTERS` characters on either side.
        page: The page of the match, counted from 1; None if the document has no pages.
    """

    id: str
    title: str
    span: tuple[int, int]
    line: str
    page: int | None


class Section(NamedTuple):
    """A heading: its words, the characters `[start, end)` from it to the next one, its page, and
    this in words.
    """

    heading: str
    span: tuple[int, int]
    page: int | None
    place: str


class Contents(NamedTuple):
    """Folders, each with the number of documents in it, and documents; `left` says how many of both
    come after them.
    """

    folders: list[tuple[str, int]]
    documents: list[Document]
    left: int

    @property
    def entry_count(self) -> int:
        """How many folders and documents are listed: an `offset` leaves out so many."""
        return len(self.folders) + len(self.documents)


@dataclass(frozen=True)
class Excerpt:
    """A part of a document: `text`, its characters `span` `[start, end)`, and the page that it
    begins on, from 1.

    `page` is None where the document has no pages; `left_out` counts characters of what was asked
    for that did not fit.
    """

    id: str
    title: str
    text: str
    span: tuple[int, int]
    page: int | None
    left_out: int


class Documents:
    """The documents of an index, read without a search."""

    _engine: VectorEngine

    def get(self, ids: Sequence[str], *, missing_ok: bool = False) -> list[Document]:
        """Return documents by id, in the order of `ids`; InputError where one is not there, unless
        `missing_ok`.
        """
        ids = check_ids(ids)
        with self._engine.view() as view:
            numbers = view.find(ids)
            # names of files are kept composed (NFC); a Mac gives the letters and their accents
            composed = {i: unicodedata.normalize("NFC", i) for i in ids if i not in numbers}
            names = [name for i, name in composed.items() if name != i]
            typed = view.find(names) if names else {}
            numbers |= {i: typed[name] for i, name in composed.items() if name in typed}
            if (
                not missing_ok
                and (missing := next((i for i in ids if i not in numbers), None)) is not None
            ):
                raise InputError(f"{view.info.name}: no document has the id {missing!r}")
            return list(
                _fetch(
                    view, [numbers[document_id] for document_id in ids if document_id in numbers]
                )
            )

    def __getitem__(self, id: str) -> Document:
        """Return the document with this id; InputError where there is none."""
        return self.get([id])[0]

    def documents(
        self, filter: Filter | None = None, *, limit: int | None = None, offset: int = 0
    ) -> Iterator[Document]:
        """Yield the documents that satisfy a filter, oldest first: up to `limit` after the first
        `offset`.

        They are read when asked for, from the version that is open now. ConfigError where an
        argument means nothing.
        """
        check_value("limit", limit, AtLeast0 | None)
        check_value("offset", offset, AtLeast0)
        where = {} if filter is None else filter
        compile_filter(where)  # only for its errors
        first = int(offset)  # it may be one of NumPy
        rows = slice(first, None if limit is None else first + int(limit))
        return _matching(self._engine.view(), where, rows)

    def count(self, filter: Filter | None = None) -> int:
        """Count the documents that satisfy a filter; without one, all.

        ConfigError where the filter means nothing.
        """
        with self._engine.view() as view:
            selection = view.select(filter)
            return view.info.documents if selection is None else len(view.matching(selection))

    def advice(self, filter: Filter) -> list[str]:
        """Say why a filter may match nothing: fields that no document has, values of another type.

        Engines say nothing. ConfigError where the filter means nothing.
        """
        compile_filter(filter)  # only for its errors
        with self._engine.view() as view:
            views = view.views if isinstance(view, SeveralView) else [view]
            advice = [
                snapshot.advice(filter) for snapshot in views if isinstance(snapshot, Snapshot)
            ]
        return list(dict.fromkeys(chain.from_iterable(advice)))

    def values(
        self,
        field: str,
        filter: Filter | None = None,
        *,
        ids: Sequence[str] | None = None,
        limit: int = 100,
    ) -> list[tuple[Scalar, int]]:
        """Give the values of a field, each with the number of documents that have it, the most
        frequent first.

        Counted are all documents that `filter` and `ids` let through: once for each different value
        of theirs. An element of a list is a value, and one of a list inside it; null and objects
        are none. 2 and 2.0 are one value, 1 and true are not. Fields are those of filters, such as
        `author.name` and `title`. `limit` is 1 to 10,000.

        Raises ConfigError where no document has the field, it has more than 100,000 values, an
        argument means nothing, or this is no index directory; InputError where `ids` is not a list
        of strings.
        """
        if not isinstance(field, str):
            raise ConfigError(f"field={field!r}: must be the name of a field")
        check_value("limit", limit, _GivenRows)
        where = within(filter, ids)
        with self._engine.view() as view:
            if not isinstance(view, SeveralView):
                return _values(view, field, where)[:limit]
            # some of them may know nothing of the field
            views = [
                part
                for part in view.views
                if not isinstance(part, Snapshot) or part.has_field(field)
            ]
            counted = [_values(part, field, where) for part in views or view.views[:1]]
        return most_frequent(chain.from_iterable(counted))[:limit]

    def vectors(
        self, unit: Unit = "document", filter: Filter | None = None
    ) -> Iterator[VectorBatch]:
        """Yield the stored vectors of documents, oldest first, or of their passages, in batches.

        They are read when asked for, from the version that is open now, and have unit length.
        ConfigError if the index has no vectors of this unit, or this is several indexes.
        """
        with self._engine.view() as view:
            select_documents(view, unit, filter)  # only for its errors
        return _batches(self._engine.view(), unit, filter)

    def export_vectors(
        self,
        path: str | Path,
        unit: Unit = "document",
        *,
        filter: Filter | None = None,
        overwrite: bool = False,
    ) -> int:
        """Write the stored vectors of documents, or of their passages, to a file; return how many.

        The suffix of `path` says which: `.parquet` with the columns `_id`, of passages `start` and
        `stop`, and `vector`; `.npy`, a float32 matrix; `.faiss`, an exact index for `faiss`
        (`IndexFlatIP`). The rows of the last two are named, one JSON object a line, by a file with
        `.ids.jsonl` behind the same name. Memory does not grow with the vectors, except for
        `.faiss`.

        Raises ConfigError if the suffix is another one, one of the files exists already (unless
        `overwrite`), the index has no vectors of this unit, or this is several indexes.
        """
        with self._engine.view() as view:
            return write_vectors(view, Path(path), unit, filter, overwrite=overwrite)

    def grep(
        self,
        pattern: str,
        *,
        filter: Filter | None = None,
        limit: int = 100,
        ignore_case: bool = False,
    ) -> list[Match]:
        """Find where a regular expression matches in the stored texts, in the order of the
        documents.

        `pattern` is one of the package `regex`; `^` and `$` match at lines. `limit` is of matches,
        1 to 1,000.

        Raises ConfigError where the expression is none, too long, or takes longer than 1 s of
        processor time (reading the texts aside), or `limit` is out of range.
        """
        if not 1 <= limit <= MAX_MATCHES:
            raise ConfigError(f"limit={limit}: must be 1 to {MAX_MATCHES:,}")
        matcher = TimedExpression(
            compile_expression(pattern, ignore_case=ignore_case),
            "pattern",
            "narrow the documents with a filter",
        )
        matches: list[Match] = []
        with self._engine.view() as view:
            numbers = view.matching(view.select({} if filter is None else filter)).tolist()
            for start in range(0, len(numbers), BATCH_DOCUMENTS):
                batch = numbers[start : start + BATCH_DOCUMENTS]
                # texts alone: what else a match shows is read of the few documents that match
                texts = view.documents(batch, ("text",))
                spans = {}
                left = limit - len(matches)
                for number in batch:
                    if number not in texts:
                        raise _no_text(view, number)
                    spans[number] = matcher.spans(texts[number].text, left)
                    left -= len(spans[number])
                    if not left:
                        break
                matching = [number for number, of_text in spans.items() if of_text]
                for number, document in zip(matching, _fetch(view, matching), strict=True):
                    matches += [_match(document, span) for span in spans[number]]
                if not left:
                    break
        return matches

    def contents(
        self, under: str = "", *, filter: Filter | None = None, offset: int = 0
    ) -> Contents:
        """List the documents, oldest first, or where they are more than 200 the folders that their
        ids name.

        Only what satisfies `filter` and whose ids begin with `under`, such as `laws/2020/`;
        `offset` leaves out the first of what is listed, folders before documents. At most 200 are
        given. An id such as `laws/2020/tax.md` is in the folder `laws/`, and below it in
        `laws/2020/`. Raises ConfigError where the filter means nothing.
        """
        with self._engine.view() as view:
            folders, docs = _folder(view, view.select({} if filter is None else filter), under)
            listed = [
                (under + name, count) for name, count in folders[offset : offset + LISTED_DOCUMENTS]
            ]
            first = max(0, offset - len(folders))
            documents = list(
                _fetch(view, docs[first : first + LISTED_DOCUMENTS - len(listed)].tolist())
            )
        return Contents(
            listed,
            documents,
            max(0, len(folders) + len(docs) - offset - len(listed) - len(documents)),
        )

    def outline(self, id: str) -> list[Section]:
        """Return the headings of a document with what stands under each, in order; InputError where
        there is none.
        """
        return sections(self.get([id])[0])

    def read(
        self,
        id: str,
        *,
        span: tuple[int, int] | None = None,
        heading: str | None = None,
        max_tokens: int = 4000,
    ) -> Excerpt:
        """Return a part of a document that fits into a budget of tokens (four characters each), cut
        behind a sentence.

        The part is `span`, or goes from `heading` (its words, case aside) to the next one, or from
        the beginning on.

        Raises ConfigError where `span` is not in the document, both are given, or the budget is out
        of range; InputError where there is no such document or heading.
        """
        return excerpt(self.get([id])[0], span=span, heading=heading, max_tokens=max_tokens)


def _folder(view: EngineView, selection: Any, under: str) -> tuple[list[tuple[str, int]], IntArray]:
    """Return what `contents` lists: folders with their counts, and documents `[n]`, ascending.

    A selection of an index directory keeps them, as long as its version is open.
    """
    remembered = selection.folders.get(under) if isinstance(selection, Allowed) else None
    if remembered is not None:
        return remembered
    docs = view.matching(selection)
    folders = Counter[str]()
    if under or len(docs) > LISTED_DOCUMENTS:
        names: dict[int, str] = {}
        numbers = docs.tolist()
        for start in range(0, len(numbers), BATCH_IDS):
            stored = view.documents(numbers[start : start + BATCH_IDS], ())
            names |= {
                doc: document.id[len(under) :]
                for doc, document in stored.items()
                if document.id.startswith(under)
            }
        if len(names) > LISTED_DOCUMENTS:
            folders.update(name[: name.index("/") + 1] for name in names.values() if "/" in name)
        listed = sorted(doc for doc, name in names.items() if not folders or "/" not in name)
        docs = np.array(listed, np.int64)
    folder = sorted(folders.items()), docs
    if isinstance(selection, Allowed):
        selection.remember_folder(under, folder)
    return folder


def _values(view: EngineView, field: str, where: Filter | None) -> list[tuple[Scalar, int]]:
    if not isinstance(view, Snapshot):
        raise ConfigError(
            f"{view.info.name}: only index directories count values; query the database itself"
        )
    return view.values(field, where)


def _matching(
    viewing: AbstractContextManager[EngineView], where: Filter, rows: slice
) -> Iterator[Document]:
    with viewing as view:
        yield from _fetch(view, view.matching(view.select(where))[rows].tolist())


def _batches(
    viewing: AbstractContextManager[EngineView], unit: Unit, where: Filter | None
) -> Iterator[VectorBatch]:
    with viewing as view:
        yield from read_batches(view, unit, select_documents(view, unit, where))


def _fetch(view: EngineView, numbers: Sequence[int]) -> Iterator[Document]:
    for start in range(0, len(numbers), BATCH_DOCUMENTS):
        batch = numbers[start : start + BATCH_DOCUMENTS]
        documents = view.documents(batch)
        for number in batch:
            if number not in documents:
                raise _no_text(view, number)
            stored = documents[number]
            yield Document(
                stored.id,
                stored.text,
                stored.title,
                stored.metadata,
                stored.origin,
                stored.of_index,
            )


def _no_text(view: EngineView, number: int) -> IndexFormatError:
    return IndexFormatError(
        f"{view.info.name}: document number {number} has no text; {view.info.remedy}"
    )


def _match(document: Document, span: tuple[int, int]) -> Match:
    text, (start, stop) = document.text, span
    first = max(text.rfind("\n", 0, start) + 1, start - CONTEXT_CHARACTERS)
    end = text.find("\n", stop)
    last = min(len(text) if end < 0 else end, stop + CONTEXT_CHARACTERS)
    page = _page(document, start)
    return Match(document.id, document.title, span, text[first:last].strip(), page and page.number)


def _page(document: Document, place: int) -> Page | None:
    pages = document.origin.pages if document.origin is not None else None
    return None if pages is None else pages.at(place)


def sections(document: Document) -> list[Section]:
    """Return the headings of a document with what stands under each, in order: under a line,
    captions too.
    """
    headings = outline(document.text).headings
    sections_found, following, line = [], len(document.text), len(document.text)
    for heading, name in zip(reversed(headings), reversed(names_of(headings)), strict=True):
        end, following = following if heading.caption else line, heading.start
        line = line if heading.caption else heading.start
        page = _page(document, heading.start)
        sections_found.append(
            Section(name, (heading.start, end), page and page.number, str(page or ""))
        )
    return sections_found[::-1]


def excerpt(
    document: Document,
    *,
    span: tuple[int, int] | None = None,
    heading: str | None = None,
    max_tokens: int = 4000,
) -> Excerpt:
    """Return a part of a document, as `Documents.read` does."""
    length = len(document.text)
    if max_tokens < 1:
        raise ConfigError(f"max_tokens={max_tokens}: must be at least 1")
    if span is not None and heading is not None:
        raise ConfigError("give a span or a heading, not both")
    start, end = (0, length) if span is None else span
    if not 0 <= start <= end <= length:
        raise ConfigError(
            f"span [{start}, {end}): the document {document.id!r} has {length:,} characters"
        )
    if heading is not None:
        outline_sections, sought_heading = (
            sections(document),
            heading.strip().strip("#").strip().casefold(),
        )
        under = next(
            (
                section
                for section in outline_sections
                if section.heading.casefold() == sought_heading
            ),
            None,
        )
        if under is None:
            names = ", ".join(repr(section.heading) for section in outline_sections[:10]) or "none"
            raise InputError(f"{document.id}: no heading {heading!r}; the headings are {names}")
        start, end = under.span
    cut = end
    if end > (most := start + max_tokens * CHARACTERS):
        places = [start + int(place) for place in outline(document.text[start:most]).places]
        cut = next((place for place in reversed(places) if place > start), most)
    text = document.text[start:cut]
    page = _page(document, start)
    return Excerpt(document.id, document.title, text, (start, cut), page and page.number, end - cut)
