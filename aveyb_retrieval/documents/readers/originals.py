"""The file that a document was read from: its bytes, where words stand on its pages of PDF, and
pictures of these.
"""

from __future__ import annotations

import base64
import hashlib
import struct
import threading
import zlib
from contextlib import closing
from difflib import SequenceMatcher
from itertools import accumulate, chain
from pathlib import Path
from typing import TYPE_CHECKING, Any, NamedTuple

from aveyb_retrieval.documents.readers.file_limits import Limits
from aveyb_retrieval.documents.readers.pdf_scans import scan_kind, scanned_words
from aveyb_retrieval.documents.readers.pdf_text import in_units, upright
from aveyb_retrieval.documents.records import FileOrigin, Pages
from aveyb_retrieval.errors import IndexFormatError, InputError, extra_for
from aveyb_retrieval.files import read_bounded

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator

    import pypdfium2

    from aveyb_retrieval.documents.readers.pdf_scans import Rectangle

MAX_PDF_BYTES = 1 << 30  # bytes of a PDF
_ONE_LINE_SHARE = 0.5  # of the lower one's height: rectangles that share so much stand on one line
_WIDTH, _MOST_PIXELS = 1200, 6e6  # of a picture of a page
_MARK = (255, 230, 130)  # red, green, blue of marked words on white
_PDFIUM_LOCK = threading.Lock()  # PDFium does one thing at a time


class Box(NamedTuple):
    """A rectangle on a page, counted from 1, in PDF points from the bottom left."""

    page: int
    left: float
    bottom: float
    right: float
    top: float


def read_original(name: str, origin: FileOrigin | None, most: int = MAX_PDF_BYTES) -> bytes:
    """Read the file of a document, of at most so many bytes, as it was read: without following
    links.

    An index may come from anybody and name any file of this machine: only one whose hash it has is
    given out. Raises InputError: there is none, it is gone, has changed, or is larger.
    """
    if origin is None:
        raise InputError(f"{name}: was not read from a file")
    folder, changed = Path(origin.folder), None
    # the second is that of a file that was named itself
    for path in (folder / name, folder / Path(name).name):
        try:
            data = (
                read_bounded(path, most)
                if path.is_relative_to(folder) and path.resolve() == path
                else None
            )
        except (OSError, ValueError, IndexFormatError):
            continue
        if data is not None and hashlib.sha256(data).hexdigest() == origin.sha256:
            return data
        changed = changed or (path if data is not None else None)
    if changed is None:
        raise InputError(f"{name}: its original is not in {origin.folder} any more")
    raise InputError(
        f"{changed}: has changed since it was indexed, or has more than {most:,} bytes; sync the"
        " index"
    )


def boxes_in_file(
    name: str, text: str, span: tuple[int, int], origin: FileOrigin | None
) -> tuple[Box, ...]:
    """Find the characters `[start, stop)` of a text in the PDF that it was read from; raises as
    `read_original`.
    """
    pages = _pages(name, origin)
    with _PDFIUM_LOCK, _opened(name, origin) as document:
        return _boxes(document, text, span, pages)


def look(
    name: str, text: str, span: list[int], origin: list[Any], page: int | None, most: int
) -> dict[str, Any]:
    """Answer with what JSON can hold: boxes, and with `page`, from 1, a PNG of it where they are
    marked, in base64.

    `origin` has the hash, the folder and the pages as JSON. Raises as `boxes_in_file`, and where
    there is no such page.
    """
    file_origin = FileOrigin(origin[0], origin[1], Pages.from_json(origin[2]))
    with _opened(name, file_origin, most) as document:
        boxes = _boxes(document, text, (span[0], span[1]), _pages(name, file_origin), only=page)
        if page is None:
            return {"boxes": [box._asdict() for box in boxes]}
        if not 1 <= page <= len(document):
            raise InputError(f"{name}: has {len(document):,} pages, and no page {page:,}")
        return {"picture": base64.b64encode(_picture(document[page - 1], boxes)).decode()}


def _pages(name: str, origin: FileOrigin | None) -> Pages:
    if origin is None or origin.pages is None or not name.lower().endswith(".pdf"):
        raise InputError(f"{name}: not read from a PDF file, so that no page has its words")
    return origin.pages


def _opened(
    name: str, origin: FileOrigin | None, most: int = MAX_PDF_BYTES
) -> closing[pypdfium2.PdfDocument]:
    data = read_original(name, origin, most)
    with extra_for(f"reading {name}", "files"):
        import pypdfium2
    return closing(pypdfium2.PdfDocument(data))


def _boxes(
    document: pypdfium2.PdfDocument,
    text: str,
    span: tuple[int, int],
    pages: Pages,
    only: int | None = None,
) -> tuple[Box, ...]:
    if span[0] >= span[1]:
        return ()
    first, last = pages.range(*span)
    starts = [*pages.starts, len(text)]
    boxes: list[Box] = []
    for number in range(first.number, last.number + 1):
        begin, end = starts[number - 1], starts[number]
        sought_letters = _letters(text[max(begin, span[0]) : min(end, span[1])])[0]
        before = len(_letters(text[begin : max(begin, span[0])])[0])
        if sought_letters and only in (None, number):
            boxes += _lines(document[number - 1], number, sought_letters, before)
    return tuple(boxes)


def _letters(text: str) -> tuple[str, list[int]]:
    """The letters and digits of a text, which reading a page keeps, and their places."""
    places = [place for place, character in enumerate(text) if character.isalnum()]
    return "".join(text[place] for place in places), places


def _lines(page: pypdfium2.PdfPage, number: int, sought_letters: str, before: int) -> Iterator[Box]:
    letters, rectangles_of = _written(page, sought_letters)
    at = letters.find(sought_letters, max(0, before - len(sought_letters)))
    if at >= 0:
        runs = [(at, len(sought_letters))]
    else:  # a number was marked as raised, a note stands between
        blocks = SequenceMatcher(
            None, letters, sought_letters, autojunk=False
        ).get_matching_blocks()
        runs = [(block.a, block.size) for block in blocks if block.size]
    box: Box | None = None
    for left, bottom, right, top in chain.from_iterable(rectangles_of(*run) for run in runs):
        shared = min(box.top, top) - max(box.bottom, bottom) if box else 0.0
        if box and shared > _ONE_LINE_SHARE * min(box.top - box.bottom, top - bottom):
            box = Box(
                number,
                min(box.left, left),
                min(box.bottom, bottom),
                max(box.right, right),
                max(box.top, top),
            )
            continue
        if box is not None:
            yield box
        box = Box(number, left, bottom, right, top)
    if box is not None:
        yield box


def _written(
    page: pypdfium2.PdfPage, wanted: str
) -> tuple[str, Callable[[int, int], list[Rectangle]]]:
    """The letters and digits of a page, and what gives the rectangles of so many of them from one
    on; by OCR where the page is a picture on which those wanted are not text.
    """
    words = upright(page)
    text = words.get_text_range()
    letters, characters = _letters(text)
    units = list(accumulate((len(in_units(character)) for character in text), initial=0))
    places = [units[place] for place in characters]

    def of_text(start: int, size: int) -> list[Rectangle]:
        first, last = places[start], places[start + size - 1]
        return [
            words.get_rect(place) for place in range(words.count_rects(first, last - first + 1))
        ]

    if wanted in letters or not scan_kind(page, text):
        return letters, of_text
    scanned = scanned_words(page, Limits())
    owners = [place for place, (word, _) in enumerate(scanned) for _ in _letters(word)[1]]
    letters = "".join(_letters(word)[0] for word, _ in scanned)
    return letters, lambda start, size: [
        scanned[n][1] for n in dict.fromkeys(owners[start : start + size])
    ]


def _picture(page: pypdfium2.PdfPage, marked: tuple[Box, ...]) -> bytes:
    """A page as PNG, with the colors of a highlighter over some boxes."""
    width, height = max(1.0, page.get_width()), max(1.0, page.get_height())
    scale = min(_WIDTH / width, (_MOST_PIXELS / (width * height)) ** 0.5)
    bitmap = page.render(scale=scale, rev_byteorder=True)
    pixels, place = bitmap.to_numpy().copy(), bitmap.get_posconv(page)
    for box in marked:
        (x, y), (z, w) = place.to_bitmap(box.left, box.bottom), place.to_bitmap(box.right, box.top)
        part = pixels[max(0, min(y, w) - 1) : max(y, w) + 1, max(0, min(x, z) - 1) : max(x, z) + 1]
        for color, most in enumerate(_MARK):
            part[..., color] = part[..., color].astype(int) * most // 255
    rows, columns, _ = pixels.shape
    lines = b"".join(b"\0" + row.tobytes() for row in pixels)
    head = struct.pack(">IIBBBBB", columns, rows, 8, 2, 0, 0, 0)
    chunks = ((b"IHDR", head), (b"IDAT", zlib.compress(lines)), (b"IEND", b""))
    packed = (
        struct.pack(">I", len(data)) + kind + data + struct.pack(">I", zlib.crc32(kind + data))
        for kind, data in chunks
    )
    return b"\x89PNG\r\n\x1a\n" + b"".join(packed)
