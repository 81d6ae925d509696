"""OpenDocument: texts and sheets of LibreOffice, without what was deleted with changes tracked."""

from __future__ import annotations

import posixpath
import re
from typing import TYPE_CHECKING, Any

from aveyb_retrieval.documents.readers.archives import open_archive, read_member
from aveyb_retrieval.documents.readers.filetext import (
    FileText,
    Parts,
    Unreadable,
    clean_name,
    embedded,
    file_metadata,
    hidden_text,
    one_line,
    paragraphs,
    whole_number,
)
from aveyb_retrieval.documents.readers.html import page_text
from aveyb_retrieval.documents.readers.list_numbers import number_as
from aveyb_retrieval.documents.readers.superscripts import shifted
from aveyb_retrieval.documents.readers.table_lines import (
    Merged,
    SheetText,
    left_out,
    row_text,
    sheet_text,
)
from aveyb_retrieval.documents.readers.xml import parse_xml

if TYPE_CHECKING:
    import zipfile
    from collections.abc import Collection, Iterator

    from aveyb_retrieval.documents.readers.file_limits import Limits

_TEXT = "{urn:oasis:names:tc:opendocument:xmlns:text:1.0}"
_TABLE = "{urn:oasis:names:tc:opendocument:xmlns:table:1.0}"
_OFFICE = "{urn:oasis:names:tc:opendocument:xmlns:office:1.0}"
_STYLE = "{urn:oasis:names:tc:opendocument:xmlns:style:1.0}"
_DRAW = "{urn:oasis:names:tc:opendocument:xmlns:drawing:1.0}"
_FORM = "{urn:oasis:names:tc:opendocument:xmlns:form:1.0}"
_SVG = "{urn:oasis:names:tc:opendocument:xmlns:svg-compatible:1.0}"
_MATH = "{http://www.w3.org/1998/Math/MathML}math"
_LINK = "{http://www.w3.org/1999/xlink}href"
_SKIPPED = {
    *(
        f"{_TEXT}{name}"
        for name in ("tracked-changes", "table-of-content", "sequence-decls", "ruby-text")
    ),
    f"{_SVG}title",
    f"{_SVG}desc",
}
_AROUND = tuple(
    f"{_STYLE}{name}{which}" for name in ("header", "footer") for which in ("", "-left", "-first")
)
# of a box, no part of the paragraph around it
_BLOCKS = {f"{_TEXT}p", f"{_TEXT}h", f"{_TEXT}list", f"{_TABLE}table"}
_OBJECTS = (f"{_DRAW}object", f"{_DRAW}object-ole")
_OUTLINE = "\0"  # in place of a list's name: the numbers of headings
_ASIDE = {f"{_TEXT}note", f"{_OFFICE}annotation"}
_BLANKS = {f"{_TEXT}s": " ", f"{_TEXT}tab": "\t", f"{_TEXT}line-break": "\n"}
_MOST_REPEATED = (
    1000  # cells or rows that one element stands for; more of them are the empty rest of a sheet
)
_MAX_BLANK_CHARACTERS = 1000


def is_opendocument(data: bytes) -> bool:
    """Return whether an archive is a file of LibreOffice."""
    return "content.xml" in open_archive(data).namelist()


def read_odt(data: bytes, _limits: Limits) -> FileText:
    """Read a text document; notes, comments, page headers and footers stand behind the text."""
    archive, content, body = _opened(data, "text")
    styles = _part(archive, "styles.xml")
    reader = _Reader(archive, content, styles)
    lines = [*reader.lines(body), "", *_fields(body)]
    for aside in reader.asides:  # notes in notes follow
        lines += ["", *reader.lines(aside), ""]
    around = () if styles is None else styles.iter(*_AROUND)
    # without blank lines between: none of theirs is a heading
    texts = ("\n".join(filter(str.strip, reader.lines(part))) for part in around)
    lines += ["", *dict.fromkeys(texts)]
    title, metadata = _properties(archive)
    notes = (hidden_text(reader.hidden), embedded(reader.embedded))
    warning = "; ".join(filter(None, notes))
    return FileText(
        title,
        paragraphs(lines),
        None,
        warning,
        metadata,
        is_incomplete=bool(reader.embedded),
    )


def _fields(body: Any) -> Iterator[str]:
    """What is typed and chosen in the forms of a document, a field a line."""
    for field in body.iterfind(f".//{_OFFICE}forms//*"):
        attributes = {name.removeprefix(_FORM): value for name, value in field.attrib.items()}
        options = field.iterfind(f"{_FORM}option[@{_FORM}current-selected='true']")
        chosen = ", ".join(option.get(f"{_FORM}label") or "" for option in options)
        if (
            value := attributes.get("current-value")
            or chosen
            or "yes" * (attributes.get("current-state") == "checked")
        ):
            yield one_line(f"{attributes.get('label') or attributes.get('name')}: {value}")


def _opened(data: bytes, kind: str) -> tuple[zipfile.ZipFile, Any, Any]:
    archive = open_archive(data)
    content = parse_xml(read_member(archive, "content.xml"), "content.xml")
    body = content.find(f"{_OFFICE}body/{_OFFICE}{kind}")
    if body is None:
        raise Unreadable(f"damaged or encrypted: not a {kind} of LibreOffice")
    return archive, content, body


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
    title, *other_values = (
        str(meta.xpath(f"string(//*[local-name()='{name}'][1])"))
        for name in ("title", "initial-creator", "creator", "creation-date")
    )
    return clean_name(title), file_metadata(other_values[0] or other_values[1], other_values[2])


class _Reader:
    """The lines of a text document; notes and comments are kept for its end."""

    def __init__(self, archive: zipfile.ZipFile, *parts: Any) -> None:
        self.asides: list[Any] = []
        self.embedded: list[str] = []  # files that are not read
        self.hidden = self.formulas = 0  # places of hidden text, formulas without a value
        self._archive = archive
        self._boxes: list[Any] = []  # of the paragraph that is read
        self._counts: dict[str, dict[int, int]] = {}
        self._objects: set[str] = set()
        self._shifts: dict[str, int] = {}
        self._above: dict[str, str] = {}
        self._hidden_styles: set[str] = set()
        self._lists: dict[str, dict[int, Any]] = {}
        for part in parts:
            if part is not None:
                self._read_styles(part)

    def _read_styles(self, part: Any) -> None:
        for style in part.iter(f"{_STYLE}style"):
            properties, name = (
                style.find(f"{_STYLE}text-properties"),
                style.get(f"{_STYLE}name") or "",
            )
            self._above[name] = style.get(f"{_STYLE}parent-style-name") or ""
            if properties is None:
                continue
            if position := (properties.get(f"{_STYLE}text-position") or "").split():
                self._shifts[name] = (
                    -1
                    if position[0].startswith(("sub", "-"))
                    else int(position[0] not in ("0%", "0"))
                )
            if properties.get(f"{_TEXT}display") == "none":
                self._hidden_styles.add(name)
        for style in part.iter(f"{_TEXT}list-style", f"{_TEXT}outline-style"):
            name = (
                _OUTLINE
                if style.tag == f"{_TEXT}outline-style"
                else style.get(f"{_STYLE}name") or ""
            )
            levels = style.iter(f"{_TEXT}list-level-style-number", f"{_TEXT}outline-level-style")
            self._lists[name] = {
                whole_number(level.get(f"{_TEXT}level")): level for level in levels
            }

    def lines(self, top: Any, item: str = "", depth: int = 0, style: str = "") -> Iterator[str]:
        """The text of all paragraphs and tables below an element, in order; blank lines between
        paragraphs.
        """
        for child in top:
            tag = child.tag
            if self._is_hidden(child):
                self.hidden += any(map(str.strip, child.itertext()))
            elif tag in (f"{_TEXT}h", f"{_TEXT}p", f"{_DRAW}frame"):
                text = self.words(child).strip()
                boxes, self._boxes = self._boxes, []
                if tag == f"{_TEXT}h" and text:
                    level = whole_number(child.get(f"{_TEXT}outline-level"), 1, most=6)
                    unlisted = child.get(f"{_TEXT}is-list-header") == "true"
                    item = "" if unlisted else item or self._number(_OUTLINE, level)
                    yield from ("", f"{'#' * level} {item.removeprefix('- ')}{one_line(text)}", "")
                else:
                    yield from ([f"{item}{text}"] if item and text else ["", text, ""])
                item = ""
                for box in boxes:
                    yield from self.lines(box)
            elif tag == f"{_TEXT}list":
                yield from self._list(child, depth + 1, child.get(f"{_TEXT}style-name") or style)
            elif tag == f"{_TABLE}table":
                merged = Merged()
                rows = (
                    row_text(self.cells(row, number, merged))
                    for number, row in enumerate(_rows_of(child))
                )
                yield from ("", *filter(None, rows), "")
            elif isinstance(tag, str) and tag not in _SKIPPED and tag not in _ASIDE:
                yield from self.lines(child, item, depth, style)

    def _list(self, top: Any, depth: int, style: str) -> Iterator[str]:
        if (
            depth == 1
            and top.get(f"{_TEXT}continue-numbering") != "true"
            and not top.get(f"{_TEXT}continue-list")
        ):
            self._counts.pop(style, None)
        for entry in top:
            if entry.tag == f"{_TEXT}list-item":
                yield from self.lines(
                    entry,
                    self._number(style, depth, entry.get(f"{_TEXT}start-value")),
                    depth,
                    style,
                )
            elif entry.tag == f"{_TEXT}list-header":
                yield from self.lines(entry, "", depth, style)

    def _number(self, style: str, depth: int, at: str | None = None) -> str:
        """Count an item of a list: its number as it is shown, else a dash."""
        levels, counts = self._lists.get(style, {}), self._counts.setdefault(style, {})
        for deeper in [level for level in counts if level > depth]:
            del counts[deeper]
        if (shape := levels.get(depth)) is None:
            return "- "
        counts[depth] = whole_number(
            at, counts.get(depth, whole_number(shape.get(f"{_TEXT}start-value"), 1) - 1) + 1
        )
        first = depth + 1 - whole_number(shape.get(f"{_TEXT}display-levels"), 1, most=depth)
        numbers = (
            number_as(kind, counts.get(level, 1))
            for level in range(first, depth + 1)
            if level in levels and (kind := levels[level].get(f"{_STYLE}num-format"))
        )
        before, behind = (shape.get(f"{_STYLE}num-{name}") or "" for name in ("prefix", "suffix"))
        return f"{before}{'.'.join(numbers)}{behind} ".lstrip() or "- "

    def cells(
        self, row: Any, number: int, merged: Merged, hidden: Collection[int] = ()
    ) -> list[tuple[int, str]]:
        """The texts of a row by their columns, with those of rows above that reach into it."""
        cells: dict[int, str] = {}
        ends: dict[int, int] = {}
        column = 0
        for cell in row.iterchildren(f"{_TABLE}table-cell", f"{_TABLE}covered-table-cell"):
            count = _count(cell, f"{_TABLE}number-columns-repeated")
            is_plain = (
                len(cell) == 1
                and cell[0].tag == f"{_TEXT}p"
                and not len(cell[0])
                and not self._hidden_styles
            )
            text = one_line((cell[0].text or "") if is_plain else " ".join(self.lines(cell)))
            if not text and cell.find(f"{_TEXT}p") is None:  # of a program that writes values only
                values = (
                    cell.get(f"{_OFFICE}{name}value")
                    for name in ("string-", "date-", "time-", "boolean-", "")
                )
                text = one_line(next(filter(None, values), ""))
                self.formulas += not text and cell.get(f"{_TABLE}formula") is not None
            if (down := _count(cell, f"{_TABLE}number-rows-spanned")) > 1:
                ends[column] = number + down - 1
            if text:
                cells |= {
                    place: text for place in range(column, column + count) if place not in hidden
                }
            column += count
        return merged.fill(number, cells, ends)

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
                self.asides += (
                    child.iter(f"{_TEXT}note-body") if tag == f"{_TEXT}note" else (child,)
                )
            elif tag in _BLANKS:
                parts.append(
                    _BLANKS[tag]
                    * whole_number(child.get(f"{_TEXT}c"), 1, most=_MAX_BLANK_CHARACTERS)
                )
            elif tag == f"{_TEXT}ruby":
                self._ruby(child, parts)
            elif tag == f"{_TEXT}span":
                self._span(child, parts)
            elif tag in _OBJECTS:
                self._object(child, parts)
            elif child.get(f"{_TEXT}is-hidden") == "true":
                self.hidden += 1
            elif (
                isinstance(tag, str)
                and tag.startswith(_DRAW)
                and any(inner.tag in _BLOCKS for inner in child)
            ):
                self._boxes.append(child)
            elif isinstance(tag, str) and tag not in _SKIPPED:
                self._collect(child, parts)
            parts.append(child.tail or "")

    def _object(self, reference: Any, parts: list[str]) -> None:
        """Read an equation, or a chart or another document, which stands behind the paragraph."""
        name = posixpath.normpath(reference.get(_LINK) or "").lstrip("/")
        if name in self._objects:  # read once, however often it is named
            return
        self._objects.add(name)
        root = _part(self._archive, f"{name}/content.xml")
        if root is None:
            self.embedded.append(posixpath.basename(name))
        elif root.tag == _MATH:
            from lxml import etree

            # HTML knows no prefix
            source = re.sub(rb"(</?)\w+:", rb"\1", etree.tostring(root, encoding="utf-8"))
            parts.append(one_line(page_text(source.decode())[1]))
        else:
            self._boxes.append(root)

    def _styles_of(self, element: Any) -> list[str]:
        styles = [element.get(f"{_TEXT}style-name") or ""]
        while (above := self._above.get(styles[-1])) and above not in styles:
            styles.append(above)
        return styles

    def _is_hidden(self, element: Any) -> bool:
        if element.get(f"{_TEXT}display") == "none":
            return True
        return bool(self._hidden_styles) and not self._hidden_styles.isdisjoint(
            self._styles_of(element)
        )

    def _span(self, span: Any, parts: list[str]) -> None:
        if self._is_hidden(span):
            self.hidden += 1
        else:
            shift = next(
                (self._shifts[style] for style in self._styles_of(span) if style in self._shifts), 0
            )
            before, inside = "".join(parts[-6:]), self.words(span)
            parts.append(shifted(before, inside, shift))

    def _ruby(self, ruby: Any, parts: list[str]) -> None:
        for base in ruby.iter(f"{_TEXT}ruby-base"):
            self._collect(base, parts)
        reading = "".join("".join(text.itertext()) for text in ruby.iter(f"{_TEXT}ruby-text"))
        following = ruby.getnext()
        if (
            reading
            and following is not None
            and following.tag == ruby.tag
            and not (ruby.tail or "").strip()
        ):
            # one word, whose reading stands behind all of it
            following.set("held", (ruby.get("held") or "") + reading)
        elif reading:
            parts.append(f"({(ruby.get('held') or '') + reading})")


def _rows_of(table: Any) -> Iterator[Any]:
    """The rows of a table itself, also of groups in it."""
    for child in table:
        if child.tag == f"{_TABLE}table-row":
            yield child
        elif (
            isinstance(child.tag, str)
            and child.tag.startswith(f"{_TABLE}table-")
            and child.tag != f"{_TABLE}table"
        ):
            yield from _rows_of(child)


def _count(element: Any, attribute: str) -> int:
    return max(1, whole_number(element.get(attribute), 1, most=_MOST_REPEATED))


def read_ods(data: bytes, limits: Limits) -> FileText:
    """Read a spreadsheet of LibreOffice: cells as they are shown, hidden sheets, rows and columns
    left out.
    """
    archive, content, body = _opened(data, "spreadsheet")
    reader = _Reader(archive, content)
    invisible = {
        style.get(f"{_STYLE}name")
        for style in content.iter(f"{_STYLE}style")
        for properties in style.iter(f"{_STYLE}table-properties")
        if properties.get(f"{_TABLE}display") == "false"
    }
    parts, sheets, hidden = Parts("sheet", limits), [], 0
    for sheet in body.iter(f"{_TABLE}table"):
        name = one_line(sheet.get(f"{_TABLE}name") or "")
        if sheet.get(f"{_TABLE}style-name") in invisible:
            sheets.append(name)
            continue
        rows = SheetText(limits)
        hidden += _read_sheet(sheet, rows, reader)
        notes = (one_line("".join(note.itertext())) for note in sheet.iter(f"{_OFFICE}annotation"))
        shapes = paragraphs(
            line for top in sheet.iterfind(f"{_TABLE}shapes") for line in reader.lines(top)
        )
        parts.add(
            sheet_text(name, rows, (*(f"Comment: {note}" for note in notes if note), shapes)), name
        )
    title, metadata = _properties(archive)
    warnings = [
        *left_out(sheets, {"hidden row or column": hidden, "formula": reader.formulas}),
        embedded(reader.embedded),
    ]
    return parts.text(title, "; ".join(filter(None, warnings)), metadata)


def _read_sheet(sheet: Any, rows: SheetText, reader: _Reader) -> int:
    """Add the rows of a sheet; return how many rows and columns are hidden."""
    hidden_columns: set[int] = set()
    column, hidden = 0, 0
    for column_element in sheet.iter(f"{_TABLE}table-column"):
        count = _count(column_element, f"{_TABLE}number-columns-repeated")
        if column_element.get(f"{_TABLE}visibility") in ("collapse", "filter"):
            hidden_columns |= set(range(column, column + count))
            hidden += 1
        column += count
    merged, number = Merged(), 0
    for row in _rows_of(sheet):
        count = _count(row, f"{_TABLE}number-rows-repeated")
        if row.get(f"{_TABLE}visibility") in ("collapse", "filter"):
            hidden += 1
        elif line := row_text(reader.cells(row, number, merged, hidden_columns)):
            for _ in range(count):
                rows.add(line)
        number += count
    return hidden
