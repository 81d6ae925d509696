"""ZIP archives, and the files that a file holds (an archive, a mail), read as its pages."""

from __future__ import annotations

import io
import zipfile
import zlib
from functools import partial
from pathlib import PurePosixPath
from typing import TYPE_CHECKING, Any

from aveyb_retrieval.documents.readers.file_limits import MAX_UNPACKED_BYTES
from aveyb_retrieval.documents.readers.filetext import (
    FileText,
    Parts,
    Unreadable,
    Unrecognized,
    one_line,
)
from aveyb_retrieval.documents.readers.suffixes_without_text import WITHOUT_TEXT
from aveyb_retrieval.errors import plural

if TYPE_CHECKING:
    from collections.abc import Callable

    from aveyb_retrieval.documents.readers.file_limits import Limits

_MAX_FILES = 1 << 16
_OLD_OFFICE = bytes.fromhex("d0cf11e0a1b11ae1")  # a compound file: an encrypted DOCX, or a DOC


def is_archive(data: bytes) -> bool:
    """Return whether a file begins as a ZIP archive does."""
    return data.startswith((b"PK\x03\x04", b"PK\x05\x06"))


def open_archive(data: bytes) -> zipfile.ZipFile:
    """Open a ZIP archive whose contents fit into memory.

    Nothing unpacks to more than the archive says of it.
    """
    if data.startswith(_OLD_OFFICE):
        raise Unreadable(
            "encrypted, or in the format of Office 97; save it without a password in today's format"
        )
    try:
        archive = zipfile.ZipFile(io.BytesIO(data))
    except (zipfile.BadZipFile, ValueError, OSError, NotImplementedError) as error:
        raise Unreadable(f"damaged: not a ZIP archive ({error})") from None
    members = archive.infolist()
    if len(members) > _MAX_FILES:
        raise Unreadable(f"{len(members):,} files in an archive; at most {_MAX_FILES:,} are read")
    total = sum(info.file_size for info in members)
    if total > MAX_UNPACKED_BYTES:
        raise Unreadable(
            f"{len(members):,} files of {total:,} bytes unpacked; at most"
            f" {MAX_UNPACKED_BYTES:,} bytes are read"
        )
    return archive


def read_member(archive: zipfile.ZipFile, member: str | zipfile.ZipInfo) -> bytes:
    """Unpack one file; by its name the last one of that name, by a `ZipInfo` just this one.

    Raises Unreadable: it is missing, damaged or encrypted.
    """
    name = member if isinstance(member, str) else member.filename
    try:
        return archive.read(member)
    except KeyError:
        raise Unreadable(f"damaged: the archive has no {name!r}") from None
    except (
        zipfile.BadZipFile,
        zlib.error,
        RuntimeError,
        NotImplementedError,
        EOFError,
        OSError,
        ValueError,  # of a place in front of the file
    ) as error:
        raise Unreadable(f"damaged: {name!r} cannot be unpacked ({error})") from None


MAX_ARCHIVE_DEPTH = 3  # of files in files


class InnerFiles:
    """The text of a file that holds others, each a page under its name; `read_inner` gives None of
    an unknown kind.
    """

    def __init__(
        self,
        read_inner: Callable[[str, bytes, int, bool], FileText | None],
        limits: Limits,
        depth: int,
    ) -> None:
        self._read_inner = read_inner
        self._parts = Parts("file", limits)
        self._depth = depth
        self._left_out: list[str] = []
        self._warnings: list[str] = []
        self._is_incomplete = False
        self._may_recognize_more = False

    def add(self, name: str, text: str) -> None:
        """Add a text that was read."""
        self._parts.add(f"# {name}\n\n{text}" if name else text, name)

    def read(
        self,
        name: str,
        load: Callable[[], bytes],
        otherwise: str = "",
        *,
        may_be_text: bool = False,
    ) -> None:
        """Read one file, whose bytes `load` gives, or note why not; of an unknown kind as if it
        were `otherwise`, or as the text that a file without a suffix may be.
        """
        try:
            if self._depth >= MAX_ARCHIVE_DEPTH:
                raise Unreadable(f"{MAX_ARCHIVE_DEPTH} files deep")
            data, depth = load(), self._depth + 1
            text = self._read_inner(name, data, depth, may_be_text)
            if text is None and otherwise:
                text = self._read_inner(otherwise, data, depth, False)
            if text is None and PurePosixPath(name).suffix.lower() in WITHOUT_TEXT:
                return
            if text is None:
                raise Unreadable(f"unknown kind {PurePosixPath(name).suffix}".rstrip())
        except Unreadable as reason:
            self._left_out.append(f"{name}: {reason}")
            self._may_recognize_more |= isinstance(reason, Unrecognized)
            return
        except MemoryError:  # ends the process that reads
            raise
        except Exception as error:
            # of a parser that a damaged file has confused: the other files are read
            self._left_out.append(
                f"{name}: not readable ({type(error).__name__}: {one_line(str(error))})"
            )
            return
        self._take(name, text)

    def _take(self, name: str, file: FileText) -> None:
        """Add what was read of one file, and what was not."""
        self._may_recognize_more |= file.may_recognize_more
        self._is_incomplete |= file.is_incomplete
        if file.text.strip():
            self.add(name, file.text)
        if file.warning and (file.text.strip() or file.is_incomplete):
            self._warnings.append(f"{name}: {file.warning}")

    def text(self, title: str, metadata: dict[str, Any] | None = None) -> FileText:
        """Return what was read, and which files were not."""
        left_out = (
            f"{plural(len(self._left_out), 'file')} in it left out: " if self._left_out else ""
        )
        warnings = [f"{left_out}{'; '.join(self._left_out)}", *self._warnings]
        return self._parts.text(
            title,
            "; ".join(filter(None, warnings)),
            metadata,
            is_incomplete=self._is_incomplete or bool(self._left_out),
            may_recognize_more=self._may_recognize_more,
        )


def read_zip(data: bytes, _limits: Limits, inner: InnerFiles) -> FileText:
    """Read the files of an archive, by name, as one document whose pages they are; hidden ones are
    left out.
    """
    archive = open_archive(data)
    for info in sorted(archive.infolist(), key=lambda info: info.filename):
        parts = PurePosixPath(info.filename).parts
        if info.filename.endswith("/") or any(part.startswith((".", "__MACOSX")) for part in parts):
            continue
        name = info.filename or "without a name"
        inner.read(name, partial(read_member, archive, info), may_be_text=True)
    return inner.text("")
