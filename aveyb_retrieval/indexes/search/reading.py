"""Reading stored documents without a search: headings, matches of an expression, and parts within a budget."""

from __future__ import annotations

import time
from dataclasses import dataclass
from typing import TYPE_CHECKING, NamedTuple

import regex

from aveyb_retrieval.encoder.text.outline import outline
from aveyb_retrieval.errors import ConfigError, InputError

if TYPE_CHECKING:
    from aveyb_retrieval.indexes.search.lookup import Document
    from aveyb_retrieval.indexes.search.retriever import Retriever
    from aveyb_retrieval.indexes.store.filters import Filter

SECONDS = 1.0  # of processor time that an expression may take over all documents
MOST_MATCHES = 1000
LONGEST_PATTERN = 1000
CONTEXT = 100  # characters beside a match, up to the ends of its line
CHARACTERS = 4  # of a token, at least, in most scripts that are written with spaces


@dataclass(frozen=True)
class Match:
    """Where an expression matches.

    Attributes:
        id: of the document.
        title: its title.
        span: the characters `[start, end)` of the match in its text.
        line: the line around the match, at most `CONTEXT` characters on either side.
        page: the page of the match, counted from 1; None where the document has no pages.
    """

    id: str
    title: str
    span: tuple[int, int]
    line: str
    page: int | None


class Section(NamedTuple):
    """A heading: its words, and the characters `[start, end)` from it to the next one."""

    heading: str
    span: tuple[int, int]
    page: int | None


@dataclass(frozen=True)
class Excerpt:
    """A part of a document.

    Attributes:
        id: of the document.
        title: its title.
        text: the part.
        span: its characters `[start, end)` in the document's text.
        page: the page that it begins on, counted from 1; None where the document has no pages.
        left_out: characters of what was asked for that did not fit.
    """

    id: str
    title: str
    text: str
    span: tuple[int, int]
    page: int | None
    left_out: int


def grep(
    retriever: Retriever,
    pattern: str,
    *,
    filter: Filter | None = None,
    limit: int = 100,
    ignore_case: bool = False,
    seconds: float = SECONDS,
) -> list[Match]:
    """Find where a regular expression matches in the stored texts, in the order of the documents.

    Args:
        retriever: over the index.
        pattern: an expression of the package `regex`; `^` and `$` match at lines.
        filter: only in documents that satisfy it.
        limit: the most matches; 1 to 1,000.
        ignore_case: whether "A" matches "a".
        seconds: the most processor time that it may take, over all documents.

    Raises:
        ConfigError: the expression is none, is too long or takes too long, or `limit` is out of range.
    """
    if not 1 <= limit <= MOST_MATCHES:
        raise ConfigError(f"limit={limit}: must be 1 to {MOST_MATCHES:,}")
    if not pattern or len(pattern) > LONGEST_PATTERN:
        raise ConfigError(f"pattern of {len(pattern):,} characters: must have 1 to {LONGEST_PATTERN:,}")
    try:
        expression = regex.compile(pattern, regex.MULTILINE | (regex.IGNORECASE if ignore_case else 0))
    except (regex.error, RecursionError, OverflowError) as error:
        raise ConfigError(f"pattern {pattern[:100]!r}: not an expression ({error})") from error
    found: list[Match] = []
    end = time.thread_time() + seconds
    try:
        for document in retriever.documents(filter):
            left = end - time.thread_time()
            if left <= 0:
                raise TimeoutError
            for match in expression.finditer(document.text, timeout=left):
                found.append(_match(document, match.span()))
                if len(found) >= limit:
                    return found
    except TimeoutError:
        raise ConfigError(
            f"pattern {pattern[:100]!r}: took longer than {seconds:g} s; write it so that it tries less (no repeats "
            "inside repeats), or narrow the documents with a filter"
        ) from None
    return found


def _match(document: Document, span: tuple[int, int]) -> Match:
    text, (start, stop) = document.text, span
    first = max(text.rfind("\n", 0, start) + 1, start - CONTEXT)
    end = text.find("\n", stop)
    last = min(len(text) if end < 0 else end, stop + CONTEXT)
    return Match(document.id, document.title, span, text[first:last].strip(), _page(document, start))


def _page(document: Document, place: int) -> int | None:
    pages = document.origin.pages if document.origin is not None else None
    return None if pages is None else pages.at(place).number


def sections(document: Document) -> list[Section]:
    """Return the headings of a document with what stands under each, in order."""
    found = outline(document.text).headings
    ends = [*(heading.start for heading in found[1:]), len(document.text)][: len(found)]
    return [
        Section(heading.words, (heading.start, end), _page(document, heading.start))
        for heading, end in zip(found, ends, strict=True)
    ]


def excerpt(
    document: Document,
    *,
    span: tuple[int, int] | None = None,
    heading: str | None = None,
    max_tokens: int = 4000,
) -> Excerpt:
    """Return a part of a document that fits into a budget, cut behind a sentence.

    Args:
        document: the document.
        span: its characters; None: from its beginning, or from `heading`.
        heading: the words of a heading, case aside; the part goes to the next heading.
        max_tokens: the budget, of about four characters each.

    Raises:
        ConfigError: `span` is not in the document, or both are given, or the budget is out of range.
        InputError: there is no such heading.
    """
    length = len(document.text)
    if max_tokens < 1:
        raise ConfigError(f"max_tokens={max_tokens}: must be at least 1")
    if span is not None and heading is not None:
        raise ConfigError("give a span or a heading, not both")
    start, end = (0, length) if span is None else span
    if not 0 <= start <= end <= length:
        raise ConfigError(f"span [{start}, {end}): the document {document.id!r} has {length:,} characters")
    if heading is not None:
        start, end = _under(document, heading)
    cut = end
    if end > (most := start + max_tokens * CHARACTERS):
        places = [start + int(place) for place in outline(document.text[start:most]).places]
        cut = next((place for place in reversed(places) if place > start), most)
    text = document.text[start:cut]
    return Excerpt(document.id, document.title, text, (start, cut), _page(document, start), end - cut)


def _under(document: Document, heading: str) -> tuple[int, int]:
    found = sections(document)
    wanted = heading.strip().strip("#").strip().casefold()
    for section in found:
        if section.heading.casefold() == wanted:
            return section.span
    some = ", ".join(repr(section.heading) for section in found[:10]) or "none"
    raise InputError(f"{document.id}: no heading {heading!r}; the headings are {some}")
