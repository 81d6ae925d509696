"""What Tesseract read of a picture as a text: lines, paragraphs, and how certain the words are."""

from __future__ import annotations

import math
import re
from itertools import groupby, pairwise
from typing import TYPE_CHECKING, Any, NamedTuple

if TYPE_CHECKING:
    from collections.abc import Sequence

_SURE_WORD_PERCENT = 60  # percent of certainty
_MIN_WORD_LETTERS = 3  # of a word that says that a picture shows text
_SENTENCE_END = re.compile(r"""[.!?:;\u2026\u3002\uff01\uff1f]["'\u201d\u2019)\]]*\Z""")
_LIST_ITEM = re.compile(r"(?:[-\u2022*]|\(?(?:\d{1,3}|[A-Za-z])[.)])\s")
_DIVIDED = re.compile(r"(?<=[^\W\d_])-\Z")
TABLE_COLUMNS = (  # of Tesseract, that make a word
    "text",
    "conf",
    "block_num",
    "par_num",
    "line_num",
    "left",
    "top",
    "width",
    "height",
)
DIVISION = "\x02"  # what stands for the hyphen of a divided word, as in the text of a PDF
_SAME_EDGE_SHARE = 0.03  # of a picture's width: lines of one column begin within
_WIDE_LINE_SHARE = 0.8  # of the longest line of its column: a sentence goes on behind such a line


class PictureWord(NamedTuple):
    """A word of a picture, its certainty in percent, and its place.

    `line` numbers its block, paragraph and line. `box` has left, top, right and bottom in pixels of
    the picture as it lies, `reading_box` in those of the picture as it is read.
    """

    text: str
    certainty: float
    line: tuple[int, int, int]
    box: tuple[int, int, int, int]
    reading_box: tuple[int, int, int, int]

    @classmethod
    def of_row(cls, row: Sequence[Any], turn: int, size: tuple[int, int]) -> PictureWord:
        """Make a word of the `TABLE_COLUMNS` of a row of Tesseract's table.

        The picture of that size, `(width, height)`, was turned by so many degrees clockwise before
        it was read. Raises ValueError: a number is none.
        """
        text, certainty = str(row[0]).strip(), float(row[1])
        if not math.isfinite(certainty):
            raise ValueError(f"a certainty of {certainty}")
        block, paragraph, line, left, top, width, height = map(int, row[2:])
        box = (left, top, left + width, top + height)
        lying = _turned_back(box, turn, size)
        return cls(text, certainty, (block, paragraph, line), lying, box)

    @property
    def letters(self) -> int:
        """How many letters and digits it has."""
        return sum(map(str.isalnum, self.text))

    @property
    def is_sure(self) -> bool:
        """Whether it is read with some certainty."""
        return self.certainty >= _SURE_WORD_PERCENT


def _turned_back(
    box: tuple[int, int, int, int], turn: int, size: tuple[int, int]
) -> tuple[int, int, int, int]:
    """A rectangle of a picture that was turned clockwise, as it lies in the picture itself."""
    left, top, right, bottom = box
    width, height = size
    if turn == 90:
        return top, height - right, bottom, height - left
    if turn == 180:
        return width - right, height - bottom, width - left, height - top
    if turn == 270:
        return width - bottom, left, width - top, right
    return box


class PictureText(NamedTuple):
    """The text of a picture, "" where it shows none, the mean certainty of its words in percent,
    and these.
    """

    text: str
    certainty: float
    words: list[PictureWord]


class _Line(NamedTuple):
    text: str
    paragraph: tuple[int, int]
    left: int
    right: int


def picture_text(words: list[PictureWord]) -> PictureText:
    """Return words as a text; none where not one word of some length is sure."""
    if not any(word.is_sure and word.letters >= _MIN_WORD_LETTERS for word in words):
        return PictureText("", 0.0, words)
    certainty = sum(word.certainty for word in words) / len(words)
    return PictureText(_joined(_lines(words)), round(certainty, 1), words)


def _lines(words: list[PictureWord]) -> list[_Line]:
    lines: list[_Line] = []
    for place, group in groupby(words, key=lambda word: word.line):
        line = list(group)
        text = " ".join(word.text for word in line)
        left = min(word.reading_box[0] for word in line)
        right = max(word.reading_box[2] for word in line)
        lines.append(_Line(text, place[:2], left, right))
    return lines


def _joined(lines: list[_Line]) -> str:
    """Lines as paragraphs; a blank line that cuts a sentence is left out."""
    width = max(line.right for line in lines)
    parts = [lines[0].text]
    for line, following in pairwise(lines):
        is_one = line.paragraph == following.paragraph or _goes_on(line, following, lines, width)
        if is_one and _DIVIDED.search(line.text) and following.text[:1].islower():
            parts[-1] = parts[-1][:-1] + DIVISION
        parts += ["\n" if is_one else "\n\n", following.text]
    return "".join(parts)


def _goes_on(line: _Line, following: _Line, lines: list[_Line], width: int) -> bool:
    """Whether a sentence goes on over the end of a paragraph that Tesseract sees."""
    if _SENTENCE_END.search(line.text) or _LIST_ITEM.match(following.text):
        return False
    if following.text[:1].islower():
        return True
    column = [
        other.right - other.left
        for other in lines
        if abs(other.left - line.left) <= _SAME_EDGE_SHARE * width
    ]
    return len(column) > 2 and line.right - line.left >= _WIDE_LINE_SHARE * max(column)


def ocr_metadata(certainties: dict[int, float]) -> dict[str, Any]:
    """Metadata of the pages that OCR has read, by their numbers, with their mean certainties."""
    if not certainties:
        return {}
    pages = sorted(certainties)
    return {"ocr_pages": pages, "ocr_certainty": [certainties[page] for page in pages]}
