"""The outline of a plain or Markdown text, and passages: runs of its whole sentences.

Sentences are found by sentencex, paragraph by paragraph. It is compiled, gives character offsets,
has abbreviations and the stops of Chinese, Japanese and Hindi, and what it finds does not change
when a text goes on behind it. Of the others tried, pysbd took a thousand times as long and
blingfire has had no release since 2021. Headings and list items are a few rules of our own: a
Markdown parser would be too strict, for many texts are not Markdown.

Passages are cut from a text whose tokens are given by their offsets, from left to right. From where
a passage begins, the next one begins at the best place within reach:

    a heading                        at least a quarter of `tokens` away
    a paragraph                      at least half
    a sentence, list item, table row at least a quarter
    a line, a clause, a word         at least half (of a sentence that is too long)
    a character                      only inside a word that is too long

and of the best kind the farthest one. Where a mail begins to repeat (a quotation, a signature), the
next one begins in any case. So a passage has at most `tokens` tokens, beside what it shares with
the one before, and all but rare ones have a quarter of that or more; the last cut leaves as much
behind it. A choice depends on the text up to a passage's length ahead, so a text that grows keeps
its passages up to the one before last. White space and prompts are not counted. Words and
characters are those of Unicode's annex 29, from the package regex. What each rule looks at is
bounded, so the time grows linearly with the text.
"""

from __future__ import annotations

import re
import unicodedata
from bisect import bisect_left, bisect_right
from dataclasses import dataclass, replace
from itertools import pairwise
from typing import TYPE_CHECKING, Literal, NamedTuple

import numpy as np
import regex
import sentencex

from aveyb_retrieval.encoder.text.quoting import repeat_starts
from aveyb_retrieval.errors import ConfigError

if TYPE_CHECKING:
    from collections.abc import Iterable, Iterator

HEADING, PARAGRAPH, SENTENCE = 3, 2, 1
WITHIN = " > "  # between a heading and a caption within it

_BLANKS = re.compile(r"\s*")
_WIDE_BLANK = re.compile(r"[^\S\x00-\x7f]")
_FENCE = re.compile(r"\s{0,3}(`{3,}(?=[^`]*\Z)|~{3,})(.*)", re.DOTALL)
_MARKDOWN_HEADING = re.compile(r"\s{0,3}#{1,6}[ \t](.*)")
_COMMENT_END, _INDENTED = "-->", "indented"  # what ends a listing without a fence
_DIRECTIVE = re.compile(r"\.\. (?:code|code-block|sourcecode|parsed-literal)::")
_UNDERLINE = re.compile(r"\s{0,3}([-=~^\"*+#])\1{2,}\s*\Z")
_ITEM = re.compile(
    r"\s*(?:[-*+\u2022\u2023\u2013]|\(?(?:\d{1,3}|[A-Za-z]|[ivx]{1,4})[.)])[ \t]+\S|\s*\|"
)
_DIVISIONS = (  # of contracts and statutes, before their number
    "kapitel|abschnitt|artikel|anlage|chapitre|annexe|titre|cap[ií]tulo|secci[oó]n|se[cç][aã]o|"
    "art[ií]culo|artigo|anexo|capitolo|articolo|sezione|hoofdstuk|rozdzia[lł]|"
    "стать[яи]|глава|раздел|приложение|стаття|розділ|άρθρο|κεφάλαιο|"
    "madde|bölüm|المادة|الفصل|अनुच्छेद|धारा"
)
_NUMBERED = re.compile(
    r"(?:\d+(?:\.\d+)*\.?|[IVXLC]+\.|[A-Z]\.|§+ ?\d[\d.]*|"
    r"(?:chapter|section|article|part|appendix|annex|schedule)\b["
    r" \d.ivxlca-z]{0,9}[.:]?)\s+[^\W\d_]|"
    rf"(?:{_DIVISIONS})\s+(?:\d[\d.]*|[ivxlc]+)\b[.:]?(?:\s|\Z)|"
    r"第.{1,8}[章节節条條編]",
    re.IGNORECASE,
)
_LABEL = re.compile(  # above its title
    r"(?:(?:chapter|section|article|part|appendix|annex|schedule|exhibit|kapitel|abschnitt|artikel|teil|§+)\s?"
    r"[\divxlc]+|exhibit [a-z])[.:]?",
    re.IGNORECASE,
)
_CAPTION = re.compile(  # at the head of its paragraph: "5.4 Change of Control. Either party may"
    r"\s*((?:(?:section|article|clause|schedule|§+)\s?\d[\d.]{0,9}[.:]?|\d{1,3}(?:\.\d{1,3})+\.?|\d{1,3}[.)])["
    r" \t]+"
    r"([^\W\d_][^.:\n]{1,89}))[.:](?:\s+(?=\S)|\s*\Z)",
    re.IGNORECASE,
)
_CLAUSE_NUMBER = re.compile(
    r"\s*((?:section|article|clause|§+)?\s?\d{1,3}(?:\.\d{1,3})*)[.)]?(?=[ \t]+[^\W\d_])",
    re.IGNORECASE,
)
_DOTTED = re.compile(r"\s*\d{1,3}(?:\.\d{1,3})+\.?[ \t]+[^\W\d_]")
# what is numbered, and its number
_NUMBER = re.compile(r"((?:[^\W\d_]{1,20}|§{1,2})?)\s?(\d{1,9}(?:\.\d{1,9}){0,9})", re.IGNORECASE)
_SHORT_CAPTION_WORDS = 4  # words in sentence case
_NO_HEADING = re.compile(r"\d/\d|\d{5}|/s/|@|://")  # dates, addresses, signatures
_OF_MAIL = re.compile(r"-- |>|[^\n]*:\s*\n>")  # a signature, or what a mail answers
_NO_HEADING_END = tuple(".!?,;:…。！？，；：、।-")  # stops of other scripts  # noqa: RUF001
_ENDS = tuple(".!?:;。！？”\"')*_|…")  # of a sentence, or of what quotes or marks it  # noqa: RUF001
_MAX_TOKEN_CHARACTERS = 20  # characters; a longer one counts as several
_HEADING_CHARACTERS, _HEADING_WORDS = 90, 12
_LONG_LINE_CHARACTERS = (
    160  # no text is wrapped beyond it: where a longer line ends, a paragraph ends
)
# characters given to sentencex at once; unpaired quotes cost it their number's square
_MAX_PART_CHARACTERS = 1 << 15


class Heading(NamedTuple):
    """A heading: its characters `[start, stop)`, its words, and whether it is a caption within a
    paragraph's line.
    """

    start: int
    stop: int
    words: str
    caption: bool = False


@dataclass(frozen=True)
class Outline:
    """What a text consists of.

    places: int64 `[n]`, ascending: the characters at which headings, paragraphs and sentences
        begin. A heading goes with what follows it: where a paragraph begins right behind a heading
        is no place.
    kinds: int64 `[n]`: HEADING, PARAGRAPH or SENTENCE (also list items and rows of tables).
    headings: ascending.
    """

    places: np.ndarray
    kinds: np.ndarray
    headings: list[Heading]


def names_of(headings: Iterable[Heading], above: str = "") -> list[str]:
    """Return how headings are cited, given the one `above`: a caption behind the line that it is
    within, if any.

    A clause's bare number stands behind the caption that it is a part of.
    """
    names, within, over = [], above.partition(WITHIN)[0], above.rpartition(WITHIN)
    held = over[0] if _NUMBER.fullmatch(over[2]) else above
    for each in headings:
        within, number = within if each.caption else each.words, _NUMBER.match(each.words)
        inside = each.caption and within and not _beside(_NUMBER.match(within), number)
        name = f"{within}{WITHIN}{each.words}" if inside else each.words
        if number is None or number[0] != each.words:
            held = name
        elif (caption := _NUMBER.match(held.rpartition(WITHIN)[2])) and number[2].startswith(
            f"{caption[2]}."
        ):
            name = f"{held}{WITHIN}{each.words}"
        names.append(name)
    return names


def _beside(first: re.Match[str] | None, second: re.Match[str] | None) -> bool:
    """Whether what is numbered alike is no part of the first: 5 and 5.1 of 4, § 4 of § 3."""
    if first is None or second is None or first[1].casefold() != second[1].casefold():
        return False
    return not second[2].startswith(f"{first[2]}.")


def outline(text: str) -> Outline:
    """Find the outline of a text, in time that grows linearly with it."""
    places: list[tuple[int, int]] = []
    headings: list[Heading] = []
    behind_heading = False
    for start, stop, kind, heading in _blocks(text.splitlines(keepends=True)):
        if not behind_heading:
            places.append((start, kind))
        behind_heading = heading is not None
        if heading is not None:
            headings.append(Heading(start, stop, heading))
            continue
        line = text[start : min(stop, start + _LONG_LINE_CHARACTERS)]
        if caption := _caption(line) or (headings and _clause(line, headings[-1], kind)):
            headings.append(Heading(start, start + caption.end(), caption[1], caption=True))
            start += caption.end()
        places += ((place, SENTENCE) for place in _sentences(text, start, stop))
    table = np.array(places, dtype=np.int64).reshape(-1, 2)
    return Outline(table[:, 0], table[:, 1], headings)


# characters [start, stop), kind, and the words of a heading
Block = tuple[int, int, int, "str | None"]


def _blocks(lines: list[str]) -> Iterator[Block]:
    """The headings, paragraphs and list items of a text, in order."""
    block: Block | None = None
    position = number = 0
    blank_before, long_before, fenced = True, False, ""  # the mark that a listing began with
    before = ""  # the last line of text, unless it is a heading
    while number < len(lines):
        line = lines[number]
        start = position + len(line) - len(line.lstrip())
        fenced = _open_listing(line, fenced)
        heading, used = (None, 1) if fenced else _heading(lines, number, blank_before, before)
        stop = position + sum(map(len, lines[number : number + used]))
        if line.isspace():
            blank_before = True
        else:
            listed, fenced = fenced, _listing(line, fenced)
            kind = 0
            if heading is not None:
                kind = HEADING
            elif blank_before or long_before or (fenced and not listed):
                kind = PARAGRAPH
            elif not listed and (
                _ITEM.match(line) or (before.endswith(_ENDS) and _starts_clause(line))
            ):
                kind = SENTENCE
            if kind or block is None:
                if block is not None:
                    yield block
                block = start, stop, kind or PARAGRAPH, heading
            else:
                block = block[0], stop, block[2], block[3]
            if heading is not None:
                yield block
                block = None
            blank_before, long_before = heading is not None, len(line) > _LONG_LINE_CHARACTERS
            before = line.strip() if heading is None else ""
        position, number = stop, number + used
    if block is not None:
        yield block


def _open_listing(line: str, mark: str) -> str:
    """The mark of the listing that a line is in; one without a fence ends at the first line that is
    not indented.
    """
    return "" if mark == _INDENTED and not line[0].isspace() else mark


def _listing(line: str, mark: str) -> str:
    """The mark of the listing that goes on behind a line, given that of the one the line is in; ""
    for none.
    """
    if mark == _COMMENT_END:
        return "" if _COMMENT_END in line else mark
    if mark == _INDENTED:  # ends in front of a line that is not indented
        return mark
    fence = _FENCE.match(line)
    if fence is None:
        return mark or _other_listing(line)
    if not mark:
        return fence[1]
    return "" if fence[1].startswith(mark) and not fence[2].strip() else mark


def _other_listing(line: str) -> str:
    """The mark of a comment of HTML or a listing of reStructuredText that begins at a line."""
    if line.lstrip().startswith("<!--") and _COMMENT_END not in line:
        return _COMMENT_END
    is_literal = line.rstrip().endswith("::") and not line[0].isspace()
    return _INDENTED if is_literal or _DIRECTIVE.match(line) else ""


def _without_closing_signs(words: str) -> str:
    """The words of a heading without the signs that close it: those behind a blank ("C#" keeps its
    own).
    """
    words = words.strip()
    shorter = words.rstrip("#")
    return shorter.rstrip() if not shorter or shorter[-1].isspace() else words


def _heading(
    lines: list[str], number: int, blank_before: bool, before: str
) -> tuple[str | None, int]:
    """The words of the heading that begins at a line, or None, and how many lines it takes;
    `before` is above it.
    """
    line = lines[number]
    marked = _MARKDOWN_HEADING.match(line)
    if marked and (words := _without_closing_signs(marked[1])):
        return words, 1
    following = lines[number + 1] if number + 1 < len(lines) else ""
    if not blank_before or not following or _FENCE.match(line):
        return None, 1
    words = line.strip()
    if _UNDERLINE.match(line):  # above and below
        below = lines[number + 2] if number + 2 < len(lines) else ""
        both = _UNDERLINE.match(below) is not None and _could_be_heading(following.strip())
        return (following.strip(), 3) if both else (None, 1)
    title = following.strip()
    alone = number + 2 >= len(lines) or lines[number + 2].isspace()
    if (
        _LABEL.fullmatch(words)
        and alone
        and _could_be_heading(title)
        and not title.endswith(_NO_HEADING_END)
    ):
        return f"{words} {title}", 2
    if not _could_be_heading(words):
        return None, 1
    if _UNDERLINE.match(following):
        return words, 2
    if not following.isspace() or number + 2 >= len(lines) or not _looks_like_heading(words):
        return None, 1
    behind, long = lines[number + 2].lstrip(), _HEADING_CHARACTERS
    goes_on = behind.startswith((",", ";", ". ", ")")) or (
        behind[:1].islower() and len(behind) > long
    )
    signed = _OF_MAIL.match("".join(lines[number + 2 : number + 4]))
    if goes_on or signed or (len(before) > long and not before.endswith(_ENDS)):
        return None, 1  # it is within a sentence, or the name below a mail
    return words.rstrip("."), 1


def _caption(line: str) -> re.Match[str] | None:
    """The numbered heading at the head of a paragraph; its second group is without the number."""
    found = _CAPTION.match(line)
    if found is None or not _could_be_heading(found[2]):
        return None
    # "5.4 Force majeure. Neither party is": a part of a numbered part, and its text follows
    short = (
        len(found[2].split()) <= _SHORT_CAPTION_WORDS
        and found[2][0].isupper()
        and found.end() < len(line)
    )
    return found if _in_capitals(found[2]) or (short and not _ITEM.match(line)) else None


def _starts_clause(line: str) -> bool:
    return _DOTTED.match(line) is not None or _caption(line[:_LONG_LINE_CHARACTERS]) is not None


def _clause(line: str, above: Heading, kind: int) -> re.Match[str] | None:
    """The number of a clause without a caption that follows, or is the first of, the one whose
    heading is above it.

    A plain number may be an item's of a list in the one above: it counts behind a caption, in a
    paragraph of its own.
    """
    found, before = _CLAUSE_NUMBER.match(line), _NUMBER.match(above.words)
    number = _NUMBER.match(found[1].strip()) if found else None
    if number is None or before is None:
        return None
    own, its = ([*map(int, each[2].split("."))] for each in (number, before))
    first = own == [*its, 1]
    follows = (
        number[1].casefold() == before[1].casefold() and [*own[:-1], own[-1] - 1] == its[: len(own)]
    )
    plain = len(own) == 1 and not (above.caption and kind == PARAGRAPH)
    return found if (first or follows) and not plain else None


def _could_be_heading(words: str) -> bool:
    short = len(words) <= _HEADING_CHARACTERS and len(words.split()) <= _HEADING_WORDS
    return short and any(map(str.isalpha, words)) and not words.startswith(("|", "<"))


def _looks_like_heading(words: str) -> bool:
    """Whether a short line between blank lines is numbered, in capitals, or In Title Case."""
    if words.endswith("."):
        caption = _caption(words)
        return caption is not None and caption.end() == len(words)  # "5. Term and Termination."
    if words.endswith(_NO_HEADING_END):
        return False
    return _NUMBERED.match(words) is not None or (
        _in_capitals(words) and not _NO_HEADING.search(words)
    )


def _in_capitals(words: str) -> bool:
    first = [word[0] for word in words.split() if len(word) > 3]
    return words.isupper() or (words[0].isupper() and not any(map(str.islower, first)))


def _sentences(text: str, start: int, stop: int) -> Iterator[int]:
    """Where the second and all later sentences of the characters [start, stop) begin."""
    while start < stop:
        end = min(start + _MAX_PART_CHARACTERS, stop)
        part = text[start:end]
        begins = _boundaries(part)
        begins = [_BLANKS.match(part, begin).end() for begin in begins[1:]]  # type: ignore[union-attr]  # it always matches
        begins = [begin for begin in begins if begin < len(part)]
        yield from (start + begin for begin in begins)
        # a sentence that is cut by the part's end is looked at again with what follows
        start = start + begins[-1] if begins and end < stop else end


def _boundaries(part: str) -> list[int]:
    """Where the sentences of a text begin, by sentencex.

    It panics where an initial stands before a blank of several bytes; there, such blanks are given
    as simple ones.
    """
    for text in (part, _WIDE_BLANK.sub(" ", part)):
        try:
            return [found["start_index"] for found in sentencex.get_sentence_boundaries("en", text)]
        except BaseException as error:  # its class cannot be imported
            if type(error).__name__ != "PanicException":
                raise
    return [0]


DEFAULT_TOKENS = 256
SMALLEST, LARGEST = 16, 8192
_LARGEST_SHARE = 4  # a title takes at most a quarter of a split

# Each begins where a run of blanks does, or where the search does: one that may begin anywhere in
# it takes n^2.
_LINE = regex.compile(
    r"(?:\G|(?<!\s))[^\S\n\r\v\f\x85\u2028\u2029]*+[\n\r\v\f\x85\u2028\u2029]\s*+(?=\S)"
)
_CLAUSE = regex.compile(r"(?:[,;:—–][)\]\"'”’»]*\s+|[，、；：]\s*)(?=\S)")  # other scripts  # noqa: RUF001
_WORD = regex.compile(r"(?:\G|(?<!\s))\s++(?=\S)")
_BETWEEN_WORDS = regex.compile(r"(?w)\b(?=\w)")
_CHARACTER = regex.compile(r"\X")
_MAX_CHARACTER_CODE_POINTS = 4096  # code points

_NUMPY_BATCH_LENGTH = 1 << 20  # characters or tokens that NumPy is given at once
_BLANK = np.array([chr(code).isspace() for code in range(0x3002)])


@dataclass(frozen=True)
class PassageSize:
    """How long passages are.

    Attributes:
        tokens: At most so many tokens in a passage (16 to 8,192), beside `overlap`. One that ends
            at a paragraph has at least half of them, one that ends at a heading or a sentence a
            quarter.
        overlap: A passage begins with the last whole sentences of the one before, up to so many
            tokens (with its last lines or words where a sentence is longer); at most half of
            `tokens`. `passage_overlap` of `build_index`.
        late: Encode passages within their document (True), or one by one (False); None: as the
            model usually does.
        titled: Read the title again at the head of every split (`repeat_title`); None: where the
            model has splits.

    Raises:
        ConfigError: `tokens` or `overlap` is out of range.
    """

    tokens: int = DEFAULT_TOKENS
    overlap: int = 0
    late: bool | None = None
    titled: bool | None = None

    def __post_init__(self) -> None:
        for name, value in (("passage_tokens", self.tokens), ("passage_overlap", self.overlap)):
            if not isinstance(value, int):
                raise ConfigError(f"{name} is {value!r}; it must be a whole number of tokens")
        if not SMALLEST <= self.tokens <= LARGEST:
            raise ConfigError(
                f"passage_tokens is {self.tokens}; it must be from {SMALLEST} to {LARGEST:,}"
            )
        if not 0 <= self.overlap <= self.tokens // 2:
            raise ConfigError(
                f"passage_overlap is {self.overlap}; it must be from 0 to {self.tokens // 2}, half"
                " of passage_tokens"
            )


DEFAULT_SIZE = PassageSize()


@dataclass(frozen=True)
class Cuts:
    """The passages of one text, in order.

    Attributes:
        ranges: int64 `[n, 2]`, tokens `[first, end)`; without overlap each token is in exactly one
            passage.
        spans: int64 `[n, 2]`, characters `[start, end)` of the text, without white space at either
            end.
        headings: the nearest heading above each passage or at its start; "" where there is none.
    """

    ranges: np.ndarray
    spans: np.ndarray
    headings: tuple[str, ...]

    def __len__(self) -> int:
        return len(self.ranges)


def cut_passages(text: str, offsets: np.ndarray, size: PassageSize) -> Cuts:
    """Cut a text into passages, in time that grows linearly with it.

    `offsets`, int32 or int64 `[T, 2]`, are the characters `[start, end)` of `text` that each token
    stands for, ascending. Tokens of a prompt or title before the text have offsets below 1 and
    belong to the first passage.
    """
    if not len(offsets):
        return Cuts(np.zeros((0, 2), np.int64), np.zeros((0, 2), np.int64), ())
    return _Cutter(text, offsets, size).cut()


class _Cutter:
    """One text while it is cut. A place is a character at which a passage can begin.

    The blanks before a place belong, as tokens, to the passage that begins there: `_solid` tells
    where they begin. What is held of a text are its runs of blanks, not its characters.
    """

    def __init__(self, text: str, offsets: np.ndarray, size: PassageSize) -> None:
        self._size = size
        self._stop = max(int(offsets[-1, 1]), 0)  # behind it the text was not read
        # WordPiece forgets accents
        while self._stop < len(text) and unicodedata.combining(text[self._stop]):
            self._stop += 1
        self._text = text[: self._stop]
        self._starts = offsets[:, 0].clip(0).astype(np.int32, copy=False)
        self._blank_starts, self._blank_stops = _blank_runs(self._text)
        self._count = np.zeros(len(offsets) + 1, np.int32)  # counted tokens before each token
        for first in range(0, len(offsets), _NUMPY_BATCH_LENGTH):
            some = offsets[first : first + _NUMPY_BATCH_LENGTH]
            self._count[first + 1 : first + 1 + len(some)] = self._weights(some)
        np.cumsum(self._count, out=self._count)
        self._outline = outline(self._text)
        self._solid_places = self._solid(self._outline.places)
        self._divisions = self._apart(repeat_starts(self._text))

    def _weights(self, offsets: np.ndarray) -> np.ndarray:
        """For how many each token counts: 0 for blanks and prompts, more for very long ones."""
        starts, stops = offsets[:, 0].clip(0), offsets[:, 1].clip(0)
        # words of scripts that a tokenizer does not know are one token each, however long
        length = offsets[:, 1] - offsets[:, 0]
        weight = np.where(
            length > _MAX_TOKEN_CHARACTERS, np.minimum(length // 5, self._size.tokens // 4), 1
        )
        return weight * (self._solid(stops) > starts)

    def _solid(self, places: np.ndarray) -> np.ndarray:
        """Return where the blanks before each place `[n]` begin: the place itself without any."""
        # the last one that begins before it; NumPy would copy the runs for numbers of another type
        run = np.searchsorted(self._blank_starts, places.astype(np.int32)) - 1
        inside = (run >= 0) & (self._blank_stops[run] >= places)
        return np.where(inside, self._blank_starts[run], places)

    def cut(self) -> Cuts:
        begins = list(self._begins())
        firsts = [self._token(begin) for begin in begins]
        ends, stops = [*firsts[1:], len(self._starts)], [*begins[1:], self._stop]
        if self._size.overlap:
            apart = {*self._divisions}
            following = (
                begin if begin in apart else self._overlapping(previous, begin)
                for previous, begin in pairwise(begins)
            )
            begins = [0, *following]
            firsts = [self._token(begin) for begin in begins]
        spans = [self._trimmed(*pair) for pair in zip(begins, stops, strict=True)]
        marks, names = (
            [heading.start for heading in self._outline.headings],
            names_of(self._outline.headings),
        )
        above = [bisect_right(marks, start) - 1 for start, _ in spans]
        headings = tuple(names[i] if i >= 0 else "" for i in above)
        return Cuts(
            np.array([firsts, ends], dtype=np.int64).T, np.array(spans, dtype=np.int64), headings
        )

    def _apart(self, places: Iterable[int]) -> list[int]:
        """Those of some places that have counted tokens on both sides."""
        apart = [0]
        for place in places:
            is_last = self._counted(place) >= int(self._count[-1])
            if self._separates(apart[-1], place) and not is_last:
                apart.append(place)
        return apart[1:]

    def _begins(self) -> Iterator[int]:
        for start, stop in pairwise([0, *self._divisions, self._stop]):
            yield from self._begins_within(start, stop)

    def _begins_within(self, start: int, stop: int) -> Iterator[int]:
        """Where the passages of a part of the text begin."""
        begin: int | None = start
        size = self._size.tokens
        total = int(self._count[-1]) if stop == self._stop else self._counted(stop)
        while begin is not None and (begin == start or begin < stop):
            yield begin
            done = self._counted(begin)
            if total - done <= size:
                return
            # what is left for the last passage is no scrap
            begin = self._next(begin, done, min(done + size, total - size // 4))

    def _next(self, begin: int, done: int, reach: int) -> int | None:
        """The best place behind `begin`, which has `done` counted tokens before it, with at most
        `reach` before it.
        """
        quarter, half = (self._character(done + self._size.tokens // part) for part in (4, 2))
        last = self._character(reach, last=True)
        low, high = np.searchsorted(self._solid_places, [quarter, last + 1])
        places, kinds = self._outline.places[low:high], self._outline.kinds[low:high]
        for kind, nearest in ((HEADING, quarter), (PARAGRAPH, half), (SENTENCE, quarter)):
            fitting = places[(kinds >= kind) & (places >= nearest)]
            if len(fitting):
                return int(fitting[-1])
        return self._inside_sentence(begin, half, last)

    def _inside_sentence(self, begin: int, half: int, last: int) -> int | None:
        window = self._text[begin : last + 64]  # what follows decides whether a word ends here
        for pattern, nearest in (
            *((pattern, half) for pattern in (_LINE, _CLAUSE, _WORD, _BETWEEN_WORDS)),
            *((pattern, begin + 1) for pattern in (_WORD, _BETWEEN_WORDS, _CHARACTER)),
        ):
            for end in reversed([begin + found.end() for found in pattern.finditer(window)]):
                if end < nearest:
                    break
                if self._solid_before(end) <= last and self._separates(begin, end):
                    return end
        rest = _CHARACTER.finditer(self._text, begin, begin + _MAX_CHARACTER_CODE_POINTS)
        return next((found.end() for found in rest if self._separates(begin, found.end())), None)

    def _separates(self, begin: int, place: int) -> bool:
        """Whether there are counted tokens between two places, and a token begins at the second or
        at its blanks.
        """
        token = self._token(place)
        return (
            token < len(self._starts)
            and self._starts[token] <= place
            and self._count[token] > self._counted(begin)
        )

    def _overlapping(self, previous: int, begin: int) -> int:
        """Where the passage at `begin` begins when it repeats the last sentences of the one at
        `previous`.
        """
        first = max(self._character(self._counted(begin) - self._size.overlap), previous + 1)
        places = self._outline.places
        low, high = np.searchsorted(places, [first, begin])
        if low < high:
            return int(places[low])
        found = _LINE.search(self._text, first, begin) or _WORD.search(self._text, first, begin)
        return found.end() if found and found.end() < begin else begin

    def _token(self, place: int) -> int:
        if not place:
            return 0
        return int(np.searchsorted(self._starts, np.int32(self._solid_before(place))))

    def _solid_before(self, place: int) -> int:
        """Return `_solid` of one place."""
        run = bisect_left(self._blank_starts, place) - 1
        if run >= 0 and self._blank_stops[run] >= place:
            return int(self._blank_starts[run])
        return place

    def _counted(self, place: int) -> int:
        return int(self._count[self._token(place)])

    def _character(self, counted: int, *, last: bool = False) -> int:
        """Where the first token begins that has `counted` tokens before it or more; `last`: the
        last with no more.
        """
        side: Literal["left", "right"] = "right" if last else "left"
        token = int(np.searchsorted(self._count, np.int32(counted), side=side)) - last
        return int(self._starts[token]) if token < len(self._starts) else self._stop

    def _trimmed(self, start: int, stop: int) -> tuple[int, int]:
        stop = max(self._solid_before(stop), start)
        following = self._text[start:stop]
        return stop - len(following.lstrip()), stop


def _blank_runs(text: str) -> tuple[np.ndarray, np.ndarray]:
    """Where the runs of blanks of a text begin and end, int32 `[n]` each, and one at its end.

    The last one is empty: an index of -1 asks for it, and it holds no place.
    """
    starts: list[np.ndarray] = []
    stops: list[np.ndarray] = []
    is_blank = False
    for first in range(0, len(text), _NUMPY_BATCH_LENGTH):
        codes = np.frombuffer(
            text[first : first + _NUMPY_BATCH_LENGTH].encode("utf-32-le"), dtype=np.uint32
        )
        blank = _BLANK[codes.clip(max=len(_BLANK) - 1)]
        edges = np.flatnonzero(np.diff(blank, prepend=is_blank))
        starts.append((edges[int(is_blank) :: 2] + first).astype(np.int32))
        stops.append((edges[int(not is_blank) :: 2] + first).astype(np.int32))
        is_blank = bool(blank[-1])
    end = np.array([len(text)], np.int32)
    if is_blank:
        stops.append(end)
    return np.concatenate([*starts, end]), np.concatenate([*stops, end])


def cut_splits(text: str, offsets: np.ndarray, split_size: int) -> Cuts:
    """Let each split of `split_size` tokens be a passage, wherever in a word or
    sentence it ends.
    """
    firsts = np.arange(0, len(offsets), split_size)
    ends = np.minimum(firsts + split_size, len(offsets))
    spans = np.stack([offsets[firsts, 0], offsets[ends - 1, 1]], axis=1).clip(0, len(text))
    return Cuts(np.stack([firsts, ends], axis=1), spans, ("",) * len(firsts))


def repeat_title(
    ids: np.ndarray, cuts: Cuts, n_title: int, split_size: int
) -> tuple[np.ndarray, Cuts]:
    """Put the first tokens of a text again before every run of tokens that begins a split after the
    first.

    Layers never mix tokens of two splits. Behind the first split, a document's title is unknown
    unless a split retrieves the first one, which no split of the embedded model does. Read again,
    it says what every passage is about.

    Args:
        ids: int `[T]`, the tokens of prompt, title and text.
        cuts: its passages.
        n_title: how many tokens prompt and title take; of more than a quarter of a split the first
            are repeated.
        split_size: S.

    Returns:
        The tokens that are read, int `[T + r n]` where r splits follow the first and n tokens are
        repeated, and the same passages in them. Repeated tokens belong to the passage that goes on
        behind them.
    """
    n_title = min(n_title, split_size // _LARGEST_SHARE)
    begins = np.arange(split_size, len(ids), split_size - n_title)
    if not n_title or not len(begins):
        return ids, cuts
    repeated = np.insert(ids, np.repeat(begins, n_title), np.tile(ids[:n_title], len(begins)))
    return repeated, replace(
        cuts, ranges=cuts.ranges + n_title * np.searchsorted(begins, cuts.ranges)
    )
