"""EPUB: a book whose chapters are pages of XHTML (https://www.w3.org/TR/epub-33/)."""

from __future__ import annotations

import posixpath
from dataclasses import replace
from typing import TYPE_CHECKING, Any
from urllib.parse import unquote

from aveyb_retrieval.documents.readers.archives import open_archive, read_member
from aveyb_retrieval.documents.readers.filetext import (
    FileText,
    Unreadable,
    check_characters,
    clean_name,
    file_metadata,
    first_few,
)
from aveyb_retrieval.documents.readers.html import read_xhtml
from aveyb_retrieval.documents.readers.xml import parse_xml
from aveyb_retrieval.errors import plural

if TYPE_CHECKING:
    from collections.abc import Iterator
    from zipfile import ZipFile

    from aveyb_retrieval.documents.readers.file_limits import Limits

_CONTAINER = "META-INF/container.xml"
_ENCRYPTION = "META-INF/encryption.xml"
_PAGE_TYPES = {
    "application/xhtml+xml",
    "text/html",
    "application/x-dtbook+xml",
    "text/x-oeb1-document",
    "application/xml",
    "text/xml",
}
_PAGE_SUFFIXES = (".xhtml", ".html", ".htm", ".xht")


def read_epub(data: bytes, limits: Limits) -> FileText:
    """Read a book; a chapter that is missing or is no page is named, and the others are read."""
    archive = open_archive(data)
    container = parse_xml(read_member(archive, _CONTAINER), _CONTAINER)
    places = container.xpath("//*[local-name()='rootfile']/@full-path")
    if not places:
        raise Unreadable(f"damaged: {_CONTAINER!r} names no package file")
    package = parse_xml(read_member(archive, places[0]), places[0])
    protected = _protected(archive)
    texts: list[str] = []
    lost: list[str] = []
    length = 0
    for name in dict.fromkeys(_chapters(package, posixpath.dirname(places[0]), lost)):
        if name in protected:
            raise Unreadable(f"protected: {name!r} is encrypted")
        try:
            # a chapter names its encoding, or is in UTF-8
            chapter = read_xhtml(read_member(archive, name), replace(limits, encoding=None))
        except Unreadable as error:
            lost.append(str(error).removeprefix("damaged: "))
            continue
        texts.append(chapter.text)
        length += len(chapter.text)
        check_characters(length, limits)
    if lost and not any(texts):
        raise Unreadable(f"damaged: {first_few(lost)}")
    warning = f"{plural(len(lost), 'chapter')} not read: {first_few(lost)}" if lost else ""
    title = package.xpath("string(//*[local-name()='metadata']/*[local-name()='title'][1])")
    author = ", ".join(
        package.xpath("//*[local-name()='metadata']/*[local-name()='creator']/text()")
    )
    date = package.xpath("string(//*[local-name()='metadata']/*[local-name()='date'][1])")
    text = "\n\n".join(filter(None, texts))
    metadata = file_metadata(author, date)
    return FileText(clean_name(title), text, None, warning, metadata, is_incomplete=bool(lost))


def _chapters(package: Any, folder: str, lost: list[str]) -> Iterator[str]:
    """The members of the archive that hold chapters, in order; what is none is added to `lost`."""
    items = {
        item.get("id"): item
        for item in package.xpath("//*[local-name()='manifest']/*[local-name()='item']")
    }
    spine = package.xpath("//*[local-name()='spine']/*[local-name()='itemref']/@idref")
    for reference in dict.fromkeys(spine):
        item = items.get(reference)
        if item is None:
            lost.append(f"its spine names {reference!r}, which it does not have")
            continue
        if "nav" in (item.get("properties") or "").split():
            continue
        address = unquote((item.get("href") or "").partition("#")[0])
        media_type = (item.get("media-type") or "").partition(";")[0].strip().lower()
        if media_type in _PAGE_TYPES or address.lower().endswith(_PAGE_SUFFIXES):
            yield posixpath.normpath(posixpath.join(folder, address))
        elif not media_type.startswith(("image/", "audio/", "video/")):
            lost.append(f"{address!r} is of the type {item.get('media-type')!r}")


def _protected(archive: ZipFile) -> set[str]:
    """The members that are encrypted; fonts may be, and are not read."""
    if _ENCRYPTION not in archive.namelist():
        return set()
    encryption = parse_xml(read_member(archive, _ENCRYPTION), _ENCRYPTION)
    return {unquote(uri) for uri in encryption.xpath("//*[local-name()='CipherReference']/@URI")}
