"""The text of a page of a PDF file by PDFium: lines, divided words, raised marks."""

from __future__ import annotations

import cmath
import ctypes
import math
import re
from collections import Counter
from functools import cache
from itertools import takewhile
from typing import TYPE_CHECKING, Any, NamedTuple

import numpy as np

from aveyb_retrieval.documents.readers.superscripts import MAX_WORD_CHARACTERS, last_word, shifted

if TYPE_CHECKING:
    from collections.abc import Iterator, Sequence

    import pypdfium2

_DIVIDED = re.compile(r"[\x02\u00ad\ufffe](?:\r?\n)?[ \t]*")  # PDFium's sign at the end of a line
_NUMBER_DIVIDED = re.compile(r"(?<=\d-)\r?\n(?=\d)")  # "2019-", "2020"
_WIDE = re.compile(r"(?<!\w)[^\W\d_]\w*(?:-\w+)+")  # words with a hyphen that no line's end divides
# What may be raised or lowered behind a letter, a digit, or a stop, maybe on a line of its own.
# Each begins with what is rare in a text, so that most of it is passed over quickly.
_MARK = re.compile(
    r"[-+\u2212\u20130-9*†‡§](?:(?<=[0-9])[0-9]{0,3}(?:,"
    r" ?[0-9]{1,3})*|(?<=[^0-9*†‡§])[0-9]{1,4}(?:, ?[0-9]{1,3})*|"
    r"(?<=[*†‡§])[*†‡§]{0,2})(?![^\W\d_])"
)
_ENDING = re.compile(r"[0-9](?:\r?\n)?(st|nd|rd|th)(?![^\W\d_])")
_LETTERS = re.compile(r",[a-z\d*†‡§](?:,[a-z\d*†‡§])*(?!\w)")  # behind a first one: "Smith", "a,b"
_MARKED = re.compile(r"[\w.,;:)\]\u201d\u2019\"](?:\r?\n)?\Z")
_NUMBER = re.compile(r"[0-9][0-9]+")
_SMALL_SHARE = 0.85  # of the size of the characters before: a mark is smaller
_RAISED_SHARE = 0.12  # of that size: by so much at least it stands above or below
_SAME_LINE_SHARE = 0.15  # of the size: two characters of one line differ by less
_LEVEL_POINTS = 0.5  # points between characters of one line
_LAST_OF_FIRST_PLANE = "\uffff"
_SAMPLE_CHARACTERS = 16  # characters that say how a text runs


class PlacedText(NamedTuple):
    """The text of a page, and for each of its characters the number that PDFium measures it by.

    None stands for the numbers if PDFium counts otherwise.
    """

    text: str
    places: Sequence[int] | None


def in_units(text: str) -> str:
    """Return a text with each character beyond the first plane as the two halves by which PDFium
    counts it.
    """
    if text.isascii() or max(text) <= _LAST_OF_FIRST_PLANE:
        return text
    data = text.encode("utf-16-le", "surrogatepass")
    return "".join(map(chr, np.frombuffer(data, "<u2").tolist()))


def from_units(text: str) -> str:
    """Return a text of `in_units` as it was."""
    return text.encode("utf-16-le", "surrogatepass").decode("utf-16-le", "replace")


def placed_characters(units: str, places: Sequence[int]) -> PlacedText:
    """Return a text of `in_units` with the places of its characters, by those of their halves."""
    text = from_units(units)
    if len(text) == len(units):
        return PlacedText(units, places)
    kept = [place for unit, place in zip(units, places, strict=True) if not _is_second_half(unit)]
    return PlacedText(text, kept)


def _is_second_half(unit: str) -> bool:
    return "\udc00" <= unit <= "\udfff"


def upright(page: pypdfium2.PdfPage) -> pypdfium2.PdfTextPage:
    """Return the text of a page, turned in memory as most of it runs: PDFium finds few lines that
    do not run right.
    """
    words = page.get_textpage()
    turn = usual_turn(words, range(words.count_chars()))
    if turn is None or 90 * turn == page.get_rotation():
        return words
    words.close()
    page.set_rotation(90 * turn)
    return page.get_textpage()


def usual_turn(words: pypdfium2.PdfTextPage, places: Sequence[int]) -> int | None:
    """Return in which direction most of some characters run, in quarters of a turn; None of none.

    A sample of them is measured.
    """
    step = max(1, len(places) // _SAMPLE_CHARACTERS)
    turns = Counter(round(2 * angle_of(words, place) / math.pi) % 4 for place in places[::step])
    return turns.most_common(1)[0][0] if turns else None


def raw_page_text(words: pypdfium2.PdfTextPage, whole: PlacedText) -> str:
    """Return the text of a page, its lines as they stand, with PDFium's signs of divided words.

    The text whose characters can be measured also has what is off the page: it is taken where
    nothing is.
    """
    inside = words.get_text_bounded()
    unchanged = words.get_text_range()
    return (
        inside
        if inside != unchanged and _letters(inside) != _letters(unchanged)
        else _with_marks(words, whole)
    )


def _letters(text: str) -> str:
    return "".join(text.split()).replace("\x02", "\ufffe")


def _with_marks(words: pypdfium2.PdfTextPage, whole: PlacedText) -> str:
    """Return a text with its raised and lowered digits and signs apart from the words
    before them.
    """
    text, places = whole
    if places is None:
        return text
    parts: list[str] = []
    position = 0
    for start, end, break_before in sorted(
        _candidates(words, text, places), key=lambda one: (one[0], -one[1])
    ):
        if start < position:
            continue
        place = start - break_before
        shift = _shift(words, places[place - 1], places[start]) if place else 0
        if not shift:
            continue
        parts.append(text[position:place])
        parts.append(shifted("".join(parts[-2:])[-40:], text[start:end], shift))
        position = end
        breaks = _break_length(text, end)
        if (
            breaks
            and end + breaks < len(text)
            and _same_line(words, places[place - 1], places[end + breaks])
        ):
            position = end + breaks  # the mark, not the line, has ended
            parts.append("" if text[position].isspace() or not text[position].isalnum() else " ")
    return "".join([*parts, text[position:]])


def _break_length(text: str, start: int) -> int:
    """How many characters end a line at `start`; 0: none does."""
    if text.startswith("\r\n", start):
        return 2
    return 1 if text.startswith("\n", start) else 0


def _candidates(
    words: pypdfium2.PdfTextPage, text: str, places: Sequence[int]
) -> Iterator[tuple[int, int, int]]:
    """Places where a mark may stand: its first and last character, and how many of a line's end are
    before it.
    """
    marks = [mark.span() for mark in _MARK.finditer(text)]
    marks += [ending.span(1) for ending in _ENDING.finditer(text)]
    marks += [(letters.start() - 1, letters.end()) for letters in _LETTERS.finditer(text)]
    level: set[int] = set()  # ends of numbers that stand on the line of what is before them
    for start, end in marks:
        if before := _MARKED.search(text, max(0, start - 3), start):
            if is_level(words, places[before.start()], places[end - 1]):
                level.add(end)
            else:
                yield start, end, start - before.start() - 1
    for number in _NUMBER.finditer(text):  # a power behind its number: 106
        first, end = number.span()
        if end not in level and not is_level(words, places[first], places[end - 1]):
            yield from ((start, end, 0) for start in range(first + 1, min(end, first + 9)))


def is_level(words: pypdfium2.PdfTextPage, first: int, second: int) -> bool:
    """Whether two characters stand on one line across or along the page, which most do: measured
    with little work.
    """
    origin = pdfium_calls().FPDFText_GetCharOrigin
    origin(words.raw, first, *_TO_FIRST)
    origin(words.raw, second, *_TO_SECOND)
    return (
        abs(_Y.value - _SECOND_Y.value) < _LEVEL_POINTS
        or abs(_X.value - _SECOND_X.value) < _LEVEL_POINTS
    )


def _shift(words: pypdfium2.PdfTextPage, before: int, mark: int) -> int:
    """1 where a character is raised above the one before, -1 where it is lowered, else 0."""
    size = font_size(words, before)
    _, height = apart(words, before, mark)
    if (
        not 0 < _RAISED_SHARE * size <= abs(height) <= 1.2 * size
        or font_size(words, mark) > _SMALL_SHARE * size
    ):
        return 0
    return 1 if height > 0 else -1


def _same_line(words: pypdfium2.PdfTextPage, first: int, second: int) -> bool:
    along, height = apart(words, first, second)
    size = font_size(words, first)
    return abs(height) < _SAME_LINE_SHARE * size and 0 < along < 4 * size


def apart(words: pypdfium2.PdfTextPage, first: int, second: int) -> tuple[float, float]:
    """How far a character stands from another one along the line of this and above it,
    in points.
    """
    return apart_along(words, first, second, angle_of(words, first))


def apart_along(
    words: pypdfium2.PdfTextPage, first: int, second: int, direction: float
) -> tuple[float, float]:
    """How far a character stands from another one along a direction, in radians, and above it, in
    points.
    """
    is_level(words, first, second)  # measures both
    turn = cmath.exp(-1j * direction) * complex(
        _SECOND_X.value - _X.value, _SECOND_Y.value - _Y.value
    )
    return turn.real, turn.imag


# Filled anew by each call: one process reads one file at a time.
_X, _Y, _SECOND_X, _SECOND_Y = (ctypes.c_double() for _ in range(4))
_TO_FIRST = ctypes.byref(_X), ctypes.byref(_Y)
_TO_SECOND = ctypes.byref(_SECOND_X), ctypes.byref(_SECOND_Y)


@cache
def pdfium_calls() -> Any:
    """PDFium's functions: an import at each of hundreds of thousands of calls would cost more than
    they do.
    """
    from pypdfium2 import raw

    return raw


def _matrix(words: pypdfium2.PdfTextPage, character: int) -> Any:
    """How a character is turned and enlarged; all zeros where that is not known."""
    matrix = pdfium_calls().FS_MATRIX()
    pdfium_calls().FPDFText_GetMatrix(words, character, ctypes.byref(matrix))
    return matrix


def angle_of(words: pypdfium2.PdfTextPage, character: int) -> float:
    """The direction of a line's text against the x axis, in radians, counter-clockwise."""
    matrix = _matrix(words, character)
    return math.atan2(matrix.b, matrix.a)


def font_size(words: pypdfium2.PdfTextPage, character: int) -> float:
    """The size of a character, to half a point: that of its font, enlarged as the page says."""
    size = float(pdfium_calls().FPDFText_GetFontSize(words, character))
    matrix = _matrix(words, character)
    scale = math.hypot(matrix.b, matrix.d)
    return round(2 * size * (scale if math.isfinite(scale) and scale > 0 else 1.0)) / 2


def join_words(text: str, known: set[str]) -> str:
    """Join words that the end of a line divides.

    The hyphen stays where a digit, a capital or a single letter stands beside it (COVID-19, AB-C77,
    X-ray), and in words that are written so elsewhere; `known` holds the words of the document with
    a hyphen, in lower case.
    """

    def join(end: re.Match[str]) -> str:
        before = last_word(text[max(0, end.start() - MAX_WORD_CHARACTERS) : end.start()])
        behind = "".join(takewhile(str.isalnum, text[end.end() : end.end() + MAX_WORD_CHARACTERS]))
        if not before or not behind:
            return ""
        has_hyphen = (
            before[-1].isdigit()
            or behind[0].isdigit()
            or before[-1].isupper()
            or behind[0].isupper()
            or len(before) == 1
            or len(behind) == 1
            or f"{before}-{behind}".lower() in known
        )
        return "-" if has_hyphen else ""

    text = _DIVIDED.sub(join, text)
    return _NUMBER_DIVIDED.sub("", text) if "-\r\n" in text or "-\n" in text else text


def words_with_hyphen(text: str) -> set[str]:
    """Return the words of a text that hold a hyphen within a line, in lower case."""
    return {word.lower() for part in text.split() if "-" in part for word in _WIDE.findall(part)}
