"""Where the headings, paragraphs and sentences of a plain or Markdown text begin.

Sentences are found by sentencex, paragraph by paragraph. It is compiled, gives character offsets, has abbreviations and
the stops of Chinese, Japanese and Hindi, and what it finds does not change when a text goes on behind it. Of the others
tried, pysbd took a thousand times as long and blingfire has had no release since 2021. Headings and list items are a
few rules of our own: a Markdown parser would be too strict, for many texts are not Markdown.
"""

from __future__ import annotations

import re
from dataclasses import dataclass
from typing import TYPE_CHECKING, NamedTuple

import numpy as np
import sentencex

if TYPE_CHECKING:
    from collections.abc import Iterator

HEADING, PARAGRAPH, SENTENCE = 3, 2, 1

_BLANKS = re.compile(r"\s*")
_FENCE = re.compile(r"\s{0,3}(`{3,}(?=[^`]*\Z)|~{3,})(.*)", re.DOTALL)
_MARKDOWN_HEADING = re.compile(r"\s{0,3}#{1,6}[ \t](.*)")
# Cut off afterwards: an expression that asks for the last word takes n^2.
_HEADING_TAIL = "#" + "".join(filter(str.isspace, map(chr, range(0x3001))))
_UNDERLINE = re.compile(r"\s{0,3}([-=~^\"*+#])\1{2,}\s*\Z")
_ITEM = re.compile(r"\s*(?:[-*+\u2022\u2023\u2013]|\(?(?:\d{1,3}|[A-Za-z]|[ivx]{1,4})[.)])[ \t]+\S|\s*\|")
_NUMBERED = re.compile(
    r"(?:\d+(?:\.\d+)*\.?|[IVXLC]+\.|[A-Z]\.|§+ ?\d[\d.]*|"
    r"(?:chapter|section|article|part|appendix|annex|schedule)\b[ \d.ivxlca-z]{0,9}[.:]?)\s+[^\W\d_]|"
    r"第.{1,8}[章节節条條編]",
    re.IGNORECASE,
)
_NO_HEADING_END = tuple(".!?,;:…。！？，；：、।-")  # noqa: RUF001  # stops of other scripts
_HEADING_CHARACTERS, _HEADING_WORDS = 90, 12
_LONG_LINE = 160  # no text is wrapped beyond it: where a longer line ends, a paragraph ends
_LARGEST_PART = 1 << 15  # characters given to sentencex at once; unpaired quotes cost it their number's square


class Heading(NamedTuple):
    """A heading: the characters `[start, stop)` of its lines, and its words."""

    start: int
    stop: int
    words: str


@dataclass(frozen=True)
class Outline:
    """What a text consists of.

    places: int64 `[n]`, ascending: the characters at which headings, paragraphs and sentences begin. A heading goes
        with what follows it: where a paragraph begins right behind a heading is no place.
    kinds: int64 `[n]`: HEADING, PARAGRAPH or SENTENCE (also list items and rows of tables).
    headings: ascending.
    """

    places: np.ndarray
    kinds: np.ndarray
    headings: list[Heading]


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
        else:
            places += ((place, SENTENCE) for place in _sentences(text, start, stop))
    table = np.array(places, dtype=np.int64).reshape(-1, 2)
    return Outline(table[:, 0], table[:, 1], headings)


Block = tuple[int, int, int, "str | None"]
"""Characters [start, stop), kind, and the words of a heading."""


def _blocks(lines: list[str]) -> Iterator[Block]:
    """The headings, paragraphs and list items of a text, in order."""
    block: Block | None = None
    position = number = 0
    blank_before, long_before, fenced = True, False, ""  # the mark that a listing began with
    while number < len(lines):
        line = lines[number]
        start = position + len(line) - len(line.lstrip())
        heading, used = (None, 1) if fenced else _heading(lines, number, blank_before)
        stop = position + sum(map(len, lines[number : number + used]))
        if line.isspace():
            blank_before = True
        else:
            before, fenced = fenced, _listing(line, fenced)
            kind = 0
            if heading is not None:
                kind = HEADING
            elif blank_before or long_before or (fenced and not before):
                kind = PARAGRAPH
            elif not before and _ITEM.match(line):
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
            blank_before, long_before = heading is not None, len(line) > _LONG_LINE
        position, number = stop, number + used
    if block is not None:
        yield block


def _listing(line: str, mark: str) -> str:
    """The mark of the listing that goes on behind a line, given that of the one the line is in; "" for none."""
    fence = _FENCE.match(line)
    if fence is None:
        return mark
    if not mark:
        return fence[1]
    return "" if fence[1].startswith(mark) and not fence[2].strip() else mark


def _heading(lines: list[str], number: int, blank_before: bool) -> tuple[str | None, int]:
    """The words of the heading that begins at a line, or None, and how many lines it takes."""
    line = lines[number]
    if (found := _MARKDOWN_HEADING.match(line)) and (marked := found[1].rstrip(_HEADING_TAIL).lstrip(" \t")):
        return marked, 1
    following = lines[number + 1] if number + 1 < len(lines) else ""
    if not blank_before or not following or _FENCE.match(line):
        return None, 1
    words = line.strip()
    if _UNDERLINE.match(line):  # above and below
        below = lines[number + 2] if number + 2 < len(lines) else ""
        both = _UNDERLINE.match(below) is not None and _could_be_heading(following.strip())
        return (following.strip(), 3) if both else (None, 1)
    if not _could_be_heading(words):
        return None, 1
    if _UNDERLINE.match(following):
        return words, 2
    alone = following.isspace() and number + 2 < len(lines)
    return (words, 1) if alone and _looks_like_heading(words) else (None, 1)


def _could_be_heading(words: str) -> bool:
    short = len(words) <= _HEADING_CHARACTERS and len(words.split()) <= _HEADING_WORDS
    return short and any(map(str.isalpha, words)) and not words.startswith(("|", "<"))


def _looks_like_heading(words: str) -> bool:
    """Whether a short line between blank lines is numbered, in capitals, or In Title Case."""
    if words.endswith(_NO_HEADING_END):
        return False
    if _NUMBERED.match(words) or words.isupper():
        return True
    long_words = [word for word in words.split() if len(word) > 3]
    return words[0].isupper() and all(word[0].isupper() or not word[0].isalpha() for word in long_words)


def _sentences(text: str, start: int, stop: int) -> Iterator[int]:
    """Where the second and all later sentences of the characters [start, stop) begin."""
    while start < stop:
        end = min(start + _LARGEST_PART, stop)
        part = text[start:end]
        begins = [found["start_index"] for found in sentencex.get_sentence_boundaries("en", part)]
        begins = [_BLANKS.match(part, begin).end() for begin in begins[1:]]  # type: ignore[union-attr]  # it always matches
        begins = [begin for begin in begins if begin < len(part)]
        yield from (start + begin for begin in begins)
        # a sentence that is cut by the part's end is looked at again with what follows
        start = start + begins[-1] if begins and end < stop else end
