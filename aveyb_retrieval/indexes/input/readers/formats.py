"""Which files hold one document each, and the reader of each kind."""

from __future__ import annotations

import hashlib
import os
import stat
import zlib
from typing import TYPE_CHECKING, NamedTuple

from aveyb_retrieval.errors import InputError
from aveyb_retrieval.indexes.input.json_lines import decompress
from aveyb_retrieval.indexes.input.readers.base import MAX_FILE, FileText, Unreadable

if TYPE_CHECKING:
    from collections.abc import Callable
    from pathlib import Path

SUFFIXES = {
    ".pdf": "pdf", ".docx": "docx", ".epub": "epub",
    ".html": "html", ".htm": "html", ".xhtml": "html",
    ".md": "markdown", ".markdown": "markdown",
    ".txt": "text", ".text": "text", ".rst": "text", ".adoc": "text", ".org": "text",
}  # fmt: skip
COMPRESSED = (".gz", ".zst")
PACKAGES = {"pdf": "pypdfium2", "docx": "docx", "epub": "selectolax", "html": "selectolax"}  # of the extra "files"
TRUSTED = ("markdown", "text")  # read without a parser: no process of their own


class FileKind(NamedTuple):
    """How a file is read: by which reader, and whether it is decompressed first."""

    name: str
    compression: str


def kind_of(path: Path) -> FileKind | None:
    """The kind of a file, by its suffix; None where it does not hold one document."""
    suffixes = [suffix.lower() for suffix in path.suffixes]
    compression = suffixes.pop() if suffixes and suffixes[-1] in COMPRESSED else ""
    name = SUFFIXES.get(suffixes[-1]) if suffixes else None
    return FileKind(name, compression) if name else None


def read_file(path: Path, kind: FileKind, encoding: str | None, longest: int) -> tuple[FileText, str]:
    """Read the document that a file holds; also give the SHA-256 of the file's bytes.

    Args:
        path: The file.
        kind: What `kind_of` says of it.
        encoding: Of text files that do not name their own; None is UTF-8.
        longest: Bytes that the text may have in UTF-8.

    Raises:
        Unreadable: it cannot be read; the message is the reason.
    """
    data = read_bytes(path)
    digest = hashlib.sha256(data).hexdigest()
    if kind.compression:
        data = _unpack(path, kind.compression, longest)
    if kind.name in TRUSTED:
        _check_length(len(data), longest)
    found = _READERS[kind.name](data, encoding, longest)
    _check_length(len(found.text) if found.text.isascii() else len(found.text.encode(errors="replace")), longest)
    return found, digest


def read_bytes(path: Path) -> bytes:
    """Read a whole file.

    Raises:
        Unreadable: it is not a plain file, too large, or the system refuses.
    """
    try:
        with os.fdopen(os.open(path, os.O_RDONLY | os.O_NONBLOCK | os.O_CLOEXEC), "rb") as handle:
            about = os.fstat(handle.fileno())
            if not stat.S_ISREG(about.st_mode):  # a pipe would be waited for
                raise Unreadable("not a plain file")
            if about.st_size > MAX_FILE:
                raise Unreadable(f"{about.st_size:,} bytes; files of at most {MAX_FILE:,} are read")
            data = handle.read(MAX_FILE + 1)
    except OSError as error:
        raise Unreadable(f"cannot be read ({error.strerror or error})") from None
    if len(data) > MAX_FILE:
        raise Unreadable(f"more than {MAX_FILE:,} bytes")
    return data


def _unpack(path: Path, compression: str, longest: int) -> bytes:
    blocks, length = [], 0
    try:
        with path.open("rb") as handle:
            for block in decompress(handle, path, compression):
                blocks.append(block)
                length += len(block)
                if length > longest:
                    raise Unreadable(f"more than {longest:,} bytes unpacked (--max-line, max_line)")
    except InputError as error:
        raise Unreadable(str(error).removeprefix(f"{path}: ")) from None
    except (OSError, zlib.error) as error:
        raise Unreadable(f"cannot be unpacked ({error})") from None
    return b"".join(blocks)


def _check_length(length: int, longest: int) -> None:
    if length > longest:
        raise Unreadable(f"{length:,} bytes, at most {longest:,} are read as one document (--max-line, max_line)")


def _pdf(data: bytes, encoding: str | None, longest: int) -> FileText:
    from aveyb_retrieval.indexes.input.readers.pdf import read_pdf

    return read_pdf(data, longest)


def _docx(data: bytes, encoding: str | None, longest: int) -> FileText:
    from aveyb_retrieval.indexes.input.readers.docx import read_docx

    return read_docx(data)


def _epub(data: bytes, encoding: str | None, longest: int) -> FileText:
    from aveyb_retrieval.indexes.input.readers.epub import read_epub

    return read_epub(data, longest)


def _html(data: bytes, encoding: str | None, longest: int) -> FileText:
    from aveyb_retrieval.indexes.input.readers.html import read_html

    return read_html(data, encoding)


def _markdown(data: bytes, encoding: str | None, longest: int) -> FileText:
    from aveyb_retrieval.indexes.input.readers.plain import read_markdown

    return read_markdown(data, encoding)


def _text(data: bytes, encoding: str | None, longest: int) -> FileText:
    from aveyb_retrieval.indexes.input.readers.plain import read_text

    return read_text(data, encoding)


_READERS: dict[str, Callable[[bytes, str | None, int], FileText]] = {
    "pdf": _pdf, "docx": _docx, "epub": _epub, "html": _html, "markdown": _markdown, "text": _text,
}  # fmt: skip
