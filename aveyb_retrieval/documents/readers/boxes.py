"""Where words of a document stand on the pages of its PDF: rectangles, read from the original when asked for."""

from __future__ import annotations

from difflib import SequenceMatcher
from pathlib import Path
from typing import TYPE_CHECKING, NamedTuple

from aveyb_retrieval import files
from aveyb_retrieval.documents.readers.pdf_page import upright
from aveyb_retrieval.errors import InputError, extra_for

if TYPE_CHECKING:
    from collections.abc import Iterator

    import pypdfium2

    from aveyb_retrieval.documents.records import FileOrigin

_LARGEST = 1 << 30  # bytes of a PDF
_ONE_LINE = 0.5  # of the lower one's height: rectangles that share so much stand on one line


class Box(NamedTuple):
    """A rectangle on a page, counted from 1, in PDF points from the bottom left."""

    page: int
    left: float
    bottom: float
    right: float
    top: float


def boxes_in_file(name: str, text: str, span: tuple[int, int], origin: FileOrigin | None) -> tuple[Box, ...]:
    """Find the characters `[start, stop)` of a document's text in the PDF that it was read from.

    Raises:
        InputError: it was not read from a PDF, or that is gone or has changed.
    """
    if origin is None or origin.pages is None or not name.lower().endswith(".pdf"):
        raise InputError(f"{name}: not read from a PDF file, so that no page has its words")
    path = next((p for part in (name, Path(name).name) if (p := Path(origin.folder) / part).is_file()), None)
    if path is None:
        raise InputError(f"{name}: its original is not in {origin.folder} any more")
    if files.hash_file(path, follow_links=True).sha256 != origin.sha256:
        raise InputError(f"{path}: has changed since it was indexed; sync the index")
    with extra_for(f"reading {path}", "files"):
        import pypdfium2
    document = pypdfium2.PdfDocument(path)
    try:
        first, last = origin.pages.range(*span)
        starts = [*origin.pages.starts, len(text)]
        found: list[Box] = []
        for number in range(first.number, last.number + 1):
            begin, end = starts[number - 1], starts[number]
            wanted = _letters(text[max(begin, span[0]) : min(end, span[1])])[0]
            before = len(_letters(text[begin : max(begin, span[0])])[0])
            found += _lines(document[number - 1], number, wanted, before)
        return tuple(found)
    finally:
        document.close()


def _letters(text: str) -> tuple[str, list[int]]:
    """The letters and digits of a text, which reading a page keeps, and their places."""
    places = [place for place, character in enumerate(text) if character.isalnum()]
    return "".join(text[place] for place in places), places


def _lines(page: pypdfium2.PdfPage, number: int, wanted: str, before: int) -> Iterator[Box]:
    words = upright(page)
    letters, places = _letters(words.get_text_range())
    at = letters.find(wanted, max(0, before - len(wanted)))
    if at >= 0:
        runs = [(at, len(wanted))]
    else:  # a number was marked as raised, a note stands between
        blocks = SequenceMatcher(None, letters, wanted, autojunk=False).get_matching_blocks()
        runs = [(block.a, block.size) for block in blocks]
    rectangles = list[tuple[float, float, float, float]]()
    for start, size in runs:
        if size:
            first, last = places[start], places[start + size - 1]
            count = words.count_rects(first, last - first + 1)
            rectangles += [words.get_rect(place) for place in range(count)]
    box: Box | None = None
    for left, bottom, right, top in rectangles:
        if box is None:
            box = Box(number, left, bottom, right, top)
            continue
        shared = min(box.top, top) - max(box.bottom, bottom)
        if shared > _ONE_LINE * min(box.top - box.bottom, top - bottom):
            box = Box(number, min(box.left, left), min(box.bottom, bottom), max(box.right, right), max(box.top, top))
        else:
            yield box
            box = Box(number, left, bottom, right, top)
    if box is not None:
        yield box
