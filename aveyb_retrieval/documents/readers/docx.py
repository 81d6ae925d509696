"""Documents of Word: paragraphs with headings and list numbers, tables, boxes, equations, charts,
notes and comments.

What was inserted with changes tracked is read, what was deleted is not; hidden text is left out and
told.
"""

from __future__ import annotations

import re
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Any

from aveyb_retrieval.documents.readers.equations import M, text_of_omml
from aveyb_retrieval.documents.readers.filetext import (
    FileText,
    hidden_text,
    one_line,
    paragraphs,
    whole_number,
)
from aveyb_retrieval.documents.readers.list_numbers import number_as
from aveyb_retrieval.documents.readers.office_pictures import OfficePictures, read_office_pictures
from aveyb_retrieval.documents.readers.ooxml import (
    FALLBACK,
    GRAPHICS,
    PICTURES,
    SHIFTS,
    Package,
    graphic_lines,
    is_on,
    picture_part,
)
from aveyb_retrieval.documents.readers.superscripts import shifted
from aveyb_retrieval.documents.readers.symbol_fonts import (
    UNKNOWN,
    in_symbol_font,
    is_symbol_font,
    sign_of,
)

if TYPE_CHECKING:
    from collections.abc import Iterator

    from aveyb_retrieval.documents.readers.file_limits import Limits

W = "{http://schemas.openxmlformats.org/wordprocessingml/2006/main}"
_UNREAD = (
    "del",
    "moveFrom",
    "instrText",
    "delText",
    "rPr",
    "pPr",
    "sectPr",
    "sdtPr",
    "tblPr",
    "trPr",
    "tcPr",
    "rt",
)
_RUN_STYLE, _HIDING = f"{W}rStyle", {f"{W}vanish", f"{W}color"}
_SKIPPED = {f"{W}{name}" for name in _UNREAD} | {FALLBACK}
_PROPERTIES, _STYLE, _NUMBERS, _OUTLINE = (
    f"{W}{name}" for name in ("pPr", "pStyle", "numPr", "outlineLvl")
)
_DELETED_ROW = f"{W}trPr/{W}del"
# parts that stand behind the text, in this order
_ASIDES = ("footnotes", "endnotes", "comments", "header", "footer")
_MOST_COLUMNS, _MOST_STYLES = 1000, 20  # of a table, and one based on the other


def read_docx(data: bytes, limits: Limits) -> FileText:
    """Read a document of Word; notes, comments, page headers and footers stand behind the text.

    OCR reads the pictures of the text, not those of headers and footers, which are on each page.
    """
    package = Package(data)
    name, root = package.main("a document of Word", "word/document.xml", f"{W}document")
    body = root.find(f"{W}body")
    names = package.related(name, "image")
    pictures = read_office_pictures(package, names, len(data), limits)
    reader = _Reader(package, name, pictures=pictures)
    lines = [*reader.lines(root if body is None else body), ""]
    for kind in _ASIDES:
        seen: set[str] = set()  # a header of each section, mostly the same
        for part in package.related(name, kind):
            aside = package.part(part)
            asides = () if aside is None else _Reader(package, part, reader).asides(aside, kind)
            # without blank lines: none of theirs is a heading
            around = kind in ("header", "footer")
            text = "\n".join(filter(str.strip, asides) if around else asides)
            if text.strip() and text not in seen:
                seen.add(text)
                lines += [text] if around else [text, ""]
    title, metadata = package.properties()
    chunks = package.related(name, "aFChunk")
    notes = [hidden_text(reader.hidden)]
    notes += ["another document that is embedded in it is not read"] if chunks else []
    notes.append(pictures.warning)
    text = paragraphs(lines)
    pictures.check_text(text)
    return FileText(
        title,
        text,
        None,
        package.warning(*notes),
        metadata,
        is_incomplete=bool(chunks) or package.is_incomplete or pictures.is_incomplete,
        may_recognize_more=pictures.may_recognize_more,
    )


@dataclass
class _Style:
    name: str
    level: int | None
    number: str = ""  # the id of its list; "" where it has none
    align: str = ""  # "superscript" or "subscript"
    hidden: bool = False


_NO_STYLE = _Style("", None)


@dataclass
class _Line:
    """The characters of a paragraph, and what stands beside it: boxes, charts, diagrams and
    pictures.
    """

    parts: list[str] = field(default_factory=list)
    boxes: list[Any] = field(default_factory=list)
    # of the characters before, in East Asian text
    readings: list[str] = field(default_factory=list)

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

    def __init__(
        self,
        package: Package,
        name: str,
        whole: _Reader | None = None,
        pictures: OfficePictures | None = None,
    ) -> None:
        self._package = package
        self._relations = package.relations(name)
        self._whole = whole or self
        self._pictures = pictures or OfficePictures()
        self.hidden = 0
        if whole is None:
            related = dict(self._relations.values())
            self._styles = _Styles(package.part(related.get("styles", "word/styles.xml")))
            self._numbering = Numbering(
                package.part(related.get("numbering", "word/numbering.xml"))
            )
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

    def lines(self, top: Any, *, in_cell: bool = False) -> Iterator[str]:
        """The text of all paragraphs and tables below an element, in order; blank lines between
        paragraphs. In a cell of a table no paragraph is a heading.
        """
        line, last = _Line(), None
        for child in top:
            if child.tag == f"{W}p":
                self._runs(child, line)
                last = child
                if _has_deleted_mark(child):  # the following paragraph goes on here
                    continue
                yield from self._ended(line, child, in_cell)
                line, last = _Line(), None
                continue
            if last is not None and _is_shown(child):
                yield from self._ended(line, last, in_cell)
                line, last = _Line(), None
            if child.tag == f"{W}tbl":
                yield from ("", *self._rows(child), "")
            elif child.tag == f"{M}oMath":
                yield from ("", text_of_omml(child), "")
            elif _is_shown(child):
                yield from self.lines(child, in_cell=in_cell)
        if last is not None:
            yield from self._ended(line, last, in_cell)

    def _ended(self, line: _Line, paragraph: Any, in_cell: bool) -> Iterator[str]:
        """The lines of a paragraph that has ended, and of what stands beside it."""
        properties = paragraph.find(_PROPERTIES)
        own = {} if properties is None else {inner.tag: inner for inner in properties}
        if text := line.text():
            yield from self._styled(text, paragraph, own, in_cell)
        for box in line.boxes:
            if box.tag == f"{W}txbxContent":
                yield from self.lines(box, in_cell=in_cell)
            elif box.tag in PICTURES:
                yield from ("", self._pictures.text(picture_part(box, self._relations)), "")
            else:
                yield from ("", *graphic_lines(box, self._relations, self._package), "")

    def _styled(
        self, text: str, paragraph: Any, own: dict[str, Any], in_cell: bool
    ) -> Iterator[str]:
        style_id = own[_STYLE].get(f"{W}val") or "" if _STYLE in own else ""
        style = self._styles.get(style_id)
        name = style.name.lower()
        if name.startswith("toc ") or style.hidden:
            self._whole.hidden += style.hidden
            return
        listed, depth = _list_of(paragraph) if _NUMBERS in own else ("", 0)
        if not listed and style.number:
            listed, depth = style.number, self._numbering.level_of(style.number, style_id)
        number = self._numbering.next(listed, depth) if listed not in ("", "0") else None
        level = _level(paragraph) if _OUTLINE in own else None
        if name == "title":
            level = 1
        elif level is None:
            level = style.level
        words = f"{number} {text}" if number and number != "-" else text
        if level is not None and level <= 9 and not in_cell:  # 10 is the level of body text
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
            if row.find(_DELETED_ROW) is not None:
                continue
            column = whole_number(_value(row, "trPr", "gridBefore"), most=_MOST_COLUMNS)
            cells = [""] * column
            for cell in row.iter(f"{W}tc"):
                if next(cell.iterancestors(f"{W}tr")) is not row:
                    continue
                text = one_line(" ".join(self.lines(cell, in_cell=True)))
                merge = cell.find(f"{W}tcPr/{W}vMerge")
                if merge is not None and merge.get(f"{W}val") != "restart":
                    text = text or above.get(column, "")
                else:
                    above[column] = "" if merge is None else text
                cells.append(text)
                column += max(1, whole_number(_value(cell, "tcPr", "gridSpan"), most=_MOST_COLUMNS))
            yield " | ".join(cells[:_MOST_COLUMNS])

    def _runs(self, element: Any, line: _Line) -> None:
        for child in element:
            tag = child.tag
            if tag == f"{W}r":
                self._run(child, line)
            elif tag == f"{M}oMath":
                line.add(text_of_omml(child))
            elif tag == f"{W}ruby":
                self._ruby(child, line)
            elif tag == f"{W}ddList":  # of a form
                options, chosen = (
                    child.findall(f"{W}listEntry"),
                    whole_number(_value(child, "result")),
                )
                line.add(options[chosen].get(f"{W}val") or "" if chosen < len(options) else "")
            elif tag == f"{W}checkBox":  # of an old form
                line.add("☒" if _is_ticked(child) else "☐")
            elif tag in (f"{W}txbxContent", *GRAPHICS, *PICTURES):
                line.boxes.append(child)
            elif tag in _SIGNS or tag in (f"{W}t", f"{W}sym"):
                line.add(_character(child))
            elif _is_shown(child):
                self._runs(child, line)

    def _run(self, run: Any, line: _Line) -> None:
        properties = run.find(f"{W}rPr")
        if properties is None:
            self._runs(run, line)
            return
        inside = _Line(boxes=line.boxes)
        self._runs(run, inside)
        text = "".join(inside.parts)
        fonts = properties.find(f"{W}rFonts")
        font = "" if fonts is None else fonts.get(f"{W}ascii") or fonts.get(f"{W}hAnsi") or ""
        if is_symbol_font(font) and run.find(f"{W}t") is not None:
            text = in_symbol_font(font, text)
        own = {child.tag: child.get(f"{W}val") or "" for child in properties}
        style = self._styles.get(own[_RUN_STYLE]) if _RUN_STYLE in own else _NO_STYLE
        if (
            (style.hidden or not own.keys().isdisjoint(_HIDING))
            and text.strip()
            and _is_hidden(run, properties, style)
        ):
            self._whole.hidden += 1
            return
        align = own.get(f"{W}vertAlign") or style.align
        moved = own.get(f"{W}position", "") if text.strip().isdigit() else ""  # by hand
        shift = SHIFTS.get(align, 0) or (
            -1 if moved.startswith("-") else int(whole_number(moved) > 0)
        )
        line.add(shifted("".join(line.parts[-3:]), text, shift))
        line.readings += inside.readings

    def _ruby(self, ruby: Any, line: _Line) -> None:
        """Characters of East Asian text with their reading, which stands behind the word that they
        are part of.
        """
        for name, parts in (("rubyBase", line.parts), ("rt", line.readings)):
            inside = _Line()
            for part in ruby.iter(f"{W}{name}"):
                self._runs(part, inside)
            parts.append("".join(inside.parts))


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
    if is_symbol_font(font):
        return sign_of(font, code)
    if 0xF000 <= code <= 0xF0FF:  # a place in a font whose signs nobody knows
        return UNKNOWN
    return chr(code) if 0x1F < code < 0xD800 else ""


def _has_deleted_mark(paragraph: Any) -> bool:
    return paragraph.find(f"{W}pPr/{W}rPr/{W}del") is not None


def _is_shown(element: Any) -> bool:
    """Whether an element may hold text that is read."""
    tag = element.tag
    return isinstance(tag, str) and tag not in _SKIPPED and not _is_contents(element)


def _is_ticked(box: Any) -> bool:
    checked = box.find(f"{W}checked")
    return is_on(box.find(f"{W}default") if checked is None else checked, f"{W}val")


def _is_hidden(run: Any, properties: Any, style: _Style) -> bool:
    """Whether a run is hidden, or white on white: in a table or a box its ground may
    have a colour.
    """
    vanish = properties.find(f"{W}vanish")
    if style.hidden if vanish is None else is_on(vanish, f"{W}val"):
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


def _value(element: Any, *path: str) -> str:
    """The value of an element below another one; "" where it has none."""
    inner = element.find("/".join(f"{W}{name}" for name in path))
    return "" if inner is None else inner.get(f"{W}val") or ""


def _level(element: Any) -> int | None:
    level = whole_number(_value(element, "pPr", "outlineLvl"), -1)
    return level + 1 if level >= 0 else None


def _list_of(element: Any) -> tuple[str, int]:
    """The id of the list that a paragraph or a style belongs to, "" without one, and the level."""
    listed = _value(element, "pPr", "numPr", "numId")
    return listed, whole_number(
        _value(element, "pPr", "numPr", "ilvl"), most=_LEVELS - 1
    ) if listed else 0


class _Styles:
    """The styles of a document by their ids, each with what it has from the styles that it is based
    on.
    """

    def __init__(self, root: Any | None) -> None:
        styles = () if root is None else root.iterfind(f"{W}style")
        self._elements = {element.get(f"{W}styleId") or "": element for element in styles}
        self._styles: dict[str, _Style] = {}

    def get(self, identity: str, depth: int = 0) -> _Style:
        """Return a style; one without properties where there is none, or it is based on itself."""
        if (style := self._styles.get(identity)) is not None:
            return style
        element = self._elements.get(identity)
        if element is None or depth > _MOST_STYLES:
            return _NO_STYLE
        name, above = _value(element, "name"), self.get(_value(element, "basedOn"), depth + 1)
        kind, _, number = name.lower().partition(" ")
        level = whole_number(number, -1, 99) if kind == "heading" else -1
        own = level if level >= 0 else _level(element)
        self._styles[identity] = _Style(
            name,
            above.level if own is None else own,
            _list_of(element)[0] or above.number,
            _value(element, "rPr", "vertAlign") or above.align,
            above.hidden or is_on(element.find(f"{W}rPr/{W}vanish"), f"{W}val"),
        )
        return self._styles[identity]


def _is_contents(control: Any) -> bool:
    path = "sdtPr", "docPartObj", "docPartGallery"
    return control.tag == f"{W}sdt" and _value(control, *path) == "Table of Contents"


_LEVELS = 9
_PLACE = re.compile(r"%([1-9])")


@dataclass(frozen=True)
class _Level:
    kind: str = "decimal"
    shape: str = "%1."
    start: int = 1
    style: str = ""
    arabic: bool = False  # all numbers of its shape, whatever the levels above use


class Numbering:
    """The lists of a document, by its part of numbering, and how far each is counted (ECMA-376,
    part 1, 17.9).
    """

    def __init__(self, root: Any | None) -> None:
        self._shapes: dict[str, dict[int, _Level]] = {}
        self._lists: dict[str, tuple[str, dict[int, int], dict[int, _Level]]] = {}
        self._counts: dict[str, dict[int, int]] = {}
        self._restarted: set[tuple[str, int]] = set()
        if root is None:
            return
        links: dict[str, str] = {}
        linked: dict[str, str] = {}
        for element in root.iter(f"{W}abstractNum"):
            shape = element.get(f"{W}abstractNumId") or ""
            self._shapes[shape] = _levels(element)
            links[_value(element, "styleLink")] = shape
            linked[shape] = _value(element, "numStyleLink")
        for shape, style in linked.items():  # a list whose levels another one holds
            if style:
                self._shapes[shape] = self._shapes.get(links.get(style, ""), {})
        for element in root.iter(f"{W}num"):
            starts: dict[int, int] = {}
            own: dict[int, _Level] = {}
            for override in element.iter(f"{W}lvlOverride"):
                if start := _value(override, "startOverride"):
                    starts[whole_number(override.get(f"{W}ilvl"))] = whole_number(start, 1)
                own |= _levels(override)
            self._lists[element.get(f"{W}numId") or ""] = (
                _value(element, "abstractNumId"),
                starts,
                own,
            )

    def next(self, listed: str, depth: int) -> str | None:
        """Count one item of a list: its number, "-" of a bullet, "" where nothing is shown; None of
        an unknown list.
        """
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

        def number(match: re.Match[str]) -> str:
            place = int(match[1]) - 1
            at = levels.get(place, _Level())
            return number_as("decimal" if level.arabic else at.kind, counts.get(place, at.start))

        return _PLACE.sub(number, level.shape).strip()

    def level_of(self, listed: str, style: str) -> int:
        """The level of a list that belongs to a style, 0 where none does."""
        shape = self._lists.get(listed, ("", {}, {}))[0]
        return next(
            (depth for depth, level in self._shapes.get(shape, {}).items() if level.style == style),
            0,
        )


def _levels(element: Any) -> dict[int, _Level]:
    return {
        whole_number(level.get(f"{W}ilvl")): _Level(
            _value(level, "numFmt") or "decimal",
            _value(level, "lvlText"),
            whole_number(_value(level, "start"), 1),
            _value(level, "pStyle"),
            level.find(f"{W}isLgl") is not None,
        )
        for level in element.iter(f"{W}lvl")
    }
