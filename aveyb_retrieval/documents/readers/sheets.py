"""Spreadsheets: sheet by sheet, a row a line, cells as they are shown; XLSX here, XLS by calamine.

Of an XLSX file calamine knows the values only, not how they are shown: a percentage, leading zeros,
what is hidden.
"""

from __future__ import annotations

import calendar
import io
import operator
import re
from collections import Counter
from dataclasses import dataclass, field
from datetime import date, datetime, timedelta
from decimal import ROUND_HALF_UP, Decimal, InvalidOperation
from functools import cache, lru_cache
from typing import TYPE_CHECKING, Any

from aveyb_retrieval.documents.readers.archives import is_archive
from aveyb_retrieval.documents.readers.filetext import (
    FileText,
    Parts,
    Unreadable,
    clean,
    one_line,
    whole_number,
)
from aveyb_retrieval.documents.readers.ooxml import (
    GRAPHICS,
    SHIFTS,
    A,
    Package,
    R,
    graphic_lines,
    is_true,
    paragraphs_of_drawing,
)
from aveyb_retrieval.documents.readers.opendocument import is_opendocument, read_ods
from aveyb_retrieval.documents.readers.superscripts import shifted
from aveyb_retrieval.documents.readers.table_lines import (
    Merged,
    SheetText,
    left_out,
    row_text,
    sheet_text,
)

if TYPE_CHECKING:
    from collections.abc import Iterator

    from aveyb_retrieval.documents.readers.file_limits import Limits

S = "{http://schemas.openxmlformats.org/spreadsheetml/2006/main}"
_ESCAPED = re.compile(r"_x([0-9A-Fa-f]{4})_")
_MERGED = re.compile(
    rb'<(?:\w+:)?mergeCell\b[^>]*?\bref="([A-Z]{1,3})(\d{1,7}):[A-Z]{1,3}(\d{1,7})"'
)
_MOST_MERGED, _MOST_COLUMNS = 100_000, 1 << 14


def read_spreadsheet(data: bytes, limits: Limits) -> FileText:
    """Read a workbook: sheets are pages, their names headings; what is hidden is left out."""
    if not is_archive(data):
        return _read_old(data, limits)
    if is_opendocument(data):
        return read_ods(data, limits)
    package = Package(data)
    name, root = package.main("a spreadsheet", "xl/workbook.xml", f"{S}workbook")
    book, relations = _Book(package, name, root), package.relations(name)
    parts, hidden = Parts("sheet", limits), []
    for sheet in root.iter(f"{S}sheet"):
        title = one_line(sheet.get("name") or "")
        if (sheet.get("state") or "visible") != "visible":
            hidden.append(title)
            continue
        target = relations.get(sheet.get(f"{R}id") or "", ("", ""))[1]
        rows = SheetText(limits)
        book.read_rows(target, rows)
        parts.add(sheet_text(title, rows, _asides(package, target)), title)
    title, metadata = package.properties()
    warning = package.warning(*left_out(hidden, book.omitted))
    return parts.text(title, warning, metadata, is_incomplete=package.is_incomplete)


class _Book:
    """The strings and the formats of a workbook, and how many things of it are not read."""

    def __init__(self, package: Package, name: str, root: Any) -> None:
        self.omitted: Counter[str] = Counter()
        self._package = package
        related = dict(package.relations(name).values())
        properties = root.find(f"{S}workbookPr")
        self._from_1904 = properties is not None and is_true(properties, "date1904")
        data = package.data(related.get("sharedStrings", "xl/sharedStrings.xml"))
        items = () if data is None else self._elements(data, "sharedStrings.xml", f"{S}si")
        self._strings = [one_line(_string(item)) for item in items]
        self._formats, self._white = _styles(package.part(related.get("styles", "xl/styles.xml")))

    def read_rows(self, target: str, rows: SheetText) -> None:
        data = self._package.data(target)
        if data is None:
            return
        merges, merged = _merges(data), Merged()
        hidden: set[int] = set()
        number = 0
        for element in self._elements(data, target, f"{S}row", f"{S}col"):
            if element.tag == f"{S}col":
                if is_true(element, "hidden"):
                    hidden |= {
                        *range(
                            whole_number(element.get("min")) - 1,
                            whole_number(element.get("max"), most=_MOST_COLUMNS),
                        )
                    }
                continue
            number = whole_number(element.get("r")) or number + 1
            if is_true(element, "hidden"):
                self.omitted["hidden row"] += len(element) > 0
                continue
            cells = self._cells(element, hidden)
            ends = (
                {column: merges[number, column] for column in cells if (number, column) in merges}
                if merges
                else {}
            )
            rows.add(row_text(merged.fill(number, cells, ends)))

    def _cells(self, row: Any, hidden: set[int]) -> dict[int, str]:
        cells: dict[int, str] = {}
        column = -1
        for cell in row.iter(f"{S}c"):
            column = _column(cell.get("r") or "", column + 1)
            if text := self._cell_text(cell):
                if column in hidden:
                    self.omitted["cell of hidden columns"] += 1
                else:
                    cells[column] = text
        return cells

    def _elements(self, data: bytes, name: str, *tags: str) -> Iterator[Any]:
        """Elements of a part, one after the other, without keeping them."""
        from lxml import etree

        try:
            for _, element in etree.iterparse(
                io.BytesIO(data),
                tag=tags,
                resolve_entities=False,
                no_network=True,
                load_dtd=False,
                huge_tree=False,
            ):
                yield element
                element.clear()
                while element.getprevious() is not None:
                    del element.getparent()[0]
        except etree.XMLSyntaxError as error:
            self._package.lost.append(f"damaged: {name!r} is not XML ({error})")

    def _cell_text(self, cell: Any) -> str:
        kind, value = cell.get("t") or "n", cell.find(f"{S}v")
        style = whole_number(cell.get("s")) if kind == "n" or self._white else 0
        if kind == "inlineStr":
            inside = cell.find(f"{S}is")
            text = "" if inside is None else one_line(_string(inside))
        elif value is None or not value.text:
            self.omitted["formula"] += cell.find(f"{S}f") is not None and kind != "str"
            return ""
        elif kind == "s":
            place = whole_number(value.text)
            text = self._strings[place] if place < len(self._strings) else ""
        elif kind == "b":
            text = "TRUE" if value.text.strip() in ("1", "true") else "FALSE"
        elif kind == "n":
            text = self._number(value.text.strip(), style)
        else:  # a text, an error, a date of ISO 8601
            text = one_line(value.text)
        if text and style in self._white:
            self.omitted["cell in white on white"] += 1
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
    """A text of a sheet, which may have parts with formats of their own; how it is spoken is left
    out.
    """
    parts: list[str] = []
    for child in item:
        if child.tag == f"{S}t":
            parts.append(child.text or "")
        elif child.tag == f"{S}r":
            words = "".join(text.text or "" for text in child.iter(f"{S}t"))
            align = child.find(f"{S}rPr/{S}vertAlign")
            shift = 0 if align is None else SHIFTS.get(align.get("val"), 0)
            parts.append(shifted("".join(parts[-3:]), words, shift))
    return _ESCAPED.sub(lambda match: chr(int(match[1], 16)), "".join(parts))


def _styles(root: Any | None) -> tuple[list[str], set[int]]:
    """The formats of numbers by the styles of cells, "" of a general one, and the styles that are
    white on white.
    """
    if root is None:
        return [], set()
    own = {
        whole_number(shape.get("numFmtId")): shape.get("formatCode") or ""
        for shape in root.iter(f"{S}numFmt")
    }
    shapes = BUILT_IN | own
    fonts = [_is_white(font.find(f"{S}color")) for font in root.iterfind(f"{S}fonts/{S}font")]
    fills = [fill.find(f"{S}patternFill") for fill in root.iterfind(f"{S}fills/{S}fill")]
    bare = [fill is not None and (fill.get("patternType") or "none") == "none" for fill in fills]
    formats, white = [], set()
    for style, element in enumerate(root.iterfind(f"{S}cellXfs/{S}xf")):
        formats.append(shapes.get(whole_number(element.get("numFmtId")), ""))
        font, fill = whole_number(element.get("fontId")), whole_number(element.get("fillId"))
        if font < len(fonts) and fonts[font] and fill < len(bare) and bare[fill]:
            white.add(style)
    return ["" if shape.lower() == "general" else shape for shape in formats], white


def _is_white(colour: Any | None) -> bool:
    return colour is not None and (
        (colour.get("rgb") or "").upper()[-6:] == "FFFFFF"
        or (colour.get("theme") == "0" and not colour.get("tint"))
    )


def _merges(data: bytes) -> dict[tuple[int, int], int]:
    """The last row of merged cells that span rows, by row and column of the first one."""
    last_rows: dict[tuple[int, int], int] = {}
    for merge in _MERGED.finditer(data):
        if int(merge[3]) > int(merge[2]):
            last_rows[int(merge[2]), _column_of(merge[1].decode())] = int(merge[3])
            if len(last_rows) > _MOST_MERGED:
                break
    return last_rows


def _column(reference: str, otherwise: int) -> int:
    """The column of a cell, counted from 0: 27 of "AB12"."""
    letters = reference.rstrip("0123456789")
    return (
        _column_of(letters)
        if letters.isascii() and letters.isalpha() and len(letters) < 4
        else otherwise
    )


@cache
def _column_of(letters: str) -> int:
    column = 0
    for letter in letters.upper():
        column = 26 * column + ord(letter) - ord("A") + 1
    return column - 1


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
        for element in drawing.iter("*"):
            if element.tag in GRAPHICS:
                yield "\n".join(graphic_lines(element, of_drawing, package))
            elif element.tag.endswith("}txBody") and element.find(f"{A}p") is not None:
                yield clean("\n".join(filter(None, paragraphs_of_drawing(element))))


def _read_old(data: bytes, limits: Limits) -> FileText:
    """Read a workbook of Excel 97, by calamine: values without their formats."""
    import python_calamine

    parts, hidden = Parts("sheet", limits), []
    try:
        book = python_calamine.CalamineWorkbook.from_filelike(io.BytesIO(data))
        for sheet in book.sheets_metadata:
            if sheet.visible != python_calamine.SheetVisibleEnum.Visible:
                hidden.append(one_line(sheet.name))
                continue
            rows = SheetText(limits)
            for row in book.get_sheet_by_name(sheet.name).iter_rows():
                texts = (
                    general(value) if isinstance(value, float) else one_line(str(value))
                    for value in row
                )
                rows.add(row_text(enumerate(texts)))
            parts.add(sheet_text(sheet.name, rows), one_line(sheet.name))
    except python_calamine.CalamineError as error:
        raise Unreadable(
            f"damaged or encrypted: not a spreadsheet ({one_line(str(error))})"
        ) from None
    return parts.text("", "; ".join(left_out(hidden, {})))


BUILT_IN = {
    1: "0",
    2: "0.00",
    3: "#,##0",
    4: "#,##0.00",
    9: "0%",
    10: "0.00%",
    11: "0.00E+00",
    12: "# ?/?",
    13: "# ??/??",
    14: "yyyy-mm-dd",
    15: "d-mmm-yy",
    16: "d-mmm",
    17: "mmm-yy",
    18: "h:mm AM/PM",
    19: "h:mm:ss AM/PM",
    20: "h:mm",
    21: "h:mm:ss",
    22: "yyyy-mm-dd h:mm",
    37: "#,##0;-#,##0",
    38: "#,##0;-#,##0",
    39: "#,##0.00;-#,##0.00",
    40: "#,##0.00;-#,##0.00",
    45: "mm:ss",
    46: "[h]:mm:ss",
    47: "mm:ss.0",
    48: "0.0E+0",
    49: "@",
}
_PIECE = re.compile(
    r'"(?P<quoted>[^"]*)"|\\(?P<escaped>.)|_.|\*.|\[(?P<bracket>[^\]]*)\]|(?P<general>General)|'
    r"(?P<noon>AM/PM|A/P)|(?P<exponent>E[+-])|(?P<era>g{1,3}|e{1,2}|b{2,4})|(?P<date>y+|m+|d+|h+|s+|\.0+(?=[^0#?]|$))|(?P<digits>[0#?.,]+)|(?P<other>.)",
    re.IGNORECASE | re.DOTALL,
)
_ELAPSED = re.compile(r"h+|m+|s+", re.IGNORECASE)
_CONDITION = re.compile(r"(<=|>=|<>|<|>|=)(-?\d+(?:\.\d+)?)$")
_TESTS = {
    "<": operator.lt,
    ">": operator.gt,
    "=": operator.eq,
    "<=": operator.le,
    ">=": operator.ge,
    "<>": operator.ne,
}
_MAX_FORMAT_CHARACTERS = 255  # characters of a format, as Excel has it
_MOST_DIGITS = 30


@dataclass
class _Section:
    """One part of a format: its pieces as (kind, text), and what numbers it is for."""

    pieces: list[tuple[str, str]] = field(default_factory=list)
    condition: tuple[str, float] | None = None
    locale: int = 0  # LCID; above it, in bits 16 to 23, the kind of calendar

    @property
    def is_date(self) -> bool:
        kinds = {kind for kind, _ in self.pieces}
        return ("era" in kinds and "digits" not in kinds) or any(
            kind in ("elapsed", "noon") or (kind == "date" and text[0] != ".")
            for kind, text in self.pieces
        )


def shown_number(value: float, shape: str, *, from_1904: bool = False) -> str:
    """Write a number as a format shows it, a date of serial days; as it is where the format cannot
    be followed.
    """
    section, number = _section_for(value, _sections(shape[:_MAX_FORMAT_CHARACTERS]))
    if any(kind == "general" or (kind, text) == ("other", "@") for kind, text in section.pieces):
        text_of = {"general": general(number), "digits": "", "date": ""}
        return "".join(
            text_of.get("general" if text == "@" else kind, text) for kind, text in section.pieces
        ).strip()
    try:
        return (
            _date(value, section, from_1904) if section.is_date else _number(number, section.pieces)
        )
    except (InvalidOperation, ValueError, OverflowError):  # a date before 1900, too many digits
        return general(value)


def general(value: float) -> str:
    """Write a number without a format: up to 11 digits, as a cell has room for."""
    if value == int(value) and abs(value) < 1e15:
        return str(int(value))
    text = f"{value:.10g}"
    return text if "e" not in text else f"{value:.6g}"


@lru_cache(maxsize=1024)
def _sections(shape: str) -> tuple[_Section, ...]:
    sections = [_Section()]
    for piece in _PIECE.finditer(shape):
        kind, text, section = piece.lastgroup, piece[piece.lastgroup or 0], sections[-1]
        if kind == "other" and text == ";":
            sections.append(_Section())
        elif kind == "bracket":
            if _ELAPSED.fullmatch(text):
                section.pieces.append(("elapsed", text.lower()))
            elif text.startswith("$"):
                section.locale = _locale(text) or section.locale
                section.pieces.append(("text", text[1:].partition("-")[0]))
            elif test := _CONDITION.match(text):
                section.condition = test[1], float(test[2])
        elif kind:  # not room for a sign, or what fills a cell
            section.pieces.append(("text" if kind in ("quoted", "escaped") else kind, text))
    for section in sections:
        if not section.is_date:
            section.pieces = _joined(section.pieces)
    return tuple(sections[:4])


def _joined(pieces: list[tuple[str, str]]) -> list[tuple[str, str]]:
    """The pieces of a number, in which ".00" is no part of a time."""
    joined: list[tuple[str, str]] = []
    for kind, text in pieces:
        if kind not in ("date", "digits"):
            joined.append((kind, text))
        else:
            joined.append(
                ("digits", joined.pop()[1] + text if joined and joined[-1][0] == "digits" else text)
            )
    return joined


def _section_for(value: float, sections: tuple[_Section, ...]) -> tuple[_Section, float]:
    """The section for a number, and the number as it shows it: of the second one the sign is
    written in the format.
    """
    for section in sections:
        if section.condition and _TESTS[section.condition[0]](value, section.condition[1]):
            return section, abs(value) if value < 0 and section is not sections[0] else value
    numeric = [section for section in sections if not section.condition][:3] or [sections[-1]]
    if value < 0 and len(numeric) > 1:
        return numeric[1], -value
    if value == 0 and len(numeric) > 2:
        return numeric[2], value
    return numeric[0], value


def _number(value: float, pieces: list[tuple[str, str]]) -> str:
    shapes = [text for kind, text in pieces if kind == "digits"]
    if not shapes:  # a format of words only
        return "".join(text for _, text in pieces).strip()
    if ("other", "/") in pieces:  # a fraction
        return general(value)
    amount = Decimal(repr(value)) * Decimal(100) ** sum(piece == ("other", "%") for piece in pieces)
    if any(kind == "exponent" for kind, _ in pieces):
        mantissa, _, power = (
            f"{amount:.{min(len(shapes[0].partition('.')[2]), _MOST_DIGITS)}E}".partition("E")
        )
        return f"{mantissa}E{int(power):+03}"
    shape = "".join(shapes)
    amount /= Decimal(1000) ** (len(shape) - len(shape.rstrip(",")))
    before, _, behind = shape.rstrip(",").partition(".")
    digits = _rounded(abs(amount), before, behind)
    sign = "-" if amount < 0 and digits.strip("0.,") else ""
    written: list[str] = []
    # several shapes, as of a telephone number, share the digits from their end
    for kind, text in reversed(pieces):
        if kind == "digits":
            shapes.pop()
            count = sum(character in "0#?." for character in text) if shapes else len(digits)
            written.append(digits[len(digits) - min(count, len(digits)) :])
            digits = digits[: len(digits) - min(count, len(digits))]
        elif kind != "general":
            written.append(text)
    return sign + "".join(reversed(written)).strip()


def _rounded(amount: Decimal, whole: str, fraction: str) -> str:
    places = min(sum(character in "0#?" for character in fraction), _MOST_DIGITS)
    rounded = amount.quantize(Decimal(1).scaleb(-places), rounding=ROUND_HALF_UP)
    before, _, behind = f"{rounded:f}".partition(".")
    before = before.lstrip("0").rjust(min(whole.count("0"), _MOST_DIGITS), "0")
    if "," in whole:
        first = len(before) % 3
        before = ",".join(
            filter(
                None,
                (before[:first], *(before[at : at + 3] for at in range(first, len(before), 3))),
            )
        )
    optional = len(fraction) - len(fraction.rstrip("#?"))
    if optional:
        length = len(behind) - optional
        behind = behind[:length] + behind[length:].rstrip("0")
    return f"{before}.{behind}" if behind else before or "0"


_ERAS = (  # of Japan, by their first days
    (date(2019, 5, 1), "令和", "R"),
    (date(1989, 1, 8), "平成", "H"),
    (date(1926, 12, 25), "昭和", "S"),
    (date(1912, 7, 30), "大正", "T"),
    (date(1868, 1, 25), "明治", "M"),
)
_JAPANESE, _BUDDHIST = 3, 7  # kinds of calendars
_BUDDHIST_YEARS = 543  # years of the Buddhist calendar before the common era
_JAPANESE_LOCALE = 0x411


def _locale(bracket: str) -> int:
    """The number of the locale and calendar that `$SIGN-411` names; 0 without one."""
    code = bracket.partition("-")[2].partition(",")[0]
    if code.lower().startswith("ja-jp"):
        return _JAPANESE_LOCALE
    try:
        return int(code, 16)
    except ValueError:
        return 0


def _is_buddhist(locale: int) -> bool:
    return (locale >> 16) & 0xFF == _BUDDHIST


def _era_piece(moment: datetime, text: str, locale: int) -> str:
    """The name or the year of an era (g, e), or the year of the Buddhist calendar (b)."""
    letter, length = text[0].lower(), len(text)
    if letter == "b":
        year = moment.year + _BUDDHIST_YEARS
        return str(year) if length > 2 else f"{year % 100:02}"
    if locale & 0xFFFF != _JAPANESE_LOCALE and (locale >> 16) & 0xFF != _JAPANESE:
        return str(moment.year) if letter == "e" else ""
    for first, name, initial in _ERAS:
        if moment.date() >= first:
            if letter == "e":
                return f"{moment.year - first.year + 1:0{length}}"
            return (initial, name[0], name)[length - 1]
    return str(moment.year) if letter == "e" else ""


def _date(value: float, section: _Section, from_1904: bool) -> str:
    pieces = section.pieces
    days = value + (1462 if from_1904 else 0)
    # day 60 of the calendar from 1900 is a 29th of February that there was not
    moment = datetime(1899, 12, 31 if days < 60 else 30) + timedelta(seconds=round(days * 86400))
    letters = [text[0].lower() for kind, text in pieces if kind in ("date", "elapsed")]
    place = 0
    has_noon = any(kind == "noon" for kind, _ in pieces)
    out = []
    for kind, text in pieces:
        is_minute = "h" in letters[place - 1 : place] or "s" in letters[place + 1 : place + 2]
        place += kind in ("date", "elapsed")
        if kind == "elapsed":
            unit = {"h": 3600, "m": 60, "s": 1}[text[0]]
            out.append(str(round(value * 86400) // unit).rjust(min(len(text), _MOST_DIGITS), "0"))
        elif kind == "noon":
            out.append("AM" if moment.hour < 12 else "PM")
        elif kind == "era":
            out.append(_era_piece(moment, text, section.locale))
        elif kind == "date" and text[0] in "yY" and _is_buddhist(section.locale):
            out.append(_era_piece(moment, "bb" if len(text) < 3 else "bbbb", section.locale))
        elif kind == "date":
            out.append(_date_piece(moment, text.lower(), has_noon, is_minute and text[0] in "mM"))
        elif kind != "general" and not (kind == "digits" and text.strip(".,")):
            # of 31.05.2026 the points
            out.append(text)
    return "".join(out).strip()


def _date_piece(moment: datetime, text: str, has_noon: bool, is_minute: bool) -> str:
    length, letter = len(text), text[0]
    if letter == ".":
        return ""
    if letter == "y":
        return f"{moment.year:04}" if length > 2 else f"{moment.year % 100:02}"
    if letter in "dm" and not is_minute and length > 2:
        name = (
            calendar.day_name[moment.weekday()]
            if letter == "d"
            else calendar.month_name[moment.month]
        )
        return name if length > 3 else name[:3]
    hour = (moment.hour + 11) % 12 + 1 if has_noon else moment.hour
    month = moment.minute if is_minute else moment.month
    return (
        f"{ {'d': moment.day, 'm': month, 'h': hour, 's': moment.second}[letter]:0{min(length, 2)}}"
    )
