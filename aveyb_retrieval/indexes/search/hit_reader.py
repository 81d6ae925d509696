"""Hits of one search, made of what was read; the rest is read for all of them at once."""

from __future__ import annotations

from contextlib import contextmanager
from functools import cached_property
from typing import TYPE_CHECKING, Any, NamedTuple

from aveyb_retrieval.documents.records import MAIL_TYPES
from aveyb_retrieval.encoder.text.quoting import headers_and_repeated_spans, may_repeat
from aveyb_retrieval.errors import AveyBError, IndexFormatError
from aveyb_retrieval.indexes.search.hit import Content, Hit, KnownCitation, Passage
from aveyb_retrieval.indexes.search.sentences import Citation, CitedText, Span
from aveyb_retrieval.indexes.types import PASSAGE_BITS

if TYPE_CHECKING:
    from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence

    from aveyb_retrieval.documents.records import FileOrigin
    from aveyb_retrieval.indexes.engine import EngineInfo, EngineView
    from aveyb_retrieval.indexes.search.sentences import Sentences
    from aveyb_retrieval.indexes.store.tables import Part, StoredDocument

HIGHLIGHTED_CHARACTERS = 10_000  # of a document without passages, its first ones
CITED_TOGETHER_PASSAGES = 10  # passages: as many as a search gives by default
TOPIC_CHARACTERS = 1000  # of a document's beginning, which say what all of it is about


class Chosen(NamedTuple):
    """A passage to show: its characters in the document's text, itself, what reads its heading, and
    its scores.
    """

    span: Span
    text: str
    heading: Callable[[], str]
    score: float
    scores: dict[str, float]


class HitReader:
    """Reads, from what was searched, the parts of the hits of one search that are read later."""

    def __init__(
        self, view: EngineView, documents: Mapping[int, StoredDocument], sentences: Sentences
    ) -> None:
        self._view = view if view.lasting else None
        self.info, self.sentences, self._documents = view.info, sentences, documents
        self._cited: dict[int, list[tuple[Chosen, StoredDocument]]] = {}
        self._citations: dict[tuple[int, int], list[Citation]] = {}

    def citing(self, place: int, chosen: Chosen, document: StoredDocument) -> SearchedCitation:
        """Return what cites a passage, of which its hit shows `place` better ones, together with
        the passages of other hits at that place.
        """
        passages = self._cited.setdefault(place, [])
        passages.append((chosen, document))
        return SearchedCitation(self, place, len(passages) - 1)

    def cite(self, place: int, row: int) -> Citation:
        """Return a passage's citation, with characters of the document's text."""
        group, number = divmod(row, CITED_TOGETHER_PASSAGES)
        if (place, group) not in self._citations:
            passages = self._cited[place][group * CITED_TOGETHER_PASSAGES :][
                :CITED_TOGETHER_PASSAGES
            ]
            with self._reading():
                texts = [self._cited_text(*passage) for passage in passages]
                self._citations[place, group] = self.sentences.cite(texts)
        start, _ = self._cited[place][row][0].span
        return self._citations[place, group][number].moved(start)

    def highlights(self, parts: Iterable[tuple[int, str]]) -> tuple[Span, ...]:
        """The characters of the query's words in parts of a text, (where it begins, itself)."""
        with self._reading():
            return _joined(
                (start + word.start, start + word.stop)
                for start, text in parts
                for word in self.sentences.find(text)
            )

    @cached_property
    def texts(self) -> dict[int, str]:
        """The texts of all documents that were found."""
        return {doc: stored.text for doc, stored in self._read("text").items()}

    @cached_property
    def metadata(self) -> dict[int, dict[str, Any]]:
        """Their other fields."""
        return {doc: stored.metadata for doc, stored in self._read("metadata").items()}

    def _cited_text(self, chosen: Chosen, document: StoredDocument) -> CitedText:
        (start, stop), pages = chosen.span, document.origin.pages if document.origin else None
        breaks = [at - start for at in pages.starts if start < at < stop] if pages else []
        # what it is about as its document is: words of the title and the beginning
        is_behind = start >= TOPIC_CHARACTERS
        begins = self._beginnings.get(document.doc, "")[:TOPIC_CHARACTERS] if is_behind else ""
        topic = " ".join(dict.fromkeys(f"{document.title} {begins}".split()))
        repeated = self._repeated(chosen.text, document.doc)
        return CitedText(chosen.text, chosen.heading(), breaks, topic, repeated)

    def _repeated(self, passage: str, doc: int) -> list[Span]:
        """The characters of a passage of a mail that are none of its statements."""
        if not may_repeat(passage) or self.metadata[doc].get("type") not in MAIL_TYPES:
            return []
        return headers_and_repeated_spans(passage)

    @cached_property
    def _beginnings(self) -> dict[int, str]:
        if self._view is None:
            return self.texts
        passages = self._view.shown_passages([doc << PASSAGE_BITS for doc in self._documents])
        return {number >> PASSAGE_BITS: passage.text for number, passage in passages.items()}

    def _read(self, part: Part) -> Mapping[int, StoredDocument]:
        if self._view is None:
            return self._documents
        with self._reading():
            documents = self._view.documents(list(self._documents), (part,))
        if missing := [doc for doc in self._documents if doc not in documents]:
            raise IndexFormatError(
                f"{self.info.name}: document number {missing[0]} has no {part}; {self.info.remedy}"
            )
        return documents

    @contextmanager
    def _reading(self) -> Iterator[None]:
        """Say what to do where the index was closed."""
        try:
            yield
        except AveyBError as error:
            if type(error) is not AveyBError:
                raise
            raise AveyBError(
                f"{error}; hits read texts, metadata and citations when they are first used:"
                " use them before the retriever is closed, or keep hits.detach()"
            ) from error


class SearchedCitation:
    """The citation of a passage that was found; copies, also those of `asdict`, have read it."""

    def __init__(self, reader: HitReader, place: int, row: int) -> None:
        self._reader, self._place, self._row = reader, place, row

    def read(self) -> Citation:
        return self._reader.cite(self._place, self._row)

    def __reduce__(self) -> tuple[Any, ...]:
        return KnownCitation, (self.read(),)


class SearchedContent:
    """What is read of a document that was found; copies, also those of `asdict`, have read it.

    `parts` are those in which words are highlighted: (where it begins in the text, itself).
    """

    def __init__(
        self, reader: HitReader, document: StoredDocument, parts: Sequence[tuple[int, str]]
    ) -> None:
        self._reader, self._doc, self._parts = reader, document.doc, parts
        self.origin: FileOrigin | None = document.origin
        self.info: EngineInfo = reader.info

    @property
    def text(self) -> str:
        return self._reader.texts[self._doc]

    @property
    def metadata(self) -> dict[str, Any]:
        return self._reader.metadata[self._doc]

    @property
    def highlights(self) -> tuple[Span, ...]:
        return self._reader.highlights(self._parts or [(0, self.text[:HIGHLIGHTED_CHARACTERS])])

    def __reduce__(self) -> tuple[Any, ...]:
        return Content, (self.text, self.metadata, self.highlights, self.origin, self.info)


def make_hit(
    document: StoredDocument,
    score: float,
    chosen: Sequence[Chosen],
    scores: dict[str, float],
    *,
    context: tuple[Span, str] | None,
    confidence: float | None,
    duplicates: tuple[str, ...],
    earlier: tuple[str, ...],
    reader: HitReader,
) -> Hit:
    """Make a hit of a document and its passages, best first; `context` are the first one and its
    neighbors.
    """
    pages = document.origin.pages if document.origin else None
    passages = tuple(
        Passage(
            passage.text,
            passage.span,
            passage.score,
            passage.scores,
            reader.citing(place, passage, document),
            pages,
        )
        for place, passage in enumerate(chosen)
    )
    context_span, context_text = context or (None, None)
    parts = [(passage.span[0], passage.text) for passage in passages]
    if context_span is not None and context_text is not None:
        parts.append((context_span[0], context_text))
    return Hit(
        document.id,
        score,
        document.title,
        passages,
        context=context_text,
        context_span=context_span,
        confidence=confidence,
        duplicates=duplicates,
        earlier=earlier,
        scores=scores,
        index=document.of_index,
        _content=SearchedContent(reader, document, parts),
    )


def _joined(spans: Iterable[Span]) -> tuple[Span, ...]:
    """Spans in order; those that overlap are one."""
    joined: list[Span] = []
    for start, stop in sorted(set(spans)):
        if joined and start < joined[-1][1]:
            joined[-1] = joined[-1][0], max(stop, joined[-1][1])
        else:
            joined.append((start, stop))
    return tuple(joined)
