"""Layers of a PDF page (optional content, ISO 32000-2, 8.11) that no viewer shows.

PDFium does not say which layers are on, and its text has all of them. Its picture of a page has
only those that are shown: text of a layer that leaves no trace there is hidden.
"""

from __future__ import annotations

import ctypes
import math
from typing import TYPE_CHECKING, Any

from aveyb_retrieval.documents.readers.pdf_text import pdfium_calls

if TYPE_CHECKING:
    import pypdfium2

_OPTIONAL_CONTENT = "OC"  # the tag of marked content that is in a layer
_MAX_TAG_BYTES = 64  # bytes of UTF-16
_MOST_PIXELS = 1e6  # of a picture of a page


def remove_hidden_layers(page: pypdfium2.PdfPage) -> None:
    """Take the text of hidden layers off a page in memory."""
    raw = pdfium_calls()
    objects = list(page.get_objects(max_depth=1))
    layered = [item for item in objects if raw.FPDFPageObj_CountMarks(item) and _in_layer(item)]
    texts = [item for item in layered if item.type == raw.FPDF_PAGEOBJ_TEXT]
    texts = [text for text in texts if _has_outlines(page, text)]
    if not texts:
        return
    identities = set(map(id, texts))
    for page_object in objects:
        raw.FPDFPageObj_SetIsActive(page_object, id(page_object) in identities)
    picture = _picture(page)
    for page_object in objects:
        raw.FPDFPageObj_SetIsActive(page_object, True)
    for text in texts:
        if not _leaves_trace(text, *picture):
            page.remove_obj(text)


def _in_layer(page_object: pypdfium2.PdfObject) -> bool:
    raw = pdfium_calls()
    buffer, length = ctypes.create_string_buffer(_MAX_TAG_BYTES), ctypes.c_ulong()
    to_buffer = ctypes.cast(buffer, ctypes.POINTER(raw.FPDF_WCHAR))
    for number in range(raw.FPDFPageObj_CountMarks(page_object)):
        mark = raw.FPDFPageObj_GetMark(page_object, number)
        if raw.FPDFPageObjMark_GetName(mark, to_buffer, _MAX_TAG_BYTES, length):
            tag = buffer.raw[: length.value].decode("utf-16-le", "replace").rstrip("\0")
            if tag == _OPTIONAL_CONTENT:
                return True
    return False


def _has_outlines(page: pypdfium2.PdfPage, text: pypdfium2.PdfObject) -> bool:
    """Whether a text alone, without its layer, would be seen: not that of a scan, without glyphs or
    drawn invisibly.
    """
    raw = pdfium_calls()
    bitmap = raw.FPDFTextObj_GetRenderedBitmap(page.pdf, page, text, 1.0)
    if not bitmap:
        return False
    size = raw.FPDFBitmap_GetStride(bitmap) * raw.FPDFBitmap_GetHeight(bitmap)
    seen = any(ctypes.string_at(raw.FPDFBitmap_GetBuffer(bitmap), size))
    raw.FPDFBitmap_Destroy(bitmap)
    return seen


def _picture(page: pypdfium2.PdfPage) -> tuple[Any, Any]:
    """Where anything is drawn on a page, a truth a pixel, and what finds the pixel of a point."""
    scale = min(1.0, math.sqrt(_MOST_PIXELS / max(1.0, page.get_width() * page.get_height())))
    bitmap = page.render(
        scale=scale,
        fill_color=(0, 0, 0, 0),
        force_bitmap_format=pdfium_calls().FPDFBitmap_BGRA,
        may_draw_forms=False,
        draw_annots=False,
    )
    return bitmap.to_numpy()[..., 3] > 0, bitmap.get_posconv(page)


def _leaves_trace(text: pypdfium2.PdfObject, drawn: Any, position: Any) -> bool:
    """Whether anything is drawn where a text is; a text beyond the page is taken to be shown."""
    left, bottom, right, top = text.get_bounds()
    (x, y), (z, w) = position.to_bitmap(left, bottom), position.to_bitmap(right, top)
    inside = drawn[max(0, min(y, w)) : max(y, w, 0) + 1, max(0, min(x, z)) : max(x, z, 0) + 1]
    return not inside.size or bool(inside.any())
