"""Spreadsheets: sheet by sheet, a row a line, cells as they are shown; XLSX here, XLS by calamine.

Of an XLSX file calamine knows the values only, not how they are shown: a percentage, leading zeros, what is hidden.
"""

from __future__ import annotations

import io
import re
from dataclasses import dataclass, field
from functools import cache
from typing import TYPE_CHECKING, Any

from aveyb_retrieval.documents.readers.archives import is_archive
from aveyb_retrieval.documents.readers.base import FileText, Parts, Unreadable, clean, one_line
from aveyb_retrieval.documents.readers.marks import lowered, raised
from aveyb_retrieval.documents.readers.number_formats import BUILT_IN, general, shown_number
from aveyb_retrieval.documents.readers.ooxml import A, C, Package, R, chart_lines, is_on, paragraphs_of_drawing
from aveyb_retrieval.documents.readers.opendocument import is_opendocument, read_ods
from aveyb_retrieval.documents.readers.tables import Rows, row_text, sheet_text
from aveyb_retrieval.wording import plural

if TYPE_CHECKING:
    from collections.abc import Iterator

S = "{http://schemas.openxmlformats.org/spreadsheetml/2006/main}"
_MERGED = re.compile(rb'<(?:\w+:)?mergeCell\b[^>]*?\bref="([A-Z]{1,3})(\d{1,7}):[A-Z]{1,3}(\d{1,7})"')
_MOST_MERGED = 100_000


def read_spreadsheet(data: bytes, longest: int) -> FileText:
    """Read a workbook: its sheets are pages, their names headings; hidden sheets, rows and columns are left out.

    Raises:
        Unreadable: it is damaged, encrypted, or too long.
    """
    if not is_archive(data):
        return _read_old(data, longest)
    if is_opendocument(data):
        return read_ods(data, longest)
    package = Package(data)
    name, root = package.main("a spreadsheet", "xl/workbook.xml", f"{S}workbook")
    book = _Book(package, name, root)
    parts = Parts("sheet", longest)
    relations = package.relations(name)
    for sheet in root.iter(f"{S}sheet"):
        title = one_line(sheet.get("name") or "")
        if (sheet.get("state") or "visible") != "visible":
            book.told.hidden_sheets.append(title)
            continue
        target = relations.get(sheet.get(f"{R}id") or "", ("", ""))[1]
        rows = Rows(longest)
        book.read_rows(target, rows)
        parts.add(sheet_text(title, rows, _asides(package, target)), title)
    title, metadata = package.properties()
    return parts.text(title, package.warning(*book.told.words()), metadata)


@dataclass
class _Told:
    """What is not read of a workbook."""

    hidden_sheets: list[str] = field(default_factory=list)
    hidden_rows: int = 0
    hidden_columns: int = 0
    white: int = 0
    formulas: int = 0

    def words(self) -> Iterator[str]:
        if self.hidden_sheets:
            names = ", ".join(self.hidden_sheets[:5]) + (", ..." if self.hidden_sheets[5:] else "")
            yield f"{plural(len(self.hidden_sheets), 'hidden sheet')} left out: {names}"
        for count, what in (
            (self.hidden_rows, "hidden row"),
            (self.hidden_columns, "cell of hidden columns"),
            (self.white, "cell in white on white"),
        ):
            if count:
                yield f"{plural(count, what, what.replace('row', 'rows').replace('cell', 'cells'))} left out"
        if self.formulas:
            yield (
                f"{plural(self.formulas, 'formula')} without a value: open and save the file in a spreadsheet program"
            )


class _Book:
    """The strings and the formats of a workbook."""

    def __init__(self, package: Package, name: str, root: Any) -> None:
        self.told = _Told()
        self._package = package
        related = {kind: target for kind, target in package.relations(name).values()}
        self._from_1904 = is_on(root.find(f"{S}workbookPr"), "date1904") and (
            root.find(f"{S}workbookPr").get("date1904") is not None
        )
        self._strings = self._shared(package.data(related.get("sharedStrings", "xl/sharedStrings.xml")))
        self._formats, self._white = _styles(package.part(related.get("styles", "xl/styles.xml")))

    def read_rows(self, target: str, rows: Rows) -> None:
        """Add the rows of a sheet as they are shown."""
        data = self._package.data(target)
        if data is None:
            return
        merges = _merges(data)
        hidden: list[tuple[int, int]] = []
        merged: dict[int, tuple[int, str]] = {}  # the last row, and the value, by column
        number = 0
        for element in self._elements(data, target, f"{S}row", f"{S}col"):
            if element.tag == f"{S}col":
                if element.get("hidden") in ("1", "true"):
                    hidden.append((_whole(element.get("min")), _whole(element.get("max"))))
                continue
            number = _whole(element.get("r")) or number + 1
            if element.get("hidden") in ("1", "true"):
                self.told.hidden_rows += len(element) > 0
                continue
            cells = self._cells(element, number, hidden, merges, merged)
            rows.add(row_text(sorted(cells.items())))

    def _cells(
        self,
        row: Any,
        number: int,
        hidden: list[tuple[int, int]],
        merges: dict[tuple[int, int], int],
        merged: dict[int, tuple[int, str]],
    ) -> dict[int, str]:
        """The texts of a row by their columns; those that are merged over rows go on in `merged`."""
        cells: dict[int, str] = {}
        column = -1
        for cell in row.iter(f"{S}c"):
            column = _column(cell.get("r") or "", column + 1)
            text = self._shown(cell)
            if any(first <= column + 1 <= last for first, last in hidden):
                self.told.hidden_columns += bool(text)
            elif text:
                cells[column] = text
                if (number, column) in merges:
                    merged[column] = (merges[number, column], text)
        if cells:
            for place, (last, text) in list(merged.items()):
                if number > last:
                    del merged[place]
                else:
                    cells.setdefault(place, text)
        return cells

    def _elements(self, data: bytes, name: str, *tags: str) -> Iterator[Any]:
        """Elements of a part, one after the other, without keeping them."""
        from lxml import etree

        try:
            for _, element in etree.iterparse(
                io.BytesIO(data), tag=tags, resolve_entities=False, no_network=True, load_dtd=False, huge_tree=False
            ):
                yield element
                element.clear()
                while element.getprevious() is not None:
                    del element.getparent()[0]
        except etree.XMLSyntaxError as error:
            self._package.lost.append(f"damaged: {name!r} is not XML ({error})")

    def _shared(self, data: bytes | None) -> list[str]:
        if data is None:
            return []
        return [one_line(_string(item)) for item in self._elements(data, "sharedStrings.xml", f"{S}si")]

    def _shown(self, cell: Any) -> str:
        """The text of a cell as it is shown; "" of an empty one."""
        kind, found = cell.get("t") or "n", cell.find(f"{S}v")
        style = _whole(cell.get("s"))
        if kind == "inlineStr":
            inside = cell.find(f"{S}is")
            text = "" if inside is None else one_line(_string(inside))
        elif found is None or not found.text:
            self.told.formulas += cell.find(f"{S}f") is not None and kind != "str"
            return ""
        elif kind == "s":
            place = _whole(found.text)
            text = self._strings[place] if place < len(self._strings) else ""
        elif kind == "b":
            text = "TRUE" if found.text.strip() in ("1", "true") else "FALSE"
        elif kind == "n":
            text = self._number(found.text.strip(), style)
        else:  # a text, an error, a date of ISO 8601
            text = one_line(found.text)
        if text and style in self._white:
            self.told.white += 1
            return ""
        return text

    def _number(self, text: str, style: int) -> str:
        try:
            value = float(text)
        except ValueError:
            return text
        if value != value or value in (float("inf"), float("-inf")):
            return text
        shape = self._formats[style] if style < len(self._formats) else ""
        return shown_number(value, shape, from_1904=self._from_1904) if shape else general(value)


def _string(item: Any) -> str:
    """A text of a sheet, which may have parts with formats of their own; how it is spoken is left out."""
    parts: list[str] = []
    for child in item:
        if child.tag == f"{S}t":
            parts.append(child.text or "")
        elif child.tag == f"{S}r":
            words = "".join(text.text or "" for text in child.iter(f"{S}t"))
            align = child.find(f"{S}rPr/{S}vertAlign")
            shift = align.get("val") if align is not None else ""
            before = "".join(parts[-3:])
            parts.append(
                raised(before, words)
                if shift == "superscript"
                else lowered(before, words)
                if shift == "subscript"
                else words
            )
    return _escaped("".join(parts))


_ESCAPED = re.compile(r"_x([0-9A-Fa-f]{4})_")


def _escaped(text: str) -> str:
    return _ESCAPED.sub(lambda found: chr(int(found[1], 16)), text) if "_x" in text else text


def _styles(root: Any | None) -> tuple[list[str], set[int]]:
    """The formats of numbers by the styles of cells, "" of a general one, and the styles that are white on white."""
    if root is None:
        return [], set()
    shapes = dict(BUILT_IN)
    for element in root.iter(f"{S}numFmt"):
        shapes[_whole(element.get("numFmtId"))] = element.get("formatCode") or ""
    fonts = [_is_white(font.find(f"{S}color")) for font in root.iterfind(f"{S}fonts/{S}font")]
    fills = [fill.find(f"{S}patternFill") for fill in root.iterfind(f"{S}fills/{S}fill")]
    bare = [fill is not None and (fill.get("patternType") or "none") == "none" for fill in fills]
    formats, white = [], set()
    for style, element in enumerate(root.iterfind(f"{S}cellXfs/{S}xf")):
        formats.append(shapes.get(_whole(element.get("numFmtId")), ""))
        font, fill = _whole(element.get("fontId")), _whole(element.get("fillId"))
        if font < len(fonts) and fonts[font] and fill < len(bare) and bare[fill]:
            white.add(style)
    return ["" if shape.lower() == "general" else shape for shape in formats], white


def _is_white(colour: Any | None) -> bool:
    return colour is not None and (
        (colour.get("rgb") or "").upper()[-6:] == "FFFFFF" or (colour.get("theme") == "0" and not colour.get("tint"))
    )


def _merges(data: bytes) -> dict[tuple[int, int], int]:
    """The last row of merged cells that span rows, by row and column of the first one."""
    found: dict[tuple[int, int], int] = {}
    for merge in _MERGED.finditer(data):
        if int(merge[3]) > int(merge[2]):
            found[int(merge[2]), _column(merge[1].decode() + "1", 0)] = int(merge[3])
            if len(found) > _MOST_MERGED:
                break
    return found


def _column(reference: str, otherwise: int) -> int:
    """The column of a cell, counted from 0: 27 of "AB12"."""
    letters = reference.rstrip("0123456789")
    return _column_of(letters) if letters.isascii() and letters.isalpha() and len(letters) < 4 else otherwise


@cache
def _column_of(letters: str) -> int:
    column = 0
    for letter in letters.upper():
        column = 26 * column + ord(letter) - ord("A") + 1
    return column - 1


def _whole(value: str | None) -> int:
    text = (value or "").strip()
    return int(text) if text.isascii() and text.isdigit() and len(text) < 12 else 0


def _asides(package: Package, target: str) -> Iterator[str]:
    """What stands beside the cells of a sheet: comments, charts, boxes."""
    relations = package.relations(target)
    threads = [name for kind, name in relations.values() if kind == "threadedComment"]
    for name in threads or [name for kind, name in relations.values() if kind == "comments"]:
        root = package.part(name)
        for comment in () if root is None else root.iter():
            place = comment.get("ref") if isinstance(comment.tag, str) else None
            if place and (text := one_line("".join(comment.itertext()))):
                yield f"Comment on {one_line(place)}: {text}"
    for kind, name in relations.values():
        drawing = package.part(name) if kind == "drawing" else None
        if drawing is None:
            continue
        of_drawing = package.relations(name)
        for element in drawing.iter():
            if element.tag == f"{C}chart":
                root = package.part(of_drawing.get(element.get(f"{R}id") or "", ("", ""))[1])
                yield "" if root is None else "\n".join(chart_lines(root))
            elif isinstance(element.tag, str) and element.tag.endswith("}txBody") and element.find(f"{A}p") is not None:
                yield clean("\n".join(filter(None, paragraphs_of_drawing(element))))


def _read_old(data: bytes, longest: int) -> FileText:
    """Read a workbook of Excel 97, by calamine: values without their formats."""
    import python_calamine

    parts, told = Parts("sheet", longest), _Told()
    try:
        book = python_calamine.CalamineWorkbook.from_filelike(io.BytesIO(data))
        for about in book.sheets_metadata:
            if about.visible != python_calamine.SheetVisibleEnum.Visible:
                told.hidden_sheets.append(one_line(about.name))
                continue
            rows = Rows(longest)
            for row in book.get_sheet_by_name(about.name).iter_rows():
                rows.add(row_text(enumerate(map(_value, row))))
            parts.add(sheet_text(about.name, rows), one_line(about.name))
    except python_calamine.CalamineError as error:
        raise Unreadable(f"damaged or encrypted: not a spreadsheet ({one_line(str(error))})") from None
    return parts.text("", "; ".join(told.words()))


def _value(value: Any) -> str:
    return general(value) if isinstance(value, float) else one_line(str(value))
