"""ZIP archives (DOCX and EPUB) and XML that may be hostile: bounded, without entities and without the network."""

from __future__ import annotations

import io
import zipfile
import zlib
from typing import TYPE_CHECKING

from aveyb_retrieval.indexes.input.readers.base import MAX_UNPACKED, Unreadable

if TYPE_CHECKING:
    from lxml.etree import _Element

_MAX_FILES = 1 << 16
_OLD_OFFICE = bytes.fromhex("d0cf11e0a1b11ae1")  # a compound file: an encrypted DOCX, or a DOC


def is_archive(data: bytes) -> bool:
    """Return whether a file begins as a ZIP archive does."""
    return data.startswith((b"PK\x03\x04", b"PK\x05\x06"))


def open_archive(data: bytes) -> zipfile.ZipFile:
    """Open a ZIP archive whose contents fit into memory. Nothing unpacks to more than the archive says of it.

    Raises:
        Unreadable: it is no archive, or too large unpacked.
    """
    if data.startswith(_OLD_OFFICE):
        raise Unreadable("encrypted, or in the format of Office 97; save it without a password in today's format")
    try:
        archive = zipfile.ZipFile(io.BytesIO(data))
    except (zipfile.BadZipFile, ValueError, OSError) as error:
        raise Unreadable(f"damaged: not a ZIP archive ({error})") from None
    total = sum(info.file_size for info in archive.infolist())
    if total > MAX_UNPACKED or len(archive.infolist()) > _MAX_FILES:
        raise Unreadable(
            f"{len(archive.infolist()):,} files of {total:,} bytes unpacked; at most {MAX_UNPACKED:,} bytes are read"
        )
    return archive


def read_member(archive: zipfile.ZipFile, name: str) -> bytes:
    """Unpack one file.

    Raises:
        Unreadable: it is missing, damaged or encrypted.
    """
    try:
        return archive.read(name)
    except KeyError:
        raise Unreadable(f"damaged: the archive has no {name!r}") from None
    except (zipfile.BadZipFile, zlib.error, RuntimeError, NotImplementedError, EOFError, OSError) as error:
        raise Unreadable(f"damaged: {name!r} cannot be unpacked ({error})") from None


def parse_xml(data: bytes, name: str) -> _Element:
    """Parse XML: entities stay unresolved, nothing is loaded.

    Raises:
        Unreadable: it is not XML.
    """
    from lxml import etree

    parser = etree.XMLParser(resolve_entities=False, no_network=True, load_dtd=False, huge_tree=False)
    try:
        return etree.fromstring(data, parser)
    except (etree.XMLSyntaxError, ValueError) as error:
        raise Unreadable(f"damaged: {name!r} is not XML ({error})") from None
