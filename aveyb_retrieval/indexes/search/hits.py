"""What a search gives back: hits with their passages, sentences that these are cited by, words that
may be meant.

The best sentence of a passage is found by the formula of docs/ranking.md. The vectors are the
model's embeddings of tokens, which know synonyms and need no layer to run: about a millisecond for
a passage. The weight of a word that is not looked up is 0. Words count besides: a cosine is 1 for
an equal word, else 0. A row of a table is a sentence, too.

Copies are texts whose words are equal, whatever their case, spaces and punctuation. All else may
carry the meaning and makes texts different: the order of words, a negation, a number as it is
written (`1.5`, `1,500`, `-5`, `(5)`, `3/4`), a sign (`%`, `€`, `<`, `?`).
"""

from __future__ import annotations

import re
import reprlib
import unicodedata
from bisect import bisect
from copy import deepcopy
from dataclasses import asdict, dataclass, field, fields
from functools import cache, cached_property, partial
from itertools import chain, islice, pairwise
from typing import TYPE_CHECKING, Any, Literal, NamedTuple

import numpy as np
import regex

from aveyb_retrieval.encoder.text.passages import names_of, outline
from aveyb_retrieval.errors import ConfigError, IndexFormatError
from aveyb_retrieval.indexes.store.vocabulary import edits, swaps, within
from aveyb_retrieval.indexes.store.words import UNSPACED, WORD, cleaned, spelled
from aveyb_retrieval.indexes.types import PASSAGE_BITS, WordVectors, products, token_width

if TYPE_CHECKING:
    from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence

    from aveyb_retrieval.documents.readers.originals import Box
    from aveyb_retrieval.documents.records import FileOrigin
    from aveyb_retrieval.indexes.engine import EngineInfo, EngineView
    from aveyb_retrieval.indexes.store.tables import Part, StoredDocument
    from aveyb_retrieval.indexes.store.words import Finder
    from aveyb_retrieval.indexes.types import EmbedderLike, FloatArray, IntArray, Kind

Span = tuple[int, int]

# what of a passage, and so of the hit that shows it, is found when it is asked for
_CITED = ("heading", "headings", "page", "page_label", "page_unit", "pages", "best_sentence")
BEGINNING = 10_000  # characters of a document without passages in which words are looked for
LOOKED_UP = 50  # words of a query, the first ones, that others may be suggested for
SUGGESTED = 3  # words in place of one that no document has
READ_FOR_ONE = 3  # texts in which a suggested word is looked for as it is written
_BRIEF = reprlib.Repr()
_BRIEF.maxstring = _BRIEF.maxother = 100
_BRIEF.maxdict = 10
_CELLS = r"(?:\||[^\n|]* \| )"  # how a row of a table begins, in Markdown or not
_ROW = re.compile(rf"^(?={_CELLS})", re.MULTILINE)
_NAMES = regex.compile(
    rf"^(?={_CELLS}.*\n{_CELLS})(?<!^{_CELLS}.*\n)", re.MULTILINE
)  # of its columns: the first row
_QUESTION = re.compile("[?\uff1f\u061f][\\s>\"'\u201d\u00bb]*$")  # of a sentence
_MARK = re.compile(
    r"[\s>]{0,20}\(?(?:\d{1,3}|[A-Za-z]|[ivxIVX]{2,5})[.)]\s*"
)  # of an item of a list
_SHARP, _NAMED, _LEAST = 4, 0.95, 0.001  # as benchmarks/cpu/citations.py found them
_CITED_AT_ONCE = 10  # passages: as many as a search gives if it is not told
_ABOUT = 1000  # characters of a document's beginning that say what all of it is about
_TOLD_APART, _COMPARED_FIRST = (
    8,
    50,
)  # words: most texts differ in the first of them, most others in these
_PLAIN = dict.fromkeys([*range(0x2010, 0x2015), 0x2212], "-") | dict.fromkeys(
    map(ord, "\u2018\u2019\u02bc"), "'"
)
_PLAIN |= dict.fromkeys(map(ord, "\u201c\u201d\u201e\u00ab\u00bb"), '"')
_UNSEEN = regex.compile(r"[\p{Default_Ignorable_Code_Point}\u0640]+")
_FORMS = re.compile(
    "[\xb5\ufb00-\ufdff\ufe70-\ufefc\uff01-\uffef]+"
)  # ligatures, full and half width, not powers
_BROKEN = re.compile(r"-\n(?<=[^\W\d_]-\n)(?=[^\W\d_])")  # a word at the end of a line
_UNITS = re.compile(
    r"\d[\s-]?(?:M(?:Wh?|VA?|g|A|Hz|Ω|J|Pa|eV|L|bit|bps)|[kKMGTP]i?B(?:ps)?)(?![^\W\d_])"
)
_SAID = regex.compile(
    r"""[^\W\d_]+
      | (?:(?<!\w)[.,])?\d+(?:[.,:/'-]\d+)*(?:e[+-]\d+)?  # a number, date or time
      | (?<!\w)-(?=[\w.\p{Sc}])               # a minus, but no dash of a list or between words
      | (?<=\S[ ])-(?=[ ]\p{Sc}?[.,]?\d)      # the same, or "to", with a space
      | \((?=\s?\p{Sc}?[.,]?\d)               # the minus of accounts
      | (?<=\d)['"]                           # feet, inches, minutes
      | (?<=\d[ ]?)\*+(?=[ ]?\d)              # times
      | !(?=\S)                               # "not" in code
      | (?<=\w)\#                             # C#
      | [^\w\s.,;:!"'(){}\[\]*_`\#¡¿•▪◦‣\p{Pi}\p{Pf}\p{Ps}\p{Pe}…。、，；：！-]""",  # other scripts' points  # noqa: E501, RUF001
    regex.VERBOSE,
)


class _Shown:
    """What has a page, is read when it is asked for, and prints in a few lines, without what is
    empty or unread.
    """

    page: int | None
    page_label: str | None
    page_unit: str | None

    @property
    def place(self) -> str:
        """The page as it is cited, such as "page iv" or "slide 3"; "" where the
        document has none.
        """
        return "" if self.page is None else f"{self.page_unit} {self.page_label}"

    if not TYPE_CHECKING:

        def __getattr__(self, name: str) -> Any:
            """Read what was not asked for before."""
            read = self.__dict__.get("_later", {}).get(name)
            if read is None:
                raise AttributeError(f"{type(self).__name__!r} object has no attribute {name!r}")
            value = self.__dict__[name] = read()
            return value

    def __getstate__(self) -> dict[str, Any]:
        """A copy has all that can be asked for."""
        return {each.name: getattr(self, each.name) for each in fields(self)}  # type: ignore[arg-type]  # a dataclass

    def __repr__(self) -> str:
        known = (
            (name, value)
            for name, value in self.__dict__.items()
            if value not in (None, "", (), {})
        )
        shown = [
            f"{name}={_BRIEF.repr(value)}"
            for name, value in known
            if name not in ("_later", "_found_in")
        ]
        return f"{type(self).__name__}({', '.join(shown)})"


@dataclass(frozen=True, repr=False)
class Passage(_Shown):
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

    # those that are read later have no plain default, which the class would have in their place
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
    """A passage to show: its characters in the document's text, itself, what reads its heading, and
    its scores.
    """

    span: tuple[int, int]
    text: str
    heading: Callable[[], str]
    score: float
    scores: dict[str, float]


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

    The text, metadata, highlights, the best sentence, headings and pages are read when they are
    first asked for, texts and metadata for all hits of the search at once, from the version that
    was searched; a copy, `pickle` and `dataclasses.asdict` read them. Where that version cannot be
    read any more, as the retriever was closed or the files are gone, this is an error.

    Attributes:
        id: Of the document.
        score: What orders the hits, higher is better: the cosine in "dense" mode, BM25 in "lexical"
            mode; in "hybrid" mode the fused score for documents and the confidence for passages;
            what the reranker gave, if there is one.
        text: The whole text of the document.
        title: Its title.
        metadata: Its other fields.
        passage: The text of the best passage; None where the index has no passages or the document
            no text.
        span: Its characters `[start, end)` in `text`.
        passages: The best passages, best first; one with `unit="passage"`.
        heading: The nearest heading over the best passage's best sentence, "" where there is none.
        headings: All headings that parts of the best passage are under, in order.
        context: The best passage with its neighbors, None unless asked for.
        context_span: Its characters `[start, end)` in `text`.
        confidence: The estimated probability that the best passage answers the query, 0 to 1,
            comparable between queries ("hybrid" mode only, else None). It is calibrated for the
            best hit, and too high for those below: docs/ranking.md has the figures.
        duplicates: Ids of the documents that say the same, or in which the same passage was found,
            and that were folded into this hit, as far as they rank above the last hit.
        scores: What the score was made of: "dense" (cosine), "lexical" (BM25), "passage" (of a
            document: the highest score of a passage by itself, which may be another than the one
            shown), "maxsim" or "cross-encoder".
        page: The page of the best passage's best sentence, counted from 1; None where the document
            has no pages.
        page_label: What the document calls that page, such as "iv".
        page_unit: What it is: one of `aveyb_retrieval.documents.records.UNITS`.
        pages: The first and the last page of the best passage.
        highlights: The characters `[start, stop)` in `text` of the query's words, as the index's
            rules of language find them, ascending: in the passages and the context given, or in the
            first 10,000 characters of a document without passages. Empty where a vector was
            searched for.
        best_sentence: The characters in `text` of the best passage's sentence that comes nearest to
            the query's words: `aveyb_retrieval.indexes.search.hits` says how. None where a vector
            was searched for, or only words and the passage holds none.
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

        `id`, `span` and `quote` (the best sentence, else the passage, else the text), the file's
        `sha256`, and the `build` and `version` of the index; None where there is none. ConfigError:
        a copy knows no index.
        """
        start, stop = self.best_sentence or self.span or (0, len(self.text))
        origin, info = self._source()
        return {
            "id": self.id,
            "span": [start, stop],
            "quote": self.text[start:stop],
            "sha256": None if origin is None else origin.sha256,
            "build": info.build or None,
            "version": info.version,
        }

    def boxes(self) -> tuple[Box, ...]:
        """Return where the best passage stands on the pages of its PDF: one rectangle for each
        line.

        They are read from the original (of words of a picture OCR finds them again). Raises
        InputError where that is gone, no PDF, or has changed since, ConfigError where this is a
        copy, which does not know its index.
        """
        from aveyb_retrieval.documents.readers.originals import boxes_in_file

        return boxes_in_file(
            self.id, self.text, self.span or (0, len(self.text)), self._source()[0]
        )

    def _source(self) -> tuple[FileOrigin | None, EngineInfo]:
        if (source := self.__dict__.get("_found_in")) is None:
            raise ConfigError(
                "a copy of a hit does not know its index; ask the hit that the search gave"
            )
        return source

    def to_dict(self, *, text: bool = False) -> dict[str, Any]:
        """Return what JSON can hold; the whole text of the document only if asked for."""
        found = {
            each.name: getattr(self, each.name)
            for each in fields(self)
            if text or each.name != "text"
        }
        found["passages"] = tuple(map(asdict, self.passages))
        return {
            name: deepcopy(value) if isinstance(value, dict) else value
            for name, value in found.items()
        }


class Later:
    """What the hits of one search have that was not read yet: for all of them in one read, from
    what was searched.
    """

    def __init__(
        self, view: EngineView, documents: Mapping[int, StoredDocument], sentences: Sentences
    ) -> None:
        self._view = view if view.lasting else None
        self.info, self.sentences, self._documents = view.info, sentences, documents
        self._beside: dict[int, list[tuple[Chosen, StoredDocument]]] = {}
        self._cited: dict[tuple[int, int], list[Cited]] = {}

    def citing(self, place: int, chosen: Chosen, document: StoredDocument) -> Callable[[], Cited]:
        """Return what cites a passage, of which its hit shows `place` better ones: with those of
        the hits beside it.
        """
        beside = self._beside.setdefault(place, [])
        beside.append((chosen, document))
        return partial(self._cite, place, *divmod(len(beside) - 1, _CITED_AT_ONCE))

    def _cite(self, place: int, group: int, number: int) -> Cited:
        if (place, group) not in self._cited:
            together = self._beside[place][group * _CITED_AT_ONCE :][:_CITED_AT_ONCE]
            self._cited[place, group] = self.sentences.cite(
                [self._excerpt(*each) for each in together]
            )
        return self._cited[place, group][number]

    def _excerpt(self, chosen: Chosen, document: StoredDocument) -> Excerpt:
        (start, stop), pages = chosen.span, document.origin.pages if document.origin else None
        breaks = [at - start for at in pages.starts if start < at < stop] if pages else []
        # what it is about as its document is: words of the title and the beginning
        begins = self._beginnings.get(document.doc, "")[:_ABOUT] if start >= _ABOUT else ""
        about = " ".join(dict.fromkeys(f"{document.title} {begins}".split()))
        return Excerpt(chosen.text, chosen.heading(), breaks, about)

    @cached_property
    def texts(self) -> dict[int, str]:
        return {doc: stored.text for doc, stored in self._read("text").items()}

    @cached_property
    def metadata(self) -> dict[int, dict[str, Any]]:
        return {doc: stored.metadata for doc, stored in self._read("metadata").items()}

    @cached_property
    def _beginnings(self) -> dict[int, str]:
        if self._view is None:
            return self.texts
        found = self._view.shown_passages([doc << PASSAGE_BITS for doc in self._documents])
        return {number >> PASSAGE_BITS: shown.text for number, shown in found.items()}

    def _read(self, part: Part) -> Mapping[int, StoredDocument]:
        if self._view is None:
            return self._documents
        found, info = self._view.documents(list(self._documents), (part,)), self._view.info
        if missing := [doc for doc in self._documents if doc not in found]:
            raise IndexFormatError(
                f"{info.name}: document number {missing[0]} has no {part}; {info.remedy}"
            )
        return found


def make_hit(
    document: StoredDocument,
    score: float,
    chosen: Sequence[Chosen],
    scores: dict[str, float],
    *,
    context: tuple[Span, str] | None,
    confidence: float | None,
    duplicates: tuple[str, ...],
    later: Later,
) -> Hit:
    """Make a hit of a document and its passages, best first; `context` are the first one and its
    neighbors.
    """
    passages = tuple(
        _make_passage(place, each, document, later) for place, each in enumerate(chosen)
    )
    first, (span, together) = passages[0] if passages else None, context or (None, None)
    parts = [(each.span[0], each.text) for each in passages]
    if span is not None and together is not None:
        parts.append((span[0], together))
    hit = object.__new__(Hit)

    def highlights() -> tuple[Span, ...]:
        find, shown = (
            later.sentences.find,
            parts or [(0, later.texts[document.doc][:BEGINNING])],
        )  # not hit's: no cycle
        return _joined(
            (start + word.start, start + word.stop) for start, text in shown for word in find(text)
        )

    read: dict[str, Callable[[], Any]] = {
        "text": lambda: later.texts[document.doc],
        "metadata": lambda: later.metadata[document.doc],
        "highlights": highlights,
    }
    known = dict.fromkeys(_CITED) | {"heading": "", "headings": ()} if first is None else {}
    if first is not None:
        read |= {name: partial(getattr, first, name) for name in _CITED}
    known |= {
        "id": document.id,
        "score": score,
        "title": document.title,
        "passage": first.text if first else None,
        "span": first.span if first else None,
        "passages": passages,
        "context": together,
        "context_span": span,
        "confidence": confidence,
        "duplicates": duplicates,
        "scores": scores,
        "index": document.of_index,
    }
    hit.__dict__.update(known, _later=read, _found_in=(document.origin, later.info))
    return hit


def _make_passage(place: int, chosen: Chosen, document: StoredDocument, searched: Later) -> Passage:
    """Make what is shown of one passage of a document; its best sentence is looked for when it is
    needed.
    """
    span, text, _, score, scores = chosen
    (start, stop), pages = span, document.origin.pages if document.origin else None
    cite = searched.citing(place, chosen, document)

    def cited() -> Cited:
        found = cite()
        return found._replace(
            sentence=found.sentence and (start + found.sentence[0], start + found.sentence[1])
        )

    def page(part: Literal["number", "label", "unit"]) -> Any:
        if pages is None:
            return None
        first, last = pages.range(start, stop)
        best = cited().sentence if first.number < last.number else None
        return getattr(first if best is None else pages.at(best[0]), part)

    later: dict[str, Callable[[], Any]] = {
        "heading": lambda: cited().heading,
        "headings": lambda: cited().headings,
        "best_sentence": lambda: cited().sentence,
        "page": partial(page, "number"),
        "page_label": partial(page, "label"),
        "page_unit": partial(page, "unit"),
        "pages": lambda: (
            None if pages is None else tuple(each.number for each in pages.range(start, stop))
        ),
    }
    passage = object.__new__(Passage)
    passage.__dict__.update(text=text, span=span, score=score, scores=scores, _later=later)
    return passage


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

    def __reduce__(self) -> tuple[Any, ...]:
        return Result, (list(self), self.words, self.unmet, partial(dict, self.suggestions))


def suggest(query: str, view: EngineView) -> dict[str, tuple[str, ...]]:
    """Words of the index in place of those words of a query that are in none of its documents, the
    nearest first.
    """
    rules, vocabulary = view.language, view.vocabulary
    suggested, asked = {}, {*rules.words(query)}
    for word in islice(dict.fromkeys(WORD.findall(query)) if vocabulary else (), LOOKED_UP):
        form, stored, unspaced = (
            rules.form(word),
            rules.in_order(word),
            UNSPACED.search(cleaned(word)),
        )
        left_out = asked.isdisjoint((form, *stored))  # "what"
        if (
            left_out
            or not edits(form)
            or form.isdigit()
            or len(stored) != 1
            or unspaced
            or any(view.holding(stored))
        ):
            continue
        assert vocabulary is not None  # else there are no words to go through
        near = vocabulary.near(form, edits(form))
        first = near.keys() & swaps(form) | {each for each in near if within(form, each, 1)}
        order = sorted(near, key=lambda each: (each not in first, -near[each], each))
        held = (
            each for each in order if any(view.holding(rules.in_order(each)))
        )  # some documents may be deleted
        if meant := tuple(islice(held, SUGGESTED)):
            suggested[word] = tuple(dict.fromkeys(_as_written(each, view) for each in meant))
    return suggested


def _as_written(form: str, view: EngineView) -> str:
    """A word, by its form, as it stands in one of the texts that are best by it, accents too,
    without capitals.
    """
    kind: Kind = "passage" if "passage" in view.encoding.kinds else "document"
    numbers = [
        number for number, _ in view.by_words(kind, view.language.in_order(form), READ_FOR_ONE)
    ]
    texts = (
        view.shown_passages(numbers) if kind == "passage" else view.documents(numbers, ("text",))
    )
    find = view.language.finder((), (form,))
    written = (
        each.text[word.start : word.stop] for each in texts.values() for word in find(each.text)
    )
    word = cleaned(next(written, form))
    return (
        spelled(word, turkish=True) if view.language.name == "turkish" else word.lower()
    )  # no "ss" for a sharp s


class Excerpt(NamedTuple):
    """A passage to cite, the heading above it, the characters at which pages begin in it, and what
    it is about.
    """

    text: str
    heading: str = ""
    breaks: Sequence[int] = ()
    about: str = ""


class Cited(NamedTuple):
    """A passage's best sentence (None: it holds no word of the query), the heading over it, and all
    headings in it.
    """

    sentence: Span | None
    heading: str
    headings: tuple[str, ...]


Words = tuple[
    "IntArray", "IntArray"
]  # of a text: which of all that are compared, and where they begin


class Sentences:
    """Finds the sentences that answer one query, in any passages."""

    def __init__(
        self,
        query: str,
        find: Finder,
        weights: Callable[[], Mapping[str, float]],
        model: Callable[[], EmbedderLike] | None,
    ) -> None:
        self._query, self._weights, self._load = query, weights, model
        self.find = cache(find)  # highlights ask for the same passages

    def cite(self, excerpts: Sequence[Excerpt]) -> list[Cited]:
        """Find the best sentence of each passage and its heading; what several are about is looked
        at once.

        Of a sentence that goes on over a page the parts are compared.
        """
        texts = list(dict.fromkeys(text for each in excerpts for text in (each.text, each.about)))
        near, weights, words = self._by_words(texts)
        if self._model is not None:
            # tokens may be letters, or stand for any unknown word: all sentences hold them, so
            # equal words count, too
            (known, count), (same, more, held) = near.shape, self._by_meaning(texts)
            near, weights = (
                np.pad(near, [(0, size) for size in same.shape]),
                np.concatenate([weights, more]),
            )
            near[known:, count:] = same
            both = [
                np.hstack([one, (two[0] + count, two[1])])
                for one, two in zip(words, held, strict=True)
            ]
            words = [(which[order], at[order]) for which, at in both for order in [at.argsort()]]
        found = dict(zip(texts, words, strict=True))
        named = {
            each.about: near[:, found[each.about][0]].max(axis=1, initial=0) for each in excerpts
        }
        return [
            _cite(each, near, found[each.text], named[each.about], weights) for each in excerpts
        ]

    @cached_property
    def _model(self) -> WordVectors | None:
        """The model, if it knows what words mean; else they have to be equal."""
        model = None if self._load is None else self._load()
        return model if isinstance(model, WordVectors) and token_width(model) else None

    def _by_words(self, texts: Sequence[str]) -> tuple[FloatArray, FloatArray, list[Words]]:
        """Which words `[n]` that texts hold are each of the query's `[T, n]`, the weights of these
        `[T]`, the words.
        """
        found = [self.find(text) for text in texts]
        words = {
            word: number
            for number, word in enumerate(dict.fromkeys(each.word for each in chain(*found)))
        }
        known, same = self._weights() if words else {}, np.eye(len(words), dtype=np.float32)
        # not weighed is one that a condition such as begin* found
        weights = np.array([known.get(word, 1.0) for word in words], np.float32)
        held = [
            np.array([(words[each.word], each.start) for each in one], np.int64).reshape(-1, 2)
            for one in found
        ]
        return same, weights, [(each[:, 0], each[:, 1]) for each in held]

    def _by_meaning(self, texts: Sequence[str]) -> tuple[FloatArray, FloatArray, list[Words]]:
        """How near tokens come to the query's that count, `[T, n]`, 0 to 1, the weights of these
        `[T]`, the tokens.
        """
        assert self._model is not None  # else words are compared
        rows, ((asked, places), *tokens) = self._model.word_vectors([self._query, *texts])
        weights, counted = self._weights(), np.zeros(len(asked), np.float32)
        for word in self.find(self._query):
            counted[(places >= word.start) & (places < word.stop)] = weights.get(word.word, 1.0)
        asked, counted = asked[counted > 0], counted[counted > 0]
        # one by one: for many at once `products` would wake the threads of BLAS
        cosines = [products(row[None], rows)[0].clip(0, 1) for row in rows[asked]]
        near = np.array(cosines, np.float32).reshape(len(asked), len(rows))
        return near, counted, tokens


def _cite(
    excerpt: Excerpt, near: FloatArray, words: Words, named: FloatArray, weights: FloatArray
) -> Cited:
    passage, above, breaks, _ = excerpt
    found = outline(passage)
    # the passage may begin with a part of a line that looks like a heading
    headings = [each for each in found.headings if each.start or above.endswith(each.words)]
    starts = sorted(
        {0, *found.places.tolist(), *breaks, *(row.start() for row in _ROW.finditer(passage))}
    )
    # where a sentence that headings begin goes on, if at all; a caption alone may be an item of a
    # list
    behind = {}
    for each in headings:
        place = bisect(starts, each.start)
        if not each.caption or passage[each.stop : [*starts, len(passage)][place]].strip():
            behind[starts[place - 1]] = each.stop
    marked = {
        stop
        for start, stop in pairwise(starts)
        if _MARK.fullmatch(passage, behind.get(start, start), stop)
    }
    starts = sorted({*starts} - (marked - behind.keys()))
    parts = [
        (start, behind.get(start, start), stop) for start, stop in pairwise([*starts, len(passage)])
    ]
    marks = [each.start for each in headings]
    names = [above, *names_of(headings, above)]
    under = names[1:] if marks and not passage[: marks[0]].strip() else names
    all_headings = tuple(dict.fromkeys(filter(None, under)))
    best = _best(passage, parts, near, words, named, weights)
    if best is None:
        return Cited(None, under[0], all_headings)
    start, body, stop = parts[best]
    text = passage[body:stop] if passage[body:stop].strip() else passage[start:stop]
    first = stop - len(text.lstrip())
    sentence = first, first + len(text.strip())
    return Cited(sentence, names[bisect(marks, first)] or under[0], all_headings)


def _best(
    passage: str,
    parts: Sequence[tuple[int, ...]],
    near: FloatArray,
    words: Words,
    named: FloatArray,
    weights: FloatArray,
) -> int | None:
    """The number of the best sentence, of (start, where it goes on behind headings, stop); None:
    none is any good.
    """
    starts = [each[0] for each in parts]
    bounds = np.searchsorted(words[1], [*starts, len(passage)])
    filled = np.flatnonzero(np.diff(bounds))  # sentences with a token or word
    nearest = np.zeros((len(starts), len(weights)), np.float32)
    if len(filled):
        nearest[filled] = np.maximum.reduceat(near[:, words[0]], bounds[filled], axis=1).T
    bare, over = (
        np.array([not re.search(r"\w", passage[body:stop]) for _, body, stop in parts]),
        nearest[0] * 0,
    )
    for place, (start, body, stop) in enumerate(parts):
        if start < body:
            over = (
                nearest[place] * bare[place] / 2
            )  # headings that no text follows speak for the rows or items below
        elif not bare[place]:
            nearest[place] = np.maximum(nearest[place], over)
        if _QUESTION.search(
            passage, start, stop
        ):  # it says what is asked for: the next sentences or a reply answer
            nearest[place] /= 2
    for names in _NAMES.finditer(passage):
        nearest[bisect(starts, names.start()) - 1] /= 2  # so do they, a row below answers
    alike = nearest**_SHARP
    others = (alike.sum(axis=0) - alike.max(axis=0)) / max(len(starts) - 1, 1)
    scores = nearest @ (weights * ((1 - _NAMED * named**_SHARP) * (1 - others) ** _SHARP + _LEAST))
    scores[bare] *= 1e-9  # the best only where nothing else is any good
    best = int(np.argmax(scores))
    return best if scores[best] > 0 else None


class Copies:
    """Texts seen so far, to find those that say the same as one of them."""

    def __init__(self) -> None:
        self._seen: dict[
            tuple[str, ...], list[tuple[int, Callable[[], list[str]], Callable[[], str]]]
        ] = {}

    def find_or_remember(
        self, number: int, beginning: str, whole: Callable[[], str] | None = None
    ) -> int | None:
        """Return the number of the text that this one says the same as; where it is new, remember
        it and return None.

        Texts whose beginning has no words are always new. `whole` reads all of a text whose
        beginning is alike.
        """
        words = tuple(islice(_words(beginning), _TOLD_APART))
        if not words:
            return None
        begun = cache(lambda: list(islice(_words(beginning), _COMPARED_FIRST)))
        read = whole or (lambda: beginning)
        alike = self._seen.setdefault(words, [])
        for first, other_begun, other in alike:
            if begun() == other_begun() and same_words(read(), other()):
                return first
        alike.append((number, begun, read))
        return None


def same_words(first: str, second: str) -> bool:
    """Whether two texts say the same."""
    return first == second or list(_words(first)) == list(_words(second))


def _words(text: str) -> Iterator[str]:
    if not text.isascii():
        text = _FORMS.sub(
            lambda found: unicodedata.normalize("NFKC", found[0]), _UNSEEN.sub("", text)
        )
        text = unicodedata.normalize("NFC", text).translate(_PLAIN)
    # a case that matters: of mega and milli, of byte and bit
    text = _UNITS.sub(
        lambda found: found[0].replace("M", "mega ").replace("B", "byte"), _BROKEN.sub("", text)
    )
    return (found[0] for found in _SAID.finditer(text.lower()))
