"""EPUB: chapters in the order of the spine, by the reader of HTML."""

from __future__ import annotations

import posixpath
from typing import TYPE_CHECKING
from urllib.parse import unquote

from aveyb_retrieval.documents.readers.archives import open_archive, parse_xml, read_member
from aveyb_retrieval.documents.readers.base import FileText, Unreadable, about, check_characters, named
from aveyb_retrieval.documents.readers.html import read_html

if TYPE_CHECKING:
    import zipfile

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
    author = ", ".join(package.xpath("//*[local-name()='metadata']/*[local-name()='creator']/text()"))
    date = package.xpath("string(//*[local-name()='metadata']/*[local-name()='date'][1])")
    return FileText(named(title), "\n\n".join(filter(None, texts)), metadata=about(author, date))


def _protected(archive: zipfile.ZipFile) -> set[str]:
    """The files of a book that are encrypted. Fonts may be, and are not read."""
    if _ENCRYPTION not in archive.namelist():
        return set()
    tree = parse_xml(read_member(archive, _ENCRYPTION), _ENCRYPTION)
    return {unquote(uri) for uri in tree.xpath("//*[local-name()='CipherReference']/@URI")}
