"""Forms of a PDF file and the notes on its pages, by PDFium."""

from __future__ import annotations

import ctypes
import html
import re
from typing import TYPE_CHECKING, Any

from aveyb_retrieval.documents.readers.filetext import (
    clean,
    one_line,
)
from aveyb_retrieval.documents.readers.pdf_text import pdfium_calls

if TYPE_CHECKING:
    from collections.abc import Iterator

    import pypdfium2

_MAX_VALUE_CHARACTERS = 1 << 20  # characters of a value of a form
_TEXT_FIELDS = (4, 5, 6)  # FPDF_FORMFIELD_COMBOBOX, LISTBOX, TEXTFIELD
_BOXES = (2, 3)  # FPDF_FORMFIELD_CHECKBOX, RADIOBUTTON
_WIDGET, _FILE, _POPUP, _LINK = 20, 17, 16, 2  # FPDF_ANNOT_...
_TAG = re.compile(r"<[^<>]*>")
_HIDDEN_FLAGS = 2 | 32  # FPDF_ANNOT_FLAG_HIDDEN, NOVIEW


def notes_and_fields(page: pypdfium2.PdfPage, form: Any | None, files: list[str]) -> Iterator[str]:
    """What is typed and chosen in the form on a page, and the notes on it, a line each; `files`
    gets attached ones.
    """
    raw = pdfium_calls()
    for number in range(raw.FPDFPage_GetAnnotCount(page)):
        annotation = raw.FPDFPage_GetAnnot(page, number)
        if not annotation:
            continue
        try:
            kind = raw.FPDFAnnot_GetSubtype(annotation)
            if kind in (_POPUP, _LINK) or raw.FPDFAnnot_GetFlags(annotation) & _HIDDEN_FLAGS:
                continue
            if kind == _FILE and (attached := raw.FPDFAnnot_GetFileAttachment(annotation)):
                files.append(one_line(_filled(raw.FPDFAttachment_GetName, attached)))
            if kind != _WIDGET:
                plain, rich = (
                    _filled(raw.FPDFAnnot_GetStringValue, annotation, key)
                    for key in (b"Contents", b"RC")
                )
                yield clean(plain or html.unescape(_TAG.sub(" ", rich))).strip()
            elif form is not None:
                yield _field(form, annotation)
        finally:
            raw.FPDFPage_CloseAnnot(annotation)


def _field(form: Any, annotation: Any) -> str:
    """A field of a form with its name; "" where nothing is typed or chosen."""
    raw = pdfium_calls()
    kind, field, value = raw.FPDFAnnot_GetFormFieldType(form, annotation), (form, annotation), ""
    if kind in _TEXT_FIELDS:
        chosen = (
            _filled(raw.FPDFAnnot_GetOptionLabel, *field, place)
            for place in range(min(1000, raw.FPDFAnnot_GetOptionCount(*field)))
            if raw.FPDFAnnot_IsOptionSelected(*field, place)
        )
        value = ", ".join(filter(None, chosen)) or _filled(raw.FPDFAnnot_GetFormFieldValue, *field)
    elif kind in _BOXES and raw.FPDFAnnot_IsChecked(*field):
        value = _filled(raw.FPDFAnnot_GetFormFieldExportValue, *field)
        value = "yes" if value.lower() in ("", "on", "yes", "1", "true") else value
    value = clean(value).strip()
    named = _filled(raw.FPDFAnnot_GetFormFieldAlternateName, *field) or _filled(
        raw.FPDFAnnot_GetFormFieldName, *field
    )
    return f"{one_line(named)}: {value}" if named.strip() and value else value


def _filled(call: Any, *what: Any) -> str:
    """What a function of PDFium writes into a buffer of so many bytes, as UTF-16."""
    size = call(*what, None, 0)
    if not 2 < size <= 2 * _MAX_VALUE_CHARACTERS:
        return ""
    buffer = ctypes.create_string_buffer(size)
    call(*what, ctypes.cast(buffer, ctypes.POINTER(pdfium_calls().FPDF_WCHAR)), size)
    return buffer.raw[: size - 2].decode("utf-16-le", "replace")
