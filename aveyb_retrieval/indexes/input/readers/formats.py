"""Which files hold one document each, and the reader of each kind."""

from __future__ import annotations

import hashlib
import importlib.util
import io
import os
import stat
import zlib
from dataclasses import replace
from functools import partial
from pathlib import PurePosixPath
from typing import TYPE_CHECKING, NamedTuple

from aveyb_retrieval.errors import InputError
from aveyb_retrieval.indexes.input.json_lines import decompress, split_suffix
from aveyb_retrieval.indexes.input.readers.base import LONGEST_TITLE, MAX_FILE, FileText, Unreadable, clean
from aveyb_retrieval.indexes.input.readers.code import LANGUAGES
from aveyb_retrieval.indexes.input.readers.inner import InnerFiles
from aveyb_retrieval.indexes.input.rows import too_long
from aveyb_retrieval.wording import shortened

if TYPE_CHECKING:
    from collections.abc import Callable
    from pathlib import Path, PurePath

SUFFIXES = {
    ".pdf": "pdf", ".docx": "docx", ".odt": "odt", ".rtf": "rtf", ".epub": "epub", ".pptx": "pptx",
    ".xlsx": "spreadsheet", ".xlsm": "spreadsheet", ".xls": "spreadsheet", ".ods": "spreadsheet",
    ".html": "html", ".htm": "html", ".xhtml": "html",
    ".md": "markdown", ".markdown": "markdown",
    ".txt": "text", ".text": "text", ".rst": "text", ".adoc": "text", ".org": "text",
    ".eml": "mail", ".msg": "outlook", ".ipynb": "notebook", ".srt": "subtitles", ".vtt": "subtitles", ".zip": "zip",
    **{suffix: name for name, language in LANGUAGES.items() for suffix in language.suffixes},
}  # fmt: skip
PACKAGES = {  # what a kind needs, and the extra that brings it
    "pdf": ("pypdfium2", "files"), "docx": ("docx", "files"), "odt": ("lxml", "files"), "rtf": ("striprtf", "files"),
    "epub": ("selectolax", "files"), "html": ("selectolax", "files"), "pptx": ("pptx", "files"),
    "spreadsheet": ("python_calamine", "files"), "mail": ("selectolax", "files"), "outlook": ("oxmsg", "files"),
    **{name: (language.package, "code") for name, language in LANGUAGES.items()},
}  # fmt: skip
PLAIN = ("markdown", "text")  # their bytes are their text


class FileKind(NamedTuple):
    """How a file is read: by which reader, and whether it is decompressed first."""

    name: str
    compression: str


def kind_of(path: PurePath) -> FileKind | None:
    """The kind of a file, by its suffix; None where it does not hold one document."""
    suffix, compression = split_suffix(path)
    name = SUFFIXES.get(suffix)
    return FileKind(name, compression) if name else None


def read_file(
    path: Path, kind: FileKind, encoding: str | None, longest: int, *, follow_links: bool = True
) -> tuple[FileText, str]:
    """Read the document that a file holds; also give the SHA-256 of the file's bytes.

    Args:
        path: The file.
        kind: What `kind_of` says of it.
        encoding: Of text files that do not name their own; None is UTF-8.
        longest: Bytes that the text may have in UTF-8.
        follow_links: Whether a link at this path is followed.

    Raises:
        Unreadable: it cannot be read; the message is the reason.
    """
    data = read_bytes(path, follow_links=follow_links)
    digest = hashlib.sha256(data).hexdigest()
    if kind.compression:
        data = _unpack(data, path, kind.compression, longest)
    if kind.name in PLAIN:
        _check_length(len(data), longest)
    found = _READERS[kind.name](data, encoding, longest)
    _check_length(len(found.text) if found.text.isascii() else len(found.text.encode(errors="replace")), longest)
    return _with_short_title(found), digest


def _with_short_title(found: FileText) -> FileText:
    length = len(found.title)
    if length <= LONGEST_TITLE:
        return found
    warning = f"a title of {length:,} characters, of which {LONGEST_TITLE:,} are kept"
    both = f"{found.warning}; {warning}" if found.warning else warning
    return replace(found, title=shortened(found.title, LONGEST_TITLE), warning=both)


def read_bytes(path: Path, *, follow_links: bool = True) -> bytes:
    """Read a whole file.

    Raises:
        Unreadable: it is not a plain file, too large, or the system refuses.
    """
    links = 0 if follow_links else os.O_NOFOLLOW  # one may have taken the file's place since it was listed
    try:
        with os.fdopen(os.open(path, os.O_RDONLY | os.O_NONBLOCK | os.O_CLOEXEC | links), "rb") as handle:
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


def _unpack(data: bytes, path: PurePath, compression: str, longest: int) -> bytes:
    """Decompress the bytes that were read and hashed: the file itself may be another one by now."""
    blocks, length = [], 0
    try:
        for block in decompress(io.BytesIO(data), path, compression):
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
        raise Unreadable(too_long(length, longest))


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


def _odt(data: bytes, encoding: str | None, longest: int) -> FileText:
    from aveyb_retrieval.indexes.input.readers.odt import read_odt

    return read_odt(data)


def _rtf(data: bytes, encoding: str | None, longest: int) -> FileText:
    from striprtf.striprtf import rtf_to_text

    if not data.startswith(b"{\\rtf"):
        raise Unreadable("not an RTF file")
    return FileText("", clean(rtf_to_text(data.decode("latin-1"), encoding=encoding or "cp1252", errors="replace")))


def _pptx(data: bytes, encoding: str | None, longest: int) -> FileText:
    from aveyb_retrieval.indexes.input.readers.presentation import read_pptx

    return read_pptx(data, longest)


def _spreadsheet(data: bytes, encoding: str | None, longest: int) -> FileText:
    from aveyb_retrieval.indexes.input.readers.spreadsheet import read_spreadsheet

    return read_spreadsheet(data, longest)


def _notebook(data: bytes, encoding: str | None, longest: int) -> FileText:
    from aveyb_retrieval.indexes.input.readers.notebook import read_notebook

    return read_notebook(data, encoding)


def _subtitles(data: bytes, encoding: str | None, longest: int) -> FileText:
    from aveyb_retrieval.indexes.input.readers.subtitles import read_subtitles

    return read_subtitles(data, encoding, longest)


def _code(data: bytes, encoding: str | None, longest: int, *, language: str) -> FileText:
    from aveyb_retrieval.indexes.input.readers.code import read_code

    return read_code(data, encoding, language)


def _holder(data: bytes, encoding: str | None, longest: int, *, name: str, depth: int = 0) -> FileText:
    """A file that holds others, which are read by the readers of their kinds."""
    from aveyb_retrieval.indexes.input.readers import mail
    from aveyb_retrieval.indexes.input.readers.zip import read_zip

    def read_inner(name: str, data: bytes, depth: int) -> FileText | None:
        kind = kind_of(PurePosixPath(name))
        if kind is None:
            return None
        _check_installed(kind.name)
        if kind.compression:
            data = _unpack(data, PurePosixPath(name), kind.compression, longest)
        reader = _READERS[kind.name]
        return (
            reader(data, encoding, longest, depth=depth) if kind.name in _HOLDERS else reader(data, encoding, longest)
        )

    readers = {"mail": mail.read_eml, "outlook": mail.read_msg, "zip": read_zip}
    return readers[name](data, InnerFiles(read_inner, longest, depth))


def _check_installed(kind: str) -> None:
    package, extra = PACKAGES.get(kind, ("", ""))
    if package and importlib.util.find_spec(package) is None:
        raise Unreadable(f"needs the package {package!r} (the extra [{extra}])")


_HOLDERS = ("mail", "outlook", "zip")
_READERS: dict[str, Callable[..., FileText]] = {
    "pdf": _pdf, "docx": _docx, "odt": _odt, "rtf": _rtf, "epub": _epub, "pptx": _pptx, "spreadsheet": _spreadsheet,
    "html": _html, "markdown": _markdown, "text": _text, "notebook": _notebook, "subtitles": _subtitles,
    **{name: partial(_code, language=name) for name in LANGUAGES},
    **{name: partial(_holder, name=name) for name in _HOLDERS},
}  # fmt: skip
