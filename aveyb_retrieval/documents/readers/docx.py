"""Documents of Word: paragraphs with headings and list numbers, tables, boxes, equations, charts, notes and comments.

What was inserted with changes tracked is read, what was deleted is not; hidden text is left out and told.
"""

from __future__ import annotations

import re
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Any

from aveyb_retrieval.documents.readers.base import FileText, one_line, paragraphs
from aveyb_retrieval.documents.readers.characters import lowered, raised
from aveyb_retrieval.documents.readers.ooxml import (
    FALLBACK,
    C,
    M,
    Package,
    R,
    chart_lines,
    diagram_lines,
    is_on,
    math_text,
    number_as,
)
from aveyb_retrieval.wording import plural

if TYPE_CHECKING:
    from collections.abc import Iterator

W = "{http://schemas.openxmlformats.org/wordprocessingml/2006/main}"
_DIAGRAM = "{http://schemas.openxmlformats.org/drawingml/2006/diagram}relIds"
_UNREAD = ("del", "moveFrom", "instrText", "delText", "rPr", "pPr", "sectPr", "sdtPr", "tblPr", "trPr", "tcPr", "rt")
_SKIPPED = {f"{W}{name}" for name in _UNREAD} | {FALLBACK}
_ASIDES = ("footnotes", "endnotes", "comments", "header", "footer")  # parts that stand behind the text, in this order
_SYMBOLS = str.maketrans(  # of the font Symbol
    "abgdezhqiklmnxoprstufcywABGDEZHQIKLMNXOPRSTUFCYW",
    "αβγδεζηθικλμνξοπρστυφχψωΑΒΓΔΕΖΗΘΙΚΛΜΝΞΟΠΡΣΤΥΦΧΨΩ",
)
_CHECKS = {"Wingdings": {0xFE: "☒", 0xFD: "☒", 0xFC: "✓", 0xA8: "☐", 0x6F: "☐"}}
_MOST_COLUMNS = 1000  # of a table


def read_docx(data: bytes) -> FileText:
    """Read a document of Word; footnotes, endnotes, comments, page headers and footers stand behind the text.

    Raises:
        Unreadable: it is damaged or encrypted.
    """
    package = Package(data)
    name, root = package.main("a document of Word", "word/document.xml", f"{W}document")
    body = root.find(f"{W}body")
    reader = _Reader(package, name)
    lines = list(reader.lines(root if body is None else body))
    for kind in _ASIDES:
        seen: set[str] = set()  # a header of each section, mostly the same
        for part in package.related(name, kind):
            aside = package.part(part)
            text = "" if aside is None else "\n".join(_Reader(package, part, reader).asides(aside, kind))
            if text.strip() and text not in seen:
                seen.add(text)
                lines += ["", text, ""]
    title, metadata = package.properties()
    told = [f"hidden text left out ({plural(reader.hidden, 'place')})"] if reader.hidden else []
    told += ["another document that is embedded in it is not read"] if package.related(name, "aFChunk") else []
    return FileText(title, paragraphs(lines), None, package.warning(*told), metadata)


@dataclass
class _Style:
    name: str
    above: str
    level: int | None
    number: str  # the id of its list; "" where it has none


@dataclass
class _Line:
    """The characters of a paragraph, and what stands beside it: boxes, charts and diagrams."""

    parts: list[str] = field(default_factory=list)
    boxes: list[Any] = field(default_factory=list)
    readings: list[str] = field(default_factory=list)  # of the characters before, in East Asian text

    def add(self, text: str) -> None:
        if text:
            self.end_readings()
            self.parts.append(text)

    def end_readings(self) -> None:
        if self.readings:
            self.parts.append(f"({''.join(self.readings)})")
            self.readings = []

    def text(self) -> str:
        self.end_readings()
        return "".join(self.parts).strip()


class _Reader:
    """Reads one part of a document with the styles and lists of all."""

    def __init__(self, package: Package, name: str, whole: _Reader | None = None) -> None:
        self._package = package
        self._relations = package.relations(name)
        self._whole = whole or self
        self.hidden = 0
        if whole is None:
            related = {kind: target for kind, target in self._relations.values()}
            self._styles = _styles(package.part(related.get("styles", "word/styles.xml")))
            self._numbering = Numbering(package.part(related.get("numbering", "word/numbering.xml")), W)
        else:
            self._styles, self._numbering = whole._styles, whole._numbering

    def asides(self, root: Any, kind: str) -> Iterator[str]:
        """The text of notes, comments (with their authors), a header or a footer."""
        if kind != "comments":
            yield from self.lines(root)
            return
        for comment in root.iter(f"{W}comment"):
            text = one_line(" ".join(self.lines(comment)))
            author = one_line(comment.get(f"{W}author") or "")
            if text:
                yield from ("", f"Comment{f' ({author})' if author else ''}: {text}", "")

    def lines(self, top: Any) -> Iterator[str]:
        """The text of all paragraphs and tables below an element, in order; blank lines between paragraphs."""
        for child in top:
            if child.tag == f"{W}p":
                yield from self._paragraph(child)
            elif child.tag == f"{W}tbl":
                yield from ("", *self._rows(child), "")
            elif child.tag == f"{M}oMath":
                yield from ("", math_text(child), "")
            elif isinstance(child.tag, str) and child.tag not in _SKIPPED and not _is_contents(child):
                yield from self.lines(child)

    def _paragraph(self, paragraph: Any) -> Iterator[str]:
        line = _Line()
        self._runs(paragraph, line)
        text = line.text()
        yield from self._styled(text, paragraph)
        for box in line.boxes:
            yield from self._box(box)

    def _box(self, box: Any) -> Iterator[str]:
        if box.tag == f"{W}txbxContent":
            yield from self.lines(box)
            return
        kind, of_chart = (f"{R}id", True) if box.tag == f"{C}chart" else (f"{R}dm", False)
        _, target = self._relations.get(box.get(kind) or "", ("", ""))
        root = self._package.part(target)
        if root is not None:
            yield from ("", *(chart_lines(root) if of_chart else diagram_lines(root)), "")

    def _styled(self, text: str, paragraph: Any) -> Iterator[str]:
        properties = paragraph.find(f"{W}pPr")
        style_id, level, listed, depth = "", None, "", 0
        if properties is not None:
            named = properties.find(f"{W}pStyle")
            style_id = (named.get(f"{W}val") or "") if named is not None else ""
            level = _level(properties)
            listed, depth = _list_of(properties)
        style = self._styles.get(style_id, _Style("", "", None, ""))
        name = style.name.lower()
        if name.startswith("toc ") or not text:
            return
        if not listed and style.number:
            listed, depth = style.number, self._numbering.level_of(style.number, style_id)
        number = self._numbering.next(listed, depth) if listed not in ("", "0") else None
        level = style.level if level is None else level
        if name == "title":
            level = 1
        words = f"{number} {text}" if number and number != "-" else text
        if level is not None and level <= 9:  # 10 is the level of body text
            yield from ("", f"{'#' * min(level, 6)} {one_line(words)}", "")
        elif number == "-" or (number is None and name.partition(" ")[0] == "list"):
            yield f"- {text}"
        elif number:
            yield words
        else:
            yield from ("", words, "")

    def _rows(self, table: Any) -> Iterator[str]:
        above: dict[int, str] = {}
        for row in table.iter(f"{W}tr"):
            if next(row.iterancestors(f"{W}tbl")) is not table:
                continue  # of a table inside, which its cell holds
            cells, column = [], 0
            for cell in row.iter(f"{W}tc"):
                if next(cell.iterancestors(f"{W}tr")) is not row:
                    continue
                text = one_line(" ".join(self.lines(cell)))
                span, merged = _merged(cell)
                if merged is None:
                    above.pop(column, None)
                elif merged == "restart":
                    above[column] = text
                else:
                    text = text or above.get(column, "")
                cells.append(text)
                column += span
            yield " | ".join(cells[:_MOST_COLUMNS])

    def _runs(self, element: Any, line: _Line) -> None:
        """Add the characters below an element to a line."""
        for child in element:
            tag = child.tag
            if tag == f"{W}r":
                self._run(child, line)
            elif tag == f"{M}oMath":
                line.add(math_text(child))
            elif tag == f"{W}ruby":
                self._ruby(child, line)
            elif tag in (f"{W}txbxContent", f"{C}chart", _DIAGRAM):
                line.boxes.append(child)
            elif tag in _SIGNS or tag in (f"{W}t", f"{W}sym"):
                line.add(_character(child))
            elif isinstance(tag, str) and tag not in _SKIPPED and not _is_contents(child):
                self._runs(child, line)

    def _run(self, run: Any, line: _Line) -> None:
        properties = run.find(f"{W}rPr")
        if properties is None:
            self._runs(run, line)
            return
        inside = _Line(boxes=line.boxes)
        self._runs(run, inside)
        text = "".join(inside.parts)
        if text.strip() and _is_hidden(run, properties):
            self._whole.hidden += 1
            return
        align = properties.find(f"{W}vertAlign")
        shift = align.get(f"{W}val") if align is not None else ""
        before = "".join(line.parts[-3:])
        if text:
            line.add(raised(before, text) if shift == "superscript" else
                     lowered(before, text) if shift == "subscript" else text)  # fmt: skip
        line.readings += inside.readings

    def _ruby(self, ruby: Any, line: _Line) -> None:
        """Characters of East Asian text with their reading, which stands behind the word that they are part of."""
        for name in ("rubyBase", "rt"):
            inside = _Line()
            for part in ruby.iter(f"{W}{name}"):
                self._runs(part, inside)
            if name == "rt":
                line.readings.append("".join(inside.parts))
            else:
                line.parts.append("".join(inside.parts))


_SIGNS = {
    f"{W}tab": "\t", f"{W}ptab": "\t", f"{W}br": "\n", f"{W}cr": "\n", f"{W}noBreakHyphen": "-",
}  # fmt: skip


def _character(element: Any) -> str:
    if element.tag == f"{W}t":
        return element.text or ""
    if element.tag != f"{W}sym":
        return _SIGNS[element.tag]
    font = element.get(f"{W}font") or ""
    try:
        code = int(element.get(f"{W}char") or "0", 16)
    except ValueError:
        return ""
    if 0xF000 <= code <= 0xF0FF:  # a place in the font
        code &= 0xFF
    if font in _CHECKS:
        return _CHECKS[font].get(code, "")
    return chr(code).translate(_SYMBOLS) if font == "Symbol" and code < 0x100 else chr(code) if code < 0xD800 else ""


def _is_hidden(run: Any, properties: Any) -> bool:
    """Whether a run is hidden, or white on white: in a table or a box its ground may have a colour."""
    if is_on(properties.find(f"{W}vanish"), f"{W}val"):
        return True
    colour = properties.find(f"{W}color")
    if colour is None or (colour.get(f"{W}val") or "").upper() != "FFFFFF":
        return False
    shaded = (properties.find(f"{W}shd"), properties.find(f"{W}highlight"))
    paragraph = next(run.iterancestors(f"{W}p"), None)
    below = paragraph.find(f"{W}pPr/{W}shd") if paragraph is not None else None
    around = next(run.iterancestors(f"{W}tbl", f"{W}txbxContent"), None)
    background = run.getroottree().getroot().find(f"{W}background")
    return all(ground is None for ground in (*shaded, below, around, background))


def _merged(cell: Any) -> tuple[int, str | None]:
    """How many columns a cell spans, and "restart" or "continue" where it is merged with those below or above."""
    properties = cell.find(f"{W}tcPr")
    if properties is None:
        return 1, None
    span, merge = properties.find(f"{W}gridSpan"), properties.find(f"{W}vMerge")
    text = (span.get(f"{W}val") or "1") if span is not None else "1"
    columns = min(int(text), _MOST_COLUMNS) if text.isascii() and text.isdigit() and len(text) < 6 else 1
    return max(1, columns), (merge.get(f"{W}val") or "continue") if merge is not None else None


def _level(properties: Any) -> int | None:
    outline = properties.find(f"{W}outlineLvl")
    value = (outline.get(f"{W}val") or "") if outline is not None else ""
    return int(value) + 1 if value.isascii() and value.isdigit() and len(value) < 3 else None


def _list_of(properties: Any) -> tuple[str, int]:
    """The id of the list that a paragraph or a style belongs to, "" without one, and the level."""
    found, depth = properties.find(f"{W}numPr/{W}numId"), properties.find(f"{W}numPr/{W}ilvl")
    level = (depth.get(f"{W}val") or "0") if depth is not None else "0"
    return (found.get(f"{W}val") or "") if found is not None else "", min(int(level), 8) if level.isdecimal() else 0


def _styles(root: Any | None) -> dict[str, _Style]:
    """The styles by their ids, each with what it has from the styles that it is based on."""
    found: dict[str, _Style] = {}
    for element in () if root is None else root.iterfind(f"{W}style"):
        name, above = element.find(f"{W}name"), element.find(f"{W}basedOn")
        properties = element.find(f"{W}pPr")
        title = (name.get(f"{W}val") or "") if name is not None else ""
        kind, _, number = title.lower().partition(" ")
        level = int(number) if kind == "heading" and number.isdecimal() and len(number) < 3 else None
        found[element.get(f"{W}styleId") or ""] = _Style(
            title,
            (above.get(f"{W}val") or "") if above is not None else "",
            level if level is not None or properties is None else _level(properties),
            "" if properties is None else _list_of(properties)[0],
        )
    for style in found.values():
        above, seen = style.above, 0
        while above in found and seen < 20 and (style.level is None or not style.number):
            style.level = found[above].level if style.level is None else style.level
            style.number = style.number or found[above].number
            above, seen = found[above].above, seen + 1
    return found


def _is_contents(control: Any) -> bool:
    """Whether a content control is the table of contents."""
    if control.tag != f"{W}sdt":
        return False
    gallery = control.find(f"{W}sdtPr/{W}docPartObj/{W}docPartGallery")
    return gallery is not None and gallery.get(f"{W}val") == "Table of Contents"


_LEVELS = 9
_PLACE = re.compile(r"%([1-9])")
_MOST = 1 << 31


@dataclass(frozen=True)
class _Level:
    kind: str = "decimal"
    shape: str = "%1."
    start: int = 1
    style: str = ""
    arabic: bool = False  # all numbers of its shape, whatever the levels above use


class Numbering:
    """The lists of a document, and how far each is counted. `root` is its part of numbering, `names` its namespace."""

    def __init__(self, root: Any | None, names: str) -> None:
        self._names = names
        self._shapes: dict[str, dict[int, _Level]] = {}
        self._lists: dict[str, tuple[str, dict[int, int], dict[int, _Level]]] = {}
        self._counts: dict[str, dict[int, int]] = {}
        self._restarted: set[tuple[str, int]] = set()
        if root is not None:
            self._read(root)

    def next(self, listed: str, depth: int) -> str | None:
        """Count one item of a list: its number, "-" of a bullet, "" where nothing is shown; None of an unknown list."""
        if listed not in self._lists:
            return None
        shape, starts, own = self._lists[listed]
        levels = {**self._shapes.get(shape, {}), **own}
        counts = self._counts.setdefault(shape, {})
        for deeper in [level for level in counts if level > depth]:
            del counts[deeper]
        level = levels.get(depth, _Level())
        if depth in starts and (listed, depth) not in self._restarted:
            self._restarted.add((listed, depth))
            counts[depth] = starts[depth]
        else:
            counts[depth] = counts.get(depth, level.start - 1) + 1
        if level.kind == "bullet":
            return "-"
        if level.kind == "none":
            return _PLACE.sub("", level.shape).strip()

        def number(found: re.Match[str]) -> str:
            place = int(found[1]) - 1
            at = levels.get(place, _Level())
            kind = "decimal" if level.arabic else at.kind
            return number_as(kind, counts.get(place, at.start))

        return _PLACE.sub(number, level.shape).strip()

    def level_of(self, listed: str, style: str) -> int:
        """The level of a list that belongs to a style, 0 where none does."""
        shape = self._lists.get(listed, ("", {}, {}))[0]
        return next((depth for depth, level in self._shapes.get(shape, {}).items() if level.style == style), 0)

    def _read(self, root: Any) -> None:
        names, links, linked = self._names, {}, {}
        for element in root.iter(f"{names}abstractNum"):
            shape = element.get(f"{names}abstractNumId") or ""
            self._shapes[shape] = self._levels(element)
            if style := self._value(element, "styleLink"):
                links[style] = shape
            if style := self._value(element, "numStyleLink"):
                linked[shape] = style
        for shape, style in linked.items():  # a list whose levels another one holds
            self._shapes[shape] = self._shapes.get(links.get(style, ""), {})
        for element in root.iter(f"{names}num"):
            starts: dict[int, int] = {}
            own: dict[int, _Level] = {}
            for override in element.iter(f"{names}lvlOverride"):
                start = self._value(override, "startOverride")
                if start:
                    starts[_whole(override.get(f"{names}ilvl"), 0)] = _whole(start, 1)
                own |= self._levels(override)
            self._lists[element.get(f"{names}numId") or ""] = (self._value(element, "abstractNumId"), starts, own)

    def _levels(self, element: Any) -> dict[int, _Level]:
        names, found = self._names, {}
        for level in element.iter(f"{names}lvl"):
            depth = _whole(level.get(f"{names}ilvl"), 0)
            if depth < _LEVELS:
                found[depth] = _Level(
                    self._value(level, "numFmt") or "decimal",
                    self._value(level, "lvlText"),
                    _whole(self._value(level, "start"), 1),
                    self._value(level, "pStyle"),
                    level.find(f"{names}isLgl") is not None,
                )
        return found

    def _value(self, element: Any, name: str) -> str:
        found = element.find(f"{self._names}{name}")
        return (found.get(f"{self._names}val") or "") if found is not None else ""


def _whole(value: str | None, otherwise: int) -> int:
    text = value or ""
    return min(int(text), _MOST) if text.isascii() and text.isdigit() and len(text) < 12 else otherwise
