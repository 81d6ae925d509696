"""Headings of a PDF file without bookmarks: short lines in larger type than most of its text."""

from __future__ import annotations

import ctypes
import math
from collections import Counter
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    import pypdfium2

_LARGER = 1.15  # times the size of most of the text
_LONGEST = 120  # characters of a heading
_MOST = 0.2  # of all characters: where more are in larger type, it is no mark of headings
_LEVELS = 4

Sizes = dict[str, float]
"""The size of type, in points, of the lines of a page, by their letters and digits."""


def letters_of(text: str) -> str:
    """Return the letters and digits of a text, without case."""
    return "".join(filter(str.isalnum, text.casefold()))


def line_sizes(words: pypdfium2.PdfTextPage) -> Sizes:
    """Measure the lines of a page, each by its first letter or digit."""
    sizes: Sizes = {}
    start = 0
    for line in words.get_text_range().split("\n"):
        letters = letters_of(line)
        if letters:
            first = next(number for number, character in enumerate(line) if character.isalnum())
            sizes.setdefault(letters, _size(words, start + first))
        start += len(line) + 1
    return sizes


def _size(words: pypdfium2.PdfTextPage, character: int) -> float:
    """The size of a character, to half a point: that of its font, enlarged as the page says."""
    from pypdfium2 import raw

    matrix = raw.FS_MATRIX()
    size = raw.FPDFText_GetFontSize(words, character)
    if raw.FPDFText_GetMatrix(words, character, ctypes.byref(matrix)):
        scale = math.hypot(matrix.b, matrix.d)
        size *= scale if math.isfinite(scale) and scale > 0 else 1.0
    return round(2 * size) / 2


def mark_by_size(texts: list[str], sizes: list[Sizes]) -> list[str]:
    """Return the texts of pages with lines in larger type as headings in Markdown, the largest at level 1."""
    lengths: Counter[float] = Counter()
    for page in sizes:
        for letters, size in page.items():
            lengths[size] += len(letters)
    if not lengths:
        return texts
    body = lengths.most_common(1)[0][0]
    larger = sorted((size for size in lengths if size >= _LARGER * body), reverse=True)
    if not larger or sum(map(lengths.__getitem__, larger)) > _MOST * lengths.total():
        return texts
    levels = {size: min(rank, _LEVELS) for rank, size in enumerate(larger, start=1)}
    return [_marked(text, page, levels) for text, page in zip(texts, sizes, strict=True)]


def _marked(text: str, sizes: Sizes, levels: dict[float, int]) -> str:
    lines: list[str] = []
    level_before = 0
    for line in text.split("\n"):
        level = levels.get(sizes.get(letters_of(line), 0.0), 0)
        if level and any(map(str.isalpha, line)) and len(line) <= _LONGEST:
            if level == level_before and len(lines[-1]) + len(line) <= _LONGEST:  # a heading of two lines
                lines[-1] = f"{lines[-1].rstrip()} {line.strip()}\n"
            else:
                lines.append(f"\n{'#' * level} {line.strip()}\n")
                level_before = level
            continue
        level_before = 0
        lines.append(line)
    return "\n".join(lines).strip()
