"""Lines of a PDF page mended by where their characters stand: cells of one character, drop caps,
text across the page.
"""

from __future__ import annotations

import math
import re
from collections import Counter
from itertools import pairwise, takewhile
from typing import TYPE_CHECKING, NamedTuple

from aveyb_retrieval.documents.readers.pdf_text import (
    PlacedText,
    angle_of,
    apart,
    apart_along,
    font_size,
    from_units,
    in_units,
    placed_characters,
    usual_turn,
)

if TYPE_CHECKING:
    from collections.abc import Iterator

    import pypdfium2

_LINE = re.compile(r"[^\r\n]+")
_BREAK = re.compile(r"(?:\r?\n)+")
_INITIAL = re.compile(r"(?<!\w)[^\W\d_]")
_EAST_ASIAN = re.compile(r"[\u2e80-\uffdc]")  # scripts that are also written downwards
_SLANT = math.radians(10)  # of text across the page, against the lines and against a right angle
_ONE_BASELINE_SHARE = 0.15  # of the size of type: characters of one line differ by less
_SAME_HEIGHT_POINTS = 0.5  # points between characters of one row
_NEXT_ROW_SHARE = 0.8  # of the size of type: a row below is lower by so much
_DROP_CAP_FACTOR = 1.6  # times the size of the text that a drop cap begins
_CAPITAL_HEIGHT_SHARE = 0.7  # of the size of type


class PageLines(NamedTuple):
    """The text of a page in lines, what is set across it at a slant, a line each, and the direction
    of its lines, in radians.
    """

    flow: PlacedText
    across: list[str]
    direction: float


class _Line(NamedTuple):
    start: int
    stop: int
    first: int  # its first letter or digit
    last: int  # and its last one


class _Edit(NamedTuple):
    """A stretch of a text that is replaced; `place` measures the replacement."""

    start: int
    stop: int
    text: str
    place: int


def page_lines(words: pypdfium2.PdfTextPage) -> PageLines:
    """Return the text of a page as PDFium finds it, its lines mended."""
    text = in_units(words.get_text_range())
    if words.count_chars() != len(text):
        return PageLines(PlacedText(from_units(text), None), [], 0.0)
    lines = _lines(text)
    direction = (usual_turn(words, [line.first for line in lines]) or 0) * math.pi / 2
    slanted = _slanted(words, text, lines)
    edits = [_Edit(start, stop, "", start) for start, stop in slanted]
    begins = {start for start, _ in slanted}
    lines = [line for line in lines if line.start not in begins]
    edits += _drop_caps(words, text, lines, direction)
    edits += _cells(words, text, lines, direction)
    across = [from_units(" ".join(text[start:stop].split())) for start, stop in slanted]
    return PageLines(_edited(text, edits), across, direction)


def is_turned(words: pypdfium2.PdfTextPage, place: int, direction: float) -> bool:
    """Whether a character does not run in a direction, in radians."""
    return abs(math.remainder(angle_of(words, place) - direction, math.tau)) > _SLANT


def _lines(text: str) -> list[_Line]:
    lines: list[_Line] = []
    for match in _LINE.finditer(text):
        start, stop = match.span()
        first = next((place for place in range(start, stop) if text[place].isalnum()), None)
        if first is not None:
            last = next(place for place in range(stop - 1, start - 1, -1) if text[place].isalnum())
            lines.append(_Line(start, stop, first, last))
    return lines


def _past_break(text: str, place: int) -> int:
    line_end = _BREAK.match(text, place)
    return line_end.end() if line_end else place


def _slanted(words: pypdfium2.PdfTextPage, text: str, lines: list[_Line]) -> list[tuple[int, int]]:
    """Where text at a slant begins and ends, a line or an end of one, unless most of the page is
    slanted.
    """

    def is_slanted(place: int) -> bool:
        return abs(math.remainder(angle_of(words, place), math.pi / 2)) > _SLANT

    def goes_on(place: int) -> bool:
        return not text[place].isalnum() or is_slanted(place)

    stretches: list[tuple[int, int]] = []
    for line in lines:
        at_first, at_last = is_slanted(line.first), is_slanted(line.last)
        if at_first and at_last:
            stretches.append((line.start, _past_break(text, line.stop)))
        elif at_first:
            run = list(takewhile(goes_on, range(line.first, line.stop)))
            stretches.append((line.start, run[-1] + 1))
        elif at_last:
            run = list(takewhile(goes_on, range(line.last, line.start, -1)))
            stretches.append((run[-1], line.stop))
    length = sum(stop - start for start, stop in stretches)
    return stretches if 2 * length < sum(line.stop - line.start for line in lines) else []


def _drop_caps(
    words: pypdfium2.PdfTextPage, text: str, lines: list[_Line], direction: float
) -> list[_Edit]:
    """Move each drop cap before the line that it begins."""
    sizes = {line: font_size(words, line.first) for line in lines}
    lengths: Counter[float] = Counter()
    for line, size in sizes.items():
        lengths[size] += line.stop - line.start
    if not lengths:
        return []
    usual = lengths.most_common(1)[0][0]
    edits: list[_Edit] = []
    for cap in _capitals(words, text, lines, direction):
        cap_size = font_size(words, cap)
        if cap_size < _DROP_CAP_FACTOR * usual:
            continue
        if (
            text[cap + 1 : cap + 2].isalnum()
            and font_size(words, cap + 1) > cap_size / _DROP_CAP_FACTOR
        ):
            continue  # a word in large type
        begun = [line for line in lines if _begins(words, cap, line, sizes[line])]
        if not begun:
            continue
        line = max(begun, key=lambda each: apart(words, cap, each.first)[1])
        if line.start == cap + 1:
            continue  # they are one word already
        stop = _past_break(text, cap + 1)
        edits.append(_Edit(cap, stop, "", cap))
        edits.append(_Edit(line.start, line.start, text[cap], line.first))
    return edits


def _capitals(
    words: pypdfium2.PdfTextPage, text: str, lines: list[_Line], direction: float
) -> Iterator[int]:
    """Where a drop cap may stand: at an end of a line, or in a line that goes up or down."""
    for line in lines:
        places = {line.first, line.last}
        if not _is_one_row(words, line, direction):
            places |= {match.start() for match in _INITIAL.finditer(text, line.start, line.stop)}
        yield from sorted(
            place for place in places if text[place].isupper() and _INITIAL.match(text, place)
        )


def _begins(words: pypdfium2.PdfTextPage, cap: int, line: _Line, size: float) -> bool:
    """Whether a line of that size may go on with the word of a drop cap."""
    cap_size = font_size(words, cap)
    along, height = apart(words, cap, line.first)
    if line.first == cap or cap_size < _DROP_CAP_FACTOR * size or not 0 < along <= cap_size + size:
        return False
    tops = abs(height + _CAPITAL_HEIGHT_SHARE * (size - cap_size))
    return tops <= _CAPITAL_HEIGHT_SHARE * size or abs(height) <= _ONE_BASELINE_SHARE * size


def _cells(
    words: pypdfium2.PdfTextPage, text: str, lines: list[_Line], direction: float
) -> list[_Edit]:
    """Put cells of one character into the rows that they stand in."""
    edits: list[_Edit] = []
    for match in _BREAK.finditer(text):
        before, behind = match.start() - 1, match.end()
        if before < 0 or behind >= len(text) or not (text[before] + text[behind]).isalnum():
            continue
        alone = not text[before - 1 : before].strip() or not text[behind + 1 : behind + 2].strip()
        if alone and _is_right_of(words, before, behind):
            edits.append(_Edit(match.start(), match.end(), " ", before))
    for line in lines:
        if not _is_one_row(words, line, direction):
            edits += _cells_below(words, text, line, direction)
    return edits


def _cells_below(
    words: pypdfium2.PdfTextPage, text: str, line: _Line, direction: float
) -> list[_Edit]:
    """Divide a line of several rows before and behind each row of one character."""
    if _EAST_ASIAN.search(text, line.start, line.stop):
        return []
    letters = [place for place in range(line.start, line.stop) if text[place].isalnum()]
    cuts = [
        (before, behind)
        for before, behind in pairwise(letters)
        if not text[before + 1 : behind].strip() and _is_below(words, before, behind, direction)
    ]
    begins = [line.first, *(behind for _, behind in cuts)]
    ends = [*(before for before, _ in cuts), line.last]
    single = [begin == end for begin, end in zip(begins, ends, strict=True)]
    return [
        _Edit(before + 1, behind, "\n", before)
        for (before, behind), alone in zip(cuts, map(any, pairwise(single)), strict=True)
        if alone
    ]


def _is_one_row(words: pypdfium2.PdfTextPage, line: _Line, direction: float) -> bool:
    return abs(apart_along(words, line.first, line.last, direction)[1]) < _SAME_HEIGHT_POINTS


def _is_below(words: pypdfium2.PdfTextPage, before: int, behind: int, direction: float) -> bool:
    """Whether a character stands in a row below the one before, and not to the right of it."""
    along, height = apart_along(words, before, behind, direction)
    if height > -_SAME_HEIGHT_POINTS or along > _SAME_HEIGHT_POINTS:
        return False
    return height < -_NEXT_ROW_SHARE * font_size(words, before)


def _is_right_of(words: pypdfium2.PdfTextPage, before: int, behind: int) -> bool:
    along, height = apart(words, before, behind)
    return along > 0 and abs(height) < _ONE_BASELINE_SHARE * font_size(words, before)


def _edited(text: str, edits: list[_Edit]) -> PlacedText:
    if not edits:
        return placed_characters(text, range(len(text)))
    parts: list[str] = []
    places: list[int] = []
    position = 0
    for edit in sorted(edits):
        if edit.start < position:
            continue
        parts += [text[position : edit.start], edit.text]
        places += [*range(position, edit.start), *[edit.place] * len(edit.text)]
        position = edit.stop
    places += range(position, len(text))
    return placed_characters("".join([*parts, text[position:]]), places)
