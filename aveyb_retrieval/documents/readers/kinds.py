"""Which files hold one document each, and the reader of each kind."""

from __future__ import annotations

import hashlib
import importlib.util
import io
import os
import stat
from dataclasses import replace
from functools import partial
from pathlib import Path, PurePath, PurePosixPath
from typing import TYPE_CHECKING, NamedTuple

from aveyb_retrieval.documents.readers.archives import InnerFiles, read_zip
from aveyb_retrieval.documents.readers.calendar import read_calendar
from aveyb_retrieval.documents.readers.code import LANGUAGES, read_code
from aveyb_retrieval.documents.readers.docx import read_docx
from aveyb_retrieval.documents.readers.filetext import FileText, Unreadable, too_long
from aveyb_retrieval.documents.readers.html import read_epub, read_html
from aveyb_retrieval.documents.readers.limits import LONGEST_TITLE, MAX_FILE
from aveyb_retrieval.documents.readers.mail import read_eml, read_msg
from aveyb_retrieval.documents.readers.markdown import read_markdown
from aveyb_retrieval.documents.readers.notebook import read_notebook
from aveyb_retrieval.documents.readers.opendocument import read_odt
from aveyb_retrieval.documents.readers.pdf import read_pdf
from aveyb_retrieval.documents.readers.pptx import read_pptx
from aveyb_retrieval.documents.readers.rtf import read_rtf
from aveyb_retrieval.documents.readers.sheets import read_spreadsheet
from aveyb_retrieval.documents.readers.subtitles import read_subtitles
from aveyb_retrieval.documents.readers.tables import read_table
from aveyb_retrieval.documents.readers.text import read_text
from aveyb_retrieval.documents.reading import decompress, split_suffix
from aveyb_retrieval.errors import InputError, shortened
from aveyb_retrieval.files import open_file

if TYPE_CHECKING:
    from collections.abc import Callable

# Each name is one of _READERS or _HOLDERS, below, or of LANGUAGES.
SUFFIXES = {
    ".pdf": "pdf", ".docx": "docx", ".odt": "odt", ".rtf": "rtf", ".epub": "epub", ".pptx": "pptx",
    ".xlsx": "spreadsheet", ".xlsm": "spreadsheet", ".xls": "spreadsheet", ".ods": "spreadsheet",
    ".html": "html", ".htm": "html", ".xhtml": "html",
    ".md": "markdown", ".markdown": "markdown",
    ".txt": "text", ".text": "text", ".rst": "text", ".adoc": "text", ".org": "text",
    ".eml": "mail", ".msg": "outlook", ".ics": "calendar",
    ".ipynb": "notebook", ".srt": "subtitles", ".vtt": "subtitles", ".zip": "zip",
    **{suffix: name for name, language in LANGUAGES.items() for suffix in language.suffixes},
}  # fmt: skip
# Files that are many documents where they are named, and one sheet where they are found in a folder
# or a mail.
TABLES = dict.fromkeys((".csv", ".tsv", ".jsonl", ".ndjson", ".parquet"), "table")
PACKAGES = {  # what a kind needs, and the extra that brings it
    "pdf": ("pypdfium2", "files"),
    "docx": ("lxml", "files"),
    "odt": ("lxml", "files"),
    "rtf": ("striprtf", "files"),
    "epub": ("selectolax", "files"),
    "html": ("selectolax", "files"),
    "pptx": ("lxml", "files"),
    "spreadsheet": ("lxml", "files"),
    "mail": ("selectolax", "files"),
    "outlook": ("oxmsg", "files"),
    **{
        name: (language.package, "code") for name, language in LANGUAGES.items() if language.package
    },
}
AS_LONG = (
    "markdown",
    "text",
)  # their text is about as long as their bytes: refused before it is decoded


class FileKind(NamedTuple):
    """How a file is read: by which reader, and whether it is decompressed first."""

    name: str
    compression: str


def kind_of(path: PurePath, *, found: bool = False) -> FileKind | None:
    """The kind of a file, by its suffix; None where it does not hold one document.

    `found`: in a folder, an archive or a mail, where tables are sheets.
    """
    suffix, compression = split_suffix(path)
    name = SUFFIXES.get(suffix) or (TABLES.get(suffix) if found else None)
    return FileKind(name, compression) if name else None


def read_file(
    path: Path, kind: FileKind, encoding: str | None, longest: int, *, follow_links: bool = True
) -> tuple[FileText, str]:
    """Read the document that a file holds; also give the SHA-256 of the file's bytes.

    `encoding` is that of text files that do not name their own; the text may have `longest` bytes
    in UTF-8. Raises Unreadable: it cannot be read; the message is the reason.
    """
    data = read_bytes(path, follow_links=follow_links)
    digest = hashlib.sha256(data).hexdigest()
    if kind.compression:
        data = _unpack(data, path, kind.compression, longest)
    if kind.name in AS_LONG:
        _check_length(len(data), longest)
    found = _parse(kind.name, data, encoding, longest)
    _check_length(
        len(found.text) if found.text.isascii() else len(found.text.encode(errors="replace")),
        longest,
    )
    if (length := len(found.title)) > LONGEST_TITLE:
        cut = f"a title of {length:,} characters, of which {LONGEST_TITLE:,} are kept"
        warning = "; ".join(filter(None, (found.warning, cut)))
        found = replace(found, title=shortened(found.title, LONGEST_TITLE), warning=warning)
    return found, digest


def read_bytes(path: Path, *, follow_links: bool = True) -> bytes:
    """Read a whole file.

    Raises Unreadable: it is not a plain file, too large, or the system refuses.
    """
    try:
        with os.fdopen(open_file(path, os.O_RDONLY, follow_links=follow_links), "rb") as handle:
            about = os.fstat(handle.fileno())
            if not stat.S_ISREG(about.st_mode):
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
    return b"".join(blocks)


def _check_length(length: int, longest: int) -> None:
    if length > longest:
        raise Unreadable(too_long(length, longest))


def missing_package(kind: str) -> tuple[str, str] | None:
    """The package that a kind needs and the extra that brings it, where it is not installed; None
    where nothing is.
    """
    needed = PACKAGES.get(kind)
    return needed if needed and importlib.util.find_spec(needed[0]) is None else None


def _parse(kind: str, data: bytes, encoding: str | None, longest: int, depth: int = 0) -> FileText:
    """Read contents by the reader of their kind; files that they hold are read the same way,
    `depth` deep.
    """
    if kind in LANGUAGES:
        return read_code(data, encoding, longest, kind)
    if kind in _HOLDERS:
        return _HOLDERS[kind](
            data, encoding, InnerFiles(partial(_parse_inner, encoding, longest), longest, depth)
        )
    return _READERS[kind](data, encoding, longest)


def _parse_inner(
    encoding: str | None, longest: int, name: str, data: bytes, depth: int
) -> FileText | None:
    kind = kind_of(PurePosixPath(name), found=True)
    if kind is None:
        return None
    if missing := missing_package(kind.name):
        raise Unreadable(f"needs the package {missing[0]!r} (the extra [{missing[1]}])")
    if kind.compression:
        data = _unpack(data, PurePosixPath(name), kind.compression, longest)
    return _parse(kind.name, data, encoding, longest, depth)


# `longest` is for readers whose text may be longer than their bytes, or that use `Parts`.
_HOLDERS: dict[str, Callable[[bytes, str | None, InnerFiles], FileText]] = {
    "mail": read_eml,
    "outlook": lambda data, _, inner: read_msg(data, inner),
    "zip": lambda data, _, inner: read_zip(data, inner),
}
_READERS: dict[str, Callable[[bytes, str | None, int], FileText]] = {
    "pdf": lambda data, _, longest: read_pdf(data, longest),
    "docx": lambda data, *_: read_docx(data),
    "odt": lambda data, *_: read_odt(data),
    "rtf": lambda data, encoding, _: read_rtf(data, encoding),
    "epub": lambda data, _, longest: read_epub(data, longest),
    "pptx": lambda data, _, longest: read_pptx(data, longest),
    "spreadsheet": lambda data, _, longest: read_spreadsheet(data, longest),
    "html": lambda data, encoding, _: read_html(data, encoding),
    "markdown": lambda data, encoding, _: read_markdown(data, encoding),
    "text": lambda data, encoding, _: read_text(data, encoding),
    "notebook": lambda data, encoding, _: read_notebook(data, encoding),
    "calendar": lambda data, encoding, _: read_calendar(data, encoding),
    "table": read_table,
    "subtitles": read_subtitles,
}
