"""HTML and XHTML: the text that a page shows, with headings, lists and tables."""

from __future__ import annotations

import re
from html.entities import html5
from typing import TYPE_CHECKING

from aveyb_retrieval.documents.readers.encodings import decode, python_encoding
from aveyb_retrieval.documents.readers.equations import text_of_mathml
from aveyb_retrieval.documents.readers.filetext import (
    FileText,
    Unreadable,
    clean,
    one_line,
    whole_number,
)
from aveyb_retrieval.documents.readers.list_numbers import number_as
from aveyb_retrieval.documents.readers.superscripts import shifted
from aveyb_retrieval.documents.readers.xml import parse_xml

if TYPE_CHECKING:
    from collections.abc import Iterator

    from selectolax.lexbor import LexborHTMLParser, LexborNode

    from aveyb_retrieval.documents.readers.file_limits import Limits

_DROPPED = {
    "script",
    "style",
    "noscript",
    "template",
    "head",
    "title",
    "nav",
    "iframe",
    "object",
    "canvas",
    "audio",
    "video",
    "datalist",
    "rp",
    "desc",
    "metadata",
    "area",
    "del",
}
_DROPPED_ROLES = {"navigation", "search", "banner", "contentinfo", "menu", "menubar", "toolbar"}
_DROPPED_CLASSES = {
    "navbar",
    "navheader",
    "navfooter",
    "nav-panel",
    "sphinxsidebar",
    "breadcrumb",
    "breadcrumbs",
    "headerlink",
    "skip-link",
}
# links of a site, or a box or a section of a text
_MAYBE_LINKS = {"sidebar", "related", "nav", "navigation"}
_NOTES = re.compile(r"\b(?:foot|end|rear)notes?\b")  # of books: what an element is for
_HEADINGS = {f"h{level}": "#" * level + " " for level in range(1, 7)}
_PARAGRAPHS = {
    "p",
    "ul",
    "ol",
    "dl",
    "table",
    "blockquote",
    "figure",
    "section",
    "article",
    "main",
    "pre",
    "hr",
    "details",
    "fieldset",
    "address",
    "aside",
    "dialog",
}
_LINES = {
    "div",
    "li",
    "tr",
    "dt",
    "dd",
    "br",
    "form",
    "caption",
    "figcaption",
    "summary",
    "header",
    "footer",
    "body",
    "center",
    "legend",
    "option",
    "text",
    "optgroup",
    "nav",
    "iframe",
    "object",
    "canvas",
    "audio",
    "video",
}
# Lines that end before and behind an element.
_GAPS = dict.fromkeys(_LINES, 1) | dict.fromkeys(_PARAGRAPHS, 2) | dict.fromkeys(_HEADINGS, 2)
# side by side on a line, never one word
_APART = {"button", "select", "textarea", "input", "label", "output"}
_CELLS = {"td", "th"}
_HELD = ("sup", "sub", "rt")  # what is not written where it stands
_KEPT = {"html", "body", "main", "article"}  # these are never dropped for a class
_TYPED = {
    "",
    "text",
    "search",
    "email",
    "number",
    "tel",
    "url",
    "date",
    "time",
    "month",
    "week",
    "datetime-local",
}
_STYLE = re.compile(r"(?:^|;)\s*([\w-]+)\s*:\s*([^;!]*[^;!\s])")
_HIDING = {
    ("display", "none"),
    ("visibility", "hidden"),
    ("visibility", "collapse"),
    ("mso-hide", "all"),
}
_NO_SIZE = re.compile(r"0(?:\.0*)?(?:[a-z]+|%)?")
_COLORS = {"white": "#fff", "black": "#000", "rgb(255,255,255)": "#fff", "rgb(0,0,0)": "#000"}
# without it nothing is raised but by its tag
_MOVED = re.compile(r"vertical-align|noteref", re.IGNORECASE)
_SHIFT_STYLE = re.compile(r"(?:^|;)\s*vertical-align\s*:\s*(su[pb])(?:er)?\b", re.IGNORECASE)

_META = re.compile(rb"<meta[^<>]+charset\s*=\s*[\"']?\s*([\w.:-]+)", re.IGNORECASE)
_XML = re.compile(rb"\s*<\?xml[^<>]+encoding\s*=\s*[\"']([\w.:-]+)")
# XHTML's short form
_EMPTY = re.compile(r"<(title|script|style|textarea|iframe|noscript)\b([^<>]*)/>", re.IGNORECASE)
# of a program, in <pre>: no heading where it is indented
_COMMENT = re.compile(r"^(?=#)", re.MULTILINE)
_LINK_SIGN = re.compile(r"(?<=\w)(?:\s+#|\s*¶)$")  # the link of a heading to itself
_LINK_SIGNS = {"#", "¶", "§", "🔗"}
_DECLARATION = re.compile(r"^\ufeff?\s*<\?xml[^>]*\?>")
_ENTITY = re.compile(r"&([A-Za-z][A-Za-z0-9]*);")
_TEMPLATE = re.compile(r"<(?P<end>/?)template\b(?P<attributes>[^<>]*)>", re.IGNORECASE)
_SHADOW_ROOT = re.compile(r"\bshadowroot(?:mode)?\s*=\s*[\"']?(?:open|closed)", re.IGNORECASE)
_SAMPLE_BYTES = 4096  # bytes in which a page names its encoding
_MAX_SPANNED_CELLS = 1000  # rows and columns that a cell may span, as browsers have it
_MAX_NESTED_TABLES = 20  # tables in tables, below which all are taken for layout
_MAX_COLUMNS = 1000  # of a row, cells that are repeated included


def read_html(data: bytes, limits: Limits) -> FileText:
    """Read an HTML or XHTML page, by its mark, in the encoding that it names, as UTF-8 or in that
    of `limits`.
    """
    return FileText(*page_text(decode(data, limits.encoding, declared=named_encoding(data))))


def page_text(page: str) -> tuple[str, str]:
    """Return the title and the text of a page of HTML.

    Of a page with a `main` element this is read, unless it is hidden, else the body.
    """
    from selectolax.lexbor import LexborHTMLParser

    page = page.encode("utf-8", "replace").decode()  # without halves of surrogate pairs
    tree = LexborHTMLParser(_with_shadow_roots(_EMPTY.sub(r"<\1\2></\1>", page)))
    if tree.root is None:
        return "", ""
    moved = _MOVED.search(page) is not None
    text = _text_of(tree, moved, hidden_too=False) or _text_of(tree, moved, hidden_too=True)
    title = tree.css_first("head title") or tree.css_first("h1")
    return one_line(title.text() if title is not None else ""), text


def read_xhtml(data: bytes, limits: Limits) -> FileText:
    """Read a page of XML, where an element may end at once and CDATA is text.

    A page that is no well-formed XML is read as HTML, as browsers do with most of them.
    """
    from lxml import etree

    text = decode(data, limits.encoding, declared=named_encoding(data))
    source = _ENTITY.sub(_named_character, _DECLARATION.sub("", text, count=1))
    try:
        page = parse_xml(source.encode("utf-8", "replace"), "the page")
    except Unreadable:
        return FileText(*page_text(text))
    for element in page.iter():
        if isinstance(element.tag, str):
            element.tag = etree.QName(element).localname
    etree.cleanup_namespaces(page)
    return FileText(*page_text(etree.tostring(page, method="html", encoding="unicode")))


def _named_character(entity: re.Match[str]) -> str:
    """The character of an entity of HTML, which XML does not know; those of XML stay."""
    name = entity[1]
    if name in ("amp", "lt", "gt", "quot", "apos"):
        return entity[0]
    return html5.get(f"{name};", entity[0])


def _with_shadow_roots(page: str) -> str:
    """Return a page whose declared shadow roots stand where browsers show them.

    What is in a template is not shown, but for `<template shadowrootmode=...>`, which the parser
    would put apart from the page.
    """
    if "shadowroot" not in page:
        return page
    parts, position = [], 0
    are_roots: list[bool] = []  # of the templates that are open
    for tag in _TEMPLATE.finditer(page):
        if tag["end"]:
            is_root = are_roots.pop() if are_roots else False
        else:
            is_root = _SHADOW_ROOT.search(tag["attributes"]) is not None
            are_roots.append(is_root)
        if is_root:
            parts += [page[position : tag.start()], f"<{tag['end']}div>"]
            position = tag.end()
    return "".join([*parts, page[position:]])


def _text_of(tree: LexborHTMLParser, moved: bool, *, hidden_too: bool) -> str:
    """The text of a page; with what is hidden where nothing else is there: a page that was saved
    behind a dialog.
    """
    writer = _Writer(moved, hidden_too)
    tops = [
        main
        for main in tree.css("main, [role=main]")
        if (hidden_too or not any(map(_is_hidden, _above(main)))) and not _is_inside(main, {"main"})
    ]
    for top in tops or filter(None, [tree.body or tree.root]):
        _write(top, writer)
        writer.gap(2)
    return writer.text()


def named_encoding(data: bytes) -> str | None:
    """The encoding that a page names, as browsers take it; None where there is none
    that is known.
    """
    match = _XML.match(data[:_SAMPLE_BYTES]) or _META.search(data[:_SAMPLE_BYTES])
    name = python_encoding(match[1].decode("ascii")) if match else None
    # the name could not be read if that were true
    return "utf-8" if name and name.startswith("utf-16") else name


def _write(top: LexborNode, writer: _Writer) -> None:
    """Write a node and all below it, without recursion: a page may be nested as deeply as it is
    long.
    """
    node, entering = top, True
    while True:
        if entering:
            if _enter(node, writer):
                if node.first_child is not None:
                    node = node.first_child
                    continue
                _leave(node, writer)
        else:
            _leave(node, writer)
        if node.mem_id == top.mem_id:
            return
        if node.next is not None:
            node, entering = node.next, True
        else:
            assert node.parent is not None  # `top` is above every node that is reached
            node, entering = node.parent, False


def _enter(node: LexborNode, writer: _Writer) -> bool:
    """Write what a node begins with; whether to go on below it."""
    tag = node.tag or ""
    if node.is_text_node:
        writer.add(node.text_content or "")
        return False
    if not node.is_element_node:
        return False
    if _is_dropped(node, tag, writer.hidden_too):
        writer.gap(_GAPS.get(tag, 0))
        return False
    if tag == "math":
        writer.add(text_of_mathml(node))
        return False
    _begin(node, tag, writer)
    return True


def _begin(node: LexborNode, tag: str, writer: _Writer) -> None:
    writer.gap(_GAPS.get(tag, 0))
    if tag in _HEADINGS:
        writer.begin(_HEADINGS[tag])
    elif tag == "li":
        writer.begin(writer.item(node.attributes.get("value")))
    elif tag in ("ol", "ul"):
        writer.lists.append(_numbers(node) if tag == "ol" else None)
    elif tag == "pre":
        writer.preformatted += 1
    elif tag == "table":
        writer.tables.append(_Table(node, len(writer.tables)))
    elif tag in _CELLS:
        writer.enter_cell(node)
    elif tag in _APART:
        writer.add(" ")
        typed = tag == "input" and (node.attributes.get("type") or "").lower() in _TYPED
        writer.add((node.attributes.get("value") or "") if typed else "")
    elif tag == "ruby":
        writer.readings.append([])
    elif _shift(node, tag, writer):
        writer.hold()


def _leave(node: LexborNode, writer: _Writer) -> None:
    tag = node.tag or ""
    if tag in _HEADINGS:
        writer.begin("")
    elif tag == "pre":
        writer.preformatted -= 1
    elif tag == "table":
        writer.tables.pop()
    elif tag in ("ol", "ul"):
        writer.lists.pop()
    elif tag in _CELLS:
        writer.leave_cell()
    elif tag == "tr":
        writer.leave_row()
    elif tag in _APART:
        writer.add(" ")
    elif tag == "ruby":
        writer.write_readings()
    elif shift := _shift(node, tag, writer):
        writer.release(shift)
    writer.gap(_GAPS.get(tag, 0))


def _shift(node: LexborNode, tag: str, writer: _Writer) -> str:
    """Return "sup", "sub" or "rt" where text does not stand where it is written: by tag, style, or
    as a mark.
    """
    if tag in _HELD or not writer.moved or tag not in ("a", "span"):
        return tag if tag in _HELD else ""
    attributes = node.attributes
    if "noteref" in f"{attributes.get('epub:type')} {attributes.get('role')}":
        return "sup"
    style = _SHIFT_STYLE.search(attributes.get("style") or "")
    return style[1].lower() if style else ""


def _numbers(node: LexborNode) -> tuple[str, int, int]:
    """The kind of the numbers of a list, that of its first item, and what each next one adds."""
    attributes, kind = node.attributes, (node.attributes.get("type") or "1").strip()
    back = "reversed" in attributes
    count = sum(child.tag == "li" for child in node.iter()) if back else 1
    return kind, whole_number(attributes.get("start"), count), -1 if back else 1


def _is_dropped(node: LexborNode, tag: str, hidden_too: bool) -> bool:
    if tag in _DROPPED:
        return True
    attributes = node.attributes
    if not attributes:
        return _is_around(node, tag)
    if not hidden_too and _is_hidden(node):
        return True
    role = (attributes.get("role") or "").lower()
    if role in _DROPPED_ROLES and not (
        role in ("banner", "contentinfo") and _is_inside_article(node)
    ):
        return True
    classes = {
        *(attributes.get("class") or "").lower().split(),
        (attributes.get("id") or "").lower(),
    }
    if tag == "a" and _is_link_to_itself(node):
        return True
    if tag not in _KEPT and (
        classes & _DROPPED_CLASSES or (classes & _MAYBE_LINKS and _is_mostly_links(node))
    ):
        return True
    return _is_around(node, tag)


def _is_link_to_itself(node: LexborNode) -> bool:
    """Whether a link is the sign beside a heading that leads to this heading."""
    if not (node.attributes.get("href") or "").startswith("#"):
        return False
    return node.text().strip() in _LINK_SIGNS and _is_inside(node, set(_HEADINGS))


def _is_hidden(node: LexborNode) -> bool:
    """Whether attributes say so; of no size, or of the colour of its ground, is text where nothing
    below is styled.
    """
    attributes = node.attributes
    if "hidden" in attributes and (attributes["hidden"] or "").lower() != "until-found":
        return True
    if (attributes.get("aria-hidden") or "").lower() == "true" and node.tag not in ("body", "html"):
        return True
    if not (style := attributes.get("style")):
        return False
    said = dict(_STYLE.findall(style.lower().replace("background:", "background-color:")))
    if not _HIDING.isdisjoint(said.items()):
        return True
    ground, own = (_color(said.get(name, "")) for name in ("background-color", "color"))
    unseen = _NO_SIZE.fullmatch(said.get("font-size", "")) or (ground and ground == own)
    # `css` finds the node itself, too
    return bool(unseen) and len(node.css("[style], [class], font")[:2]) == 1


def _color(said: str) -> str:
    """A color as `#rgb`, else `#rrggbb`; "" for one that is said otherwise, as by what
    is around.
    """
    written = re.sub(r"\s", "", said)
    color = _COLORS.get(written, written)
    if not color.startswith("#"):
        return ""
    short = len(color) == 7 and color[1::2] == color[2::2]
    return f"#{color[1::2]}" if short else color


def _is_around(node: LexborNode, tag: str) -> bool:
    """Whether an element stands around the text of a page, or is one that is not open or not
    chosen.
    """
    if tag == "header":
        return node.css_first("h1") is None and not _is_inside_article(node)
    if tag == "footer":
        return not _is_inside_article(node)
    if tag == "aside":
        roles = f"{node.attributes.get('epub:type')} {node.attributes.get('role')}"
        return (
            node.css_first("a") is not None and not _NOTES.search(roles) and _is_mostly_links(node)
        )
    if tag == "dialog":
        return "open" not in node.attributes
    if tag != "option":
        return False
    around = next((above for above in _above(node) if above.tag in ("select", "datalist")), None)
    if around is None:
        return False
    chosen = around.css("option[selected]")
    if not chosen and "multiple" not in around.attributes:
        chosen = around.css("option")[:1]
    return not any(option.mem_id == node.mem_id for option in chosen)


def _is_mostly_links(node: LexborNode) -> bool:
    return 2 * sum(len(link.text().split()) for link in node.css("a")) >= len(node.text().split())


def _is_inside_article(node: LexborNode) -> bool:
    return _is_inside(node, {"article", "main", "section", "blockquote", "td", "figure"})


def _is_inside(node: LexborNode, tags: set[str]) -> bool:
    return any(above.tag in tags for above in _above(node.parent))


def _above(node: LexborNode | None) -> Iterator[LexborNode]:
    """A node and those around it."""
    while node is not None and node.is_element_node:
        yield node
        node = node.parent


class _Table:
    """A table that is being written.

    One for layout says so, holds another one or headings, or has one column.
    """

    def __init__(self, node: LexborNode, depth: int) -> None:
        role = (node.attributes.get("role") or "").lower()
        self.column = 0
        self.cells: list[str] = []  # of the row that is being read
        self.spans: dict[int, tuple[int, str]] = {}  # rows that are left and text, by column
        self.span = (1, 1)  # rows and columns of the cell that is being read
        self.of_layout = (
            role in ("presentation", "none")
            or depth > _MAX_NESTED_TABLES
            # `css` finds the node itself, too
            or any(inner.mem_id != node.mem_id for inner in node.css("table")[:2])
            or node.css_first("td h1, td h2, td h3, td h4, td h5, td h6, td pre") is not None
            or (node.css_first("td + td, td + th, th + td, th + th") is None)
        )

    def end_cell(self, text: str) -> None:
        """Add a cell to the row, and to rows below that it reaches into."""
        rows, columns = self.span
        self.cells.append(text)
        if rows > 1:
            places = range(self.column, min(self.column + columns, _MAX_COLUMNS))
            self.spans |= dict.fromkeys(places, (rows - 1, text))
        self.column += columns

    def repeat_cells(self) -> None:
        """Add to the row the cells of rows above that reach into it here."""
        while self.column in self.spans:
            rows, text = self.spans.pop(self.column)
            if rows > 1:
                self.spans[self.column] = (rows - 1, text)
            self.cells.append(text)
            self.column += 1


class _Writer:
    """A text that grows: blanks are merged as a browser does, gaps between blocks are lines."""

    def __init__(self, moved: bool, hidden_too: bool) -> None:
        self.moved, self.hidden_too = moved, hidden_too
        self.preformatted = 0
        self.tables: list[_Table] = []
        self.lists: list[tuple[str, int, int] | None] = []  # of one without numbers None
        self.readings: list[list[str]] = []
        self._parts: list[str] = []
        self._held: list[tuple[list[str], int, bool]] = []
        self._gap = 0
        self._blank = False
        self._prefix = ""

    def add(self, text: str) -> None:
        if self.preformatted and not self._held:
            text = _COMMENT.sub("    ", text if self._parts else text.lstrip("\n"))
            if text:
                self._write(text)
            return
        words = " ".join(text.split())
        self._blank |= text[:1].isspace()
        if words:
            self._write(words)
            self._blank = text[-1:].isspace()

    def gap(self, lines: int) -> None:
        """End the line (1), or the paragraph (2); in what is held, as a cell of a table, both are a
        blank.
        """
        if self._held:
            self._blank |= lines > 0
        else:  # items with numbers stand close: one that stands alone would look like a heading
            self._gap = max(self._gap, min(lines, 1) if self.lists and self.lists[-1] else lines)

    def item(self, value: str | None) -> str:
        """What stands in front of an item of a list: its number as it is shown, else a dash."""
        if not self.lists or (numbers := self.lists[-1]) is None:
            return "- "
        kind, number, step = numbers[0], whole_number(value, numbers[1]), numbers[2]
        self.lists[-1] = kind, number + step, step
        return f"{number_as(kind, number)}. "

    def begin(self, prefix: str) -> None:
        """Write a prefix in front of the text that follows; none in what is held, which is a part
        of a line.
        """
        if not self._held:
            self._prefix = prefix

    def hold(self) -> None:
        """Keep what follows apart until `release`, or the end of a cell."""
        self._held.append((self._parts, self._gap, self._blank))
        self._parts, self._gap, self._blank = [], 0, False

    def _take(self) -> str:
        text = "".join(self._parts).strip()
        self._parts, self._gap, self._blank = self._held.pop()
        return text

    def release(self, tag: str) -> None:
        """Write what was held: raised, lowered, or as the reading of the characters before."""
        text = self._take()
        if tag == "rt":
            if self.readings:
                self.readings[-1].append(text)
            return
        before = "" if self._gap else "".join(self._parts[-3:]) + " " * self._blank
        if text:
            self._write(shifted(before, text, 1 if tag == "sup" else -1))

    def write_readings(self) -> None:
        if readings := "".join(self.readings.pop()):
            self._parts.append(f"({readings})")

    def _data_table(self) -> _Table | None:
        return self.tables[-1] if self.tables and not self.tables[-1].of_layout else None

    def enter_cell(self, node: LexborNode) -> None:
        """Begin a cell of a table, behind those of rows above that reach into its row."""
        table = self._data_table()
        if table is None:
            self.gap(2 if self.tables else 1)
            return
        table.repeat_cells()
        rows, columns = (
            whole_number(node.attributes.get(name), 1, _MAX_SPANNED_CELLS)
            for name in ("rowspan", "colspan")
        )
        table.span = max(1, rows), max(1, columns)
        self.hold()

    def leave_cell(self) -> None:
        if (table := self._data_table()) is None:
            self.gap(2)
        else:
            table.end_cell(one_line(self._take()))

    def leave_row(self) -> None:
        self._prefix = ""
        if (table := self._data_table()) is not None:
            table.repeat_cells()
            if any(table.cells):
                self._write(" | ".join(table.cells))
            table.cells, table.column = [], 0

    def text(self) -> str:
        lines = (
            line.rstrip() if line.strip(" |") else ""
            for line in clean("".join(self._parts)).split("\n")
        )
        return "\n".join(
            _LINK_SIGN.sub("", line) if line.startswith("#") else line for line in lines
        ).strip()

    def _write(self, text: str) -> None:
        if self._parts and (self._gap or self._blank):
            self._parts.append("\n" * self._gap or " ")
        if self._prefix and not self._held:
            self._parts.append(self._prefix)
            self._prefix = ""
        self._parts.append(text)
        self._gap, self._blank = 0, False
