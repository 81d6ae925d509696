"""What a search gives back."""

from __future__ import annotations

import re
import reprlib
from bisect import bisect_left
from copy import deepcopy
from dataclasses import asdict, dataclass, field, fields, replace
from functools import cached_property
from typing import TYPE_CHECKING, Any, NamedTuple

from aveyb_retrieval.encoder.text.outline import outline
from aveyb_retrieval.errors import ConfigError, IndexFormatError

if TYPE_CHECKING:
    from collections.abc import Callable, Iterable, Mapping, Sequence

    from aveyb_retrieval.documents.pages import Page, Pages
    from aveyb_retrieval.documents.readers.boxes import Box
    from aveyb_retrieval.documents.records import FileOrigin
    from aveyb_retrieval.indexes.engines.base import EngineInfo, EngineView
    from aveyb_retrieval.indexes.search.sentences import Cited, Sentences, Span
    from aveyb_retrieval.indexes.store.tables import Part, StoredDocument

# What of passages and hits is read when it is asked for.
CITED = ("heading", "headings", "page", "page_label", "page_unit", "pages")
LATER = ("text", "metadata", "highlights", "best_sentence", *CITED)
BEGINNING = 10_000  # characters of a document without passages in which words are looked for
_BRIEF = reprlib.Repr()
_BRIEF.maxstring = _BRIEF.maxother = 100
_BRIEF.maxdict = 10


class _Shown:
    """What has a page, is read when it is asked for, and prints in a few lines.

    Printed texts are cut, and what is empty or was not asked for is left out.
    """

    page: int | None
    page_label: str | None
    page_unit: str | None

    @property
    def place(self) -> str:
        """The page as it is cited, such as "page iv" or "slide 3"; "" where the document has none."""
        return "" if self.page is None else f"{self.page_unit} {self.page_label}"

    if TYPE_CHECKING:
        _unread: _Unread
    else:

        def __getattr__(self, name: str) -> Any:
            """Read what was not asked for before."""
            unread = self.__dict__.get("_unread")
            if name == "_unread":
                raise ConfigError("a copy of a hit does not know its index; ask the hit that the search gave")
            if unread is None or name not in LATER:
                raise AttributeError(f"{type(self).__name__!r} object has no attribute {name!r}")
            value = self.__dict__[name] = getattr(unread, name)
            return value

    def __getstate__(self) -> dict[str, Any]:
        """A copy has all that can be asked for."""
        return {each.name: getattr(self, each.name) for each in fields(self)}  # type: ignore[arg-type]  # a dataclass

    def __repr__(self) -> str:
        known = ((name, value) for name, value in self.__dict__.items() if value not in (None, "", (), {}))
        shown = [f"{name}={_BRIEF.repr(value)}" for name, value in known if name != "_unread"]
        return f"{type(self).__name__}({', '.join(shown)})"


@dataclass(frozen=True, repr=False)
class Passage(_Shown):
    """A passage of a document.

    Attributes:
        text: Its text.
        span: Its characters `[start, end)` in the document's text.
        score: What orders the passages of a hit, higher is better: the cosine in "dense" mode, BM25 in "lexical" mode,
            the confidence in "hybrid" mode; with `unit="passage"`, what the reranker gave, if there is one.
        heading: The nearest heading over its best sentence, "" where there is none.
        scores: What the score was made of: "dense" (cosine with the query) and "lexical" (BM25 where a word counts
            once; not on the scale of `Hit.scores`).
        page: The page of its best sentence, counted from 1, else that on which the passage begins; None where the
            document has no pages.
        page_label: What the document calls that page, such as "iv".
        page_unit: What it is: one of `aveyb_retrieval.documents.pages.UNITS`.
        pages: The first and the last page of the passage.
        headings: All headings that parts of it are under, in order.
    """

    # those of `CITED` have no plain default, which the class would have in their place
    text: str
    span: tuple[int, int]
    score: float
    heading: str = field(default_factory=str)
    scores: dict[str, float] = field(default_factory=dict)
    page: int | None = field(default_factory=lambda: None)
    page_label: str | None = field(default_factory=lambda: None)
    page_unit: str | None = field(default_factory=lambda: None)
    pages: tuple[int, int] | None = field(default_factory=lambda: None)
    headings: tuple[str, ...] = field(default_factory=tuple)


class Chosen(NamedTuple):
    """A passage to show: its characters in the document's text, itself, the heading over it, and its scores."""

    span: tuple[int, int]
    text: str
    heading: str
    score: float
    scores: dict[str, float]


class _Unshown:
    """What a passage is cited by, of which nothing is found before it is asked for."""

    def __init__(self, chosen: Chosen, pages: Pages | None, sentences: Sentences) -> None:
        self._chosen = chosen
        self._pages = pages
        self._sentences = sentences

    @cached_property
    def _cited(self) -> Cited:
        (start, stop), text, heading, *_ = self._chosen
        breaks = [at - start for at in self._pages.starts if start < at < stop] if self._pages else []
        return self._sentences.cite(text, heading, breaks)

    @property
    def best_sentence(self) -> Span | None:
        found, start = self._cited.sentence, self._chosen.span[0]
        return None if found is None else (start + found[0], start + found[1])

    @property
    def heading(self) -> str:
        return self._cited.heading

    @property
    def headings(self) -> tuple[str, ...]:
        return self._cited.headings

    @property
    def pages(self) -> tuple[int, int] | None:
        if self._pages is None:
            return None
        first, last = self._pages.range(*self._chosen.span)
        return first.number, last.number

    @property
    def page(self) -> int | None:
        return None if self._page is None else self._page.number

    @property
    def page_label(self) -> str | None:
        return None if self._page is None else self._page.label

    @property
    def page_unit(self) -> str | None:
        return None if self._page is None else self._page.unit

    @property
    def _page(self) -> Page | None:
        if self._pages is None:
            return None
        first, last = self._pages.range(*self._chosen.span)
        best = self.best_sentence if first.number < last.number else None
        return first if best is None else self._pages.at(best[0])


def _joined(spans: Iterable[tuple[int, int]]) -> tuple[tuple[int, int], ...]:
    """Spans in order; those that overlap are one."""
    joined: list[tuple[int, int]] = []
    for start, stop in sorted(set(spans)):
        if joined and start < joined[-1][1]:
            joined[-1] = joined[-1][0], max(stop, joined[-1][1])
        else:
            joined.append((start, stop))
    return tuple(joined)


@dataclass(frozen=True, repr=False)
class Hit(_Shown):
    """One document found, or one passage with `unit="passage"`.

    What `LATER` names is read when it is first asked for, texts and metadata for all hits of the search at once, from
    the version that was searched; a copy, `pickle` and `dataclasses.asdict` read them. Where that version cannot be
    read any more, as the retriever was closed or the files are gone, this is an error.

    Attributes:
        id: Of the document.
        score: What orders the hits, higher is better: the cosine in "dense" mode, BM25 in "lexical" mode; in "hybrid"
            mode the fused score for documents and the confidence for passages; what the reranker gave, if there is one.
        text: The whole text of the document.
        title: Its title.
        metadata: Its other fields.
        passage: The text of the best passage; None where the index has no passages or the document no text.
        span: Its characters `[start, end)` in `text`.
        passages: The best passages, best first; one with `unit="passage"`.
        heading: The nearest heading over the best passage's best sentence, "" where there is none.
        headings: All headings that parts of the best passage are under, in order.
        context: The best passage with its neighbors, None unless asked for.
        context_span: Its characters `[start, end)` in `text`.
        confidence: The estimated probability that the best passage answers the query, 0 to 1, comparable between
            queries ("hybrid" mode only, else None). It is calibrated for the best hit, and too high for those below:
            docs/ranking.md has the figures.
        duplicates: Ids of the documents that say the same, or in which the same passage was found, and that were folded
            into this hit, as far as they rank above the last hit.
        scores: What the score was made of: "dense" (cosine), "lexical" (BM25), "passage" (of a document: the highest
            score of a passage by itself, which may be another than the one shown), "maxsim" or "cross-encoder".
        page: The page of the best passage's best sentence, counted from 1; None where the document has no pages.
        page_label: What the document calls that page, such as "iv".
        page_unit: What it is: one of `aveyb_retrieval.documents.pages.UNITS`.
        pages: The first and the last page of the best passage.
        highlights: The characters `[start, stop)` in `text` of the query's words, as the index's rules of language find
            them, ascending: in the passages and the context given, or in the first 10,000 characters of a document
            without passages. Empty where a vector was searched for.
        best_sentence: The characters in `text` of the best passage's sentence that comes nearest to the query's words:
            `aveyb_retrieval.indexes.search.sentences` says how. None where a vector was searched for, or only words and
            the passage holds none.
        index: The name of its index where several are searched together, else None.
    """

    id: str
    score: float
    text: str
    title: str
    metadata: dict[str, Any]
    passage: str | None = None
    span: tuple[int, int] | None = None
    passages: tuple[Passage, ...] = ()
    heading: str = field(default_factory=str)
    headings: tuple[str, ...] = field(default_factory=tuple)
    context: str | None = None
    context_span: tuple[int, int] | None = None
    confidence: float | None = None
    duplicates: tuple[str, ...] = ()
    scores: dict[str, float] = field(default_factory=dict)
    page: int | None = field(default_factory=lambda: None)
    page_label: str | None = field(default_factory=lambda: None)
    page_unit: str | None = field(default_factory=lambda: None)
    pages: tuple[int, int] | None = field(default_factory=lambda: None)
    highlights: tuple[tuple[int, int], ...] = field(default_factory=tuple)
    best_sentence: tuple[int, int] | None = field(default_factory=lambda: None)
    index: str | None = None

    def citation(self) -> dict[str, Any]:
        """Return what `aveyb-index check --citation` checks years later, as JSON can hold it.

        `id`, `span` and `quote` (the best sentence, else the passage, else the text), the file's `sha256`, and the
        `build` and `version` of the index; None where there is none.

        Raises:
            ConfigError: this is a copy, which does not know its index.
        """
        start, stop = self.best_sentence or self.span or (0, len(self.text))
        origin, info = self._unread.origin, self._unread.info
        return {
            "id": self.id,
            "span": [start, stop],
            "quote": self.text[start:stop],
            "sha256": None if origin is None else origin.sha256,
            "build": info.build or None,
            "version": info.version,
        }

    def boxes(self) -> tuple[Box, ...]:
        """Return where the best passage stands on the pages of its PDF: one rectangle for each line.

        They are read from the original, which must be the file that was indexed. Words of a picture, which OCR found,
        have none.

        Raises:
            InputError: there is no such file any more, it is no PDF or has changed.
            ConfigError: this is a copy, which does not know its index.
        """
        from aveyb_retrieval.documents.readers.boxes import boxes_in_file

        return boxes_in_file(self.id, self.text, self.span or (0, len(self.text)), self._unread.origin)

    def to_dict(self, *, text: bool = False) -> dict[str, Any]:
        """Return what JSON can hold; the whole text of the document only if asked for."""
        names = [each.name for each in fields(self) if text or each.name != "text"]
        found = {name: getattr(self, name) for name in names}
        found["passages"] = tuple(map(asdict, self.passages))
        return {name: deepcopy(value) if isinstance(value, dict) else value for name, value in found.items()}


class Later:
    """What the hits of one search have that was not read yet: for all of them in one read, from what was searched."""

    def __init__(self, view: EngineView, documents: Mapping[int, StoredDocument], sentences: Sentences) -> None:
        """Keep some documents by number, their view where it lasts, and what finds words and sentences."""
        self._view = view if view.lasting else None
        self.info = view.info
        self._documents = documents
        self.sentences = sentences

    @cached_property
    def texts(self) -> dict[int, str]:
        """The texts of the documents."""
        return {doc: stored.text for doc, stored in self._read("text").items()}

    @cached_property
    def metadata(self) -> dict[int, dict[str, Any]]:
        """Their metadata."""
        return {doc: stored.metadata for doc, stored in self._read("metadata").items()}

    def _read(self, part: Part) -> Mapping[int, StoredDocument]:
        if self._view is None:
            return self._documents
        found, info = self._view.documents(list(self._documents), (part,)), self._view.info
        if missing := [doc for doc in self._documents if doc not in found]:
            raise IndexFormatError(f"{info.name}: document number {missing[0]} has no {part}; {info.remedy}")
        return found


class _Unread:
    """The same of one hit. `parts` are the characters of the document's text that are shown, with where they begin."""

    def __init__(
        self, document: StoredDocument, parts: Sequence[tuple[int, str]], first: Passage | None, later: Later
    ) -> None:
        self._document = document
        self._parts = parts
        self._first = first
        self._later = later

    def __getattr__(self, name: str) -> Any:
        """What a hit has of its best passage."""
        if name not in LATER:
            raise AttributeError(name)
        if self._first is None:
            return {"heading": "", "headings": ()}.get(name)
        return getattr(self._first, name)

    @property
    def origin(self) -> FileOrigin | None:
        return self._document.origin

    @property
    def info(self) -> EngineInfo:
        return self._later.info

    @property
    def text(self) -> str:
        return self._later.texts[self._document.doc]

    @property
    def metadata(self) -> dict[str, Any]:
        return self._later.metadata[self._document.doc]

    @property
    def highlights(self) -> tuple[tuple[int, int], ...]:
        parts = self._parts or [(0, self.text[:BEGINNING])]
        find = self._later.sentences.find
        return _joined((start + word.start, start + word.stop) for start, text in parts for word in find(text))


def make_hit(
    document: StoredDocument,
    score: float,
    chosen: Sequence[Chosen],
    scores: dict[str, float],
    *,
    context: tuple[tuple[int, int], str] | None,
    confidence: float | None,
    duplicates: tuple[str, ...],
    later: Later,
) -> Hit:
    """Make a hit of a document and its passages, best first; what is in `LATER` is read when it is asked for.

    `context` are the characters of the first passage with others, and their text.
    """
    pages = document.origin.pages if document.origin else None
    passages = tuple(_make_passage(each, pages, later.sentences) for each in chosen)
    first, (span, together) = passages[0] if passages else None, context or (None, None)
    parts = [(each.span[0], each.text) for each in passages]
    if span is not None and together is not None:
        parts.append((span[0], together))
    known = {
        "id": document.id,
        "score": score,
        "title": document.title,
        "passage": first.text if first else None,
        "passages": passages,
        "context": together,
        "context_span": span,
        "confidence": confidence,
        "duplicates": duplicates,
        "scores": scores,
        "index": document.of_index,
        "span": first.span if first else None,
        "_unread": _Unread(document, parts, first, later),
    }
    hit = object.__new__(Hit)
    hit.__dict__.update(known)
    return hit


def _make_passage(chosen: Chosen, pages: Pages | None, sentences: Sentences) -> Passage:
    """Make what is shown of one passage of a document."""
    passage = object.__new__(Passage)
    known = {"text": chosen.text, "span": chosen.span, "score": chosen.score, "scores": chosen.scores}
    passage.__dict__.update(known, _unread=_Unshown(chosen, pages, sentences))
    return passage


_LONGEST_TOKEN = 16  # characters, in the mean: of a longer text no more can fit
_PIECE = re.compile(r"[^\W\d_]{1,5}|\d{1,3}|[^\w\s]|_|\n+")


def estimate_tokens(text: str) -> int:
    """Estimate how many tokens a language model will read: five letters, three digits or one sign are one each.

    Characters outside ASCII count as one each. Mostly too high, not always.
    """
    return sum(1 if piece.isascii() else len(piece) for piece in _PIECE.findall(text))


def hits_to_prompt(
    hits: Sequence[Hit], *, max_tokens: int = 2000, count: Callable[[str], int] = estimate_tokens
) -> str:
    """Write the passages of hits one after another, numbered and cited, within a budget of tokens.

    Of the first hit as many sentences are kept as fit, or words where not even one does: from the beginning of its
    passage, or from its best sentence where that would be lost; the characters that are cited are those that are kept.
    Any other passage that does not fit is left out as a whole, and smaller ones after it may still be taken; the
    numbers stay those of the hits, so that `[3]` in an answer means `hits[2]`.

    Args:
        hits: Best first. A hit without a passage gives its whole text.
        max_tokens: The budget.
        count: How many tokens a text has; the default is an estimate that is mostly too high.

    Raises:
        ConfigError: the budget is not a positive number, or none of the hits fits into it.
    """
    if isinstance(max_tokens, bool) or not isinstance(max_tokens, int) or max_tokens < 1:
        raise ConfigError(f"max_tokens={max_tokens!r}: must be a whole number of at least 1")
    blocks, left, smallest = [], max_tokens, 0
    for number, hit in enumerate(hits, start=1):
        block = _block(number, hit)
        size = count(block)
        smallest = min(smallest or size, size)
        if number == 1 and size > left:
            block = _block(1, _trimmed(hit, left, lambda shorter: count(_block(1, shorter)) <= max_tokens) or hit)
            size = count(block)
        if size <= left:
            blocks.append(block)
            left -= size
    if hits and not blocks:
        raise ConfigError(f"max_tokens={max_tokens}: none of the {len(hits)} hits fits; the smallest has {smallest}")
    return "".join(blocks)


def _trimmed(hit: Hit, tokens: int, fits: Callable[[Hit], bool]) -> Hit | None:
    """What fits of a hit: whole sentences, else words; None where not even a word does."""
    whole, offset = (hit.text, 0) if hit.passage is None else (hit.passage, hit.span[0] if hit.span else 0)
    best = (0, 0) if hit.best_sentence is None else (hit.best_sentence[0] - offset, hit.best_sentence[1] - offset)
    for begin in sorted({0, best[0]}):
        text = whole[begin : begin + _LONGEST_TOKEN * tokens]

        def part(end: int, text: str = text, start: int = offset + begin) -> Hit:
            kept = text[:end].rstrip()
            return replace(hit, passage=kept, span=(start, start + len(kept)))

        words = [word.end() for word in re.finditer(r"\S+", text)]
        for ends in ([*outline(text).places[1:].tolist(), len(text)], words):
            number = bisect_left(ends, True, key=lambda end: not fits(part(end)))
            if number and (begin == best[0] or ends[number - 1] >= best[1]):
                return part(ends[number - 1])
    return None


def _block(number: int, hit: Hit) -> str:
    place = hit.id if hit.page is None else f"{hit.id}, {hit.place}"
    place += f", characters {hit.span[0]}-{hit.span[1]}" if hit.span else ""
    names = [part for part in (hit.title, hit.heading) if part]
    head = f"[{number}] {' > '.join(names)} ({place})" if names else f"[{number}] ({place})"
    return f"{head}\n{(hit.passage if hit.passage is not None else hit.text).strip()}\n\n"
