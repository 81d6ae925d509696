"""OpenDocument: texts and sheets of LibreOffice, without what was deleted with changes tracked."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

from aveyb_retrieval.documents.readers.archives import open_archive, parse_xml, read_member
from aveyb_retrieval.documents.readers.base import FileText, Parts, Unreadable, about, named, one_line, paragraphs
from aveyb_retrieval.documents.readers.characters import lowered, raised
from aveyb_retrieval.documents.readers.ooxml import number_as
from aveyb_retrieval.documents.readers.tables import Rows, row_text, sheet_text
from aveyb_retrieval.wording import plural

if TYPE_CHECKING:
    import zipfile
    from collections.abc import Iterator

_TEXT = "{urn:oasis:names:tc:opendocument:xmlns:text:1.0}"
_TABLE = "{urn:oasis:names:tc:opendocument:xmlns:table:1.0}"
_OFFICE = "{urn:oasis:names:tc:opendocument:xmlns:office:1.0}"
_STYLE = "{urn:oasis:names:tc:opendocument:xmlns:style:1.0}"
_FO = "{urn:oasis:names:tc:opendocument:xmlns:xsl-fo-compatible:1.0}"
_DRAW = "{urn:oasis:names:tc:opendocument:xmlns:drawing:1.0}"
_SKIPPED = {f"{_TEXT}{name}" for name in ("tracked-changes", "table-of-content", "sequence-decls", "ruby-text")}
_ASIDE = {f"{_TEXT}note", f"{_OFFICE}annotation"}
_BLANKS = {f"{_TEXT}s": " ", f"{_TEXT}tab": "\t", f"{_TEXT}line-break": "\n"}
_MOST_REPEATED = 1000  # cells or rows that one element stands for; more of them are the empty rest of a sheet
_MOST_BLANKS = 1000


def is_opendocument(data: bytes) -> bool:
    """Return whether an archive is a file of LibreOffice: it says so in its first file, or its content is there."""
    archive = open_archive(data)
    return "content.xml" in archive.namelist()


def read_odt(data: bytes) -> FileText:
    """Read a text document; notes, comments, page headers and footers stand behind the text.

    Raises:
        Unreadable: it is damaged or encrypted.
    """
    archive = open_archive(data)
    content = parse_xml(read_member(archive, "content.xml"), "content.xml")
    body = content.find(f"{_OFFICE}body/{_OFFICE}text")
    if body is None:
        raise Unreadable("not a text document of LibreOffice, or encrypted")
    styles = _part(archive, "styles.xml")
    reader = _Reader([content, *([] if styles is None else [styles])])
    lines = list(reader.lines(body))
    for aside in reader.asides:
        lines += ["", *_Reader([content], reader).lines(aside), ""]
    around = [] if styles is None else [*styles.iter(f"{_STYLE}header", f"{_STYLE}footer")]
    texts = dict.fromkeys("\n".join(_Reader([content], reader).lines(part)).strip() for part in around)
    lines += [line for text in texts if text for line in ("", text, "")]
    title, metadata = _properties(archive)
    told = f"hidden text left out ({plural(reader.hidden, 'place')})" if reader.hidden else ""
    return FileText(title, paragraphs(lines), None, told, metadata)


def _part(archive: zipfile.ZipFile, name: str) -> Any | None:
    """A part that the text does not need: None where it is missing or damaged."""
    try:
        return parse_xml(read_member(archive, name), name) if name in archive.namelist() else None
    except Unreadable:
        return None


def _properties(archive: zipfile.ZipFile) -> tuple[str, dict[str, Any]]:
    meta = _part(archive, "meta.xml")
    if meta is None:
        return "", {}
    title, *others = (
        str(meta.xpath(f"string(//*[local-name()='{name}'][1])"))
        for name in ("title", "initial-creator", "creator", "creation-date")
    )
    return named(title), about(others[0] or others[1], others[2])


class _Reader:
    """The lines of a text document; notes and comments are kept for its end."""

    def __init__(self, parts: list[Any], whole: _Reader | None = None) -> None:
        self.asides: list[Any] = []
        self.hidden = 0
        self._shifts: dict[str, int] = {} if whole is None else whole._shifts
        self._hidden_styles: set[str] = set() if whole is None else whole._hidden_styles
        self._lists: dict[str, dict[int, Any]] = {} if whole is None else whole._lists
        for part in parts if whole is None else ():
            self._read_styles(part)

    def _read_styles(self, part: Any) -> None:
        for style in part.iter(f"{_STYLE}style"):
            properties = style.find(f"{_STYLE}text-properties")
            if properties is None:
                continue
            name = style.get(f"{_STYLE}name") or ""
            position = (properties.get(f"{_STYLE}text-position") or "").split()
            if position and position[0] not in ("0%", "0"):
                self._shifts[name] = -1 if position[0] == "sub" or position[0].startswith("-") else 1
            if properties.get(f"{_TEXT}display") == "none":
                self._hidden_styles.add(name)
        for style in part.iter(f"{_TEXT}list-style"):
            levels = {}
            for level in style:
                depth = level.get(f"{_TEXT}level") or "" if isinstance(level.tag, str) else ""
                if depth.isdigit() and level.tag == f"{_TEXT}list-level-style-number":
                    levels[int(depth[:3])] = level
            self._lists[style.get(f"{_STYLE}name") or ""] = levels

    def lines(self, top: Any, item: str = "", depth: int = 0, style: str = "") -> Iterator[str]:
        """The text of all paragraphs and tables below an element, in order; blank lines between paragraphs."""
        for child in top:
            tag = child.tag
            if tag == f"{_TEXT}h":
                level = child.get(f"{_TEXT}outline-level", "1")
                words = one_line(self.words(child))
                yield from ("", f"{'#' * min(int(level) if level.isdecimal() else 1, 6)} {words}" if words else "", "")
            elif tag == f"{_TEXT}p":
                text = self.words(child).strip()
                yield from ([f"{item}{text}"] if item and text else ["", text, ""])
                item = ""
                yield from self._boxes(child)
            elif tag == f"{_TEXT}list":
                yield from self._list(child, depth + 1, child.get(f"{_TEXT}style-name") or style)
            elif tag == f"{_TABLE}table":
                yield from ("", *self._rows(child), "")
            elif isinstance(tag, str) and tag not in _SKIPPED and tag not in _ASIDE:
                yield from self.lines(child, item, depth, style)

    def _list(self, top: Any, depth: int, style: str) -> Iterator[str]:
        shape = self._lists.get(style, {}).get(depth)
        start = "1" if shape is None else shape.get(f"{_TEXT}start-value") or "1"
        count = int(start) - 1 if start.isdecimal() and len(start) < 9 else 0
        for entry in top:
            if entry.tag == f"{_TEXT}list-item":
                given = entry.get(f"{_TEXT}start-value") or ""
                count = int(given) if given.isdecimal() and len(given) < 9 else count + 1
                yield from self.lines(entry, _list_number(shape, count), depth, style)
            elif entry.tag == f"{_TEXT}list-header":
                yield from self.lines(entry, "", depth, style)

    def _boxes(self, paragraph: Any) -> Iterator[str]:
        """The text of boxes that are anchored in a paragraph."""
        for box in paragraph.iter(f"{_DRAW}text-box"):
            yield from self.lines(box)

    def _rows(self, table: Any) -> Iterator[str]:
        above: dict[int, tuple[int, str]] = {}
        for row in _rows_of(table):
            cells: dict[int, str] = {}
            column = 0
            for cell in row:
                if cell.tag not in (f"{_TABLE}table-cell", f"{_TABLE}covered-table-cell"):
                    continue
                text = one_line(" ".join(self.lines(cell)))
                down = _count(cell, f"{_TABLE}number-rows-spanned")
                if text and down > 1:
                    above[column] = (down, text)
                if not text and column in above:
                    text = above[column][1]
                for _ in range(_count(cell, f"{_TABLE}number-columns-repeated")):
                    cells[column] = text
                    column += 1
            above = {place: (left - 1, text) for place, (left, text) in above.items() if left > 1}
            if any(cells.values()):
                yield " | ".join(cells.values())

    def words(self, element: Any) -> str:
        """The characters of an element; boxes in it and notes are read elsewhere."""
        parts: list[str] = []
        self._collect(element, parts)
        return "".join(parts)

    def _collect(self, element: Any, parts: list[str]) -> None:
        parts.append(element.text or "")
        for child in element:
            tag = child.tag
            if tag in _ASIDE:
                self._keep(child)
            elif tag in _BLANKS:
                count = child.get(f"{_TEXT}c") or "1"
                times = (
                    min(int(count), _MOST_BLANKS) if tag == f"{_TEXT}s" and count.isdecimal() and len(count) < 9 else 1
                )
                parts.append(_BLANKS[tag] * times)
            elif tag == f"{_TEXT}ruby":
                self._ruby(child, parts)
            elif tag == f"{_TEXT}span":
                self._span(child, parts)
            elif isinstance(tag, str) and tag not in _SKIPPED and tag != f"{_DRAW}text-box":
                self._collect(child, parts)
            parts.append(child.tail or "")

    def _span(self, span: Any, parts: list[str]) -> None:
        style = span.get(f"{_TEXT}style-name") or ""
        shift = self._shifts.get(style, 0)
        if style in self._hidden_styles:
            self.hidden += 1
        elif shift:
            inside: list[str] = []
            self._collect(span, inside)
            parts.append((raised if shift > 0 else lowered)("".join(parts[-6:]), "".join(inside)))
        else:
            self._collect(span, parts)

    def _ruby(self, ruby: Any, parts: list[str]) -> None:
        for base in ruby.iter(f"{_TEXT}ruby-base"):
            self._collect(base, parts)
        reading = "".join("".join(text.itertext()) for text in ruby.iter(f"{_TEXT}ruby-text"))
        following = ruby.getnext()
        if reading and following is not None and following.tag == ruby.tag and not (ruby.tail or "").strip():
            following.set("held", (ruby.get("held") or "") + reading)  # one word, whose reading stands behind all of it
        elif reading:
            parts.append(f"({(ruby.get('held') or '') + reading})")

    def _keep(self, aside: Any) -> None:
        for body in aside.iter(f"{_TEXT}note-body") if aside.tag == f"{_TEXT}note" else (aside,):
            self.asides.append(body)


def _list_number(shape: Any | None, count: int) -> str:
    """What stands in front of an item: its number as it is shown, else a dash."""
    if shape is None:
        return "- "
    kind = {"a": "lowerLetter", "A": "upperLetter", "i": "lowerRoman", "I": "upperRoman", "1": "decimal"}.get(
        shape.get(f"{_STYLE}num-format") or "", ""
    )
    number = number_as(kind, count) if kind else ""
    return f"{shape.get(f'{_STYLE}num-prefix') or ''}{number}{shape.get(f'{_STYLE}num-suffix') or ''} ".lstrip() or "- "


def _rows_of(table: Any) -> Iterator[Any]:
    """The rows of a table itself, also of groups in it."""
    for child in table:
        if child.tag == f"{_TABLE}table-row":
            yield child
        elif isinstance(child.tag, str) and child.tag.startswith(f"{_TABLE}table-") and child.tag != f"{_TABLE}table":
            yield from _rows_of(child)


def _count(element: Any, attribute: str) -> int:
    text = element.get(attribute) or "1"
    return min(max(1, int(text)), _MOST_REPEATED) if text.isdecimal() and len(text) < 9 else 1


def read_ods(data: bytes, longest: int) -> FileText:
    """Read a spreadsheet of LibreOffice: cells as they are shown, hidden sheets, rows and columns left out.

    Raises:
        Unreadable: it is damaged, encrypted, or too long.
    """
    archive = open_archive(data)
    content = parse_xml(read_member(archive, "content.xml"), "content.xml")
    body = content.find(f"{_OFFICE}body/{_OFFICE}spreadsheet")
    if body is None:
        raise Unreadable("damaged or encrypted: not a spreadsheet of LibreOffice")
    reader = _Reader([content])
    invisible = {
        style.get(f"{_STYLE}name")
        for style in content.iter(f"{_STYLE}style")
        for properties in style.iter(f"{_STYLE}table-properties")
        if properties.get(f"{_TABLE}display") == "false"
    }
    parts, sheets, hidden = Parts("sheet", longest), [], 0
    for sheet in body.iter(f"{_TABLE}table"):
        name = one_line(sheet.get(f"{_TABLE}name") or "")
        if sheet.get(f"{_TABLE}style-name") in invisible:
            sheets.append(name)
            continue
        rows = Rows(longest)
        hidden += _read_sheet(sheet, rows, reader)
        notes = [one_line("".join(note.itertext())) for note in sheet.iter(f"{_OFFICE}annotation")]
        parts.add(sheet_text(name, rows, (f"Comment: {note}" for note in notes if note)), name)
    title, metadata = _properties(archive)
    told = [f"{plural(len(sheets), 'hidden sheet')} left out: {', '.join(sheets[:5])}"] if sheets else []
    told += [f"{plural(hidden, 'hidden row or column', 'hidden rows or columns')} left out"] if hidden else []
    return parts.text(title, "; ".join(told), metadata)


def _read_sheet(sheet: Any, rows: Rows, reader: _Reader) -> int:
    """Add the rows of a sheet; return how many rows and columns are hidden."""
    hidden_columns: set[int] = set()
    column, hidden = 0, 0
    for found in sheet.iter(f"{_TABLE}table-column"):
        count = _count(found, f"{_TABLE}number-columns-repeated")
        if found.get(f"{_TABLE}visibility") in ("collapse", "filter"):
            hidden_columns |= set(range(column, column + count))
            hidden += 1
        column += count
    merged: dict[int, tuple[int, str]] = {}  # rows that are left, and the value, by column
    for row in _rows_of(sheet):
        if row.get(f"{_TABLE}visibility") in ("collapse", "filter"):
            hidden += 1
            continue
        cells = _cells(row, reader, hidden_columns, merged)
        line = row_text(sorted(cells.items()))
        for _ in range(_count(row, f"{_TABLE}number-rows-repeated") if line else 0):
            rows.add(line)
        merged = {place: (left - 1, text) for place, (left, text) in merged.items() if left > 1}
    return hidden


def _cells(row: Any, reader: _Reader, hidden: set[int], merged: dict[int, tuple[int, str]]) -> dict[int, str]:
    """The texts of a row by their columns; those that span rows go on in `merged`."""
    cells: dict[int, str] = {}
    column = 0
    for cell in row:
        if cell.tag not in (f"{_TABLE}table-cell", f"{_TABLE}covered-table-cell"):
            continue
        count = _count(cell, f"{_TABLE}number-columns-repeated")
        text = one_line(" ".join(reader.words(part) for part in cell.iterfind(f"{_TEXT}p")))
        down = _count(cell, f"{_TABLE}number-rows-spanned")
        if text and down > 1:
            merged[column] = (down, text)
        if text:
            cells |= {place: text for place in range(column, column + count) if place not in hidden}
        column += count
    if cells:
        for place, (_, text) in merged.items():
            cells.setdefault(place, text)
    return cells
