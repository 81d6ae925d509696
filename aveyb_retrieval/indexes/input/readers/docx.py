"""DOCX: python-docx opens the package and knows its styles; paragraphs are walked here.

python-docx's own text of a paragraph leaves out what was inserted with changes tracked and what stands in content
controls and text boxes; a search must find these.
"""

from __future__ import annotations

import io
from typing import TYPE_CHECKING, Any

from aveyb_retrieval.indexes.input.readers.archive import open_archive
from aveyb_retrieval.indexes.input.readers.base import FileText, Unreadable, clean, one_line

if TYPE_CHECKING:
    from collections.abc import Iterator

_W = "{http://schemas.openxmlformats.org/wordprocessingml/2006/main}"
_FALLBACK = "{http://schemas.openxmlformats.org/markup-compatibility/2006}Fallback"
_SKIPPED = {f"{_W}{name}" for name in ("del", "moveFrom", "instrText", "delText", "rPr", "pPr", "sectPr")} | {_FALLBACK}
_NOTES = ("footnotes", "endnotes")


def read_docx(data: bytes) -> FileText:
    """Read a document of Word: paragraphs, tables, text boxes, footnotes and endnotes, without deleted text.

    Raises:
        Unreadable: it is damaged or encrypted.
    """
    import docx
    from docx.opc.exceptions import OpcError
    from lxml.etree import LxmlError

    open_archive(data).close()
    try:
        document = docx.Document(io.BytesIO(data))
        styles = {style.style_id: style.name or "" for style in document.styles}
        lines = list(_lines(document.element.body, styles))
        for part in document.part.package.iter_parts():
            if part.partname.rpartition("/")[2].removesuffix(".xml") in _NOTES:
                lines += _note_lines(part.blob, styles)
        title = document.core_properties.title
    except (OpcError, LxmlError, KeyError, ValueError, AttributeError) as error:
        raise Unreadable(f"damaged: not a document of Word ({one_line(str(error))})") from None
    return FileText(one_line(title or ""), clean("\n".join(lines)).strip())


def _note_lines(blob: bytes, styles: dict[str, str]) -> Iterator[str]:
    from docx.oxml import parse_xml

    yield from _lines(parse_xml(blob), styles)


def _lines(top: Any, styles: dict[str, str]) -> Iterator[str]:
    """The text of all paragraphs and tables below an element, in order; blank lines between paragraphs."""
    for child in top:
        if child.tag == f"{_W}p":
            yield from _paragraph(child, styles)
        elif child.tag == f"{_W}tbl":
            yield from ("", *_rows(child, styles), "")
        elif isinstance(child.tag, str) and child.tag not in _SKIPPED and not _is_contents(child):
            yield from _lines(child, styles)


def _paragraph(paragraph: Any, styles: dict[str, str]) -> Iterator[str]:
    boxes: list[Any] = []
    text = "".join(_runs(paragraph, boxes)).strip()
    if text:
        yield from _styled(text, paragraph, styles)
    for box in boxes:
        yield from _lines(box, styles)


def _styled(text: str, paragraph: Any, styles: dict[str, str]) -> Iterator[str]:
    properties = paragraph.find(f"{_W}pPr")
    style, level, is_item = "", None, False
    if properties is not None:
        named = properties.find(f"{_W}pStyle")
        style = styles.get(named.get(f"{_W}val"), "") if named is not None else ""
        outline = properties.find(f"{_W}outlineLvl")
        level = int(outline.get(f"{_W}val")) + 1 if outline is not None else None
        is_item = properties.find(f"{_W}numPr") is not None
    kind, _, number = style.lower().partition(" ")
    if kind == "heading" and number.isdigit():
        level = int(number)
    elif style.lower() == "title":
        level = 1
    elif kind == "toc":
        return
    if level is not None and level <= 9:  # 10 is the level of body text
        yield from ("", f"{'#' * min(level, 6)} {one_line(text)}", "")
    elif is_item or kind == "list":
        yield f"- {text}"
    else:
        yield from ("", text, "")


def _rows(table: Any, styles: dict[str, str]) -> Iterator[str]:
    for row in table.iter(f"{_W}tr"):
        if next(row.iterancestors(f"{_W}tbl")) is not table:
            continue  # of a table inside, which its cell holds
        own = (cell for cell in row.iter(f"{_W}tc") if next(cell.iterancestors(f"{_W}tr")) is row)
        yield " | ".join(one_line(" ".join(_lines(cell, styles))) for cell in own)


def _runs(element: Any, boxes: list[Any]) -> Iterator[str]:
    """The characters of a paragraph; its text boxes are added to `boxes`."""
    for child in element:
        tag = child.tag
        if tag == f"{_W}t":
            yield child.text or ""
        elif tag in (f"{_W}tab", f"{_W}ptab"):
            yield "\t"
        elif tag in (f"{_W}br", f"{_W}cr"):
            yield "\n"
        elif tag == f"{_W}noBreakHyphen":
            yield "-"
        elif tag == f"{_W}txbxContent":
            boxes.append(child)
        elif isinstance(tag, str) and tag not in _SKIPPED:
            yield from _runs(child, boxes)


def _is_contents(control: Any) -> bool:
    """Whether a content control is the table of contents."""
    gallery = control.find(f"{_W}sdtPr/{_W}docPartObj/{_W}docPartGallery")
    return gallery is not None and gallery.get(f"{_W}val") == "Table of Contents"
