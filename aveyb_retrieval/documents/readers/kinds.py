"""Which files hold documents, and the reader of each kind."""

from __future__ import annotations

import hashlib
import importlib.util
import io
import os
import re
import stat
from dataclasses import replace
from functools import partial
from pathlib import Path, PurePath, PurePosixPath
from typing import TYPE_CHECKING, NamedTuple

from aveyb_retrieval.documents.readers.archives import InnerFiles, read_zip
from aveyb_retrieval.documents.readers.calendar import read_calendar
from aveyb_retrieval.documents.readers.chat import read_chat, read_users
from aveyb_retrieval.documents.readers.code import LANGUAGES, read_code
from aveyb_retrieval.documents.readers.docx import read_docx
from aveyb_retrieval.documents.readers.encodings import marked, without_mark
from aveyb_retrieval.documents.readers.epub import read_epub
from aveyb_retrieval.documents.readers.file_limits import (
    MAX_FILE_BYTES,
    MAX_TITLE_CHARACTERS,
    Limits,
)
from aveyb_retrieval.documents.readers.filetext import (
    FileText,
    Unreadable,
    Unrecognized,
    too_long,
)
from aveyb_retrieval.documents.readers.html import read_html, read_xhtml
from aveyb_retrieval.documents.readers.mail import read_eml, read_emlx, read_mailbox, read_msg
from aveyb_retrieval.documents.readers.mailbox import message_bytes
from aveyb_retrieval.documents.readers.markdown import read_markdown
from aveyb_retrieval.documents.readers.notebook import read_notebook
from aveyb_retrieval.documents.readers.opendocument import read_odt
from aveyb_retrieval.documents.readers.pdf import read_pdf
from aveyb_retrieval.documents.readers.pictures import MIN_PICTURE_BYTES, read_picture_file
from aveyb_retrieval.documents.readers.pptx import read_pptx
from aveyb_retrieval.documents.readers.rtf import read_rtf
from aveyb_retrieval.documents.readers.sheets import read_spreadsheet
from aveyb_retrieval.documents.readers.subtitles import read_subtitles
from aveyb_retrieval.documents.readers.suffixes_without_text import PICTURE_SUFFIXES
from aveyb_retrieval.documents.readers.table_lines import read_sheet
from aveyb_retrieval.documents.readers.text import read_text
from aveyb_retrieval.documents.readers.tnef import read_tnef
from aveyb_retrieval.documents.readers.vcard import read_vcard
from aveyb_retrieval.documents.readers.xml import read_xml
from aveyb_retrieval.documents.reading import decompress, split_suffix
from aveyb_retrieval.documents.records import path_text
from aveyb_retrieval.errors import InputError, shortened
from aveyb_retrieval.files import open_file

if TYPE_CHECKING:
    from collections.abc import Callable, Sequence


class FileKind(NamedTuple):
    """How a file is read: by which reader, whether it is decompressed first, and which of its bytes
    `[start, stop)` hold the document; None: all of them.
    """

    name: str
    compression: str
    part: tuple[int, int] | None = None


SAMPLE_BYTES = 4096  # bytes that tell whether a file without a suffix is a text
_BINARY = re.compile(rb"[\x00-\x06\x0e-\x1a\x1c-\x1f\x7f]")
_DAY = re.compile(r"\d{4}-\d\d-\d\d")
USERS_FILE = "users.json"  # of Slack, above its channels

PICTURE = "picture"
# Each name is one of _READERS or _HOLDERS, below, or of LANGUAGES, or CHAT. What a reader makes of
# headings, lists and pages is said by `FileText`.
SUFFIXES = {
    ".pdf": "pdf", ".docx": "docx", ".odt": "odt", ".rtf": "rtf", ".epub": "epub", ".pptx": "pptx",
    ".xlsx": "spreadsheet", ".xlsm": "spreadsheet", ".xls": "spreadsheet", ".ods": "spreadsheet",
    ".html": "html", ".htm": "html", ".xhtml": "xhtml", ".xht": "xhtml",
    ".md": "markdown", ".markdown": "markdown",
    ".txt": "text", ".text": "text", ".rst": "text", ".adoc": "text", ".org": "text",
    ".log": "text", ".tex": "text", ".yaml": "text", ".yml": "text", ".toml": "text",
    ".ini": "text", ".cfg": "text", ".conf": "text", ".properties": "text",
    ".xml": "xml", ".vcf": "vcard",
    ".eml": "mail", ".msg": "outlook", ".emlx": "applemail",
    ".tnef": "tnef",
    ".mbox": "mailbox", ".mbx": "mailbox", ".ics": "calendar",
    ".ipynb": "notebook", ".srt": "subtitles", ".vtt": "subtitles", ".zip": "zip",
    **dict.fromkeys(PICTURE_SUFFIXES, PICTURE),
    **{suffix: name for name, language in LANGUAGES.items() for suffix in language.suffixes},
}  # fmt: skip
# Files that are many documents where they are named, and one sheet where they are found in a folder
# or a mail.
TABLES = {".csv": "table", ".tsv": "table"}
CHAT = FileKind("chat", "")  # what Slack and Teams export as .json, where it is found in a folder
_TYPICAL_SUFFIX = re.compile(r"\.[A-Za-z][A-Za-z0-9_+-]{0,15}|\.\d?[A-Za-z][A-Za-z0-9]{0,3}")
PACKAGES = {  # what a kind needs, and the extra that brings it
    "pdf": ("pypdfium2", "files"),
    "docx": ("lxml", "files"),
    "odt": ("lxml", "files"),
    "rtf": ("striprtf", "files"),
    "epub": ("selectolax", "files"),
    "html": ("selectolax", "files"),
    "xhtml": ("lxml", "files"),
    "pptx": ("lxml", "files"),
    "spreadsheet": ("lxml", "files"),
    "mail": ("selectolax", "files"),
    "applemail": ("selectolax", "files"),
    "mailbox": ("selectolax", "files"),
    "outlook": ("oxmsg", "files"),
    "xml": ("lxml", "files"),
    "chat": ("selectolax", "files"),
    PICTURE: ("pytesseract", "ocr"),
    **{
        name: (language.package, "code") for name, language in LANGUAGES.items() if language.package
    },
}
# their text is about as long as their bytes: refused before it is decoded
AS_LONG = ("markdown", "text", "vcard")


def kind_of(path: PurePath, *, in_folder: bool = False) -> FileKind | None:
    """The kind of a file, by its suffix; None where it does not hold one document.

    `in_folder`: in a folder, an archive or a mail, where tables are sheets.
    """
    suffix, compression = split_suffix(path)
    name = SUFFIXES.get(suffix) or (TABLES.get(suffix) if in_folder else None)
    return FileKind(name, compression) if name else None


def read_file(path: Path, kind: FileKind, limits: Limits) -> tuple[FileText, str]:
    """Read the document that a file, or a part of it, holds; also give the SHA-256 of its bytes: of
    a mail in a mailbox without the escapes of that.

    Raises Unreadable: it cannot be read; the message is the reason; Unrecognized, with that hash:
    it is a picture that may be read another time.
    """
    data = read_bytes(path, follow_links=limits.follow_links, part=kind.part)
    if not data:
        raise Unreadable("empty")
    digest = hashlib.sha256(data).hexdigest()
    if kind.compression:
        data = _unpack(data, path, kind.compression, limits)
    if kind.name in AS_LONG:
        _check_length(len(data), limits)
    try:
        if kind == CHAT:
            text = read_chat(data, limits, _users_beside(path), _channel_of(path))
        else:
            text = _parse(kind.name, data, limits)
    except Unrecognized as reason:
        raise Unrecognized(str(reason), digest) from None
    _check_length(
        len(text.text) if text.text.isascii() else len(text.text.encode(errors="replace")),
        limits,
    )
    if (length := len(text.title)) > MAX_TITLE_CHARACTERS:
        cut = f"a title of {length:,} characters, of which {MAX_TITLE_CHARACTERS:,} are kept"
        warning = "; ".join(filter(None, (text.warning, cut)))
        text = replace(text, title=shortened(text.title, MAX_TITLE_CHARACTERS), warning=warning)
    return text, digest


def _users_beside(path: Path) -> dict[str, str]:
    """The names of Slack's users, by ids, of the export that a channel's file lies in."""
    try:
        return read_users(read_bytes(path.parent.parent / USERS_FILE, follow_links=False))
    except Unreadable:
        return {}


def _channel_of(path: Path) -> str:
    """What messages are called: Slack has a folder for each channel, with a file for each day."""
    is_day = _DAY.fullmatch(path.stem) is not None
    return path_text(path.parent.name if is_day else path.stem)


def has_suffix(name: str) -> bool:
    """Return whether a file's name ends in what tells its kind: "3. May" and "v1.2" do not."""
    return _TYPICAL_SUFFIX.fullmatch(PurePosixPath(name).suffix) is not None


def looks_like_text(start: bytes) -> bool:
    """Return whether a file that begins so is a text, in UTF-8 or an encoding of bytes."""
    if not start:
        return False
    if marked(start)[1] or without_mark(start):
        return True
    return not _BINARY.search(start)


def first_bytes(path: Path, count: int, *, follow_links: bool) -> bytes:
    """Return the first bytes of a plain file; none of what cannot be read: reading it says why."""
    try:
        with os.fdopen(open_file(path, os.O_RDONLY, follow_links=follow_links), "rb") as handle:
            plain = stat.S_ISREG(os.fstat(handle.fileno()).st_mode)
            return handle.read(count) if plain else b""
    except OSError:
        return b""


def read_bytes(
    path: Path, *, follow_links: bool = True, part: Sequence[int] | None = None
) -> bytes:
    """Read a whole file, or the message of a mailbox that stands in the bytes `[start, stop)`.

    Raises Unreadable: it is not a plain file, too large, or the system refuses.
    """
    try:
        with os.fdopen(open_file(path, os.O_RDONLY, follow_links=follow_links), "rb") as handle:
            status = os.fstat(handle.fileno())
            if not stat.S_ISREG(status.st_mode):
                raise Unreadable("not a plain file")
            start, stop = part or (0, status.st_size)
            if stop - start > MAX_FILE_BYTES:
                raise Unreadable(
                    f"{stop - start:,} bytes; files of at most {MAX_FILE_BYTES:,} are read"
                )
            handle.seek(start)
            data = handle.read(stop - start if part else MAX_FILE_BYTES + 1)
    except OSError as error:
        raise Unreadable(f"cannot be read ({error.strerror or error})") from None
    if len(data) > MAX_FILE_BYTES:
        raise Unreadable(f"more than {MAX_FILE_BYTES:,} bytes")
    return message_bytes(data) if part else data


def _unpack(data: bytes, path: PurePath, compression: str, limits: Limits) -> bytes:
    """Decompress the bytes that were read and hashed: the file itself may be another one by now."""
    blocks, length = [], 0
    try:
        for block in decompress(io.BytesIO(data), path, compression):
            blocks.append(block)
            length += len(block)
            if length > limits.longest:
                raise Unreadable(
                    f"more than {limits.longest:,} bytes unpacked (--max-line, max_line)"
                )
    except InputError as error:
        raise Unreadable(str(error).removeprefix(f"{path}: ")) from None
    return b"".join(blocks)


def _check_length(length: int, limits: Limits) -> None:
    if length > limits.longest:
        raise Unreadable(too_long(length, limits.longest))


def missing_package(kind: str) -> tuple[str, str] | None:
    """The package that a kind needs and the extra that brings it, where it is not installed; None
    where nothing is.
    """
    needed = PACKAGES.get(kind)
    return needed if needed and importlib.util.find_spec(needed[0]) is None else None


def _parse(kind: str, data: bytes, limits: Limits, depth: int = 0) -> FileText:
    """Read contents by the reader of their kind; files that they hold are read the same way,
    `depth` deep.
    """
    if kind in LANGUAGES:
        return read_code(data, limits, kind)
    if kind in _HOLDERS:
        inner = InnerFiles(partial(_parse_inner, limits), limits, depth)
        return _HOLDERS[kind](data, limits, inner)
    return _READERS[kind](data, limits)


def _parse_inner(
    limits: Limits, name: str, data: bytes, depth: int, may_be_text: bool
) -> FileText | None:
    kind = kind_of(PurePosixPath(name), in_folder=True)
    if (
        kind is None
        and may_be_text
        and not has_suffix(name)
        and looks_like_text(data[:SAMPLE_BYTES])
    ):
        kind = FileKind("text", "")
    if kind is None or (kind.name == PICTURE and _is_passed_over(data)):
        return None
    if not data:
        raise Unreadable("empty")
    if missing := missing_package(kind.name):
        raise Unreadable(f"needs the package {missing[0]!r} (the extra [{missing[1]}])")
    if kind.compression:
        data = _unpack(data, PurePosixPath(name), kind.compression, limits)
    return _parse(kind.name, data, limits, depth)


def _is_passed_over(picture: bytes) -> bool:
    """Whether a picture in another file is not even looked at: a logo, maybe a damaged one."""
    return missing_package(PICTURE) is not None or len(picture) < MIN_PICTURE_BYTES


_HOLDERS: dict[str, Callable[[bytes, Limits, InnerFiles], FileText]] = {
    "mail": read_eml,
    "applemail": read_emlx,
    "mailbox": read_mailbox,
    "outlook": read_msg,
    "tnef": read_tnef,
    "zip": read_zip,
}
_READERS: dict[str, Callable[[bytes, Limits], FileText]] = {
    "pdf": read_pdf,
    "docx": read_docx,
    "odt": read_odt,
    "rtf": read_rtf,
    "epub": read_epub,
    "pptx": read_pptx,
    "spreadsheet": read_spreadsheet,
    "html": read_html,
    "xhtml": read_xhtml,
    "markdown": read_markdown,
    "text": read_text,
    "notebook": read_notebook,
    "calendar": read_calendar,
    "table": read_sheet,
    "subtitles": read_subtitles,
    "xml": read_xml,
    "vcard": read_vcard,
    PICTURE: read_picture_file,
}
