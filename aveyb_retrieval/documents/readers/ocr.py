"""The words of pages that are pictures, by Tesseract: pytesseract (extra `ocr`) runs that program within our limits."""

from __future__ import annotations

import math
import os
from functools import cache
from importlib.util import find_spec
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    import pypdfium2

ALL_SECONDS, PAGE_SECONDS = 600, 120  # for the pages of a file, and for one
_PER_POINT = 300 / 72  # pixels: 300 dots per inch, as Tesseract is trained with
_MOST_PIXELS = 25e6  # of a page: a larger one is rendered coarser


@cache
def languages() -> str | None:
    """The languages that Tesseract has data of, "deu+eng"; "" without any of them, None without pytesseract."""
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
    """Return the words of a page by OCR; "" where none are found, it takes too long, or OCR is not installed."""
    if not languages():
        return ""
    import pytesseract

    scale = min(_PER_POINT, math.sqrt(_MOST_PIXELS / max(1.0, page.get_width() * page.get_height())))
    try:
        picture = page.render(scale=scale, grayscale=True).to_pil()
        return str(pytesseract.image_to_string(picture, lang=languages(), timeout=PAGE_SECONDS))
    except (OSError, RuntimeError):  # of Tesseract, or its time
        return ""
