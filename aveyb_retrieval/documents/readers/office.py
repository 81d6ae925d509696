"""Word, PowerPoint, Excel and OpenDocument: text with headings, tables, slides and sheets.

DOCX: python-docx opens the package and knows its styles; paragraphs are walked here.

python-docx's own text of a paragraph leaves out what was inserted with changes tracked and what stands in content
controls and text boxes; a search must find these.
"""

from __future__ import annotations

import io
from typing import TYPE_CHECKING, Any

from aveyb_retrieval.documents.readers.archives import is_archive, open_archive, parse_xml, read_member
from aveyb_retrieval.documents.readers.base import FileText, Parts, Unreadable, clean, one_line

if TYPE_CHECKING:
    from collections.abc import Iterator

_W = "{http://schemas.openxmlformats.org/wordprocessingml/2006/main}"
_FALLBACK = "{http://schemas.openxmlformats.org/markup-compatibility/2006}Fallback"
_UNREAD = ("del", "moveFrom", "instrText", "delText", "rPr", "pPr", "sectPr")
_DOCX_SKIPPED = {f"{_W}{name}" for name in _UNREAD} | {_FALLBACK}
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
        lines = list(_docx_lines(document.element.body, styles))
        for part in document.part.package.iter_parts():
            if part.partname.rpartition("/")[2].removesuffix(".xml") in _NOTES:
                lines += _note_lines(part.blob, styles)
        title = document.core_properties.title
    except (OpcError, LxmlError, KeyError, ValueError, AttributeError) as error:
        raise Unreadable(f"damaged: not a document of Word ({one_line(str(error))})") from None
    return FileText(one_line(title or ""), clean("\n".join(lines)).strip())


def _note_lines(blob: bytes, styles: dict[str, str]) -> Iterator[str]:
    from docx.oxml import parse_xml

    yield from _docx_lines(parse_xml(blob), styles)


def _docx_lines(top: Any, styles: dict[str, str]) -> Iterator[str]:
    """The text of all paragraphs and tables below an element, in order; blank lines between paragraphs."""
    for child in top:
        if child.tag == f"{_W}p":
            yield from _paragraph(child, styles)
        elif child.tag == f"{_W}tbl":
            yield from ("", *_rows(child, styles), "")
        elif isinstance(child.tag, str) and child.tag not in _DOCX_SKIPPED and not _is_contents(child):
            yield from _docx_lines(child, styles)


def _paragraph(paragraph: Any, styles: dict[str, str]) -> Iterator[str]:
    boxes: list[Any] = []
    text = "".join(_runs(paragraph, boxes)).strip()
    if text:
        yield from _styled(text, paragraph, styles)
    for box in boxes:
        yield from _docx_lines(box, styles)


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
        yield " | ".join(one_line(" ".join(_docx_lines(cell, styles))) for cell in own)


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
        elif isinstance(tag, str) and tag not in _DOCX_SKIPPED:
            yield from _runs(child, boxes)


def _is_contents(control: Any) -> bool:
    """Whether a content control is the table of contents."""
    gallery = control.find(f"{_W}sdtPr/{_W}docPartObj/{_W}docPartGallery")
    return gallery is not None and gallery.get(f"{_W}val") == "Table of Contents"


def read_pptx(data: bytes, longest: int) -> FileText:
    """Read a presentation: its titles are headings, its slides pages.

    Raises:
        Unreadable: it is damaged, encrypted, or too long.
    """
    import pptx
    from lxml.etree import LxmlError
    from pptx.exc import PythonPptxError

    open_archive(data).close()
    parts = Parts("slide", longest)
    try:
        show = pptx.Presentation(io.BytesIO(data))
        for slide in show.slides:
            parts.add("\n\n".join(filter(None, _slide(slide))))
        title = show.core_properties.title
    except (PythonPptxError, LxmlError, KeyError, ValueError, AttributeError) as error:
        raise Unreadable(f"damaged: not a presentation ({one_line(str(error))})") from None
    return parts.text(one_line(title or ""))


def _slide(slide: Any) -> Iterator[str]:
    title = slide.shapes.title
    if title is not None and title.text_frame.text.strip():
        yield f"# {one_line(title.text_frame.text)}"
    for shape in slide.shapes:
        if title is None or shape.shape_id != title.shape_id:
            yield from _shape(shape)
    if slide.has_notes_slide and slide.notes_slide.notes_text_frame is not None:
        yield clean(slide.notes_slide.notes_text_frame.text).strip()


def _shape(shape: Any) -> Iterator[str]:
    if getattr(shape, "shapes", None) is not None:  # a group
        for inner in shape.shapes:
            yield from _shape(inner)
    elif getattr(shape, "has_table", False):
        rows = (" | ".join(one_line(cell.text) for cell in row.cells) for row in shape.table.rows)
        yield "\n".join(rows)
    elif shape.has_text_frame:
        yield clean(shape.text_frame.text).strip()


def read_spreadsheet(data: bytes, longest: int) -> FileText:
    """Read a workbook: its sheets are pages, their names headings. Formulas are read as their values.

    Raises:
        Unreadable: it is damaged, encrypted, or too long.
    """
    import python_calamine

    if is_archive(data):
        open_archive(data).close()
    parts = Parts("sheet", longest)
    try:
        book = python_calamine.CalamineWorkbook.from_filelike(io.BytesIO(data))
        for name in book.sheet_names:
            lines, length = [], 0
            for row in book.get_sheet_by_name(name).iter_rows():
                if line := " | ".join(map(_cell, row)).rstrip(" |"):
                    lines.append(line)
                    length += len(line)
                    parts.check(length)
            parts.add(f"# {one_line(name)}\n\n" + "\n".join(lines) if lines else "", one_line(name))
    except python_calamine.CalamineError as error:
        raise Unreadable(f"damaged or encrypted: not a spreadsheet ({one_line(str(error))})") from None
    return parts.text("")


def _cell(value: Any) -> str:
    if isinstance(value, float) and value.is_integer():
        value = int(value)
    return one_line(str(value))


_TEXT = "{urn:oasis:names:tc:opendocument:xmlns:text:1.0}"
_TABLE = "{urn:oasis:names:tc:opendocument:xmlns:table:1.0}"
_OFFICE = "{urn:oasis:names:tc:opendocument:xmlns:office:1.0}"
_ODT_SKIPPED = {f"{_TEXT}{name}" for name in ("tracked-changes", "table-of-content", "sequence-decls")}
_BLANKS = {f"{_TEXT}s": " ", f"{_TEXT}tab": "\t", f"{_TEXT}line-break": "\n"}


def read_odt(data: bytes) -> FileText:
    """Read a text document of LibreOffice, without what was deleted with changes tracked.

    Raises:
        Unreadable: it is damaged or encrypted.
    """
    archive = open_archive(data)
    content = parse_xml(read_member(archive, "content.xml"), "content.xml")
    body = content.find(f"{_OFFICE}body/{_OFFICE}text")
    if body is None:
        raise Unreadable("not a text document of LibreOffice, or encrypted")
    title = ""
    if "meta.xml" in archive.namelist():
        meta = parse_xml(read_member(archive, "meta.xml"), "meta.xml")
        title = str(meta.xpath("string(//*[local-name()='title'][1])"))
    return FileText(one_line(title), clean("\n".join(_odt_lines(body))).strip())


def _odt_lines(top: Any, item: str = "") -> Iterator[str]:
    for child in top:
        tag = child.tag
        if tag == f"{_TEXT}h":
            level = child.get(f"{_TEXT}outline-level", "1")
            yield from ("", f"{'#' * min(int(level) if level.isdigit() else 1, 6)} {one_line(_words(child))}", "")
        elif tag == f"{_TEXT}p":
            yield from ([f"{item}{_words(child)}"] if item else ["", _words(child), ""])
        elif tag == f"{_TEXT}list":
            yield from _odt_lines(child, "- ")
        elif tag == f"{_TABLE}table":
            rows = child.iter(f"{_TABLE}table-row")
            yield from ("", *(" | ".join(one_line(_words(cell)) for cell in row) for row in rows), "")
        elif isinstance(tag, str) and tag not in _ODT_SKIPPED:
            yield from _odt_lines(child, item)


def _words(element: Any) -> str:
    """The characters of an element; paragraphs inside of it (a cell's, a note's) are parted by a blank."""
    parts = [element.text or ""]
    for child in element:
        parts.append(_BLANKS.get(child.tag, ""))
        if isinstance(child.tag, str):
            parts.append(_words(child))
        parts.append(" " if child.tag == f"{_TEXT}p" else "")
        parts.append(child.tail or "")
    return "".join(parts)
