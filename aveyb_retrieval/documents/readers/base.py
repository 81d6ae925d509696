"""What all readers share: the text of a file or the reason why there is none, limits, archives, files in files."""

from __future__ import annotations

import io
import re
import zipfile
import zlib
from dataclasses import dataclass, field
from functools import partial
from pathlib import PurePosixPath
from typing import TYPE_CHECKING, Any

from aveyb_retrieval.documents.records import MAX_PAGES, Pages, short_label
from aveyb_retrieval.errors import plural

if TYPE_CHECKING:
    from collections.abc import Callable, Iterable, Sequence

    from lxml.etree import _Element

# Whatever is read from a file that may be hostile is bounded by these.
MAX_FILE = 512 << 20  # bytes of a file
MAX_UNPACKED = 256 << 20  # bytes of what is packed in it
FILE_SECONDS = 120  # of processor time, for each
LONGEST_TITLE = 1000  # characters

_NO_TEXT = re.compile("[\x00-\x08\x0e-\x1f\x7f\ufffe\uffff]")  # control characters; tab, newline, form feed stay
# Where a word may be divided: no part of it. In scripts without blanks a zero-width one parts words, and stays.
_DIVISIONS = re.compile("[\u00ad\u2060\ufeff]|(?<![\u0e00-\u0eff\u1000-\u109f\u1780-\u17ff])\u200b")


class Unreadable(Exception):
    """The reason why a file has no text that could be indexed, which every reader raises (becomes `Rejected`)."""


@dataclass(frozen=True)
class FileText:
    """The text of one file.

    Attributes:
        title: What the file calls itself; "" where it does not.
        text: Headings are lines that begin with "#", where the format marks headings. `encoder/text/passages.py` finds
            these again, with underlined lines and short ones that stand alone and look like one (end such a line of a
            reader's own with a stop); a listing between fences ("~~~~") holds none.
        pages: Where its pages begin in the text; None where the format has none.
        warning: Which part of the file holds no text that could be read; "" where all of it was read.
        metadata: What the file says of itself beside its title, as JSON can hold it.
    """

    title: str
    text: str
    pages: Pages | None = None
    warning: str = ""
    metadata: dict[str, Any] = field(default_factory=dict)


class Parts:
    """A text of parts that are its pages. More of them, or more than `longest` characters, are Unreadable."""

    def __init__(self, unit: str, longest: int) -> None:
        self._unit = unit
        self._longest = longest
        self._texts: list[str] = []
        self._starts: list[int] = []
        self._labels: list[str] = []
        self._length = 0

    def __bool__(self) -> bool:
        return bool(self._starts)

    def check(self, more: int) -> None:
        """Raise Unreadable where so many more characters would be too many."""
        check_characters(self._length + more, self._longest)

    def add(self, text: str, label: str = "", *, end: str = "\n\n") -> None:
        """Add a part, which may be empty, and what it is called: what `Hit.place` cites, its number where empty."""
        self.check(len(text))
        if len(self._starts) == MAX_PAGES:
            raise Unreadable(f"more than {MAX_PAGES:,} parts")
        self._starts.append(self._length)
        self._labels.append(short_label(label) or str(len(self._starts)))
        self._texts.append(text + end if text else "")
        self._length += len(self._texts[-1])

    def text(self, title: str, warning: str = "", metadata: dict[str, Any] | None = None) -> FileText:
        """Return the whole."""
        numbered = all(label == str(number) for number, label in enumerate(self._labels, start=1))
        pages = Pages(tuple(self._starts), () if numbered else tuple(self._labels), self._unit) if self else None
        return FileText(title, "".join(self._texts), pages, warning, metadata or {})


def too_long(length: int, longest: int) -> str:
    """Say that a line is longer than what is read."""
    return f"{length:,} bytes, at most {longest:,} are read as one document (--max-line, max_line)"


def check_characters(count: int, longest: int) -> None:
    """Raise Unreadable where a text has more characters than are read of a file."""
    if count > longest:
        raise Unreadable(f"more than {longest:,} characters (--max-line, max_line)")


def clean(text: str) -> str:
    """Remove control characters, and end lines with a newline; what is stored as it was written does without."""
    # a vertical tab is a line break inside of a paragraph: of slides, and of mails that Word has written
    text = text.replace("\r\n", "\n").replace("\r", "\n").replace("\v", "\n")
    return whole_words(_NO_TEXT.sub("", text))


def whole_words(text: str) -> str:
    """Remove the characters that only say where a word may be divided: soft hyphens, zero-width blanks."""
    return text if text.isascii() else _DIVISIONS.sub("", text)


def paragraphs(lines: Iterable[str]) -> str:
    """Return lines as a text, of several blank ones in a row one."""
    return _BLANK_LINES.sub("\n\n", clean("\n".join(lines))).strip()


_BLANK_LINES = re.compile(r"\n(?:[ \t]*\n){2,}")
_NOBODY = re.compile(
    r"\(?(?:anonymous|unspecified|unknown|untitled|unnamed|none|no title|title)\)?|python-docx|openpyxl|"
    r"untitled\d*|document\d*|powerpoint presentation|microsoft word - .*|"
    r".*\.(?:dvi|tex|docx?|indd|qxd|pdf|rtf|html?|txt)",
    re.IGNORECASE,
)


def named(value: str | None) -> str:
    """A title or author as one line; "" where it is what a program writes for want of one."""
    words = one_line(value or "")
    return "" if _NOBODY.fullmatch(words) else words


def about(author: str | None, created: str | None) -> dict[str, Any]:
    """Metadata that office programs and PDF have in common; those that are missing are left out."""
    return {key: value for key, value in (("author", named(author)), ("created", one_line(created or ""))) if value}


def some(names: Sequence[object], most: int = 8) -> str:
    """Return the first of some names as a list in words."""
    return ", ".join(map(str, names[:most])) + (", ..." if len(names) > most else "")


def one_line(text: str) -> str:
    """Return a text with each run of white space as one blank."""
    return " ".join(clean(text).split())


def whole(text: str | None, otherwise: int = 0, most: int = 1 << 31) -> int:
    """Return the whole number that a file has written, at most `most`; `otherwise` where it is none."""
    digits = text.strip() if text else ""
    return min(int(digits), most) if digits.isdigit() and digits.isascii() and len(digits) < 12 else otherwise


_MAX_FILES = 1 << 16
_OLD_OFFICE = bytes.fromhex("d0cf11e0a1b11ae1")  # a compound file: an encrypted DOCX, or a DOC


def is_archive(data: bytes) -> bool:
    """Return whether a file begins as a ZIP archive does."""
    return data.startswith((b"PK\x03\x04", b"PK\x05\x06"))


def open_archive(data: bytes) -> zipfile.ZipFile:
    """Open a ZIP archive whose contents fit into memory. Nothing unpacks to more than the archive says of it."""
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
    """Unpack one file. Raises Unreadable: it is missing, damaged or encrypted."""
    try:
        return archive.read(name)
    except KeyError:
        raise Unreadable(f"damaged: the archive has no {name!r}") from None
    except (zipfile.BadZipFile, zlib.error, RuntimeError, NotImplementedError, EOFError, OSError) as error:
        raise Unreadable(f"damaged: {name!r} cannot be unpacked ({error})") from None


def parse_xml(data: bytes, name: str) -> _Element:
    """Parse XML: entities stay unresolved, nothing is loaded. Raises Unreadable: it is not XML."""
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
    """Read the files of an archive, by name, as one document whose pages they are; hidden ones are left out."""
    archive = open_archive(data)
    for info in sorted(archive.infolist(), key=lambda info: info.filename):
        path = PurePosixPath(info.filename)
        if info.is_dir() or any(part.startswith((".", "__MACOSX")) for part in path.parts):
            continue
        inner.read(info.filename, partial(read_member, archive, info.filename))
    return inner.text("")
