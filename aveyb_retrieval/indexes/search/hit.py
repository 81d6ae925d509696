"""What a search gives back: hits with their passages."""

from __future__ import annotations

import json
import reprlib
from copy import deepcopy
from dataclasses import dataclass, field, replace
from functools import cached_property, partial
from typing import TYPE_CHECKING, Any, Protocol

import pyarrow as pa

from aveyb_retrieval.errors import ConfigError
from aveyb_retrieval.indexes.search.sentences import Citation, Span
from aveyb_retrieval.indexes.store.filters import value_at

if TYPE_CHECKING:
    from collections.abc import Callable, Iterable, Mapping, Sequence

    from aveyb_retrieval.documents.readers.originals import Box
    from aveyb_retrieval.documents.records import FileOrigin, Page, Pages
    from aveyb_retrieval.indexes.engine import EngineInfo

# what JSON gets of a passage and of a hit, in this order
PASSAGE_FIELDS = (
    "text",
    "span",
    "score",
    "heading",
    "scores",
    "page",
    "page_label",
    "page_unit",
    "pages",
    "headings",
)
HIT_FIELDS = (
    "id",
    "score",
    "text",
    "title",
    "metadata",
    "passage",
    "span",
    "passages",
    "heading",
    "headings",
    "context",
    "context_span",
    "confidence",
    "duplicates",
    "earlier",
    "date",
    "author",
    "scores",
    "page",
    "page_label",
    "page_unit",
    "pages",
    "highlights",
    "best_sentence",
    "index",
)

# fields of metadata that say when and by whom a document was written, the first one counts
_DATES = ("date", "published", "created")
_AUTHORS = ("from", "author", "authors", "sender", "creator")

# the columns of a table of hits
ARROW_COLUMNS = pa.schema(
    [
        ("id", pa.string()),
        ("title", pa.string()),
        ("score", pa.float64()),
        ("confidence", pa.float64()),
        ("passage", pa.string()),
        ("start", pa.int64()),
        ("stop", pa.int64()),
        ("heading", pa.string()),
        ("page", pa.int64()),
        ("page_label", pa.string()),
        ("page_unit", pa.string()),
        ("context", pa.string()),
        ("date", pa.string()),
        ("author", pa.string()),
        ("duplicates", pa.list_(pa.string())),
        ("earlier", pa.list_(pa.string())),
        ("index", pa.string()),
        ("metadata", pa.string()),
    ]
)

_BRIEF = reprlib.Repr()
_BRIEF.maxstring = _BRIEF.maxother = 100
_BRIEF.maxdict = 10


class CitationSource(Protocol):
    """Where a passage's citation is read from when it is first needed."""

    def read(self) -> Citation:
        """Return it, with characters of the document's text."""


class ContentSource(Protocol):
    """Where the parts of a hit are read from that most uses do not need."""

    @property
    def origin(self) -> FileOrigin | None:
        """The file that the document was read from."""

    @property
    def info(self) -> EngineInfo | None:
        """The index that was searched."""

    @property
    def text(self) -> str:
        """The whole text of the document."""

    @property
    def metadata(self) -> dict[str, Any]:
        """Its other fields."""

    @property
    def highlights(self) -> tuple[Span, ...]:
        """The characters of the query's words."""


@dataclass(frozen=True)
class KnownCitation:
    """A citation that was read."""

    citation: Citation = field(default_factory=Citation)

    def read(self) -> Citation:
        return self.citation


@dataclass(frozen=True)
class Content:
    """What a hit keeps of its document when it knows no index."""

    text: str = ""
    metadata: dict[str, Any] = field(default_factory=dict)
    highlights: tuple[Span, ...] = ()
    origin: FileOrigin | None = None
    info: EngineInfo | None = None


def _brief(result: Passage | Hit) -> str:
    """Print in a few lines: without what is empty, private, or not read yet."""
    parts = [
        f"{name}={_BRIEF.repr(value)}"
        for name, value in vars(result).items()
        if not name.startswith("_") and value not in (None, "", (), {})
    ]
    return f"{type(result).__name__}({', '.join(parts)})"


@dataclass(frozen=True, repr=False)
class Passage:
    """A passage of a document.

    Attributes:
        text: Its text.
        span: Its characters `[start, end)` in the document's text.
        score: What orders the passages of a hit, higher is better: the cosine in "dense" mode, BM25
            in "lexical" mode, the confidence in "hybrid" mode; with `unit="passage"`, what the
            reranker gave, if there is one.
        heading: The nearest heading over its best sentence, "" where there is none.
        scores: What the score was made of: "dense" (cosine with the query) and "lexical" (BM25
            where a word counts once; not on the scale of `Hit.scores`).
        page: The page of its best sentence, counted from 1, else that on which the passage begins;
            None where the document has no pages.
        page_label: What the document calls that page, such as "iv".
        page_unit: What it is: one of `aveyb_retrieval.documents.records.UNITS`.
        pages: The first and the last page of the passage.
        headings: All headings that parts of it are under, in order.
    """

    text: str
    span: Span
    score: float
    scores: dict[str, float] = field(default_factory=dict, hash=False)
    _citations: CitationSource = field(default_factory=KnownCitation, compare=False)
    _pages: Pages | None = field(default=None, compare=False)

    __repr__ = _brief

    @cached_property
    def _citation(self) -> Citation:
        """Reading it takes about a millisecond, so it is done when first asked for."""
        return self._citations.read()

    @cached_property
    def _page(self) -> Page | None:
        if self._pages is None:
            return None
        first, last = self._pages.range(*self.span)
        sentence = self.best_sentence if first.number < last.number else None
        return first if sentence is None else self._pages.at(sentence[0])

    @property
    def best_sentence(self) -> Span | None:
        """The characters in the document's text of the sentence that comes nearest to the query's
        words; None where there is none.
        """
        return self._citation.sentence

    @property
    def heading(self) -> str:
        """The nearest heading over its best sentence."""
        return self._citation.heading

    @property
    def headings(self) -> tuple[str, ...]:
        """All headings that parts of it are under."""
        return self._citation.headings

    @property
    def page(self) -> int | None:
        """The number of the page that it is cited by."""
        return None if self._page is None else self._page.number

    @property
    def page_label(self) -> str | None:
        """What the document calls that page."""
        return None if self._page is None else self._page.label

    @property
    def page_unit(self) -> str | None:
        """What that page is."""
        return None if self._page is None else self._page.unit

    @property
    def pages(self) -> tuple[int, int] | None:
        """The first and the last page of the passage."""
        if self._pages is None:
            return None
        first, last = self._pages.range(*self.span)
        return first.number, last.number

    @property
    def place(self) -> str:
        """The page as it is cited, such as "page iv" or "slide 3"; "" where the document has
        none, and for the text of a mail, which is no file of its own.
        """
        is_unnamed_file = self.page_unit == "file" and self.page_label == str(self.page)
        if self.page is None or is_unnamed_file:
            return ""
        return f"{self.page_unit} {self.page_label}"

    def detach(self) -> Passage:
        """Return a copy that has read all and needs no index."""
        return replace(self, _citations=KnownCitation(self._citation))

    def to_dict(self) -> dict[str, Any]:
        """Return what JSON can hold."""
        return _as_json(self, PASSAGE_FIELDS)


@dataclass(frozen=True, repr=False)
class Hit:
    """One document found, or one passage with `unit="passage"`.

    The text, metadata, highlights, the best sentence, headings and pages are read when they are
    first used, texts and metadata for all hits of the search at once, from the version that was
    searched. If the retriever has been closed, or the files were deleted, this is an error.
    `detach`, `copy` and `pickle` make a copy that has read everything.

    Attributes:
        id: Id of the document.
        score: Orders the hits, higher is better. "dense" mode: the cosine. "lexical" mode: BM25.
            "hybrid" mode: the fused score for documents, the confidence for passages. With a
            cross-encoder, its score; with "maxsim", the fused score plus MaxSim. A score that
            would contradict the order of the page is lowered to the one before.
        text: The whole text of the document.
        title: Its title.
        metadata: Its other fields.
        passage: The text of the best passage; None if the index has no passages or the document no
            text.
        span: Its characters `[start, end)` in `text`.
        passages: The best passages, best first; one with `unit="passage"`.
        heading: The nearest heading above the best passage's best sentence, "" if there is none.
        headings: All headings that parts of the best passage are under, in order.
        context: The best passage with its neighbors; None unless the search has `context`.
        context_span: Its characters `[start, end)` in `text`.
        confidence: The estimated probability that the best passage answers the query, 0 to 1,
            comparable between queries ("hybrid" mode only, else None). It is calibrated for the
            best hit, and too high for the hits after it: docs/ranking.md has the figures.
        duplicates: Ids of the documents with the same text or passage that were folded into this
            hit, as far as they rank above the last hit.
        earlier: Ids of the mails of the same conversation that state the same matter and are older,
            newest first: they were folded into this hit.
        date: The document's date as its metadata have it: the first of `date`, `published`,
            `created` that is there; None without.
        author: Its sender or author: the first of `from`, `author`, `authors`, `sender`, `creator`;
            None without.
        scores: The parts of the score: "dense" (cosine), "lexical" (BM25), "passage" (of a
            document: the highest score of one passage, perhaps not the one shown), "maxsim" or
            "cross-encoder", "boost".
        page: The page of the best passage's best sentence, counted from 1; None if the document has
            no pages.
        page_label: The document's own name of that page, such as "iv".
        page_unit: The kind of page: one of `aveyb_retrieval.documents.records.UNITS`.
        pages: The first and the last page of the best passage.
        highlights: The characters `[start, stop)` in `text` of the query's words, found by the
            index's rules of language, ascending: in the passages and the context, or in the first
            10,000 characters of a document without passages. Empty in a search for vectors.
        best_sentence: The characters in `text` of the best passage's sentence that is nearest to
            the query (`aveyb_retrieval.indexes.search.sentences`). None in a search for vectors,
            and in a search by words alone if the passage has none of them.
        index: The name of its index if several are searched together, else None.
    """

    id: str
    score: float
    title: str = ""
    passages: tuple[Passage, ...] = ()
    context: str | None = None
    context_span: Span | None = None
    confidence: float | None = None
    duplicates: tuple[str, ...] = ()
    earlier: tuple[str, ...] = ()
    scores: dict[str, float] = field(default_factory=dict, hash=False)
    index: str | None = None
    _content: ContentSource = field(default_factory=Content, compare=False)

    __repr__ = _brief

    @cached_property
    def text(self) -> str:
        """The whole text of the document."""
        return self._content.text

    @cached_property
    def metadata(self) -> dict[str, Any]:
        """The other fields of the document."""
        return self._content.metadata

    @cached_property
    def highlights(self) -> tuple[Span, ...]:
        """The characters in `text` of the query's words."""
        return self._content.highlights

    @property
    def date(self) -> str | None:
        """The document's date, as it is written in its metadata."""
        return _first_text(self.metadata, _DATES)

    @property
    def author(self) -> str | None:
        """Its sender or author."""
        return _first_text(self.metadata, _AUTHORS)

    @property
    def _best(self) -> Passage | None:
        return self.passages[0] if self.passages else None

    @property
    def passage(self) -> str | None:
        """The text of the best passage."""
        return None if self._best is None else self._best.text

    @property
    def span(self) -> Span | None:
        """The characters of the best passage in `text`."""
        return None if self._best is None else self._best.span

    @property
    def best_sentence(self) -> Span | None:
        """The characters in `text` of the best passage's best sentence."""
        return None if self._best is None else self._best.best_sentence

    @property
    def heading(self) -> str:
        """The nearest heading over the best sentence."""
        return "" if self._best is None else self._best.heading

    @property
    def headings(self) -> tuple[str, ...]:
        """All headings that parts of the best passage are under."""
        return () if self._best is None else self._best.headings

    @property
    def page(self) -> int | None:
        """The number of the page that the best passage is cited by."""
        return None if self._best is None else self._best.page

    @property
    def page_label(self) -> str | None:
        """What the document calls that page."""
        return None if self._best is None else self._best.page_label

    @property
    def page_unit(self) -> str | None:
        """What that page is."""
        return None if self._best is None else self._best.page_unit

    @property
    def pages(self) -> tuple[int, int] | None:
        """The first and the last page of the best passage."""
        return None if self._best is None else self._best.pages

    @property
    def place(self) -> str:
        """The page as it is cited, such as "page iv" or "slide 3"; "" where the document has
        none, and for the text of a mail, which is no file of its own.
        """
        return "" if self._best is None else self._best.place

    def citation(self) -> dict[str, Any]:
        """Return what `aveyb-index check --citation` checks years later, as JSON can hold it.

        `id`, `span` and `quote` (the best sentence, else the passage, else the text), the file's
        `sha256`, and the `build` and `version` of the index; None where there is none. ConfigError:
        no search gave this hit.
        """
        if self._content.info is None:
            raise ConfigError(f"{self.id}: no search gave this hit, so it cites no index")
        start, stop = self.best_sentence or self.span or (0, len(self.text))
        origin = self._content.origin
        return {
            "id": self.id,
            "span": [start, stop],
            "quote": self.text[start:stop],
            "sha256": None if origin is None else origin.sha256,
            "build": self._content.info.build or None,
            "version": self._content.info.version,
        }

    def boxes(self) -> tuple[Box, ...]:
        """Return where the best passage stands on the pages of its PDF: one rectangle for each
        line.

        They are read from the original (of words of a picture OCR finds them again). Raises
        InputError where that is gone, no PDF, or has changed since.
        """
        from aveyb_retrieval.documents.readers.originals import boxes_in_file

        span = self.span or (0, len(self.text))
        return boxes_in_file(self.id, self.text, span, self._content.origin)

    def detach(self) -> Hit:
        """Return a copy that has read all, and outlives the retriever and its files."""
        source = self._content
        content = Content(self.text, self.metadata, self.highlights, source.origin, source.info)
        passages = tuple(passage.detach() for passage in self.passages)
        return replace(self, passages=passages, _content=content)

    def __copy__(self) -> Hit:
        return self.detach()

    def to_dict(self, *, text: bool = False) -> dict[str, Any]:
        """Return what JSON can hold; the whole text of the document only if asked for."""
        return _as_json(self, [name for name in HIT_FIELDS if text or name != "text"])


def _column(field: str, values: list[Any]) -> pa.Array:
    """A column of the values of a field; ConfigError if Arrow has no type for all of them."""
    try:
        return pa.array(values)
    except (pa.ArrowException, OverflowError) as error:
        raise ConfigError(
            f"to_arrow: Arrow has no type for all values of {field!r} ({error}); read them from the"
            " column 'metadata'"
        ) from error


def _first_text(metadata: Mapping[str, Any], fields: Sequence[str]) -> str | None:
    """The first of some fields that has a text, a number or a list of texts."""
    for name in fields:
        value = metadata.get(name)
        if isinstance(value, list) and value and all(isinstance(item, str) for item in value):
            value = ", ".join(value)
        if isinstance(value, (str, int)) and not isinstance(value, bool) and str(value).strip():
            return str(value)
    return None


def _row(hit: Hit, columns: Sequence[str]) -> dict[str, Any]:
    start, stop = hit.span or (None, None)
    metadata = json.dumps(hit.metadata, ensure_ascii=False)
    parts = {"start": start, "stop": stop, "metadata": metadata}
    return {name: parts[name] if name in parts else getattr(hit, name) for name in columns}


def _as_json(result: Passage | Hit, names: Sequence[str]) -> dict[str, Any]:
    values = {name: getattr(result, name) for name in names}
    if isinstance(result, Hit):
        values["passages"] = tuple(passage.to_dict() for passage in result.passages)
    return {
        name: deepcopy(value) if isinstance(value, dict) else value
        for name, value in values.items()
    }


class Result(list[Hit]):
    """The hits of one query, best first.

    Attributes:
        words: The words of the query that were looked up, as the index has them.
        unmet: Conditions of the query, as they were written, that nothing fulfills (all as one, if
            not together): the reason why there are no hits.
    """

    def __init__(
        self,
        hits: Iterable[Hit] = (),
        words: Sequence[str] = (),
        unmet: Sequence[str] = (),
        suggest: Callable[[], dict[str, tuple[str, ...]]] = dict,
    ) -> None:
        super().__init__(hits)
        self.words, self.unmet = tuple(words), tuple(unmet)
        self._suggest = suggest

    @cached_property
    def suggestions(self) -> dict[str, tuple[str, ...]]:
        """Words that may be meant, the nearest first, by the words of the query that are in no
        document.

        They are words of the index, one or two edits away, looked for when first asked for: some
        milliseconds each.
        """
        return self._suggest()

    def detach(self) -> Result:
        """Return a copy whose hits have read all, and outlive the retriever and its files."""
        hits = [hit.detach() for hit in self]
        return Result(hits, self.words, self.unmet, partial(dict, self.suggestions))

    def to_arrow(self, fields: Sequence[str] = (), *, text: bool = False) -> pa.Table:
        """Return a table with a row for each hit, best first; `.to_pandas()` makes it a DataFrame.

        Its columns are those of `ARROW_COLUMNS`: what `Hit` says, `start` and `stop` of its span,
        and the metadata as JSON. `fields` of the metadata, such as "year" and "author.name", become
        columns of their own, null if a document has none; `text` adds the document's text.

        Raises ConfigError if `fields` is not a list of fields, one is a column already, or has
        values of several types or whole numbers of more than 64 bits with a sign.
        """
        if isinstance(fields, str) or not all(isinstance(name, str) for name in fields):
            raise ConfigError(f"to_arrow: fields={fields!r}: must be a list of fields, as ['year']")
        schema = ARROW_COLUMNS.append(pa.field("text", pa.string())) if text else ARROW_COLUMNS
        if taken := [name for name in fields if name in schema.names or fields.count(name) > 1]:
            raise ConfigError(f"to_arrow: {taken[0]!r} is a column of the table already")
        table = pa.Table.from_pylist([_row(hit, schema.names) for hit in self], schema=schema)
        for name in fields:
            values = [value_at(hit.metadata, name) for hit in self]
            table = table.append_column(name, _column(name, values))
        return table

    def __reduce__(self) -> tuple[Any, ...]:
        return Result, (list(self), self.words, self.unmet, partial(dict, self.suggestions))
