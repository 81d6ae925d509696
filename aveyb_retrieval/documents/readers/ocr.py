"""Words of pictures of text, by Tesseract."""

from __future__ import annotations

import math
import os
from functools import cache
from importlib.util import find_spec
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    import pypdfium2

Rectangle = tuple[float, float, float, float]  # left, bottom, right and top, in points of a page
ALL_SECONDS, PAGE_SECONDS = 600, 120  # for the pages of a file, and for one
_PER_POINT = 300 / 72  # pixels: 300 dots per inch, as Tesseract is trained with
_MOST_PIXELS = 25e6  # of a page: a larger one is rendered coarser


@cache
def languages() -> str | None:
    """The languages that Tesseract has data of, "deu+eng"; "" without any of them, None without
    pytesseract.
    """
    if find_spec("pytesseract") is None:
        return None
    import pytesseract

    os.environ.setdefault("OMP_THREAD_LIMIT", "1")  # its threads wait for each other by turning
    try:
        return "+".join(sorted({*pytesseract.get_languages()} - {"osd"}))
    except (OSError, RuntimeError):
        return ""


def why_none() -> str:
    """Say what would give the words of pictures, where there are none."""
    advice = {
        None: "make it searchable by OCR",
        "": "OCR needs tesseract and its data (Debian: tesseract-ocr)",
    }
    return advice.get(languages(), "OCR found no words")


def read_picture(page: pypdfium2.PdfPage) -> str:
    """Return the words of a page by OCR; "" where none are found, it takes too long, or OCR is not
    installed.
    """
    if not languages():
        return ""
    import pytesseract

    try:
        return str(
            pytesseract.image_to_string(
                _rendered(page).to_pil(), lang=languages(), timeout=PAGE_SECONDS
            )
        )
    except (OSError, RuntimeError):  # of Tesseract, or its time
        return ""


def picture_words(page: pypdfium2.PdfPage) -> list[tuple[str, Rectangle]]:
    """Return the words of a page by OCR with their places on it; none where `read_picture` finds
    none.
    """
    if not languages():
        return []
    import pytesseract

    bitmap = _rendered(page)
    place, found = bitmap.get_posconv(page), list[tuple[str, Rectangle]]()
    try:
        table = pytesseract.image_to_data(
            bitmap.to_pil(),
            lang=languages(),
            timeout=PAGE_SECONDS,
            output_type=pytesseract.Output.DICT,
        )
    except (OSError, RuntimeError):
        return []
    columns = (table[name] for name in ("text", "left", "top", "width", "height"))
    for word, left, top, width, height in zip(*columns, strict=True):
        if word.strip():
            (x, y), (z, w) = place.to_page(left, top), place.to_page(left + width, top + height)
            found.append((word, (min(x, z), min(y, w), max(x, z), max(y, w))))
    return found


def _rendered(page: pypdfium2.PdfPage) -> pypdfium2.PdfBitmap:
    scale = min(
        _PER_POINT, math.sqrt(_MOST_PIXELS / max(1.0, page.get_width() * page.get_height()))
    )
    return page.render(scale=scale, grayscale=True)
