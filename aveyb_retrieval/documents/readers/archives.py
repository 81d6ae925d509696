"""Archives, and files inside of files: limits against bombs, XML without entities, members read one by one."""

from __future__ import annotations

import io
import zipfile
import zlib
from functools import partial
from pathlib import PurePosixPath
from typing import TYPE_CHECKING, Any

from aveyb_retrieval.documents.readers.base import MAX_UNPACKED, FileText, Parts, Unreadable, one_line
from aveyb_retrieval.errors import plural

if TYPE_CHECKING:
    from collections.abc import Callable

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


MAX_DEPTH = 3  # of files in files


class InnerFiles:
    """The text of a file that holds others: each has a heading with its name, and is a page.

    `read_inner` reads one by the reader of its kind; None where the kind is not known, which `knows` tells of a name.
    """

    def __init__(
        self,
        read_inner: Callable[[str, bytes, int], FileText | None],
        knows: Callable[[str], bool],
        longest: int,
        depth: int,
    ) -> None:
        self._read_inner = read_inner
        self.knows = knows
        self._parts = Parts("file", longest)
        self._depth = depth
        self._left_out: list[str] = []
        self._warnings: list[str] = []

    def add(self, name: str, text: str) -> None:
        """Add a text that was read."""
        self._parts.add(f"# {name}\n\n{text}" if name else text, name)

    def leave_out(self, name: str, reason: str) -> None:
        """Note that a file was not read."""
        self._left_out.append(f"{name}: {reason}")

    def read(self, name: str, load: Callable[[], bytes], as_name: str = "") -> None:
        """Read one file, whose bytes `load` gives, as if it were called `as_name`, or note why it was not read."""
        if self._depth >= MAX_DEPTH:
            self.leave_out(name, f"{MAX_DEPTH} files deep")
            return
        try:
            found = self._read_inner(as_name or name, load(), self._depth + 1)
        except Unreadable as reason:
            self.leave_out(name, str(reason))
            return
        except MemoryError:  # ends the process that reads
            raise
        except Exception as error:  # of a parser that a damaged file has confused: the other files are read
            self.leave_out(name, f"not readable ({type(error).__name__}: {one_line(str(error))})")
            return
        if found is None:
            suffix = PurePosixPath(name).suffix
            self.leave_out(name, f"unknown kind {suffix}" if suffix else "unknown kind")
            return
        if found.text.strip():
            self.add(name, found.text)
        if found.warning:
            self._warnings.append(f"{name}: {found.warning}")

    def text(self, title: str, metadata: dict[str, Any] | None = None) -> FileText:
        """Return what was read, and which files were not."""
        left_out = f"{plural(len(self._left_out), 'file')} in it left out: " if self._left_out else ""
        told = [f"{left_out}{'; '.join(self._left_out)}", *self._warnings]
        return self._parts.text(title, "; ".join(filter(None, told)), metadata)


def read_zip(data: bytes, inner: InnerFiles) -> FileText:
    """Read the files of an archive, by name, as one document whose pages they are; hidden ones are left out.

    Raises:
        Unreadable: it is no archive, or too large unpacked.
    """
    archive = open_archive(data)
    for info in sorted(archive.infolist(), key=lambda info: info.filename):
        path = PurePosixPath(info.filename)
        if info.is_dir() or any(part.startswith((".", "__MACOSX")) for part in path.parts):
            continue
        inner.read(info.filename, partial(read_member, archive, info.filename))
    return inner.text("")
