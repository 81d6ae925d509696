"""HTML and EPUB: the text that a page shows, with headings, lists and tables."""

from __future__ import annotations

import codecs
import posixpath
import re
from typing import TYPE_CHECKING
from urllib.parse import unquote

from aveyb_retrieval.documents.readers.archives import open_archive, parse_xml, read_member
from aveyb_retrieval.documents.readers.base import FileText, Unreadable, check_characters, clean, decode, one_line

if TYPE_CHECKING:
    import zipfile

    from selectolax.lexbor import LexborNode

_DROPPED = {
    "script", "style", "noscript", "template", "svg", "head", "nav", "footer", "aside", "iframe", "object", "canvas",
    "audio", "video", "select", "button", "dialog", "annotation",
}  # fmt: skip
_DROPPED_ROLES = {"navigation", "search", "banner", "contentinfo", "menu", "menubar", "toolbar"}
_DROPPED_CLASSES = {
    "nav", "navbar", "navigation", "navheader", "navfooter", "nav-panel", "sphinxsidebar", "breadcrumb", "breadcrumbs",
    "headerlink", "skip-link",
}  # fmt: skip
_MAYBE_LINKS = {"sidebar", "related"}  # links of a site, or a box in a text, as DocBook has it
_PARAGRAPHS = {
    "p", "ul", "ol", "dl", "table", "blockquote", "figure", "section", "article", "main", "pre", "hr", "details",
    "fieldset", "address",
}  # fmt: skip
_LINES = {"div", "li", "tr", "dt", "dd", "br", "form", "caption", "figcaption", "summary", "header", "body", "center"}
_HEADINGS = {f"h{level}": level for level in range(1, 7)}
_KEPT = {"html", "body", "main", "article"}  # these are never dropped for a class

_META = re.compile(rb"<meta[^<>]+charset\s*=\s*[\"']?\s*([\w.:-]+)", re.IGNORECASE)
_XML = re.compile(rb"\s*<\?xml[^<>]+encoding\s*=\s*[\"']([\w.:-]+)")
_EMPTY = re.compile(r"<(title|script|style|textarea|iframe|noscript)\b([^<>]*)/>", re.IGNORECASE)  # XHTML's short form
_COMMENT = re.compile(r"^(?=#)", re.MULTILINE)  # of a program, in <pre>: no heading where it is indented
_LINK_SIGN = re.compile(r"(?<=\w)\s*[#¶]$")  # the link of a heading to itself
_LOOKED_AT = 4096  # bytes in which a page names its encoding
# What browsers read instead of the encoding that is named (WHATWG), by Python's names: most pages that name one of
# these are in the larger one.
_LARGER = {
    "ascii": "cp1252", "iso8859-1": "cp1252", "iso8859-9": "cp1254", "iso8859-11": "cp874", "tis-620": "cp874",
    "gb2312": "gb18030", "gbk": "gb18030", "shift_jis": "cp932", "euc_kr": "cp949",
}  # fmt: skip
_WITH_HOLES = ("cp1252", "cp1254")  # some bytes are no character in Python; browsers show nothing for them


def read_html(data: bytes, encoding: str | None) -> FileText:
    """Read an HTML or XHTML page, in the encoding that is given, that it names, or UTF-8.

    Raises:
        Unreadable: a byte does not fit into the encoding.
    """
    from selectolax.lexbor import LexborHTMLParser

    named = None if encoding else named_encoding(data)
    text = decode(data, encoding or named, "ignore" if named in _WITH_HOLES else "strict")
    tree = LexborHTMLParser(_EMPTY.sub(r"<\1\2></\1>", text))
    if tree.root is None:
        return FileText("", "")
    writer = _Writer()
    _write(tree.css_first("main, [role=main]") or tree.body or tree.root, writer)
    title = tree.css_first("title") or tree.css_first("h1")
    return FileText(one_line(title.text() if title is not None else ""), writer.text())


def named_encoding(data: bytes) -> str | None:
    """The encoding that a page names, as browsers take it; None where there is none that Python has."""
    found = _XML.match(data[:_LOOKED_AT]) or _META.search(data[:_LOOKED_AT])
    name = browser_encoding(found[1].decode("ascii")) if found else None
    return "utf-8" if name and name.startswith("utf-16") else name  # the name could not be read if that were true


def browser_encoding(label: str) -> str | None:
    """The encoding that browsers take a label for; None where Python has none for texts."""
    try:
        name = codecs.lookup(label).name
        "".encode(name)
    except (LookupError, ValueError):
        return None
    return _LARGER.get(name, name)


def _write(top: LexborNode, writer: _Writer) -> None:
    """Write a node and all below it, without recursion: a page may be nested as deeply as it is long."""
    node, entering = top, True
    while True:
        if entering and _enter(node, writer) and node.first_child is not None:
            node = node.first_child
            continue
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
    if not node.is_element_node or _is_dropped(node, tag):
        return False
    if tag in _HEADINGS:
        writer.gap(2)
        writer.begin("#" * _HEADINGS[tag] + " ")
    elif tag in _PARAGRAPHS:
        writer.gap(2)
        writer.preformatted += tag == "pre"
    elif tag in _LINES:
        writer.gap(1)
        if tag == "li":
            writer.begin("- ")
    elif tag in ("td", "th"):
        writer.cell()
    return True


def _leave(node: LexborNode, writer: _Writer) -> None:
    tag = node.tag or ""
    if tag in _HEADINGS:
        writer.begin("")
        writer.gap(2)
    elif tag in _PARAGRAPHS:
        writer.gap(2)
        writer.preformatted -= tag == "pre" and writer.preformatted > 0
    elif tag in _LINES:
        writer.gap(1)


def _is_dropped(node: LexborNode, tag: str) -> bool:
    if tag in _DROPPED:
        return True
    attributes = node.attributes
    if "hidden" in attributes or (attributes.get("role") or "").lower() in _DROPPED_ROLES:
        return True
    classes = {*(attributes.get("class") or "").lower().split(), (attributes.get("id") or "").lower()}
    if tag not in _KEPT and (classes & _DROPPED_CLASSES or (classes & _MAYBE_LINKS and _is_mostly_links(node))):
        return True
    return tag == "header" and node.css_first("h1") is None and not _is_inside_article(node)


def _is_mostly_links(node: LexborNode) -> bool:
    linked = sum(len(link.text().split()) for link in node.css("a"))
    return 2 * linked >= len(node.text().split())


def _is_inside_article(node: LexborNode) -> bool:
    above = node.parent
    while above is not None:
        if above.tag in ("article", "main", "section"):
            return True
        above = above.parent
    return False


class _Writer:
    """A text that grows: blanks are merged as a browser does, gaps between blocks are lines."""

    def __init__(self) -> None:
        self.preformatted = 0
        self._parts: list[str] = []
        self._gap = 0
        self._blank = False
        self._prefix = ""

    def add(self, text: str) -> None:
        """Write text."""
        if self.preformatted:
            text = _COMMENT.sub("    ", text if self._parts else text.lstrip("\n"))
            if text:
                self._start()
                self._parts.append(text)
            return
        words = " ".join(text.split())
        self._blank |= text[:1].isspace()
        if words:
            self._start()
            self._parts.append(words)
            self._blank = text[-1:].isspace()

    def gap(self, lines: int) -> None:
        """End the line (1), or the paragraph (2)."""
        self._gap = max(self._gap, lines)

    def begin(self, prefix: str) -> None:
        """Write a prefix in front of the text that follows."""
        self._prefix = prefix

    def cell(self) -> None:
        """Begin a cell of a table."""
        if not self._gap and self._parts:
            self._start()
            self._parts.append(" | ")

    def text(self) -> str:
        """Return what was written."""
        lines = (line.rstrip() for line in clean("".join(self._parts)).split("\n"))
        return "\n".join(_LINK_SIGN.sub("", line) if line.startswith("#") else line for line in lines).strip()

    def _start(self) -> None:
        if self._gap and self._parts:
            self._parts.append("\n" * self._gap)
        elif self._blank and self._parts:
            self._parts.append(" ")
        if self._prefix:
            self._parts.append(self._prefix)
        self._gap, self._blank, self._prefix = 0, False, ""


_CONTAINER = "META-INF/container.xml"
_ENCRYPTION = "META-INF/encryption.xml"
_PAGES = ("application/xhtml+xml", "text/html", "application/x-dtbook+xml")


def read_epub(data: bytes, longest: int) -> FileText:
    """Read a book: `longest` bounds the characters of its text.

    Raises:
        Unreadable: it is damaged, protected, or too long.
    """
    archive = open_archive(data)
    container = parse_xml(read_member(archive, _CONTAINER), _CONTAINER)
    found = container.xpath("//*[local-name()='rootfile']/@full-path")
    if not found:
        raise Unreadable(f"damaged: {_CONTAINER!r} names no package file")
    package = parse_xml(read_member(archive, found[0]), found[0])
    folder = posixpath.dirname(found[0])
    items = {item.get("id"): item for item in package.xpath("//*[local-name()='manifest']/*[local-name()='item']")}
    protected = _protected(archive)
    texts: list[str] = []
    seen: set[str] = set()
    length = 0
    for reference in dict.fromkeys(package.xpath("//*[local-name()='spine']/*[local-name()='itemref']/@idref")):
        item = items.get(reference)
        if item is None:
            raise Unreadable(f"damaged: its spine names {reference!r}, which it does not have")
        if item.get("media-type") not in _PAGES or "nav" in (item.get("properties") or "").split():
            continue
        name = posixpath.normpath(posixpath.join(folder, unquote(item.get("href") or "")))
        if name in seen:  # by another id: a page is read once, however often a hostile spine names it
            continue
        seen.add(name)
        if name in protected:
            raise Unreadable(f"protected: {name!r} is encrypted")
        texts.append(read_html(read_member(archive, name), None).text)
        length += len(texts[-1])
        check_characters(length, longest)
    title = package.xpath("string(//*[local-name()='metadata']/*[local-name()='title'][1])")
    return FileText(one_line(title), "\n\n".join(filter(None, texts)))


def _protected(archive: zipfile.ZipFile) -> set[str]:
    """The files of a book that are encrypted. Fonts may be, and are not read."""
    if _ENCRYPTION not in archive.namelist():
        return set()
    tree = parse_xml(read_member(archive, _ENCRYPTION), _ENCRYPTION)
    return {unquote(uri) for uri in tree.xpath("//*[local-name()='CipherReference']/@URI")}
