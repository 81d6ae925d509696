"""Headings of a PDF file: the lines that its bookmarks name, else those in larger type."""

from __future__ import annotations

import math
from collections import Counter
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    import pypdfium2

_LONGEST_NUMBER = (
    8  # letters and digits in front of a heading that its bookmark does not repeat: "3.2", "A.1"
)
# Headings of a file without bookmarks: short lines in larger type than most of its text.
_LARGER_FACTOR = 1.15  # times the size of most of the text
_MAX_HEADING_CHARACTERS = 120  # characters of a heading
_MAX_LARGER_SHARE = (
    0.2  # of all characters: where more are in larger type, it is no mark of headings
)
_LEVELS = 4
Sizes = dict[str, float]  # of type, in points, of the lines of a page, by their letters and digits


def bookmarks_of(document: pypdfium2.PdfDocument) -> dict[int, list[tuple[int, str]]]:
    """The bookmarks of each page, by its index: (level from 1, title)."""
    bookmarks: dict[int, list[tuple[int, str]]] = {}
    for bookmark in document.get_toc():
        target: Any = bookmark.get_dest()
        index = target.get_index() if target is not None else None
        title = letters_of(bookmark.get_title())
        if index is not None and title:
            bookmarks.setdefault(index, []).append((min(bookmark.level + 1, 6), title))
    return bookmarks


def mark_headings(text: str, bookmarks: list[tuple[int, str]]) -> str:
    """The text of a page, the lines that its bookmarks name as headings in Markdown."""
    if not bookmarks:
        return text
    lines = text.split("\n")
    letters = [letters_of(line) for line in lines]
    first = 0
    for level, title in bookmarks:
        for number in range(first, len(lines)):
            more = len(letters[number]) - len(title)  # than its title: the number of a heading
            if letters[number].endswith(title) and (
                not more or (len(title) > 2 and more <= _LONGEST_NUMBER)
            ):
                lines[number] = f"\n{'#' * level} {lines[number].strip()}\n"
                first = number + 1
                break
    return "\n".join(lines).strip()


def letters_of(text: str) -> str:
    """Return the letters and digits of a text, without regard to case."""
    return "".join(filter(str.isalnum, text.casefold()))


def line_begins(text: str) -> dict[str, int]:
    """The lines of a page's text, by their letters and digits: where the first of these stands."""
    begins: dict[str, int] = {}
    start = 0
    for line in text.split("\n"):
        letters = letters_of(line)
        if letters:
            begins.setdefault(
                letters, start + next(i for i, character in enumerate(line) if character.isalnum())
            )
        start += len(line) + 1
    return begins


def type_of(sizes: list[Sizes]) -> tuple[Counter[float], float]:
    """How many letters and digits of the pages have each size, and from which on type is larger
    than most of it.
    """
    lengths: Counter[float] = Counter()
    for page in sizes:
        for letters, size in page.items():
            lengths[size] += len(letters)
    return lengths, _LARGER_FACTOR * lengths.most_common(1)[0][0] if lengths else math.inf


def mark_by_size(texts: list[str], sizes: list[Sizes]) -> list[str]:
    """Return the texts of pages with lines in larger type as headings in Markdown, the largest at
    level 1.
    """
    lengths, large = type_of(sizes)
    larger = sorted((size for size in lengths if size >= large), reverse=True)
    if not larger or sum(map(lengths.__getitem__, larger)) > _MAX_LARGER_SHARE * lengths.total():
        return texts
    levels = {size: min(rank, _LEVELS) for rank, size in enumerate(larger, start=1)}
    return [_marked(text, page, levels) for text, page in zip(texts, sizes, strict=True)]


def _marked(text: str, sizes: Sizes, levels: dict[float, int]) -> str:
    lines: list[str] = []
    level_before = 0
    for line in text.split("\n"):
        level = levels.get(sizes.get(letters_of(line), 0.0), 0)
        if level and any(map(str.isalpha, line)) and len(line) <= _MAX_HEADING_CHARACTERS:
            # a heading of two lines
            if level == level_before and len(lines[-1]) + len(line) <= _MAX_HEADING_CHARACTERS:
                lines[-1] = f"{lines[-1].rstrip()} {line.strip()}\n"
            else:
                lines.append(f"\n{'#' * level} {line.strip()}\n")
                level_before = level
            continue
        level_before = 0
        lines.append(line)
    return "\n".join(lines).strip()
