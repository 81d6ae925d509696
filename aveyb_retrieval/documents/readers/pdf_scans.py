"""Pages of a PDF that are pictures of text: which they are, their words by OCR, and whether these
or the text that lies on the page are taken.
"""

from __future__ import annotations

import math
from collections import defaultdict
from functools import partial
from typing import TYPE_CHECKING, Literal, NamedTuple

from aveyb_retrieval.documents.readers.filetext import Unreadable, Unrecognized, first_few, one_line
from aveyb_retrieval.documents.readers.known_words import (
    count_words,
    is_doubtful,
    known_share,
    shared_words,
)
from aveyb_retrieval.documents.readers.ocr import (
    MAX_OCR_PIXELS,
    most_pictures,
    read_picture,
    read_pictures,
)

if TYPE_CHECKING:
    from collections.abc import Iterator, Mapping, Sequence

    import pypdfium2
    from PIL.Image import Image

    from aveyb_retrieval.documents.readers.file_limits import Limits
    from aveyb_retrieval.documents.readers.ocr_text import PictureText

Rectangle = tuple[float, float, float, float]  # left, bottom, right and top, in points of a page
ScanKind = Literal["", "textless", "stamped", "doubtful"]
"""How a page is a picture: not; without text; with a few words on it; with a text of no words."""
_PIXELS_PER_POINT = 300 / 72  # 300 dots per inch, as Tesseract is trained with
_COVERED_SHARE = 0.6  # of a page: pictures that cover so much of it may be its text
_STAMP_WORDS = 40  # of a page: so few may be a stamp
_TRIED_PAGES = 2  # of doubtful text, before the text of the others is believed
_SAME_WORDS = 0.8  # of the words that OCR finds: a text that has them is right
_MAX_FORM_DEPTH = 3  # forms in forms in which pictures are looked for


class RecognizedPage(NamedTuple):
    """The text of a page that is a picture: by OCR, or where `certainty` is None the one that lies
    on it, with the reason why OCR does not read it, "" where it has.
    """

    text: str
    certainty: float | None
    reason: str = ""


def scan_kind(page: pypdfium2.PdfPage, text: str) -> ScanKind:
    """Return how a page with this text on it is a picture of text."""
    if not text.strip():
        return "textless" if _has_pictures(page) else ""
    if count_words(text) <= _STAMP_WORDS:
        return "stamped" if _covered_share(page) >= _COVERED_SHARE else ""
    if is_doubtful(text) and _covered_share(page) >= _COVERED_SHARE:
        return "doubtful"
    return ""


def _pictures(page: pypdfium2.PdfPage) -> Iterator[pypdfium2.PdfObject]:
    import pypdfium2

    return page.get_objects(filter=[pypdfium2.raw.FPDF_PAGEOBJ_IMAGE], max_depth=_MAX_FORM_DEPTH)


def _has_pictures(page: pypdfium2.PdfPage) -> bool:
    return any(True for _ in _pictures(page))


def _covered_share(page: pypdfium2.PdfPage) -> float:
    """The share of a page that its pictures cover, 0 to 1; those that overlap count twice."""
    left, bottom, right, top = page.get_cropbox()
    area = 0.0
    for picture in _pictures(page):
        box = _box(picture)
        width = min(right, box[2]) - max(left, box[0])
        height = min(top, box[3]) - max(bottom, box[1])
        area += max(0.0, width) * max(0.0, height)
    return min(1.0, area / max(1.0, (right - left) * (top - bottom)))


def _box(picture: pypdfium2.PdfObject) -> Rectangle:
    """Where a picture is on its page: it fills the unit square, which matrices move there."""
    matrix, form = picture.get_matrix(), picture.container
    while form is not None:
        matrix, form = matrix.multiply(form.get_matrix()), form.container
    left, bottom, right, top = matrix.on_rect(0, 0, 1, 1)
    return left, bottom, right, top


def render_scan(page: pypdfium2.PdfPage) -> pypdfium2.PdfBitmap:
    """Return a picture of a page for OCR, in shades of grey."""
    points = max(1.0, page.get_width() * page.get_height())
    scale = min(_PIXELS_PER_POINT, math.sqrt(MAX_OCR_PIXELS / points))
    return page.render(scale=scale, grayscale=True)


def recognize_pages(
    document: pypdfium2.PdfDocument,
    kinds: Mapping[int, ScanKind],
    texts: Sequence[str],
    size: int,
    limits: Limits,
) -> dict[int, RecognizedPage]:
    """Read the pages of a document that are pictures, by their indexes, by OCR.

    `texts` lie on the pages, `size` is that of the file in bytes. Of pages of doubtful text the
    first ones are tried; where OCR finds the same words there, the text of the others is believed.
    """
    doubtful = [index for index, kind in kinds.items() if kind == "doubtful"]
    tried, others = doubtful[:_TRIED_PAGES], doubtful[_TRIED_PAGES:]
    first = [index for index, kind in kinds.items() if kind != "doubtful" or index in tried]
    most = most_pictures(size)
    pages = _recognize(document, first[:most], texts, limits)
    if any(pages[index].certainty is not None or pages[index].reason for index in tried):
        pages |= _recognize(document, others[: max(0, most - len(pages))], texts, limits)
    else:
        others = []
    beyond = f"a file of {size:,} bytes shows more than {most:,} pictures"
    for index in [*first, *others]:
        pages.setdefault(index, RecognizedPage(texts[index], None, beyond))
    return pages


def _recognize(
    document: pypdfium2.PdfDocument, indexes: list[int], texts: Sequence[str], limits: Limits
) -> dict[int, RecognizedPage]:
    if not indexes:
        return {}
    pictures = (partial(_picture, document, index) for index in indexes)
    outcomes = read_pictures(pictures, len(indexes), limits)
    return {
        index: choose_text(texts[index], outcome)
        for index, outcome in zip(indexes, outcomes, strict=True)
    }


def _picture(document: pypdfium2.PdfDocument, index: int) -> Image:
    import pypdfium2

    try:
        page = document[index]
        bitmap = render_scan(page)
        picture = bitmap.to_pil().copy()
        bitmap.close()
        page.close()
    except pypdfium2.PdfiumError as error:
        raise Unrecognized(f"cannot be drawn ({one_line(str(error))})") from None
    return picture


def choose_text(text: str, outcome: PictureText | Unreadable) -> RecognizedPage:
    """Return the text of a page, or what OCR finds with the lines that it does not find."""
    if isinstance(outcome, Unreadable):
        return RecognizedPage(text, None, str(outcome))
    by_ocr = outcome.text
    if not by_ocr or (text.strip() and shared_words(by_ocr, text) >= _SAME_WORDS):
        return RecognizedPage(text, None)
    if count_words(text) > _STAMP_WORDS:
        if known_share(by_ocr) <= known_share(text):
            return RecognizedPage(text, None)
        return RecognizedPage(by_ocr, outcome.certainty)
    missing = [line.strip() for line in text.splitlines() if shared_words(line, by_ocr) < 1]
    lines = [line for line in missing if line]
    return RecognizedPage("\n\n".join([by_ocr, *lines]), outcome.certainty)


def unread_pages(pages: dict[int, RecognizedPage], count: int) -> str:
    """Say which pages of `count` are not read and why; "" where there are none."""
    by_reason: dict[str, list[int]] = defaultdict(list)
    for index, page in sorted(pages.items()):
        if page.reason:
            by_reason[page.reason].append(index + 1)
    parts = (
        f"{len(numbers):,} of {count:,} pages are pictures that are not read ({reason}):"
        f" {first_few(numbers)}"
        for reason, numbers in by_reason.items()
    )
    return "; ".join(parts)


def scanned_words(page: pypdfium2.PdfPage, limits: Limits) -> list[tuple[str, Rectangle]]:
    """Return the words of a page by OCR with their places on it; none where it cannot be read."""
    bitmap = render_scan(page)
    place = bitmap.get_posconv(page)
    try:
        words = read_picture(bitmap.to_pil(), limits).words
    except Unrecognized:
        return []
    boxes: list[tuple[str, Rectangle]] = []
    for word in words:
        left, top, right, bottom = word.box
        (x, y), (z, w) = place.to_page(left, top), place.to_page(right, bottom)
        boxes.append((word.text, (min(x, z), min(y, w), max(x, z), max(y, w))))
    return boxes
