"""ODT: paragraphs, headings, lists and tables of the package's `content.xml`."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

from aveyb_retrieval.indexes.input.readers.archive import open_archive, parse_xml, read_member
from aveyb_retrieval.indexes.input.readers.base import FileText, Unreadable, clean, one_line

if TYPE_CHECKING:
    from collections.abc import Iterator

_TEXT = "{urn:oasis:names:tc:opendocument:xmlns:text:1.0}"
_TABLE = "{urn:oasis:names:tc:opendocument:xmlns:table:1.0}"
_OFFICE = "{urn:oasis:names:tc:opendocument:xmlns:office:1.0}"
_SKIPPED = {f"{_TEXT}{name}" for name in ("tracked-changes", "table-of-content", "sequence-decls")}
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
    return FileText(one_line(title), clean("\n".join(_lines(body))).strip())


def _lines(top: Any, item: str = "") -> Iterator[str]:
    for child in top:
        tag = child.tag
        if tag == f"{_TEXT}h":
            level = child.get(f"{_TEXT}outline-level", "1")
            yield from ("", f"{'#' * min(int(level) if level.isdigit() else 1, 6)} {one_line(_words(child))}", "")
        elif tag == f"{_TEXT}p":
            yield from ([f"{item}{_words(child)}"] if item else ["", _words(child), ""])
        elif tag == f"{_TEXT}list":
            yield from _lines(child, "- ")
        elif tag == f"{_TABLE}table":
            rows = child.iter(f"{_TABLE}table-row")
            yield from ("", *(" | ".join(one_line(_words(cell)) for cell in row) for row in rows), "")
        elif isinstance(tag, str) and tag not in _SKIPPED:
            yield from _lines(child, item)


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
