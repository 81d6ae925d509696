"""Quotations of an answer, compared with what is stored: word for word, without a model.

A text is a row of tokens: numbers with their separators and signs, words, and signs such as `%` and
currencies. White space, punctuation, quotation marks, case, ligatures and soft hyphens are not part
of any. A quotation is *found* where its tokens stand in a document in the same order. A hyphen or
an apostrophe joins the parts beside it or not, on either side: "well-known" is "well known" and
"wellknown", but "notable" is not "no table".
"""

from __future__ import annotations

import re
import unicodedata
from bisect import bisect_left
from collections import Counter
from dataclasses import dataclass
from difflib import SequenceMatcher
from functools import lru_cache
from typing import TYPE_CHECKING, Any, Literal, NamedTuple

from aveyb_retrieval.errors import ConfigError
from aveyb_retrieval.indexes.search.quotations import OF_UNSPACED, UNSPACED, quotations

if TYPE_CHECKING:
    from collections.abc import Collection, Iterator, Mapping, Sequence

    from aveyb_retrieval.indexes.search.hit import Hit
    from aveyb_retrieval.indexes.search.quotations import Quotation
    from aveyb_retrieval.indexes.search.retriever import Retriever
    from aveyb_retrieval.indexes.search.stored_documents import Document
    from aveyb_retrieval.indexes.store.filters import Filter

QuoteVerdict = Literal["found", "altered", "elsewhere", "absent"]

ALTERED_SHARE = 0.6  # share of its words that a passage must hold near each other
LEAST_WORDS = 3  # fewer words that are not found are no quotation, but a word that is named
# documents, and as many passages, in which a quotation is looked for: the best by words
_HITS_PER_QUOTATION = 10
_QUOTATIONS_TOGETHER = 32  # quotations that are searched at once
# of a document: the name of its index, where several are read together, and its id
_Id = tuple[str | None, str]

_LEFT_OUT = re.compile(r"\[\s*(?:\.{3}|\u2026)\s*\]|\(\s*(?:\.{3}|\u2026)\s*\)|\.{3,}|\u2026+")
_NUMBER = r"\d+(?:[.,:/\u2013-]\d+)*(?:[eE][+\u2212-]?\d+)?"
_WORD = rf"[{UNSPACED}]|(?:(?![{UNSPACED}])[^\W\d_])+"
_TOKEN = re.compile(rf"(?<![\w\u00ad])[-\u2212]{_NUMBER}|{_NUMBER}|{_WORD}|[^\w\s]")
_JOINS = re.compile(r"[][]|[-\u2010\u2011\u00ad'\u2019\u02bc_]\s*|(?<=[-\u2010\u2011\u00ad])\s*")
_NO_LETTERS = re.compile(r"[\W_]+")
_KEPT_SIGNS = frozenset("%\u2030\u00a7&@#\u00b0")
_DASHES = str.maketrans({"\u2212": "-", "\u2013": "-"})


@dataclass(frozen=True)
class QuoteCheck:
    """What became of one quotation.

    Attributes:
        quote: Its words, as the answer has them.
        verdict: "found"; "altered" (a passage holds at least three fifths of its words near each
            other, but not the same words in the same order); "elsewhere" (found, but not in the hit
            that `[n]` names, or in no hit); "absent".
        position: Its first character in the answer, counted from 0.
        id: Id of the document; None if the quotation is absent.
        span: Its characters `[start, end)` in the document's text, from the first word to the last.
        stored: The document's words in `span`.
        differences: Pairs of an answer's and a stored word that differ; one of a pair may be "".
        page: The page of the first word, counted from 1; None if the document has no pages.
        place: That page in words, as `Hit.place`.
        sha256: SHA-256 of the document's file, if it was read from one.
        version: Version of the index.
        mark: The number in `[n]` next to it; of several, that of the document, or else the first.
        index: The name of the document's index if several are read together, else None.
    """

    quote: str
    verdict: QuoteVerdict
    position: int
    id: str | None = None
    span: tuple[int, int] | None = None
    stored: str | None = None
    differences: tuple[tuple[str, str], ...] = ()
    page: int | None = None
    place: str = ""
    sha256: str | None = None
    version: str | None = None
    mark: int | None = None
    index: str | None = None

    @property
    def holds(self) -> bool:
        """Whether these words are stored, in the document beside them or in another one."""
        return self.verdict in ("found", "elsewhere")

    def to_dict(self) -> dict[str, Any]:
        """Return what JSON can hold."""
        return dict(vars(self))


class Tokens(NamedTuple):
    """A text as tokens, as they are compared, with their characters in the text.

    `places` are where each begins in the tokens joined, and their end; `glued` whether a hyphen, an
    apostrophe, or nothing at all stands before a token.
    """

    words: list[str]
    starts: list[int]
    stops: list[int]
    places: list[int]
    glued: list[bool]


def tokens_of(text: str) -> Tokens:
    """Split a text into tokens."""
    words, starts, stops, places, glued = list[str](), list[int](), list[int](), [0], list[bool]()
    last = 0
    for match in _TOKEN.finditer(text):
        token = unicodedata.normalize("NFKC", match[0]).casefold().translate(_DASHES)
        # currencies, signs of mathematics, and a few more say something, too
        said = (
            sign.isalnum() or sign in _KEPT_SIGNS or unicodedata.category(sign) in ("Sc", "Sm")
            for sign in token
        )
        if not any(said):
            continue
        words.append(token)
        starts.append(match.start())
        stops.append(match.end())
        places.append(places[-1] + len(token))
        between = text[last : match.start()]
        glued.append(
            not between
            or _JOINS.fullmatch(between) is not None
            or OF_UNSPACED.match(token) is not None
        )
        last = match.end()
    return Tokens(words, starts, stops, places, glued)


def _letters(text: str) -> str:
    """The letters and digits of a text, as they are compared: where a quotation stands, so do
    these.
    """
    return _NO_LETTERS.sub("", unicodedata.normalize("NFKC", text).casefold())


class _Text:
    def __init__(self, text: str) -> None:
        self.text, self.tokens = text, tokens_of(text)
        self.joined = "".join(self.tokens.words)
        self.at: dict[str, list[int]] = {}
        for number, word in enumerate(self.tokens.words):
            self.at.setdefault(word, []).append(number)

    def find(self, quote: Tokens, start: int = 0) -> tuple[int, int] | None:
        """The first tokens `[first, stop)` from `start` on that are those of a quotation; None:
        there are none.
        """
        joined, mine = "".join(quote.words), self.tokens
        place = mine.places[start] if start < len(mine.places) else len(self.joined)
        while (place := self.joined.find(joined, place)) >= 0:
            first = bisect_left(mine.places, place)
            stop = bisect_left(mine.places, place + len(joined))
            ends_at_words = mine.places[first] == place and mine.places[stop] == place + len(joined)
            if ends_at_words and self._same_edges(quote, first, stop):
                return first, stop
            place += 1
        return None

    def _same_edges(self, quote: Tokens, first: int, stop: int) -> bool:
        """Whether words begin at the same places, but where either text joins them."""
        mine, base = self.tokens, self.tokens.places[first]
        ours = {mine.places[n] - base: mine.glued[n] for n in range(first + 1, stop)}
        theirs = {quote.places[n]: quote.glued[n] for n in range(1, len(quote.words))}
        return all((ours.get(edge) or theirs.get(edge)) for edge in ours.keys() ^ theirs.keys())

    def nearest(self, quote: Tokens) -> tuple[float, int, int]:
        """The tokens `[first, stop)` that hold most of a quotation's words near each other, and the
        share of these.
        """
        counts = Counter(quote.words)
        places = sorted((place, word) for word in counts for place in self.at.get(word, ()))
        width = len(quote.words) + max(2, len(quote.words) // 3)
        held: Counter[str] = Counter()
        best, edges, left, count = 0, (0, 0), 0, 0
        for place, word in places:
            count += held[word] < counts[word]
            held[word] += 1
            while place - places[left][0] >= width:
                dropped = places[left][1]
                held[dropped] -= 1
                count -= held[dropped] < counts[dropped]
                left += 1
            while held[places[left][1]] > counts[places[left][1]]:  # it stands again further on
                held[places[left][1]] -= 1
                left += 1
            window = places[left][0], place + 1
            if count > best or (count == best and window[1] - window[0] < edges[1] - edges[0]):
                best, edges = count, window
        return best / len(quote.words), *edges


def check_quotes(
    retriever: Retriever,
    answer: str,
    hits: Sequence[Hit] | None = None,
    *,
    filter: Filter | None = None,
) -> list[QuoteCheck]:
    """Do what `Retriever.check_quotes` says; one or two words that are not found are no quotation
    and are left out.
    """
    if not isinstance(answer, str):
        raise ConfigError(f"answer is of type {type(answer).__name__}; give the text of the answer")
    quotes = [(quote, parts) for quote in quotations(answer) if (parts := _parts(quote.text))]
    checker = _Checker(retriever, hits, filter)
    checks: list[QuoteCheck] = []
    for start in range(0, len(quotes), _QUOTATIONS_TOGETHER):
        checks += checker.check(quotes[start : start + _QUOTATIONS_TOGETHER])
    return [
        check
        for check, (_, parts) in zip(checks, quotes, strict=True)
        if check.holds or sum(len(part.words) for part in parts) >= LEAST_WORDS
    ]


def _parts(quote: str) -> list[Tokens]:
    """A quotation's tokens, in parts where an ellipsis says that something was left out."""
    return [tokens for part in _LEFT_OUT.split(quote) if (tokens := tokens_of(part)).words]


class _Checker:
    def __init__(
        self, retriever: Retriever, hits: Sequence[Hit] | None, filter: Filter | None
    ) -> None:
        self._retriever, self._hits, self._filter = retriever, hits, filter
        self._texts, self._letters = lru_cache(maxsize=64)(_Text), lru_cache(maxsize=256)(_letters)
        self._known: dict[_Id, Document] = {}
        self._indexes: Mapping[Any, Retriever] = retriever.indexes or {None: retriever}

    def _name(self, hit: Hit) -> _Id:
        return hit.index if self._retriever.indexes else None, hit.id

    def check(self, quotes: Sequence[tuple[Quotation, list[Tokens]]]) -> list[QuoteCheck]:
        candidates = self._candidates([quote.text for quote, _ in quotes])
        names_to_read = {name for names in candidates for name in names} | set(
            map(self._name, self._hits or ())
        )
        self._read(names_to_read)
        return [self._check(*quote, names) for quote, names in zip(quotes, candidates, strict=True)]

    def _candidates(self, quotes: list[str]) -> list[dict[_Id, list[tuple[int, int]]]]:
        """Documents that hold most of each quotation's words, by id, with the characters of their
        passages that do.
        """
        options: dict[str, Any] = {
            "k": _HITS_PER_QUOTATION,
            "mode": "lexical",
            "filter": self._filter,
        }
        by_document = self._retriever.search(quotes, **options)
        by_passage = self._retriever.granularity != "document"
        parts = (
            self._retriever.search(quotes, **options, unit="passage", fold=False)
            if by_passage
            else by_document
        )
        candidates: list[dict[_Id, list[tuple[int, int]]]] = []
        for first, more in zip(parts, by_document, strict=True):
            candidates.append({self._name(hit): [] for hit in [*first, *more]})
            for hit in first:
                if hit.span is not None:
                    candidates[-1][self._name(hit)].append(hit.span)
        return candidates

    def _check(
        self, quotation: Quotation, parts: list[Tokens], names: dict[_Id, list[tuple[int, int]]]
    ) -> QuoteCheck:
        hits = [self._name(hit) for hit in self._hits or ()]
        first = [hits[mark - 1] for mark in quotation.marks if 1 <= mark <= len(hits)] or hits
        order = [name for name in dict.fromkeys([*first, *names]) if name in self._known]
        holding = self._holding(order, parts) or self._holding(self._with_phrase(parts), parts)
        for name in holding:
            if edges := _find_parts(self._text(name), parts):
                verdict: QuoteVerdict = (
                    "found" if self._hits is None or name in first else "elsewhere"
                )
                return self._checked(quotation, verdict, name, *edges)
        for name in holding if len(parts) > 1 else ():
            places = [place for part in parts if (place := self._text(name).find(part))]
            if len(places) == len(parts):  # all parts, in another order
                begin, end = min(place[0] for place in places), max(place[1] for place in places)
                return self._checked(quotation, "altered", name, begin, end)
        quote = tokens_of(" ".join(_LEFT_OUT.split(quotation.text)))
        shares = {name: self._share(name, quote, names.get(name, [])) for name in order}
        nearest = max(shares, default=None, key=lambda name: shares[name])
        best = None if nearest is None else (*self._text(nearest).nearest(quote), nearest)
        if (
            best is None
            or best[0] < ALTERED_SHARE
            or not _shares_contents(self._text(best[3]), quote, best[1], best[2])
        ):
            version, mark = self._retriever.version, next(iter(quotation.marks), None)
            return QuoteCheck(
                quotation.text, "absent", quotation.position, version=version, mark=mark
            )
        edges = _with_ends(self._text(best[3]), quote, best[1], best[2])
        return self._checked(quotation, "altered", best[3], *edges, quote)

    def _holding(self, names: list[_Id], parts: list[Tokens]) -> list[_Id]:
        """The documents that have all letters of each part in a row: others cannot have
        its words.
        """
        letters = [_letters("".join(part.words)) for part in parts]
        return [
            name
            for name in names
            if all(part in self._letters(self._known[name].text) for part in letters)
        ]

    def _with_phrase(self, parts: list[Tokens]) -> list[_Id]:
        """Documents that hold the longest part word for word, which of frequent words alone are not
        the best ones.
        """
        words = " ".join(max(parts, key=lambda part: len(part.words)).words)
        if not any(map(str.isalnum, words)):
            return []
        phrase: dict[str, Any] = {
            "mode": "lexical",
            "operators": True,
            "filter": self._filter,
            "fold": False,
        }
        names = [
            self._name(hit)
            for hit in self._retriever.search(f'"{words}"', _HITS_PER_QUOTATION, **phrase)
        ]
        self._read(names)
        return names

    def _read(self, names: Collection[_Id]) -> None:
        for index, retriever in self._indexes.items():
            if new := sorted(id for of, id in names if of == index and (of, id) not in self._known):
                self._known |= {
                    (index, document.id): document
                    for document in retriever.get(new, missing_ok=True)
                }

    def _share(self, name: _Id, quote: Tokens, spans: list[tuple[int, int]]) -> float:
        """The share of a quotation's words that a document holds near each other: in some passages,
        if known.
        """
        margin = 2 * quote.stops[-1]  # a quotation may begin before a passage, and end behind it
        text = self._known[name].text
        if not spans:
            return self._text(name).nearest(quote)[0]
        return max(
            _Text(text[max(0, start - margin) : stop + margin]).nearest(quote)[0]
            for start, stop in spans
        )

    def _text(self, name: _Id) -> _Text:
        return self._texts(self._known[name].text)

    def _checked(
        self,
        quotation: Quotation,
        verdict: QuoteVerdict,
        name: _Id,
        first: int,
        stop: int,
        quote: Tokens | None = None,
    ) -> QuoteCheck:
        document, text = self._known[name], self._text(name)
        span = text.tokens.starts[first], text.tokens.stops[stop - 1]
        origin = document.origin
        page = None if origin is None or origin.pages is None else origin.pages.at(span[0])
        differences = () if quote is None else tuple(_differences(quote, text, first, stop))
        of_hits = dict(enumerate(map(self._name, self._hits or ()), start=1))
        marks = sorted(quotation.marks, key=lambda mark: of_hits.get(mark) != name)
        return QuoteCheck(
            quotation.text,
            verdict,
            quotation.position,
            id=name[1],
            span=span,
            stored=document.text[slice(*span)],
            differences=differences,
            page=page and page.number,
            place=str(page or ""),
            sha256=None if origin is None else origin.sha256,
            version=self._indexes[name[0]].version,
            mark=next(iter(marks), None),
            index=name[0],
        )


def stands_in(text: str, quote: str, place: Sequence[int]) -> tuple[int, int] | None:
    """Find the words of a quotation in a text: at `place`, its characters, where they stand there,
    else the first.
    """
    start, stop = place
    if quote == text[start:stop]:
        return start, stop
    stored, words = _Text(text), tokens_of(quote)
    edges = stored.find(words) if words.words else None
    return (
        None
        if edges is None
        else (stored.tokens.starts[edges[0]], stored.tokens.stops[edges[1] - 1])
    )


def _find_parts(text: _Text, parts: list[Tokens]) -> tuple[int, int] | None:
    """The tokens `[first, stop)` that hold all parts of a quotation in order; None:
    there are none.
    """
    first, stop = None, 0
    for part in parts:
        place = text.find(part, stop)
        if place is None:
            return None
        first, stop = place[0] if first is None else first, place[1]
    return None if first is None else (first, stop)


def _shares_contents(text: _Text, quote: Tokens, first: int, stop: int) -> bool:
    """Whether at least half of a quotation's longer words are there: short ones are in
    every text.
    """
    longer = [
        word for word in quote.words if len(word) > 3 and not word[0].isdigit()
    ] or quote.words
    words_here = set(text.tokens.words[first:stop])
    return sum(word in words_here for word in longer) * 2 >= len(longer)


def _with_ends(text: _Text, quote: Tokens, first: int, stop: int) -> tuple[int, int]:
    """Tokens, and those beside them that stand in place of words that a quotation begins or ends
    with.
    """
    stored = text.tokens.words[first:stop]
    blocks = SequenceMatcher(None, quote.words, stored, autojunk=False).get_matching_blocks()
    begin, end = blocks[0], blocks[-2:][0]  # the very last one is empty
    missing = len(quote.words) - end.a - (len(stored) - end.b)
    return max(0, first - max(0, begin.a - begin.b)), min(
        len(text.tokens.words), stop + max(0, missing)
    )


def _differences(quote: Tokens, text: _Text, first: int, stop: int) -> Iterator[tuple[str, str]]:
    stored = text.tokens.words[first:stop]
    for kind, a, b, c, d in SequenceMatcher(
        None, quote.words, stored, autojunk=False
    ).get_opcodes():
        if kind != "equal":
            yield " ".join(quote.words[a:b]), " ".join(stored[c:d])
